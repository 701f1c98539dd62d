"""Programs: the rounding, encoding or decoding that all formats of one kind share, as the unit of compilation.

Formats of one kind differ only in constants, so backends trace or compile one program for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qcore.law.carrier import Carrier, KeepLanes
from qcore.law.codes import (
    Codes,
    FixedCodes,
    FloatCodes,
    FloatEncoding,
    NormalCodes,
    PickedCodes,
    PowerCodes,
    PowerEncoding,
    SmallCodes,
    decode,
    encode,
    wrap,
)
from qcore.law.float_scale import (
    COMPARING,
    FloatScale,
    Levels,
    Scaling,
    apply_levels,
    apply_scales,
    encoded_scales,
    float_scales,
    level_scales,
    run_levels,
    run_scaled,
    usual_scale,
    working,
)
from qcore.law.grid import Grid, round_to_grid
from qcore.law.rounding import Rounding
from qcore.law.shared_scale import KINDS as SHARED
from qcore.law.shared_scale import (
    Shared,
    block_grid,
    decode_scaled,
    rescale,
    scale_codes,
    shared_scale,
    unscale,
    usual_blocks,
    usual_to_decode,
    usual_to_unscale,
)
from qcore.law.table import BUCKETS, FEW, Gaps, Starts, Steps, TableCodes, TableEncoding, round_to_table
from qcore.law.table import encode as encode_by_table
from qcore.law.tapered import PositCodes, Taper, round_to_posit
from qcore.law.tapered import encode as encode_posit
from qcore.random.threefry import identity

Constants = tuple[int | tuple[int, ...], ...]  # of a program; those of tables are rows
KINDS: dict[str, tuple[type[Any], ...]] = {  # of programs, and the classes of their constants
    # Floats and fixed point: see `round_to_grid` for the first six.
    "grid": (Grid,),
    "overflowing": (Grid,),
    "propagating": (Grid,),
    "deep": (Grid,),
    "general": (Grid,),
    "wide": (Grid,),
    "wrap": (Grid, FixedCodes),  # a grid, then modulo its range
    "normal_wrap": (Grid, SmallCodes),  # the same if the step is a normal number of the carrier
    "posit": (Taper,),
    "wide_posit": (Taper,),  # posits that are subnormal numbers of the carrier
    "table": (Steps,),
    "table_gaps": (Gaps,),  # under stochastic rounding
    "long_table": (Starts, Steps),
    "long_table_gaps": (Starts, Gaps),
    # Blocks: scales that are powers of two, float32 numbers, and numbers of a format.
    **dict.fromkeys(SHARED, (Shared,)),
    "float_scaled": (FloatScale,),
    "levels": (Levels, Grid),
    "e2m1": (Grid,),  # elements under scales of a format
    # Formats whose law is in another room, see `qcore.formats.foreign`.
    "bytes": (),
    "nested": (),
}
CODES: dict[str, type[Any]] = {  # subclasses before their bases, since `kind_of` takes the first that fits
    "power": PowerCodes,
    "normal": NormalCodes,
    "float": FloatCodes,
    "small": SmallCodes,
    "fixed": FixedCodes,
    "posit": PositCodes,
    "table": TableCodes,
    "picked": PickedCodes,
}
WRAPPING = ("wrap", "normal_wrap")
_FLOAT_SCALES = ("levels", "float_scaled")
_LONG = ("long_table", "long_table_gaps")
_FOREIGN = ("bytes", "nested")
_ROWS = {Steps: Steps._fields, Gaps: Gaps._fields, TableCodes: ("numbers",)}  # constants of several integers
ENCODINGS = CODES | {"power": PowerEncoding, "normal": FloatEncoding, "float": FloatEncoding, "table": TableEncoding}


@dataclass(frozen=True)
class Program:
    """A rounding, with or without codes, as it is traced or compiled. Formats of one kind differ only in constants.

    Attributes:
        carrier: the layout of the input, and of results that are numbers.
        mode: the rounding mode.
        kind: which law runs, a key of `KINDS`.
        codes: the kind of the results, a key of `CODES`; "" for numbers.
        storage: the width of the integers that store the codes.
        element: the kind with which a block's elements are encoded, or rounded under float scales.
        unscaled: True if elements are so far above the carrier's smallest numbers that they can be divided by their
            block's scale before they are rounded; otherwise they are rounded first.
        entries, steps: the length of the rows of a table, and the steps of a search in a long table.
        rule: for "levels" and "float_scaled": how scales follow from largest magnitudes, see `qcore.law.float_scale`;
            for tables "unsigned_zero" if zero has one code.
        has_array_scale: for "levels": True if the array has a scale.
        scale, scale_codes, scale_storage: for "levels": the `kind`, `codes` and `storage` of the blocks' scales.
        together: for sub-blocks that are so many neighbours in a row, a power of two: their number; else 0. Kernels
            know these sub-blocks.
    """

    carrier: Carrier
    mode: Rounding
    kind: str
    codes: str = ""
    storage: int = 0
    element: str = ""
    unscaled: bool = False
    entries: int = 0
    steps: int = 0
    rule: str = ""
    has_array_scale: bool = False
    scale: str = ""
    scale_codes: str = ""
    scale_storage: int = 8
    together: int = 0

    @property
    def narrows(self) -> bool:
        """True if lanes of the carrier's own width give the same numbers, see `Carrier.narrow`."""
        others = (*WRAPPING, *_LONG, *_FLOAT_SCALES, *_FOREIGN)  # places in long tables may need more bits
        return not self.codes and self.kind not in others and not self.mode.stochastic

    @property
    def has_kernels(self) -> bool:
        """False for laws that only run operation by operation: a kernel sees one element, these read a whole block."""
        return self.kind not in _FOREIGN and self.rule not in COMPARING

    @property
    def searches(self) -> bool:
        """True for long tables, whose law reads arrays at computed indices."""
        return self.kind in _LONG or self.element in _LONG

    @property
    def shared(self) -> bool:
        """True for block formats."""
        return self.kind in SHARED or self.float_scaled or self.kind == "nested"

    @property
    def float_scaled(self) -> bool:
        """True for blocks whose law works with floats, see `qcore.law.float_scale`."""
        return self.kind in _FLOAT_SCALES

    @property
    def float_scales(self) -> bool:
        """True if the scales of blocks are floats as wide as a lane, False if they are codes."""
        return self.kind == "float_scaled"

    def count(self) -> int:
        """The number of integers of the constants."""
        return sum(max(one, 1) for one in _lengths(self._parts(), self.entries))

    def fields(self) -> list[tuple[type[Any], str]]:
        """The constants, in their order: each as a class and the name of its field."""
        return [(part, name) for part in self._parts() for name in part._fields]

    def split(self, integers: Any) -> list[Any]:
        """Splits an array or sequence of all integers into the constants, in their order."""
        return _split(_lengths(self._parts(), self.entries), integers)

    def _parts(self) -> tuple[type[Any], ...]:
        coded = (ENCODINGS[self.codes],) if self.codes else ()
        if self.element:
            coded = (*KINDS[self.element], *coded)
        if self.scale_codes:
            coded = (*coded, Grid, ENCODINGS[self.scale_codes])
        return *KINDS[self.kind], *coded

    def run(
        self,
        xp: Any,
        bits: Any,
        constants: Sequence[Any],
        axes: tuple[int, ...],
        word: Any = None,
        materialize: KeepLanes = identity,
        usual: bool = False,
        around: tuple[int, ...] = (),
        others: Sequence[Any] = (),
    ) -> Any:
        """Rounds lanes, and encodes them if the program has codes.

        Args:
            xp: the array namespace.
            bits: lanes of any shape.
            constants: the fields of the parts of this kind: ints or 0-d arrays; rows of these for tables.
            axes: the axes that lie inside blocks.
            word: see `round_to_grid`.
            materialize: an identity of lanes of one shape, which makes a compiler compute them once, not again for each
                element of a block.
            usual: True if all blocks are `usual`; such blocks take fewer operations.
            around, others: see `shared_scale`; rules that compare errors take all elements of a block as `others`.

        Returns:
            Lanes, or codes. Codes of blocks come as a tuple: codes, codes of scales (or lanes, see `float_scales`),
            and for "levels" the lane of the array's scale if there is one.
        """
        parts = _filled(self._parts(), constants)
        if isinstance(parts[0], Taper):
            wide = self.kind == "wide_posit"
            if self.codes:
                return encode_posit(xp, bits, self.carrier, self.mode, parts[0], parts[1], word, wide)
            return round_to_posit(xp, bits, self.carrier, self.mode, parts[0], word, wide)
        if isinstance(parts[0], Steps | Gaps | Starts):
            given = xp, bits, self.carrier, self.mode
            if self.codes:
                return encode_by_table(*given, parts[:-1], parts[-1], self.steps, word)
            return round_to_table(*given, parts, self.steps, word, self.rule != "unsigned_zero")
        if self.shared:
            return self._run_shared(xp, bits, parts, axes, word, materialize, usual, around, others)
        if not self.codes and self.kind not in WRAPPING:
            return round_to_grid(xp, bits, self.carrier, self.mode, parts[0], word, self.kind)
        # A wrapping format without codes rounds on a plain grid first; `wrap` then reduces modulo the range.
        operation, kind = (encode, self.kind) if self.codes else (wrap, "grid")
        return operation(xp, bits, self.carrier, self.mode, parts[0], parts[-1], word, kind)

    def usual(self, xp: Any, bits: Any, constants: Sequence[Any], axes: tuple[int, ...]) -> Any:
        """True for usual blocks: if all are usual, `run` takes fewer operations. None if the program has no usual case.

        Arguments as for `run`.
        """
        parts, carrier = _filled(self._parts(), constants), self.carrier
        if self.rule in COMPARING:
            return None
        if self.element == "e2m1":
            return usual_scale(self.scaling(xp, bits, constants, axes).full, carrier)
        if self.kind != "scaled" or self.together or (self.unscaled and self.mode.directed):
            return None
        scale, nan = shared_scale(xp, bits, carrier, parts[0], axes, self.kind)
        if self.unscaled:
            return usual_to_unscale(scale, nan, carrier, parts[0])
        largest = xp.amax(bits & carrier.magnitude_mask, axis=axes, keepdims=True)
        return usual_blocks(block_grid(xp, scale, nan, carrier, parts[0], self.kind), nan, largest)

    def _run_shared(
        self,
        xp: Any,
        bits: Any,
        parts: Sequence[Any],
        axes: tuple[int, ...],
        word: Any,
        materialize: KeepLanes,
        usual: bool,
        around: tuple[int, ...],
        others: Sequence[Any],
    ) -> Any:
        carrier = self.carrier
        if self.float_scaled:
            scaling = self._scaling(xp, bits, parts, axes, materialize, usual, others)
            return self._run_scaled(xp, bits, parts, scaling, word, materialize, usual)
        scale, nan = shared_scale(xp, bits, carrier, parts[0], axes, self.kind, around, others)
        if self.unscaled:  # the element's own law then rounds and encodes in one step
            lanes = unscale(xp, bits, scale, nan, carrier, parts[0], materialize, usual)
            codes = encode(xp, lanes, carrier, self.mode, parts[1], parts[2], word, self.element)
            return codes, scale_codes(scale, nan, carrier)
        grid, kind = block_grid(xp, scale, nan, carrier, parts[0], self.kind, materialize), SHARED[self.kind]
        if usual:  # the range is symmetric and there is no NaN, so rounding does not need these fields
            grid, kind = grid._replace(lower=0, floor=0), "grid"
        rounded = round_to_grid(xp, bits, carrier, self.mode, grid, word, kind)
        if not self.codes:
            return rounded
        (exponent,) = materialize((carrier.bias - scale,))
        unscaled = rescale(xp, rounded, exponent, carrier)  # exact, and so is the encoding
        codes = encode(xp, unscaled, carrier, Rounding.TOWARD_ZERO, parts[1], parts[2], None, self.element)
        return codes, scale_codes(scale, nan, carrier)

    def scaling(self, xp: Any, bits: Any, constants: Sequence[Any], axes: tuple[int, ...]) -> Scaling:
        """The scales of blocks with float scales; arguments as for `run`."""
        return self._scaling(xp, bits, _filled(self._parts(), constants), axes, identity, False)

    def _scaling(
        self,
        xp: Any,
        bits: Any,
        parts: Sequence[Any],
        axes: tuple[int, ...],
        materialize: KeepLanes,
        usual: bool,
        members: Sequence[Any] = (),
    ) -> Scaling:
        if self.kind == "float_scaled":
            return float_scales(xp, bits, self.carrier, self.rule, parts[0], axes, materialize)
        levels, grid = parts[:2]
        given = self.rule, levels, grid, self.scale, self.has_array_scale
        return level_scales(xp, bits, self.carrier, *given, axes, materialize, usual, members)

    def _run_scaled(
        self,
        xp: Any,
        bits: Any,
        parts: Sequence[Any],
        scaling: Scaling,
        word: Any,
        materialize: KeepLanes,
        usual: bool,
    ) -> Any:
        carrier, begin = self.carrier, len(KINDS[self.kind])
        element, coded = parts[begin : begin + len(KINDS[self.element])], parts[begin + len(KINDS[self.element]) :]
        encoding = (*coded[1:], self.scale) if self.scale_codes else ()
        if self.element == "e2m1":
            arguments = carrier, self.mode, scaling, element[0], encoding, word, materialize, usual
            return run_levels(xp, bits, *arguments)

        def rounded(lanes: Any) -> Any:
            given = xp, lanes, working(carrier), self.mode
            if isinstance(element[0], Steps | Gaps | Starts):
                if coded:
                    return encode_by_table(*given, element, coded[0], self.steps, word)
                return round_to_table(*given, element, self.steps, word)
            if coded:
                return encode(*given, element[0], coded[0], word, self.element)
            return round_to_grid(*given, element[0], word, self.element)

        found = run_scaled(xp, bits, carrier, scaling, rounded, bool(coded), materialize)
        if not self.codes:
            return found
        return found, *(encoded_scales(xp, scaling, encoding, working(carrier)) if encoding else (scaling.full,))


