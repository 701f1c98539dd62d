"""A dot product of an accumulator as C: codes of a and of b and an addend in, the bits of their sum out.

`qcore.cli.terms` runs the law of products. Doubles are those of the law: all operations are exact, or rounded as IEEE
754 says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from qcore.arguments import quoted
from qcore.cli.c_helpers import called_in
from qcore.cli.c_text import Body, identifier, listed, table
from qcore.cli.emit_formats import Decoder
from qcore.cli.sum_inputs import draw
from qcore.cli.sums import Unit
from qcore.cli.terms import WHOLE, Fold, Terms
from qcore.law.carrier import FLOAT32
from qcore.linalg import law
from qcore.linalg.accumulator import FLOAT32_NUMBER, Accumulator, check_accumulator
from qcore.linalg.geometry import FORWARD, MatrixGeometry
from qcore.packing import storage
from qcore.trace import BLOCK, C_TYPES, ELEMENT

_SIZE, _TERMS = 5632, 32  # of the vectors: numbers of a, in whole rows; terms of a row at least
_SIDES = {"x": "a", "y": "b", "scale_x": "scale_a", "scale_y": "scale_b"}  # numbers, and their codes
_TAKEN = (*_SIDES, *_SIDES.values(), "c", "k", "begin", "end", "stop", "total", "addend", "sum", "size")


class SumUnit:
    """A dot product of an accumulator as C.

    Args:
        accumulator: an accumulator, its text, or the name of an instruction.
        operands: the texts of the operands' formats; None is those of the instruction, or float32.

    Attributes:
        name: of the function.

    Raises:
        ValueError: if the accumulator, or an operand, cannot be written.
    """

    includes = "float", "stddef", "stdint", "string"

    def __init__(self, accumulator: Any, operands: Sequence[str] | None = None) -> None:
        self.accumulator, self.operands = check_accumulator(accumulator), operands
        _check(self.accumulator)
        first, second = operands or (None, None)
        self.unit = Unit(self.accumulator.text, first, second, _terms(self.accumulator), None)
        self.numbers, self.scale = self.unit.numbers, self.unit.scale
        design = self.accumulator.design
        self._text = self.accumulator.text if design is None else design.name
        words = [self._text, *(number.text for number in self.numbers)]
        name = "_".join(map(identifier, words)) if design is None else design.name.replace(".", "_")
        self.name = f"dot_{name}"
        self.trace = Terms(self.accumulator, self.unit.product.block)
        sums = self.unit.product.sums(MatrixGeometry(), FORWARD, (1, WHOLE), (WHOLE, 1), (WHOLE, 1), True)
        array: Any = self.trace.array
        scales = None if self.scale is None else (array("scale_x"), array("scale_y"))
        addend = self.trace.value("addend", "float32", BLOCK)
        self.result = law.multiply(self.trace, array("x"), array("y"), sums, scales, addend)

    @property
    def title(self) -> str:
        of = " and ".join(dict.fromkeys(number.text for number in self.numbers))
        return f"The sum of an addend and of products of {of}: {self._text}."

    @property
    def options(self) -> str:
        """Those of `qbits emit-c`."""
        operands = "".join(f" '{text}'" for text in self.operands or ())
        return f"'{self._text}'{' --operands' + operands if operands else ''}"

    @property
    def about(self) -> list[str]:
        """What a reader of the file should know."""
        lines = [f"{self.name} takes count codes of a and of b, and the bits of a float32 addend."]
        if self.trace.block:
            lines += [f"Each {self.trace.block} of them have the code of a scale in scale_a and scale_b."]
        whole = self.trace.block or (self.accumulator.innermost.tree and self.accumulator.innermost.chunk)
        lines += [f"count is a multiple of {whole}."] if whole else []
        lines += ["The bits of the float32 result are those of qcore.linalg.matmul. Doubles are IEEE 754's."]
        return lines

    @property
    def _codes(self) -> list[str]:
        """The parameters that are codes."""
        numbers = dict(zip("ab", self.numbers, strict=True))
        numbers |= {} if self.scale is None else {"scale_a": self.scale, "scale_b": self.scale}
        return [f"const uint{storage(number.bits)}_t *{name}" for name, number in numbers.items()]

    @property
    def prototypes(self) -> list[str]:
        """The function that others call."""
        return [f"uint32_t {self.name}({', '.join(self._codes)}, size_t count, uint32_t c)"]

    @property
    def body(self) -> str:
        """Constants, functions, and the program that checks them."""
        main = [*self._sums(), *self._function(), "", *self._main()]
        roundings = [line for one in self.trace.roundings.values() for line in one.function()]
        functions = "\n".join([*roundings, *main])
        for name, lines in reversed([*self._numbers()]):
            if f"{name}(" in functions:
                functions = "\n".join([*lines, functions])
        return "\n".join([*DOUBLES, *called_in(functions), "", functions, ""])

    @property
    def _decoders(self) -> dict[str, Decoder]:
        """What decodes, by the format's text; float32 codes are the bits of numbers."""
        found = {number.text: number for number in (*self.numbers, self.scale) if number not in (None, FLOAT32_NUMBER)}
        laws = {text: number.decoding(FLOAT32) for text, number in found.items()}
        return {text: Decoder(program, integers, "") for text, (program, integers) in laws.items()}

    def _numbers(self) -> Iterator[tuple[str, list[str]]]:
        """The functions that read codes."""
        for text, decoder in self._decoders.items():
            name, body = _number_of(text), decoder.body
            lines = ["    const int32_t code = lane(word);", *body.commented(body.results, ELEMENT, "    ")]
            constants = [f"    {line}" for line in decoder.constants.declared("\n".join(lines))]
            lines = [f"static float {name}(uint32_t word)", "{", *constants, *lines]
            yield name, [*lines, f"    return number_of({body.name(body.results[0])});", "}", ""]
        order = self.trace.order
        for declared, number in zip(self._codes, (*self.numbers, self.scale, self.scale), strict=False):
            side = declared.rpartition("*")[2]
            name, place = f"term_of_{side}", "k"
            if order:
                place = f"k / {len(order)} * {len(order)} + order[k % {len(order)}]"
            lines = [f"static float {name}({declared}, size_t k, size_t count)", "{"]
            if order:
                lines += [f"    static const size_t order[{len(order)}] = {{{', '.join(map(str, order))}}};"]
            lines += [f"    const size_t place = {place};"]
            missing = "0x1p-127f" if side.startswith("scale") and self._powers else "0.0f"
            # Instructions do not read the sign bit of scales, see `Unit.scale_numbers`.
            code = f"{side}[place] & 0x7F" if missing == "0.0f" and side.startswith("scale") else f"{side}[place]"
            lines += [f"    return place < count ? {self._decoded(number, code)} : {missing};", "}", ""]
            yield name, lines

    @property
    def _powers(self) -> bool:
        """True for scales that are powers of two, which have no zero."""
        design = self.accumulator.design
        return design is not None and design.scale == "e8m0"

    def _decoded(self, number: Any, code: str) -> str:
        return f"number_of(lane({code}))" if number == FLOAT32_NUMBER else f"{_number_of(number.text)}({code})"

    def term(self, side: str, index: str, stop: str) -> str:
        """C for a number at an index; 0 from `stop` on, where missing terms are zeros."""
        if side.startswith("scale"):
            return f"term_of_{_SIDES[side]}({_SIDES[side]}, {index}, end / {self.trace.block})"
        if self.trace.order:
            return f"term_of_{_SIDES[side]}({_SIDES[side]}, {index}, count)"
        if stop:
            return f"term_of_{_SIDES[side]}({_SIDES[side]}, {index}, {stop})"
        return self._decoded(self.numbers["xy".index(side)], f"{_SIDES[side]}[{index}]")

    def _sums(self) -> Iterator[str]:
        """The functions of folds."""
        codes = ", ".join([*self._codes, *(["size_t count"] if self.trace.order else [])])
        for fold in self.trace.folds:
            step = f"begin += {fold.length}" if fold.length else "begin = end"
            inside = _Step(self, fold).lines()
            yield from [f"static double {fold.name}(double total, {codes}, size_t begin, size_t end)", "{"]
            yield from ["    size_t k;"] if any("for (k" in line for line in inside) else []
            yield from [f"    for (; begin < end; {step}) {{", *inside, "    }", "    return total;", "}", ""]

    def _function(self) -> Iterator[str]:
        body, order = Body(self.trace, [self.result], _TAKEN), len(self.trace.order)
        yield from [self.prototypes[0], "{"]
        if order:
            yield f"    const size_t size = (count + {order - 1}) / {order} * {order};"
        yield "    const float addend = number_of(lane(c));"
        yield from body.commented([self.result], BLOCK, "    ")
        yield f"    const float sum = (float){body.name(self.result)};"
        yield f"    return sum != sum ? UINT32_C(0x{self.accumulator.nan:08X}) : (uint32_t)bits_of(sum);"
        yield "}"

    def _main(self) -> Iterator[str]:
        """The program that compares the function with hard sums."""
        terms = self.unit.terms
        rows = max(_SIZE // terms, 11)  # each kind of inputs once at least
        _, given = draw(self.unit, rows, 0)
        expected = self.unit.run(given).result.view(np.uint32).reshape(-1)
        yield from ["#ifdef SELF_CHECK", "#include <stdio.h>", ""]
        names = (one.rpartition("*")[2] for one in self._codes)
        tables = dict(zip(names, (given.a, given.b, *(given.scales or ())), strict=True))
        for name, codes in tables.items():
            yield f"static const uint{8 * codes.itemsize}_t {name}[{rows}][{codes.shape[1]}] = {{"
            for row in codes.tolist():
                words = [f"0x{code:0{2 * codes.itemsize}X}" for code in row]
                lines = [", ".join(words[i : i + 16]) for i in range(0, len(words), 16)]
                yield from [f"    {{{lines[0]}" + ("," if lines[1:] else "},")]
                yield from (f"     {line}" + ("," if line is not lines[-1] else "},") for line in lines[1:])
            yield "};"
        for name, words in (("c", given.c.view(np.uint32)), ("expected", expected)):
            yield from [f"static const uint32_t {name}[{rows}] = {{", *table(words), "};"]
        passed = ", ".join(f"{name}[i]" for name in tables)
        yield from [
            "",
            "int main(void)",
            "{",
            "    size_t i, wrong = 0;",
            f"    for (i = 0; i < {rows}; ++i) {{",
            f"        const uint32_t found = {self.name}({passed}, {terms}, c[i]);",
            "        if (found != expected[i]) {",
            "            ++wrong;",
            '            printf("sum %lu is %08lx, expected is %08lx\\n", (unsigned long)i, (unsigned long)found,',
            "                   (unsigned long)expected[i]);",
            "        }",
            "    }",
            f'    printf("%lu of {rows} vectors differ\\n", (unsigned long)wrong);',
            "    return wrong > 0;",
            "}",
            "#endif",
        ]

    @property
    def verilog(self) -> list[str]:
        """The import for SystemVerilog by DPI-C."""
        types = {8: "byte", 16: "shortint", 32: "int"}
        terms, block = self.unit.terms, self.trace.block
        arguments = []
        for declared in self._codes:
            width, side = int(declared.partition("_t")[0].rpartition("int")[2]), declared.rpartition("*")[2]
            size = terms // block if side.startswith("scale") else terms
            arguments.append(f"input {types[width]} unsigned {side} [0:{size - 1}]")
        arguments += ["input longint unsigned count", "input int unsigned c"]
        lines = [f"// Of {terms} codes: count is their number. The addend and the result: see $shortrealtobits."]
        return [*lines, f'import "DPI-C" function int unsigned {self.name}(', listed(arguments), ");"]


DOUBLES = (
    "#if FLT_EVAL_METHOD != 0 || defined __FAST_MATH__",
    '#error "doubles must be those of IEEE 754"',
    "#endif",
    "",
)


def _check(accumulator: Accumulator) -> None:
    """Raises for accumulators that cannot be written."""
    order, runs = (), list[Accumulator]()
    while True:
        runs.append(accumulator)
        if accumulator.inner is None:
            break
        accumulator = accumulator.inner
    text = quoted(runs[0].text)
    if runs[0].stochastic:
        raise ValueError(
            f"accumulator={text} rounds stochastically, by the place of an element in its matrix; allowed are other "
            "roundings"
        )
    for depth, one in enumerate(runs):
        outer = runs[depth - 1].chunk if depth else None
        if one.order and (order or (depth and (outer is None or outer % len(one.order)))):
            raise ValueError(
                f"accumulator={text} has an order inside of chunks; allowed is one order, of a number of terms that "
                "divides the chunks around it"
            )
        order = order or one.order


def _terms(accumulator: Accumulator) -> int:
    """The terms of a vector: whole chunks, two or more of them unless they are long."""
    chunk = accumulator.chunk or _TERMS
    return -(-max(2 * chunk, _TERMS) // chunk) * chunk if chunk <= 128 else chunk if chunk <= 256 else 256


def _number_of(text: str) -> str:
    return f"number_of_{identifier(text)}"


class _Step(Body):
    """What the function of a fold does for one chunk."""

    def __init__(self, unit: SumUnit, fold: Fold) -> None:
        super().__init__(unit.trace, [fold.result], _TAKEN)
        self._unit, self._fold = unit, fold
        self.variables |= {one.name for one in self.values if one.running}

    def lines(self) -> list[str]:
        """The statements of the loop over chunks."""
        indent, result = " " * 8, self.results[0]
        inside = [*self._of_chunk(self._needed([result]), indent), f"{indent}total = {self.name(result)};"]
        numbers = [f"{indent}{self._number(one)}" for one in self.values if one.side and one.level == BLOCK]
        length, lines = self._fold.length, [*sorted(numbers), *inside]
        if any("stop" in line for line in lines):
            stop = f"end - begin < {length} ? end : begin + {length}" if length else "end"
            lines.insert(0, f"{indent}const size_t stop = {stop};")
        return lines

    def _number(self, value: Any) -> str:
        """The declaration of a number of the chunk."""
        place = f"begin / {self._unit.trace.block}" if value.side.startswith("scale") else "begin"
        place += f" + {value.terms[0]}" if value.terms[0] else ""
        stop = "" if self._fold.length == 1 else "stop"
        return f"const float {value.text} = {self._unit.term(value.side, place, stop)};"

    def _needed(self, targets: Iterable[Any]) -> list[Any]:
        """The values of the chunk that targets depend on, also by the terms of loops, each after its operands."""
        found, left = dict[str, Any](), [*targets]
        while left:
            value = left.pop()
            if value.name not in found:
                found[value.name] = value
                left += value.operands
        needed = (one for one in found.values() if one.level == BLOCK and one.parts and one.name in self.variables)
        return sorted(needed, key=lambda one: int(one.name[1:]))

    def _of_chunk(self, values: list[Any], indent: str) -> Iterator[str]:
        done, last = set[str](), ""
        for value in values:
            if value.name in done:
                continue
            if not value.running:
                yield from self.comment(value, indent) if value.function != last else []
                yield indent + self.declared(value)
                done.add(value.name)
            else:
                loop = [one for one in values if self._joins(one, value, done)]
                yield from self._loop(loop, indent)
                done |= {one.name for one in loop}
            last = "" if value.running else value.function or last

    def _joins(self, value: Any, first: Any, done: set[str]) -> bool:
        """True for sums and maxima over the terms of a loop that depend on nothing that is not computed yet."""
        if not value.running or value.name in done or value.parts[1].terms != first.parts[1].terms:
            return False
        return value is first or {one.name for one in self._needed([value])} - {value.name} <= done

    def _loop(self, values: Sequence[Any], indent: str) -> Iterator[str]:
        """The loop over terms that computes sums and maxima."""
        for one in values:
            yield from self.comment(one, indent)
            yield f"{indent}{C_TYPES[one.dtype]} {self.name(one)} = {self.part(one.parts[0])};"
        terms = [one.parts[1] for one in values]
        first, end = terms[0].terms
        until = "k < stop" + (f" && k < begin + {end}" if end != self._fold.length and self._fold.length else "")
        yield f"{indent}for (k = begin{f' + {first}' if first else ''}; {until}; ++k) {{"
        inner = f"{indent}    "
        lines = self.commented(terms, ELEMENT, inner)
        for one in values:
            name, term = self.name(one), self.part(one.parts[1])
            added = f"{name} + {term}" if one.text == "{} + {}" else f"at_least({name}, {term})"
            lines.append(f"{inner}{name} = {added};")
        read = [one for one in self.values if one.side and one.level == ELEMENT]
        for one in sorted(read, key=lambda one: one.text):
            if re.search(rf"\b{one.text}\b", "\n".join(line for line in lines if "/*" not in line)):
                yield f"{inner}const float {one.text} = {self._unit.term(one.side, 'k', '')};"
        yield from [*lines, f"{indent}}}"]
