"""What a comparison of bits found, for people: the count of differences first, then tables, times and the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.support.comparison import Case
from benchmarks.support.timing import machine, versions
from qcore import Accumulator, BinaryFloat, BlockFloatingPoint, FixedPoint, FloatingPoint, Posit, parse
from qcore.affine import AffineInteger

WIDTH = 120  # of tables where the output is a file
SHOWN = 20  # differences that are listed


def environment() -> dict[str, Any]:
    """Versions and machine."""
    packages = {name: version(name) for name in ("ml_dtypes", "scikit-learn")}
    return {"versions": versions() | packages, "machine": machine("cpu")}


def kind_of(text: str) -> str:
    """What sort of format a text stands for."""
    number = parse(text)
    kinds = {
        "float": (FloatingPoint, BinaryFloat),
        "fixed": FixedPoint,
        "posit": Posit,
        "block": BlockFloatingPoint,
        "affine": AffineInteger,
    } | {"product": Accumulator}
    return next((kind for kind, types in kinds.items() if isinstance(number, types)), "scaled block")


def print_report(cases: Sequence[Case], seconds: float, columns: str = "kind") -> None:
    """A line that sums up, a table with a row for each backend, the differences, the times and the machine.

    Args:
        cases: all of them; those of the reference have the backend that comes first.
        seconds: how long it took.
        columns: what times are shown apart for: "kind" of format, or "case": a format and mode.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    backends = list(dict.fromkeys(case.backend for case in cases))
    compared = [case for case in cases if case.backend != backends[0]]
    wrong = [case for case in compared if case.differing]
    differing = sum(case.differing for case in compared)
    line = f"{differing:,} of {sum(case.inputs for case in compared):,} results differ"
    where = f"; first: {_difference(wrong[0])}" if wrong else ""
    console.print(line + where, style="bold red" if differing else "bold green", markup=False, soft_wrap=True)
    formats, modes = ({getattr(case, name) for case in cases} for name in ("format", "rounding"))
    inputs = sum(case.inputs for case in cases if case.backend == backends[0])
    console.print(
        f"formats: {len(formats)}, rounding modes: {len(modes)}, inputs: {inputs:,}; the reference is {backends[0]}; "
        f"a result differs where one of its bits does",
        soft_wrap=True,
    )
    console.print(_by_kind(cases, backends) if columns == "kind" else _by_case(cases, backends))
    for case in wrong[1:SHOWN]:
        console.print(f"also: {_difference(case)}", markup=False, soft_wrap=True)
    if len(wrong) > SHOWN:
        console.print(f"and {len(wrong) - SHOWN} more pairs of format and rounding mode; --json has all")
    found = environment()
    minutes, rest = divmod(round(seconds), 60)
    named = {name: found["machine"][name] for name in ("cpu", "cores", "load")} | found["versions"]
    console.print(
        f"{minutes} min {rest} s; " + ", ".join(f"{name} {value}" for name, value in named.items()), soft_wrap=True
    )


def _difference(case: Case) -> str:
    return f"{case.backend}, {case.format}, {case.rounding}: {case.differing:,} results, as {case.example}"


def _by_kind(cases: Sequence[Case], backends: Sequence[str]) -> Table:
    kinds = list(dict.fromkeys(kind_of(case.format) for case in cases))
    table = Table("backend", title="nanoseconds an element, by kind of format", title_justify="left")
    for name in ("results", "differ", *kinds):
        table.add_column(name, justify="right")
    of_kind = {text: kind_of(text) for text in {case.format for case in cases}}
    for backend in backends:
        of = [case for case in cases if case.backend == backend]
        total = _total(of)
        times = (_total(case for case in of if of_kind[case.format] == kind) for kind in kinds)
        table.add_row(backend, f"{total.inputs:,}", _differing(total, backends), *map(_time, times))
    return table


def _by_case(cases: Sequence[Case], backends: Sequence[str]) -> Table:
    table = Table("format", "rounding", title="nanoseconds an element", title_justify="left")
    for name in ("inputs", "differ", *backends):
        table.add_column(name, justify="right")
    for text, mode in dict.fromkeys((case.format, case.rounding) for case in cases):
        found = {case.backend: case for case in cases if (case.format, case.rounding) == (text, mode)}
        inputs = f"{min(case.inputs for case in found.values()):,}"
        times = (_time(found[backend]) if backend in found else "" for backend in backends)
        table.add_row(text, mode, inputs, _differing(_total(found.values()), []), *times)
    return table


def _differing(case: Case, backends: Sequence[str]) -> str:
    if backends and case.backend == backends[0]:
        return "reference"
    return f"[{'red' if case.differing else 'green'}]{case.differing:,}[/]"


def _time(case: Case) -> str:
    return f"{case.ns_per_element:.2f}" if case.inputs else ""


def _total(cases: Iterable[Case]) -> Case:
    """Cases of different formats and modes together."""
    cases = list(cases)
    total = Case("", "", cases[0].backend if cases else "")
    for case in cases:
        total.merge(case)
    return total
