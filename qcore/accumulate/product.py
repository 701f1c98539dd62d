"""What one product of two tensors is: the formats of its operands, and its accumulator."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qcore.accumulate.accumulator import check_accumulator, optional_number
from qcore.accumulate.exactness import chunks_share_scales, float32_suffices, sums_are_exact
from qcore.accumulate.forms import GRAD_A, GRAD_B, Contraction
from qcore.accumulate.law import Sums
from qcore.formats.number import Number, check_number
from qcore.formats.text import Kind, Reader, choice, parse, register, write
from qcore.law.rounding import MODES, Rounding, check_rounding

# What keys are folded with: that of a layer for the products of gradients, and that of a product for its operands.
ROLES = {GRAD_A: 1, GRAD_B: 2}
FIRST, SECOND = 3, 4


@dataclass(frozen=True)
class Operand:
    """How an operand of a product is rounded.

    Args:
        number: a format or its text; None does not round. Axes of blocks are those of the tensor that is passed.
        rounding: a name or member of `Rounding`.

    Attributes:
        text: what `parse` makes the operand from.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> Operand("e5m2", "stochastic").text
        'operand(e5m2,rounding=stochastic)'
    """

    number: Any = None
    rounding: Any = Rounding.NEAREST
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", None if self.number is None else check_number(self.number))
        object.__setattr__(self, "rounding", check_rounding(self.rounding))
        object.__setattr__(self, "text", write(self))

    @property
    def stochastic(self) -> bool:
        """True if rounding needs a key."""
        return self.number is not None and self.rounding is Rounding.STOCHASTIC


@dataclass(frozen=True)
class Product:
    """The formats of a product's two operands, and its accumulator.

    Args:
        first, second: formats, their texts, `Operand`s, or None, which does not round. In products of the backward pass
            the gradient is the first.
        accumulator: an `Accumulator` or its text; None is the exact sum, rounded once to float32.

    Attributes:
        text: what `parse` makes the product from.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> Product("e5m2", "e4m3fn").second.number.text
        'e4m3fn'
    """

    first: Any = None
    second: Any = None
    accumulator: Any = None
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            object.__setattr__(self, name, check_operand(getattr(self, name), name))
        object.__setattr__(self, "accumulator", check_accumulator(self.accumulator))
        object.__setattr__(self, "text", write(self))

    @property
    def operands(self) -> tuple[Operand, Operand]:
        return self.first, self.second

    @property
    def stochastic(self) -> bool:
        """True if the product needs a key."""
        return self.accumulator.stochastic or any(operand.stochastic for operand in self.operands)

    def sums(self, first: Sequence[int], second: Sequence[int], contraction: Contraction) -> Sums:
        """How chunks may be summed, for operands of these shapes."""
        accumulator, chunk = self.accumulator, max(contraction.terms, 1)
        while True:
            chunk = min(accumulator.length(chunk), chunk)
            if accumulator.inner is None:
                break
            accumulator = accumulator.inner
        a, b = self.first.number, self.second.number
        shared = chunks_share_scales(a, first, contraction.first, chunk, contraction.gathers) and chunks_share_scales(
            b, second, contraction.second, chunk, contraction.gathers
        )
        narrow = accumulator.sequential and float32_suffices(a, b, accumulator.number, accumulator.rounding)
        return Sums(self.accumulator, chunk == 1 or (shared and sums_are_exact(a, b, chunk)), narrow)


@dataclass(frozen=True)
class Products:
    """The three products of a layer: its own, and those of the gradients of its two operands.

    Attributes:
        forward, grad_a, grad_b: `Product`s.
        stochastic: True if one of them needs a key.
    """

    forward: Product
    grad_a: Product
    grad_b: Product

    @property
    def texts(self) -> tuple[str, str, str]:
        """The products as text, in this order."""
        return self.forward.text, self.grad_a.text, self.grad_b.text

    @property
    def stochastic(self) -> bool:
        return self.forward.stochastic or self.grad_a.stochastic or self.grad_b.stochastic


def check_products(operands: Any, accumulator: Any, grad_a: Any, grad_b: Any, names: Sequence[str]) -> Products:
    """The products of a call.

    Args:
        operands: a pair, of which each is as for `Product`; None is (None, None).
        accumulator: as for `Product`.
        grad_a, grad_b: `Product`s or their texts; None multiplies the gradient as it is with the other operand as it is
            rounded there, with the same accumulator.
        names: what the latter two are called.
    """
    pair = (None, None) if operands is None else operands
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"operands={operands!r}; allowed are None and a pair of formats, their texts, Operands or None")
    first, second = (check_operand(one, f"operands[{index}]") for index, one in enumerate(pair))
    forward = Product(first, second, accumulator)
    found = []
    for grad, name, other in zip((grad_a, grad_b), names, (second, first), strict=True):
        found.append(Product(None, other, forward.accumulator) if grad is None else check_product(grad, name))
    return Products(forward, *found)


def check_operand(operand: Any, argument: str) -> Operand:
    """An operand, given as a format, a text, an `Operand` or None."""
    operand = parse(operand) if isinstance(operand, str) and operand.startswith("operand") else operand
    if isinstance(operand, Operand):
        return operand
    if operand is not None and not isinstance(operand, Number | str):
        kind = type(operand).__name__
        raise TypeError(f"{argument}={operand!r} is a {kind}; allowed are a format, its text, an Operand and None")
    return Operand(None if operand is None else check_number(operand, argument))


def check_product(product: Any, argument: str) -> Product:
    """A product, given as such or as text."""
    found = parse(product) if isinstance(product, str) else product
    if not isinstance(found, Product):
        raise TypeError(
            f"{argument}={product!r} is a {type(found).__name__}; allowed are a Product, its text, and None"
        )
    return found


def _operand(reader: Reader) -> Any:
    """Reads an operand, a format or None."""
    if reader.token == "None":
        return reader.next() and None
    return reader.registered("operand") if reader.token == "operand" else reader.number()


_PARAMETERS = {"first": _operand, "second": _operand, "accumulator": lambda reader: reader.registered("accumulator")}
register("operand", Kind(Operand, {"number": optional_number, "rounding": choice(tuple(MODES))}, 0, 1, 0))
register("product", Kind(Product, _PARAMETERS, 0, 2, 0))
