"""What a worker of a sweep does: it compares all bit patterns of a range on the fast backends."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch

from benchmarks.support.backends import Backend, fast_backends, reference_in_parts
from benchmarks.support.comparison import Case, Piece, compare
from benchmarks.support.programs import keep_programs
from benchmarks.support.report import environment
from qcore import parse

CHUNK = 1 << 20  # patterns at a time: few enough for caches, many enough that calls cost nothing

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
KEPT = 1 << 25  # bytes; glibc allows no more than this for M_MMAP_THRESHOLD


def sweep_piece(number: str, mode: str, start: int, stop: int) -> tuple[list[Case], dict[str, str]]:
    """Compares the float32 numbers with bit patterns from `start` to below `stop`.

    An element's index, on which its random bits depend, is its pattern.

    Returns:
        A case for each backend, and the versions of all that took part.
    """
    return compare(parse(number), mode, _patterns(start, stop), _backends()), _versions()


@cache
def _backends() -> list[Backend]:
    _keep_pages()
    keep_programs(quiet=True)
    torch.set_num_threads(1)  # other workers have the other processors
    return [reference_in_parts(), *fast_backends()]


def _keep_pages() -> None:
    """Lets glibc keep freed memory, which dask tells it to give back: a fresh page costs more than its numbers."""
    with contextlib.suppress(OSError, AttributeError):  # other systems
        c = ctypes.CDLL(None)
        for setting in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            c.mallopt(setting, KEPT)


@cache
def _versions() -> dict[str, str]:
    return environment()["versions"]


def _patterns(start: int, stop: int) -> Iterator[Piece]:
    for begin in range(start, stop, CHUNK):
        end = min(begin + CHUNK, stop)
        yield Piece(np.arange(begin, end, dtype=np.uint32).view(np.float32), begin)
