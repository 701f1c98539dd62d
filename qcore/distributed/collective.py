"""Collectives: what ranks send each other, and in which order, and by which accumulator, their numbers are added."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from qcore.arguments import check_choice, check_flag, check_int, check_size, quoted
from qcore.distributed.scale import WireScale, check_scale
from qcore.formats.block import BlockNumber
from qcore.formats.number import Number, call_text, check_number, check_target
from qcore.formats.table import Table
from qcore.formats.text import Kind, Reader, choice, parse_argument, register, write
from qcore.law.rounding import MODES, Rounding, RoundingLike, check_rounding
from qcore.linalg.accumulator import Accumulator, AccumulatorLike, check_accumulator, check_scalar, optional_number
from qcore.linalg.scaling import is_delayed

ASCENDING, OWN_FIRST, GLOO_RING, NCCL_RING, NCCL_TREE, NCCL_PAT, NONE = (
    "ascending",
    "own_first",
    "gloo_ring",
    "nccl_ring",
    "nccl_tree",
    "nccl_pat",
    "none",
)
ORDERS = ASCENDING, OWN_FIRST, GLOO_RING, NCCL_RING, NCCL_TREE, NCCL_PAT, NONE
TREES = NCCL_TREE, NCCL_PAT
CUT = OWN_FIRST, GLOO_RING, NCCL_RING, NCCL_PAT  # into chunks that begin with different ranks
BEFORE, PREMULTIPLY, AFTER, SPLIT = "before", "premultiply", "after", "split"
DIVISIONS = BEFORE, PREMULTIPLY, AFTER, SPLIT
FIRST, ZERO = "first", "zero"
REDUCE, SCATTER, GATHER = "reduce", "reduce_scatter", "all_gather"  # calls
_MOST_LEVELS = 8
_HOP = "allowed is an accumulator with chunk=1, and without other ways of adding"


@dataclass(frozen=True, repr=False)
class Collective:
    """A sum over ranks: the format that is sent, the order in which ranks' numbers are added, and the accumulator.

        terms  = W(x of each rank), divided by the number of ranks N if `divide` says so
        total <- R(total + term), in the order of the ranks, from the first term on
        result = W(total), or W(R(total / N))

    W rounds to `wire`, R as `accumulator` says. Without an accumulator R is W: each hop of a ring or a tree rounds the
    exact sum of two numbers once. Results are rounded to nearest to the arrays' own dtype.

    Orders, for the chunks in which a message of n elements is cut; ranks count modulo N:

    - "ascending": ranks 0, 1, ... N - 1, for all elements.
    - "own_first": N chunks of ceil(n / N) elements; chunk c begins with rank c and goes up.
    - "gloo_ring": chunk c begins with rank c - 1 and goes down; it ends with rank c. Chunks are those of gloo's ring.
    - "nccl_ring": chunk c begins with rank c + 1, goes up, and ends with rank c. An all-reduce is cut in loops of N
      chunks of 2 MiB; the last loop has chunks of what is left, divided by N, in multiples of 16 bytes. In a
      reduce-scatter the chunks are the outputs.
    - "nccl_tree": NCCL's first tree, with one rank a node: a rank adds its children to its own number, the lower first.
    - "nccl_pat": of a reduce-scatter, a binomial tree on the offset s = (output - rank) modulo N: its own number, then
      the offsets s + 2^k, for k descending from below the lowest bit of s. With `aggregation` A and P, the least power
      of two from N on, k descends from below log2(P / A) to 1, ascends from there on, and is 0 at last.
    - "none": of an all-gather, which adds nothing.

    With a `scale`, W is the scale's law: ranks send scaled numbers, and their result is scaled again. The chunks of
    "own_first" are then whole rows, where rows have scales.

    With `inner`, ranks are in nodes of `inner_ranks` neighbours. Each node makes the same call by `inner`, and what the
    nodes have is what this law adds, of N / inner_ranks ranks. Both levels see the whole message.

    Stochastic roundings read a key's words as `qcore.linalg.Accumulator` says, for the sum. Other roundings read those
    of `fold_in(key, role)`: 1 for terms, 2 for divided terms, 3 for results, from 4 on for the levels of a tree; and
    256 + role * nodes + node for a role of `inner` in a node. Blocks and tables read those of `fold_in` of this key and
    the rank, which is 0 for results.

    Sources: NCCL 2.30.7, gloo cc441984, openxla/xla of jaxlib 0.10.2; `qcore.distributed.BACKENDS` names more.

    Args:
        wire: the format that is sent, or its text; None is the arrays' dtype. Blocks of formats with shared scales lie
            along the axes of a message. Such numbers, and those of tables, are sent, and their result is sent again, as
            with a scale. They count as bytes where messages are cut.
        order: the order of additions.
        accumulator: an `Accumulator` of number, chunk, rounding, random_bits, tree and inner; None rounds each sum to
            the wire, as it rounds.
        scale: a `WireScale` or its text; None sends numbers as they are. With a scale, blocks or a table a sum has an
            accumulator, and `divide` is None or "after".
        divide: None sums. For the mean, "before" divides each term and rounds it to the wire; "premultiply" multiplies
            each by 1 / N, rounded to the wire, and rounds the product to it; "after" divides the total, which the
            accumulator rounds; "split" divides each term by a power of two p, doubled from 1 while it divides N and is
            below N / p, and the total by N / p.
        rounding: the wire's rounding.
        start: "first" starts at the first term, and keeps -0 where all terms are -0; "zero" starts at +0.
        flush: True takes sums and terms below 2^-126 in magnitude as zeros of their signs.
        inner: the sum within a node, a `Collective` or its text; None has one rank a node.
        inner_ranks: the ranks of a node, from 2; 1 without `inner`.
        aggregation: the steps that "nccl_pat" sends together, a power of two of at most P / 2; 1 in other orders. NCCL
            chooses more for small messages.

    Attributes:
        text: the text form, which `parse` reads.

    Raises:
        ValueError: if arguments contradict each other.

    Example:
        >>> Collective("bfloat16", "nccl_ring").text
        'collective(wire=bfloat16,order=nccl_ring)'
        >>> Collective("bfloat16", accumulator="accumulator(float32,chunk=1)", divide="after").stochastic
        False
        >>> Collective(inner="collective(order=nccl_tree)", inner_ranks=8).text
        'collective(inner=collective(order=nccl_tree),inner_ranks=8)'
    """

    wire: Number | None = None
    order: str = ASCENDING
    accumulator: Accumulator | None = None
    scale: WireScale | None = None
    divide: str | None = None
    rounding: Rounding = Rounding.NEAREST
    start: str = FIRST
    flush: bool = False
    inner: Collective | None = None
    inner_ranks: int = 1
    aggregation: int = 1
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            wire: Number | str | None = None,
            order: Literal[
                "ascending", "own_first", "gloo_ring", "nccl_ring", "nccl_tree", "nccl_pat", "none"
            ] = ASCENDING,
            accumulator: AccumulatorLike = None,
            scale: WireScale | str | None = None,
            divide: Literal["before", "premultiply", "after", "split"] | None = None,
            rounding: RoundingLike = Rounding.NEAREST,
            start: Literal["first", "zero"] = FIRST,
            flush: bool = False,
            inner: Collective | str | None = None,
            inner_ranks: int = 1,
            aggregation: int = 1,
        ) -> None: ...

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        check_choice("order", self.order, ORDERS)
        check_choice("start", self.start, (FIRST, ZERO))
        check_flag("flush", self.flush)
        if self.divide is not None:
            check_choice("divide", self.divide, DIVISIONS)
        self._set(rounding=check_rounding(self.rounding))
        if self.wire is not None:
            self._set(wire=_check_wire(self.wire))
        if self.accumulator is not None:
            self._set(accumulator=_check_sum(check_accumulator(self.accumulator)))
        if self.scale is not None:
            self._set(scale=check_scale(self.scale, self.wire))
        if self.grouped:
            self._check_grouped()
        if self.order in TREES:
            self._check_tree()
        self._check_aggregation()
        self._check_levels()
        self._set(text=write(self))

    def _check_grouped(self) -> None:
        """Scaled numbers are not added as such, and quotients of terms would need scales of their own."""
        what = f"scale={self.scale.text}" if self.scale is not None else f"wire={self.wire}"
        if self.accumulator is None and self.order != NONE:
            raise ValueError(
                f"accumulator=None with {what}; allowed is an accumulator, such as 'accumulator(float32,chunk=1)', or "
                "order='none'"
            )
        if self.divide not in (None, AFTER):
            raise ValueError(f"divide={self.divide} with {what}; allowed are None and after")

    def _check_tree(self) -> None:
        """A tree adds two numbers at each hop, and has no place for a sum's start."""
        if self.accumulator is not None and not self.accumulator._sequential:
            raise ValueError(f"accumulator={self.accumulator.text} with order={self.order}; {_HOP}")
        if self.start != FIRST:
            raise ValueError(f"start={self.start} with order={self.order}; allowed is first")

    def _check_aggregation(self) -> None:
        """Only PAT sends steps together, by doubling their number."""
        self._set(aggregation=check_size("aggregation", self.aggregation))
        if self.aggregation & (self.aggregation - 1) or (self.aggregation > 1 and self.order != NCCL_PAT):
            allowed = "a power of two" if self.order == NCCL_PAT else "1"
            raise ValueError(f"aggregation={self.aggregation} with order={self.order}; allowed is {allowed}")

    def _check_levels(self) -> None:
        """A level has ranks, and ranks a level."""
        if isinstance(self.inner, str):
            self._set(inner=parse_argument(self.inner, "inner"))
        if self.inner is not None and not isinstance(self.inner, Collective):
            raise TypeError(f"inner={quoted(self.inner)}; allowed are a Collective, its text, and None")
        check_int("inner_ranks", self.inner_ranks, 1)
        if (self.inner is None) != (self.inner_ranks == 1):
            allowed = "1 without inner" if self.inner is None else "at least 2 with inner"
            raise ValueError(f"inner_ranks={self.inner_ranks}; allowed is {allowed}")
        if self.levels > _MOST_LEVELS:
            raise ValueError(f"inner has {self.levels - 1} levels; allowed are {_MOST_LEVELS - 1}")

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def levels(self) -> int:
        """The number of sums inside each other; 1 without nodes."""
        return 1 if self.inner is None else 1 + self.inner.levels

    @property
    def grouped(self) -> bool:
        """True if numbers on the wire share scales, or are those of a table, so that no hop rounds to it."""
        return self.scale is not None or isinstance(self.wire, BlockNumber | Table)

    @property
    def stochastic(self) -> bool:
        """True if a call needs a key."""
        parts = self.rounding, self.accumulator, self.inner
        return any(part is not None and part.stochastic for part in parts)

    def on(self, dtype: str) -> Collective:
        """The same law with nothing left open, for arrays of a dtype.

        Args:
            dtype: its name, such as "bfloat16".

        Example:
            >>> Collective(order="gloo_ring").on("float16").text
            'collective(wire=float16,order=gloo_ring,accumulator=accumulator(float16,chunk=1))'
        """
        wire = check_number(dtype, "dtype") if self.wire is None else self.wire
        hop = self.accumulator
        if hop is None:
            hop = Accumulator(chunk=1) if self.grouped else Accumulator(wire, chunk=1, rounding=self.rounding)
        inner = None if self.inner is None else self.inner.on(dtype)
        return replace(self, wire=wire, accumulator=hop, inner=inner)


