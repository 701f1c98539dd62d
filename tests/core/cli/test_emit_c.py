"""The C of `qbits emit-c`: compiled strictly, it has the bits of qcore, and says so itself."""

import ctypes
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from emit_support import COMPILERS, available, with_another_result

import qcore
from qcore import NAMED, Rounding, parse
from qcore.__main__ import main
from qcore.cli.c_text import UNNAMED, identifier
from qcore.cli.emit_c import emit
from qcore.cli.properties import why_no_codes
from qcore.cli.vectors import vector_inputs

KEY, START = 0xFEDC_BA98_7654_3210, 2**33 - 100
ELEMENTS = (
    "float(5,2) float(8,7) e4m3fn e4m3fnuz e8m0fnu float16 p3109(8,3) fixed(8,4) fixed(8,0,wrap=True) "
    "fixed(8,149,wrap=True) fixed(33,20) uint8 posit8 posit(32,3) p3109(8,4):propagate e5m2:propagate"
).split()
BLOCKS = {  # with the shape of a block, of which the array has many along its first axis
    "block(8,dim=0)": (19,),
    "mxfp8_e4m3": (32,),
    "scaled(e4m3fnuz,{-1:8})": (8,),
    "scaled(e2m1fn,{1:4,2:4},rceil)": (4, 4),
    "nvfp4": (16,),
    "scaled(e2m1fn,{-1:16},scale=e5m2)": (16,),
    "scaled(e4m3fn,{-1:32},scale=bfloat16)": (32,),
    "scaled(nf4,{-1:64},rule=absmax,scale=float32)": (64,),
}
MODES = [mode.value for mode in Rounding]
PAIRS = [(text, MODES[i % len(MODES)]) for i, text in enumerate([*ELEMENTS, *BLOCKS])]


