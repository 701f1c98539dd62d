"""A format's rounding as a stand-alone C99 file, with a header and an import for SystemVerilog.

The law's own Python runs once on values that record operations (`qcore.trace`), as for the kernels of qtorch. The text
is for readers: a variable of C has its name in the law, and the comment above it is the law's line. Values without a
name in the law become parts of the expressions that read them.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from math import prod
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast

import numpy as np

from qcore import law, random
from qcore.arguments import quoted
from qcore.arrays import quantize
from qcore.cli.vectors import bits_of, vector_inputs
from qcore.files import write_texts
from qcore.formats.block import BlockNumber
from qcore.formats.names import NAMED
from qcore.formats.number import check_number, prepare
from qcore.law.carrier import FLOAT32
from qcore.law.rounding import Rounding, check_rounding
from qcore.law.table import FEW
from qcore.namespace import Ints, Names
from qcore.random.threefry import Noise, as_lane, leading_bits, leading_bits_mask, rounding_words, threefry
from qcore.trace import BLOCK, CONSTANT, ELEMENT, TENSOR, Trace, Value, decided, needed
from qcore.version import __version__

_ROOMS = tuple(f"{Path(room.__file__ or '').parent}/" for room in (law, random))
_KEY, _START = 0x0123_4567_89AB_CDEF, 2**32 - 7  # of the vectors; indices pass 2^32
_VECTORS, _BLOCK = 256, 32  # numbers; elements of a block where the format has no size
_RESERVED = set(
    re.findall(
        r"\w+",
        """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while main
    bits x result blocks block count key key0 key1 index high low start i
""",
    )
)

# C for the functions that the text may call. Functions that it does not call are left out: compilers warn of them.
_HELPERS = {
    "bits_of": """
/* The bits of a number. */
static int32_t bits_of(float number)
{
    int32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}""",
    "number_of": """
/* The number that has these bits. */
static float number_of(int32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}""",
    "lane": """
/* The same 32 bits as an integer with a sign. */
static int32_t lane(uint32_t word)
{
    int32_t bits;
    memcpy(&bits, &word, sizeof bits);
    return bits;
}""",
    "left": """
/* A shift to the left, by 0 to 31; bits beyond the highest are lost. */
static int32_t left(int32_t value, int32_t count)
{
    return lane((uint32_t)value << count);
}""",
    "right": """
/* A shift to the right, by 0 to 31, that repeats the sign. */
static int32_t right(int32_t value, int32_t count)
{
    return value < 0 ? ~(~value >> count) : value >> count;
}""",
    "add": """
/* A sum that wraps around. */
static int32_t add(int32_t a, int32_t b)
{
    return lane((uint32_t)a + (uint32_t)b);
}""",
    "subtract": """
/* A difference that wraps around. */
static int32_t subtract(int32_t a, int32_t b)
{
    return lane((uint32_t)a - (uint32_t)b);
}""",
    "multiply": """
/* A product that wraps around. */
static int32_t multiply(int32_t a, int32_t b)
{
    return lane((uint32_t)a * (uint32_t)b);
}""",
    "rotate": """
/* A rotation to the left, by 1 to 31. */
static int32_t rotate(int32_t value, int32_t count)
{
    return lane((uint32_t)value << count | (uint32_t)value >> (32 - count));
}""",
    "at_least": """
/* The larger of a value and its lower bound. */
static int32_t at_least(int32_t value, int32_t low)
{
    return value < low ? low : value;
}""",
    "at_most": """
/* The smaller of a value and its upper bound. */
static int32_t at_most(int32_t value, int32_t high)
{
    return value > high ? high : value;
}""",
    "float_bits": """
/* The bits of an integer as a float; the conversion is to nearest, ties to even. */
static int32_t float_bits(int32_t value)
{
    return bits_of((float)value);
}""",
    "integer": """
/* The integer that the float with these bits is, toward zero. */
static int32_t integer(int32_t bits)
{
    return (int32_t)number_of(bits);
}""",
    "product_bits": """
/* The bits of the product of two integers as floats; the multiplication is that of IEEE 754. */
static int32_t product_bits(int32_t a, int32_t b)
{
    return bits_of((float)a * (float)b);
}""",
    "quotient_bits": """
