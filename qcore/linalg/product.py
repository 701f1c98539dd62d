"""Products of two tensors: the formats of their operands, their accumulators, and the matrices that are multiplied."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from qcore.arguments import quoted
from qcore.formats.block import BlockScaled
from qcore.formats.number import call_text
from qcore.formats.text import Kind, Reader, parse_argument, register, write
from qcore.law.rounding import Rounding
from qcore.linalg.accumulator import (
    FLOAT32_NUMBER,
    FLOAT64_NUMBER,
    LEAST,
    NORMALIZED,
    Accumulator,
    AccumulatorLike,
    check_accumulator,
)
from qcore.linalg.convolution import Geometry
from qcore.linalg.designs import design_for, least_exponent
from qcore.linalg.exactness import (
    chunks_share_scales,
    float32_suffices,
    sums_are_exact,
    sums_are_multiples,
    sums_stay_below,
)
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, Shape
from qcore.linalg.law import Sums
from qcore.linalg.operands import SIZE, Operand, OperandLike, check_operand

# Numbers that are folded into keys: into a layer's key for the products of gradients, into a product's for its
# operands.
ROLES = {GRAD_A: 1, GRAD_B: 2}
FIRST, SECOND = 3, 4
# The rows of the state of delayed scales, for the two operands of each product: a's, b's, and the gradient's.
ROWS = {FORWARD: (0, 1), GRAD_A: (2, 1), GRAD_B: (2, 0)}


@dataclass(frozen=True, repr=False)
class Product:
    """The formats of a product's two operands, and its accumulator.

    Args:
        first, second: formats, their texts, `Operand`s, or None, which does not round. In products of the backward pass
            the gradient is the first.
        accumulator: an `Accumulator` or its text; None is the exact sum, rounded once to float32.

    Attributes:
        text: the text form, which `parse` reads.

    Example:
        >>> Product("e5m2", "e4m3fn").second.number.text
        'e4m3fn'
    """

    first: Operand = None  # type: ignore[assignment]  # `__post_init__` makes it of what users give
    second: Operand = None  # type: ignore[assignment]
    accumulator: Accumulator = None  # type: ignore[assignment]
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self, first: OperandLike = None, second: OperandLike = None, accumulator: AccumulatorLike = None
        ) -> None: ...

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            object.__setattr__(self, name, check_operand(getattr(self, name), name))
        object.__setattr__(self, "accumulator", check_accumulator(self.accumulator))
        self._fill_operands()
        self._check_operands()
        object.__setattr__(self, "text", write(self))

    def _fill_operands(self) -> None:
        """Operands without a format get that of the accumulator's instruction; raises for those it does not have."""
        design = self.accumulator.instruction
        if design is None:
            return
        given = [operand.number for operand in self.operands]
        pair = next((pair for pair in (design.numbers, design.numbers[::-1]) if design.has(given, pair)), None)
        if pair is None:
            texts = " and ".join("None" if number is None else number.text for number in given)
            raise ValueError(f"operands are {texts} with {design.name}; allowed there are {design.text}")
        for name, operand, number in zip(("first", "second"), self.operands, pair, strict=True):
            if operand.number is None and number != FLOAT32_NUMBER:
                # The instruction reads the leading bits of wider numbers, so they are cut off.
                rounding = Rounding.TOWARD_ZERO if design.truncates else operand.rounding
                operand = replace(operand, number=number, rounding=rounding)
            # Blocks that share a scale lie along the terms of the sum.
            object.__setattr__(self, name, replace(operand, matrix=True) if design.block else operand)

    def _check_operands(self) -> None:
        """Both operands need the same transform, and a chunk of a sum must lie in one tile."""
        if self.accumulator.innermost.subnormals == LEAST:
            for name, operand in zip(("first", "second"), self.operands, strict=True):
                if not hasattr(_elements(operand.number), "magnitudes"):
                    raise ValueError(
                        f"{name} is {operand.text} with subnormals=least; allowed are floating point formats"
                    )
        first, second = (operand.transform for operand in self.operands)
        if first != second:
            texts = [None if one is None else one.text for one in (first, second)]
            raise ValueError(f"first has transform={texts[0]}, second {texts[1]}; allowed is the same in both")
        # A chunk's sum is multiplied with one scale of each operand, so no chunk may cross the edge of a tile.
        chunk, design = self.accumulator.chunk, self.accumulator.design
        aligned = self.accumulator.fraction_bits is not None or design is not None
        for name, operand in zip(("first", "second"), self.operands, strict=True):
            if not operand._tiled:
                continue
            scale: Any = operand.scale
            if aligned:  # these add the total and the products at once, so that no scale fits between
                given = "fraction_bits" if design is None else design.name
                raise ValueError(f"{name} has {scale.text} with {given}; allowed are aligned sums as inner accumulator")
            if scale.terms is not None and (chunk is None or scale.terms % chunk):
                raise ValueError(
                    f"{name} has {scale.text}, accumulator has chunk={chunk}; allowed is a divisor of {scale.terms}"
                )

    def on(self, machine: str) -> Product:
        """The product as a machine's instruction for the operands' formats computes it.

        An accumulator of float32 chunks adds the instruction's sums of a chunk; any other is replaced. Blocks of MX
        formats lie along the terms of the sum, whichever of the last two axes they have here.

        Args:
            machine: a chip, or a chip and an instruction: "hopper", "hopper.mma".

        Returns:
            A `Product`.

        Raises:
            ValueError: if there is no such machine, or it has no instruction for the operands; the message lists the
                formats that it has.

        Example:
            >>> Product("bfloat16", "bfloat16").on("hopper").accumulator.text
            'accumulator(design=hopper.wgmma.bf16)'
        """
        first, second = (replace(operand, number=_along_terms(operand.number)) for operand in self.operands)
        design = design_for(machine, first.number, second.number)
        found, chunk = Accumulator(design=design), self.accumulator.chunk
        promotes = self.accumulator.number == FLOAT32_NUMBER and (chunk or 0) >= design.step and not design.block
        return Product(first, second, Accumulator(chunk=chunk, inner=found) if promotes else found)

    @property
    def operands(self) -> tuple[Operand, Operand]:
        return self.first, self.second

    @property
    def stochastic(self) -> bool:
        """True if the product needs a key."""
        return self.accumulator.stochastic or any(operand.stochastic for operand in self.operands)

    @property
    def has_16_bits(self) -> bool:
        """True if operands are rounded, all to formats of 16 bits or more."""
        numbers = [operand.number for operand in self.operands if operand.number is not None]
        return bool(numbers) and all(map(_has_16_bits, numbers))

    @property
    def _tiled(self) -> bool:
        """True if each chunk of a sum has scales of its own."""
        return any(operand._tiled for operand in self.operands)

    @property
    def block(self) -> int:
        """The number of terms that share a scale which the accumulator's instruction reads; 0 without such scales."""
        return 0 if self.accumulator.design is None else self.accumulator.design.block

    @property
    def _as_matrices(self) -> bool:
        """True if an operand is rounded as the matrix that is multiplied."""
        return any(operand._as_matrix for operand in self.operands)

    @property
    def _unrounded(self) -> Product:
        """The same product with sums that are rounded once, to float32; scaled sums of chunks are added in float64."""
        exact = Accumulator(FLOAT64_NUMBER, self.accumulator.chunk) if self._tiled else Accumulator()
        exact = Accumulator(FLOAT64_NUMBER, self.block) if self.block else exact
        return replace(self, accumulator=exact)

    def filled(self, terms: int) -> int:
        """The terms of a convolution's place, filled up to whole transforms, blocks, and chunks with scales."""
        terms = terms if self.first.transform is None else -(-terms // SIZE) * SIZE
        step = self.block or (self.chunk_of(terms) if self._tiled else 1)
        return -(-terms // step) * step

    def chunk_of(self, terms: int) -> int:
        """The length of a chunk among the terms of a convolution's place, whose scales no other place has."""
        return max(min(self.accumulator.length(terms), terms), 1)

    def sums(
        self, geometry: Geometry, which: str, first: Shape, second: Shape, other: Shape, adds: bool = False
    ) -> Sums:
        """How chunks may be summed, for operands of these shapes; `adds` if accumulators start at an addend.

        Other arguments are those of `qcore.linalg.geometry.MatrixGeometry.matrices`, with shapes.
        """
        contraction = geometry.contraction(which, first, second, other)
        terms, of_place, total = contraction.terms, contraction.of_place, self.accumulator
        if of_place is not None and self._as_matrices:
            places, of_place = terms // max(of_place, 1), self.filled(of_place)
            terms = places * of_place
            total = replace(total, chunk=self.chunk_of(of_place)) if self._tiled else total
        elif self.first.transform is not None:
            terms = -(-terms // SIZE) * SIZE  # transforms append zeros
        accumulator, chunk = total, max(terms, 1)
        # The innermost accumulator adds the products themselves; only its chunks have to be exact.
        while True:
            chunk = min(accumulator.length(chunk), chunk)
            if accumulator.inner is None:
                break
            accumulator = accumulator.inner
        a, b = self.first.number, self.second.number
        pairs = zip(self.operands, (first, second), (contraction.first, contraction.second), strict=True)
        shared = all(self._shares(geometry, *pair, chunk, terms, of_place) for pair in pairs)
        rule = accumulator.number, accumulator.rounding, accumulator.random_bits
        narrow = accumulator._sequential and float32_suffices(a, b, *rule)
        # Products with scales have more bits than the formats say, and an addend may have any.
        narrow = narrow and not self._tiled and not adds
        multiples = narrow and sums_are_multiples(a, b, accumulator.number)
        below = multiples and sums_stay_below(a, b, accumulator.number, terms)
        exact = chunk == 1 or (shared and sums_are_exact(a, b, chunk))
        of_first, of_second = (self._least(accumulator, one) for one in (a, b))
        least = (of_second, of_first) if geometry.is_swapped(which) else (of_first, of_second)
        return Sums(total, exact, narrow, multiples, below, least)

    @staticmethod
    def _least(accumulator: Accumulator, number: Any) -> int:
        """The least exponent of an operand's numbers, where the accumulator aligns subnormal ones by it."""
        if isinstance(accumulator.subnormals, int):
            return accumulator.subnormals
        return 0 if accumulator.subnormals == NORMALIZED else least_exponent(_elements(number))

    @staticmethod
    def _shares(
        geometry: Geometry,
        operand: Operand,
        shape: Sequence[int],
        axes: tuple[int, ...],
        chunk: int,
        terms: int,
        of_place: int | None,
    ) -> bool:
        """`chunks_share_scales` of an operand. If it is rounded as a matrix, its terms lie along one axis, in order."""
        if not operand._as_matrix:
            return not geometry.is_laid_out(operand.number) and chunks_share_scales(
                operand.number, shape, axes, chunk, of_place is not None
            )
        # Blocks begin anew at each place of a convolution.
        length = terms if of_place is None else of_place
        fits = length == terms or length % chunk == 0
        return fits and chunks_share_scales(operand.number, (1, 1, 1, length), (3,), chunk, False)


def _elements(number: Any) -> Any:
    """The format of an operand's elements; None is float32."""
    return getattr(number, "element", number) or FLOAT32_NUMBER


@dataclass(frozen=True)
class Products:
    """The three products of a layer: its own, and those of the gradients of its two operands.

    Attributes:
        forward, grad_a, grad_b: `Product`s.
        stochastic: True if one of them needs a key.

    Raises:
        ValueError: if a tensor has a delayed scale in one product, and is rounded otherwise in another one.
    """

    forward: Product
    grad_a: Product
    grad_b: Product

    def __post_init__(self) -> None:
        for name, pair in zip(("a", "b", "gradient"), self._pairs(), strict=True):
            # A tensor has one row of state: two formats of it would want two scales from one history.
            if any(operand.delayed for operand in pair) and len({(one.scale, one.number) for one in pair}) > 1:
                texts = " and ".join(operand.text for operand in pair)
                raise ValueError(f"{name} is {texts} in two products; allowed is one format and scale if it is delayed")
        if len({operand.history for operand in self.rows} - {None}) > 1:
            raise ValueError("delayed scales have different histories; allowed is one length in all three products")

    def _pairs(self) -> tuple[tuple[Operand, Operand], ...]:
        """The two operands in which each of a, b and the gradient is multiplied."""
        forward, grad_a, grad_b = self.forward, self.grad_a, self.grad_b
        return (forward.first, grad_b.second), (forward.second, grad_a.second), (grad_a.first, grad_b.first)

    def of(self, which: str) -> Product:
        """One of the three, see `qcore.linalg.geometry`."""
        return {FORWARD: self.forward, GRAD_A: self.grad_a, GRAD_B: self.grad_b}[which]

    @property
    def rows(self) -> tuple[Operand, Operand, Operand]:
        """How a, b and the gradient are rounded, where their scales are delayed."""
        first, second, third = (pair[0] for pair in self._pairs())
        return first, second, third

    @property
    def history(self) -> int | None:
        """The number of past tensors in the history of delayed scales; None if no scale is delayed."""
        return next((operand.history for operand in self.rows if operand.delayed), None)

    @property
    def plain(self) -> bool:
        """True if no operand has a scale or a transform."""
        pairs = (product.operands for product in (self.forward, self.grad_a, self.grad_b))
        return all(operand.scale is None and not operand._as_matrix for pair in pairs for operand in pair)

    @property
    def scale_of_tensor(self) -> str | None:
        """The text of the first scale of a whole tensor in the forward product; None if there is none."""
        for operand in self.forward.operands:
            if operand.scale is not None and operand.scale._whole:
                return operand.scale.text
            number: Any = operand.number
            if self.forward.block and number.tensor_scale is not None:  # which the instruction does not read
                return number.text
        return None

    @property
    def texts(self) -> tuple[str, str, str]:
        """The products as text, in this order."""
        return self.forward.text, self.grad_a.text, self.grad_b.text

    @property
    def stochastic(self) -> bool:
        return self.forward.stochastic or self.grad_a.stochastic or self.grad_b.stochastic


# As users give the arguments of products.
ProductLike = Product | str | None
Operands = tuple[OperandLike, OperandLike] | list[OperandLike] | None


class ProductArguments(TypedDict, total=False):
    """The arguments of a product by name, for functions with several products."""

    operands: Operands
    accumulator: AccumulatorLike
    grad_a: ProductLike
    grad_b: ProductLike


class LayerArguments(TypedDict, total=False):
    """`ProductArguments` of a product with a weight."""

    operands: Operands
    accumulator: AccumulatorLike
    grad_input: ProductLike
    grad_weight: ProductLike


def check_products(operands: Any, accumulator: Any, grad_a: Any, grad_b: Any, names: Sequence[str]) -> Products:
    """The products of a call.

    Args:
        operands: a pair of operands, each as for `Product`; None is (None, None).
        accumulator: as for `Product`.
        grad_a, grad_b: `Product`s or their texts; None multiplies the unrounded gradient with the other operand, which
            is rounded as in the product itself but not transformed, in the same accumulator.
        names: the names of the last two arguments, for messages.
    """
    pair = (None, None) if operands is None else operands
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(
            f"operands={quoted(operands)}; allowed are None and a pair of formats, their texts, Operands or None"
        )
    first, second = (check_operand(one, f"operands[{index}]") for index, one in enumerate(pair))
    forward = Product(first, second, accumulator)
    found = []
    for grad, name, other in zip((grad_a, grad_b), names, (second, first), strict=True):
        # A transform acts on the terms of a sum, and the sums of gradients have other terms than the forward one.
        default = Product(None, replace(other, transform=None), forward.accumulator)
        found.append(default if grad is None else check_product(grad, name))
    return Products(forward, *found)


def check_addend(addend: tuple[Sequence[int], str], result: Sequence[int], scale_of_tensor: str | None) -> None:
    """Raises unless an addend, given by its shape and dtype, has the result's shape, and accumulators may start at it.

    `scale_of_tensor` is the attribute of the products.
    """
    shape, dtype = addend
    if "float32" not in dtype:
        raise TypeError(f"c has dtype {dtype}; allowed is float32")
    if tuple(shape) != tuple(result):
        raise ValueError(f"c has shape {tuple(shape)}; allowed is {tuple(result)}, the shape of the result")
    if scale_of_tensor is not None:  # it multiplies the accumulator's last number, and so would the addend be
        raise ValueError(f"c with {scale_of_tensor}; allowed are operands without scales of whole tensors")


def check_scaling(history: int | None, given: tuple[tuple[int, ...], str] | None) -> None:
    """Raises if the state of delayed scales is missing, has a wrong shape or dtype, or is given without such scales.

    `history` is the scales' length of history, or None; `given` is the shape and the dtype of the state, or None.
    """
    allowed = "None: no scale is delayed" if history is None else f"a float32 array of shape {(3, 1 + history)}"
    if given is None and history is not None:
        raise ValueError(f"scaling=None; delayed scales need {allowed}, see `first_scaling`")
    if given is not None and (history is None or given[0] != (3, 1 + history) or "float32" not in given[1]):
        raise ValueError(f"scaling has shape {given[0]} and dtype {given[1]}; allowed is {allowed}")


def check_product(product: Any, argument: str) -> Product:
    """A product, given as such or as text."""
    found = parse_argument(product, argument) if isinstance(product, str) else product
    if not isinstance(found, Product):
        raise TypeError(
            f"{argument}={quoted(product)} is a {type(found).__name__}; allowed are a Product, its text, and None"
        )
    return found


def _has_16_bits(number: Any) -> bool:
    try:
        return number.bits >= 16
    except ValueError:  # fixed point without a range has no codes
        return getattr(number, "wl", 0) >= 16


def _along_terms(number: Any) -> Any:
    """A format with blocks of a row or a column, with these along the last axis."""
    if isinstance(number, BlockScaled) and len(number.block) == 1 and number.block[0][0] == -2:
        return replace(number, block={-1: number.block[0][1]})
    return number


def _operand(reader: Reader) -> Any:
    """Reads an operand, a format or None."""
    if reader.token == "None":
        return reader.next() and None
    return reader.registered("operand") if reader.token == "operand" else reader.number()


_PARAMETERS = {"first": _operand, "second": _operand, "accumulator": lambda reader: reader.registered("accumulator")}
register("product", Kind(Product, _PARAMETERS, 0, 2, 0))
