"""Declarations of an implementation of IEEE P3109, read and compared with what `qcore.arithmetic.p3109` provides.

The four files are those of `qbits p3109 --declare`; another implementation's have the same form. Version 3.2's names of
saturations and operations are in no registry here, and so are differences.
"""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from qcore.arguments import quoted
from qcore.arithmetic import p3109
from qcore.arithmetic.p3109 import layout_of
from qcore.arithmetic.queries import QUERIES
from qcore.arithmetic.specializations import COMPARISONS, NEXT, PREDICATES, USUAL
from qcore.formats.number import check_number

FILES = ("Configurations", "Profiles", "Constraints")
_MOST = 50  # combinations of formats of an operation that are asked for, by chance where there are more
_SHOWN = 3  # of a kind
_BLOCK = "32, "  # elements of a block in the specializations that are asked for
_OTHER = "Other"  # matches operations that no other row names

_SHORT = ["Binary4p2sf", "Binary8p4se", "Binary8p3se"]
_WIDE = ["binary32", "binary16", "BFloat16"]
_EXTREMA = [f"{side}{kind}" for side in ("Minimum", "Maximum") for kind in ("", "Number", "Magnitude", "Finite")]
_OF_ONE_FORMAT = [*_EXTREMA, "MinimumMagnitudeNumber", "MaximumMagnitudeNumber", *COMPARISONS, *PREDICATES, *NEXT]