/* The bits of the quotient of two integers as floats; division is that of IEEE 754. */
static int32_t quotient_bits(int32_t a, int32_t b)
{
    return bits_of((float)a / (float)b);
}""",
}
_CALLS = {  # by the trace's pattern for an operation
    "{} << {}": "left({}, {})",
    "{} >> {}": "right({}, {})",
    "{0} < {1} ? {1} : {0}": "at_least({}, {})",
    "{0} > {1} ? {1} : {0}": "at_most({}, {})",
    "float32_bits({})": "float_bits({})",
    "(int32_t)float32({})": "integer({})",
    "bits32(to_float32({}) * to_float32({}))": "product_bits({}, {})",
    "bits32(to_float32({}) / to_float32({}))": "quotient_bits({}, {})",
}
_WRAPS = {
    "{} + {}": "add({}, {})",
    "{} - {}": "subtract({}, {})",
    "{} * {}": "multiply({}, {})",
    "-{}": "subtract(0, {})",
}


class Field(int):
    """An integer of a format with the name that the law reads it by."""

    name: str

    def __new__(cls, number: int, name: str) -> Field:
        found = super().__new__(cls, number)
        found.name = name
        return found

    def __add__(self, other: Any) -> Any:
        return self if isinstance(other, int) and other == 0 else super().__add__(other)


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
            self.origins[found.name] = _origin(inspect.currentframe())
        return found


class Reading(Tracked):
    """A trace for one format, whose integers make some operations needless."""

    def binary(self, sign: str, a: Any, b: Any) -> Any:
        if sign == "-" and a is b:
            return 0
        found = decided(sign, a, b)
        if sign == "+" and isinstance(b, int) and b < 0 and not isinstance(b, Field):
            sign, b = "-", -b
        return super().binary(sign, a, b) if found is None else found

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        return Ints.clip(x, low, high) if isinstance(x, int) else super().clip(x, low, high)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return (a if condition else b) if isinstance(condition, bool) else super().where(condition, a, b)


def emit(number: Any, rounding: Any, folder: Path | None) -> dict[str, str]:
    """The files for a format and a mode, by name; written into a folder if there is one.

    Args:
        number: the format, or its text.
        rounding: the mode, or its name.
        folder: where to; it is made where it is missing.

    Returns:
        The texts of NAME.c, NAME.h and NAME.sv.
    """
    number, mode = check_number(number), check_rounding(rounding)
    unit = _Unit(number, mode)
    files = {f"{unit.name}.c": unit.source(), f"{unit.name}.h": unit.header(), f"{unit.name}.sv": unit.verilog()}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_texts({folder / name: text for name, text in files.items()})
    return files


# Where the law computes a value, found by the frames of the law that run while the value is made.


def _origin(innermost: FrameType | None) -> Origin:
    frames: list[FrameType] = []
    while innermost is not None:
        if innermost.f_code.co_filename.startswith(_ROOMS):
            frames.append(innermost)
        innermost = innermost.f_back
    if not frames:
        return Origin("", False, "")
    module, statement, node = _place(frames[0])
    line = f"{frames[0].f_code.co_name}: {module.text(statement)}"
    function, index = "", None
    for frame in frames:
        function = frame.f_code.co_name.strip("_")
        _, statement, node = _place(frame)
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


def _place(frame: FrameType) -> tuple[_Module, ast.stmt, ast.expr | None]:
    """The statement that a frame executes, and the expression that it evaluates."""
    module = _module(frame.f_code.co_filename)
    place = _positions(frame.f_code)[frame.f_lasti // 2]
    statement = next(one for one in module.statements if one.lineno <= frame.f_lineno <= (one.end_lineno or 0))
    return module, statement, module.expressions.get(place)


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


class _Unit:
    """A format under a mode as C.

    Attributes:
        name: the prefix of all functions' names.
    """

    def __init__(self, number: Any, mode: Rounding) -> None:
        self.number, self.mode = number, mode
        self.name = f"round_{identifier(number.text)}_{mode.value}"
        self.stochastic, self.blocks = mode.stochastic, isinstance(number, BlockNumber)
        self.program, self.constants = prepare(number, mode, FLOAT32, None, False)
        if not self.program.has_kernels:
            raise ValueError(
                f"number={quoted(number)} reads whole blocks; allowed are formats other than gguf() and nested=, and "
                "NVFP4 without four_over_six"
            )
        if self.program.searches:
            raise ValueError(
                f"number={quoted(number)} is searched in arrays under rounding={quoted(mode.value)}; allowed are "
                f"tables of at most {FEW} numbers, under stochastic rounding {FEW - 2}"
            )
        if getattr(number, "sub_block", None) is not None:
            raise ValueError(f"number={quoted(number)} has micro-exponents; allowed are blocks without sub-blocks")
        self.trace = Reading()
        bits = self.trace.value("bits", "int32", ELEMENT)
        self.result = self.program.run(self.trace, bits, self._fields(), (1,) if self.blocks else (), self._word())
        self.values = self._values()
        self.variables = self._variables()
        self.names: dict[str, str] = {}
        self.ranges: dict[str, tuple[int, int]] = {}

    def _fields(self) -> list[Any]:
        """The format's integers, each with a name of its own; those of a table are in tuples, one for each row."""
        seen: dict[str, int] = {}
        found: list[Any] = []
        for constant, (_, name) in zip(self.constants, self.program.fields(), strict=True):
            seen[name] = seen.get(name, 0) + 1
            upper = name.upper() + (f"_{seen[name]}" if seen[name] > 1 else "")
            if isinstance(constant, tuple):
                row = cast("tuple[int, ...]", constant)
                found.append(tuple(Field(number, f"{upper}_{place}") for place, number in enumerate(row)))
            else:
                found.append(Field(constant, upper))
        return found

    def _word(self) -> Value | None:
        if not self.stochastic:
            return None
        key0, key1 = (self.trace.value(name, "int32", CONSTANT) for name in ("key0", "key1"))
        high, low = (self.trace.value(name, "int32", ELEMENT) for name in ("high", "low"))
        y0, y1 = threefry(key0, key1, high, low, rotate=self.trace.rotate_left)
        return leading_bits(y0 ^ y1, Field(leading_bits_mask(24), "RANDOM_BITS"), self.mode.rounds_distance)

    def _values(self) -> list[Value]:
        """The values that the result depends on; the law also computes values that a kind does not read."""
        found: dict[str, Value] = {}
        left = [self.result]
        while left:
            value = left.pop()
            if value.name not in found:
                found[value.name] = value
                left += value.operands
        return list(found.values())

    def _variables(self) -> set[str]:
        """The values that are variables of C; all other values are parts of expressions.

        These are the values that the law assigns, values that several expressions or other levels read, and arguments.
        """
        values = self.values
        readers = [(one, operand) for one in values for operand in one.operands]
        found = {one.name for one in values if not one.parts or self.trace.origins[one.name].complete}
        found |= {operand.name for one, operand in readers if one.level != operand.level}
        counts: dict[str, int] = {}
        for _, operand in readers:
            counts[operand.name] = counts.get(operand.name, 0) + 1
        return found | {name for name, count in counts.items() if count > 1} | {self.result.name}

    # Expressions and statements.

    def _name(self, value: Value) -> str:
        """The name of a variable: its name in the law, with a number if the law uses the name again."""
        if value.name not in self.names:
            if not value.parts and value.text:
                return value.text  # an argument
            base = self.trace.origins[value.name].name
            base = f"{base}_" if base in _RESERVED | _HELPERS.keys() else base
            taken, name, count = set(self.names.values()), base, 1
            while name in taken:
                count += 1
                name = f"{base}_{count}"
            self.names[value.name] = name
        return self.names[value.name]

    def _operand(self, part: Any, nested: bool) -> str:
        if not isinstance(part, Value):
            return part.name if isinstance(part, Field) else _number(part)
        if part.name in self.variables:
            return self._name(part)
        text, called = self._expression(part)
        return text if called or not nested else f"({text})"

    def _expression(self, value: Value) -> tuple[str, bool]:
        """C for a value, and whether it is a call, which needs no parentheses."""
        pattern = value.pattern
        called = _WRAPS.get(pattern) if not self._fits(value) else _CALLS.get(pattern)
        if pattern.startswith("rotate("):
            called = pattern
        operands = (self._operand(part, nested=not called) for part in value.parts)
        return (called or pattern).format(*operands), bool(called)

    def _statements(self, targets: Iterable[Value], level: int, indent: str) -> list[str]:
        """The statements that compute the targets from variables of lower levels and of the loop."""
        lines, last = [], ""
        for value in needed(targets, level):
            if value.level == level and value.parts and value.name in self.variables:
                line = self.trace.origins[value.name].line
                text = f"const int32_t {self._name(value)} = {self._expression(value)[0]};"
                lines += [] if line == last else [f"{indent}/* {line} */"]
                lines.append(indent + text)
                last = line
        return lines

    def _fits(self, value: Value) -> bool:
        """False if an operation may wrap around, which operators of C must not."""
        if value.pattern not in _WRAPS:
            return True
        low, high = _exact(value.pattern, [self._range(part) for part in value.parts])
        return low >= _LEAST and high <= _MOST

    def _range(self, part: Any) -> tuple[int, int]:
        """Bounds of a value."""
        if not isinstance(part, Value):
            return int(part), int(part)
        if part.name not in self.ranges:
            read = part.parts or part.operands  # a maximum has one operand
            found = _exact(part.pattern, [self._range(one) for one in read]) if read else _ALL
            self.ranges[part.name] = found if found[0] >= _LEAST and found[1] <= _MOST else _ALL
        return self.ranges[part.name]

    # Functions.

    @property
    def _noise(self) -> str:
        return ", uint64_t key, uint64_t index" if self.stochastic else ""

    def _prototypes(self) -> list[str]:
        name, start = self.name, ", uint64_t key, uint64_t start" if self.stochastic else ""
        if self.blocks:
            return [f"void {name}(const float *x, float *result, size_t blocks, size_t count{start})"]
        return [
            f"uint32_t {name}_bits(uint32_t bits{self._noise})",
            f"float {name}(float x{self._noise})",
            f"void {name}_array(const float *x, float *result, size_t count{start})",
        ]

    def _of_elements(self) -> list[str]:
        of_bits, of_float, of_array = self._prototypes()
        parameters, words = "int32_t bits", []
        given, passed = "bits_of(x)", ""
        if self.stochastic:
            parameters += ", int32_t key0, int32_t key1, int32_t high, int32_t low"
            passed = ", key, index"
            words = [", lane((uint32_t)(key >> 32)), lane((uint32_t)key)"]
            words += [", lane((uint32_t)(index >> 32)), lane((uint32_t)index)"]
        core = f"{self.name}_lane"
        lines = [
            f"static int32_t {core}({parameters})",
            "{",
            *self._statements(self._handed(CONSTANT), CONSTANT, "    "),
        ]
        lines += [*self._statements([self.result], ELEMENT, "    "), f"    return {self._name(self.result)};", "}", ""]
        lines += [of_bits, "{", f"    const int32_t found = {core}(lane(bits){''.join(words)});"]
        lines += ["    uint32_t result;", "    memcpy(&result, &found, sizeof result);", "    return result;", "}", ""]
        lines += [of_float, "{", f"    return number_of({core}({given}{''.join(words)}));", "}", ""]
        passed = passed.replace("index", "start + i")
        lines += [of_array, "{", "    size_t i;", "    for (i = 0; i < count; ++i)"]
        return [*lines, f"        result[i] = {self.name}(x[i]{passed});", "}"]

    def _of_blocks(self) -> list[str]:
        (prototype,) = self._prototypes()
        lines = [prototype, "{"]
        if self.stochastic:
            lines += ["    const int32_t key0 = lane((uint32_t)(key >> 32)), key1 = lane((uint32_t)key);"]
            lines += self._statements(self._handed(CONSTANT), CONSTANT, "    ")
        lines += ["    size_t block, i;"]
        maxima = [one for one in self.trace.maxima if one.level == TENSOR]
        lines += self._loop_of_maxima(maxima, "    ", "0", "blocks * count")
        lines += self._statements(self._handed(TENSOR), TENSOR, "    ")
        lines += ["    for (block = 0; block < blocks; ++block) {"]
        maxima = [one for one in self.trace.maxima if one.level == BLOCK]
        lines += self._loop_of_maxima(maxima, "        ", "block * count", "(block + 1) * count")
        lines += self._statements(self._handed(BLOCK), BLOCK, "        ")
        lines += self._loop("        ", "block * count", "(block + 1) * count")
        lines += self._statements([self.result], ELEMENT, " " * 12)
        return [*lines, f"            result[i] = number_of({self._name(self.result)});", "        }", "    }", "}"]

    def _handed(self, level: int) -> list[Value]:
        """The values of a level that higher levels read."""
        return [one for value in self.values if value.level > level for one in value.operands if one.level == level]

    def _loop(self, indent: str, begin: str, end: str) -> list[str]:
        lines = [f"{indent}for (i = {begin}; i < {end}; ++i) {{", f"{indent}    const int32_t bits = bits_of(x[i]);"]
        if self.stochastic:
            lines += [f"{indent}    const int32_t high = lane((uint32_t)((start + i) >> 32));"]
            lines += [f"{indent}    const int32_t low = lane((uint32_t)(start + i));"]
        return lines

    def _loop_of_maxima(self, maxima: list[Value], indent: str, begin: str, end: str) -> list[str]:
        if not maxima:
            return []
        lines = []
        for one in maxima:
            lines += [f"{indent}/* {self.trace.origins[one.name].line} */"]
            lines += [f"{indent}int32_t {self._name(one)} = {_number(self._range(one)[0])};"]
        lines += [f"{indent}for (i = {begin}; i < {end}; ++i) {{", f"{indent}    const int32_t bits = bits_of(x[i]);"]
        lines += self._statements([one.operands[0] for one in maxima], ELEMENT, f"{indent}    ")
        for one in maxima:
            text = self._operand(one.operands[0], nested=False)
            lines += [f"{indent}    {self._name(one)} = at_least({self._name(one)}, {text});"]
        return [*lines, f"{indent}}}"]

    def source(self) -> str:
        """The file of C."""
        body = self._of_blocks() if self.blocks else self._of_elements()
        main = self._main()
        lines = [*body, "", *main]
        text = "\n".join(lines)
        fields = self._constants(text)
        called: list[str] = []
        for name in reversed(_HELPERS):  # each calls those above it
            if re.search(rf"\b{name}\(", "\n".join([text, *called])):
                called.insert(0, _HELPERS[name])
        head = [f"/* {self._title()}", "", *(f"   {line}" for line in self._about()), "*/", ""]
        includes = ["#include <stddef.h>", "#include <stdint.h>", "#include <string.h>"]
        prototypes = [f"{one};" for one in self._prototypes()]
        return "\n".join([*head, *includes, "", *prototypes, "", *fields, *called, "", text, ""])

    def _title(self) -> str:
        return f"Rounds float32 numbers to {self.number.text}, {self.mode.value}."

    def _about(self) -> list[str]:
        command = f"qbits emit-c '{self.number.text}' --rounding {self.mode.value}"
        lines = [f"Written by qcore {__version__}: {command}"]
        lines += ["The bits are those of qcore.quantize. Floats are IEEE 754's; a lane is the bits of a float."]
        if self.blocks:
            lines += [f"{self.name} rounds blocks of count elements each, which lie side by side."]
        else:
            lines += [f"{self.name} rounds a number, {self.name}_bits its bits,"]
            lines += [f"and {self.name}_array count numbers."]
        if self.stochastic:
            lines += [
                "key is the seed. An element's index chooses its random word; start is the index of the first one."
            ]
        lines += [f"To check it: cc -std=c99 -DSELF_CHECK {self.name}.c -o check && ./check"]
        return [*lines, "A comment is the line of the law that the statements below it compute."]

    def _constants(self, text: str) -> list[str]:
        lines, notes = [], {}
        for (part, name), found in zip(self.program.fields(), self._fields(), strict=True):
            note = _notes(part).get(name, "")
            for field in found if isinstance(found, tuple) else (found,):
                notes[field.name] = (field, note)
                note = ""  # of a row it stands once
        if self.stochastic:
            notes["RANDOM_BITS"] = (leading_bits_mask(24), "the bits of a random word that count")
        for name, (number, note) in notes.items():
            if re.search(rf"\b{name}\b", text):
                lines += [f"/* {note} */"] if note else []
                lines += [f"static const int32_t {name} = {_number(int(number))};"]
        return lines

    def _main(self) -> list[str]:
        x, expected, sizes = self._vectors()
        given = f", UINT64_C({_KEY:#x}), UINT64_C({_START:#x})" if self.stochastic else ""
        call = self.name if self.blocks else f"{self.name}_array"
        return [
            "#ifdef SELF_CHECK",
            "#include <stdio.h>",
            "",
            f"static const uint32_t inputs[{x.size}] = {{",
            *_table(x),
            "};",
            f"static const uint32_t expected[{x.size}] = {{",
            *_table(expected),
            "};",
            "",
            "int main(void)",
            "{",
            f"    static float x[{x.size}], result[{x.size}];",
            f"    const size_t count = {x.size};",
            "    size_t i, wrong = 0;",
            "    memcpy(x, inputs, sizeof x);",
            f"    {call}(x, result, {sizes}{given});",
            "    for (i = 0; i < count; ++i) {",
            "        uint32_t found;",
            "        memcpy(&found, result + i, sizeof found);",
            "        if (found != expected[i]) {",
            "            ++wrong;",
            '            printf("%08lx becomes %08lx, expected is %08lx\\n", (unsigned long)inputs[i],',
            "                   (unsigned long)found, (unsigned long)expected[i]);",
            "        }",
            "    }",
            '    printf("%lu of %lu vectors differ\\n", (unsigned long)wrong, (unsigned long)count);',
            "    return wrong > 0;",
            "}",
            "#endif",
        ]

    def _vectors(self) -> tuple[np.ndarray, np.ndarray, str]:
        """Inputs, their results, and the sizes in a call."""
        key = _KEY if self.stochastic else None
        if not self.blocks:
            x = vector_inputs(self.number, np.dtype(np.float32), 64, 0)
            x = x[np.linspace(0, x.size - 1, min(_VECTORS, x.size)).astype(int)]
            return x, quantize(x, self.number, self.mode, key=key, start=_START if key else 0), str(x.size)
        count = _block_size(self.number)
        blocks = max(4, _VECTORS // count)
        rng = np.random.default_rng(0)
        x = np.ldexp(rng.standard_normal((blocks, count)), rng.integers(-20, 20, (blocks, 1))).astype(np.float32)
        x[1, ::2], x[2, 0], x[3] = 0, 2.0**-140, 0
        return x, self.law(x), f"{blocks}, {count}"

    def law(self, x: np.ndarray) -> np.ndarray:
        """The results of the law on arrays for the rows of x as blocks, with the random words of the vectors."""
        word = None
        if self.stochastic:
            high, low = (np.int32(as_lane(one)) for one in (_START >> 32, _START & 0xFFFFFFFF))
            window = np.array([high, low, leading_bits_mask(24)], np.int32)
            noise = Noise(np.array([_KEY >> 32, _KEY & 0xFFFFFFFF], np.uint32).view(np.int32), window)
            with np.errstate(over="ignore"):
                arange = partial(np.arange, dtype=np.int32)
                word = rounding_words(arange, x.shape, noise, self.mode.rounds_distance)
        with np.errstate(all="ignore"):
            return self.program.run(Names, x.view(np.int32), self.constants, (1,), word).view(np.float32)

    def header(self) -> str:
        """The file that declares the functions, for C and C++."""
        guard = f"{self.name.upper()}_H"
        lines = [f"/* {self._title()} See {self.name}.c. */", f"#ifndef {guard}", f"#define {guard}", ""]
        lines += ["#include <stddef.h>", "#include <stdint.h>", "", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
        lines += [f"{one};" for one in self._prototypes()]
        return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""])

    def verilog(self) -> str:
        """The import for SystemVerilog by DPI-C."""
        lines = [f"// {self._title()} Compile {self.name}.c into the simulation."]
        if self.blocks:
            shape = f"[0:{_block_size(self.number) - 1}]"
            noise = ["input longint unsigned key", "input longint unsigned start"] if self.stochastic else []
            arguments = [f"input shortreal x {shape}", f"output shortreal result {shape}"]
            arguments += ["input longint unsigned blocks", "input longint unsigned count", *noise]
            lines += [f"// One block of {_block_size(self.number)} elements: blocks is 1, and count is their number."]
            return "\n".join([*lines, f'import "DPI-C" function void {self.name}(', _listed(arguments), ");", ""])
        noise = ["input longint unsigned key", "input longint unsigned index"] if self.stochastic else []
        lines += ["// Of the bits of a float32 number, see $shortrealtobits."]
        arguments = _listed(["input int unsigned bits", *noise])
        return "\n".join([*lines, f'import "DPI-C" function int unsigned {self.name}_bits(', arguments, ");", ""])


