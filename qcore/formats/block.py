"""Block formats: the numbers of a block share a scale."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING, Any, Literal, cast

from qcore.arguments import check_choice, check_flag, check_int, check_type, quoted
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number, call_text, check_number
from qcore.formats.table import Table
from qcore.law.carrier import FLOAT32, Carrier
from qcore.law.codes import Codes, PickedCodes
from qcore.law.float_scale import Levels, working
from qcore.law.grid import Grid
from qcore.law.program import Constants, Decoding, Program, entries_of, kind_of
from qcore.law.rounding import Rounding
from qcore.law.shared_scale import E8M0_BIAS, Shared
from qcore.law.tiles import (
    MOST_AXES,
    Block,
    BlockLike,
    Sizes,
    block_counts,
    block_sizes,
    block_text,
    check_block,
    is_flat,
)
from qcore.namespace import T
from qcore.packing import storage

E2M1 = BinaryFloat(2, 1, specials="finite")
E4M3 = BinaryFloat(4, 3, specials="fn")
E8M0 = BinaryFloat(8, 0, bias=127, specials="fn", subnormals=False, signed=False)
Scales = T | tuple[T, ...]  # of blocks, and of an array or of the scales
LONGEST_HISTORY = 2**20  # a history is a row of a state
DEEPEST = 26  # numbers above zero that are so many binary places below a quantum all round alike


class BlockNumber(Number):
    """The base of formats with shared scales."""

    tensor_scale: str | None = None

    def axes(self, ndim: int) -> tuple[int, ...]:
        sizes = self.tile_sizes(ndim)
        return tuple(range(ndim)) if is_flat(sizes) else tuple(axis for axis, size in enumerate(sizes) if size != 1)

    def decoding(self, carrier: Carrier) -> tuple[Decoding, tuple[int, ...]]:
        decoding, constants = super().decoding(carrier)
        return replace(decoding, scales="powers"), constants


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
        BlockFloatingPoint(wl=8)
    """

    wl: int
    dim: int = -1

    def __post_init__(self) -> None:
        self._set(wl=check_int("wl", self.wl, 2, 25), dim=check_int("dim", self.dim, -1, MOST_AXES - 1))

    def __str__(self) -> str:
        """The text of QPyTorch; `text` is the library's."""
        return f"BlockFloatingPoint (wl={self.wl}, dim={self.dim})"

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
class BlockScaled(BlockNumber):
    """Numbers of any format times a scale that a block shares: the Microscaling (MX) formats, NVFP4 and similar ones.

    By default the scale is 2^k, where k follows from the block's largest magnitude a and the element's largest number,
    whose exponent is emax:

    | rule | k |
    | --- | --- |
    | "floor" | floor(log2 a) - emax |
    | "ceil" | ceil(log2 a) - emax |
    | "even" | as floor, after a is rounded to the elements' significant bits, ties to even |
    | "rceil" | the least k for which a is at most 2^k times the element's largest number |
    | "round" | round(log2 a) - round(log2 of the element's largest number) |
    | "nearest" | round(log2(a / top)), top the element's largest number |
    | "nearest_mantissa" | the exponent of the power of two nearest to a / top; of 3/2 times a power the upper one |
    | "oas" | floor(log2 bfloat16((a / top) * c)), c = 12/7 for e2m1 and 60/31 for e4m3 |

    In the last three a / top, and its product, are float32 numbers (for float64 arrays float64). With p significant
    bits of elements c is (2^(p + 2) - 4) / (2^(p + 1) - 1).

    Scales are E8M0 numbers, so k lies between -127 and 127; blocks of zeros have k = -127. All elements of a block with
    a NaN or an infinity become NaN. Elements saturate at their largest number, or at the largest one of the array's
    dtype if that is smaller.

    With a float format as scale, a block's scale s is a number of it, and with tensor_scale="float32" a second scale t
    of the whole array is multiplied with it, as in `NVFP4`. With the element's largest number top, full = top times the
    largest scale, A the largest finite magnitude of the array, and without a tensor scale g = t = 1:

    | rule | the operations |
    | --- | --- |
    | "te" | g = full / A, t = 1 / g, s = scale(a * (g * (1 / top))), x * (1 / (s * t)) is rounded |
    | "torchao_0_16" | t = A / full, s = scale((a / top) / t), x / (s * t) is rounded |
    | "torchao_0_18" | as "torchao_0_16", but x * ((1 / t) / s) is rounded |

    Every operation is rounded to float32 (for float64 arrays to float64), and scale() to nearest, ties to even, with
    saturation; the result is that number times (s * t), rounded to the array's dtype, at most its largest number.
    "te" has Transformer Engine's bits also where numbers are very small: g and 1 / (s * t) are at most the largest
    float32, and s may be 0, whose elements are 0. With torchao's rules s is at least the smallest normal scale, and t
    at least 2^-126. Intermediate results of all rules have otherwise unlimited exponents; a * (1 / top) below 2^-126
    counts as 0. For zeros t is 1. NaN and infinities do not count for A, and make all elements of their block NaN:
    Transformer Engine does not define these.

    `block={"flat": n}` cuts blocks of n from the elements in row-major order, as bitsandbytes does.

    With scale="float32" numbers are multiplied with s = float32(largest element / largest magnitude of the block)
    before they are rounded, and with r = float32(1 / s) afterwards: the scales of `Scale`, for single arrays. Products
    are rounded to float32 (for float64 arrays to float64) to nearest, ties to even, and results to the array's dtype.
    Intermediate results have unlimited exponents, but s is from 2^-126 to 2^126, so that r is a normal float32 number.
    Blocks whose largest magnitude is zero, infinite or NaN have s = 1. Codes come with r, which multiplies them. With
    rule="absmax" r = float32(largest magnitude / largest element) comes first, and s = float32(1 / r): for elements up
    to 1, r is the largest magnitude itself. `BlockScaled("nf4", {-1: 64}, "absmax", "float32")` has bitsandbytes' NF4.

    With sub_block={-1: 2} each two elements of a block in a row have a scale of their own: the one that the rule gives
    for them alone, but at least half of the block's, and at least 2^-127. One bit, a micro-exponent, says which. MX9,
    MX6 and MX4 are such blocks. `encode` returns the scales of all sub-blocks.

    Source: OCP Microscaling Formats Specification 1.0 (floor); Mishra et al., "Recipes for Pre-training LLMs with
    MXFP8", 2025 (rceil); Wu et al., "Training and Inference with Integers in Deep Neural Networks", 2018 (round);
    MLX before its pull request 4353 (nearest); FlyDSL's `f32_to_e8m0`, pull request 590 (nearest_mantissa); Google,
    qwix, and "Outlier Aware Scaling", arXiv 2603.08713 (oas);
    Rouhani et al., "With Shared Microexponents, A Little Shifting Goes a Long Way", 2023 (sub_block); "DeepSeek-V3
    Technical Report", 2024 (float32); NVIDIA, Transformer Engine, the reference of its NVFP4 (te); torchao 0.12 to 0.16
    (torchao_0_16) and 0.18 (torchao_0_18; 0.17 has this law with a scale of the array, and else the other).

    Args:
        element: a `FixedPoint`, `FloatingPoint`, `BinaryFloat` or `Table`, or its text.
        block: the elements that share a scale, as a mapping of axes to sizes. Negative axes count from the end, `...`
            is all axes that are not named (their default size is 1), and the size None is the whole axis. {-1: 32} is
            tiles of 32 in a row, {-2: 128, -1: 128} is square tiles, {-1: None} is whole rows, {0: 1, ...: None} is one
            block for each index along dimension 0, {...: None} is the whole array. The last blocks along an axis may
            be smaller.
        rule: "floor" (default), or another one of the first table, of scales 2^k; "floor" (default) or "absmax", of
            float32 scales; "te" (default), "torchao_0_16" or "torchao_0_18", of scales of a format.
        scale: "e8m0", which is 2^k; "float32"; or a `FloatingPoint` or `BinaryFloat` of at most 16 bits with a zero,
            whose numbers float32 has, or its text, such as "e4m3fn" or "bfloat16". The last two are for elements that
            have steps of at least 2^-100 and a largest number of at most 24 bits and below 2^64.
        history: None, or how many past tensors a delayed scale follows from, as for `Scale`: of scale="float32" and the
            block {...: None} only. Such a scale is state, which a `Quantizer` has.
        margin, reduce_amax: of delayed scales, as for `Scale`.
        tensor_scale: None, or "float32": of scales of a format with at most 7 significant bits and below 2^64.
        four_over_six: None, or "mae" or "mse": of NVIDIA's NVFP4, see `NVFP4`.
        scale_max: with four_over_six: the scale that the array's largest magnitude gets, 256 (default) or 448.
        sub_block: None, or a part of a block that has a micro-exponent, as a mapping of axes of the block to sizes
            which divide the block's: of scale="e8m0".

    Raises:
        ValueError: if it is not one of those allowed, or the element has no numbers above zero.

    Example:
        >>> BlockScaled("e4m3fn", {-1: 32}).block_sizes(3)
        (1, 1, 32)
        >>> import numpy as np
        >>> from qcore import quantize
        >>> quantize(
        ...     np.float32([[1, 2.1, 3.3], [0.1, 0.2, 0.3]]), BlockScaled("e2m1fn", {-1: None}), "nearest"
        ... )
        array([[1.     , 2.     , 3.     ],
               [0.09375, 0.1875 , 0.25   ]], dtype=float32)
        >>> quantize(np.float32([0.1, 0.2, 0.3]), BlockScaled("e2m1fn", {...: None}, scale="float32"))
        array([0.1, 0.2, 0.3], dtype=float32)
        >>> BlockScaled("e2m1fn", {-1: 16}, scale="e4m3fn", tensor_scale="float32") == NVFP4()
        True
    """

    element: FixedPoint | FloatingPoint | BinaryFloat | Table
    block: Block
    rule: str = None  # type: ignore[assignment]  # the first rule of the scale
    scale: Literal["e8m0", "float32"] | FloatingPoint | BinaryFloat = "e8m0"
    history: int | None = None
    margin: int = 0
    reduce_amax: bool = True
    tensor_scale: str | None = None
    sub_block: Block | None = None
    four_over_six: str | None = None
    scale_max: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            element: Number | str,
            block: BlockLike,
            rule: str | None = None,
            scale: Number | str = "e8m0",
            history: int | None = None,
            margin: int = 0,
            reduce_amax: bool = True,
            tensor_scale: str | None = None,
            sub_block: BlockLike | None = None,
            four_over_six: str | None = None,
            scale_max: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        self._set(element=check_element(self.element), block=check_block(self.block))
        self._set(scale=check_scale(self.scale))
        self._set(rule=with_version("rule", self.rule))
        allowed = list(RULES) if self.scale == "e8m0" else FLOAT_RULES if self.scale == "float32" else LEVEL_RULES
        if self.rule is None:  # pyright: ignore[reportUnnecessaryComparison]  # as its default is
            self._set(rule=allowed[0])
        check_type("rule", self.rule, str, f"one of {', '.join(allowed)}")
        if self.rule not in allowed and self.rule in (*RULES, *FLOAT_RULES, *LEVEL_RULES):
            raise ValueError(
                f"rule={quoted(self.rule)} with scale={quoted(scale_text(self.scale))}; allowed are "
                f"{', '.join(allowed)}"
            )
        check_choice("rule", self.rule, allowed)
        if self.scale != "e8m0":
            check_float_scaled(self.element, self.scale)
        elif isinstance(self.element, Table):
            raise ValueError(
                f"scale='e8m0' with element={quoted(self.element)}; allowed with a table are 'float32' and a format"
            )
        if self.tensor_scale is not None:
            check_choice("tensor_scale", self.tensor_scale, ["float32"])
            check_tensor_scaled(self.scale)
        self._check_four_over_six()
        if self.sub_block is not None:
            self._set(sub_block=check_sub_block(self.sub_block, self.block, self.scale))
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

    def _check_four_over_six(self) -> None:
        if self.four_over_six is None:
            if self.scale_max is not None:
                raise ValueError(f"scale_max={quoted(self.scale_max)} with four_over_six=None; allowed is None")
            return
        check_choice("four_over_six", self.four_over_six, ["mae", "mse"])
        given = self.element, self.scale, self.rule, self.tensor_scale
        in_row = len(self.block) == 1 and self.block[0][0] is not ... and self.block[0][1] == 16
        if given != (E2M1.overflowing("saturate"), E4M3.overflowing("saturate"), "te", "float32") or not (
            in_row or self.block == ((-2, 16), (-1, 16))
        ):
            raise ValueError(
                f"four_over_six={quoted(self.four_over_six)} with element={quoted(self.element)}, "
                f"block={block_text(self.block)}, rule={quoted(self.rule)}, scale={quoted(scale_text(self.scale))} and "
                f"tensor_scale={quoted(self.tensor_scale)}; allowed are NVFP4's element and scales, rule='te', and "
                "blocks of 16 along one axis or {-2: 16, -1: 16}"
            )
        self._set(scale_max=256 if self.scale_max is None else check_int("scale_max", self.scale_max, 0, 448))
        if self.scale_max not in (256, 448):
            raise ValueError(f"scale_max={self.scale_max}; allowed are 256 and 448")

    def __repr__(self) -> str:
        if nvfp4_arguments(self):
            law = "" if self.rule == "te" else f", law={quoted(self.rule)}"
            law += "" if self.four_over_six is None else f", four_over_six={quoted(self.four_over_six)}"
            law += "" if self.scale_max in (None, 256) else f", scale_max={self.scale_max}"
            return f"NVFP4(block={_mapping(self.block)}{law})"
        inner = {} if self.sub_block is None else {"sub_block": _mapping(self.sub_block)}
        return call_text(self, block=_mapping(self.block), **inner)

    def axes(self, ndim: int) -> tuple[int, ...]:
        return super().axes(ndim) if self.tensor_scale is None else tuple(range(ndim))

    def block_sizes(self, ndim: int) -> Sizes:
        return block_sizes(self.block if self.sub_block is None else self.sub_block, ndim)

    def tile_sizes(self, ndim: int) -> Sizes:
        sizes = block_sizes(self.block, ndim)
        if self.sub_block is None:
            return sizes
        pairs = zip(sizes, block_sizes(self.sub_block, ndim), strict=True)
        return tuple(size if size == inner else (size, inner or 1) for size, inner in pairs)

    @property
    def bits(self) -> int:
        return self.element.bits

    def codes(self, carrier: Carrier) -> Codes:
        self._check_stateless()
        return self.element.codes(carrier)

    @property
    def span(self) -> tuple[int, int, int]:
        return self.element.span

    @property
    def scale_bits(self) -> int:
        """The width of a block's scale as it is stored."""
        return {"e8m0": 8, "float32": 32}[self.scale] if isinstance(self.scale, str) else self.scale.bits

    @property
    def scale_format(self) -> Number | None:
        """The format of the blocks' scales, or None where they are float32 numbers."""
        if self.scale == "e8m0":
            return E8M0
        return None if self.scale == "float32" else self.scale

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        element = self.element
        work = working(carrier)
        if self.scale == "float32":
            return "float_scaled", (largest_lane(element, work),)
        if self.scale != "e8m0":
            grid = Grid(*self.scale.reduce(work)[1])
            top, exponent = largest_number(element)
            most, scale_exponent = largest_number(self.scale) if self.scale_max is None else (self.scale_max, 0)
            full = work.lane_at_most(top * most, exponent + scale_exponent) if self.tensor_scale else 0
            inverse = _reciprocal_lane(top, exponent, work)
            levels = Levels(full, largest_lane(element, work), inverse, self.scale.magnitudes.lowest_lane(work))
            return "levels", (*levels, *grid)
        shared = shared_integers(element, carrier, self.rule)
        if isinstance(element, FixedPoint | Table):  # tables have other scales
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

    def decoding(self, carrier: Carrier) -> tuple[Decoding, tuple[int, ...]]:
        self._check_stateless()
        if self.scale == "e8m0":
            return super().decoding(carrier)
        work = working(carrier)
        if self.scale == "float32":
            codes: Any = self.element.codes(work)
            return Decoding(carrier, kind_of(codes), "floats", entries_of(codes)), tuple(codes)
        self.check_exact(carrier)
        codes = PickedCodes() if self.element == E2M1 else self.element.codes(work)
        scales, has_array_scale = self.scale.codes(work), self.tensor_scale is not None
        decoding = Decoding(
            carrier,
            kind_of(codes),
            "levels",
            entries_of(codes),
            has_array_scale,
            kind_of(scales),
            storage(self.scale.bits),
        )
        return decoding, (*codes, *scales)

    def program(self, mode: Rounding, carrier: Carrier, coded: bool) -> tuple[Program, Constants]:
        self._check_stateless()
        kind, constants = self.reduce(carrier)
        if self.scale != "e8m0":
            picked = self.scale != "float32" and self.element == E2M1  # whose law needs no integers for codes
            element, integers = self.element.program(mode, working(carrier), coded and not picked)
            program = replace(element, carrier=carrier, kind=kind, element="e2m1" if picked else element.kind)
            rule = self.rule if self.four_over_six is None else f"{self.rule}_{self.four_over_six}"
            rule += "_tiles" if self.four_over_six and len(self.block) > 1 else ""
            program = replace(program, rule="" if rule == "floor" else rule)
            if self.scale == "float32":
                return program, (*constants, *integers)
            program = replace(program, has_array_scale=self.tensor_scale is not None)
            scale, encoded = self.scale.program(Rounding.TOWARD_ZERO, working(carrier), coded)
            program = replace(program, scale=scale.kind, scale_codes=scale.codes, scale_storage=scale.storage)
            program = replace(program, codes="picked", storage=8) if picked and coded else program
            return program, (*constants, *integers, *(encoded if coded else ()))
        if not coded:
            program, constants = super().program(mode, carrier, coded)
            return replace(program, together=self.together), constants
        self.check_exact(carrier)
        element, encoded = self.element.program(mode, carrier, coded)
        unscaled = self.element.span[1] > carrier.min_exponent + DEEPEST
        program = replace(element, kind=kind, element=element.kind, unscaled=unscaled, together=self.together)
        return program, (*constants, *encoded)

    @property
    def together(self) -> int:
        """The number of neighbours in a row that are a sub-block, if it is a power of two up to 8 and nothing else."""
        axis, size = (self.sub_block or ((None, 0),))[0]
        return size or 0 if self.sub_block and len(self.sub_block) == 1 and axis == -1 and size in (2, 4, 8) else 0


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


