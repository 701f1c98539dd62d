"""Kernels on disk: shared by processes, safe against each other, against death, and without a compiler."""

import contextlib
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import DTYPES, assert_same_bits, to_torch

import qcore
import qtorch
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint
from qcore.random import rotate_left
from qtorch import inductor, kernels
from qtorch.plan import plan_for

PROGRAM = """
import warnings; warnings.simplefilter("error", RuntimeWarning)
import torch, numpy as np, qcore, qtorch
x = torch.randn(1001)
number = qtorch.FloatingPoint(5, 2)
y = qtorch.quantize(x, number, "nearest")
assert (y.numpy().view(np.int32) == qcore.quantize(x.numpy(), number, "nearest").view(np.int32)).all()
print("right")
"""


def start(folder, program=PROGRAM, **environment):
    variables = {**os.environ, "QTORCH_CACHE_DIR": str(folder), **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], env=variables, start_new_session=True, **pipes)


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.strip(), err


@pytest.mark.heavy
def test_eight_processes_that_start_at_once_with_a_cold_cache(tmp_path):
    processes = [start(tmp_path) for _ in range(8)]
    assert [finish(process)[0] for process in processes] == ["right"] * 8
    packages = list(tmp_path.glob("*/*"))
    assert [package.suffix for package in packages] == [".pt2"]  # nothing temporary is left


def test_a_kernel_is_compiled_wherever_it_is_needed(tmp_path):
    """Compiled programs call operators under a mode of torch, and so may users."""
    program = PROGRAM.replace(
        'qtorch.quantize(x, number, "nearest")',
        "torch.compile(lambda x: qtorch.quantize(x, number, key=3))(x)",
        1,
    ).replace('number, "nearest")', "number, key=3)")
    assert finish(start(tmp_path, program))[0] == "right"
    assert list(tmp_path.glob("*/*.pt2"))


def test_a_process_killed_while_compiling_leaves_nothing_that_breaks_the_next(tmp_path):
    process = start(tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/tmp*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list(tmp_path.glob("*/*.pt2"))
    assert finish(start(tmp_path))[0] == "right"


def test_a_damaged_kernel_is_compiled_again(tmp_path):
    qtorch.quantize(torch.ones(3), FloatingPoint(5, 2), "nearest")
    good = kernels._directory(kernels._law_files()) / "grid-nearest-float32-numbers-flat-cpu.pt2"
    package = tmp_path / good.parent.name / good.name
    package.parent.mkdir(mode=0o700)
    package.write_bytes(good.read_bytes()[:1000])
    assert finish(start(tmp_path))[0] == "right"
    assert package.stat().st_size > 1000


def test_without_a_compiler_the_operations_give_the_same_bits_after_one_warning(tmp_path):
    program = PROGRAM.replace('"error"', '"always"') + 'qtorch.quantize(x, number, "nearest")'
    out, err = finish(start(tmp_path, program, CXX="/nonexistent/c++", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "i")))
    assert out == "right"
    assert err.count("RuntimeWarning") == 1
    assert "operation by operation" in err


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path):
    program = "import qtorch.kernels as k; print(k._directory().stat().st_mode & 0o777)"
    finish(start(tmp_path, program))
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    out, err = finish(start(tmp_path, program))
    assert int(out) == 0o700
    assert "can be written by others" in err


@pytest.mark.heavy
def test_whatever_is_compiled_first_small_parts_are_on_the_stack(tmp_path):
    program = PROGRAM + "qtorch.quantize(x, number, key=1); qtorch.quantize(x, qtorch.BlockFloatingPoint(8), 'nearest')"
    finish(start(tmp_path, program))
    on_stack = {}
    for package in tmp_path.glob("*/*.pt2"):
        with zipfile.ZipFile(package) as members:
            (code,) = (name for name in members.namelist() if name.endswith(".wrapper.cpp"))
            on_stack[package.name.partition("-float32")[0]] = b"ArrayRefTensor" in members.read(code)
    assert on_stack == {"grid-nearest": False, "grid-stochastic": True, "block-nearest": True}


def test_kernels_do_not_grow_with_formats_or_shapes():
    """18 formats x 5 shapes: one kernel for the elementwise formats, one for the blocks."""
    numbers = [FloatingPoint(5, man) for man in range(1, 7)] + [FixedPoint(8, fl) for fl in range(6)]
    numbers += [BlockFloatingPoint(wl) for wl in range(2, 8)]
    kernels.load.cache_clear()
    plan_for.cache_clear()
    for number in numbers:
        for shape in ((3,), (2, 5), (7, 1, 3), (1000,), (50_000,)):
            qtorch.quantize(torch.randn(shape), number, "nearest")
    assert kernels.load.cache_info().currsize == 2