def identifier(text: str) -> str:
    """A part of C names for a format: other formats have other parts, and no part has more than 75 letters.

    A name of ours, or a kind with natural numbers such as fixed_8_4, says all. Other texts have signs that names cannot
    have, or are names of users: their digest follows.
    """
    words = re.sub(r"\W+", "_", text).strip("_")
    if text in NAMED or re.fullmatch(r"[a-z]+\(\d+(, ?\d+)*\)", text):
        return words
    return f"{words[:60].rstrip('_')}_x{sha256(text.encode()).hexdigest()[:12]}"


_LEAST, _MOST = _ALL = -(1 << 31), (1 << 31) - 1


def _exact(pattern: str, ranges: list[tuple[int, int]]) -> tuple[int, int]:
    """Bounds of an operation's result before it wraps around, from the bounds of its operands."""
    (low, high), *others = ranges
    match pattern, others:
        case "{} + {}", [(least, most)]:
            return low + least, high + most
        case "{} - {}", [(least, most)]:
            return low - most, high - least
        case "{} * {}", [(least, most)]:
            ends = [a * b for a in (low, high) for b in (least, most)]
            return min(ends), max(ends)
        case "{} << {}", [(least, most)] if least >= 0:
            ends = [a << min(b, 32) for a in (low, high) for b in (least, most)]
            return min(ends), max(ends)
        case "{} >> {}", [(least, most)] if least >= 0:
            ends = [a >> b for a in (low, high) for b in (least, most)]
            return min(ends), max(ends)
        case "{} & {}", [(least, most)] if max(low, least) >= 0:
            return 0, min(most_ for least_, most_ in (ranges[0], ranges[1]) if least_ >= 0)
        case (("{} & {}" | "{} | {}" | "{} ^ {}"), [(least, most)]):
            bits = max(one.bit_length() if one >= 0 else (~one).bit_length() for one in (low, high, least, most))
            return 0 if min(low, least) >= 0 else -(1 << bits), (1 << bits) - 1
        case "~{}", []:
            return ~high, ~low
        case "-{}", []:
            return -high, -low
        case "", []:
            return low, high  # a maximum
        case "{0} < {1} ? {1} : {0}", [(least, most)]:
            return max(low, least), max(high, most)
        case "{0} > {1} ? {1} : {0}", [(least, most)]:
            return min(low, least), min(high, most)
        case "{} ? {} : {}", [a, b]:
            return min(a[0], b[0]), max(a[1], b[1])
        case "float32_bits({})", [] if low >= 0:
            return 0, 0x4F000000
        case "bits32(to_float32({}) / to_float32({}))", [(least, _)] if low >= 0 and least > 0:
            return 0, 0x4F000000
    return (0, 1) if pattern[3:5].strip() in ("<", "<=", ">", ">=", "==", "!=") else _ALL


