"""The C of a dot product: compiled strictly, it has the bits of the law and of sums that GPUs computed."""

import ctypes
import re
import subprocess
from functools import cache

import numpy as np
import pytest
from emit_support import COMPILERS, available, with_another_result

from benchmarks.silicon import measured
from qcore import encode, parse
from qcore.__main__ import main
from qcore.cli.c_text import UNNAMED
from qcore.cli.emit_c import emit
from qcore.cli.emit_sums import SumUnit
from qcore.cli.sum_inputs import draw
from qcore.cli.sums import Operands, Unit
from qcore.linalg.designs import DESIGNS

E4M3, HALF = ("e4m3fn", "e4m3fn"), ("float16", "float16")
LAWS = """
hopper.wgmma.e4m3 volta.mma.f16.f16 hopper.mma.tf32 blackwell.mma.e4m3_e5m2 blackwell.tcgen05.nvf4
blackwell.tcgen05.mxe4m3 cdna1.mfma.bf16 cdna2.mfma.f16 cdna3.mfma.bf16 cdna3.mfma.fp8_bf8 x86.avx512_bf16
""".split()
UNITS = {  # with the operands' formats; None is float32
    "accumulator(chunk=1)": None,
    "accumulator()": None,
    "accumulator(float(6,9),chunk=16,rounding=odd)": ("e5m2", "e4m3fn"),
    "accumulator(fixed(20,19):wrap,chunk=1)": ("fixed(16,15)", "fixed(16,15)"),
    "accumulator(posit16,chunk=4)": ("posit8", "posit8"),
    "accumulator(float16,chunk=7,tree=True)": HALF,
    "accumulator(float16,chunk=8,product=bfloat16)": E4M3,
    "accumulator(float16,chunk=4,fraction_bits=12,product=e5m2,align=products,cut=down)": E4M3,
    "accumulator(chunk=6,fraction_bits=20,align=twice,sets=2,order=[0,2,4,1,3,5])": E4M3,
    "accumulator(chunk=128,inner=accumulator(design=hopper.wgmma.e4m3))": E4M3,
    "accumulator(chunk=64,inner=accumulator(float(6,9),chunk=1))": E4M3,
}


class Compiled:
    """The functions of several accumulators in one library."""

    def __init__(self, folder, units, command):
        self.names = {text: next(iter(emit(text, None, folder, operands)))[:-2] for text, operands in units.items()}
        sources = sorted(map(str, folder.glob("*.c")))
        path = folder / "all.so"
        done = subprocess.run(
            [command[0], "-O1", *command[1:], "-fPIC", "-shared", *sources, "-o", path], capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
        self.library = ctypes.CDLL(str(path))

    def sums(self, text, given: Operands):
        function = self.library[self.names[text]]
        function.restype = ctypes.c_uint32
        codes = [np.ascontiguousarray(x) for x in (given.a, given.b, *(given.scales or ()))]
        terms, addends = ctypes.c_size_t(codes[0].shape[1]), given.c.view(np.uint32).tolist()
        pointers = ([ctypes.c_void_p(x[row].ctypes.data) for x in codes] for row in range(len(addends)))
        return [function(*one, terms, ctypes.c_uint32(c)) for one, c in zip(pointers, addends, strict=True)]


def lengths(unit):
    """The terms of the vectors; and fewer, where a chunk may be short."""
    whole = unit.trace.block or unit.accumulator.innermost.tree
    return [unit.unit.terms] if whole else [unit.unit.terms, unit.unit.terms - 3, 1]


def check(compiled, text, operands, count):
    for terms in lengths(SumUnit(text, operands)):
        unit = Unit(text, *(operands or (None, None)), terms, None)
        given = draw(unit, count, 1)[1]
        right = unit.run(given).result.view(np.uint32).reshape(-1)
        assert compiled.sums(text, given) == right.tolist(), (text, terms)


@pytest.mark.parametrize("command", [*available()])
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.heavy)])
def test_bits(command, every, tmp_path):
    """Of all laws, and all kinds of accumulators, in hard sums; an ordinary run takes every third."""
    units = dict([*(dict.fromkeys(LAWS) | UNITS).items()][::every])
    compiled = Compiled(tmp_path, units, command)
    for text, operands in units.items():
        check(compiled, text, operands, 66)


@pytest.mark.heavy
def test_all_instructions(tmp_path):
    compiled = Compiled(tmp_path, dict.fromkeys(DESIGNS), [*COMPILERS["gcc"], "-O2"])
    for text in DESIGNS:
        check(compiled, text, None, 990)


