"""Formats and their values as tables, for a terminal (with rich) and for a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qcore.arrays import decode, encode, quantize
from qcore.cli.properties import Dyadic, Properties, properties, why_no_codes
from qcore.formats.names import NAMED
from qcore.formats.number import check_number
from qcore.linalg.designs import DESIGNS, nearest_designs

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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


def print_list(names: Sequence[str]) -> None:
    """Prints a row of properties for each name."""
    console, table, rows = _console(), _table(), [row(name) for name in names]
    used = 0
    for name, *cells in zip(COLUMNS, *rows, strict=True):
        heading = name.replace(" ", "\n", 1)
        width = max(map(len, (*cells, *heading.split("\n"))))
        if name == "specials" and console.is_terminal:
            width = 13  # in two lines, sometimes
        if name == "source" and console.is_terminal:
            width = max(console.width - used, 8)
        used += width + 2
        right = name in ("bits", "bias", "max") or name.startswith("min")
        justify = "right" if right else "left"
        table.add_column(heading, justify=justify, width=width, no_wrap=name != "specials", overflow="ellipsis")
    for cells in rows:
        table.add_row(*cells)
    _print(console, table)


DESIGN_COLUMNS = ("design", "operands", "sums", "step", "law", "bits", "NaN", "source")


def print_designs(prefix: str) -> None:
    """Prints a row for each matrix instruction whose name begins with a prefix; raises ValueError if there is none."""
    chosen = [design for design in DESIGNS.values() if design.name.startswith(prefix)]
    if not chosen:
        raise ValueError(nearest_designs(prefix))
    console, table = _console(), _table(*DESIGN_COLUMNS)
    for one in chosen:
        law = one.law + (", flushes subnormals" if one.flushes else "")
        bits = str(one.fraction_bits) if one.fraction_bits else "-"
        table.add_row(one.name, one.text, one.number, str(one.step), law, bits, f"{one.nan:08x}", one.source)
    _print(console, table)


def print_format(text: str) -> None:
    """Prints the properties of a format, and its values."""
    from rich.markup import escape

    number = check_number(text, "format")
    console, known = _console(), properties(number)
    console.print(f"[bold]{number.text}[/]: {escape(repr(number))}", highlight=False, soft_wrap=True)
    for name, value in _properties_lines(known, dict(NAMED.values()).get(number, "")):
        console.print(f"  {name:13} {value}", highlight=False, soft_wrap=True)
    console.print()
    if reason := why_no_codes(known.number):
        console.print(f"  no list of values: {reason}", highlight=False, soft_wrap=True, markup=False)
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
    table = _table(*("code", "binary", "value", "exact") * groups)
    for line in range(height):
        table.add_row(*(cell for cells_ in cells[line::height] for cell in cells_))
    _print(console, table)


def _print_special_values(console: Console, known: Properties) -> None:
    table = _table("which", "code", "binary", "value", "exact")
    for code, (names, value) in special_values(known).items():
        table.add_row(", ".join(names), *_cells(known, code, value))
    _print(console, table)


def special_values(known: Properties) -> dict[int, tuple[list[str], float]]:
    """The codes that show most of a format: for each code its names and its number."""

    def of(number: Dyadic | None) -> float:
        return math.nan if number is None else float(number)

    below_normal = quantize(np.nextafter([of(known.min_normal)], 0), known.number, "down")[0]
    around_one = [quantize(np.nextafter([1.0], to), known.number, mode)[0] for to, mode in ((0, "down"), (2, "up"))]
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
    codes = encode(values, known.number)
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


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    return Table(*columns, box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)


def _console() -> Console:
    from rich.console import Console

    return Console()


def _print(console: Console, table: Table) -> None:
    """Prints a table, in a pipe as wide as it needs to be."""
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.print(table)