def NVFP4(  # noqa: N802  # the name of a format
    block: BlockLike = ((-1, 16),), law: str = "te", four_over_six: str | None = None, scale_max: int | None = None
) -> BlockScaled:
    """NVIDIA's FP4: e2m1 elements, a scale e4m3 of each block, and a scale float32 of the whole array.

    "NVFP4" has several laws, the rules of `BlockScaled`: they give other scales and elements at ties and for small
    numbers. `BlockScaled("e2m1fn", {-1: 16}, "rceil")` is Transformer Engine's law with powers of two as scales.

    "Four over six" chooses between two scales for each block: its largest number becomes 6, or 4, where steps are
    smaller, if that has a smaller error. In float32, with a and A the largest magnitudes of block and array and
    g = 6 * scale_max / A, the scales are e4m3((a / 6) * g) and e4m3((a / 6) * g * 1.5), and a number's error is
    q * s * A / (6 * scale_max) - x, with q rounded to nearest; the rest is the law "te". Errors are added in the order
    of a row's elements, and rows of tiles in pairs 8, 4, 2 and 1 apart. Errors may be infinite, as Transformer
    Engine's; small ones have unlimited exponents, where Transformer Engine's may be subnormal: if A is below 2^-80, and
    squares if A is below 2^-30. The choice is the same in all roundings, so that stochastic rounding stays unbiased.

    Args:
        block: the elements that share a scale, as for `BlockScaled`. Weights usually have {-2: 16, -1: 16}.
        law: "te", Transformer Engine's; "torchao_0_16", that of torchao 0.12 to 0.16; or "torchao_0_18", of 0.17 and
            0.18.
        four_over_six: None, or the error that chooses: "mae", the sum of magnitudes, or "mse", the sum of squares; with
            law="te" and blocks of 16 along one axis, or {-2: 16, -1: 16}.
        scale_max: with four_over_six: the scale that the array's largest magnitude gets, 256 (default), which leaves
            room for 1.5 times as much, or 448.

    Returns:
        A `BlockScaled`, whose text is "nvfp4" with these arguments.

    Source: NVIDIA, Pretraining Large Language Models with NVFP4, 2025; Transformer Engine; Cook et al., Four Over Six:
    More Accurate NVFP4 Quantization with Adaptive Block Scaling, 2025.

    Example:
        >>> import numpy as np
        >>> from qcore import quantize
        >>> quantize(np.float32([1344, 300, -224, 10]), NVFP4(), "nearest")
        array([1344.,  336., -224.,    0.], dtype=float32)
        >>> NVFP4({-2: 16, -1: 16}, law="torchao_0_16").text
        'nvfp4({-2:16,-1:16},law=torchao_0_16)'
        >>> quantize(np.float32([768, 576, 384]), NVFP4(four_over_six="mae"))
        array([768., 576., 384.], dtype=float32)
    """
    law = with_version("law", law)
    check_choice("law", law, LEVEL_RULES)
    return BlockScaled(E2M1, block, law, E4M3, tensor_scale="float32", four_over_six=four_over_six, scale_max=scale_max)


