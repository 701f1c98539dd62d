"""Where the law computes a value: the name and the line of each value of a trace, for readers of the C.

The frames of the law run while a value is made, and its own text is read.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from qcore import law, linalg, random
from qcore.notices import frames
from qcore.trace import Trace, Value

# The last rooms come last, so that their functions' parameters are found where names are equal.
_ROOMS = tuple(f"{Path(room.__file__ or '').parent}/" for room in (linalg, law, random))


class Origin(NamedTuple):
    """The place in the law where a value is computed.

    Attributes:
        name: the name of the variable that it is assigned to, or else of the function.
        complete: true if the statement assigns this value, not an expression around it.
        line: the name of the function and the statement.
    """

    name: str
    complete: bool
    line: str


class Tracked(Trace):
    """A trace that keeps each value's origin."""

    def __init__(self, float16: str = "") -> None:
        super().__init__(float16)
        self.origins: dict[str, Origin] = {}

    def value(self, text: str, dtype: str, level: int, operands: tuple[Value, ...] = ()) -> Value:
        found = super().value(text, dtype, level, operands)
        if found.name not in self.origins:
            self.origins[found.name] = _origin()
        return found


def _origin() -> Origin:
    of_law = (frame for frame in frames() if frame.f_code.co_filename.startswith(_ROOMS))
    places = [place for frame in of_law if (place := _place(frame))]
    if not places:
        return Origin("", False, "")
    line = f"{places[0].function}: {places[0].module.text(places[0].statement)}"
    function, index = "", None
    for called, _, statement, node in places:
        function = function if called.startswith("<") else called.strip("_")  # comprehensions have no name
        place, target = _assigned(statement, node, index)
        if not isinstance(statement, ast.Return) or place is None:
            name = _parameter(statement, node) if place is None else None
            return Origin(name or target or function, place is not None and target is not None, line)
        index = place if isinstance(statement.value, ast.Tuple) else index
    return Origin("rounded" if function == "run" else function, True, line)


@dataclass(frozen=True)
class _Module:
    """A file of the law: its statements, and its expressions by their places."""

    lines: list[bytes]
    statements: tuple[ast.stmt, ...]
    expressions: dict[tuple[int | None, ...], ast.expr]

    def text(self, node: ast.stmt) -> str:
        """A statement in one line. `ast.get_source_segment` takes milliseconds: it splits the file at each call."""
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return re.sub(r"\s+", " ", b"".join(lines).decode()).replace("( ", "(").replace(" )", ")")


@cache
def _module(path: str) -> _Module:
    source = Path(path).read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    expressions = [one for one in nodes if isinstance(one, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call)]
    return _Module(
        source.encode().splitlines(keepends=True),
        tuple(one for one in nodes if isinstance(one, ast.Assign | ast.AugAssign | ast.Return | ast.Expr)),
        {(one.lineno, one.end_lineno, one.col_offset, one.end_col_offset): one for one in expressions},
    )


@cache
def _parameters() -> dict[str, list[str]]:
    """The parameters of the law's functions."""
    files = (path for room in _ROOMS for path in Path(room).rglob("*.py"))
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {node.name: [one.arg for one in node.args.args] for node in nodes if isinstance(node, ast.FunctionDef)}


class _Place(NamedTuple):
    """The function and the statement that a frame executes, and the expression that it evaluates."""

    function: str
    module: _Module
    statement: ast.stmt
    node: ast.expr | None


def _place(frame: FrameType) -> _Place | None:
    """What a frame executes; None outside of statements that assign or return, as in a default of a function."""
    module = _module(frame.f_code.co_filename)
    place = _positions(frame.f_code)[frame.f_lasti // 2]
    found = (one for one in module.statements if one.lineno <= frame.f_lineno <= (one.end_lineno or 0))
    statement = next(found, None)
    return statement and _Place(frame.f_code.co_name, module, statement, module.expressions.get(place))


@cache
def _positions(code: CodeType) -> list[tuple[int | None, ...]]:
    return list(code.co_positions())


def _assigned(statement: ast.stmt, node: ast.expr | None, index: int | None) -> tuple[int | None, str | None]:
    """The place of an expression among the values of a statement, None if it is a part of one, and the value's name.

    The statement is an assignment, or a return statement, which has no name. `index` is the place of a value among
    several that the expression, a call, returns.
    """
    value = getattr(statement, "value", None)
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    place = next((i for i, one in enumerate(values) if node is not None and node in _results(one)), None)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    if isinstance(target, ast.Tuple):
        inside = next((i for i, one in enumerate(values) if one and any(node is each for each in ast.walk(one))), 0)
        chosen = inside if len(values) > 1 else index or 0
        target = target.elts[chosen]
    return place, target.id if isinstance(target, ast.Name) else None


def _results(value: ast.expr | None) -> list[ast.expr | None]:
    """The expressions that an expression may evaluate to: the branches of a conditional."""
    return [*_results(value.body), *_results(value.orelse)] if isinstance(value, ast.IfExp) else [value]


def _parameter(statement: ast.stmt, node: ast.expr | None) -> str | None:
    """The name of the parameter to which a statement passes an expression, in a call of a function of the law."""
    for call in ast.walk(statement):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and node in call.args:
            names = _parameters().get(call.func.id, [])
            place = call.args.index(node)  # type: ignore[arg-type]
            return names[place] if place < len(names) else None
    return None
