"""`python -m engine` is the command line."""

from engine.cli import main

main()