def required() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The operations with formats that section 4.5 of the interim report v4.0 demands of every implementation."""
    for name in ("Convert", "Recip"):
        yield from ((name, pair) for pair in product(_SHORT + _WIDE, repeat=2))
    for name in ("Add", "Subtract", "Multiply"):
        yield from ((name, three) for three in product(_SHORT, _SHORT, [*_SHORT[1:], *_WIDE]))
        scale = "Binary8p1uf"
        for x, y, r in product(_SHORT, _SHORT, [*_SHORT[1:], *_WIDE]):
            yield f"Scaled{name}", (scale, x, scale, y, r)
    for name in ("FMA", "FAA"):
        yield from ((name, (x, y, r, r)) for x, y, r in product(_SHORT, _SHORT, _WIDE))
    for name in ("Negate", "Abs", *_OF_ONE_FORMAT):
        if name != "TotalOrder":
            yield from ((name, (one,)) for one in _SHORT)
    for name in QUERIES:
        yield from ((name, (one,)) for one in _SHORT + _WIDE)


class Operation(NamedTuple):
    """A row of Constraints.yaml.

    Attributes:
        name: of the operation, or "Other".
        parameters: the names of its formats, in order.
        rules: the expressions that must hold.
        roundings, saturations: the names of its projections; none where the row has none.
    """

    name: str
    parameters: list[str]
    rules: list[str]
    roundings: list[str]
    saturations: list[str]

    def holds(self, formats: tuple[str, ...]) -> bool:
        """True if all rules hold of formats, in the order of the parameters; one format stands for all of them."""
        given = formats * len(self.parameters) if len(formats) == 1 else formats
        if len(given) != len(self.parameters):
            return False
        return all(_holds(rule, dict(zip(self.parameters, given, strict=True))) for rule in self.rules)


class Configuration(NamedTuple):
    """A configuration of an implementation, from all files."""

    name: str
    formats: list[str]
    roundings: list[str]
    saturations: list[str]
    operations: list[Operation]
    approximate: dict[str, str]  # names, and what they approximate

    def row_of(self, name: str, count: int) -> Operation | None:
        """The row of an operation with so many formats."""
        named = [one for one in self.operations if one.name == name]
        others = [one for one in self.operations if one.name == _OTHER and len(one.parameters) == count]
        return next(iter(named or others), None)

    def covers(self, name: str, formats: tuple[str, ...]) -> bool:
        """True if the configuration declares an operation of these formats, with the usual projection."""
        row = self.row_of(name, len(formats))
        if row is None or not {*formats} <= {*self.formats} or not row.holds(formats):
            return False
        return not layout_of(name).projections or (
            USUAL[0] in (row.roundings or self.roundings) and USUAL[1] in (row.saturations or self.saturations)
        )


def read(folder: Path) -> list[Configuration]:
    """The configurations of a folder with declarations.

    Raises:
        ValueError: if a file is missing, is no YAML, or PyYAML is not installed.
    """
    found = {name: _yaml(folder / f"{name}.yaml") for name in FILES}
    kappas = _yaml(folder / "Kappas.yaml") if (folder / "Kappas.yaml").exists() else {}
    names = [name for name in found["Configurations"] if name != "Metadata"]
    return [_configuration(name, found, kappas.get(name)) for name in names]


def _yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ValueError(f"{path.name} is YAML; allowed with the package PyYAML: pip install pyyaml") from None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}; allowed is a declaration in YAML") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is a {type(found).__name__}; allowed is a declaration, by configurations")
    return found


def _configuration(name: str, files: dict[str, Any], kappas: Any) -> Configuration:
    own = files["Configurations"][name]
    projections = own.get("Projections", {})
    formats = [text for one in files["Profiles"].get(name, {}).get("formats", []) for text in expanded(one)]
    rows = [_row(*item) for one in files["Constraints"].get(name, []) for item in one.items()]
    return Configuration(
        name,
        [*formats, *_list(own.get("IEEE754", []))],
        _names(projections.get("Rounding", [])),
        _names(projections.get("Saturation", [])),
        rows,
        {key: str(_fields(one).get("Approximates", "")) for key, one in (kappas or {}).items()},
    )


def _row(signature: str, rules: Any) -> Operation:
    match = re.match(r"(\w+)<(.*?)>", signature)
    if match is None:
        raise ValueError(f"Constraints.yaml has {quoted(signature)}; allowed is 'Add<fx, fy, fr, rho>(x, y) -> r'")
    rules = rules or {}
    projections = rules.get("Projections", [])
    parts = projections if isinstance(projections, list) else [projections]
    return Operation(
        match[1],
        re.findall(r"\bf\w+", match[2]),
        [*_flat(rules.get("Requires", []))],
        _names([one for part in parts for one in _list(part.get("RoundingMode", []))]),
        _names([one for part in parts for one in _list(part.get("SaturationMode", []))]),
    )


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _flat(given: Any) -> Iterator[str]:
    """Expressions in lists of lists."""
    if isinstance(given, list):
        for one in given:
            yield from _flat(one)
    else:
        yield str(given)


def _fields(given: Any) -> dict[str, Any]:
    """A mapping, or a list of mappings as one."""
    return {key: value for one in _list(given) if isinstance(one, dict) for key, value in one.items()}


def _names(given: Any) -> list[str]:
    """Names, some of which are mappings with more about them."""
    found = [key for one in _list(given) for key in (one if isinstance(one, dict) else [str(one)])]
    return [*dict.fromkeys(found)]


def expanded(text: str) -> list[str]:
    """The texts of a comprehension; any other text is its own.

    Example:
        >>> expanded('(\\' "Binary8p$(i)se" for i in 1:2 \\')')
        ['Binary8p1se', 'Binary8p2se']
    """
    match = re.fullmatch(r"\(' *\"([^\"]*)\" for (\w+) in (.+?) *'\)", text)
    if match is None:
        return [text]
    pattern, name, places = match.groups()
    parts = [int(one) for one in re.findall(r"-?\d+", places)]
    if not places.startswith("["):
        first, step, last = (parts[0], 1, parts[1]) if len(parts) == 2 else parts
        parts = [*range(first, last + 1, step)]
    return [pattern.replace(f"$({name})", str(i)) for i in parts]


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda x, y: x in y,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_FUNCTIONS = {"Minimum": min, "Maximum": max}


def _holds(rule: str, formats: dict[str, str]) -> bool:
    """True if an expression holds of formats by the names of parameters."""
    text = rule.strip().removeprefix("('").removesuffix("')").strip()
    try:
        return bool(_value(ast.parse(text, mode="eval").body, formats))
    except (SyntaxError, KeyError, TypeError):
        raise ValueError(f"Constraints.yaml requires {quoted(rule)}; allowed are comparisons of formats") from None


def _value(node: ast.AST, formats: dict[str, str]) -> Any:
    match node:
        case ast.Compare(left, operators, others):
            values = [_value(one, formats) for one in (left, *others)]
            pairs = zip(operators, values, values[1:], strict=False)
            return all(_OPERATORS[type(one)](x, y) for one, x, y in pairs)
        case ast.BoolOp(which, values):
            return (all if isinstance(which, ast.And) else any)(_value(one, formats) for one in values)
        case ast.BinOp(left, which, right):
            return _OPERATORS[type(which)](_value(left, formats), _value(right, formats))
        case ast.Call(ast.Name(name), arguments):
            given = [_value(one, formats) for one in arguments]
            return _FUNCTIONS[name](given) if name in _FUNCTIONS else QUERIES[name](check_number(given[0]))  # type: ignore[arg-type]
        case ast.List(values) | ast.Tuple(values):
            return [_value(one, formats) for one in values]
        case ast.Name(name):
            return formats.get(name, name)
        case ast.Constant(value):
            return value
    raise KeyError(type(node).__name__)


def differing(configuration: Configuration) -> list[str]:
    """What a configuration declares and is not provided here, in lines."""
    lines = []
    known = [one for one in configuration.formats if _is_format(one)]
    for kind, given, ours in (
        ("formats", configuration.formats, known),
        ("roundings", configuration.roundings, p3109.ROUNDINGS),
        ("saturations", configuration.saturations, p3109.SATURATIONS),
        ("operations", [one.name for one in configuration.operations], [*p3109.OPERATIONS, _OTHER]),
    ):
        if unknown := [one for one in dict.fromkeys(given) if one not in ours]:
            lines.append(f"{kind} that are not here: {', '.join(unknown)}")
    for row in configuration.operations:
        if row.name in p3109.OPERATIONS:
            lines += _differing(row, known)
    for name in configuration.approximate:
        if name in p3109.OPERATIONS:
            lines.append(f"{name} is approximate and has the name of an exact operation")
    return lines


def _differing(row: Operation, formats: list[str]) -> Iterator[str]:
    """What a row declares and is not provided here."""
    layout = layout_of(row.name)
    own = layout.operands * (1 + layout.scaled) + layout.result + layout.result_scale
    if len(row.parameters) != own:
        yield f"{row.name} has {len(row.parameters)} formats: {', '.join(row.parameters)}; here it has {own}"
        return
    unknown = [*row.roundings, *row.saturations]
    if unknown := [one for one in unknown if one not in {*p3109.ROUNDINGS, *p3109.SATURATIONS}]:
        yield f"{row.name} is projected by {', '.join(unknown)}, which are not here"
    block = _BLOCK * layout.block
    texts = (f"{row.name}<{block}{', '.join(one)}>" for one in _combinations(row, formats))
    if missing := [text for text in texts if not p3109.is_provided(text)]:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        yield f"not provided here: {', '.join(missing[:_SHOWN])}{more}"


def _combinations(row: Operation, formats: list[str]) -> Iterator[tuple[str, ...]]:
    """Formats of a row's parameters for which its rules hold: all, or some that chance takes from too many."""
    choices = [[one for one in formats if _may_be(row, name, one)] for name in row.parameters]
    if prod(map(len, choices)) <= _MOST:
        yield from filter(row.holds, product(*choices))
        return
    draw = random.Random(0)
    drawn = (tuple(draw.choice(each) for each in choices) for _ in range(_MOST))
    # Where formats must be equal, chance would find few pairs.
    yield from dict.fromkeys(filter(row.holds, (*drawn, *((one,) * len(choices) for one in formats))))


