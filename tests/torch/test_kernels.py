"""Kernels on disk: shared by processes, safe against each other, against death, and without a compiler."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from support import DTYPES, assert_same_bits, to_torch

import qcore
import qtorch
from qcore import BlockFloatingPoint, BlockScaled, FixedPoint, FloatingPoint
from qtorch import kernels, launch, native, packaged
from qtorch.keys import make_noise
from qtorch.plan import make_plan, plan_for

CPU = torch.device("cpu")
F = FloatingPoint(5, 2)

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
    libraries = list(tmp_path.glob("*/*"))
    assert [library.suffix for library in libraries] == [".so"]  # nothing temporary is left


def test_a_kernel_is_compiled_wherever_it_is_needed(tmp_path):
    """Compiled programs call operators under a mode of torch, and so may users."""
    program = PROGRAM.replace(
        'qtorch.quantize(x, number, "nearest")',
        "torch.compile(lambda x: qtorch.quantize(x, number, key=3))(x)",
        1,
    ).replace('number, "nearest")', "number, key=3)")
    assert finish(start(tmp_path, program))[0] == "right"
    assert list(tmp_path.glob("*/*.so"))


def test_a_process_killed_while_compiling_leaves_nothing_that_breaks_the_next(tmp_path):
    process = start(tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/tmp*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list(tmp_path.glob("*/*.so"))
    assert finish(start(tmp_path))[0] == "right"


def test_a_damaged_kernel_is_compiled_again(tmp_path):
    qtorch.quantize(torch.ones(3), FloatingPoint(5, 2), "nearest")
    good = kernels._directory(kernels._law_files()) / "grid-nearest-float32-numbers-flat-cpu.so"
    content = good.read_bytes()
    library = tmp_path / good.parent.name / good.name
    library.parent.mkdir(mode=0o700)
    for damaged in (content[:5000] + b"?" + content[5001:], content[:1000]):
        library.write_bytes(damaged)
        with pytest.raises(OSError, match="damaged"):
            native.open_kernel(library, CPU)
    assert finish(start(tmp_path))[0] == "right"
    assert native.open_kernel(library, CPU)


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


@pytest.mark.parametrize(
    ("number", "shape"),
    [
        *((BlockFloatingPoint(8, dim), (70, 30, 40)) for dim in (-1, 0, 1, 2)),
        *((name, (300, 320)) for name in ("mxfp8_e4m3", "nvfp4")),
        *((BlockScaled("e4m3fn", block), (320, 320)) for block in ({0: 32}, {-1: 32, -2: 32}, {...: None})),
    ],
    ids=str,
)
def test_large_blocks(number, shape):
    """Kernels with threads are other code than those without."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[-1, -1] = np.nan
    x[3, 5], x[7], x[0, 0] = np.inf, 0, 1e-40
    for mode, key in (("nearest", None), ("stochastic", 3)):
        expected = qcore.quantize(x, number, mode, key=key)
        assert_same_bits(qtorch.quantize(torch.from_numpy(x), number, mode, key=key), expected)


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_blocks_along_rows_of_other_dtypes(dtype, mode):
    """Whose maxima have other lanes; kernels with threads and without."""
    key = 3 if mode == "stochastic" else None
    for shape in ((3, 41), (300, 320)):
        x = np.random.default_rng(0).standard_normal(shape).astype(DTYPES[dtype])
        x[1], x[0, 5], x[2, 7] = 0, np.inf, np.nan
        expected = qcore.quantize(x, BlockFloatingPoint(8, 0), mode, key=key)
        assert_same_bits(qtorch.quantize(to_torch(x), BlockFloatingPoint(8, 0), mode, key=key), expected)


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