def _check_wire(wire: Any) -> Number:
    """A format that numbers are sent in, without a scale that follows from earlier ones."""
    number = check_target(wire, "wire")
    if is_delayed(number):
        raise ValueError(f"wire={quoted(number.text)}; allowed are formats without history")
    return number if isinstance(number, BlockNumber | Table) else check_scalar("wire", number)


def _check_sum(accumulator: Accumulator) -> Accumulator:
    """An accumulator that adds numbers, and not products."""
    one: Accumulator | None = accumulator
    while one is not None:
        if one.design is not None or one.product is not None or one.fraction_bits is not None or one.order:
            raise ValueError(
                f"accumulator={quoted(accumulator.text)}; allowed are accumulators of number, chunk, rounding, "
                "random_bits, tree and inner"
            )
        one = one.inner
    return accumulator


_PARAMETERS = {
    "wire": optional_number,
    "order": choice(ORDERS),
    "accumulator": lambda reader: reader.registered("accumulator"),
    "scale": lambda reader: reader.registered("wire_scale"),
    "divide": choice(DIVISIONS),
    "rounding": choice(tuple(MODES)),
    "start": choice((FIRST, ZERO)),
    "flush": Reader.flag,
    "inner": lambda reader: reader.registered("collective"),
    "inner_ranks": Reader.integer,
    "aggregation": Reader.integer,
}
register("collective", Kind(Collective, _PARAMETERS, 0, 0, 0))
