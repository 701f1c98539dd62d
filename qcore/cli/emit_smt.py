"""The rounding of a format in SMT-LIB 2, as functions of bit vectors: a solver proves that a circuit has its bits.

The law's own Python runs once on values that record operations (`qcore.trace`), as for `emit-c`. There is no float in
the text, so its logic is QF_BV, which z3, cvc5, Bitwuzla and others decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from qcore.arguments import check_choice, quoted
from qcore.arrays import decode, encode, quantize
from qcore.cli.c_text import Body, Constants, Field, Reading, identifier
from qcore.cli.emit_formats import check_traced
from qcore.cli.properties import why_no_codes
from qcore.files import write_texts
from qcore.formats.block import BlockNumber
from qcore.formats.number import Number, check_number, prepare
from qcore.law.carrier import FLOAT32, FLOAT64, Carrier
from qcore.law.rounding import Rounding, check_rounding, rounds_distance
from qcore.linalg.accumulator import Accumulator, check_accumulator, is_accumulator
from qcore.random.threefry import leading_bits, leading_bits_mask
from qcore.trace import ELEMENT, Value
from qcore.version import __version__

DTYPES = {"float32": FLOAT32, "float64": FLOAT64}
RANDOM_BITS = 24
_EXACT = 53  # bits of sums, which doubles have

_TERMS = {  # by the trace's pattern
    "{} + {}": "(bvadd {} {})",
    "{} - {}": "(bvsub {} {})",
    "{} * {}": "(bvmul {} {})",
    "{} & {}": "(bvand {} {})",
    "{} | {}": "(bvor {} {})",
    "{} ^ {}": "(bvxor {} {})",
    "{} << {}": "(bvshl {} {})",
    "{} >> {}": "(bvashr {} {})",
    "~{}": "(bvnot {})",
    "-{}": "(bvneg {})",
    "{0} < {1} ? {1} : {0}": "(at_least {0} {1})",
    "{0} > {1} ? {1} : {0}": "(at_most {0} {1})",
    "{0} < 0 ? -{0} : {0}": "(magnitude_of {0})",
    "float32_bits({})": "(float_bits {})",
    "float64_bits({})": "(float_bits {})",
    "(int32_t)float32({})": "(integer_of {})",
    "(int64_t)float64({})": "(integer_of {})",
}
_CONDITIONS = {
    "{} < {}": "(bvslt {} {})",
    "{} <= {}": "(bvsle {} {})",
    "{} > {}": "(bvsgt {} {})",
    "{} >= {}": "(bvsge {} {})",
    "{} == {}": "(= {} {})",
    "{} != {}": "(distinct {} {})",
}


def emit(
    given: Any,
    rounding: Any = None,
    dtype: str = "float32",
    folder: Path | None = None,
    operands: Sequence[str] | None = None,
) -> dict[str, str]:
    """The file for a format, or for a step of an accumulator, by its name; written into a folder if there is one.

    Args:
        given: a format of single numbers, or its text; or an accumulator that rounds each sum, or its text.
        rounding: a format's mode, or its name; None is to nearest.
        dtype: of the inputs: "float32", or "float64" for sums that are wider.
        folder: where to; it is made where it is missing.
        operands: the two formats of an accumulator's operands.

    Returns:
        The text of NAME.smt2: the law's functions, a place for those of a design, and the assertion that both differ.

    Raises:
        ValueError: if the format has blocks or is searched in arrays, the dtype is another one, or not for the mode; or
            if the accumulator is another one, or doubles have not all of its exact sums.

    Example:
        >>> ((name, text),) = emit("e4m3fn").items()
        >>> name, text.count("(define-fun design ")
        ('round_e4m3fn_nearest.smt2', 1)
    """
    check_choice("dtype", dtype, [*DTYPES])
    unit: _Step | _Unit
    if is_accumulator(given):
        if rounding is not None:
            raise ValueError(f"rounding={quoted(rounding)} with an accumulator; allowed is rounding with a format")
        unit = _Step(check_accumulator(given), operands)
    elif operands is not None:
        raise ValueError(f"operands={quoted(operands)} with a format; allowed are operands with an accumulator")
    else:
        unit = _Unit(check_number(given), check_rounding("nearest" if rounding is None else rounding), dtype)
    files = {f"{unit.name}.smt2": unit.text}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_texts({folder / name: text for name, text in files.items()})
    return files


class _Unit:
    """A format under a mode as functions of bit vectors."""

    def __init__(self, number: Any, mode: Rounding, dtype: str) -> None:
        if isinstance(number, BlockNumber):
            raise ValueError(f"number={quoted(number)} has blocks; allowed are formats of single numbers")
        if mode.stochastic and dtype != "float32":
            raise ValueError(f"dtype={quoted(dtype)} with rounding={quoted(mode.value)}; allowed is float32")
        self.number, self.mode, self.dtype, carrier = number, mode, dtype, DTYPES[dtype]
        self.width = carrier.lane_bits
        self.name = f"round_{identifier(number.text)}_{mode.value}{'' if dtype == 'float32' else '_' + dtype}"
        self.code_bits = 0 if why_no_codes(number) else number.bits
        self.functions = [_rounding(number, mode, carrier, self.name, self.width, False)]
        if self.code_bits:
            self.functions += [_rounding(number, mode, carrier, f"{self.name}_encode", self.code_bits, True)]
            with suppress(ValueError):  # numbers that the dtype lacks
                self.functions += [_decoding(number, carrier, f"{self.name}_decode", self.code_bits)]

    @property
    def text(self) -> str:
        law = next(one for one in reversed(self.functions) if one.is_rounding)
        return _document(self._head(), self.functions, self.width, [], law)

    def _head(self) -> list[str]:
        codes = ", and to its codes" if self.code_bits else ""
        options = f"--rounding {self.mode.value}{'' if self.dtype == 'float32' else f' --dtype {self.dtype}'}"
        return [
            f"; Rounds {self.dtype} numbers to {self.number.text}{codes}, {self.mode.value}.",
            f"; Written by qcore {__version__}: qbits emit-smt '{self.number.text}' {options}",
            "; The bits are those of qcore.quantize, encode and decode. A comment is the function of the law",
            "; that computes the values below it; values have its names.",
        ]


def _document(head: list[str], functions: list[_Function], width: int, more: list[str], law: _Head) -> str:
    """The text of a file: what functions read, the functions, a design's place, and the assertion that it differs."""
    text = "\n".join([*(line for one in functions for line in one.lines()), *more])
    lines = [*head, "(set-option :produce-models true)", "(set-logic QF_BV)", ""]
    for one in functions:
        for name, number, note in one.constants.read_in(text):
            lines += [f"; {note}"] if note else []
            lines += [f"(define-fun {name} () (_ BitVec {width}) {_number(number, width)})"]
    read = text + "magnitude_of" * ("(float_bits " in text)
    lines += [helper for name, helper in _helpers(width).items() if name in read]
    passed = " ".join(name for name, _ in law.arguments)
    lines += ["", text, "; The design: write its function here, in the place of the law's.", law.head("design")]
    lines += [f"  ({law.name} {passed}))", "", "; unsat: the design has the law's bits for every input."]
    lines += [f"(declare-const {name} (_ BitVec {width}))" for name, width in law.arguments]
    lines += [f"(assert (distinct (design {passed}) ({law.name} {passed})))", "(check-sat)"]
    lines += [f"; After sat: (get-value ({passed} (design {passed}) ({law.name} {passed})))", ""]
    return "\n".join(lines)


