"""Accumulators: the formats that sums of products are rounded to, and the number of terms between two roundings."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from qcore.arguments import check_choice, check_flag, check_int, quoted
from qcore.formats.block import BlockNumber
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat
from qcore.formats.number import Number, call_text, check_number, prepare
from qcore.formats.table import Table
from qcore.formats.text import MOST_NESTED, Kind, Reader, choice, parse, parse_argument, register, write
from qcore.law.carrier import FLOAT64, Carrier
from qcore.law.program import Constants, Program
from qcore.law.rounding import MODES, Rounding, RoundingLike, check_rounding
from qcore.law.tiles import MOST_ELEMENTS
from qcore.linalg.designs import Design, design_of
from qcore.random.threefry import MOST_HALF_BITS

FLOAT32_NUMBER, FLOAT64_NUMBER = BinaryFloat(8, 23), BinaryFloat(11, 52)
CANONICAL_NAN = 0x7FC00000
MOST_TERMS = 64  # of a tree or an aligned sum, which programs have one by one
# How subnormal numbers are aligned, and what: see `Accumulator`.
NORMALIZED, LEAST = "normalized", "least"
ALL, PRODUCTS, TWICE = "all", "products", "twice"
_CUTS = Rounding.TOWARD_ZERO, Rounding.DOWN
_OF_ALIGNED = "subnormals", "zeros", "cut", "align", "sum_bits", "sum_cut", "sets"


@dataclass(frozen=True, repr=False)
class Accumulator:
    """The accumulator of a product of matrices: C[m, n] is a fold over k, ascending, in chunks of `chunk` terms.

        accumulator <- R(accumulator + S),    S = the sum over the chunk of P(a[m, k] * b[k, n])

    It starts at +0. R rounds to `number`, once, the float64 sum of the accumulator and S. A product of two float32
    numbers is exact in float64. S is the float64 sum of its terms in ascending order, each addition rounded to nearest.
    If no such addition rounds, by formats and lengths (`qcore.linalg.sums_are_exact`), S is the exact sum in any order.
    A sum that is zero is +0. docs/products.md has the whole law.

    Sources: Wang et al., "Training Deep Neural Networks with 8-bit Floating Point Numbers", 2018 (chunks, two levels);
    Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021 (aligned sums).

    Stochastic roundings count: the s-th one of an element reads its word at index s * (size of C) + (index in C).

    Args:
        number: the format of the accumulator, or its text; no blocks. None is float32.
        chunk: the number of terms that are summed before the accumulator is rounded; None is all of them, 1 is a
            multiply-accumulate unit.
        rounding: the accumulator's rounding, a name or member of `Rounding`.
        product: a format that each exact product is rounded to first, to nearest; None keeps the exact product.
        inner: an accumulator that sums each chunk, starting at +0; None sums in float64.
        tree: True sums a chunk of at most 64 terms in pairs, neighbours first, each sum of two rounded as by R. An odd
            term goes on to the next level.
        fraction_bits: aligns the accumulator and the at most 64 products of a chunk to E, the largest of their
            exponents; the exponent of a product is the sum of its factors' exponents. Each is cut off after this number
            of bits of fraction, at 2^(E - fraction_bits), and their sum is rounded. 1 to 40, or None. The arguments
            from `subnormals` to `sets` are for aligned sums only.
        output: the rounding of aligned sums, if it is not `rounding`; for `fraction_bits` only.
        random_bits: the random bits of each stochastic rounding, 1 to 24. Up to 16, four roundings share two words.
        design: the name of a matrix instruction, see `of`, or its `qcore.linalg.designs.Design`; nothing else is given
            then, and the other arguments are the instruction's.
        subnormals: the exponents of subnormal factors and accumulators: "normalized" is floor(log2) of their magnitude,
            "least" the least exponent of their format, an int the least exponent of factors in a wider format.
        zeros: the least value of E, the exponent of products and accumulators that are zero; None leaves zeros out.
        cut: how terms are cut off, "toward_zero" or "down".
        align: "all": E counts the accumulator. "products": E is the largest exponent of the products alone, and the
            accumulator is cut off at the same place. "twice": E as before for the products; then their sum and the
            accumulator are aligned to the larger of E and the accumulator's exponent, and a product from 2^128 on is
            infinite.
        sum_bits, sum_cut: for align="twice": the bits of fraction that the sum of the products keeps in the second
            alignment, by default `fraction_bits`, 1 to 48; and how both are cut off there, by default `cut`.
        sets: 2 for align="twice": both halves of a chunk are aligned apart, cut off as the accumulator at the larger E,
            and added; an accumulator whose exponent is below that of the alignment - fraction_bits - 1 counts as 0.
        overflow: "inf": sums from the power of two above the largest number on are infinite, also where `rounding`
            keeps that number; or None.
        positive_zero: True if a negative sum that is rounded to zero is +0, not -0.
        order: the order in which terms are taken: a permutation of 0 to n - 1 for each n terms, at most 64; () is the
            order of the matrices. Missing terms at the end are zeros.

    Attributes:
        text: the text form, which `parse` reads.

    Raises:
        ValueError: if an argument is out of range, or contradicts another.

    Example:
        >>> Accumulator("float(6,9)", chunk=64).text
        'accumulator(float(6,9),chunk=64)'
        >>> Accumulator("float16", chunk=4, fraction_bits=23, output="toward_zero").rounding
        Rounding.TOWARD_ZERO
    """

    number: Number = FLOAT32_NUMBER
    chunk: int | None = None
    rounding: Rounding = Rounding.NEAREST
    product: Number | None = None
    inner: Accumulator | None = None
    tree: bool = False
    fraction_bits: int | None = None
    output: Rounding | None = None
    random_bits: int = 24
    design: Design | None = None
    subnormals: str | int = NORMALIZED
    zeros: int | None = None
    cut: Rounding = Rounding.TOWARD_ZERO
    align: str = ALL
    sum_bits: int | None = None
    sum_cut: Rounding | None = None
    sets: int = 1
    overflow: str | None = None
    positive_zero: bool = False
    order: tuple[int, ...] = ()
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            number: Number | str | None = FLOAT32_NUMBER,
            chunk: int | None = None,
            rounding: RoundingLike = Rounding.NEAREST,
            product: Number | str | None = None,
            inner: Accumulator | None = None,
            tree: bool = False,
            fraction_bits: int | None = None,
            output: RoundingLike | None = None,
            random_bits: int = 24,
            design: Design | str | None = None,
            subnormals: Literal["normalized", "least"] | int = NORMALIZED,
            zeros: int | None = None,
            cut: Literal["toward_zero", "down"] | Rounding = Rounding.TOWARD_ZERO,
            align: Literal["all", "products", "twice"] = ALL,
            sum_bits: int | None = None,
            sum_cut: Literal["toward_zero", "down"] | Rounding | None = None,
            sets: int = 1,
            overflow: Literal["inf"] | None = None,
            positive_zero: bool = False,
            order: Sequence[int] = (),
        ) -> None: ...

    @classmethod
    def of(cls, name: str) -> Accumulator:
        """The accumulator of a chip's matrix instruction: `qbits designs` lists the names.

        Args:
            name: chip, instruction and operands, such as "hopper.wgmma.e4m3"; docs/machines.md has the grammar.

        Returns:
            An `Accumulator` for products of the instruction's operands. Operands without a format get the format of the
            instruction; `Product` raises for all others.

        Raises:
            ValueError: if no design has this name; the message has the nearest ones.

        Example:
            >>> found = Accumulator.of("hopper.wgmma.e4m3")
            >>> found.text, found.chunk, found.number.text
            ('accumulator(design=hopper.wgmma.e4m3)', 32, 'binary(8,13)')
        """
        return cls(design=design_of(name))

    def __repr__(self) -> str:
        return call_text(self) if self.design is None else f"Accumulator(design={quoted(self.design.name)})"

    def __post_init__(self) -> None:
        if self.design is not None:
            self._take_design()
            return
        number = FLOAT32_NUMBER if self.number is None else check_scalar("number", self.number)
        self._set(number=number, rounding=check_rounding(self.rounding))
        if self.chunk is not None:
            self._set(chunk=check_int("chunk", self.chunk, 1, MOST_ELEMENTS))
        if self.product is not None:
            self._set(product=check_scalar("product", self.product))
        if self.inner is not None and not isinstance(self.inner, Accumulator):
            raise TypeError(
                f"inner={quoted(self.inner)} is a {type(self.inner).__name__}; allowed are Accumulator and None"
            )
        if self.depth > MOST_NESTED:
            raise ValueError(f"inner has {self.depth} accumulators inside each other; allowed are {MOST_NESTED}")
        check_flag("tree", self.tree)
        self._set(random_bits=check_int("random_bits", self.random_bits, 1, 24))
        self._check_members()
        self._set(text=write(self))

    def _take_design(self) -> None:
        """Fills the fields with those of an instruction; raises for other fields that are given."""
        design = design_of(self.design)
        found = _fields_of(design.parameters)
        if design.inside is not None:
            found["inner"] = Accumulator(**design.inside)
        for one in fields(self):
            if one.init and one.name != "design":
                value, default = getattr(self, one.name), one.default
                if value != default and value != found.get(one.name, default):
                    raise ValueError(f"{one.name}={quoted(value)} with design={design.name}; allowed is design alone")
        self._set(design=design, **found)
        self._set(text=write(self))

    def _check_members(self) -> None:
        """At most one of inner, tree and fraction_bits is given, with the arguments that it needs."""
        if self.fraction_bits is not None:
            self._set(fraction_bits=check_int("fraction_bits", self.fraction_bits, 1, 40))
        ways = {"inner": self.inner, "tree": self.tree or None, "fraction_bits": self.fraction_bits}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; allowed is one of inner, tree and fraction_bits")
        if (self.tree or self.fraction_bits) and not 1 <= (self.chunk or 0) <= MOST_TERMS:
            raise ValueError(f"chunk={self.chunk} with {given[0]}; allowed is an int from 1 to {MOST_TERMS}")
        if self.inner is not None and self.product is not None:
            raise ValueError(f"product={self.product} with inner; allowed is None: the inner accumulator has products")
        if self.inner is not None and self.inner.design is not None and self.inner.design.block:
            raise ValueError(f"inner={self.inner.text}; allowed inside are designs without scales of blocks")
        if self.inner is not None and self.inner.chunk is not None and self.inner.chunk > (self.chunk or MOST_ELEMENTS):
            raise ValueError(f"inner has chunk={self.inner.chunk}; allowed is at most chunk={self.chunk}")
        if self.output is not None:
            if self.fraction_bits is None:
                raise ValueError(f"output={quoted(self.output)} without fraction_bits; allowed is None")
            check_choice("output", getattr(self.output, "value", self.output), list(MODES))
            self._set(rounding=check_rounding(self.output, "output"), output=None)
        self._check_alignment()
        self._check_order()

    def _check_alignment(self) -> None:
        """The arguments of aligned sums, and `overflow`."""
        for name, value in (("cut", self.cut), ("sum_cut", self.sum_cut)):
            if value is not None:
                check_choice(name, getattr(value, "value", value), [one.value for one in _CUTS])
                self._set(**{name: check_rounding(value, name)})
        check_choice("align", self.align, (ALL, PRODUCTS, TWICE))
        if self.overflow is not None:
            check_choice("overflow", self.overflow, ("inf",))
            if getattr(self.number, "specials", None) not in ("ieee", "p3109"):
                raise ValueError(f"overflow=inf with {self.number.text}; allowed are formats with infinities")
        if isinstance(self.subnormals, str):
            check_choice("subnormals", self.subnormals, (NORMALIZED, LEAST))
        else:
            self._set(subnormals=check_int("subnormals", self.subnormals, -1000, 1000))
        if self.zeros is not None:
            self._set(zeros=check_int("zeros", self.zeros, -1000, 1000))
        if self.sum_bits is not None:
            self._set(sum_bits=check_int("sum_bits", self.sum_bits, 1, 48))
        self._set(sets=check_int("sets", self.sets, 1, 2))
        check_flag("positive_zero", self.positive_zero)
        defaults = {one.name: one.default for one in fields(self)}
        for name in _OF_ALIGNED:
            value = getattr(self, name)
            if value == defaults[name]:
                continue
            if self.fraction_bits is None:
                raise ValueError(f"{name}={_word(value)} without fraction_bits; allowed is {_word(defaults[name])}")
            if name in ("sum_bits", "sum_cut", "sets") and self.align != TWICE:
                raise ValueError(f"{name}={_word(value)} with align={self.align}; allowed is it with align=twice")
        if self.subnormals != NORMALIZED and not hasattr(self.number, "magnitudes"):
            raise ValueError(
                f"subnormals={self.subnormals} with {self.number.text}; allowed are floating point formats"
            )
        if self.sets == 2 and (self.chunk or 0) % 2:
            raise ValueError(f"chunk={self.chunk} with sets=2; allowed is an even number")

    def _check_order(self) -> None:
        order = tuple(self.order) if isinstance(self.order, Iterable) else (self.order,)
        order = tuple(check_int("order", place, 0, MOST_TERMS - 1) for place in order)
        if sorted(order) != [*range(len(order))]:
            raise ValueError(f"order={quoted(order)}; allowed is a permutation of the numbers 0 to n - 1")
        if order and (self.chunk or MOST_ELEMENTS) % len(order) and len(order) % (self.chunk or MOST_ELEMENTS):
            raise ValueError(f"order has {len(order)} places with chunk={self.chunk}; allowed is a multiple or divisor")
        self._set(order=() if order == (*range(len(order)),) else order)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def depth(self) -> int:
        """The number of accumulators inside this one."""
        return 0 if self.inner is None else 1 + self.inner.depth

    @property
    def stochastic(self) -> bool:
        """True if a product needs a key."""
        return self.rounding.stochastic or (self.inner is not None and self.inner.stochastic)

    @property
    def in_pairs(self) -> bool:
        """True for plain trees: exact products are added in pairs, and all sums are rounded without random words."""
        return self.tree and self._rounds and not self.stochastic and replace(self, tree=False)._plain

    @property
    def _sequential(self) -> bool:
        """True if R rounds after every exact product."""
        return self._plain and self.chunk == 1

    @property
    def _plain(self) -> bool:
        """True if S is the float64 sum of exact products."""
        more = self.inner is not None or self.tree or self.fraction_bits is not None or self.design is not None
        return self.product is None and not more and not self.order and self.overflow is None and not self.positive_zero

    @property
    def instruction(self) -> Design | None:
        """The `Design` of this accumulator, or of one inside; None if there is none."""
        return self.design if self.design is not None or self.inner is None else self.inner.instruction

    @property
    def own(self) -> Accumulator:
        """The same law without the name: an accumulator whose text has all parameters of an instruction.

        NaN is 0x7fc00000 in it, and operands have no formats. Without a name it is itself.

        Raises:
            ValueError: if the instruction has scales of blocks, or does not align terms.
        """
        if self.design is None:
            return self
        if self.design.block or self.innermost.fraction_bits is None:
            raise ValueError(f"design={self.design.name} has parts that are no parameters; allowed are aligned sums")
        return Accumulator(**self.design.parameters, inner=self.inner)

    @property
    def innermost(self) -> Accumulator:
        """The accumulator that adds the products themselves."""
        return self if self.inner is None else self.inner.innermost

    @property
    def adds_total(self) -> bool:
        """True if the accumulator and the products of a chunk are added at once."""
        return self.inner is None and (self.fraction_bits is not None or self.design is not None)

    @property
    def nan(self) -> int:
        """The bits of results that are NaN."""
        return CANONICAL_NAN if self.design is None else self.design.nan

    @property
    def _shares_words(self) -> bool:
        """True if R rounds after every exact product, and four roundings in a row read one block of random words."""
        return self._sequential and self.rounding.stochastic and self.random_bits <= MOST_HALF_BITS

    @property
    def _rounds(self) -> bool:
        """True if R is not the identity of float64."""
        return self.number != FLOAT64_NUMBER

    @property
    def _converts(self) -> bool:
        """True if the sum of all terms is rounded once, to the nearest float32, as by a conversion."""
        return self.chunk is None and self.number == FLOAT32_NUMBER and self.rounding is Rounding.NEAREST

    def length(self, terms: int) -> int:
        """The number of terms of a full chunk, for a sum of `terms` terms."""
        return max(terms, 1) if self.chunk is None else self.chunk

    def _roundings_in_chunk(self, terms: int) -> int:
        """The number of roundings of a chunk of `terms` terms before its sum is added to the accumulator."""
        if self.inner is not None:
            return self.inner._roundings(terms)
        return max(terms - 1, 0) if self.tree else 0

    def _roundings(self, terms: int) -> int:
        """The number of roundings of a sum of `terms` terms."""
        length = self.length(terms)
        full, rest = divmod(terms, length)
        return full * (1 + self._roundings_in_chunk(length)) + (1 + self._roundings_in_chunk(rest) if rest else 0)


@lru_cache(maxsize=1024)
def rounding_program(number: Number, mode: Rounding, carrier: Carrier = FLOAT64) -> tuple[Program, Constants]:
    """The program that rounds sums to a format, and its constants."""
    return prepare(number, mode, carrier, None, coded=False)


AccumulatorLike = Accumulator | str | None  # as users give accumulators


def is_accumulator(given: Any) -> bool:
    """True for accumulators, their texts, and the names of instructions, which have points and no parentheses."""
    if not isinstance(given, str):
        return isinstance(given, Accumulator)
    return given.startswith("accumulator") or ("." in given and "(" not in given)


def check_accumulator(accumulator: Any, argument: str = "accumulator") -> Accumulator:
    """An `Accumulator`, given as such or as text; None is the default one."""
    found = accumulator
    if isinstance(accumulator, str):  # the name of an instruction has no parentheses
        is_text = "(" in accumulator or "." not in accumulator
        found = parse_argument(accumulator, argument) if is_text else Accumulator.of(accumulator)
    if found is not None and not isinstance(found, Accumulator):
        kind = type(found).__name__
        raise TypeError(f"{argument}={quoted(accumulator)} is a {kind}; allowed are an Accumulator, its text, and None")
    return EXACT if found is None else found


def check_scalar(name: str, number: Any) -> Number:
    """A format without shared scales, with numbers above zero, to which float64 sums can be rounded."""
    number = check_number(number, name)
    if isinstance(number, BlockNumber):
        raise ValueError(f"{name}={quoted(number.text)}; allowed are formats without shared scales")
    if isinstance(number, FixedPoint) and number.wl == number.signed:
        raise ValueError(f"{name}={quoted(number.text)}; allowed are formats with numbers above zero")
    if isinstance(number, Table):
        raise ValueError(f"{name}={quoted(number.text)}; allowed are fixed and floating point formats and posits")
    rounding_program(number, Rounding.NEAREST)
    return number


def _design(reader: Reader) -> str:
    """Reads the name of an instruction: words with points between them."""
    name = reader.next()
    while reader.token == ".":
        name += reader.next() + reader.next()
    return name


def optional_number(reader: Reader) -> Any:
    """Reads a format, or None."""
    return reader.number() if reader.token != "None" else reader.next() and None


def _fields_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """The fields of an accumulator with an instruction's parameters, which need no checks."""
    found = dict(parameters)
    found["number"] = parse(found["number"])
    for name in ("rounding", "sum_cut"):
        if name in found:
            found[name] = MODES[found[name]]
    return found


