"""Sums that this machine's own instructions compute, beside those of the library: see `cpu_sums.c`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from qcore import Accumulator
from qcore.linalg import matmul

SOURCE = Path(__file__).with_name("cpu_sums.c")
CPU = Path("/proc/cpuinfo")
PART = 1 << 18  # lanes that are computed at a time
ENDS = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x807F, 0x8080, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F], np.uint16)


class Instruction(NamedTuple):
    """An instruction of x86 that adds products.

    Attributes:
        name: as `cpu_sums.c` knows it.
        flag: what /proc/cpuinfo calls it.
        accumulator: what adds so here.
        operands: the formats of a's and b's terms.
        dtypes: of their codes.
        kinds: of lanes.
    """

    name: str
    flag: str
    accumulator: Accumulator
    operands: tuple[str, str]
    dtypes: tuple[str, str]
    kinds: tuple[str, ...]


# Exact sums. Addends are chosen so that int32 does not wrap; both sides' results are rounded to float32.
_EXACT = Accumulator("binary(11,52)", chunk=1)
INSTRUCTIONS = (
    Instruction(
        "vdpbf16ps",
        "avx512_bf16",
        Accumulator.of("x86.avx512_bf16"),
        ("bfloat16", "bfloat16"),
        ("uint16", "uint16"),
        ("normal", "wide", "tiny", "random bits"),
    ),
    Instruction("vdpbusd", "avx512_vnni", _EXACT, ("uint8", "int8"), ("uint8", "int8"), ("random bits",)),
    Instruction(
        "vdpwssd",
        "avx512_vnni",
        _EXACT,
        ("fixed(16,0)", "fixed(16,0)"),
        ("int16", "int16"),
        ("random bits",),
    ),
)


class Proof(NamedTuple):
    """Lanes of an instruction, and how many differ."""

    instruction: str
    accumulator: str
    kind: str
    lanes: int
    differing: int


def why_not(one: Instruction) -> str | None:
    """Why this machine cannot compute an instruction; None if it can."""
    flags = CPU.read_text(encoding="utf-8").split() if CPU.exists() else []
    return None if one.flag in flags else f"{one.name} is skipped: {CPU} has no {one.flag}"


def prove(one: Instruction, count: int) -> Iterator[Proof]:
    """Compares so many lanes, in equal parts of each kind."""
    rng, each = np.random.default_rng(5), count // len(one.kinds)
    with TemporaryDirectory() as folder:
        program = Path(folder) / "cpu_sums"
        flags = ["-O1", "-mavx512f", "-mavx512bf16", "-mavx512vnni"]
        subprocess.run(["cc", *flags, str(SOURCE), "-o", str(program)], check=True)
        for kind in one.kinds:
            wrong = 0
            for begin in range(0, each, PART):
                given = lanes(rng, one, kind, min(PART, each - begin))
                wrong += int((by_instruction(program, one, *given) != by_library(one, *given)).sum())
            yield Proof(one.name, one.accumulator.text, kind, each, wrong)


def lanes(rng: np.random.Generator, one: Instruction, kind: str, count: int) -> tuple[np.ndarray, ...]:
    """The codes of a and b, (count, terms), and c, (count,): float32, or int32 that float32 holds."""
    terms = 4 // np.dtype(one.dtypes[0]).itemsize
    if one.name != "vdpbf16ps":
        # Two products of -2^15 would wrap.
        a, b = (
            rng.integers(np.iinfo(x).min + (x == "int16"), np.iinfo(x).max, (count, terms), dtype=x, endpoint=True)
            for x in one.dtypes
        )
        a[rng.random(a.shape) < 0.1] = np.iinfo(a.dtype).max
        return a, b, rng.integers(-(1 << 16), 1 << 16, count, dtype=np.int32)
    if kind == "random bits":
        a, b = (rng.integers(0, 1 << 16, (count, terms), np.uint16) for _ in "ab")
        ends = rng.random((count, terms)) < 0.2
        return np.where(ends, rng.choice(ENDS, (count, terms)), a), b, _bits(rng, count)
    size = {"normal": 0, "wide": 0, "tiny": -63}[kind]
    numbers = [rng.standard_normal((count, n)) * 2.0 ** (size * min(n, 2)) for n in (terms, terms, 1)]
    if kind == "wide":
        numbers = [x * np.exp2(rng.integers(-40, 41, x.shape)) for x in numbers]
    if kind == "tiny":
        numbers[2] = numbers[2] * 2.0**-63
    a, b, c = (x.astype(np.float32).view(np.uint32) for x in numbers)
    return (a >> 16).astype(np.uint16), (b >> 16).astype(np.uint16), c[:, 0].view(np.float32)


def _bits(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 1 << 32, count, np.uint32).view(np.float32)


def by_instruction(program: Path, one: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The bits of the results as float32; all NaN are one."""
    given = np.stack([np.ascontiguousarray(x).view(np.uint32).reshape(-1) for x in (a, b, c)], 1)
    made = subprocess.run([str(program), one.name], input=given.tobytes(), stdout=subprocess.PIPE, check=True)
    found = np.frombuffer(made.stdout, np.float32 if one.name == "vdpbf16ps" else np.int32)
    return _one_nan(found.astype(np.float32))


def by_library(one: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    if one.name == "vdpbf16ps":
        a, b = ((x.astype(np.uint32) << 16).view(np.float32) for x in (a, b))
    a, b, c = (x.astype(np.float32) for x in (a, b, c))
    found = matmul(a[:, None, :], b[:, :, None], c[:, None, None], operands=one.operands, accumulator=one.accumulator)
    return _one_nan(found.reshape(-1))


def _one_nan(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))