def _mapping(block: Block) -> str:
    """A block as Python writes the mapping that makes it."""
    return repr(dict(block)).replace("Ellipsis", "...")


def nvfp4_arguments(number: Any) -> dict[str, Any] | None:
    """The arguments with which `NVFP4` makes the format; None if it cannot."""
    if not isinstance(number, BlockScaled) or number.tensor_scale is None or number.rule not in LEVEL_RULES:
        return None
    found: dict[str, Any] = {"block": number.block, "law": number.rule}
    found |= {"four_over_six": number.four_over_six, "scale_max": number.scale_max}
    if number != NVFP4(**found):
        return None
    return found | {"scale_max": None if number.scale_max == 256 else number.scale_max}


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
    if number.tensor_scale is not None:
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
# mantissa on. Arguments: the carrier, the element's bits of precision, and the significand of its largest number.
RULES: dict[str, Callable[[Carrier, int, Fraction], int]] = {
    "floor": lambda carrier, precision, largest: 0,
    "ceil": lambda carrier, precision, largest: carrier.hidden - 1,  # above 1.0
    "even": lambda carrier, precision, largest: carrier.hidden >> precision,  # what rounds up to 2 in those bits
    "rceil": lambda carrier, precision, largest: 2 * carrier.hidden - 1 - int(largest * carrier.hidden),  # above it
    "round": lambda carrier, precision, largest: _from_root(carrier) - (largest**2 > 2) * carrier.hidden,
    "nearest": lambda carrier, precision, largest: _from_quotient(carrier, largest, _nearest_power),
    "nearest_mantissa": lambda carrier, precision, largest: _from_quotient(carrier, largest, _power_by_mantissa),
    "oas": lambda carrier, precision, largest: _from_quotient(
        carrier, largest, lambda quotient, digits: _power_of_oas(quotient, digits, precision)
    ),
}


