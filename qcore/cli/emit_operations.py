"""An operation as C: codes of operands in, the code of the exact result out, rounded once.

Operands of 16 bits together read a table of all results. Longer ones run the law of `qcore.arithmetic.law` on doubles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qcore.arguments import quoted
from qcore.arithmetic.call import call_of_codes, table_of
from qcore.cli.c_helpers import called_in
from qcore.cli.c_text import Body, Constants, Reading, identifier, listed, table
from qcore.cli.emit_formats import Decoder, check_traced
from qcore.cli.emit_sums import DOUBLES
from qcore.cli.operations import Header, operands
from qcore.formats.number import check_number, prepare
from qcore.law.carrier import FLOAT32, FLOAT64
from qcore.law.rounding import Rounding
from qcore.packing import storage
from qcore.trace import ELEMENT, FloatValue, Trace

_VECTORS, _RANDOM = 1024, 500


class _Doubles(Reading):
    """The array namespace of the law of operations."""

    value_type = FloatValue

    def binary(self, sign: str, a: Any, b: Any) -> Any:
        if (sign, b) == ("&", 0):  # the law's zeros are values, like others
            return Trace.binary(self, sign, a, b)
        return super().binary(sign, a, b)

    def note(self, pattern: str, *operands: Any, dtype: str = "", like: str = "") -> Any:
        # A truth is 0 or 1 in C, and not all its bits.
        pattern = "{} == 0" if pattern == "~{}" and _is_truth(operands[0]) else pattern
        return super().note(pattern, *operands, dtype=dtype, like=like)

    def divide(self, a: Any, b: Any) -> Any:
        return self.binary("/", a, b)

    def sqrt(self, x: Any) -> Any:
        return self.note("sqrt({})", x)


def _is_truth(value: Any) -> bool:
    """True for comparisons, and for what is made of them."""
    if value.text in ("{} & {}", "{} | {}", "{} ^ {}"):
        return all(_is_truth(one) for one in value.operands)
    return value.text[3:5].strip() in ("<", "<=", ">", ">=", "==", "!=")


class OperationUnit:
    """An operation on the codes of a format as C.

    Args:
        operation: its name.
        number: the text of the operands' format.
        result: the text of the result's format.
        mode: of the rounding.

    Raises:
        ValueError: if the mode is stochastic, or the library has no such operation on these formats.
    """

    def __init__(self, operation: str, number: str, result: str, mode: Rounding) -> None:
        if mode.stochastic:
            raise ValueError(f"rounding={quoted(mode.value)} of an operation; allowed are modes without random words")
        self.header = Header(
            operation, check_number(number).text, check_number(result).text, mode.value, None, None, ""
        )
        self.call = call_of_codes(operation, self.header.format, self.header.result, mode.value, None, 24, 0)
        self.operands, self.is_table = self.header.operands, self.call.is_looked_up
        texts = dict.fromkeys((self.header.format, self.header.result))
        self.name = "_".join([operation, *map(identifier, texts), mode.value])
        self.includes = ("stdint",) if self.is_table else ("float", "math", "stdint", "string")
        if not self.is_table:
            self._trace(mode)

    def _trace(self, mode: Rounding) -> None:
        self.decoder = Decoder(*check_number(self.header.format).decoding(FLOAT32))
        number = check_number(self.header.result)
        program, integers = prepare(number, mode, FLOAT64, None, True)
        check_traced(number, mode, program)
        self.constants = Constants(program.fields(), integers, "CODE_")
        trace = _Doubles()
        exact = self.call.exact(trace, *(trace.value(name, "float64", ELEMENT) for name in self.operands))
        code = program.run(trace, trace.lanes(exact), self.constants.given, ())
        trace.named("", exact=exact, code=code)
        self.body_of_law = Body(trace, [code], ("code", *(f"code_{name}" for name in self.operands)))

    @property
    def title(self) -> str:
        header = self.header
        return f"The operation {header.operation} on codes of {header.format}, to {header.result}, {header.rounding}."

    @property
    def options(self) -> str:
        """Those of `qbits emit-c`."""
        header = self.header
        formats = f"--format '{header.format}' --result '{header.result}'"
        return f"{header.operation} {formats} --rounding {header.rounding}"

    @property
    def about(self) -> list[str]:
        """What a reader of the file should know."""
        how = (
            "A table has all results." if self.is_table else "Doubles are IEEE 754's; the exact result is one of them,"
        )
        lines = [f"The codes are those of qcore.arithmetic.{self.header.operation}_codes. {how}"]
        return lines if self.is_table else [*lines, "or the one with an odd last bit beside it stands for it."]

    @property
    def prototypes(self) -> list[str]:
        """The function that others call."""
        return [f"uint32_t {self.name}({', '.join(f'uint32_t code_{name}' for name in self.operands)})"]

    @property
    def body(self) -> str:
        """Constants, functions, and the program that checks them."""
        text = "\n".join([*(self._looked_up() if self.is_table else self._computed()), "", *self._main()])
        if self.is_table:
            return text + "\n"
        fields = [*self.decoder.constants.declared(text), *self.constants.declared(text, "int64_t")]
        return "\n".join([*DOUBLES, *fields, *called_in(text), "", text, ""])

    def _looked_up(self) -> Iterator[str]:
        results = table_of(self.call)
        width = storage(check_number(self.header.result).bits)
        yield f"static const uint{width}_t results[{results.size}] = {{"
        words = [f"0x{code:0{width // 4}X}" for code in results.tolist()]
        yield from (f"    {', '.join(words[i : i + 16])}," for i in range(0, len(words), 16))
        yield from ["};", "", self.prototypes[0], "{"]
        *others, last = (f"(code_{name} & {(1 << bits) - 1}u)" for name, bits in self._widths())
        shifted = [f"{text} << {sum(self.call.widths[i + 1 :])}" for i, text in enumerate(others)]
        yield from [f"    return results[{' | '.join([*shifted, last])}];", "}"]

    def _widths(self) -> Iterator[tuple[str, int]]:
        return zip(self.operands, self.call.widths, strict=True)

    def _computed(self) -> Iterator[str]:
        yield from self.decoder.function("number_lane")
        yield from [self.prototypes[0], "{"]
        for name, bits in self._widths():
            code = f"lane(code_{name} & {(1 << bits) - 1:#x}u)"
            yield f"    const double {name} = (double)number_of(number_lane({code}));"
        yield from self.body_of_law.commented(self.body_of_law.results, ELEMENT, "    ")
        yield from [f"    return (uint32_t){self.body_of_law.name(self.body_of_law.results[0])};", "}"]

    def _main(self) -> Iterator[str]:
        """The program that compares the function with hard and random operands."""
        given = operands(self.header, _RANDOM, 0)
        rows = np.linspace(0, given[0].size - 1, min(_VECTORS, given[0].size)).astype(int)
        given = tuple(x[rows] for x in given)
        tables = dict(zip(self.operands, given, strict=True)) | {"expected": self.header.law(given)["result"]}
        yield from ["#ifdef SELF_CHECK", "#include <stdio.h>", ""]
        for name, codes in tables.items():
            yield from [f"static const uint32_t {name}[{len(rows)}] = {{", *table(codes.astype(np.uint32)), "};"]
        yield from ["", "int main(void)", "{", "    int i, wrong = 0;", f"    for (i = 0; i < {len(rows)}; ++i) {{"]
        yield f"        const uint32_t found = {self.name}({', '.join(f'{name}[i]' for name in self.operands)});"
        yield from ["        if (found != expected[i]) {", "            ++wrong;"]
        yield '            printf("row %d is %08lx, expected is %08lx\\n", i, (unsigned long)found,'
        yield from ["                   (unsigned long)expected[i]);", "        }", "    }"]
        yield f'    printf("%d of {len(rows)} vectors differ\\n", wrong);'
        yield from ["    return wrong > 0;", "}", "#endif"]

    @property
    def verilog(self) -> list[str]:
        """The import for SystemVerilog by DPI-C."""
        arguments = listed([f"input int unsigned code_{name}" for name in self.operands])
        return [f'import "DPI-C" function int unsigned {self.name}(', arguments, ");"]