def _word(value: Any) -> Any:
    return getattr(value, "value", value)


def _subnormals(reader: Reader) -> str | int:
    return reader.next() if reader.token in (NORMALIZED, LEAST) else reader.integer()


def whole_numbers(reader: Reader) -> list[int]:
    """Reads a list of whole numbers."""
    start, found = reader.index, reader.numbers()
    if any(place != int(place) for place in found):
        raise reader.error("allowed here are whole numbers", start)
    return [int(place) for place in found]


_PARAMETERS = {
    "number": optional_number,
    "chunk": Reader.integer,
    "rounding": choice(tuple(MODES)),
    "product": Reader.number,
    "inner": lambda reader: reader.registered("accumulator"),
    "tree": Reader.flag,
    "fraction_bits": Reader.integer,
    "output": choice(tuple(MODES)),
    "random_bits": Reader.integer,
    "design": _design,
    "subnormals": _subnormals,
    "zeros": Reader.integer,
    "cut": choice(("toward_zero", "down")),
    "align": choice((ALL, PRODUCTS, TWICE)),
    "sum_bits": Reader.integer,
    "sum_cut": choice(("toward_zero", "down")),
    "sets": Reader.integer,
    "overflow": choice(("inf",)),
    "positive_zero": Reader.flag,
    "order": whole_numbers,
}
register("accumulator", Kind(Accumulator, _PARAMETERS, 0, 1, 0))
EXACT = Accumulator()
