"""Conformance vectors: text files of inputs and the law's results, against which other implementations compare theirs.

The first line is a JSON object, the fields of `Header`. Each further line is `input_bits,output_bits,code`, in
hexadecimal; the code is empty if the format has no codes of up to 32 bits, or if float64 lacks some of its numbers. The
random word of stochastic rounding is that of the line's index among these lines, from 0 on.

For formats with shared scales and codes, lines have a fourth field, the code of the scale. The lines are an array of
one dimension, cut into blocks from the first line on, as the format says; or all lines are one block.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qcore.arrays import decode, encode, quantize
from qcore.cli.inputs import bits_of, dtype_of, vector_inputs
from qcore.cli.properties import why_no_codes
from qcore.files import write_text
from qcore.formats.block import NVFP4, BlockNumber, BlockScaled
from qcore.formats.number import Number, check_number


@dataclass(frozen=True)
class Header:
    """The first line of a file: all that decides the results.

    Attributes:
        format: the format's text.
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

    @property
    def number(self) -> Number:
        """The format that the text stands for."""
        return check_number(self.format, "format")

    def law(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """The outputs for inputs, their codes if the format has any, and for blocks the codes of their scales."""
        number = self.number
        outputs = quantize(x, number, self.mode, key=self.key, overflow=self.overflow)
        if why_no_codes(number):
            return (outputs,)
        codes = encode(x, number, self.mode, key=self.key, overflow=self.overflow)
        if not isinstance(number, BlockNumber):
            return outputs, codes
        codes, scales = codes
        scales = bits_of(scales[0] if isinstance(scales, tuple) else scales)
        return outputs, codes, scales.repeat(number.block_sizes(1)[0] or x.size)[: x.size]

    def digits(self) -> tuple[int, ...]:
        """Hexadecimal digits of bit patterns, of codes, which are 0 where there are none, and for blocks of scales."""
        number = self.number
        digits = dtype_of(self.dtype).itemsize * 2, 0 if why_no_codes(number) else -(-number.bits // 4)
        if not isinstance(number, BlockNumber) or not digits[1]:
            return digits
        return *digits, self.scale_dtype.itemsize * 2

    @property
    def scale_dtype(self) -> np.dtype[Any]:
        """The dtype of blocks' scales."""
        if getattr(self.number, "scales", None) != "float32":
            return np.dtype(np.uint8)
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)

    def decode(self, column: int, codes: np.ndarray) -> np.ndarray:
        """The numbers with these codes, in float64: of column 1 elements', of column 2 scales'."""
        number: Any = self.number
        if column == 2 and self.scale_dtype.kind == "f":
            return codes.astype(f"u{self.scale_dtype.itemsize}").view(self.scale_dtype).astype(np.float64)
        if column == 2:
            number = "e4m3fn" if isinstance(number, NVFP4) else "e8m0fnu"
        elif isinstance(number, BlockScaled | NVFP4):
            number = number.element
        return decode(codes, number, np.float64)


def write(path: Path, header: Header, count: int, seed: int) -> int:
    """Writes the vectors for a law; returns how many lines of them there are."""
    dtype = dtype_of(header.dtype)
    header.law(np.empty(0, dtype))  # refuses what is wrong before the work begins
    x = vector_inputs(header.number, dtype, count, seed)
    columns = [[f"{bits:0{header.digits()[0]}x}" for bits in bits_of(x).tolist()]]
    results = header.law(x)
    for column, digits in zip((bits_of(results[0]), *results[1:]), header.digits(), strict=False):
        columns.append([f"{bits:0{digits}x}" for bits in column.tolist()])
    if len(results) == 1:
        columns.append([""] * len(x))
    lines = [json.dumps(asdict(header)), *map(",".join, zip(*columns, strict=True))]
    write_text(path, "\n".join(lines) + "\n")
    return len(x)