@pytest.mark.parametrize("size", [1, 15, 16, 17, 63, 64, 65, 127, (1 << 15) - 1, 1 << 15, (1 << 15) + 17])
def test_sizes_around_rows_and_the_parallel_threshold(size):
    x = torch.randn(size)
    x[-1] = float("nan")
    for mode in ("nearest", "stochastic"):
        actual = qtorch.quantize(x, FloatingPoint(4, 3), mode, key=1)
        assert_same_bits(actual, qcore.quantize(x.numpy(), FloatingPoint(4, 3), mode, key=1))


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_blocks_on_two_threads_and_on_one(dim):
    x, number = torch.randn(300, 301), BlockFloatingPoint(8, dim)
    expected, threads = qcore.quantize(x.numpy(), number, "nearest"), torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert_same_bits(qtorch.quantize(x, number, "nearest"), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large_sizes_that_are_no_whole_rows(dtype):
    """They are rounded in pieces, and what is left of the last row with zeros after it."""
    x = np.random.default_rng(0).standard_normal((1 << 19) + 77, np.float32).astype(dtype)
    for mode, start in (("nearest", 0), ("stochastic", 2**32 - 2**18 - 5)):
        key = None if mode == "nearest" else 1
        actual = qtorch.quantize(to_torch(x), FloatingPoint(4, 3), mode, key=key, start=start)
        assert_same_bits(actual, qcore.quantize(x, FloatingPoint(4, 3), mode, key=key, start=start))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no such vectors")
def test_rotations_are_instructions():
    """Without them there are the same bits, of more operations: nothing else would tell."""
    assert inductor.rotation() is not rotate_left


def test_shortcuts_of_the_compiler_are_taken():
    """Without them kernels have the same bits, and are slower to call or to compile."""
    qtorch.quantize(torch.randn(10), FloatingPoint(4, 3), "stochastic", key=1)
    folder = kernels._directory(kernels._law_files())
    with zipfile.ZipFile(folder / "grid-stochastic-float32-numbers-flat-cpu.pt2") as package:
        sources = {name.split(".")[-2]: package.read(name).decode() for name in package.namelist() if ".cpp" in name}
    regions = [line for line in sources["kernel"].splitlines() if line.lstrip().startswith("#pragma omp parallel")]
    assert regions
    assert all(f">= {inductor.SERIAL_BELOW})" in line for line in regions)
    assert "arrayref_tensor.h" in sources["wrapper"]
    assert "array_ref.h" not in sources["wrapper"]


def test_who_asks_for_a_kernel_makes_the_stand_in_for_a_missing_gpu(monkeypatch):
    """torch 2.11 keeps it in the thread that traces first; the thread that compiles a kernel ends."""
    made, compiled = [], []

    def fail(*_):
        compiled.append(threading.get_ident())
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(
        torch._C, "_ensureCUDADeviceGuardSet", lambda: made.append(threading.get_ident()), raising=False
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernels, "_compile", fail)
    with pytest.warns(RuntimeWarning, match="no compiler here"):
        assert kernels.load_module("grid-odd-float32-numbers-flat", (), torch.device("cpu"), list) is None
    assert made == [threading.get_ident()]
    assert compiled != made


def test_shortcuts_end():
    from torch._inductor import cpu_vec_isa
    from torch._inductor.codegen import common, cpp
    from torch._inductor.cpp_builder import CppBuilder

    def swapped():
        yield from (cpu_vec_isa.valid_vec_isa_list, cpp.WorkSharing, cpp.CppKernel.codegen_loops_impl)
        yield from (common.device_codegens["cpu"], CppBuilder.build)

    common.init_backend_registration()
    before = list(swapped())
    with inductor.shortcuts(stack=True):
        assert not any(one is other for one, other in zip(before, swapped(), strict=True))
    assert list(swapped()) == before


@pytest.mark.parametrize("error", [None, "does not compile"])
def test_a_kernel_and_the_code_around_it_are_compiled_side_by_side(monkeypatch, error):
    from torch._inductor.cpp_builder import CppBuilder

    begun, built = threading.Event(), []

    def build(builder):
        if builder._name.endswith(".wrapper"):
            assert begun.wait(60)
            if error:
                raise RuntimeError(error)
        begun.set()
        built.append(builder._name)

    monkeypatch.setattr(CppBuilder, "build", build)
    wrapper, kernel = (
        SimpleNamespace(_name=name, _output_dir="here", _compile_only=True) for name in ("1.wrapper", "1.kernel")
    )
    with inductor.shortcuts(stack=False):
        CppBuilder.build(wrapper)
        with pytest.raises(RuntimeError, match=error) if error else contextlib.nullcontext():
            CppBuilder.build(kernel)
        assert built == ["1.kernel", "1.wrapper"][: 1 if error else 2]


def test_pairs_of_16_bits_of_any_size_and_offset(monkeypatch):
    layouts, load = [], kernels.load

    def watched(program, layout, device):
        layouts.append(layout)
        return load(program, layout, device)

    monkeypatch.setattr(kernels, "load", watched)
    x = np.random.default_rng(0).standard_normal(1001, np.float32).astype(DTYPES["bfloat16"])
    number, whole = FloatingPoint(4, 3, bias=9), to_torch(x)
    for part in (slice(0, 1000), slice(2, 998), slice(1, 1001), slice(0, 1001)):
        for mode, key in (("nearest", None), ("stochastic", 5)):
            expected = qcore.quantize(x[part], number, mode, key=key, start=2 if key else 0)
            assert_same_bits(qtorch.quantize(whole[part], number, mode, key=key, start=2 if key else 0), expected)
    assert set(layouts) == {"pairs"}


def test_codes_of_16_bits_in_pairs():
    x = np.random.default_rng(0).standard_normal(1001, np.float32)
    for part in (slice(0, 1000), slice(1, 1001), slice(0, 1001)):
        assert_same_bits(qtorch.encode(torch.from_numpy(x)[part], "float16"), qcore.encode(x[part], "float16"))
