"""Each template in C: no warnings, and an error for calls with other arguments than it reads."""

import platform
import shutil
import subprocess
from functools import cache

import numpy as np
import pytest
import torch
from covering import usually

from qcore import Accumulator, FloatingPoint, parse
from qcore.affine import UINT8
from qcore.formats.number import prepare
from qcore.law.carrier import CARRIERS
from qcore.law.rounding import Rounding
from qtorch._affine.kernels import dynamic, integers
from qtorch._affine.kernels import laws as affine
from qtorch._kernels import compiler, gather, insight, laws, products, ranks, store
from qtorch._rounding.plan import decoder_for
from qtorch.reproducible.fused import loops
from qtorch.reproducible.fused.trace import ArrayTrace, Number, in_order

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wvla", "-Wno-missing-field-initializers", "-Werror"]
WARNINGS += [f"-Wno-unused-{kind}" for kind in ("parameter", "variable", "function", "but-set-variable")]
OF_CLANG = [
    f"-Wno-{name}" for name in ("unknown-pragmas", "ignored-optimization-argument", "unused-command-line-argument")
]


def rounding(number, mode, layout, dtype="float32", encodes=False):
    carrier = CARRIERS[dtype]
    program, _ = prepare(parse(number), Rounding(mode), carrier, None, encodes)
    if program.narrows:
        program, _ = prepare(parse(number), Rounding(mode), carrier.narrow, None, encodes)
    return lambda: laws.rounding_kernel(program, layout).source()


def decoding(number, layout):
    return lambda: laws.decoding_kernel(decoder_for(parse(number), torch.float32)[0], "uint8", layout).source()


def loaded(make, *arguments):
    """The source that a cached function loads."""

    def source():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "_from_library", lambda text, read: text)
            return make.__wrapped__(*arguments)

    return source


def loop():
    recording = ArrayTrace()
    x = recording.argument("float32", (3,))
    result = x * x + recording.argument("float64", (3,))
    order = in_order([result], {x.name})
    numbers = [one for node in order for one in node.operands if isinstance(one, Number)]
    return loops._source(order, [node for node in order if not node.text], [result], numbers, [1, 1])


STOCHASTIC = Accumulator(FloatingPoint(5, 10), rounding="stochastic", chunk=4)
SOURCES = {
    "float": rounding("float(5,2)", "nearest", "flat"),
    "float, channels_last": rounding("float(5,2)", "stochastic", "places"),
    "float of bfloat16": rounding("float(5,2)", "nearest", "flat", "bfloat16"),
    "float of float64": rounding("float(5,2)", "stochastic", "flat", "float64"),
    "posit": rounding("posit8", "nearest", "flat", "float16"),
    "whole": rounding("block(8)", "stochastic", "whole"),
    "columns": rounding("block(8)", "nearest", "columns", "bfloat16"),
    "tiles": rounding("mxfp8_e4m3", "nearest", "tiles of 32 columns", "float32", True),
    "two levels": rounding("nvfp4", "nearest", "tiles of 16 columns", "bfloat16"),
    "two levels, codes": rounding("nvfp4", "stochastic", "tiles", "float32", True),
    "decode": decoding("mxfp4", "tiles of 32 columns"),
    "decode two levels": decoding("nvfp4", "columns"),
    "following": loaded(laws.following, 16),
    "fake_quantize": loaded(affine.fake_quantize, "bfloat16", "tiles"),
    "quantize": loaded(affine.quantize, "float32", "int8", "flat"),
    "dequantize": loaded(affine.dequantize, "int16", "columns"),
    "requantize": loaded(affine.requantize, "int32", "uint8", True, "columns"),
    "straight_through": loaded(affine.straight_through, 32),
    "extremes": loaded(affine.extremes),
    "observe": loaded(affine.observe, True, "per_tensor_affine", "flat"),
    "observe channels": loaded(affine.observe, False, "per_channel_symmetric", "tiles"),
    "statistics": lambda: insight.source(CARRIERS["float32"], True),
    "statistics of 16 bits": lambda: insight.source(CARRIERS["bfloat16"], False),
    "sequential": lambda: products.source(Accumulator(FloatingPoint(8, 7)), True),
    "aligned": lambda: products.source_of_aligned(Accumulator("float16", chunk=4, fraction_bits=9)),
    "aligned, cut off": lambda: products.source_of_aligned(Accumulator.of("hopper.wgmma.e4m3")),
    "aligned, float16": lambda: products.source_of_aligned(Accumulator.of("volta.mma.f16.f16")),
    "aligned, groups": lambda: products.source_of_aligned(Accumulator.of("blackwell.tcgen05.nvf4")),
    "aligned, downward": lambda: products.source_of_aligned(Accumulator.of("cdna3.mfma.fp8")),
    "unaligned": lambda: products.source_of_unaligned(Accumulator.of("cdna2.mfma.f16")),
    "unaligned, fused": lambda: products.source_of_unaligned(Accumulator.of("cdna1.mfma.f32")),
    "sequential, stochastic": lambda: products.source(STOCHASTIC, False),
    "chunks": lambda: products.source_of_chunks(None),
    "chunks, stochastic": lambda: products.source_of_chunks(STOCHASTIC),
    "integers": loaded(integers.of_integers, True),
    "dynamic": loaded(dynamic.product, True, UINT8),
    "LSTM": loaded(dynamic.steps, "lstm", True, UINT8),
    "GRU": loaded(dynamic.steps, "gru", False, UINT8),
    "sums of quantized arrays": loaded(affine.binary, "add", ("uint8", "int8", "int16"), True),
    "packing": loaded(integers.packing),
    "sums": loaded(products.tree_sums),
    "sums by index": loaded(products.sums_by_index),
    "steps": loaded(products.steps),
    "look-up": loaded(gather._function, (1, 2), 1),
    "sums over ranks": loaded(ranks.adding, torch.bfloat16, torch.float32, torch.bfloat16, "/"),
    "loop": loop,
}


