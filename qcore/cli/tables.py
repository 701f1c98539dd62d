"""Formats and their values as tables, for a terminal (with rich) and for a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from qcore.arguments import quoted
from qcore.arrays import decode, encode, quantize
from qcore.cli.properties import Dyadic, Properties, properties, why_no_codes
from qcore.formats.names import NAMED
from qcore.formats.number import check_number
from qcore.law.rounding import Rounding
from qcore.linalg.designs import DESIGNS, nearest_designs

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("name", "bits", "exp, man", "bias", "max", "min normal", "min subnormal", "specials", "overflow", "source")
LISTED_BITS = 8  # the widest formats whose values are all listed


def row(name: str) -> tuple[str, ...]:
    """A named format's cells in the order of `COLUMNS`."""
    known = properties(NAMED[name][0])
    uneven = known.lowest.count < 0 and known.lowest.count != -known.largest.count
    return (
        name,
        str(known.bits),
        known.split,
        "-" if known.bias is None else str(known.bias),
        str(known.largest),
        known.min_normal.exact if known.min_normal else "-",
        known.min_subnormal.exact if known.min_subnormal else "-",
        ", ".join((*known.specials, *([f"min {known.lowest}"] if uneven else []))) or "-",
        known.overflow,
        NAMED[name][1],
    )


class Column(NamedTuple):
    """A column of a table: where a table is wider than the terminal, `least` is the width to which its cells wrap."""

    name: str
    least: int | None = None  # None: its cells never wrap
    justify: Literal["left", "right"] = "left"


def print_list(names: Sequence[str]) -> None:
    """Prints a row of properties for each name."""
    wrapped = {"specials": 7, "source": 20}
    columns = [
        Column(
            name.replace(" ", "\n", 1),
            wrapped.get(name),
            "right" if name in ("bits", "bias", "max") or name.startswith("min") else "left",
        )
        for name in COLUMNS
    ]
    _print_rows(_console(), columns, [row(name) for name in names])


# What a narrow terminal has no room for comes last; a design's name says its operands as well.
DESIGN_COLUMNS = (
    Column("design"),
    Column("law", 9),
    Column("bits", justify="right"),
    Column("step", justify="right"),
    Column("sums"),
    Column("operands", 16),
    Column("evidence", 20),
    Column("NaN"),
    Column("source", 20),
)


def print_designs(prefix: str) -> None:
    """Prints a row for each matrix instruction whose name begins with a prefix; raises ValueError if there is none."""
    chosen = [design for design in DESIGNS.values() if design.name.startswith(prefix)]
    if not chosen:
        raise ValueError(f"NAME={quoted(prefix)}; {nearest_designs(prefix)}")
    rows = []
    for one in chosen:
        law = one.law + (", flushes subnormals" if one.flushes else "")
        bits = str(one.fraction_bits) if one.fraction_bits else "-"
        rows.append(
            (one.name, law, bits, str(one.step), one.number, one.text, one.evidence, f"{one.nan:08x}", one.source)
        )
    _print_rows(_console(), DESIGN_COLUMNS, rows)


def print_format(text: str) -> None:
    """Prints the properties of a format, and its values."""
    from rich.markup import escape
    from rich.table import Table

    number = check_number(text, "format")
    console, known = _console(), properties(number)
    console.print(f"[bold]{number.text}[/]: {escape(repr(number))}", highlight=False)
    lines = Table.grid(padding=(0, 1))
    for name, value in _properties_lines(known, dict(NAMED.values()).get(number, "")):
        lines.add_row(f"  {name:13}", escape(value))
    console.print(lines, highlight=False)
    console.print()
    if reason := why_no_codes(known.number):
        console.print(f"  no list of values: {reason}", highlight=False, markup=False)
        return
    if known.bits <= LISTED_BITS:
        _print_all(console, known)
    else:
        _print_special_values(console, known)


def _properties_lines(known: Properties, defined: str) -> Iterator[tuple[str, str]]:
    def both(number: Dyadic) -> str:
        return str(number) if str(number) == number.exact else f"{number} = {number.exact}"

    if defined:
        yield "source", defined
    parts = " + ".join(str(width) for width in known.fields)
    yield "bits", f"{known.bits}" + (f" = {parts}" if len(known.fields) > 1 else "")
    if known.bias is not None:
        yield "bias", str(known.bias)
    for name in ("largest", "lowest", "smallest", "min_normal", "min_subnormal"):
        number = getattr(known, name)
        yield name.replace("_", " "), "none" if number is None else both(number)
    yield "specials", ", ".join(known.specials) or "none"
    yield "overflow", known.overflow


