"""Named formats, and `p3109`, which makes the formats of IEEE P3109 from width and precision."""

from __future__ import annotations

from math import inf, nan
from typing import Any, Literal, Protocol, TypeVar, overload

import numpy as np

from qcore.arguments import check_flag, check_int
from qcore.formats.block import NVFP4, BlockScaled, Scales
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.foreign import BytesNumber, NestedNumber
from qcore.formats.number import Number
from qcore.formats.posit import Posit
from qcore.formats.table import Table, by_float32_midpoints
from qcore.law.rounding import RoundingLike
from qcore.namespace import T

_IEEE = "IEEE 754-2019"
_ML_DTYPES = "ml_dtypes; IEEE 754's rules"
_OCP8 = "OCP 8-bit Floating Point Specification 1.0"
_OCP_MX = "OCP Microscaling Formats Specification 1.0"
_MSFP = "Rouhani et al., Pushing the Limits of Narrow Precision Inferencing at Cloud Scale with MSFP, 2020"
_MICRO = "Rouhani et al., With Shared Microexponents, A Little Shifting Goes a Long Way, 2023"
_GRAPHCORE = "Noune et al., 8-bit Numerical Formats for Deep Neural Networks, 2022"
_POSIT = "Standard for Posit Arithmetic (2022)"
_QPYTORCH = "QPyTorch, Functionality Overview, chapter 2"


# In the order of bitsandbytes' codes.
_NF4 = (
    -1,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1,
)
_FP4 = (np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)).tolist()
_AF4 = (
    1,
    0.72424863,
    0.55496234,
    0.42563882,
    0.31675666,
    0.21961274,
    0.12934483,
    0.04273164,
    0,
    -0.04934812,
    -0.14982478,
    -0.25607552,
    -0.3736951,
    -0.51243739,
    -0.69441008,
    -1,
)


def _hifloat8() -> Table:
    """HiF8: a prefix says how many bits of the code are the exponent, whose leading one is not stored."""
    values = [0.0, *(2.0 ** (code - 23) for code in range(1, 8))]
    for exponent_bits, man in ((0, 3), (1, 3), (2, 3), (3, 2), (4, 1)):
        for code in range(1 << exponent_bits + man):
            field, mantissa = divmod(code, 1 << man)
            sign, low = divmod(field, 1 << exponent_bits >> 1) if exponent_bits else (0, 0)
            exponent = (1 << exponent_bits >> 1) + low
            values.append((1 + mantissa / (1 << man)) * 2.0 ** (-exponent if sign else exponent))
    values[0x6F] = inf  # of the largest exponent, which has one number more
    return Table([*values, nan, *(-one for one in values[1:])], ties="away", beyond=1.5 * 2.0**15)


