"""How far a long job is: a bar on a terminal, and elsewhere a plain line every ten seconds."""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from time import perf_counter
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

SECONDS = 10.0  # between two lines


class Progress(AbstractContextManager["Progress"]):
    """Shows, while it is entered, how many of `total` things are done and which are under way.

    Args:
        total: how many there are.
        unit: what they are, in the plural.
        file: where to show it; standard error if None.
    """

    def __init__(self, total: int, unit: str, file: IO[str] | None = None):
        self._total, self._unit, self._file = total, unit, file or sys.stderr
        self._done, self._running, self._begin = 0, "", perf_counter()
        self._bar, self._stop = None, threading.Event()
        self._lines = threading.Thread(target=self._write_lines, daemon=True)

    def __enter__(self) -> Progress:
        self._begin = perf_counter()
        if self._file.isatty():
            columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"), TimeElapsedColumn()
            shown = Console(file=self._file)
            self._bar = Bar(*columns, TimeRemainingColumn(), TextColumn("{task.description}"), console=shown)
            self._task = self._bar.add_task("", total=self._total, unit=self._unit)
            self._bar.start()
        else:
            self._lines.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()
        else:
            self._stop.set()
            self._lines.join()
            print(self._line(), file=self._file, flush=True)

    def show(self, done: int, running: str = "") -> None:
        """Says how many things are done by now, and what runs."""
        self._done, self._running = done, running
        if self._bar:
            self._bar.update(self._task, completed=done, description=running)

    def _write_lines(self) -> None:
        while not self._stop.wait(SECONDS):
            print(self._line(), file=self._file, flush=True)

    def _line(self) -> str:
        elapsed = perf_counter() - self._begin
        left = f", {_clock(elapsed / self._done * (self._total - self._done))} left" if self._done else ""
        running = f"; running: {self._running}" if self._running else ""
        return f"{self._done:,} of {self._total:,} {self._unit}, {_clock(elapsed)} elapsed{left}{running}"


def _clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
