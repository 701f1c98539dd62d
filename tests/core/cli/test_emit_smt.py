"""The SMT-LIB of `qbits emit-smt`: an evaluator reads it as its standard says; z3 proves it against others' laws."""

import re
from pathlib import Path

import numpy as np
import pytest
from covering import usually

import qcore
from qcore.__main__ import main
from qcore.cli.emit_smt import emit
from qcore.cli.vectors import vector_inputs

# An evaluator of bit vectors: a value is (integer, width), a truth a bool.


def read(text):
    """The expressions of a text, as lists."""
    stack = [[]]
    for token in re.findall(r"[()]|[^\s()]+", re.sub(";.*", "", text)):
        if token == "(":
            stack.append([])
        elif token == ")":
            stack[-2].append(stack.pop())
        else:
            stack[-1].append(token)
    assert len(stack) == 1
    return stack[0]


def signed(x):
    return x[0] - (x[0] >> (x[1] - 1) << x[1])


INTEGERS = {
    "bvadd": lambda a, b: a[0] + b[0],
    "bvsub": lambda a, b: a[0] - b[0],
    "bvmul": lambda a, b: a[0] * b[0],
    "bvneg": lambda a: -a[0],
    "bvnot": lambda a: ~a[0],
    "bvand": lambda a, b: a[0] & b[0],
    "bvor": lambda a, b: a[0] | b[0],
    "bvxor": lambda a, b: a[0] ^ b[0],
    "bvshl": lambda a, b: a[0] << b[0] if b[0] < a[1] else 0,
    "bvlshr": lambda a, b: a[0] >> b[0],
    "bvashr": lambda a, b: signed(a) >> min(b[0], a[1]),
}
TRUTHS = {
    "=": lambda a, b: a == b,
    "distinct": lambda a, b: a != b,
    "bvslt": lambda a, b: signed(a) < signed(b),
    "bvsle": lambda a, b: signed(a) <= signed(b),
    "bvsgt": lambda a, b: signed(a) > signed(b),
    "bvsge": lambda a, b: signed(a) >= signed(b),
    "bvugt": lambda a, b: a[0] > b[0],
    "or": lambda *a: any(a),
    "and": lambda *a: all(a),
}


class Evaluator:
    def __init__(self, text):
        self.functions = {one[1]: one[2:] for one in read(text) if one[0] == "define-fun"}

    def call(self, name, *values):
        arguments, (_, _, width), body = self.functions[name]
        for (_, (_, _, wide)), (_, given) in zip(arguments, values, strict=True):
            assert int(wide) == given
        found = self.value(body, {one[0]: value for one, value in zip(arguments, values, strict=True)})
        assert found[1] == int(width)
        return found

    def value(self, term, known):
        if isinstance(term, str):
            if term.startswith("#"):
                base, each = (16, 4) if term[1] == "x" else (2, 1)
                return int(term[2:], base), (len(term) - 2) * each
            return known[term] if term in known else self.call(term)
        head, *rest = term
        if head == "let":
            return self.value(rest[1], known | {name: self.value(one, known) for name, one in rest[0]})
        if head == "ite":
            return self.value(rest[1] if self.value(rest[0], known) else rest[2], known)
        if head == "_":
            return int(rest[0][2:]), int(rest[1])
        values = [self.value(one, known) for one in rest]
        if head == ["_", "zero_extend", head[-1]]:
            return values[0][0], values[0][1] + int(head[2])
        if isinstance(head, list):
            _, _, high, low = head
            return values[0][0] >> int(low) & ((2 << int(high) - int(low)) - 1), int(high) - int(low) + 1
        if head == "concat":
            (a, width), (b, more) = values
            return a << more | b, width + more
        if head in TRUTHS:
            return TRUTHS[head](*values)
        if head in INTEGERS:
            width = values[0][1]
            assert {one[1] for one in values} == {width}
            return INTEGERS[head](*values) & ((1 << width) - 1), width
        return self.call(head, *values)


LIKE = {"float32": (np.float32, np.uint32), "float64": (np.float64, np.uint64)}
CASES = [
    ("e4m3fn", "nearest", "float32"),
    ("fixed(8,4)", "up", "float64"),
    ("posit8", "nearest", "float32"),
    ("nf4", "nearest", "float32"),
    ("e5m2", "stochastic", "float32"),
    ("float(5,2)", "odd", "float64"),
]


