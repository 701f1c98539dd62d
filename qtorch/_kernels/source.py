"""C for a traced law: the statements that fill the template `kernel.c`, for each run, block and element.

The passes of a kernel over a tensor:

    reduce_tensor      maxima of the whole tensor            tensor_values      values that follow from these maxima
    reduce_blocks      maxima of each block                  block_values       values that follow from these maxima
    elements           the results

Every pass computes the values of its own level again: that takes less time than reading them from memory would. Values
of lower levels are kept in memory for it ("handed"). docs/inside.md shows the whole C of one kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import NamedTuple

from qcore.trace import BLOCK, C_TYPES, CONSTANT, ELEMENT, TENSOR, Trace, Value, needed
from qcore.writer import WRITER, pointer

VALUES = Path(__file__).with_name("values.h")


class Argument(NamedTuple):
    """An array that a kernel reads: with an entry for each element or block, or of any size if `level` is CONSTANT.

    The text of its values is `name[j]`, or for CONSTANT an entry such as `name[3]`.
    """

    name: str
    dtype: str
    level: int = CONSTANT


class Result(NamedTuple):
    """A value that a kernel writes, and the type of the array that it is written to."""

    name: str
    value: Value
    dtype: str


@dataclass
class Kernel:
    """A traced law, and the arrays that it reads and writes.

    Attributes:
        trace: the values of the law.
        arguments, results: the arrays, in the order in which a call gives their addresses, after the sizes.
        sizes: the number of sizes in a call: 1, the number of elements; 4, the rows and columns of the tensor as a
            matrix and of its blocks; or 7, with the three of `Call` in `kernel.c` for the growth of indices.
        columns: true if blocks are one column wide, so that neighbours belong to different blocks.
        staged: true if bytes are widened, and narrowed, for a whole chunk at a time. A vector of bytes would need more
            registers for its lanes than there are, and the run of a block may be shorter than the vector.
        lane: the dtype of maxima.
        width: the columns of a block if the kernel is compiled for this width, else 0.
        padding: the shift of maxima to the left when they are read, if passes over elements reduce high halves.
        usual: a second version with fewer operations, for tensors whose blocks are all usual; it has the same maxima.
        condition: the value of a block that is 1 if the block is usual, else 0; in the second version only.
    """

    trace: Trace
    arguments: Sequence[Argument]
    results: Sequence[Result]
    sizes: int = 1
    columns: bool = False
    staged: bool = False
    lane: str = "int32"
    width: int = 0
    padding: int = 0
    usual: Kernel | None = None
    condition: Value | None = None

    def source(self, marked: bool = False) -> str:
        """The kernel in C.

        With `marked`, comments name the places of the template, as docs/inside.md shows them.
        """
        passes, *_ = every = [_Passes(one) for one in (self, self.usual) if one]
        # Both versions share the pass that hands values of the tensor, so each must find the values of both.
        handed = {value.name: value for one in every for value in one.tensor_handed}
        for one in every:
            one.tensor_handed = list(handed.values())
        ends = zip(every, ("", "_usual"), strict=False)
        results = (_filled("results.c", one.results(end), marked) for one, end in ends)
        lines = {
            "values": [VALUES.read_text(encoding="utf-8")],
            "definitions": passes.definitions(max(len(one.block_handed) for one in every)),  # memory for either version
            **passes.loop("reduce_tensor", [one.operands[0] for one in passes.tensor_maxima]),
            **passes.loop("reduce_blocks", [one.operands[0] for one in passes.block_maxima]),
            "results": list(results),
            "tensor_values": passes.tensor_values(),
        }
        return _filled("kernel.c", lines, marked)

    def values(self, level: int) -> list[Value]:
        """The results of a level."""
        return [result.value for result in self.results if result.value.level == level]


def _filled(template: str, lines: dict[str, list[str]], marked: bool) -> str:
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    if marked:  # only a name that has a line of its own
        text = re.sub(r"^( *)\$(\w+)$", rf"\1// $$\2\n\1$\2\n\1// {template}", text, flags=re.MULTILINE)
    return Template(text).substitute({name: "\n            ".join(each) for name, each in lines.items()})


class _Passes:
    """The statements of a kernel's passes: for each name in the template, the lines of C that replace it.

    Attributes:
        tensor_maxima, block_maxima: the maxima, in the order of their places in memory.
        tensor_handed, block_handed: the values that later passes read, in the order of their places in memory.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.tensor_maxima = [one for one in kernel.trace.maxima if one.level == TENSOR]
        self.block_maxima = [one for one in kernel.trace.maxima if one.level == BLOCK]
        # Which values of lower levels each pass reads decides what the passes before it write to memory.
        elements = needed(kernel.values(ELEMENT), ELEMENT)
        reduced = needed([one.operands[0] for one in self.block_maxima], ELEMENT)
        self.block_handed = [value for value in elements if value.level == BLOCK]
        self.block_targets = self.block_handed + kernel.values(BLOCK) + ([kernel.condition] if kernel.condition else [])
        blocks = needed(self.block_targets, BLOCK)
        self.tensor_handed = [value for value in elements + reduced + blocks if value.level == TENSOR]

    def definitions(self, block_handed: int) -> list[str]:
        """The numbers and types of the kernel, as macros: the template's `#if` and array sizes read them."""
        kernel = self.kernel
        names = [one.name for one in (*kernel.arguments, *kernel.results)]
        numbers = {
            "SIZES": kernel.sizes,
            "POINTERS": len(names),
            "LANE": C_TYPES[kernel.lane],
            "LEAST": f"{kernel.lane.upper()}_MIN",
            "TENSOR_MAXIMA": len(self.tensor_maxima),
            "TENSOR_HANDED": len(self.tensor_handed),
            "BLOCKS": int(bool(self.block_maxima or self.block_handed)),
            "BLOCK_MAXIMA": len(self.block_maxima),
            "BLOCK_HANDED": block_handed,
            "USUAL": int(kernel.usual is not None),
            "ELEMENTS": int(bool(kernel.values(ELEMENT))),
            "COLUMNS": int(kernel.columns),
            "WIDTH": kernel.width,
            "WORDS": int("window" in names),
            "PLACES": int("places" in names),
        }
        numbers |= {f"P_{name}": index for index, name in enumerate(names)}
        return [f"#define {name} {value}" for name, value in numbers.items()]

    def loop(self, name: str, targets: list[Value]) -> dict[str, list[str]]:
        """A pass over elements, which writes the results or reduces the targets to maxima."""
        values = needed(targets, ELEMENT)
        read = [one for one in self.kernel.arguments if one.level == ELEMENT]
        written = [one for one in self.kernel.results if one.value.level == ELEMENT] if name == "elements" else []
        run = [self._elements(one) for one in (*read, *written)]
        end: list[str] = []
        for value in (value for value in values if value.level == BLOCK):
            place = f"(blocks + {_index(value, self.block_handed)} * stride * SLOT)"
            if self.kernel.columns:  # each element of a run has a block of its own: a second array beside x
                run.append(pointer(f"of_{WRITER.name(value)}", value.dtype, place, "block"))
            else:
                run.append(WRITER.declared(value, f"((const {C_TYPES[value.dtype]}*){place})[block]"))
        # An operation that AVX2 has for pairs only ends the loop before it, and reads what that loop left in memory.
        run += [line for value in values if value.pairs for line in self._in_pairs(value)]
        each = self._each(targets)
        if name == "elements":
            each += self._stored(ELEMENT)
        else:
            self._reduce(name, targets, run, each, end)
        return {
            f"{name}_once": self._constants(values),
            f"{name}_chunk": [line for one in read for line in self._widened(one)]
            + [self._room(one) for one in written],
            f"{name}_run": run,
            f"{name}_each": each,
            f"{name}_end": end,
            f"{name}_chunk_end": [line for one in written for line in self._narrowed(one)],
        }

    def _each(self, targets: Iterable[Value]) -> list[str]:
        """The statements that compute some values of an element, without the reading of arrays."""
        found = []
        for value in needed(targets, ELEMENT):
            if value.level == ELEMENT:
                text = f"OF_PAIRS(pairs_{value.name}[j], {WRITER.expression(value)})" if value.pairs else ""
                found.append(WRITER.declared(value, text))
            elif value.level == BLOCK and self.kernel.columns:
                found.append(WRITER.declared(value, f"of_{WRITER.name(value)}[j]"))
        return found

    def _in_pairs(self, value: Value) -> list[str]:
        """An operation on pairs of lanes: one loop writes its operands to memory, another its results over the last."""
        rooms = [f"with_{value.name}_{one.name}" for one in value.operands[:-1]] + [f"pairs_{value.name}"]
        written = [f"{room}[j] = {WRITER.name(one)};" for room, one in zip(rooms, value.operands, strict=True)]
        pragmas, loop = ["#pragma GCC ivdep", "#pragma GCC unroll 1"], "for (int32_t j = 0; j < {}; ++j) {{"
        lines = [f"LANE {room}[CHUNK] __attribute__((aligned(64)));" for room in rooms]
        lines += [*pragmas, loop.format("length"), *self._each(value.operands), *written, "}"]
        pairs = [f"((Pair*){room})[j]" for room in rooms]
        lines += [f"if (length % 2) {room}[length] = 0;" for room in rooms]  # the last pair is calculated as a whole
        pair = f"{pairs[-1]} = {value.pairs.format(*pairs)};"
        lines += [*pragmas, loop.format("(length + 1) / 2"), pair, "}"]
        return ["#if PAIRS", *lines, "#endif"]

    def _is_staged(self, one: Argument | Result) -> bool:
        """True if a chunk of an array is widened to lanes before the loops, or narrowed after them."""
        return self.kernel.staged and one.dtype in ("int8", "uint8")

    def _elements(self, one: Argument | Result) -> str:
        """The pointer to a run's elements: into the array, or into its widened chunk."""
        if not self._is_staged(one):
            return self._array(one, "at + (begin - from)")
        return f"LANE* const {one.name} = wide_{one.name} + (begin - from);"

    def _room(self, one: Argument | Result) -> str:
        return f"LANE wide_{one.name}[CHUNK] __attribute__((aligned(64)));" if self._is_staged(one) else ""

    def _widened(self, one: Argument) -> list[str]:
        if not self._is_staged(one):
            return []
        narrow = pointer(f"narrow_{one.name}", one.dtype, f"call->pointers[P_{one.name}]", "at")
        return [
            self._room(one),
            narrow,
            f"for (int64_t j = 0; j < to - from; ++j) wide_{one.name}[j] = narrow_{one.name}[j];",
        ]

    def _narrowed(self, one: Result) -> list[str]:
        if not self._is_staged(one):
            return []
        narrow = pointer(f"narrow_{one.name}", one.dtype, f"call->pointers[P_{one.name}]", "at", writable=True)
        return [
            narrow,
            f"for (int64_t j = 0; j < to - from; ++j) narrow_{one.name}[j] = ({C_TYPES[one.dtype]})wide_{one.name}[j];",
        ]

    def _stored(self, level: int) -> list[str]:
        """The statements that write the results of a level."""
        found = [one for one in self.kernel.results if one.value.level == level]
        staged = [level == ELEMENT and self._is_staged(one) for one in found]
        types = ["LANE" if wide else C_TYPES[one.dtype] for one, wide in zip(found, staged, strict=True)]
        return [f"{one.name}[j] = ({kind}){WRITER.name(one.value)};" for one, kind in zip(found, types, strict=True)]

    def _reduce(self, name: str, targets: list[Value], run: list[str], each: list[str], end: list[str]) -> None:
        """Adds the statements of maxima to the parts of a pass."""
        for index, value in enumerate(targets):
            of_blocks = f"(LANE*)(maxima + {index} * stride * SLOT) + block"
            place = of_blocks if name == "reduce_blocks" else f"(LANE*)maxima + {index}"
            if name == "reduce_blocks" and self.kernel.columns:
                run.append(f"LANE* const m{index} = {place};")
                each.append(f"m{index}[j] = MAX(m{index}[j], {WRITER.name(value)});")
            else:  # a variable of its own, which a compiler keeps in a register and splits into a vector of maxima
                run.append(f"LANE m{index} = *({place});")
                each.append(f"m{index} = MAX(m{index}, {WRITER.name(value)});")
                end.append(f"*({place}) = m{index};")

    def tensor_values(self) -> list[str]:
        """The values of the whole tensor: computed once from its maxima, then handed or written as results."""
        values = needed(self.tensor_handed + self.kernel.values(TENSOR), TENSOR)
        maxima = {
            one.name: self._maximum(f"((const LANE*)maxima)[{index}]") for index, one in enumerate(self.tensor_maxima)
        }
        lines = self._constants(value for value in values if value.level == CONSTANT)
        lines += [WRITER.declared(value, maxima.get(value.name, "")) for value in values if value.level == TENSOR]
        for index, value in enumerate(self.tensor_handed):
            lines.append(f"*({C_TYPES[value.dtype]}*)(tensor + {index} * SLOT) = {WRITER.name(value)};")
        for result in self.kernel.results:
            if result.value.level == TENSOR:
                place = f"*({C_TYPES[result.dtype]}*)call->pointers[P_{result.name}]"
                lines.append(f"{place} = {WRITER.name(result.value)};")
        return lines

    def results(self, suffix: str) -> dict[str, list[str]]:
        """The lines of `results.c`, whose functions end with the suffix."""
        return {"suffix": [suffix], **self.loop("elements", self.kernel.values(ELEMENT)), **self.block_values()}

    def block_values(self) -> dict[str, list[str]]:
        """The values of blocks: computed from their maxima, then handed or written as results."""
        values, condition = needed(self.block_targets, BLOCK), self.kernel.condition
        read = [one for one in self.kernel.arguments if one.level == BLOCK]
        written = [one for one in self.kernel.results if one.value.level == BLOCK]
        once = self._constants(values) + [self._array(one, "first") for one in (*read, *written)]
        maxima = {
            one.name: self._maximum(f"((const LANE*)(maxima + {index} * stride * SLOT))[j]")
            for index, one in enumerate(self.block_maxima)
        }
        each = [WRITER.declared(value, maxima.get(value.name, "")) for value in values if value.level == BLOCK]
        for index, value in enumerate(self.block_handed):
            each.append(f"(({C_TYPES[value.dtype]}*)(blocks + {index} * stride * SLOT))[j] = {WRITER.name(value)};")
        if condition:  # all blocks are looked at, without a branch: the loop stays one of vectors
            once.append(f"{C_TYPES[condition.dtype]} usual = 1;")
            each.append(f"usual &= {WRITER.name(condition)};")
        end = ["usual" if condition else "0"]
        return {"block_values_once": once, "block_values_each": each + self._stored(BLOCK), "block_values_return": end}

    def _maximum(self, text: str) -> str:
        return f"{text} << {self.kernel.padding}" if self.kernel.padding else text

    def _constants(self, values: Iterable[Value]) -> list[str]:
        """The statements before the loops of a pass: values that are equal for all of its elements or blocks."""
        lines = [self._array(one, "0") for one in self.kernel.arguments if one.level == CONSTANT]
        for value in values:
            if value.level == CONSTANT:
                lines.append(WRITER.declared(value))
            elif value.level == TENSOR:
                place = f"(tensor + {_index(value, self.tensor_handed)} * SLOT)"
                lines.append(WRITER.declared(value, f"*(const {C_TYPES[value.dtype]}*){place}"))
        return lines

    def _array(self, one: Argument | Result, offset: str) -> str:
        return pointer(one.name, one.dtype, f"call->pointers[P_{one.name}]", offset, isinstance(one, Result))


def _index(value: Value, values: Sequence[Value]) -> int:
    return next(index for index, one in enumerate(values) if one is value)