@cache
def sets():
    names = ("V100.fp16.fp16", "Ada.E4M3.fp32", "H100.bf16.fp32", "H200.E5M2.fp32", "B200.E4M3.fp32")
    return [one for one in measured() if one.name in names]


def test_sums_that_gpus_computed(tmp_path):
    """500 of each set, whose results nobody here made."""
    compiled = Compiled(tmp_path, {one.design: None for one in sets()}, COMPILERS["gcc"])
    for one in sets():
        codes = [encode(x.reshape(500, -1), number) for x, number in zip((one.a, one.b), _formats(one), strict=True)]
        found = compiled.sums(one.design, Operands(*codes, None, one.c.reshape(500)))
        assert found == one.result.view(np.uint32).tolist(), one.name
    assert len(sets()) == 5


def _formats(one):
    return [parse(text) for text in DESIGNS[one.design].operands]


def test_a_file_checks_itself(tmp_path, capsys):
    assert main(["emit-c", "cdna3.mfma.bf16", "--output", str(tmp_path)]) == 0
    source, header, verilog = map(tmp_path.joinpath, capsys.readouterr().out.split())
    text = source.read_text(encoding="utf-8")
    assert (passes(source, text), passes(source, with_another_result(text))) == (True, False)
    user = tmp_path / "user.c"
    user.write_text(f'#include "{header.name}"\nint main(void) {{ return 0; }}\n', encoding="utf-8")
    subprocess.run([*COMPILERS["gcc"], user, "-o", tmp_path / "user"], check=True)
    assert 'import "DPI-C" function int unsigned dot_cdna3_mfma_bf16(\n    input shortint unsigned a [0:31]' in (
        verilog.read_text(encoding="utf-8")
    )


def passes(source, text):
    """Whether the program of a file finds no wrong sum."""
    source.write_text(text, encoding="utf-8")
    program = source.with_suffix("")
    subprocess.run([*COMPILERS["gcc"], "-DSELF_CHECK", source, "-o", program], check=True)
    return subprocess.run([program], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("at_least(13 - largest, -1022)", "at_least(14 - largest, -1022)"),
        ("at_least64(exponent_3, -6)", "exponent_3"),
        ("-(double)(int64_t)-x", "-(double)(int64_t)-x - 1"),
        ("FINEST = 39", "FINEST = 38"),
        ("begin += 32", "begin += 16"),
        ("double cut = truncated(total * up)", "double cut = total * up"),
        ("UINT32_C(0x7FFFFFFF)", "UINT32_C(0x7FC00000)"),
    ],
)
def test_a_wrong_line_is_found(line, wrong, tmp_path):
    text = emit("hopper.wgmma.e4m3")["dot_hopper_wgmma_e4m3.c"]
    assert text.count(line) == 1
    assert not passes(tmp_path / "wrong.c", text.replace(line, wrong))


def test_the_file_is_the_law():
    """A loop over terms for each pass of the law, whose functions are the comments; no function of a file is unused."""
    text = emit("hopper.wgmma.e4m3")["dot_hopper_wgmma_e4m3.c"]
    assert text.count("for (k = begin; k < stop; ++k) {") == 2
    assert "/* _together */\n        double found = cut;\n        for (k = begin; k < stop; ++k) {" in text
    assert "static double round_binary_8_13_toward_zero(double x)" in text
    pairs = emit("cdna2.mfma.bf16")["dot_cdna2_mfma_bf16.c"]
    assert "const float x_1 = term_of_a(a, begin + 1, stop);" in pairs
    assert not re.search(rf"\b(v\d+|{UNNAMED}\w*)\b", (text + pairs).partition("*/")[2])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("accumulator(chunk=4,rounding=stochastic)", {}, "rounds stochastically, by the place .* allowed are other"),
        (
            "accumulator(chunk=3,inner=accumulator(chunk=1,order=[1,0]))",
            {},
            "order inside of chunks; allowed is one",
        ),
        ("hopper.wgmma.e4m3", {"rounding": "up"}, "rounding='up' with an accumulator; allowed is rounding with a f"),
        ("e5m2", {"operands": E4M3}, "with a format; allowed are operands with an accumulator"),
        ("hopper.wgmma.e4m3", {"operands": HALF}, "allowed"),
        ("accumulator(chunk=4)", {"operands": ("mxfp8_e4m3", "e5m2")}, "formats with codes, and without shared scales"),
    ],
)
def test_what_cannot_be_written_is_named(text, options, message):
    with pytest.raises(ValueError, match=message):
        emit(text, **options)