@pytest.mark.parametrize(("text", "mode", "dtype"), CASES)
def test_the_functions_have_the_bits_of_the_law(text, mode, dtype):
    ((file, smt),) = emit(text, mode, dtype).items()
    name, law = file.removesuffix(".smt2"), Evaluator(smt)
    floats, bits = LIKE[dtype]
    x = vector_inputs(qcore.parse(text), np.dtype(floats), 20, 1)
    x = x[:: len(x) // 40]
    key = {"key": 5} if mode == "stochastic" else {}
    width, code_bits = x.itemsize * 8, qcore.parse(text).bits
    words = qcore.arrays.random_words(x.shape, (0, 5), (0, 0), 24, False) >> 7
    random = [[(int(word), 24)] if key else [] for word in words]
    with np.errstate(invalid="ignore"):
        codes = qcore.encode(x, text, mode, **key)
        rounded, numbers = qcore.quantize(x, text, mode, **key), qcore.decode(codes, text, floats)
    for i, one in enumerate(x.view(bits).tolist()):
        given = (one, width), *random[i]
        assert law.call(name, *given) == (int(rounded[i : i + 1].view(bits)[0]), width)
        assert law.call(f"{name}_encode", *given) == (int(codes[i]), code_bits) == law.call("design", *given)
        assert law.call(f"{name}_decode", (int(codes[i]), code_bits)) == (int(numbers[i : i + 1].view(bits)[0]), width)


STEPS = [("e4m3fn", "e4m3fn", "float16"), ("e2m1fn", "e3m2fn", "float(5,6)"), ("int8", "fixed(8,4)", "fixed(16,4)")]


@pytest.mark.parametrize(("first", "second", "number"), STEPS)
def test_steps_have_the_bits_of_products(first, second, number):
    accumulator, shape = f"accumulator({number},chunk=1)", (12, 3)
    ((file, smt),) = emit(accumulator, operands=(first, second)).items()
    evaluator, rng = Evaluator(smt), np.random.default_rng(0)
    bits, more, wide = (qcore.parse(text).bits for text in (first, second, number))
    a, b = (rng.integers(0, 1 << width, shape).astype(np.uint32) for width in (bits, more))
    for row, column in zip(a, b, strict=True):
        x, y = qcore.decode(row[None], first), qcore.decode(column[:, None], second)
        with np.errstate(all="ignore"):
            sums = qcore.linalg.matmul(x, y, operands=(first, second), accumulator=accumulator)
        total = 0
        for terms in zip(row.tolist(), column.tolist(), strict=True):
            given = (terms[0], bits), (terms[1], more), (total, wide)
            total, _ = evaluator.call(file.removesuffix(".smt2"), *given)
        assert total == qcore.encode(sums, number)[0, 0]


def test_the_command_writes_a_file(tmp_path, capsys):
    assert main(["emit-smt", "e2m1fn", "-o", str(tmp_path)]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.read_text(encoding="utf-8") == emit("e2m1fn")[path.name]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["mxfp4"], "has blocks; allowed are formats of single numbers"),
        (["hif8"], "is searched in arrays"),
        (["e5m2", "stochastic", "float64"], "dtype='float64' with rounding='stochastic'; allowed is float32"),
        (["e5m2", None, "float16"], "dtype='float16'; allowed"),
    ],
)
def test_what_has_no_functions(given, message):
    with pytest.raises(ValueError, match=message):
        emit(*given)


@pytest.mark.parametrize(
    ("accumulator", "operands", "message"),
    [
        ("accumulator(float16,chunk=4)", ("e4m3fn", "e4m3fn"), r"allowed here is accumulator\(FORMAT,chunk=1\)"),
        ("accumulator(float32,chunk=1)", ("e4m3fn", "e4m3fn"), "exact sums have 278 bits; allowed are 53"),
        ("accumulator(float(5,6),chunk=1)", ("e4m3fn", "e4m3fn"), "has no code for NaN, which operands="),
        ("accumulator(float16,chunk=1)", None, "operands=None with an accumulator; allowed are two formats"),
    ],
)
def test_what_has_no_step(accumulator, operands, message):
    with pytest.raises(ValueError, match=message):
        emit(accumulator, operands=operands)


# Definitions of other hands, which z3 compares with the law for all 2^32 inputs.


def by_floats(exp, man, nan, of_input="8 24"):
    """What must hold for an IEEE format: the theory of floats rounds to nearest; its NaN has no sign and no payload."""
    of = f"(_ to_fp {exp} {man + 1})"
    number, sign = f"({of} RNE ((_ to_fp {of_input}) bits))", "(ite (bvslt bits (bvsub bits bits)) #b1 #b0)"
    kept = f"(= (LAW bits) (concat {sign} (_ bv{nan} {exp + man})))"
    return f"(assert (not (ite (fp.isNaN {number}) {kept} (= {number} ({of} (LAW bits))))))"