NAMED: dict[str, tuple[Number, str]] = {  # name: (format, source)
    "float16": (BinaryFloat(5, 10), _IEEE),
    "bfloat16": (BinaryFloat(8, 7), "Intel, BFLOAT16 Hardware Numerics Definition, 2018"),
    "tf32": (BinaryFloat(8, 10), "NVIDIA A100 Tensor Core GPU Architecture, 2020"),
    "dlfloat16": (
        BinaryFloat(6, 9, bias=31, specials="fn", subnormals=False),
        "Agrawal et al., DLFloat: A 16-b Floating Point Format Designed for Deep Learning, ARITH 2019",
    ),
    "e4m3": (BinaryFloat(4, 3), _ML_DTYPES),
    "e4m3fn": (BinaryFloat(4, 3, specials="fn"), _OCP8),
    "e4m3fnuz": (BinaryFloat(4, 3, bias=8, specials="fnuz"), _GRAPHCORE),
    "e4m3b11fnuz": (
        BinaryFloat(4, 3, bias=11, specials="fnuz"),
        "ml_dtypes; Sun et al., Hybrid 8-bit Floating Point, 2019",
    ),
    "e5m2": (BinaryFloat(5, 2), _OCP8),
    "e5m2fnuz": (BinaryFloat(5, 2, bias=16, specials="fnuz"), _GRAPHCORE),
    "e3m4": (BinaryFloat(3, 4), _ML_DTYPES),
    "e8m0fnu": (BinaryFloat(8, 0, bias=127, specials="fn", subnormals=False, signed=False), _OCP_MX),
    "hif8": (_hifloat8(), "Luo et al., Ascend HiFloat8 Format for Deep Learning, 2024"),
    "e2m3fn": (BinaryFloat(2, 3, specials="finite"), _OCP_MX),
    "e3m2fn": (BinaryFloat(3, 2, specials="finite"), _OCP_MX),
    "e2m1fn": (BinaryFloat(2, 1, specials="finite"), _OCP_MX),
    "qpytorch8": (FloatingPoint(5, 2), _QPYTORCH),
    "qpytorch16": (FloatingPoint(6, 9), _QPYTORCH),
    "int2": (FixedPoint(2, 0), "two's complement"),
    "int4": (FixedPoint(4, 0), "two's complement"),
    "uint4": (FixedPoint(4, 0, signed=False), "binary"),
    "int8": (FixedPoint(8, 0), "two's complement"),
    "uint8": (FixedPoint(8, 0, signed=False), "binary"),
    "int16": (FixedPoint(16, 0), "two's complement"),
    "uint16": (FixedPoint(16, 0, signed=False), "binary"),
    "posit8": (Posit(8), _POSIT),
    "posit16": (Posit(16), _POSIT),
    "posit32": (Posit(32), _POSIT),
    "nf4": (
        by_float32_midpoints(_NF4),
        "bitsandbytes; Dettmers et al., QLoRA: Efficient Finetuning of Quantized LLMs, 2023",
    ),
    "fp4_bnb": (by_float32_midpoints([*_FP4, *(-one for one in _FP4)]), "bitsandbytes"),
    "af4": (
        by_float32_midpoints(_AF4),
        "bitsandbytes; Yoshida, NF4 Isn't Information Theoretically Optimal (and that's Good), 2023",
    ),
    "mxfp8_e4m3": (BlockScaled(BinaryFloat(4, 3, specials="fn"), {-1: 32}), _OCP_MX),
    "mxfp8_e5m2": (BlockScaled(BinaryFloat(5, 2), {-1: 32}), _OCP_MX),
    "mxfp6_e2m3": (BlockScaled(BinaryFloat(2, 3, specials="finite"), {-1: 32}), _OCP_MX),
    "mxfp6_e3m2": (BlockScaled(BinaryFloat(3, 2, specials="finite"), {-1: 32}), _OCP_MX),
    "mxfp4": (BlockScaled(BinaryFloat(2, 1, specials="finite"), {-1: 32}), _OCP_MX),
    "mxint8": (BlockScaled(FixedPoint(8, 6), {-1: 32}), _OCP_MX),
    "msfp12": (BlockScaled(FixedPoint(4, 2, symmetric=True), {-1: 16}), _MSFP),
    "msfp16": (BlockScaled(FixedPoint(8, 6, symmetric=True), {-1: 16}), _MSFP),
    "mx9": (BlockScaled(FixedPoint(8, 6, symmetric=True), {-1: 16}, sub_block={-1: 2}), _MICRO),
    "mx6": (BlockScaled(FixedPoint(5, 3, symmetric=True), {-1: 16}, sub_block={-1: 2}), _MICRO),
    "mx4": (BlockScaled(FixedPoint(3, 1, symmetric=True), {-1: 16}, sub_block={-1: 2}), _MICRO),
    "nvfp4": (NVFP4(), "NVIDIA, Pretraining Large Language Models with NVFP4, 2025"),
}