class _Step:
    """A step of a multiply-accumulate unit: the exact sum of a product and the accumulator, rounded once.

    Numbers become integers of one unit, the last place of all of them; their sum becomes a double, and is rounded.
    """

    def __init__(self, accumulator: Accumulator, operands: Any) -> None:
        text = quoted(accumulator.text)
        if accumulator != Accumulator(accumulator.number, 1, accumulator.rounding) or accumulator.stochastic:
            raise ValueError(f"accumulator={text}; allowed here is accumulator(FORMAT,chunk=1), not stochastic")
        if operands is None:
            raise ValueError("operands=None with an accumulator; allowed are two formats")
        self.accumulator, self.numbers = accumulator, [check_number(one) for one in operands]
        a, b, total = (one.span for one in (*self.numbers, accumulator.number))
        self.places, self.least = (-a[1], -b[1]), min(a[1] + b[1], total[1])
        bits = max(a[2] + b[2] + 2, total[2] + 1) + 1 - self.least
        if bits > _EXACT:
            raise ValueError(f"accumulator={text}: exact sums have {bits} bits; allowed are {_EXACT}")
        if not all(map(_is_finite, self.numbers)) and not _has_special(accumulator.number):
            raise ValueError(f"accumulator={text} has no code for NaN, which operands={quoted(operands)} have")
        names = [identifier(one.text) for one in (accumulator, *self.numbers)]
        self.name = f"step_{'_'.join(names)}"

    @property
    def text(self) -> str:
        acc, mode = self.accumulator.number, self.accumulator.rounding
        formats = dict(zip("ab", self.numbers, strict=True)) | {"total": acc}
        functions = [_decoding(one, FLOAT64, f"number_{name}", one.bits, name) for name, one in formats.items()]
        functions += [_rounding(acc, mode, FLOAT64, "code_of_sum", acc.bits, True)]
        law = _Head(self.name, [(name, one.bits) for name, one in formats.items()], acc.bits)
        head = [
            f"; A step of {self.accumulator.text}: a code of {self.numbers[0].text}, one of {self.numbers[1].text},",
            "; and the accumulator's code before; the result is its code after.",
            f"; Written by qcore {__version__}: qbits emit-smt '{self.accumulator.text}' --operands "
            + " ".join(f"'{one.text}'" for one in self.numbers),
        ]
        return _document(head, functions, 64, [*self._lines(law)], law)

    def _lines(self, law: _Head) -> Iterator[str]:
        infinity, sign, nan = (f"#x{number:016x}" for number in (FLOAT64.infinity, 1 << 63, FLOAT64.quiet_nan))
        zero = _number(0, 64)

        def integer(name: str, places: int) -> str:
            return f"(ite (= size_{name} {zero}) {zero} (integer_of (bvadd {name} {_number(places << 52, 64)})))"

        (a, b), least = self.places, self.least
        shift = _number(-a - b - least, 64)
        yield law.head(law.name)
        yield "  (let ((x (number_a a)) (y (number_b b)) (t (number_total total)))"
        yield "  (let (" + " ".join(f"(size_{one} (bvand {one} (bvnot {sign})))" for one in "xyt") + ")"
        yield f"  (let ((p_sign (bvand (bvxor x y) {sign})) (t_sign (bvand t {sign}))"
        yield f"        (p_inf (or (= size_x {infinity}) (= size_y {infinity}))) (t_inf (= size_t {infinity})))"
        yield f"  (let ((p_nan (or (bvugt size_x {infinity}) (bvugt size_y {infinity})"
        yield f"                   (and p_inf (or (= size_x {zero}) (= size_y {zero})))))"
        yield f"        (product (bvshl (bvmul {integer('x', a)} {integer('y', b)}) {shift}))"
        yield f"        (before {integer('t', -least)}))"
        yield f"  (let ((sum (bvadd product before)) (nan (or p_nan (bvugt size_t {infinity})"
        yield "                                          (and p_inf t_inf (distinct p_sign t_sign)))))"
        yield f"  (let ((finite (ite (= sum {zero}) {zero} (bvadd (float_bits sum) {_number(least << 52, 64)}))))"
        yield f"  (code_of_sum (ite nan {nan} (ite p_inf (bvor p_sign {infinity}) (ite t_inf t finite)))))))))))"
        yield ""


