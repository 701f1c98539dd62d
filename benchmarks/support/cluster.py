"""Independent pieces of work on the processes of this machine or of a dask cluster, which may die while they work."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client


class ClusterError(Exception):
    """There are no processes to work on, or they are not there any more; the message says what to do."""


@contextlib.contextmanager
def connected(scheduler: str | None, workers: int, timeout: float) -> Iterator[Client]:
    """A client of a dask scheduler.

    Args:
        scheduler: its address, such as "tcp://node1:8786"; None starts workers on this machine.
        workers: how many of these.
        timeout: seconds to wait for a scheduler and for its first worker.

    Raises:
        ClusterError: if dask is not installed, or nothing answers in that time.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ClusterError(f"dask is not installed ({error}); pip install -c constraints.txt -e '.[sweep]'") from error
    with contextlib.ExitStack() as stack:
        address: Any = scheduler
        if scheduler is None:
            options: dict[str, Any] = {"silence_logs": logging.CRITICAL, "dashboard_address": "127.0.0.1:0"}
            address = stack.enter_context(LocalCluster(None, workers, 1, True, host="127.0.0.1", **options))
        for part in ("distributed", "distributed.client"):
            logging.getLogger(part).setLevel(logging.CRITICAL)  # what it says in many lines is said below in one
        try:
            client = stack.enter_context(Client(address, timeout=timeout))
        except (OSError, ValueError) as error:
            what = "start it with `dask scheduler`, and workers with `dask worker` in this repository's folder"
            raise ClusterError(f"no scheduler answers at {scheduler} within {timeout:g} s; {what}") from error
        try:
            client.wait_for_workers(1, timeout)
        except TimeoutError as error:
            what = f"start some with `dask worker {scheduler}` in this repository's folder"
            raise ClusterError(f"the scheduler has no worker after {timeout:g} s; {what}") from error
        yield client


def processes(client: Any) -> int:
    """How many pieces the workers do at the same time."""
    return sum(client.nthreads().values())


def results(client: Client, work: Callable[..., Any], pieces: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, Any]]:
    """Calls `work(*piece)` for each piece on any worker, and yields pieces with what came back, as they finish.

    A piece whose worker dies is done again by another. What fails comes back as an exception, and so does a piece on
    which four workers died.

    Raises:
        ClusterError: if the scheduler is lost.
    """
    from distributed import as_completed

    futures = {client.submit(work, *piece, pure=False): piece for piece in pieces}
    finished = as_completed(list(futures))
    for future in finished:
        if future.status == "cancelled":
            raise ClusterError("the scheduler is gone")
        yield futures.pop(future), future.exception() or future.result()
        future.release()  # so that the scheduler forgets it
