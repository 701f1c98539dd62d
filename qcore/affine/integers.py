"""Ranges of integers that represent numbers by a scale and a zero point."""

from __future__ import annotations

from dataclasses import dataclass, field

from qcore.arguments import check_flag, check_int, quoted
from qcore.formats.number import FormatTexts
from qcore.formats.text import Kind, Reader, register
from qcore.html import html_table

SCHEMES = ("affine", "symmetric")
_INT32 = (-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class AffineInteger:
    """The integers from qmin to qmax, each of which stands for the number (q - zero_point) * scale.

    Args:
        qmin, qmax: the range, which contains 0. It has 2 to 65,536 integers, or is all of int32, for accumulators and
            biases, whose zero point is always 0.
        signed: True if the integers are stored with a sign; None means qmin < 0.
        middle: the zero point of symmetric schemes; None means 0 where signed, else the middle of the range, rounded
            down.

    Attributes:
        storage: the smallest integer dtype that holds the range: int8, uint8, int16, uint16 or int32.
        low, high: the ends of the range in float32; that of int32 is 2^31 - 128, the largest inside.
        steps: qmax - qmin, as a float.

    Raises:
        TypeError: if qmin, qmax or middle is not an integer, or signed not a bool.
        ValueError: if the range is none of these, signed is False for a range with negative integers, or middle is
            outside the range.

    Example:
        >>> AffineInteger(0, 127).middle
        63
        >>> AffineInteger.of_width(4)
        AffineInteger(qmin=-8, qmax=7, signed=True, middle=0)
    """

    qmin: int
    qmax: int
    signed: bool | None = None
    middle: int | None = None
    storage: str = field(init=False, repr=False, compare=False)
    low: float = field(init=False, repr=False, compare=False)
    high: float = field(init=False, repr=False, compare=False)
    steps: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        qmin = check_int("qmin", self.qmin, _INT32[0], 0)
        qmax = check_int("qmax", self.qmax, 0, _INT32[1])
        if self.signed is not None:
            check_flag("signed", self.signed)
        signed = qmin < 0 if self.signed is None else self.signed
        if not signed and qmin < 0:
            raise ValueError(f"signed=False with qmin={qmin}; allowed is True where qmin is below 0")
        wide = (qmin, qmax) == _INT32
        if not wide and not 2 <= qmax - qmin + 1 <= 2**16:
            raise ValueError(
                f"qmin={qmin} and qmax={qmax}; allowed are 2 to 65536 integers, or int32's {_INT32[0]} to {_INT32[1]}"
            )
        width = next(bits for bits in (8, 16, 32) if -(signed << bits - 1) <= qmin and qmax < 1 << bits - signed)
        if self.middle is None:
            middle = 0 if signed else (qmin + qmax) // 2
        else:
            middle = check_int("middle", self.middle, *((0, 0) if wide else (qmin, qmax)))
        for name, value in {
            "qmin": qmin,
            "qmax": qmax,
            "signed": signed,
            "middle": middle,
            "storage": f"{'' if signed else 'u'}int{width}",
            "low": float(qmin),
            "high": float(qmax - 127 if wide else qmax),
            "steps": float(qmax - qmin),
        }.items():
            object.__setattr__(self, name, value)

    @property
    def text(self) -> str:
        """The range as text, which `qcore.parse` reads.

        Example:
            >>> INT8.text
            'affine(-128,127)'
        """
        return FormatTexts.write(self)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """The HTML that notebooks show."""
        rows = [("qmin", self.qmin), ("qmax", self.qmax), ("middle", self.middle)]
        return html_table([type(self).__name__, self.text], [*rows, ("bits", self.bits), ("storage", self.storage)])

    @property
    def bits(self) -> int:
        """The width of the integers in bits: enough to give each integer of the range its own code.

        Example:
            >>> AffineInteger(-8, 7).bits, AffineInteger(0, 127).bits
            (4, 7)
        """
        return (self.qmax - self.qmin).bit_length()

    @property
    def _levels(self) -> int:
        """How many integers the storage has."""
        return 1 << int(self.storage.strip("uint"))

    @classmethod
    def of_width(cls, bits: int, signed: bool = True) -> AffineInteger:
        """All integers of a width, in two's complement or unsigned; unsigned ones have the middle 2^(bits - 1).

        Args:
            bits: 2 to 16, or, for signed ones, 32.
            signed: whether there are negative integers.

        Raises:
            TypeError: if bits is not an integer, or signed not a bool.
            ValueError: if bits is out of range.

        Example:
            >>> AffineInteger.of_width(8, signed=False)
            AffineInteger(qmin=0, qmax=255, signed=False, middle=128)
        """
        check_flag("signed", signed)
        if bits != 32 or not signed:
            bits = check_int("bits", bits, 2, 16)
        half = 1 << bits - 1
        return cls(-half, half - 1) if signed else cls(0, 2 * half - 1, False, half)

    def reduced(self) -> AffineInteger:
        """The range with both ends halved and rounded down (`reduce_range`), so that int16 sums do not overflow.

        Example:
            >>> INT8.reduced()
            AffineInteger(qmin=-64, qmax=63, signed=True, middle=0)
        """
        return AffineInteger(self.qmin // 2, self.qmax // 2, self.signed)

    def _unreduced(self, full: AffineInteger) -> AffineInteger:
        """The inverse of `reduced`, within the range of the storage type.

        Example:
            >>> INT8.reduced()._unreduced(INT8) == INT8
            True
        """
        form = AffineInteger(max(2 * self.qmin, full.qmin), min(2 * self.qmax + 1, full.qmax), self.signed)
        return full if (form.qmin, form.qmax) == (full.qmin, full.qmax) else form

    def _part(self, quant_min: int | None, quant_max: int | None, reduce_range: bool) -> AffineInteger:
        """The part of the range that an observer's arguments allow.

        Args:
            quant_min, quant_max: the ends of a part of it; both, or neither for all of it.
            reduce_range: whether they are then halved, see `reduced`.

        Raises:
            ValueError: if the part is not within the range, or only one of its ends is given.

        Example:
            >>> UINT8._part(None, None, reduce_range=True)
            AffineInteger(qmin=0, qmax=127, signed=False, middle=63)
        """
        check_flag("reduce_range", reduce_range)
        if (quant_min is None) != (quant_max is None):
            ends = f"quant_min={quoted(quant_min)} and quant_max={quoted(quant_max)}"
            raise ValueError(f"{ends}; allowed are both or neither")
        form = self
        if quant_min is not None:
            quant_min = check_int("quant_min", quant_min, self.qmin, 0)
            form = AffineInteger(quant_min, check_int("quant_max", quant_max, 0, self.qmax), self.signed)
        return form.reduced() if reduce_range else form


_PARAMETERS = {"qmin": Reader.integer, "qmax": Reader.integer, "signed": Reader.flag, "middle": Reader.integer}
register("affine", Kind(AffineInteger, _PARAMETERS, 2, 2, 2, computes=True))

INT8 = AffineInteger.of_width(8)
UINT8 = AffineInteger.of_width(8, signed=False)
INT32 = AffineInteger.of_width(32)
FORMS = {  # by torch's names of types
    "quint8": UINT8,
    "uint8": UINT8,
    "qint8": INT8,
    "int8": INT8,
    "int16": AffineInteger.of_width(16),
    "uint16": AffineInteger.of_width(16, signed=False),
    "qint32": INT32,
    "int32": INT32,
}