def _is_finite(number: Number) -> bool:
    """True for formats without infinities and NaN."""
    return bool(np.isfinite(decode(np.arange(1 << number.bits), number, np.float64)).all())


def _has_special(number: Number) -> bool:
    """True if what infinities and NaN are rounded to has codes."""
    x = np.array([np.inf, -np.inf, np.nan])
    codes: Any = encode(x, number)
    return np.array_equal(decode(codes, number, np.float64), quantize(x, number), equal_nan=True)


def _rounding(number: Any, mode: Rounding, carrier: Carrier, name: str, width: int, coded: bool) -> _Function:
    """The function that rounds a number, or makes its code."""
    program, integers = prepare(number, mode, carrier, None, coded)
    check_traced(number, mode, program)
    constants = Constants(program.fields(), integers, "CODE_" if coded else "")
    trace, dtype = Reading(), f"int{carrier.lane_bits}"
    arguments = [("bits", carrier.lane_bits)]
    bits, word = trace.value("bits", dtype, ELEMENT), None
    if mode.stochastic:
        arguments += [("random", RANDOM_BITS)]
        random = trace.value("word", "int32", ELEMENT)
        mask = leading_bits_mask(RANDOM_BITS)
        word = leading_bits(random << (32 - RANDOM_BITS), mask, rounds_distance(mode))
    found = program.run(trace, bits, constants.given, (), word)
    trace.named("", rounded=found)
    return _Function(name, arguments, width, Body(trace, [found], ("design", "word")), constants, True)