def _listed(arguments: Sequence[str]) -> str:
    return ",\n".join(f"    {one}" for one in arguments)


def _block_size(number: BlockNumber) -> int:
    """The number of elements in a block; for formats without a size, the number that vectors have."""
    for ndim in (1, 2, 3):
        with suppress(ValueError):
            sizes = number.block_sizes(ndim)
            if any(size != 1 for size in sizes):
                return prod(size for size in sizes if size is not None) if None not in sizes else _BLOCK
    return _BLOCK


def _number(number: int) -> str:
    if number == -(1 << 31):
        return "(-0x7FFFFFFF - 1)"
    return f"{number}" if abs(number) < 1024 else f"{'-' if number < 0 else ''}0x{abs(number):08X}"


def _table(x: np.ndarray) -> list[str]:
    words = [f"0x{word:08X}" for word in bits_of(x).ravel().tolist()]
    return [f"    {', '.join(words[i : i + 8])}," for i in range(0, len(words), 8)]


@cache
def _notes(part: type[Any]) -> dict[str, str]:
    """The sentences of a class's docstring on its attributes, by name."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(part.__doc__ or "").splitlines():
        if start := re.fullmatch(r"\s+((?:[a-z_]+, )*[a-z_]+): (.+)", line):
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2])
        elif names and line.startswith(" " * 8):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found
