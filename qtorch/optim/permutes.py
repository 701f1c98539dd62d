"""What `qtorch/_kernels/permutes.h` reads: an optimizer's codes as tables that fit into registers, made by the law."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count

import numpy as np

from qcore.law.carrier import FLOAT32
from qcore.reproducible import operations
from qcore.reproducible.state_codes import FLOAT8, StateCodes

Ranks = Callable[[np.ndarray], np.ndarray]
SIGNED = ("dynamic", "dynamic4", FLOAT8)
_EXPONENTS = 32  # of the largest magnitudes: a permute has so many places for halves of 32 bits
_NEVER = FLOAT32.magnitude_mask  # above all magnitudes


@cache
def tables(kind: str) -> np.ndarray:
    """The fields of `Bytes` or of `Halves` as bytes."""
    codes = StateCodes(kind, 2)
    if codes.bits == 4:
        numbers = codes.laws.decoding.view(np.float32)
        keys = _firsts(lambda keys: _codes(codes, _bits_of_keys(keys)), 16, -FLOAT32.infinity, FLOAT32.infinity)
        return np.concatenate([numbers, _bits_of_keys(keys).astype(np.uint32).view(np.float32)]).view(np.uint8)
    flip = 255 if kind == "dynamic" else 0
    zero = int(_codes(codes, np.zeros(1, np.int64))[0])
    sides: list[Ranks] = [lambda bits: _codes(codes, bits) - zero]
    if kind in SIGNED:
        sides.append(lambda bits: (_codes(codes, bits | 1 << FLOAT32.last) - 128 & 255) ^ flip)
    end = int(np.float32(2 * codes.laws.largest).view(np.int32)) >> FLOAT32.width << FLOAT32.width
    ranks = 1 + max(int(side(np.array([end - 1]))[0]) for side in sides)
    places, shifts, offsets = _places(sides, end >> FLOAT32.width, ranks - 2)
    lasts = []
    for side in sides:
        firsts = np.append(_firsts(side, ranks, 0, end), np.full(256, _NEVER + 1))[1:]
        lasts.append(firsts[: 256 // len(sides)] - 1)
    least = (end >> 16) - (_EXPONENTS << FLOAT32.width - 16)
    fields = [
        _by_bytes(codes.laws.decoding.astype(np.int64)),
        np.array([*shifts, *offsets], np.uint16),
        np.resize(np.append(places, np.zeros(512, np.int64)), 512).astype(np.uint8),
        _by_bytes(np.concatenate(lasts)),
        np.array([least], np.uint16),
        np.array([zero, flip], np.uint8),
    ]
    return np.concatenate([one.view(np.uint8) for one in fields])


def _codes(codes: StateCodes, bits: np.ndarray) -> np.ndarray:
    """The codes of numbers by their bits, as the law has them."""
    with operations.Names.arithmetic():
        lanes = bits.astype(np.uint32).view(np.int32)
        return np.asarray(codes.laws.encode(operations.Names, lanes, codes.laws.encoding)).astype(np.int64)


def _bits_of_keys(keys: np.ndarray) -> np.ndarray:
    """The bits of the numbers whose order is that of integers."""
    return np.where(keys < 0, -keys | 1 << FLOAT32.last, keys)


def _firsts(ranks: Ranks, number: int, begin: int, end: int) -> np.ndarray:
    """For each rank below a number the least integer that has it, or a higher one; above all magnitudes if none has."""
    wanted = np.arange(number)
    low, high = np.full(number, begin), np.full(number, end)
    while (low < high).any():
        middle = (low + high) // 2
        found = ranks(np.minimum(middle, end - 1)) >= wanted
        low, high = np.where(found, low, np.minimum(middle + 1, high)), np.where(found, middle, high)
    return np.where(high < end, high, _NEVER + 1)


def _places(sides: list[Ranks], end: int, most: int) -> tuple[list[int], list[int], list[int]]:
    """The ranks of places, and by exponent shifts and offsets. The lowest bits of an exponent are its place in both.

    The places of an exponent are as few as have one bound at most each, for positive and negative numbers.
    """
    found: list[int] = []
    shifts, offsets = [0] * _EXPONENTS, [0] * _EXPONENTS
    width = FLOAT32.width - 16  # bits of a fraction in the high half of a number
    for exponent in range(end - _EXPONENTS, end):
        for shift in count(width, -1):
            halves = (exponent << width) + (np.arange(1 << width - shift) << shift)
            begin, last = halves << 16, (halves + (1 << shift) << 16) - 1
            lowest = np.minimum(np.min([side(begin) for side in sides], axis=0), most)
            if (np.max([side(last) for side in sides], axis=0) <= lowest + 1).all():
                break
        shifts[exponent % _EXPONENTS] = shift
        offsets[exponent % _EXPONENTS] = len(found) - (exponent << width >> shift) & 0xFFFF
        found += lowest.tolist()
    return found, shifts, offsets


def _by_bytes(integers: np.ndarray) -> np.ndarray:
    """The lowest bytes of all integers, then the next ones."""
    return np.concatenate([integers >> 8 * place & 255 for place in range(4)]).astype(np.uint8)