def library(command, folder, name):
    sources = sorted(map(str, folder.glob("*.c")))
    done = subprocess.run(
        [command[0], "-O1", *command[1:], "-fPIC", "-shared", *sources, "-o", folder / name], capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return ctypes.CDLL(str(folder / name))


def check(found, text, mode):
    """The array's function on all numbers of small formats, hard and random ones; and on blocks of hard ones."""
    number = qcore.parse(text)
    options = {"key": KEY, "start": START} if mode.startswith("stochastic") else {}
    if text in BLOCKS:
        size = int(np.prod(BLOCKS[text]))
        x = vector_inputs(getattr(number, "element", number), np.dtype("f4"), 2000, 1)
        x = x[: x.size // size * size].reshape(-1, *BLOCKS[text])
        if text == "nvfp4":  # one scale for all: of finite numbers
            x = np.random.default_rng(1).standard_normal(x.shape).astype("f4")
        sizes = [len(x), size]
    else:
        x = vector_inputs(number, np.dtype("f4"), 2000, 1)
        sizes = [x.size]
    name = next(name for name in emit(text, mode, None))[:-2] + ("" if text in BLOCKS else "_array")
    result, function = np.empty_like(x), found[name]
    types = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] * len(sizes) + [ctypes.c_uint64] * len(options)
    function.argtypes, function.restype = types, None
    function(x.ctypes.data, result.ctypes.data, *sizes, *options.values())
    expected = qcore.quantize(x, number, mode, **options)
    np.testing.assert_array_equal(result.view("u4"), expected.view("u4"), err_msg=f"{text} {mode}")
    name = name.removesuffix("_array")
    if not why_no_codes(number):
        (check_block_codes if text in BLOCKS else check_codes)(found, name, x, number, mode, options)


def check_codes(found, name, x, number, mode, options):
    """Codes of the same numbers, and the numbers of codes where float32 has them all."""
    coded, given = found[f"{name}_encode"], options.get("key")
    coded.argtypes, coded.restype = [ctypes.c_float] + [ctypes.c_uint64] * (2 * (given is not None)), ctypes.c_uint32
    # As a Python float on the way, a signalling NaN may become a quiet one, for which codes are the same.
    noise = [() if given is None else (given, options["start"] + i) for i in range(x.size)]
    codes = [coded(number_, *words) for number_, words in zip(x.tolist(), noise, strict=True)]
    assert codes == qcore.encode(x, number, mode, **options).tolist(), name
    try:
        right = qcore.decode(np.array(codes[:500]), number)
    except ValueError:  # float32 lacks some of the numbers, and the file such a function
        return
    number_of = found[f"{name}_decode"]
    number_of.argtypes, number_of.restype = [ctypes.c_uint32], ctypes.c_float
    numbers = np.array([number_of(code) for code in codes[:500]], np.float32)
    np.testing.assert_array_equal(numbers.view("u4"), right.view("u4"), err_msg=name)


def check_block_codes(found, name, x, number, mode, options):
    codes, scales = qcore.encode(x, number, mode, **options)
    scales, *whole = scales if isinstance(scales, tuple) else (scales,)
    arrays = [np.empty_like(one) for one in (codes, scales, *whole)]
    pointers = [one.ctypes.data for one in (x, *arrays)]
    sizes = len(x), x[0].size
    coded, decoded = found[f"{name}_encode"], found[f"{name}_decode"]
    coded.argtypes = [ctypes.c_void_p] * len(pointers) + [ctypes.c_size_t] * 2 + [ctypes.c_uint64] * len(options)
    coded(*pointers, *sizes, *options.values())
    for one, right in zip(arrays, (codes, scales, *whole), strict=True):
        np.testing.assert_array_equal(one, right, err_msg=name)
    result, all_of = np.empty_like(x), [ctypes.c_float] * len(whole)
    decoded.argtypes = [ctypes.c_void_p] * 2 + all_of + [ctypes.c_void_p] + [ctypes.c_size_t] * 2
    decoded(codes.ctypes.data, scales.ctypes.data, *map(float, whole), result.ctypes.data, *sizes)
    right = qcore.decode(codes, number, scales=(scales, *whole) if whole else scales)
    np.testing.assert_array_equal(result.view("u4"), right.view("u4"), err_msg=name)


@pytest.mark.parametrize("command", [*available()])
@pytest.mark.parametrize("pairs", [PAIRS[::4], pytest.param(PAIRS, marks=pytest.mark.heavy)], ids=["few", "all"])
def test_bits(command, pairs, tmp_path):
    for text, mode in pairs:
        emit(text, mode, tmp_path)
    found = library(command, tmp_path, "some.so")
    for text, mode in pairs:
        check(found, text, mode)


@pytest.mark.heavy
@pytest.mark.parametrize("command", [*available()])
def test_all_formats_and_modes(command, tmp_path):
    for text, mode in product([*ELEMENTS, *BLOCKS], MODES):
        emit(text, mode, tmp_path)
    found = library(command, tmp_path, "all.so")
    for text, mode in product([*ELEMENTS, *BLOCKS], MODES):
        check(found, text, mode)


@pytest.mark.parametrize(("text", "mode"), [("e4m3fn", "stochastic"), ("mxfp8_e4m3", "nearest")])
def test_a_file_checks_itself(text, mode, tmp_path, capsys):
    assert main(["emit-c", text, "--rounding", mode, "--output", str(tmp_path)]) == 0
    source, header, verilog = map(Path, capsys.readouterr().out.split())
    program = tmp_path / "program"
    subprocess.run([*COMPILERS["gcc"], "-DSELF_CHECK", source, "-o", program], check=True)
    assert subprocess.run([program], capture_output=True, text=True).stdout.endswith(" vectors differ\n")
    assert subprocess.run([program]).returncode == 0
    damaged = with_another_result(source.read_text(encoding="utf-8"))
    source.write_text(damaged, encoding="utf-8")
    subprocess.run([*COMPILERS["gcc"], "-DSELF_CHECK", source, "-o", program], check=True)
    assert subprocess.run([program]).returncode == 1
    user = tmp_path / "user.c"
    user.write_text(f'#include "{header.name}"\nint main(void) {{ return 0; }}\n', encoding="utf-8")
    subprocess.run([*COMPILERS["gcc"], user, "-o", program], check=True)
    assert verilog.read_text(encoding="utf-8").count('import "DPI-C" function') == (3 if text == "e4m3fn" else 1)


@pytest.mark.heavy
def test_no_two_formats_have_one_name(tmp_path):
    """Names of files and functions; texts differ in signs that C has no letters for, or are long."""
    texts = ["fixed(8,4)", "fixed(8,-4)", "scaled(e2m1fn,{-1:32})", "scaled(e2m1fn,{1:32})", "binary(4,3,bias=1)"]
    texts += ["binary(4,3,bias=-1)", f"table([{','.join(map(str, range(32)))}])", f"table([{','.join('0123456789')}])"]
    names = [next(iter(emit(text, mode, tmp_path))) for text in texts for mode in ("nearest", "nearest_up", "up")]
    assert len({name.lower() for name in names}) == len(names) == len({*tmp_path.glob("*.c")})
    assert max(map(len, names)) <= 100
    assert {"round_fixed_8_4_nearest.c", "round_e5m2_up.c"} <= {*names, *emit("e5m2", "up", tmp_path)}
    found = library([*COMPILERS["gcc"], "-O0"], tmp_path, "all.so")
    for text in ("fixed(8,4)", "fixed(8,-4)"):
        check(found, text, "nearest")


def test_named_formats_have_names_of_their_own():
    texts = {parse(name).text for name in NAMED}
    assert len({identifier(text).lower() for text in texts}) == len(texts)
    assert identifier("fixed_8_4") != identifier("fixed(8,4)")  # a name that a user may give


def test_the_file_is_the_law():
    """Variables have the names that the law gives, and comments those of its functions."""
    text = emit("float(5,2)", "nearest", None)["round_float_5_2_nearest.c"]
    assert "static const int32_t FINEST = 21;" in text
    named = ["magnitude = bits & 0x7FFFFFFF", "m = magnitude - BASE", "field = right(m, 23)"]
    assert "/* round_magnitude */\n" + "".join(f"    const int32_t {one};\n" for one in named) in text
    assert (
        "    const int32_t step = right(mask + odd, 1);\n    /* round_to_grid */\n    const int32_t rounded = " in text
    )
    assert " v1" not in text
    assert UNNAMED not in text


def test_without_torch_and_jax():
    code = "import sys, qcore.__main__ as q; q.main(['emit-c', 'e5m2']); assert not {'torch', 'jax'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("/* Rounds float32 numbers to e5m2, and to its codes, nearest.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mx9", "micro-exponents; allowed are blocks without"),
        ("nvfp4(four_over_six=mae)", "NVFP4 without four_over_six"),
    ],
)
def test_blocks_that_no_loop_over_elements_rounds_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        emit(text, "nearest", None)