# Sources that share most of their text with others, and take compilers longest.
VARIANTS = "aligned, cut off", "aligned, float16", "chunks, stochastic", "GRU"
SETS = [*compiler.X86_FLAGS.values(), compiler.target_flags()] if platform.machine() == "x86_64" else [()]


@cache
def has_openmp(cc):
    """Whether a compiler finds OpenMP's header, which Debian's clang has in a package of its own."""
    words = [cc, "-fopenmp", "-fsyntax-only", "-x", "c", "-"]
    return subprocess.run(words, input=b"#include <omp.h>\n", capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("cc", ["gcc", "clang-14"])
@pytest.mark.parametrize("name", usually({*SOURCES} - {*VARIANTS}, SOURCES))
def test_compilers_have_nothing_to_say(name, cc, everywhere, tmp_path, monkeypatch):
    """For one set of instructions each, by turns; heavy tests take all of them."""
    if shutil.which(cc) is None:
        pytest.skip(f"no {cc}")
    if not has_openmp(cc):
        pytest.skip(f"{cc} has no omp.h")
    monkeypatch.setenv("CC", cc)
    source = tmp_path / "kernel.c"
    source.write_text(SOURCES[name]())
    options = [*WARNINGS, *(OF_CLANG if "clang" in cc else []), "-fsyntax-only", str(source)]
    place = [*SOURCES].index(name) % len(SETS)
    for target in SETS if everywhere else SETS[place : place + 1]:
        result = subprocess.run([*compiler.command(target), *options], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")


# What is read, and what may follow: a call of a kernel of elements has as many arguments for each tensor.
COUNTS = {
    "float": 4,
    "whole": 4 + 5,
    "statistics": 8,
    "sequential": 9,
    "aligned": 13,
    "unaligned": 10,
    "chunks": 5 + 1 + 4 + 12,
    "integers": 5 + 5 + 4 * 3 + 4 + 10,
    "packing": 8,
    "dynamic": 10,
    "LSTM": 12,
    "sums": 5,
    "sums by index": 6,
    "steps": 1,
    "look-up": 7,
    "sums over ranks": 4,
}


@pytest.mark.parametrize("name", usually({*COUNTS} - {"aligned", "integers", "dynamic", "packing", "look-up"}, COUNTS))
def test_calls_with_other_arguments_than_a_kernel_reads(name, fresh, monkeypatch):
    monkeypatch.setenv("QTORCH_CFLAGS", "-O0")
    fresh()
    kernel, count = store.load(SOURCES[name]()), COUNTS[name]
    assert kernel is not None
    for wrong in {0, 1, count - 1, count + 1, 2 * count + 1} - {count}:
        if name == "steps" and wrong:
            continue  # a program says how many follow
        with pytest.raises(TypeError, match=r"a kernel reads \d+ arguments, and was given \d+"):
            kernel(*[0] * wrong)
    with pytest.raises(TypeError, match="integer"):
        kernel(*["0"] * count)


def test_programs_and_sums_say_how_many_arguments_follow(fresh, monkeypatch):
    monkeypatch.setenv("QTORCH_CFLAGS", "-O0")
    fresh()
    steps, sums = (store.load(SOURCES[name]()) for name in ("steps", "sums"))
    program = np.array([2, 0, 0, 0, 0], np.int64)  # of two arrays, without steps
    address = program.ctypes.data
    assert steps(address, 0, 0) == 0
    for arrays in (1, 3):
        with pytest.raises(TypeError, match=f"a kernel reads 2 arguments, and was given {arrays}"):
            steps(address, *[0] * arrays)
    for sizes, message in (
        ((1, 1, 5), "a kernel reads 2 arguments, and was given 1"),
        ((65, 1, *[1] * 66), "65 dimensions and 1 axes; allowed are at most 64"),
        ((1, 65, *[1] * 66), "1 dimensions and 65 axes"),
        ((-1, 1, 0), "-1 dimensions"),
        ((2, 1, 3, 3, 2), "an axis is out of range"),
    ):
        with pytest.raises(TypeError, match=message):
            sums(0, 0, 0, *sizes)