@dataclass(frozen=True)
class Decoding:
    """A decoding, as it is traced or compiled. Formats of one kind differ only in constants.

    Attributes:
        carrier: the layout of the result.
        codes: the kind of the codes, a key of `CODES`.
        scales: "powers" for scales 2^k, "floats" for float32 scales, "levels" for numbers of a format, "" for none.
        entries: the length of the rows of a table.
        has_array_scale: True if the array has a scale.
        scale_codes, scale_storage: for "levels": the kind of the scales' codes, and the width of their integers.
    """

    carrier: Carrier
    codes: str
    scales: str = ""
    entries: int = 0
    has_array_scale: bool = False
    scale_codes: str = ""
    scale_storage: int = 8

    @property
    def searches(self) -> bool:
        """True for long tables, whose law reads arrays at computed indices."""
        return self.entries > FEW

    def count(self) -> int:
        """The number of integers of the constants."""
        return sum(max(one, 1) for one in _lengths(self._parts(), self.entries))

    def fields(self) -> list[tuple[type[Any], str]]:
        """The constants, in their order: each as a class and the name of its field."""
        return [(part, name) for part in self._parts() for name in part._fields]

    def split(self, integers: Any) -> list[Any]:
        """Splits an array or sequence of all integers into the constants, in their order."""
        return _split(_lengths(self._parts(), self.entries), integers)

    def _parts(self) -> tuple[type[Any], ...]:
        return CODES[self.codes], *([CODES[self.scale_codes]] if self.scale_codes else [])

    def usual(self, constants: Sequence[Any], scales: Any) -> Any:
        """True for usual scales: if all are usual, `run` takes fewer operations. None if there is no usual case."""
        return (
            usual_to_decode(scales, self.carrier, *_filled(self._parts(), constants))
            if self.scales == "powers"
            else None
        )

    def run(
        self,
        xp: Any,
        codes: Any,
        constants: Sequence[Any],
        scales: Any = None,
        scale: Any = None,
        usual: bool = False,
    ) -> Any:
        """The lanes of the numbers.

        Args:
            xp: the array namespace.
            codes: lanes of the codes; bits above a code's highest are ignored.
            constants: the fields of the codes' kind, ints or 0-d arrays.
            scales: the blocks' scales, as lanes of codes or of floats; they broadcast with `codes`.
            scale: the lane of the array's scale.
            usual: True if all blocks' scales are `usual`.
        """
        carrier, (kind, *others) = self.carrier, _filled(self._parts(), constants)
        if self.scales == "levels":
            scales = decode(xp, scales, working(carrier), others[0])
        if self.codes == "picked":  # products with the few elements are computed once a block, and picked by code
            return apply_levels(xp, codes, scales, scale, carrier)
        if self.scales in ("levels", "floats"):
            return apply_scales(xp, decode(xp, codes, working(carrier), kind), scales, scale, carrier)
        if self.scales:
            return decode_scaled(xp, codes, scales, carrier, kind, usual)
        return decode(xp, codes, carrier, kind)