def _from_root(carrier: Carrier) -> int:
    """The number that, added, carries mantissas above that of sqrt(2): their base-2 logarithms round up."""
    return 2 * carrier.hidden - 1 - isqrt(2 * carrier.hidden**2)


def _from_quotient(carrier: Carrier, largest: Fraction, power_of: Callable[[Fraction, int], int]) -> int:
    """What to add where k follows from the quotient of a by the largest number, both taken from 1 to 2.

    The quotient is between 1/2 and 2 and is rounded to float32 (for float64 arrays to float64). Its k grows with it, by
    one in a binade of a.
    """
    digits = 53 if carrier.lane_bits == 64 else 24

    def power(significand: int) -> int:
        return power_of(_rounded(significand / (largest * carrier.hidden), digits), digits)

    first = power(carrier.hidden)
    below = bisect_left(range(carrier.hidden, 2 * carrier.hidden), first + 1, key=power)
    return (first + 1) * carrier.hidden - below


def _rounded(number: Fraction, digits: int) -> Fraction:
    """A number above zero rounded to so many significant bits, to nearest, ties to even."""
    step = Fraction(2) ** (_floor_log2(number) - digits + 1)
    return round(number / step) * step


def _floor_log2(number: Fraction) -> int:
    exponent = number.numerator.bit_length() - number.denominator.bit_length()
    return exponent - (Fraction(2) ** exponent > number)


