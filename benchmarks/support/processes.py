"""Processes of a job that a reader may stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context


@contextmanager
def processes(jobs: int, start: Callable[[], None]) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes end at once where the job is stopped, or fails."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), start) as pool:
        try:
            yield pool
        except BaseException:
            for child in active_children():
                child.terminate()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def stopped_by_parent() -> Iterator[None]:
    """Processes that start meanwhile do not hear Ctrl-C: their parent keeps what is done, and ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which processes inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