def flat(constants: Sequence[Any]) -> list[int]:
    """The integers of all constants in their order: the inverse of `Program.split`."""
    return [one for item in constants for one in (item if isinstance(item, tuple) else (item,))]


def _lengths(parts: Sequence[type[Any]], entries: int) -> list[int]:
    """For each constant the length of its row; 0 for an integer."""
    fields = [(part, name) for part in parts for name in part._fields]
    return [BUCKETS if part is Starts else entries if name in _ROWS.get(part, ()) else 0 for part, name in fields]


def _split(lengths: Sequence[int], integers: Any) -> list[Any]:
    found, start = [], 0
    for length in lengths:
        found.append(integers[start : start + length] if length else integers[start])
        start += max(length, 1)
    return found


def _filled(parts: Sequence[type[Any]], constants: Sequence[Any]) -> list[Any]:
    """Distributes the constants over the fields of these types."""
    remaining = iter(constants)
    return [part(*(next(remaining) for _ in part._fields)) for part in parts]


def entries_of(codes: Codes) -> int:
    """The length of the row of a table's codes; 0 for other codes."""
    return len(codes.numbers) if isinstance(codes, TableCodes) else 0


def kind_of(codes: Codes) -> str:
    """The key of `CODES` for a format's codes."""
    return next(kind for kind, parts in CODES.items() if isinstance(codes, parts))
