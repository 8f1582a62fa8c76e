"""Progress of long work on a terminal's standard error, and nothing in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A bar of `total` pieces with the time that is left; yields what to call after each piece."""
    from rich.console import Console  # noqa: PLC0415 - keeps a start without long work quick
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(what, *columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