def _decoding(number: Any, carrier: Carrier, name: str, width: int, prefix: str = "number") -> _Function:
    """The function that returns the number of a code."""
    decoding, integers = number.decoding(carrier)
    constants = Constants(decoding.fields(), integers, f"{prefix.upper()}_")
    trace = Reading()
    found = decoding.run(trace, trace.value("lane", f"int{carrier.lane_bits}", ELEMENT), constants.given, None, None)
    trace.named("", number=found)
    body = Body(trace, [found], ("design", "code"))
    return _Function(name, [("code", width)], carrier.lane_bits, body, constants, False)


class _Head:
    """A function's name, its arguments with their widths, and the width of its result."""

    def __init__(self, name: str, arguments: list[tuple[str, int]], width: int) -> None:
        self.name, self.arguments, self.width = name, arguments, width

    def head(self, name: str) -> str:
        """The first line of the definition of a function like it."""
        arguments = " ".join(f"({one} (_ BitVec {width}))" for one, width in self.arguments)
        return f"(define-fun {name} ({arguments}) (_ BitVec {self.width})"


class _Function(_Head):
    """A function of bit vectors: the values of a trace, each bound by a `let`."""

    def __init__(
        self, name: str, arguments: list[tuple[str, int]], width: int, body: Body, constants: Constants, rounds: bool
    ) -> None:
        super().__init__(name, arguments, width)
        self.body, self.constants, self.is_rounding = body, constants, rounds

    def lines(self) -> Iterator[str]:
        """The definition; arguments are as wide as the design's, lanes as wide as the law's."""
        yield self.head(self.name)
        count, last = 0, ""
        (name, given), *random = self.arguments
        values = sorted(self.body.values, key=lambda one: int(one.name[1:]))
        lanes = [(one.text, one.width) for one in values if not one.parts]
        for lane, width in lanes:
            source, narrow = random[0] if random and lane == "word" else (name, given)
            if (lane, width) != (source, narrow):
                yield f"  (let (({lane} {_resized(source, narrow, width)}))"
                count += 1
        for value in values:
            if value.parts and value.name in self.body.variables:
                if value.function and value.function != last:
                    yield f"  ; {value.function}"
                last = value.function or last
                yield f"  (let (({self.body.name(value)} {self._term(value)}))"
                count += 1
        result = self.body.results[0]
        yield from [f"  {_resized(self._part(result, result.like), result.width, self.width)}{')' * count})", ""]

    def _part(self, part: Any, like: str) -> str:
        """An operand."""
        if isinstance(part, Field):
            return part.name
        if not isinstance(part, Value):
            return _number(part, _width(like))
        return self.body.name(part) if part.name in self.body.variables else self._term(part)

    def _term(self, value: Value) -> str:
        if value.text == "{} ? {} : {}":
            condition, *rest = value.parts
            first, second = (self._part(one, value.like) for one in rest)
            return f"(ite {self._condition(condition)} {first} {second})"
        if value.text in _CONDITIONS:
            zero, one = (_number(number, value.width) for number in (0, 1))
            return f"(ite {self._compared(value)} {one} {zero})"
        return _TERMS[value.text].format(*(self._part(one, value.like) for one in value.parts))

    def _condition(self, value: Value) -> str:
        """A truth, without the integer that the law has for it where nothing else reads this integer."""
        if value.name in self.body.variables or value.text not in _CONDITIONS:
            return f"(distinct {self._part(value, value.dtype)} {_number(0, value.width)})"
        return self._compared(value)

    def _compared(self, value: Value) -> str:
        return _CONDITIONS[value.text].format(*(self._part(one, value.like) for one in value.parts))