# The named formats by the result of `encode`, as type checkers and editors read them. A test compares them with NAMED.
SingleName = Literal[
    "float16",
    "bfloat16",
    "tf32",
    "dlfloat16",
    "e4m3",
    "e4m3fn",
    "e4m3fnuz",
    "e4m3b11fnuz",
    "e5m2",
    "e5m2fnuz",
    "e3m4",
    "e8m0fnu",
    "hif8",
    "e2m3fn",
    "e3m2fn",
    "e2m1fn",
    "qpytorch8",
    "qpytorch16",
    "int2",
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "posit8",
    "posit16",
    "posit32",
    "nf4",
    "fp4_bnb",
    "af4",
]
BlockName = Literal[
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxfp4",
    "mxint8",
    "msfp12",
    "msfp16",
    "mx9",
    "mx6",
    "mx4",
]
Single = FixedPoint | FloatingPoint | BinaryFloat | Posit | Table | BytesNumber | SingleName  # an array of codes
Nested = BlockScaled | NestedNumber | Literal["nvfp4"]  # codes, and scales that may be a tuple
EncodeResult = T | tuple[T, Scales[T]]  # codes, and of blocks their scales
_X = TypeVar("_X", contravariant=True)
_K = TypeVar("_K", contravariant=True)
_C = TypeVar("_C", covariant=True)


class Encode(Protocol[_X, _K, _C]):
    """What type checkers and editors read of `encode`: the result by the kind of format, of arrays _X and keys _K."""

    @overload
    def __call__(
        self,
        x: _X,
        number: Single,
        rounding: RoundingLike = "nearest",
        *,
        key: _K | None = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> _C: ...
    @overload
    def __call__(
        self,
        x: _X,
        number: BlockName,
        rounding: RoundingLike = "nearest",
        *,
        key: _K | None = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> tuple[_C, _C]: ...
    @overload
    def __call__(
        self,
        x: _X,
        number: Nested,
        rounding: RoundingLike = "nearest",
        *,
        key: _K | None = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> tuple[_C, Scales[_C]]: ...
    @overload
    def __call__(
        self,
        x: _X,
        number: Number | str,
        rounding: RoundingLike = "nearest",
        *,
        key: _K | None = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> EncodeResult[_C]: ...


def dtype_name(value: Any) -> str | None:
    """The name of a dtype of NumPy, ml_dtypes, PyTorch or JAX, whose packages are not imported; None for others."""
    if isinstance(value, np.dtype):
        return str(value.name)
    if isinstance(value, type):  # ml_dtypes' and NumPy's are scalars; JAX's have the dtype as an attribute
        dtype: Any = value if issubclass(value, np.generic) else getattr(value, "dtype", None)  # type: ignore[arg-type]
        known: bool = isinstance(dtype, type | np.dtype)
        found: Any = dtype
        return str(np.dtype(found).name) if known else None
    text = str(value) if type(value).__name__ == "dtype" else ""
    return text.removeprefix("torch.") if text.startswith("torch.") else None


def p3109(bits: int, precision: int, signed: bool = True, extended: bool = True) -> BinaryFloat:
    """A binary format of IEEE P3109: one zero, one NaN, ties to the even code.

    Args:
        bits: the width K of a code, 3 to 16, or 2 where that leaves a number besides zero.
        precision: the significand's bits P, the hidden one included: 1 to K, unsigned and signed alike.
        signed: True for formats with negative numbers.
        extended: True for formats with infinities, which overflow becomes; otherwise overflow becomes NaN.

    Returns:
        The format; its name in the standard's terms is binaryKpP with s or u, e or f.

    Raises:
        ValueError: if bits or precision is out of range.

    Source: IEEE SA P3109 Working Group, Interim Report on Binary Floating-point Formats for Machine Learning.

    Example:
        >>> p3109(8, 3)
        BinaryFloat(exp=5, man=2, bias=16, specials='p3109', overflow='inf')
    """
    check_flag("signed", signed)
    check_flag("extended", extended)
    bits = check_int("bits", bits, 2, 16)
    precision = check_int("precision", precision, 1, bits)
    if signed and extended and bits == 2:
        raise ValueError(f"bits={bits}; allowed is an int from 3 to 16 where signed=True and extended=True")
    bias = (1 << (bits - precision)) >> signed
    specials = "p3109" if extended else "p3109_finite"
    return BinaryFloat(bits - precision + 1 - signed, precision - 1, bias, specials, signed=signed)
