"""C for a traced law of blocks of neighbours: one pass over memory, two over each block; its loops are in `blocks.c`.

Values that a block's maxima decide are computed in the second loop. What it reads of the first one stays in arrays of a
block's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from qcore.trace import BLOCK, C_TYPES, CONSTANT, ELEMENT, Trace, Value
from qcore.writer import WRITER, pointer
from qtorch._kernels.source import VALUES, Argument

TEMPLATE = Path(__file__).with_name("blocks.c")
MOST = 4096  # elements of a block, whose arrays are on the stack


class Pairs(NamedTuple):
    """An array of codes of 4 bits, two a byte, which become lanes of int32 before the loops. Values are `name[j]`."""

    name: str


class BlockKernel(NamedTuple):
    """A traced law, the arrays that it reads, in the order in which a call gives them, and results by their names."""

    trace: Trace
    arguments: Sequence[Argument | Pairs]
    results: dict[str, Value]

    def source(self) -> str:
        """The kernel in C."""
        values = self._values()
        late = _late(values)
        early = [one for one in values if one.level == ELEMENT and one.name not in late]
        rest = [one for one in values if one.level == ELEMENT and one.name in late]
        read = {part.name for one in rest for part in one.operands}
        handed = [one for one in early if one.name in read]
        pairs = [one for one in self.arguments if isinstance(one, Pairs)]
        arrays = [one for one in self.arguments if isinstance(one, Argument)]
        of_blocks = [one for one in values if one.level == BLOCK]
        declared = WRITER.declared
        maxima = [f"{_most(one)} = MAX({_most(one)}, {WRITER.name(one.operands[0])});" for one in self.trace.maxima]
        lines = {
            "once": [self._pointer(one, "0") for one in arrays if one.level != ELEMENT]
            + [declared(one) for one in values if one.level == CONSTANT],
            "rooms": [_room(C_TYPES[one.dtype], f"room_{one.name}") for one in handed]
            + [_room("int32_t", one.name) for one in pairs],
            "before": [line for one in pairs for line in self._widened(one)]
            + [self._pointer(one, "at") for one in arrays if one.level == ELEMENT]
            + [f"int32_t {_most(one)} = INT32_MIN;" for one in self.trace.maxima]
            # Indices are below 2^32, see `qtorch._kernels.laws.random_word`.
            + ["const uint32_t low = (uint32_t)at;", "const int32_t high = 0;"]
            * ("window" in [one.name for one in arrays])
            + [declared(one) for one in of_blocks if one.name not in late],
            "each": [declared(one) for one in early]
            + maxima
            + [f"room_{one.name}[j] = {WRITER.name(one)};" for one in handed]
            + self._stored("j", early),
            "maxima": [declared(one, "" if one.text else _most(one)) for one in of_blocks if one.name in late]
            + self._stored("block", of_blocks),
            "rest": [declared(one, f"room_{one.name}[j]") for one in handed]
            + [declared(one) for one in rest]
            + self._stored("j", rest),
            "after": [line for one in pairs for line in self._narrowed(one)],
        }
        return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
            values=VALUES.read_text(encoding="utf-8"),
            pointers=len(self.arguments),
            most=MOST,
            **{name: "\n            ".join(each) for name, each in lines.items()},
        )

    def _values(self) -> list[Value]:
        """What the results are made of, each after its operands."""
        found: dict[str, Value] = {}

        def visit(value: Value) -> None:
            if value.name not in found:
                found[value.name] = value
                for operand in value.operands:
                    visit(operand)

        for value in self.results.values():
            visit(value)
        return sorted(found.values(), key=lambda value: int(value.name[1:]))

    def _stored(self, index: str, values: Iterable[Value]) -> list[str]:
        """The statements that write the results among some values."""
        names = {one.name for one in values}
        return [
            f"{name}[{index}] = {WRITER.name(value)};" for name, value in self.results.items() if value.name in names
        ]

    def _place(self, one: Argument | Pairs) -> str:
        return f"call->pointers[{self.arguments.index(one)}]"

    def _pointer(self, one: Argument, offset: str) -> str:
        return pointer(one.name, one.dtype, self._place(one), offset, writable=one.name in self.results)

    def _widened(self, one: Pairs) -> list[str]:
        # Two lanes as one integer of 64 bits, of which compilers make vectors.
        pair = f"bytes_{one.name}[j] >> 4 | (int64_t)(bytes_{one.name}[j] & 15) << 32"
        return [
            pointer(f"bytes_{one.name}", "uint8", self._place(one), "at / 2", writable=True),
            f"Lanes* const pairs_{one.name} = (Lanes*){one.name};",
            f"for (int32_t j = 0; j < length / 2; ++j) pairs_{one.name}[j] = {pair};",
        ]

    @staticmethod
    def _narrowed(one: Pairs) -> list[str]:
        pair = f"pairs_{one.name}[j] << 4 | pairs_{one.name}[j] >> 32"
        return [f"for (int32_t j = 0; j < length / 2; ++j) bytes_{one.name}[j] = (uint8_t)({pair});"]


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
    return f"{kind} {name}[MOST] __attribute__((aligned(64)));"