def _may_be(row: Operation, name: str, format: str) -> bool:
    """False if a rule of one parameter alone says that it is another format."""
    alone = [rule for rule in row.rules if {*re.findall(r"\bf\w+\b", rule)} & {*row.parameters} == {name}]
    return all(_holds(rule, {name: format}) for rule in alone)


def _is_format(name: str) -> bool:
    return p3109.is_provided(f"BitwidthOf<{name}>")


def report(folder: Path) -> tuple[str, int]:
    """The lines of a folder's comparison, and how many differences there are."""
    lines, count = [], 0
    needed = [*dict.fromkeys(required())]
    for one in read(folder):
        named = [row.name for row in one.operations]
        lines.append(f"{one.name}: {len(one.formats)} formats, {len(named)} operations")
        found = differing(one)
        count += len(found)
        lines += [f"  {line}" for line in found]
        missing = [f"{name}<{', '.join(formats)}>" for name, formats in needed if not one.covers(name, formats)]
        shown = f"; missing are {', '.join(missing[:_SHOWN])}{', ...' * (len(missing) > _SHOWN)}" if missing else ""
        lines.append(f"  declares {len(needed) - len(missing)} of {len(needed)} that the report demands{shown}")
        for name, of in one.approximate.items():
            lines.append(f"  {name} is approximate{f': {of}' if of else ''}")
    return "\n".join([*lines, f"{count} differ from what is provided here"]), count
