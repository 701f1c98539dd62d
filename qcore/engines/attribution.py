"""Which fields of two engines make them differ: one factor is exchanged at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from qcore.engines.engine import Engine
from qcore.pictures import BLUE, FAINT, SMALL, check_path, picture

# The fields of attention that make one factor.
_GROUPS = {
    "products": ("accumulator", "operand", "levels"),
    "P": ("p", "offset"),
    "tiles": ("tiles", "few", "window_tiles", "window_start"),
    "order": ("descending", "splits", "split_size", "row_sum", "scale", "end", "sink", "softcap"),
    "output": ("output",),
}
DECODING = "decoding"  # a token at a time, instead of one pass
FLOOR = "floor"


class Factor(NamedTuple):
    """What one difference between two engines does alone.

    Attributes:
        name: the field of the engines; "attention: ..." are some of attention's, "attention" is all; "decoding" is a
            token at a time instead of one pass. "floor" is no difference: one number of each embedding moves by one
            unit of the activations' format, bfloat16 if there is none.
        rms: the root of the mean square of d.
        kl: the mean of the exact divergence, in nats.
        first: the first position that differs, counted from 1; None if none does.

    Example:
        >>> Factor("cache", 0.1, 0.01, 1).name
        'cache'
    """

    name: str
    rms: float
    kl: float
    first: int | None


def exchanged(engine: Engine, other: Engine) -> Iterator[tuple[str, Engine]]:
    """The engine with each factor of another one that differs. Fields of attention that contradict others go together.

    Args:
        engine: the more precise one.
        other: the other one.
    """
    names = [one.name for one in fields(engine) if one.init and one.name not in ("attention", "products", "on")]
    mine, others = engine.attention, other.attention
    changes = {
        name: {field: getattr(others, field) for field in group if getattr(mine, field) != getattr(others, field)}
        for name, group in _GROUPS.items()
    }
    changes = {name: change for name, change in changes.items() if change}
    yield from _together(engine, other, changes)
    for name in names:
        if getattr(engine, name) != getattr(other, name):
            yield name, _with_field(engine, other, name)
    if (engine.products, engine.on) != (other.products, other.on):
        yield "products", replace(engine, products=other.products, on=other.on)


def _together(engine: Engine, other: Engine, changes: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Engine]]:
    """The engine with each change of its attention: alone, else with one more, else with all of attention."""
    left = list(changes)
    for count in (1, 2):
        for names in combinations(list(left), count):
            change = {field: value for name in names for field, value in changes[name].items()}
            try:
                found = replace(engine, attention=replace(engine.attention, **change))
            except ValueError:  # what the engine keeps contradicts it
                continue
            if left != (left := [name for name in left if name not in names]):
                yield f"attention: {' and '.join(names)}", found
    if left:
        yield "attention", replace(engine, attention=other.attention)


def _with_field(engine: Engine, other: Engine, name: str) -> Engine:
    """The engine with one field of the other; a cache that its attention cannot read comes with the other's."""
    try:
        return replace(engine, **{name: getattr(other, name)})
    except ValueError:
        return replace(engine, **{name: getattr(other, name)}, attention=other.attention)


def table(factors: tuple[Factor, ...]) -> list[str]:
    """The lines of a table of factors, of which the last is the floor."""
    floor = factors[-1]
    lines = [f"{'factor, alone':28}{'RMS of d':>10}{'KL':>11}  first"]
    for one in factors:
        below = "  below the floor" if one.rms < floor.rms else ""
        first = "none" if one.first is None else str(one.first)
        lines.append(f"{one.name:28}{one.rms:10.5f}{one.kl:11.2e}  {first}{below}")
    return lines


def draw(factors: tuple[Factor, ...], path: Path) -> None:
    """Draws the RMS of d of each factor as a bar, and the floor as a line."""
    check_path(path)
    *bars, floor = sorted(factors[:-1], key=lambda one: one.rms) + [factors[-1]]
    words = ", ".join(f"{one.name} {one.rms:.2g}" for one in (*reversed(bars), floor))
    with picture(path, 0.9 + 0.26 * len(bars), "Factors of a mismatch", f"RMS of d by factor: {words}.") as figure:
        axes = figure.subplots()
        axes.grid(axis="x", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set(xlabel="RMS of d, one factor alone", xscale="log")
        least = min((one.rms for one in (*bars, floor) if one.rms > 0), default=1e-9) / 2
        axes.barh([one.name for one in bars], [max(one.rms, least) for one in bars], color=BLUE, left=0, height=0.6)
        axes.set_xlim(left=least)
        axes.axvline(floor.rms, color=FAINT, linestyle="--", linewidth=1)
        at = ("data", "axes fraction")
        axes.annotate("floor", (floor.rms, 1), (3, 3), at, "offset points", color=FAINT, fontsize=SMALL)
