"""A bar on a terminal that shows how far a search is; nothing where there is no terminal, or no rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(text: str) -> Iterator[Callable[[float], None]]:
    """Shows a bar on standard error while it is entered.

    Yields:
        A function that says which part of the work is done, from 0 to 1.
    """
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        yield lambda part: None
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda part: bar.update(task, completed=part)