def _nearest_power(quotient: Fraction, digits: int) -> int:
    """The integer nearest to the base-2 logarithm."""
    return (_floor_log2(quotient**2) + 1) // 2  # no power of two has a square root between


def _power_by_mantissa(quotient: Fraction, digits: int) -> int:
    """The exponent of the nearest power of two; of 3/2 times a power the upper one."""
    return _floor_log2(quotient * Fraction(4, 3))


def _power_of_oas(quotient: Fraction, digits: int, precision: int) -> int:
    """The exponent of the bfloat16 number that is the quotient times qwix's constant for elements of this precision."""
    constant = Fraction(2 ** (precision + 2) - 4, 2 ** (precision + 1) - 1)
    return _floor_log2(_rounded(_rounded(quotient * _rounded(constant, digits), digits), 8))


FLOAT_RULES = ["floor", "absmax"]  # of float32 scales
LEVEL_RULES = ["te", "torchao_0_16", "torchao_0_18"]  # of scales that are numbers of a format, see `float_scale`
UNDATED_RULES = ["torchao", "torchao_main"]


def with_version(name: str, rule: Any) -> Any:
    """The present name of a rule: torchao's laws once had names without versions."""
    if not isinstance(rule, str):
        return rule
    if rule == "torchao":  # its bits were those of 0.16, its documentation said 0.18
        raise ValueError(
            f"{name}='torchao' says no version of torchao; allowed are torchao_0_16, whose bits 'torchao' had here "
            "(0.12 to 0.16), and torchao_0_18 (0.17 and 0.18)"
        )
    return "torchao_0_18" if rule == "torchao_main" else rule


