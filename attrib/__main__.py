"""`python -m attrib`."""

from attrib.cli import main

main()