def _width(dtype: str) -> int:
    return int(re.sub(r"\D", "", dtype))


def _number(number: int, width: int) -> str:
    return f"#x{number & ((1 << width) - 1):0{width // 4}x}"


def _resized(term: str, width: int, to: int) -> str:
    """A bit vector with more zeros in front, or fewer bits."""
    if width == to:
        return term
    return f"((_ zero_extend {to - width}) {term})" if width < to else f"((_ extract {to - 1} 0) {term})"


def _helpers(width: int) -> dict[str, str]:
    """Functions of lanes of a width that the law has and the logic lacks; a later one may call those before it."""
    fraction = {32: 23, 64: 52}[width]
    rest, bias = width - 1 - fraction, (1 << (width - 2 - fraction)) - 1
    kind, last = f"(_ BitVec {width})", (width - 1).bit_length()
    zero, one, sign = (_number(number, width) for number in (0, 1, 1 << (width - 1)))
    fractions, hidden, shift = (_number(number, width) for number in ((1 << fraction) - 1, 1 << fraction, fraction))

    def normalized() -> Iterator[str]:
        """The leading one moves to the highest bit, by halves of the width."""
        for i in range(last):
            step = width >> (i + 1)
            small, by = f"(= ((_ extract {width - 1} {width - step}) m{i}) (_ bv0 {step}))", _number(step, width)
            yield f"  (let ((m{i + 1} (ite {small} (bvshl m{i} {by}) m{i}))"
            yield f"        (e{i + 1} (ite {small} (bvsub e{i} {by}) e{i})))"

    return {
        "at_least": f"""\
; The larger of a value and its lower bound, and the smaller of a value and its upper one.
(define-fun at_least ((x {kind}) (low {kind})) {kind} (ite (bvslt x low) low x))""",
        "at_most": f"(define-fun at_most ((x {kind}) (high {kind})) {kind} (ite (bvsgt x high) high x))",
        "magnitude_of": f"(define-fun magnitude_of ((x {kind})) {kind} (ite (bvslt x {zero}) (bvneg x) x))",
        "float_bits": f"""\
; The bits of an integer as a float, to nearest, ties to even.
(define-fun float_bits ((x {kind})) {kind}
  (let ((m0 (magnitude_of x)) (e0 {_number(bias + width - 1, width)}))
{chr(10).join(normalized())}
  (let ((kept (bvand (bvlshr m{last} {_number(rest, width)}) {fractions}))
        (below (bvand m{last} {_number((1 << rest) - 1, width)})) (half {_number(1 << (rest - 1), width)}))
  (let ((up (ite (or (bvugt below half) (and (= below half) (= (bvand kept {one}) {one}))) {one} {zero})))
  (ite (= x {zero}) x (bvor (bvand x {sign}) (bvadd (bvor (bvshl e{last} {shift}) kept) up)))){")" * (last + 3)}""",
        "integer_of": f"""\
; The integer that a float is, toward zero.
(define-fun integer_of ((x {kind})) {kind}
  (let ((m (bvor (bvand x {fractions}) {hidden}))
        (e (bvsub (bvand (bvlshr x {shift}) {_number(2 * bias + 1, width)}) {_number(bias + fraction, width)})))
  (let ((size (ite (bvslt e {zero}) (bvlshr m (bvneg e)) (bvshl m e))))
  (ite (bvslt x {zero}) (bvneg size) size))))""",
    }