def test_pieces_of_tensors_too_large_for_a_kernel(monkeypatch):
    """As tensors of 2^31 elements are, each with the random words of its place."""
    monkeypatch.setattr(qtorch.launch, "KERNEL_LIMIT", 4096)
    monkeypatch.setattr(qtorch.launch, "_PIECE", 1024)
    x = torch.randn(5000)
    for mode, key in (("nearest", None), ("stochastic", 1)):
        start = 2**32 - 2000 if key else 0
        actual = qtorch.quantize(x, F, mode, key=key, start=start)
        assert_same_bits(actual, qcore.quantize(x.numpy(), F, mode, key=key, start=start))


def test_large_kernels_leave_other_threads_alone():
    """They release Python's lock while they run; between switches there is an hour here."""
    x = torch.randn(1 << 24)
    result, plan, noise = torch.empty_like(x), make_plan(F, "stochastic", x.dtype, None, False), make_noise(1, 24, 0, x)
    kernel, constants = plan.runner("flat", None)
    began, order, interval = threading.Event(), [], sys.getswitchinterval()

    def run():
        began.set()
        kernel(x.numel(), x, constants, *noise, result)
        order.append("kernel")

    sys.setswitchinterval(3600)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        began.wait()
        order.append("other")
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert order == ["other", "kernel"]


@pytest.mark.parametrize(
    ("number", "layout", "dtype", "mode"),
    [
        pytest.param("mxfp8_e4m3", "rows", "float32", "nearest", marks=pytest.mark.heavy),
        pytest.param("e4m3fn", "flat", "float16", "nearest", marks=pytest.mark.heavy),
        pytest.param("e4m3fn", "channels", "float32", "stochastic", marks=pytest.mark.heavy),
        ("e4m3fn", "flat", "float32", "stochastic"),
    ],
    ids=["blocks", "elements", "channels last", "random words"],
)
def test_what_gpus_run_compiled_for_this_processor(tmp_path, number, layout, dtype, mode):
    """Packages are called with shapes, and write their results where they are told to."""
    plan = make_plan(number, mode, getattr(torch, dtype), None, True)
    path = tmp_path / "kernel.pt2"
    kernels._compile(partial(kernels._example, plan.program, layout, CPU), path, packaged)
    kernel = partial(kernels._shaped, packaged.open_kernel(path, CPU), plan.program, layout)
    x = torch.randn(6, 32, dtype=getattr(torch, dtype))
    x = x if plan.program.shared or plan.stochastic else x.view(32, 6).t()  # random words care about order
    noise = make_noise(3, 24, 0, x) if plan.stochastic else ()
    result = torch.empty_like(x, dtype=plan.dtype)
    scales = [torch.empty(6, 1, dtype=torch.uint8)] if plan.program.shared else []
    sizes = x.shape if layout == "rows" else (x.numel(),)
    if layout == "channels":
        x = x.view(2, 3, 4, 8).contiguous(memory_format=torch.channels_last)
        result = torch.empty_like(x, dtype=plan.dtype)
        groups, places, step = launch._group(3, 32, CPU)
        sizes, noise = (2, groups, places.numel()), (*noise, places, step)
    kernel(*sizes, x, kernels.constant_tensor(plan.program, plan.constants, layout, CPU), *noise, result, *scales)
    expected = qcore.encode(x.numpy(), number, mode, key=3 if noise else None)
    for one, other in zip([result, *scales], expected if scales else [expected], strict=True):
        assert_same_bits(one, other)


def test_errors_of_a_kernel(tmp_path):
    """Blocks' scales lie between two loops; and what is no memory is refused."""
    path = tmp_path / "kernel.so"
    program = make_plan(BlockFloatingPoint(8, 0), "nearest", torch.float32, None, False).program
    kernels._compile(partial(kernels._example, program, "rows", CPU), path, native)
    kernel = native.open_kernel(path, CPU)
    x = torch.zeros(4)
    with pytest.raises(MemoryError):
        kernel(1 << 60, 2, x, x, x)
    with pytest.raises(RuntimeError, match="storage"):
        kernel(2, 2, x.to_mkldnn(), x, x)


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