def check_scale(scale: Any) -> Any:
    """A block's argument `scale`: "e8m0", "float32", or a format, saturating."""
    if isinstance(scale, str):
        if scale in ("e8m0", "float32"):
            return scale
        scale = check_number(scale, "scale")
    if not isinstance(scale, FloatingPoint | BinaryFloat):
        raise TypeError(
            f"scale={quoted(scale)}; allowed are 'e8m0', 'float32', a FloatingPoint or BinaryFloat, or the text of one"
        )
    if scale == E8M0:
        return "e8m0"
    found = scale.overflowing("saturate")
    _, step, largest = found.span
    has_zero = not isinstance(found, BinaryFloat) or found.has_zero
    fits = found.man <= FLOAT32.mantissa_bits and step >= FLOAT32.step_exponent and largest <= FLOAT32.max_exponent
    if found.bits > 16 or not has_zero or not fits:
        raise ValueError(
            f"scale={quoted(scale)}; allowed are 'e8m0', 'float32', and formats of at most 16 bits with a zero whose "
            "numbers float32 has"
        )
    return found


def check_sub_block(sub_block: Any, block: Block, scale: Any) -> Block:
    """A block's argument `sub_block`, whose sizes must divide the block's."""
    if scale != "e8m0":
        raise ValueError(f"sub_block with scale={quoted(scale_text(scale))}; allowed are sub-blocks of scale='e8m0'")
    found, sizes = check_block(sub_block, "sub_block"), dict(block)
    others = sizes.pop(..., 1)
    for axis, size in found:
        whole = 1 if axis is ... else sizes.get(axis, others)
        if size is None or (whole is not None and whole % size):
            raise ValueError(
                f"sub_block={block_text(found)} with block={block_text(block)}; allowed are axes of the block, and "
                "sizes that divide the block's"
            )
    return found


