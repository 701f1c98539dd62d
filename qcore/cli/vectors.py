"""Conformance vectors: text files of inputs and what the law makes of them, to be computed again by others.

The first line is a JSON object, the fields of `Header`. Each further line is `input_bits,output_bits,code`, in
hexadecimal; the code is empty where the format has none of up to 32 bits, or numbers that float64 has not. The random
word of stochastic rounding is that of the line's index among these lines, from 0 on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

import numpy as np

from qcore.block import BlockNumber
from qcore.carrier import FLOAT64
from qcore.cli.inputs import bits_of, dtype_of, vector_inputs
from qcore.cli.names import parse_format
from qcore.number import Number
from qcore.reference import decode, encode, quantize


@dataclass(frozen=True)
class Header:
    """What decides the results.

    Attributes:
        format: as on the command line.
        mode: the rounding mode.
        dtype: of inputs and outputs.
        overflow: the policy, or None for the format's own.
        key: for stochastic rounding, else None.
        version: of the library that wrote the file.
    """

    format: str
    mode: str
    dtype: str
    overflow: str | None
    key: int | None
    version: str

    def law(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The outputs for inputs, and their codes if the format has any.

        Raises:
            ValueError: if there is no such law.
        """
        number = parse_format(self.format)
        if isinstance(number, BlockNumber):
            raise ValueError(f"format {self.format!r}: allowed are formats of single numbers, {number!r} is of blocks")
        outputs = quantize(x, number, self.mode, key=self.key, overflow=self.overflow)
        if not _has_codes(number):
            return outputs, None
        return outputs, encode(x, number, self.mode, key=self.key, overflow=self.overflow)

    def digits(self) -> tuple[int, int]:
        """Hexadecimal digits of bit patterns and of codes, which are 0 where there are none."""
        number = parse_format(self.format)
        return dtype_of(self.dtype).itemsize * 2, -(-number.bits // 4) if _has_codes(number) else 0

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """The numbers with these codes, in float64."""
        return decode(codes, parse_format(self.format), np.float64)


def _has_codes(number: Number) -> bool:
    """Whether there are codes, and float64 has the numbers that they stand for."""
    try:
        number.check_exact(FLOAT64)
        number.codes(FLOAT64)
    except ValueError:
        return False
    return True


def version() -> str:
    """Of this library."""
    try:
        return installed_version("qbits")
    except PackageNotFoundError:
        return "not installed"


def write(path: Path, header: Header, count: int, seed: int) -> int:
    """Writes the vectors for a law; returns how many lines of them there are.

    Raises:
        ValueError: if there is no such law.
        OSError: if the file cannot be written.
    """
    dtype = dtype_of(header.dtype)
    header.law(np.empty(0, dtype))  # refuses what is wrong before the work begins
    x = vector_inputs(parse_format(header.format), dtype, count, seed)
    outputs, codes = header.law(x)
    wide, narrow = header.digits()
    columns = [[f"{bits:0{wide}x}" for bits in bits_of(column).tolist()] for column in (x, outputs)]
    columns.append([""] * len(x) if codes is None else [f"{code:0{narrow}x}" for code in codes.tolist()])
    lines = [json.dumps(asdict(header)), *map(",".join, zip(*columns, strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="ascii", newline="\n")
    return len(x)