def by_hand(exp, man, bias, largest, overflow, nan):
    """A design for a small float: it shifts the significand to the last place, and rounds by what it shifts out.

    Codes without the sign are `largest`, `overflow` and `nan`; None is zero for NaN, without the sign.
    """
    width, least = exp + man, 128 - bias  # the exponent field of the smallest normal number
    nan_code = f"(_ bv0 {width + 1})" if nan is None else f"(concat ((_ extract 31 31) bits) (_ bv{nan} {width}))"
    kind = "(_ BitVec 32)"
    return f"""
(define-fun exponent ((bits {kind})) {kind} (bvand (bvlshr bits #x00000017) #x000000ff))
(define-fun below ((bits {kind})) {kind}
  (ite (bvslt (exponent bits) (_ bv{least} 32)) (bvsub (_ bv{least} 32) (exponent bits)) #x00000000))
(define-fun places ((bits {kind})) {kind}
  (ite (bvugt (below bits) (_ bv{man + 2} 32)) (_ bv25 32) (bvadd (_ bv{23 - man} 32) (below bits))))
(define-fun significand ((bits {kind})) {kind}
  (ite (= (exponent bits) #x00000000) #x00000000 (bvor #x00800000 (bvand bits #x007fffff))))
(define-fun kept_bits ((bits {kind})) {kind} (bvlshr (significand bits) (places bits)))
(define-fun rest ((bits {kind})) {kind} (bvsub (significand bits) (bvshl (kept_bits bits) (places bits))))
(define-fun half_of ((bits {kind})) {kind} (bvlshr (bvshl #x00000001 (places bits)) #x00000001))
(define-fun counted ((bits {kind})) {kind}
  (ite (or (bvugt (rest bits) (half_of bits))
           (and (= (rest bits) (half_of bits)) (= ((_ extract 0 0) (kept_bits bits)) #b1)))
       (bvadd (kept_bits bits) #x00000001) (kept_bits bits)))
(define-fun code_of ((bits {kind})) {kind}  ; the leading one carries into the exponent
  (bvadd (counted bits) (ite (= (below bits) #x00000000)
    (bvshl (bvsub (exponent bits) (_ bv{least} 32)) (_ bv{man} 32)) #x00000000)))
(define-fun design ((bits {kind})) (_ BitVec {width + 1})
  (ite (bvugt (bvand bits #x7fffffff) #x7f800000) {nan_code}
    (concat ((_ extract 31 31) bits) ((_ extract {width - 1} 0)
      (ite (bvugt (code_of bits) (_ bv{largest} 32)) (_ bv{overflow} 32) (code_of bits))))))
"""


FIXED = """
(define-fun design ((bits (_ BitVec 32))) (_ BitVec 8)
  (let ((x (fp.mul RNE ((_ to_fp 8 24) bits) ((_ to_fp 8 24) RNE 16.0))))
  (ite (fp.isNaN x) #x00 (ite (fp.geq x ((_ to_fp 8 24) RNE 127.0)) #x7f
  (ite (fp.leq x ((_ to_fp 8 24) RNE (- 128.0))) #x80 ((_ fp.to_sbv 8) RNE x))))))
"""
DESIGNS = {
    "e4m3fn": by_hand(4, 3, 7, 0x7E, 0x7F, 0x7F),
    "e2m1fn": by_hand(2, 1, 1, 7, 7, None),
    "e3m2fn": by_hand(3, 2, 3, 0x1F, 0x1F, None),
    "e4m3": by_hand(4, 3, 7, 0x77, 0x78, 0x7C),
    "fixed(8,4)": FIXED,
}
PROPERTIES = {
    "e5m2": by_floats(5, 2, 0x7E),
    "bfloat16": by_floats(8, 7, 0x7FC0),
    "float16": by_floats(5, 10, 0x7E00),
}
OF_FLOAT64 = by_floats(8, 7, 0x7FC0, "11 53")


def solver(text, design=None, holds=None, dtype="float32", operands=None):
    """z3 with the file, whose design, or assertion, is another one."""
    z3 = pytest.importorskip("z3")
    ((file, smt),) = emit(text, None, dtype, operands=operands).items()
    smt = smt.replace("(set-logic QF_BV)", "").replace("(check-sat)", "")
    if design:
        smt, replaced = re.subn(r"\(define-fun design .*\n.*\n", lambda _: design, smt)
        assert replaced == 1
    if holds:
        holds = holds.replace("LAW", f"{file[:-5]}_encode" if operands is None else file[:-5])
        smt, replaced = re.subn(r"\(assert .*", lambda _: holds, smt)
        assert replaced == 1
    found = z3.Solver()
    found.from_string(smt)
    return z3, found


