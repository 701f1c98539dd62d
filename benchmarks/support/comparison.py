"""What a backend made of one format and rounding mode, beside the reference: counts of bits that differ, and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from benchmarks.support.backends import Backend
from qcore import Number
from qcore.law.rounding import RoundingName

Extent = Literal["quick", "usual", "all"]  # how much a comparison takes: a minute, ten, an hour


class Piece(NamedTuple):
    """An array to round.

    Attributes:
        x: the array.
        start: the index of its first element.
        hard: whether every backend rounds it; else those only to which a new shape costs little.
    """

    x: np.ndarray
    start: int = 0
    hard: bool = True


@dataclass
class Case:
    """What was found for a format and a rounding mode on a backend; `example` is the difference of the least index."""

    format: str
    rounding: str
    backend: str
    inputs: int = 0
    differing: int = 0
    seconds: float = 0.0
    first: int = -1
    example: str = ""

    @property
    def ns_per_element(self) -> float:
        return self.seconds * 1e9 / self.inputs if self.inputs else 0.0

    def record(self) -> dict[str, Any]:
        """What JSON gets."""
        return asdict(self) | {"ns_per_element": self.ns_per_element}

    def add(self, piece: Piece, expected: np.ndarray, result: np.ndarray, seconds: float) -> None:
        """Compares bits."""
        given, wanted, got = (array.view(np.uint32).ravel() for array in (piece.x, expected, result))
        found = Case(self.format, self.rounding, self.backend, piece.x.size, seconds=seconds)
        if not np.array_equal(got, wanted):
            places = np.flatnonzero(got != wanted)
            place = int(places[0])
            found.differing, found.first = places.size, piece.start + place
            found.example = (
                f"{given[place]:08x} at index {found.first} became {got[place]:08x}, not {wanted[place]:08x}"
            )
        self.merge(found)

    def merge(self, other: Case) -> None:
        """Adds what was found for other inputs."""
        if other.differing and (not self.differing or other.first < self.first):
            self.first, self.example = other.first, other.example
        self.inputs, self.differing = self.inputs + other.inputs, self.differing + other.differing
        self.seconds += other.seconds


def compare(number: Number, mode: str, pieces: Iterable[Piece], backends: Sequence[Backend]) -> list[Case]:
    """Rounds the pieces on each backend that takes the format and mode; the first backend is the reference."""
    taking = [backend for backend in backends if backend.pairs is None or (number, mode) in backend.pairs]
    quantizers = [backend.prepare(number, cast("RoundingName", mode)) for backend in taking]
    cases = [Case(number.text, mode, backend.name) for backend in taking]
    shapes = set()
    for piece in pieces:
        expected = None
        for backend, quantizer, case in zip(taking, quantizers, cases, strict=True):
            if piece.hard or not backend.hard_only:
                result, seconds = backend.run(quantizer, piece.x, piece.start, piece.x.shape not in shapes)
                expected = result if expected is None else expected
                case.add(piece, expected, result, seconds)
        shapes.add(piece.x.shape)
    return cases