def scale_text(scale: Any) -> str:
    """A block's scale as text, without an overflow policy, as it saturates anyway."""
    if isinstance(scale, str):
        return scale
    return (replace(scale, overflow=None) if isinstance(scale, BinaryFloat) else scale).text


def check_tensor_scaled(scale: Any) -> None:
    """Raises a ValueError unless blocks with these scales may have a scale of the whole array."""
    if not isinstance(scale, str):
        most, exponent = largest_number(scale)
        if scale.man < 7 and most.bit_length() + exponent <= 64:
            return
    raise ValueError(
        f"tensor_scale='float32' with scale={quoted(scale_text(scale))}; allowed are scales of a format with at most 7 "
        "significant bits and numbers below 2^64"
    )


def _reciprocal_lane(count: int, exponent: int, carrier: Carrier) -> int:
    """The carrier's lane of 1 / (count * 2^exponent), rounded to nearest, ties to even."""
    digits = carrier.mantissa_bits + count.bit_length()
    quotient, rest = divmod(1 << digits, count)
    quotient += 2 * rest > count or (2 * rest == count and quotient % 2)
    return carrier.lane_at_most(quotient, -exponent - digits)


def check_element(element: Any) -> Number:
    """The format that a block's `element` argument stands for, saturating."""
    if isinstance(element, str):
        element = check_number(element, "element")
    if not isinstance(element, FixedPoint | FloatingPoint | BinaryFloat | Table):
        raise TypeError(
            f"element={quoted(element)}; allowed are a FixedPoint, FloatingPoint, BinaryFloat or Table, or the text of "
            "one"
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
    if isinstance(element, Table):
        numerator, denominator = max(abs(one) for one in element.finite).as_integer_ratio()
        return numerator, 1 - denominator.bit_length()
    return element.magnitudes.largest


def check_float_scaled(element: Any, scale: Any) -> None:
    """Raises a ValueError unless elements may have scales that are floats."""
    count, exponent = largest_number(element)
    step = element.span[1] if isinstance(element, FixedPoint | Table) else element.magnitudes.smallest[1]
    if count.bit_length() > FLOAT32.mantissa_bits + 1 or count.bit_length() + exponent > 64 or step < -100:
        raise ValueError(
            f"element={quoted(element)} with scale={quoted(scale_text(scale))}; allowed are formats with steps of at "
            "least 2^-100 and a largest number of at most 24 bits and below 2^64"
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
    largest = Fraction(count, 1 << count.bit_length() - 1)
    lower_top, lower_mantissa = _mantissa(lower, exponent, carrier)
    missing = carrier.width - carrier.mantissa_bits
    return Shared(
        carry=RULES[rule](carrier, precision, largest),
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