# A step of a multiply-accumulate unit, in the theory of floats: products of E2M1, and sums that float64 has.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
STEP = "accumulator(e5m2,chunk=1)"


def of_e2m1(code):
    """The number of a code, as a float of 64 bits."""
    found = ""
    for i, number in enumerate(E2M1):
        found += f"(ite (= ((_ extract 2 0) {code}) (_ bv{i} 3)) ((_ to_fp 11 53) RNE {number}) "
    size = found + "(_ NaN 11 53)" + ")" * len(E2M1)
    return f"(ite (= ((_ extract 3 3) {code}) #b1) (fp.neg {size}) {size})"


def of_step(rounding):
    """What must hold: the exact sum is rounded once; zero has no sign, and NaN is 0x7e."""
    total = "((_ to_fp 11 53) RNE ((_ to_fp 5 3) total))"
    exact = f"(fp.add RNE (fp.mul RNE {of_e2m1('a')} {of_e2m1('b')}) {total})"
    right = "(ite (fp.isZero sum) (_ +zero 5 3) rounded)"
    same = f"(ite (fp.isNaN sum) (= (LAW a b total) #x7e) (= {right} ((_ to_fp 5 3) (LAW a b total))))"
    return f"(assert (not (let ((sum {exact})) (let ((rounded ((_ to_fp 5 3) {rounding} sum))) {same}))))"


@pytest.mark.heavy
def test_a_proof_of_a_step():
    z3, found = solver(STEP, holds=of_step("RNE"), operands=("e2m1fn", "e2m1fn"))
    assert found.check() == z3.unsat


@pytest.mark.heavy
def test_a_wrong_step_has_a_counterexample():
    z3, found = solver(STEP, holds=of_step("RTZ"), operands=("e2m1fn", "e2m1fn"))
    assert found.check() == z3.sat
    model = {one.name(): found.model()[one].as_long() for one in found.model().decls()}
    ((file, smt),) = emit(STEP, operands=("e2m1fn", "e2m1fn")).items()
    code = Evaluator(smt).call(file[:-5], (model["a"], 4), (model["b"], 4), (model["total"], 8))[0]
    x, y = qcore.decode(np.uint32([model["a"], model["b"]]), "e2m1fn")
    exact = np.float64(x) * np.float64(y) + qcore.decode(np.uint8([model["total"]]), "e5m2").astype(float)
    assert code == qcore.encode(exact, "e5m2") != qcore.encode(exact, "e5m2", "toward_zero")


@pytest.mark.parametrize("text", usually(("e2m1fn", "fixed(8,4)"), [*DESIGNS, *PROPERTIES]))
def test_a_proof(text):
    z3, found = solver(text, DESIGNS.get(text), PROPERTIES.get(text))
    assert found.check() == z3.unsat


@pytest.mark.heavy
def test_a_proof_of_float64():
    z3, found = solver("bfloat16", None, OF_FLOAT64, "float64")
    assert found.check() == z3.unsat


@pytest.mark.parametrize("text", usually(("e2m1fn",), ("e4m3fn", "e2m1fn")))
def test_a_wrong_design_has_a_counterexample(text):
    wrong = DESIGNS[text].replace("((_ extract 0 0) (kept_bits bits)) #b1", "#b1 #b1")  # ties away from zero
    assert wrong != DESIGNS[text]
    z3, found = solver(text, wrong)
    assert found.check() == z3.sat
    (bits,) = (found.model()[one].as_long() for one in found.model().decls() if one.name() == "bits")
    x = np.array([bits], np.uint32).view(np.float32)
    code = Evaluator(wrong).call("design", (bits, 32))[0]
    assert qcore.encode(x, text) != code == qcore.encode(x, text, "nearest_away")


def by_cvc5(smt):
    """What another solver answers."""
    cvc5 = pytest.importorskip("cvc5")
    of = cvc5.Solver(cvc5.TermManager())
    parser = cvc5.InputParser(of)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, smt, "file")
    answers = []
    while not (command := parser.nextCommand()).isNull():
        answers.append(str(command.invoke(of, parser.getSymbolManager())))
    return "".join(answers).strip()


@pytest.mark.parametrize("text", usually(("e2m1fn",), ["e4m3fn", "e2m1fn", "e3m2fn", "e4m3"]))
def test_cvc5_proves_the_files_as_they_are(text):
    ((_, smt),) = emit(text).items()
    wrong = DESIGNS[text].replace("((_ extract 0 0) (kept_bits bits)) #b1", "#b1 #b1")
    for design, answer in ((DESIGNS[text], "unsat"), (wrong, "sat")):
        assert by_cvc5(re.sub(r"\(define-fun design .*\n.*\n", lambda _, of=design: of, smt)) == answer
