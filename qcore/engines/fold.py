"""What decides the bits of attention in a program that trains or serves: an `Attention`."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from qcore.arguments import check_choice, check_flag, check_int, check_size, quoted
from qcore.formats.number import Number, call_text
from qcore.formats.text import Kind, Reader, choice, register, write
from qcore.linalg.accumulator import (
    EXACT,
    Accumulator,
    AccumulatorLike,
    check_accumulator,
    check_scalar,
    optional_number,
    whole_numbers,
)
from qcore.linalg.product import check_products

SCORES, ROUNDED, EXPONENT = "scores", "rounded", "exponent"
SCALES = SCORES, ROUNDED, EXPONENT
TREE, THREADS, EXACT_SUM = "tree", "threads", "exact"
ROW_SUMS = TREE, THREADS, EXACT_SUM
DIVIDE, RECIPROCAL, WEIGHTS = "divide", "reciprocal", "weights"
ENDS = DIVIDE, RECIPROCAL, WEIGHTS
FIRST, LAST = "first", "last"
SINKS = FIRST, LAST
TANH, EXPONENTIALS = "tanh", "exponentials"
SOFTCAPS = TANH, EXPONENTIALS
AT_KEY, AT_TILE = "key", "tile"
WINDOWS = AT_KEY, AT_TILE


@dataclass(frozen=True, repr=False)
class Attention:
    """The law of attention, softmax(scale Q K^T) V, of one engine: a fold over blocks of keys.

    For each row of queries, with m = -inf, l = 0 and O = 0 before the first block, and numbers of float32:

        S = Q K^T                              by `accumulator`, of numbers in `operand`
        m' = max(m, max S),  a = exp(m - m')   masked scores are -inf
        P = 2^offset exp(S - m')               scores are scaled as `scale` says
        l = l a + sum of P                     in the order of `row_sum`
        O = O a + P V                          by `accumulator`, of P in `p` and V in `operand`
        result = O / l                         as `end` says, rounded to `output`

    A block is a tile of keys, which begins at a multiple of its length. A block whose scores are all masked changes
    nothing. So a causal pass over many queries is, for each row, the fold over the keys that the row sees; with
    end="weights" one block has all keys.

    A soft cap c makes of scaled scores S the scores c tanh(S / c). With scale="exponent" these are tanh(S (scale / c)),
    and c takes the place of the scale; with scale="rounded" quotient, tanh and product are rounded to `operand`.

    A sink is one more score of a head, which has no value. With end="weights" it is one more score of each row, the
    last one; with scale="rounded" it, and the differences S - m, are rounded to `operand`.

    A window leaves each query the last so many keys. With end="weights" the other keys are masked. Otherwise queries *
    (heads / key heads) are taken in blocks of rows, and each such block begins with the first key that its first query
    sees. A later query of the block may have tiles without a key then: `window_start` says what follows.

    Args:
        accumulator: an `Accumulator`, its text, or the name of a chip's instruction: of both products. None is the
            exact sum, rounded once to float32.
        operand: the format of Q, K and V in the products, or its text; None does not round.
        p: the format of P in its product with V; None does not round.
        output: the format of the result; None is float32.
        tiles: the lengths of tiles, as triples (largest head size, tile of few queries, tile of many), ascending; () is
            one block of all keys.
        few: a tile of few queries is taken for up to this number of queries * (heads / key heads).
        descending: True takes the last block first.
        splits: the number of parts in which the blocks of a row are cut, each folded alone. Parts are merged by their
            log-sum-exp, in ascending order. None is one part.
        split_size: the number of keys of each part, which then begins at a multiple of it; None is one part.
        scale: where the scale enters. "scores": exp(scale S - m). "rounded": S and scale S are rounded to `operand`.
            "exponent": exp2(S c - m c) with c = scale log2(e), the first product and the difference rounded once.
        offset: the power of two by which P is larger.
        levels: 1 has the accumulators of P V start at O a; 2 has them start at 0, and adds the product to O a.
        row_sum: the order in which P is summed. "threads": four partial sums, each of two neighbours in every eight
            columns. "tree": neighbours in pairs. "exact": as integers in units of 2^-42, in any order.
        end: "divide" is O / l, "reciprocal" O (1 / l), "weights" divides P by l before the product with V.
        sink: how sinks enter tiles. "first": m and l begin as the sink and 1. "last": 2^offset exp(sink - m) is added
            to l at the end, with sinks rounded to bfloat16. None: they raise.
        softcap: how tiles compute tanh. "tanh" rounds it once; "exponentials" is c (e - e') / (e + e') with the
            exponentials of S / c and -S / c, which is NaN for |S / c| above 88. None: soft caps raise.
        window_tiles: of tiles with a window, triples (largest head size, tile, rows), ascending; () has windows raise.
            They are not taken where the window has all keys.
        window_start: where tiles begin. "key": with the first key that the first query of the rows sees. "tile": with
            the multiple of a tile before it, and a tile in which a row sees no key leaves m = 0.

    Attributes:
        text: the text form, which `qcore.parse` reads.

    Raises:
        ValueError: if an argument is out of range, or contradicts another.

    Example:
        >>> Attention("hopper.wgmma.bf16", "bfloat16", "bfloat16", tiles=(256, 32, 32)).tile(128, queries=1)
        32
        >>> Attention(row_sum="exact", end="weights").text
        'attention(row_sum=exact,end=weights)'
    """

    accumulator: Accumulator = EXACT
    operand: Number | None = None
    p: Number | None = None
    output: Number | None = None
    tiles: tuple[int, ...] = ()
    few: int = 64
    descending: bool = False
    splits: int | None = None
    split_size: int | None = None
    scale: str = SCORES
    offset: int = 0
    levels: int = 1
    row_sum: str = TREE
    end: str = DIVIDE
    sink: str | None = None
    softcap: str | None = None
    window_tiles: tuple[int, ...] = ()
    window_start: str = AT_KEY
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            accumulator: AccumulatorLike = EXACT,
            operand: Number | str | None = None,
            p: Number | str | None = None,
            output: Number | str | None = None,
            tiles: Sequence[int] = (),
            few: int = 64,
            descending: bool = False,
            splits: int | None = None,
            split_size: int | None = None,
            scale: Literal["scores", "rounded", "exponent"] = SCORES,
            offset: int = 0,
            levels: int = 1,
            row_sum: Literal["tree", "threads", "exact"] = TREE,
            end: Literal["divide", "reciprocal", "weights"] = DIVIDE,
            sink: Literal["first", "last"] | None = None,
            softcap: Literal["tanh", "exponentials"] | None = None,
            window_tiles: Sequence[int] = (),
            window_start: Literal["key", "tile"] = AT_KEY,
        ) -> None: ...

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        self._set(accumulator=check_accumulator(self.accumulator))
        for name in ("tiles", "window_tiles"):
            self._set(**{name: _check_tiles(name, getattr(self, name))})
        for name in ("operand", "p", "output"):
            if getattr(self, name) is not None:
                self._set(**{name: check_scalar(name, getattr(self, name))})
        self._set(few=check_size("few", self.few, 0), offset=check_int("offset", self.offset, 0, 64))
        self._set(levels=check_int("levels", self.levels, 1, 2))
        check_flag("descending", self.descending)
        check_choice("scale", self.scale, SCALES)
        check_choice("row_sum", self.row_sum, ROW_SUMS)
        check_choice("end", self.end, ENDS)
        check_choice("window_start", self.window_start, WINDOWS)
        for name, words in (("sink", SINKS), ("softcap", SOFTCAPS)):
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), words)
        for name in ("splits", "split_size"):
            if getattr(self, name) is not None:
                self._set(**{name: check_size(name, getattr(self, name))})
        if self.accumulator.stochastic:
            raise ValueError(f"accumulator={quoted(self.accumulator.text)} rounds stochastically; allowed are others")
        self._check_pairs()
        self._set(text=write(self))

    def _check_pairs(self) -> None:
        """Raises for arguments that contradict each other."""
        if self.splits is not None and self.split_size is not None:
            raise ValueError(f"splits={self.splits} with split_size={self.split_size}; allowed is one of them")
        for first in (self.operand, self.p):  # raises for operands that the instruction does not have
            check_products((first, self.operand), self.accumulator, None, None, ("grad_a", "grad_b"))
        if self.scale == ROUNDED and self.operand is None:
            raise ValueError("scale=rounded with operand=None; allowed is a format that scores are rounded to")
        if self.scale == EXPONENT and self.softcap == EXPONENTIALS:
            raise ValueError("softcap=exponentials with scale=exponent; allowed there is tanh")
        if self.sink == FIRST and self.row_sum == THREADS:
            raise ValueError("sink=first with row_sum=threads, whose sums are four; allowed there is sink=last")
        if self.end != WEIGHTS:
            return
        for name in ("tiles", "splits", "split_size", "offset", "descending", "sink", "softcap", "window_tiles"):
            if getattr(self, name):
                raise ValueError(f"{name}={quoted(getattr(self, name))} with end=weights; allowed is one block of keys")
        if self.levels != 1 or self.scale == EXPONENT or self.row_sum == THREADS:
            raise ValueError(
                "end=weights with levels=2, scale=exponent or row_sum=threads; allowed are levels=1, "
                "scale=scores or rounded, and row_sum=tree or exact"
            )

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def tile(self, head_size: int, queries: int, group: int = 1) -> int | None:
        """The number of keys of a block; None is one block of all keys.

        Args:
            head_size: the length of a query.
            queries: the number of queries of a head: 1 in decoding.
            group: heads / key heads.

        Raises:
            ValueError: if no tile is known for a head of this size.

        Example:
            >>> law = Attention(tiles=(64, 128, 128, 128, 96, 192))
            >>> law.tile(128, queries=1), law.tile(128, queries=512)
            (96, 192)
        """
        if not self.tiles:
            return None
        few, many = _of_head("tiles", self.tiles, head_size)
        return few if queries * group <= self.few else many

    def window_tile(self, head_size: int, group: int = 1) -> tuple[int, int]:
        """The number of keys of a block with a window, and of queries that share their blocks.

        Args:
            head_size: the length of a query.
            group: heads / key heads.

        Raises:
            ValueError: if no tile is known for a head of this size, or rows end between the heads of a query.

        Example:
            >>> Attention(window_tiles=(128, 128, 192)).window_tile(64, group=2)
            (128, 96)
        """
        tile, rows = _of_head("window_tiles", self.window_tiles, head_size)
        rows = max(rows, 1 << (group - 1).bit_length())  # Triton's; FlashAttention's are more than a group
        if rows % group:
            raise ValueError(
                f"a window of an engine with tiles has {group} heads to a key head; allowed are divisors of {rows}, "
                "the rows that are computed together"
            )
        return tile, rows // group


def _of_head(name: str, triples: tuple[int, ...], head_size: int) -> tuple[int, int]:
    """The rest of the triple for a head of this size."""
    for most, *rest in zip(*(triples[part::3] for part in range(3)), strict=True):
        if head_size <= most:
            return rest[0], rest[1]
    raise ValueError(
        f"head_size={head_size}; allowed are heads of at most {triples[-3]}: {name} has no length for larger"
    )


def _check_tiles(name: str, tiles: Any) -> tuple[int, ...]:
    """Triples of sizes, the first of each ascending."""
    if not isinstance(tiles, tuple | list) or len(tiles) % 3:
        words = "tile of few, tile of many" if name == "tiles" else "tile, rows"
        raise ValueError(f"{name}={quoted(tiles)}; allowed are triples (largest head size, {words})")
    found = tuple(check_size(f"{name}[{place}]", size) for place, size in enumerate(tiles))
    heads = found[::3]
    if list(heads) != sorted(set(heads)):
        raise ValueError(f"{name}={quoted(tiles)}; allowed are triples whose head sizes ascend")
    return found


_PARAMETERS = {
    "accumulator": lambda reader: reader.registered("accumulator"),
    "operand": optional_number,
    "p": optional_number,
    "output": optional_number,
    "tiles": whole_numbers,
    "few": Reader.integer,
    "descending": Reader.flag,
    "splits": Reader.integer,
    "split_size": Reader.integer,
    "scale": choice(SCALES),
    "offset": Reader.integer,
    "levels": Reader.integer,
    "row_sum": choice(ROW_SUMS),
    "end": choice(ENDS),
    "sink": choice(SINKS),
    "softcap": choice(SOFTCAPS),
    "window_tiles": whole_numbers,
    "window_start": choice(WINDOWS),
}
register("attention", Kind(Attention, _PARAMETERS, 0, 0, 0))