def _print_all(console: Console, known: Properties) -> None:
    """Prints all codes, in columns that fill the terminal; in a pipe in one column, for searches by line."""
    codes = np.arange(1 << known.bits)
    cells = [_cells(known, int(code), float(value)) for code, value in zip(codes, _decode(known, codes), strict=True)]
    room = console.width // (sum(max(map(len, column)) for column in zip(*cells, strict=True)) + 8)
    groups = max(min(room, len(cells) // 8), 1) if console.is_terminal else 1
    height = -(-len(cells) // groups)
    columns = [Column(name) for name in ("code", "binary", "value", "exact")] * groups
    _print_rows(
        console, columns, [[cell for cells_ in cells[line::height] for cell in cells_] for line in range(height)]
    )


def _print_special_values(console: Console, known: Properties) -> None:
    columns = Column("which", 10), Column("code"), Column("binary", 16), Column("value"), Column("exact", 12)
    rows = [(", ".join(names), *_cells(known, code, value)) for code, (names, value) in special_values(known).items()]
    _print_rows(console, columns, rows)


def special_values(known: Properties) -> dict[int, tuple[list[str], float]]:
    """The codes that show most of a format: for each code its names and its number."""

    def of(number: Dyadic | None) -> float:
        return math.nan if number is None else float(number)

    below_normal = quantize(np.nextafter([of(known.min_normal)], 0), known.number, "down")[0]
    around_one = [
        quantize(np.nextafter([1.0], to), known.number, mode)[0] for to, mode in ((0, Rounding.DOWN), (2, Rounding.UP))
    ]
    wanted = {
        "zero": 0.0,
        "smallest": of(known.smallest),
        "largest subnormal": below_normal if known.min_subnormal else math.nan,
        "smallest normal": of(known.min_normal),
        "below one": around_one[0],
        "one": 1.0,
        "above one": around_one[1],
        "largest": of(known.largest),
        "inf": math.inf,
        "NaN": math.nan,
        "-0": -0.0,
        "minus smallest": -of(known.smallest),
        "minus one": -1.0,
        "lowest": of(known.lowest),
        "-inf": -math.inf,
    }
    values = np.array(list(wanted.values()))
    codes: Any = encode(values, known.number)
    found: dict[int, tuple[list[str], float]] = {}
    for name, value, code, number in zip(wanted, values, codes, _decode(known, codes), strict=True):
        same = value == number and math.copysign(1, value) == math.copysign(1, number)
        if same or (name == "NaN" and math.isnan(number)):
            found.setdefault(int(code), ([], float(number)))[0].append(name)
    return found


def _decode(known: Properties, codes: np.ndarray) -> np.ndarray:
    return decode(codes, known.number, np.float64)


def _cells(known: Properties, code: int, value: float) -> tuple[str, str, str, str]:
    """A code in hexadecimal and, part by part, in binary, and its value as a decimal and exactly."""
    digits, parts, start = f"{code:0{known.bits}b}", [], 0
    for width in known.fields:
        parts.append(digits[start : start + width])
        start += width
    exact = _dyadic(value).exact if math.isfinite(value) and value else ""
    text = "NaN" if math.isnan(value) else f"{value:.9g}"
    return f"0x{code:0{-(-known.bits // 4)}x}", " ".join(part for part in parts if part), text, exact


def _dyadic(value: float) -> Dyadic:
    count, denominator = value.as_integer_ratio()
    return Dyadic(count, 1 - denominator.bit_length())


def _console() -> Console:
    """Standard output: as wide as its terminal, in a pipe 80 columns, or what COLUMNS says."""
    from rich.console import Console

    return Console()


def _print_rows(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table that fits the console: cells wrap where they may; the last columns are left out and named."""
    from rich.box import SIMPLE
    from rich.table import Table

    headings = [column.name.split("\n") for column in columns]
    widths = [max(map(len, (*cells, *heading))) for heading, *cells in zip(headings, *rows, strict=True)]
    least = [
        width if column.least is None else min(column.least, width)
        for column, width in zip(columns, widths, strict=True)
    ]
    shown = len(columns)
    while shown > 1 and sum(least[:shown]) + 2 * shown > console.width:
        shown -= 1
    room = console.width - sum(least[:shown]) - 2 * shown
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for column, smallest, width in zip(columns[:shown], least, widths, strict=False):
        wider = min(width - smallest, max(room, 0))
        room -= wider
        table.add_column(column.name, justify=column.justify, width=smallest + wider, overflow="fold")
    for cells in rows:
        table.add_row(*cells[:shown])
    console.print(table)
    if missing := columns[shown:]:
        names = ", ".join(column.name.replace("\n", " ") for column in missing)
        enough = sum(least) + 2 * len(columns)
        console.print(f"No room for: {names}. COLUMNS={enough} shows all.", highlight=False)
