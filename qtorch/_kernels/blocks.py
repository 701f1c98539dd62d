"""C for a traced law of blocks of neighbours: one pass over memory, two over each block; its loops are in `blocks.c`.

Values that a block's maxima decide are computed in the second loop. What it reads of the first one stays in arrays of a
block's size.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from qcore.trace import BLOCK, C_TYPES, CONSTANT, ELEMENT, Trace, Value
from qcore.writer import WRITER, pointer
from qtorch._kernels.source import VALUES, Argument

MOST = 4096  # elements of a block, whose arrays are on the stack
_PERMUTES = Path(__file__).with_name("permutes.h")
_CODES = {8: "bytes", 4: "halves"}  # what functions of `permutes.h` are named for


class Pairs(NamedTuple):
    """An array of codes of 4 bits, two a byte, that become a byte each before the loops. Values are `name[j]`."""

    name: str


class Permuted(NamedTuple):
    """What permutes read that decode and encode an array of codes, see `permutes.h`.

    Where a processor has such instructions, `plain_` and the array's name is an array of the bits of its numbers. The
    shorter version writes bits of numbers to `coded_` and the name; elsewhere codes, which is the array itself then.

    Attributes:
        name: of what permutes read.
        codes: the array's name.
        bits: of a code.
        signed: true if numbers may be negative.
    """

    name: str
    codes: str
    bits: int
    signed: bool


class BlockKernel(NamedTuple):
    """A traced law, and the arrays that it reads and writes.

    Attributes:
        trace: the values of the law.
        arguments: the arrays, in the order in which a call gives them.
        results: the values that are written, by the names of their arrays.
        shorter: the same results by fewer operations, for blocks that are usual; or None.
        condition: a block's value that follows from the maxima of `shorter`, and is not 0 if the block is usual.
    """

    trace: Trace
    arguments: Sequence[Argument | Pairs | Permuted]
    results: dict[str, Value]
    shorter: dict[str, Value] | None = None
    condition: Value | None = None

    def source(self) -> str:
        """The kernel in C."""
        versions = [_Version(self.results, None)]
        permuted = [one for one in self.arguments if isinstance(one, Permuted)]
        if self.shorter is not None:
            versions.insert(0, _Version(self.shorter, self.condition, permuted))
        pairs = [one for one in self.arguments if isinstance(one, Pairs)]
        arrays = [one for one in self.arguments if isinstance(one, Argument)]
        constants = {one.name: one for version in versions for one in version.values if one.level == CONSTANT}
        lines = {
            "once": [self._pointer(one, "0") for one in arrays if one.level != ELEMENT]
            + [WRITER.declared(one) for one in sorted(constants.values(), key=_number)]
            + [pointer(one.name, "uint8", self._place(one), "0") for one in permuted],
            "rooms": [_room("uint8_t", one.name) for one in pairs],
            "before": [line for one in pairs for line in self._widened(one)]
            + [self._pointer(one, "at") for one in arrays if one.level == ELEMENT]
            # Indices are below 2^32, see `qtorch._kernels.laws.random_word`.
            + ["const uint32_t low = (uint32_t)at;", "const int32_t high = 0;"]
            * ("window" in [one.name for one in arrays])
            + [line for one in permuted for line in _decoded(one)],
            "versions": [version.source() for version in versions],
            "after": [line for one in pairs for line in self._narrowed(one)],
        }
        sizes = {"pointers": str(len(self.arguments)), "most": str(MOST)}
        parts = {name: path.read_text(encoding="utf-8") for name, path in (("values", VALUES), ("permutes", _PERMUTES))}
        return _filled("blocks.c", lines, **parts, **sizes)

    def _place(self, one: Argument | Pairs | Permuted) -> str:
        return f"call->pointers[{self.arguments.index(one)}]"

    def _pointer(self, one: Argument, offset: str) -> str:
        return pointer(one.name, one.dtype, self._place(one), offset, writable=one.name in self.results)

    def _widened(self, one: Pairs) -> list[str]:
        # Two bytes as one integer of 16 bits, of which compilers make vectors.
        pair = f"bytes_{one.name}[j] >> 4 | (bytes_{one.name}[j] & 15) << 8"
        return [
            pointer(f"bytes_{one.name}", "uint8", self._place(one), "at / 2", writable=True),
            f"Both* const pairs_{one.name} = (Both*){one.name};",
            f"for (int32_t j = 0; j < length / 2; ++j) pairs_{one.name}[j] = (Both)({pair});",
        ]

    @staticmethod
    def _narrowed(one: Pairs) -> list[str]:
        pair = f"pairs_{one.name}[j] << 4 | pairs_{one.name}[j] >> 8"
        return [f"for (int32_t j = 0; j < length / 2; ++j) bytes_{one.name}[j] = (uint8_t)({pair});"]


class _Version:
    """The two loops over a block that write some results: what maxima need, and all else.

    Attributes:
        values: what is computed, each after its operands.
    """

    def __init__(self, results: dict[str, Value], condition: Value | None, permuted: Sequence[Permuted] = ()) -> None:
        self.results = results
        self.permuted = permuted
        self.condition = condition
        targets = [*results.values(), *([] if condition is None else [condition])]
        self.values = _needed(targets)
        self.maxima = [one for one in self.values if not one.text]
        self.late = _late(self.values)
        elements = [one for one in self.values if one.level == ELEMENT]
        self.first = [one for one in elements if one.name not in self.late]
        self.rest = [one for one in elements if one.name in self.late]
        # What the second loop reads of the first one; where a condition follows from it, also what it writes.
        read = {part.name for one in self.rest for part in one.operands}
        read |= {one.name for one in results.values() if condition is not None}
        self.handed = [one for one in self.first if one.name in read]

    def source(self) -> str:
        """The loops in C."""
        declared = WRITER.declared
        of_blocks = [one for one in self.values if one.level == BLOCK]
        names = {one.name for one in self.first} if self.condition is None else set()
        lines = {
            "rooms": [_room(C_TYPES[one.dtype], f"room_{one.name}") for one in self.handed],
            "before": [declared(one) for one in of_blocks if one.name not in self.late]
            + [f"int32_t {_most(one)} = INT32_MIN;" for one in self.maxima],
            "each": [declared(one) for one in self.first]
            + [f"{_most(one)} = MAX({_most(one)}, {WRITER.name(one.operands[0])});" for one in self.maxima]
            + [f"room_{one.name}[j] = {WRITER.name(one)};" for one in self.handed]
            + self._stored("j", names),
            "maxima": [declared(one, "" if one.text else _most(one)) for one in of_blocks if one.name in self.late],
            "of_block": self._stored("block", {one.name for one in of_blocks}),
            "rest": [declared(one, f"room_{one.name}[j]") for one in self.handed]
            + [declared(one) for one in self.rest]
            + self._stored("j", {one.name for one in (*self.rest, *self.handed)} - names),
            "end": [line for one in self.permuted for line in _encoded(one)],
        }
        return _filled("block.c", lines, condition="1" if self.condition is None else WRITER.name(self.condition))

    def _stored(self, index: str, names: Container[str]) -> list[str]:
        """The statements that write the results among some values."""
        return [
            f"{name}[{index}] = {WRITER.name(value)};" for name, value in self.results.items() if value.name in names
        ]


def _filled(name: str, lines: dict[str, list[str]], **texts: str) -> str:
    template = Template(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return template.substitute(texts, **{name: "\n            ".join(each) for name, each in lines.items()})


def _number(value: Value) -> int:
    return int(value.name[1:])


def _needed(targets: Iterable[Value]) -> list[Value]:
    """What values are made of, each after its operands."""
    found: dict[str, Value] = {}

    def visit(value: Value) -> None:
        if value.name not in found:
            found[value.name] = value
            for operand in value.operands:
                visit(operand)

    for target in targets:
        visit(target)
    return sorted(found.values(), key=_number)


def _late(values: Iterable[Value]) -> set[str]:
    """The names of the values that maxima decide, and of the maxima."""
    found: set[str] = set()
    for value in values:
        if not value.text or any(one.name in found for one in value.operands):
            found.add(value.name)
    return found


def _most(maximum: Value) -> str:
    return f"most_{maximum.name}"


def _room(kind: str, name: str) -> str:
    return f"{kind} {name}[ROOM] __attribute__((aligned(64)));"


def _decoded(one: Permuted) -> Iterator[str]:
    """The numbers of an array of codes; and where the shorter version writes."""
    yield "#if PERMUTES"
    yield _room("int32_t", f"plain_{one.codes}")
    yield _room("int32_t", f"coded_{one.codes}")
    yield f"decode_{_CODES[one.bits]}({one.codes}, {one.name}, plain_{one.codes}, length);"
    yield "#else"
    yield f"uint8_t* const coded_{one.codes} = {one.codes};"
    yield "#endif"


def _encoded(one: Permuted) -> Iterator[str]:
    yield "#if PERMUTES"
    yield f"encode_{_CODES[one.bits]}(coded_{one.codes}, {one.name}, {one.codes}, length, {int(one.signed)});"
    yield "#endif"
