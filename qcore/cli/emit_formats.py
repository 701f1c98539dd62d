"""A format as C: rounding of float32 numbers, codes of numbers, and numbers of codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import numpy as np

from qcore.arguments import quoted
from qcore.cli.c_helpers import called_in
from qcore.cli.c_text import Body, Constants, Reading, identifier, listed, number_text, table
from qcore.cli.properties import why_no_codes
from qcore.cli.vectors import vector_inputs
from qcore.formats.block import BlockNumber
from qcore.formats.number import prepare
from qcore.law.carrier import FLOAT32
from qcore.law.program import Decoding, Program
from qcore.law.rounding import Rounding, rounds_distance
from qcore.law.table import FEW
from qcore.namespace import Names
from qcore.random.threefry import Noise, as_lane, leading_bits, leading_bits_mask, rounding_words, threefry
from qcore.trace import BLOCK, CONSTANT, ELEMENT, TENSOR, Value

_KEY, _START = 0x0123_4567_89AB_CDEF, 2**32 - 7  # of the vectors; indices pass 2^32
_VECTORS, _BLOCK = 256, 32  # numbers; elements of a block where the format has no size


class FormatUnit:
    """A format under a mode as C.

    Attributes:
        name: the prefix of all functions' names.
    """

    includes = "stddef", "stdint", "string"

    def __init__(self, number: Any, mode: Rounding) -> None:
        self.number, self.mode = number, mode
        self.name = f"round_{identifier(number.text)}_{mode.value}"
        self.stochastic, self.blocks = mode.stochastic, isinstance(number, BlockNumber)
        program, integers = prepare(number, mode, FLOAT32, None, False)
        check_traced(number, mode, program)
        self.rounding = _Rounding(program, integers, self.blocks)
        self.encoding: _Rounding | None = None
        self.decoding: Decoder | None = None
        if not why_no_codes(number):
            self.encoding = _Rounding(*prepare(number, mode, FLOAT32, None, True), self.blocks, "CODE_")
            with suppress(ValueError):  # numbers that float32 lacks
                self.decoding = Decoder(*number.decoding(FLOAT32))

    @property
    def title(self) -> str:
        codes = ", and to its codes" if self.encoding else ""
        return f"Rounds float32 numbers to {self.number.text}{codes}, {self.mode.value}."

    @property
    def prototypes(self) -> list[str]:
        """The functions of the file."""
        name, start = self.name, ", uint64_t key, uint64_t start" if self.stochastic else ""
        noise = ", uint64_t key, uint64_t index" if self.stochastic else ""
        sizes = "size_t blocks, size_t count"
        if self.blocks:
            found = [f"void {name}(const float *x, float *result, {sizes}{start})"]
            whole = self.encoding is not None and self.encoding.program.has_array_scale
            if self.encoding:
                kinds = self._stored
                to = f"{kinds[0]} *codes, {kinds[1]} *scales{', float *whole' if whole else ''}"
                found += [f"void {name}_encode(const float *x, {to}, {sizes}{start})"]
            if self.decoding:
                kinds = self._stored
                of = f"const {kinds[0]} *codes, const {kinds[1]} *scales{', float whole' if whole else ''}"
                found += [f"void {name}_decode({of}, float *result, {sizes})"]
            return found
        found = [
            f"uint32_t {name}_bits(uint32_t bits{noise})",
            f"float {name}(float x{noise})",
            f"void {name}_array(const float *x, float *result, size_t count{start})",
        ]
        found += [f"uint32_t {name}_encode(float x{noise})"] if self.encoding else []
        return found + ([f"float {name}_decode(uint32_t code)"] if self.decoding else [])

    @property
    def _stored(self) -> tuple[str, str]:
        """The C types of codes, and of blocks' scales."""
        assert self.encoding is not None
        program = self.encoding.program
        return f"uint{program.storage}_t", "float" if program.float_scales else f"uint{program.scale_storage}_t"

    @property
    def body(self) -> str:
        """Constants, functions, and the program that checks them."""
        lines = [*(self._of_blocks() if self.blocks else self._of_elements()), "", *self._main()]
        text = "\n".join(lines)
        parts = (one for one in (self.rounding, self.encoding, self.decoding) if one)
        fields = [line for one in parts for line in one.constants.declared(text)]
        return "\n".join([*fields, *called_in(text), "", text, ""])

    @property
    def options(self) -> str:
        """Those of `qbits emit-c`."""
        return f"'{self.number.text}' --rounding {self.mode.value}"

    @property
    def about(self) -> list[str]:
        """What a reader of the file should know."""
        lines = ["The bits are those of qcore.quantize. Floats are IEEE 754's; a lane is the bits of a float."]
        if self.blocks:
            lines += [f"{self.name} rounds blocks of count elements each, which lie side by side."]
        else:
            lines += [f"{self.name} rounds a number, {self.name}_bits its bits,"]
            lines += [f"and {self.name}_array count numbers."]
        if self.encoding:
            lines += ["Names with _encode are of functions that return codes, as qcore.encode does."]
        if self.decoding:
            lines += ["Names with _decode are of functions that return the numbers of codes."]
        if self.stochastic:
            lines += [
                "key is the seed. An element's index chooses its random word; start is the index of the first one."
            ]
        return lines

    # Functions.

    def _of_elements(self) -> Iterator[str]:
        of_bits, of_float, of_array, *_ = self.prototypes
        name, key, index = self.name, "", ""
        if self.stochastic:
            key = ", lane((uint32_t)(key >> 32)), lane((uint32_t)key)"
            index = ", lane((uint32_t)(index >> 32)), lane((uint32_t)index)"
        yield from self.rounding.function(f"{name}_lane")
        yield from [of_bits, "{", f"    const int32_t found = {name}_lane(lane(bits){key}{index});"]
        yield from ["    uint32_t result;", "    memcpy(&result, &found, sizeof result);", "    return result;"]
        yield from ["}", ""]
        yield from [of_float, "{", f"    return number_of({name}_lane(bits_of(x){key}{index}));", "}", ""]
        passed = ", key, start + i" if self.stochastic else ""
        yield from [of_array, "{", "    size_t i;", "    for (i = 0; i < count; ++i)"]
        yield from [f"        result[i] = {name}(x[i]{passed});", "}"]
        if self.encoding:
            yield from ["", *self.encoding.function(f"{name}_code"), self.prototypes[3], "{"]
            yield from [f"    return (uint32_t){name}_code(bits_of(x){key}{index});", "}"]
        if self.decoding:
            yield from ["", *self.decoding.function(f"{name}_number"), self.prototypes[-1], "{"]
            yield from [f"    return number_of({name}_number(lane(code)));", "}"]

    def _of_blocks(self) -> Iterator[str]:
        loops = _Loops(self.rounding.body, self.stochastic)
        yield from loops.function(self.prototypes[0], [], "", "result[i] = number_of({});")
        if self.encoding:
            loops = _Loops(self.encoding.body, self.stochastic)
            of_scales = "number_of({})" if self.encoding.program.float_scales else f"({self._stored[1]}){{}}"
            stores = (
                ["*whole = number_of({});"],
                f"scales[block] = {of_scales};",
                f"codes[i] = ({self._stored[0]}){{}};",
            )
            yield from ["", *loops.function(self.prototypes[1], *stores)]
        if self.decoding:
            yield from ["", *self._decoded_blocks(self.decoding)]

    def _decoded_blocks(self, decoding: Decoder) -> Iterator[str]:
        body, floats = decoding.body, decoding.program.scales == "floats"
        yield from [self.prototypes[-1], "{", "    size_t block, i;"]
        yield from ["    const int32_t of_all = bits_of(whole);"] if decoding.program.has_array_scale else []
        yield from body.commented([*body.handed(CONSTANT), *body.handed(TENSOR)], TENSOR, "    ")
        yield "    for (block = 0; block < blocks; ++block) {"
        yield f"        const int32_t scale = {'bits_of(scales[block])' if floats else 'scales[block]'};"
        yield from body.commented(body.handed(BLOCK), BLOCK, " " * 8)
        yield "        for (i = block * count; i < (block + 1) * count; ++i) {"
        yield "            const int32_t code = codes[i];"
        yield from body.commented(body.results, ELEMENT, " " * 12)
        yield from [f"            result[i] = number_of({body.name(body.results[0])});", "        }", "    }", "}"]

    # The program that checks itself.

    def _main(self) -> Iterator[str]:
        x, sizes = self._inputs()
        expected = self.law(x, self.rounding)
        given = f", UINT64_C({_KEY:#x}), UINT64_C({_START:#x})" if self.stochastic else ""
        call = self.name if self.blocks else f"{self.name}_array"
        yield from ["#ifdef SELF_CHECK", "#include <stdio.h>", ""]
        tables = {"inputs": x, "expected": expected[0]}
        if self.encoding:
            tables["expected_codes"], *scales = self.law(x, self.encoding)
            tables |= {"expected_scales": scales[0]} if scales else {}
            if self.decoding:
                tables["expected_numbers"] = self.decoded(tables["expected_codes"], *scales)
        for name, words in tables.items():
            yield from [f"static const uint32_t {name}[{words.size}] = {{", *table(words), "};"]
        yield from _COMPARED.splitlines()
        yield from [
            "",
            "int main(void)",
            "{",
            f"    static float x[{x.size}], result[{x.size}];",
            f"    const size_t count = {x.size};",
            "    size_t i, wrong = 0;",
            "    memcpy(x, inputs, sizeof x);",
            f"    {call}(x, result, {sizes}{given});",
            "    for (i = 0; i < count; ++i)",
            "        wrong += differs(inputs[i], bits(result[i]), expected[i]);",
            *(self._checked_blocks(x, sizes, given) if self.blocks else self._checked_codes()),
            '    printf("%lu of %lu vectors differ\\n", (unsigned long)wrong, (unsigned long)count);',
            "    return wrong > 0;",
            "}",
            "#endif",
        ]

    def _checked_codes(self) -> Iterator[str]:
        given = f", UINT64_C({_KEY:#x}), UINT64_C({_START:#x}) + i" if self.stochastic else ""
        if self.encoding:
            yield from ["    for (i = 0; i < count; ++i)"]
            yield f"        wrong += differs(inputs[i], {self.name}_encode(x[i]{given}), expected_codes[i]);"
        if self.decoding:
            yield from ["    for (i = 0; i < count; ++i)"]
            found = f"bits({self.name}_decode(expected_codes[i]))"
            yield f"        wrong += differs(expected_codes[i], {found}, expected_numbers[i]);"

    def _checked_blocks(self, x: np.ndarray, sizes: str, given: str) -> Iterator[str]:
        if not self.encoding:
            return
        (codes, scales), whole = self._stored, self.encoding.program.has_array_scale
        blocks = sizes.split(",")[0]
        yield "    {"
        yield f"        static {codes} codes[{x.size}];"
        yield f"        static {scales} scales[{blocks}];"
        yield from ["        float whole;"] if whole else []
        yield f"        {self.name}_encode(x, codes, scales, {'&whole, ' if whole else ''}{sizes}{given});"
        yield from ["        for (i = 0; i < count; ++i)"]
        yield "            wrong += differs(inputs[i], codes[i], expected_codes[i]);"
        yield f"        for (i = 0; i < {blocks}; ++i)"
        found = "bits(scales[i])" if scales == "float" else "scales[i]"
        yield f"            wrong += differs((uint32_t)i, {found}, expected_scales[i]);"
        if self.decoding:
            yield f"        {self.name}_decode(codes, scales, {'whole, ' if whole else ''}result, {sizes});"
            yield from ["        for (i = 0; i < count; ++i)"]
            yield "            wrong += differs(codes[i], bits(result[i]), expected_numbers[i]);"
        yield "    }"

    def _inputs(self) -> tuple[np.ndarray, str]:
        """The vectors, and their sizes in a call."""
        if not self.blocks:
            x = vector_inputs(self.number, np.dtype(np.float32), 64, 0)
            x = x[np.linspace(0, x.size - 1, min(_VECTORS, x.size)).astype(int)]
            return x, str(x.size)
        count = block_size(self.number)
        blocks = max(4, _VECTORS // count)
        rng = np.random.default_rng(0)
        x = np.ldexp(rng.standard_normal((blocks, count)), rng.integers(-20, 20, (blocks, 1))).astype(np.float32)
        x[1, ::2], x[2, 0], x[3] = 0, 2.0**-140, 0
        return x, f"{blocks}, {count}"

    def law(self, x: np.ndarray, rounding: _Rounding) -> tuple[np.ndarray, ...]:
        """The results of the law on arrays for the rows of x as blocks, as int32, with the words of the vectors."""
        word = None
        if self.stochastic:
            high, low = (np.int32(as_lane(one)) for one in (_START >> 32, _START & 0xFFFFFFFF))
            window = np.array([high, low, leading_bits_mask(24)], np.int32)
            noise = Noise(np.array([_KEY >> 32, _KEY & 0xFFFFFFFF], np.uint32).view(np.int32), window)
            with np.errstate(over="ignore"):
                arange = partial(np.arange, dtype=np.int32)
                word = rounding_words(arange, x.shape, noise, rounds_distance(self.mode))
        axes = (1,) if self.blocks else ()
        with np.errstate(all="ignore"):
            found = rounding.program.run(Names, x.view(np.int32), rounding.integers, axes, word)
        return found if isinstance(found, tuple) else (found,)

    def decoded(self, codes: np.ndarray, scales: Any = None, array_scale: Any = None) -> np.ndarray:
        """The numbers of codes, as int32."""
        assert self.decoding is not None
        with np.errstate(all="ignore"):
            return self.decoding.program.run(Names, codes, self.decoding.integers, scales, array_scale)

    @property
    def verilog(self) -> list[str]:
        """The imports for SystemVerilog by DPI-C."""
        name, key = self.name, ["input longint unsigned key"] if self.stochastic else []
        if self.blocks:
            count = block_size(self.number)
            start = [*key, "input longint unsigned start"] if self.stochastic else []
            arguments = [f"input shortreal x [0:{count - 1}]", f"output shortreal result [0:{count - 1}]"]
            arguments += ["input longint unsigned blocks", "input longint unsigned count", *start]
            first = f"// One block of {count} elements: blocks is 1, and count is their number."
            return [first, f'import "DPI-C" function void {name}(', listed(arguments), ");"]
        index = [*key, "input longint unsigned index"] if self.stochastic else []
        arguments = listed(["input int unsigned bits", *index])
        lines = ["// Of the bits of a float32 number, see $shortrealtobits."]
        lines += [f'import "DPI-C" function int unsigned {name}_bits(', arguments, ");"]
        if self.encoding:
            arguments = listed(["input shortreal x", *index])
            lines += [f'import "DPI-C" function int unsigned {name}_encode(', arguments, ");"]
        if self.decoding:
            lines += [f'import "DPI-C" function shortreal {name}_decode(input int unsigned code);']
        return lines


_COMPARED = r"""
static uint32_t bits(float number)
{
    uint32_t found;
    memcpy(&found, &number, sizeof found);
    return found;
}

static size_t differs(uint32_t input, uint32_t found, uint32_t right)
{
    if (found != right)
        printf("%08lx becomes %08lx, expected is %08lx\n", (unsigned long)input, (unsigned long)found,
               (unsigned long)right);
    return found != right;
}"""


def check_traced(number: Any, mode: Rounding, program: Program) -> None:
    """Raises for formats whose law is no loop over elements."""
    if not program.has_kernels:
        raise ValueError(
            f"number={quoted(number)} reads whole blocks; allowed are formats other than gguf() and nested=, and "
            "NVFP4 without four_over_six"
        )
    if program.searches:
        raise ValueError(
            f"number={quoted(number)} is searched in arrays under rounding={quoted(mode.value)}; allowed are "
            f"tables of at most {FEW} numbers, under stochastic rounding {FEW - 2}"
        )
    if getattr(number, "sub_block", None) is not None:
        raise ValueError(f"number={quoted(number)} has micro-exponents; allowed are blocks without sub-blocks")


class _Rounding:
    """What rounds numbers, or makes their codes: its constants, and the values of its trace."""

    def __init__(self, program: Program, integers: Any, blocks: bool, prefix: str = "") -> None:
        self.program, self.integers = program, integers
        self.constants = Constants(program.fields(), integers, prefix)
        trace = Reading()
        bits, word = trace.value("bits", "int32", ELEMENT), None
        if program.mode.stochastic:
            note = "the bits of a random word that count"
            mask = self.constants.add(f"{prefix}RANDOM_BITS", leading_bits_mask(24), note)
            word = _word(trace, mask, rounds_distance(program.mode))
        found = program.run(trace, bits, self.constants.given, (1,) if blocks else (), word)
        results = found if isinstance(found, tuple) else (found,)
        trace.named("", **dict(zip(("rounded", "scale", "of_all"), results, strict=False)))
        self.body = Body(trace, results, ("codes", "scales", "whole"))

    def function(self, name: str) -> Iterator[str]:
        """The function of a lane."""
        words = ", int32_t key0, int32_t key1, int32_t high, int32_t low" if self.program.mode.stochastic else ""
        yield from [f"static int32_t {name}(int32_t bits{words})", "{"]
        yield from self.body.commented(self.body.handed(CONSTANT), CONSTANT, "    ")
        yield from self.body.commented(self.body.results, ELEMENT, "    ")
        yield from [f"    return {self.body.name(self.body.results[0])};", "}", ""]


class Decoder:
    """What decodes: its constants, and the values of its trace."""

    def __init__(self, program: Decoding, integers: Any, prefix: str = "NUMBER_") -> None:
        self.program, self.integers = program, integers
        self.constants = Constants(program.fields(), integers, prefix)
        trace = Reading()
        code = trace.value("code", "int32", ELEMENT)
        scale = trace.value("scale", "int32", BLOCK) if program.scales else None
        whole = trace.value("of_all", "int32", TENSOR) if program.has_array_scale else None
        found = program.run(trace, code, self.constants.given, scale, whole)
        trace.named("", number=found)
        self.body = Body(trace, [found], ("code", "codes", "scale", "scales", "whole", "of_all"))

    def function(self, name: str) -> Iterator[str]:
        """The function of a code."""
        yield from [f"static int32_t {name}(int32_t code)", "{"]
        yield from self.body.commented(self.body.results, ELEMENT, "    ")
        yield from [f"    return {self.body.name(self.body.results[0])};", "}", ""]


def _word(trace: Reading, mask: Any, half: bool) -> Value:
    """The random word of an element."""
    key0, key1 = (trace.value(name, "int32", CONSTANT) for name in ("key0", "key1"))
    high, low = (trace.value(name, "int32", ELEMENT) for name in ("high", "low"))
    y0, y1 = threefry(key0, key1, high, low, rotate=trace.rotate_left)
    trace.named("threefry", word=[one for one in trace.values.values() if one.operands])
    word = leading_bits(y0 ^ y1, mask, half)
    trace.named("leading_bits", word=word)
    return word


class _Loops:
    """The loops over blocks, and over a block's elements, that compute the results of a body."""

    def __init__(self, body: Body, stochastic: bool) -> None:
        self.body, self.stochastic = body, stochastic

    def function(self, prototype: str, of_all: Sequence[str], of_block: str, of_element: str) -> Iterator[str]:
        """The function; the texts store the results: first the elements', then the blocks', then that of all."""
        body, (first, *more) = self.body, self.body.results
        blocks, rest = more[:1], more[1:]
        yield from [prototype, "{"]
        if self.stochastic:
            yield "    const int32_t key0 = lane((uint32_t)(key >> 32)), key1 = lane((uint32_t)key);"
            yield from body.commented(body.handed(CONSTANT), CONSTANT, "    ")
        yield "    size_t block, i;"
        yield from self._maxima(TENSOR, "    ", "0", "blocks * count")
        yield from body.commented([*body.handed(TENSOR), *rest], TENSOR, "    ")
        yield from (f"    {text.format(body.name(one))}" for text, one in zip(of_all, rest, strict=False))
        yield "    for (block = 0; block < blocks; ++block) {"
        yield from self._maxima(BLOCK, "        ", "block * count", "(block + 1) * count")
        yield from body.commented([*body.handed(BLOCK), *blocks], BLOCK, "        ")
        yield from (f"        {of_block.format(body.name(one))}" for one in blocks)
        yield from _elements("        ", "block * count", "(block + 1) * count")
        if self.stochastic:
            yield "            const int32_t high = lane((uint32_t)((start + i) >> 32));"
            yield "            const int32_t low = lane((uint32_t)(start + i));"
        yield from body.commented([first], ELEMENT, " " * 12)
        yield from [f"            {of_element.format(body.name(first))}", "        }", "    }", "}"]

    def _maxima(self, level: int, indent: str, begin: str, end: str) -> Iterator[str]:
        """The loop that finds the maxima of blocks, or of the array."""
        body = self.body
        maxima = [one for one in body.trace.maxima if one.level == level]
        if not maxima:
            return
        for one in maxima:
            yield from body.comment(one, indent)
            yield f"{indent}int32_t {body.name(one)} = {number_text(body.range(one)[0])};"
        yield from _elements(indent, begin, end)
        yield from body.commented([one.operands[0] for one in maxima], ELEMENT, f"{indent}    ")
        for one in maxima:
            text = body.part(one.operands[0])
            yield f"{indent}    {body.name(one)} = at_least({body.name(one)}, {text});"
        yield f"{indent}}}"


def _elements(indent: str, begin: str, end: str) -> list[str]:
    return [f"{indent}for (i = {begin}; i < {end}; ++i) {{", f"{indent}    const int32_t bits = bits_of(x[i]);"]


def block_size(number: BlockNumber) -> int:
    """The number of elements in a block; for formats without a size, the number that vectors have."""
    for ndim in (1, 2, 3):
        with suppress(ValueError):
            sizes = number.block_sizes(ndim)
            if any(size != 1 for size in sizes):
                return prod(size for size in sizes if size is not None) if None not in sizes else _BLOCK
    return _BLOCK
