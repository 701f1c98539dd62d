"""Numbers that share a scale with the others of their block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, ClassVar, cast

from qcore.arguments import check_choice, check_flag, check_int, quoted
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number, check_number
from qcore.law.carrier import FLOAT32, Carrier
from qcore.law.codes import Codes
from qcore.law.float_scale import Levels, working
from qcore.law.program import Decoding, Program, kind_of
from qcore.law.rounding import Rounding
from qcore.law.shared_scale import E8M0_BIAS, Shared
from qcore.law.tiles import MOST_AXES, Sizes, block_counts, block_sizes, block_text, check_block

FP4 = BinaryFloat(2, 1, specials="finite")
FP4_SCALE = BinaryFloat(4, 3, specials="fn", overflow="saturate")
LONGEST_HISTORY = 2**20  # which is a row of a state
DEEPEST = 26  # so many binary places below its quantum, a number above zero is as good as another


class BlockNumber(Number):
    """The base of formats with shared scales."""

    def axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(axis for axis, size in enumerate(self.block_sizes(ndim)) if size != 1)

    def decoding(self, carrier: Carrier) -> tuple[Decoding, tuple[int, ...]]:
        decoding, constants = super().decoding(carrier)
        return replace(decoding, scales="powers"), constants


class _TiledNumber(BlockNumber):
    """The base of formats whose blocks are tiles of any shape, and whose elements have codes."""

    block: Any
    element: Any

    def block_sizes(self, ndim: int) -> Sizes:
        return block_sizes(self.block, ndim)

    @property
    def bits(self) -> int:
        return self.element.bits

    def codes(self, carrier: Carrier) -> Codes:
        return self.element.codes(carrier)

    @property
    def span(self) -> tuple[int, int, int]:
        return self.element.span


@dataclass(frozen=True, repr=False)
class BlockFloatingPoint(BlockNumber):
    """Block floating point: integers of wl bits that share one exponent, the largest element's.

    With E = floor(log2(max |x|)) over the block, the step is 2^(E - (wl - 2)) and results are clipped to
    +-(2^(wl-1) - 1) steps. NaN stays NaN and does not affect E; infinity counts as the largest finite number.
    `BlockScaled` has blocks of other shapes and other elements. Source: QPyTorch; Song et al., "Computation Error
    Analysis of Block Floating Point Arithmetic Oriented Convolution Neural Network Accelerator Design", 2018.

    Args:
        wl: word length in bits, sign included, 2 to 25.
        dim: -1: the whole array is one block; d from 0 to 63: one block for each index along dimension d.

    Raises:
        TypeError: if wl or dim is not an integer.
        ValueError: if wl or dim is out of range.

    Example:
        >>> BlockFloatingPoint(wl=8)
        BlockFloatingPoint (wl=8, dim=-1)
    """

    wl: int
    dim: int = -1

    def __post_init__(self) -> None:
        self._set(wl=check_int("wl", self.wl, 2, 25), dim=check_int("dim", self.dim, -1, MOST_AXES - 1))

    def __repr__(self) -> str:
        return f"BlockFloatingPoint (wl={self.wl}, dim={self.dim})"

    __str__ = __repr__  # as in QPyTorch; `text` is the text form

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        return "block", shared_integers(self.element, carrier, "floor")

    @property
    def element(self) -> FixedPoint:
        """The numbers before they are scaled."""
        return FixedPoint(self.wl, self.wl - 2, symmetric=True)

    def block_sizes(self, ndim: int) -> Sizes:
        if self.dim >= ndim:
            raise ValueError(f"dim={self.dim}: allowed are -1 and 0 <= dim < {ndim} for an array of {ndim} dimensions")
        return tuple(1 if axis == self.dim else None for axis in range(ndim))


@dataclass(frozen=True, repr=False)
class BlockScaled(_TiledNumber):
    """Numbers of any format times a scale that a block shares: the Microscaling (MX) formats and similar ones.

    By default the scale is 2^k, where k follows from the block's largest magnitude a and the element's largest number,
    whose exponent is emax:

    | rule | k |
    | --- | --- |
    | "floor" | floor(log2 a) - emax |
    | "ceil" | ceil(log2 a) - emax |
    | "even" | as floor, after a is rounded to the elements' significant bits, ties to even |
    | "rceil" | the least k for which a is at most 2^k times the element's largest number |
    | "round" | round(log2 a) - round(log2 of the element's largest number) |

    Scales are E8M0 numbers, so k lies between -127 and 127; blocks of zeros have k = -127. All elements of a block with
    a NaN or an infinity become NaN. Elements saturate at their largest number, or at the largest one of the array's
    dtype if that is smaller.

    With scale="float32" numbers are multiplied with s = float32(largest element / largest magnitude of the block)
    before they are rounded, and with r = float32(1 / s) afterwards: the scales of `Scale`, for single arrays. Products
    are rounded to float32 (for float64 arrays to float64) to nearest, ties to even, and results to the array's dtype.
    Intermediate results have unlimited exponents, but s is from 2^-126 to 2^126, so that r is a normal float32 number.
    Blocks whose largest magnitude is zero, infinite or NaN have s = 1. Codes come with r, which multiplies them.

    Source: OCP Microscaling Formats Specification 1.0
    (floor); Mishra et al., "Recipes for Pre-training LLMs with MXFP8", 2025 (rceil); Wu et al., "Training and Inference
    with Integers in Deep Neural Networks", 2018 (round); "DeepSeek-V3 Technical Report", 2024 (float32).

    Args:
        element: a `FixedPoint`, `FloatingPoint` or `BinaryFloat`, or its text.
        block: the elements that share a scale, as a mapping of axes to sizes. Negative axes count from the end, `...`
            is all axes that are not named (their default size is 1), and the size None is the whole axis. {-1: 32} is
            tiles of 32 in a row, {-2: 128, -1: 128} is square tiles, {-1: None} is whole rows, {0: 1, ...: None} is one
            block for each index along dimension 0, {...: None} is the whole array. The last blocks along an axis may
            be smaller.
        rule: "floor", "ceil", "even", "rceil" or "round", of scales 2^k.
        scale: "e8m0", which is 2^k, or "float32", for elements that have steps of at least 2^-100 and a largest number
            of at most 24 bits and below 2^64.
        history: None, or how many past tensors a delayed scale follows from, as for `Scale`: of scale="float32" and the
            block {...: None} only. Such a scale is state, which a `Quantizer` has.
        margin, reduce_amax: of delayed scales, as for `Scale`.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if it is not one of those allowed, or the element has no numbers above zero.

    Example:
        >>> BlockScaled("e4m3fn", {-1: 32}).block_sizes(3)
        (1, 1, 32)
        >>> import numpy as np
        >>> from qcore import quantize
        >>> quantize(np.float32([[1, 2.1, 3.3], [0.1, 0.2, 0.3]]), BlockScaled("e2m1fn", {-1: None}), "nearest")
        array([[1.     , 2.     , 3.     ],
               [0.09375, 0.1875 , 0.25   ]], dtype=float32)
        >>> quantize(np.float32([0.1, 0.2, 0.3]), BlockScaled("e2m1fn", {...: None}, scale="float32"))
        array([0.1, 0.2, 0.3], dtype=float32)
    """

    element: Any
    block: Any
    rule: str = "floor"
    scale: str = "e8m0"
    history: int | None = None
    margin: int = 0
    reduce_amax: bool = True

    def __post_init__(self) -> None:
        self._set(element=check_element(self.element), block=check_block(self.block))
        check_choice("rule", self.rule, list(RULES))
        check_choice("scale", self.scale, ["e8m0", "float32"])
        if self.scale == "float32":
            if self.rule != "floor":
                raise ValueError(
                    f"rule={quoted(self.rule)} with scale='float32'; allowed are rules of scale='e8m0' only"
                )
            check_float_scaled(self.element)
        self._set(margin=check_int("margin", self.margin, -64, 64))
        check_flag("reduce_amax", self.reduce_amax)
        if self.history is None and (self.margin or not self.reduce_amax):
            raise ValueError(
                f"margin={self.margin}, reduce_amax={self.reduce_amax} with history=None; allowed there are 0 and True"
            )
        if self.history is not None:
            self._set(history=check_int("history", self.history, 1, LONGEST_HISTORY))
            if self.scale != "float32" or self.block != ((..., None),):
                raise ValueError(
                    f"history={self.history} with scale={quoted(self.scale)} and "
                    f"block={block_text(self.block)}; allowed is "
                    "a history with scale='float32' and block={...: None}"
                )

    def __repr__(self) -> str:
        scale = "" if self.scale == "e8m0" else f", scale={self.scale}"
        scale += "" if self.history is None else f", history={self.history}"
        scale += f", margin={self.margin}" if self.margin else ""
        scale += "" if self.reduce_amax else ", reduce_amax=False"
        return f"BlockScaled (element={self.element!r}, block={block_text(self.block)}, rule={self.rule}{scale})"

    @property
    def scales(self) -> str:
        """The kind of the scales, see `Decoding.scales`."""
        return "2^k" if self.scale == "e8m0" else self.scale

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        element = self.element
        if self.scale == "float32":
            work = working(carrier)
            return "float_scaled", (largest_lane(element, work),)
        shared = shared_integers(element, carrier, self.rule)
        if isinstance(element, FixedPoint):
            return "scaled", shared
        floating = isinstance(element, BinaryFloat)
        if element.man > 0 and element.magnitudes.subnormals and (not floating or element.has_signed_zero):
            return "scaled", shared
        return "scaled_general", generalized(shared, element, carrier)

    def _check_stateless(self) -> None:
        if self.history is not None:
            raise ValueError(
                f"{self.text} has a delayed scale, which is state; allowed are Quantizer in PyTorch, the argument "
                "scaling of quantizer's functions in JAX, Operand(scale=Scale(history=)) in products, OptimLP and "
                "low_precision, and here a format without history"
            )

    def codes(self, carrier: Carrier) -> Codes:
        self._check_stateless()
        return super().codes(carrier)

    def decoding(self, carrier: Carrier) -> tuple[Decoding, tuple[int, ...]]:
        self._check_stateless()
        if self.scale == "e8m0":
            return super().decoding(carrier)
        codes = self.element.codes(working(carrier))
        return Decoding(carrier, kind_of(codes), "floats"), tuple(codes)

    def program(self, mode: Rounding, carrier: Carrier, coded: bool) -> tuple[Program, tuple[int, ...]]:
        self._check_stateless()
        kind, constants = self.reduce(carrier)
        if self.scale == "float32":
            element, integers = self.element.program(mode, working(carrier), coded)
            program = replace(element, carrier=carrier, kind=kind, element=element.kind)
            return program, (*constants, *integers)
        if not coded:
            return super().program(mode, carrier, coded)
        self.check_exact(carrier)
        element, encoded = self.element.program(mode, carrier, coded)
        unscaled = self.element.span[1] > carrier.min_exponent + DEEPEST
        return replace(element, kind=kind, element=element.kind, unscaled=unscaled), (*constants, *encoded)


def with_scale(number: Number) -> Number:
    """A format with a float32 scale of the whole array, or the format, where it has a scale or a range that needs none.

    Formats with a largest number of 2^64 or more, posits, and fixed point with bits of fraction stay as they are.

    Example:
        >>> from qcore import parse
        >>> with_scale(parse("e4m3fn")).text, with_scale(parse("bfloat16")).text
        ('scaled(e4m3fn,{...:None},scale=float32)', 'bfloat16')
    """
    if not isinstance(number, FixedPoint | FloatingPoint | BinaryFloat) or getattr(number, "fl", 0) != 0:
        return number
    try:
        return BlockScaled(number, {...: None}, scale="float32")
    except ValueError:
        return number


@dataclass(frozen=True, repr=False)
class NVFP4(_TiledNumber):
    """NVIDIA's FP4: e2m1 elements, a scale e4m3 of each block, and a scale float32 of the whole array.

    Each operation is rounded to float32 (for float64 arrays to float64), to nearest, ties to even. Intermediate results
    have unlimited exponents, so none is subnormal and none overflows. The operations, in this order:

    1. t = largest magnitude of the array / (448 * 6), at least 2^-126; 1 for zeros
    2. s = e4m3((largest magnitude of the block / 6) / t), from 2^-6 to 448
    3. S = s * t
    4. y = x / S, rounded to e2m1 under the rounding mode, at most 6
    5. the result y * S is rounded to the array's dtype, at most its largest finite number

    All elements of a block with a NaN or an infinity become NaN; the array's scale ignores them.
    Source: NVIDIA, Pretraining Large Language Models with NVFP4, 2025.

    Args:
        block: the elements that share a scale, as for `BlockScaled`. Weights usually have {-2: 16, -1: 16}.

    Raises:
        TypeError, ValueError: if block is not as above.

    Example:
        >>> import numpy as np
        >>> from qcore import quantize
        >>> quantize(np.float32([1344, 300, -224, 10]), NVFP4(), "nearest")
        array([1344.,  336., -224.,    0.], dtype=float32)
    """

    block: Any = ((-1, 16),)

    element: ClassVar[Number] = FP4  # pyright: ignore[reportIncompatibleVariableOverride]  # not a field: it is fixed
    scales: ClassVar[str] = "e4m3"

    def __post_init__(self) -> None:
        self._set(block=check_block(self.block))

    def __repr__(self) -> str:
        return f"NVFP4 (block={block_text(self.block)})"

    def axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(range(ndim))

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        work = working(carrier)
        grids = [number.reduce(work)[1] for number in (FP4, FP4_SCALE)]
        levels = Levels(FP4_SCALE.magnitudes.lowest_lane(work), work.lane_at_most(448 * 6, 0))
        return "nvfp4", (*grids[0], *grids[1], *levels)

    def program(self, mode: Rounding, carrier: Carrier, coded: bool) -> tuple[Program, tuple[int, ...]]:
        if not coded:
            return super().program(mode, carrier, coded)
        scale, encoded = FP4_SCALE.program(mode, working(carrier), coded)
        program = replace(scale, carrier=carrier, kind="nvfp4", element="grid")
        return program, (*self.reduce(carrier)[1], *encoded)

    def decoding(self, carrier: Carrier) -> tuple[Decoding, tuple[int, ...]]:
        self.check_exact(carrier)
        codes = FP4_SCALE.codes(working(carrier))
        return Decoding(carrier, kind_of(codes), "two levels"), tuple(codes)


def check_scales(number: Number, shape: tuple[int, ...], scales: Any) -> tuple[Any, Any]:
    """The blocks' scales and the array's scale of the argument `scales`; each is None for formats without it."""
    if not isinstance(number, BlockNumber):
        if scales is not None:
            raise ValueError(
                f"scales is a {type(scales).__name__}; allowed is None, {quoted(number)} has no shared scales"
            )
        return None, None
    given: object = scales
    counts, array_scale = block_counts(shape, number.block_sizes(len(shape))), None
    if isinstance(number, NVFP4):
        pair = cast("tuple[Any, ...]", scales) if isinstance(scales, tuple) else ()
        if len(pair) != 2 or tuple(getattr(pair[1], "shape", (1,))):
            allowed = f"codes of shape {counts} and a number of shape ()"
            raise ValueError(f"scales is a {type(given).__name__}; allowed is a pair for {quoted(number)}: {allowed}")
        scales, array_scale = pair
    if not hasattr(scales, "shape"):
        raise TypeError(
            f"scales is a {type(scales).__name__}; allowed are codes of shape {counts} for {quoted(number)}"
        )
    if tuple(scales.shape) != counts:
        raise ValueError(f"scales has shape {tuple(scales.shape)}; allowed is {counts} for codes of shape {shape}")
    return scales, array_scale


def check_float_scales(scales: Any, floats: bool, kind: str) -> None:
    """Raises unless scales of blocks are an array of floats."""
    if not floats:
        dtype = getattr(scales, "dtype", None)
        given = type(scales).__name__ + (f" of {dtype}" if dtype is not None else "")
        raise TypeError(f"scales is a {given}; allowed is a {kind} of floats for scale='float32'")


_FARTHEST = 2**15  # exponents, which lanes of 32 bits hold with what is added to them

# What a rule adds to the largest magnitude's bits before its exponent is read, so that k is one higher from some
# mantissa on. Arguments: the carrier, the element's bits of precision, and the mantissa of its largest number.
RULES: dict[str, Callable[[Carrier, int, int], int]] = {
    "floor": lambda carrier, precision, mantissa: 0,
    "ceil": lambda carrier, precision, mantissa: carrier.hidden - 1,  # above 1.0
    "even": lambda carrier, precision, mantissa: carrier.hidden >> precision,  # what rounds up to 2 in those bits
    "rceil": lambda carrier, precision, mantissa: carrier.hidden - 1 - mantissa,  # above the largest number's
    "round": lambda carrier, precision, mantissa: (
        _from_root(carrier) - (_from_root(carrier) + mantissa & carrier.hidden)
    ),
}


def _from_root(carrier: Carrier) -> int:
    """The number that, added, carries mantissas above that of sqrt(2): their base-2 logarithms round up."""
    return 2 * carrier.hidden - 1 - isqrt(2 * carrier.hidden**2)


def check_element(element: Any) -> Number:
    """The format that a block's `element` argument stands for, saturating."""
    if isinstance(element, str):
        element = check_number(element, "element")
    if not isinstance(element, FixedPoint | FloatingPoint | BinaryFloat):
        raise TypeError(
            f"element={quoted(element)}; allowed are a FixedPoint, FloatingPoint, BinaryFloat, or the text of one"
        )
    element = element.overflowing("saturate")
    if isinstance(element, FixedPoint) and element.wl == element.signed:
        raise ValueError(f"element={quoted(element)}; allowed is one with numbers above zero")
    _, step, largest = element.span
    if step < -_FARTHEST or largest > _FARTHEST:
        raise ValueError(
            f"element={quoted(element)} has numbers from 2^{step} to 2^{largest}; allowed are exponents from "
            f"{-_FARTHEST} to {_FARTHEST}"
        )
    return element


def largest_number(element: Any) -> tuple[int, int]:
    """The largest number of an element, as an integer times a power of two."""
    if isinstance(element, FixedPoint):
        return (1 << (element.wl - element.signed)) - 1, -element.fl
    return element.magnitudes.largest


def check_float_scaled(element: Any) -> None:
    """Raises a ValueError unless elements may have scales in float32."""
    count, exponent = largest_number(element)
    step = -element.fl if isinstance(element, FixedPoint) else element.magnitudes.smallest[1]
    if count.bit_length() > FLOAT32.mantissa_bits + 1 or count.bit_length() + exponent > 64 or step < -100:
        raise ValueError(
            f"element={quoted(element)} with scale='float32'; allowed are formats with steps of at least 2^-100 and a "
            "largest number of at most 24 bits and below 2^64"
        )


def largest_lane(element: Any, carrier: Carrier) -> int:
    """The carrier's lane of the largest number."""
    return carrier.lane_at_most(*largest_number(element))


def shared_integers(element: Any, carrier: Carrier, rule: str) -> Shared:
    """A saturating element's integers, under E8M0 scales."""
    if isinstance(element, FixedPoint):
        digits = element.wl - element.signed
        (count, exponent), step, man = ((1 << digits) - 1, -element.fl), -element.fl, digits
        precision, signed = digits, element.signed
        lower = count + (element.signed and not element.symmetric)
    else:
        magnitudes, man = element.magnitudes, element.man
        (count, exponent), step, precision = magnitudes.largest, magnitudes.smallest[1], man + 1
        signed, lower = getattr(element, "signed", True), count
    top, mantissa = _mantissa(count, exponent, carrier)
    lower_top, lower_mantissa = _mantissa(lower, exponent, carrier)
    missing = carrier.width - carrier.mantissa_bits
    return Shared(
        carry=RULES[rule](carrier, precision, mantissa),
        least=carrier.bias - E8M0_BIAS,
        most=carrier.bias + E8M0_BIAS,
        top=top,
        ones=mantissa >> missing << missing,
        step=step,
        finest=max(carrier.width - man, 0),
        lower_top=lower_top,
        lower_ones=lower_mantissa >> missing << missing,
        negative=-int(signed),
    )


def generalized(shared: Shared, element: Any, carrier: Carrier) -> Shared:
    """The same integers for floating point elements without subnormals, a sign, or a signed zero."""
    magnitudes = element.magnitudes
    unit = carrier.hidden if element.man == 0 else 0
    shared = shared._replace(low=magnitudes.lowest, unit=unit, slope=0 if magnitudes.subnormals else 6)
    if isinstance(element, FloatingPoint):
        return shared
    return shared._replace(
        unit=0 if element.specials.startswith("p3109") else unit,
        floor=-int(not element.has_zero),
        zero=0 if element.has_zero else carrier.quiet_nan,
        signed_zero=-int(element.has_signed_zero),
        unsigned=-int(not element.signed),
        lower_jump=0 if element.signed or element.has_zero else carrier.quiet_nan,
        coded=-int(element.specials.startswith("p3109") and element.man == 0),
        shift=element.bias % 2,
    )


def _mantissa(count: int, exponent: int, carrier: Carrier) -> tuple[int, int]:
    """The exponent field and the mantissa in a lane of count * 2^exponent, rounded toward zero."""
    above = count.bit_length() - 1
    return exponent + above, (count << carrier.width >> above) - carrier.hidden
