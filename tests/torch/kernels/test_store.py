"""Kernels on disk: shared by processes, safe against each other, against death, and without a compiler."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from support import assert_same_bits

import qcore
import qtorch
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint
from qtorch._kernels import compiler, laws, store
from qtorch._rounding.plan import plan_for

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


def check():
    x = torch.randn(1001)
    assert_same_bits(qtorch.quantize(x, FloatingPoint(5, 2)), qcore.quantize(x.numpy(), FloatingPoint(5, 2)))


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


@pytest.mark.heavy
def test_a_process_killed_while_compiling_leaves_nothing_that_breaks_the_next(tmp_path):
    process = start(tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/tmp*/*")) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list(tmp_path.glob("*/*.so"))
    assert finish(start(tmp_path))[0] == "right"


def test_a_damaged_kernel_is_compiled_again(tmp_path):
    """To load a part of a library would end the process."""
    assert finish(start(tmp_path))[0] == "right"
    (library,) = tmp_path.glob("*/*.so")
    content = library.read_bytes()
    for damaged in (b"", content[:1000], content[:5000] + b"?" + content[5001:]):
        library.write_bytes(damaged)
        assert not store.is_whole(library)
    assert finish(start(tmp_path))[0] == "right"
    assert library.read_bytes() == content or store.is_whole(library)


@pytest.mark.heavy
def test_other_compiler_options_make_another_kernel(tmp_path):
    """Options decide bits, so a kernel of an earlier version must not be taken for one of this."""
    options = "import qtorch._kernels.compiler as c; c._FLAGS = (*c._FLAGS, '-DOTHER')\n"
    for program, count in ((PROGRAM, 1), (options + PROGRAM, 2), (PROGRAM, 2)):
        assert finish(start(tmp_path, program))[0] == "right"
        assert len(list(tmp_path.glob("*/*.so"))) == count


def test_added_options_reach_the_compiler_and_make_another_kernel(fresh, monkeypatch, tmp_path):
    check()
    monkeypatch.setenv("QTORCH_CFLAGS", "-O1 -DADDED='a b'")
    fresh()
    check()
    assert len(list(tmp_path.glob("*/*.so"))) == 2
    assert compiler.command(())[-2:] == ["-O1", "-DADDED=a b"]
    monkeypatch.setenv("QTORCH_CFLAGS", "-DADDED='a b")
    fresh()
    with pytest.raises(ValueError, match=r"QTORCH_CFLAGS=.* No closing quotation; allowed are words"):
        check()


def test_without_a_compiler_the_operations_give_the_same_bits_after_one_warning(tmp_path):
    program = PROGRAM.replace('"error"', '"always"') + 'qtorch.quantize(x, number, "nearest")'
    out, err = finish(start(tmp_path, program, CC="/nonexistent/cc"))
    assert out == "right"
    assert err.count("RuntimeWarning") == 1
    assert "operation by operation" in err


def test_a_folder_that_others_can_write_is_not_trusted(fresh, tmp_path):
    folder = store.folder()
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    folder.chmod(0o777)
    fresh()
    with pytest.warns(RuntimeWarning, match="can be written by others"):
        another = store.folder()
    assert (another == folder, another.stat().st_mode & 0o777) == (False, 0o700)


def test_kernels_do_not_grow_with_formats_or_shapes():
    """18 formats x 5 shapes: one kernel for the elementwise formats, two for blocks, of which large ones are shared."""
    numbers = [FloatingPoint(5, man) for man in range(1, 7)] + [FixedPoint(8, fl) for fl in range(6)]
    numbers += [BlockFloatingPoint(wl) for wl in range(2, 8)]
    laws.rounding.cache_clear()
    plan_for.cache_clear()
    for number in numbers:
        for shape in ((3,), (2, 5), (7, 1, 3), (1000,), (50_000,)):
            qtorch.quantize(torch.randn(shape), number, "nearest")
    assert laws.rounding.cache_info().currsize == 2


def test_instruction_sets_have_libraries_of_their_own(fresh, monkeypatch, tmp_path):
    """What one is compiled for may not run where another is chosen."""
    flags = set()
    for name in ("default", "avx2"):
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", name)
        fresh()
        check()
        flags.add(compiler.target_flags())
    assert len(flags) == len(list(tmp_path.glob("*/*.so"))) == 2


def test_an_unknown_instruction_set_is_refused(fresh, monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx3")
    with pytest.raises(ValueError, match="ATEN_CPU_CAPABILITY='avx3'; allowed are default, avx2, avx512"):
        compiler.target_flags()


def test_a_folder_that_cannot_be_written_costs_the_next_process_only(fresh, monkeypatch, tmp_path):
    """Kernels are then kept for one process, which says so."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("QTORCH_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="keeps its kernels for this process only"):
        check()
    assert list(store.folder().glob("*.so"))
