"""Kernels on disk: shared by processes, safe against each other, against death, and without a compiler."""

import hashlib
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from kernels_support import libraries
from support import assert_same_bits

import qcore
import qtorch
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint
from qtorch._kernels import compiler, store

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


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.heavy)])
def test_a_kernel_is_compiled_wherever_it_is_needed(fresh, tmp_path, backend):
    """Compiled programs call operators under a mode of torch, and so may users."""
    torch._dynamo.reset()
    x, number = torch.randn(1001), FloatingPoint(5, 2)
    # Stochastic rounding is what backends leave a call.
    program = torch.compile(lambda x: qtorch.quantize(x, number, "stochastic", key=3), backend=backend, fullgraph=True)
    assert_same_bits(program(x), qcore.quantize(x.numpy(), number, "stochastic", key=3))
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


def test_a_damaged_kernel_is_compiled_again(fresh, tmp_path):
    """To load a part of a library would end the process."""
    check()
    (library,) = tmp_path.glob("*/*.so")
    content = library.read_bytes()
    for damaged in (b"", content[:1000], content[:5000] + b"?" + content[5001:]):
        library.unlink()  # this process has loaded the file
        library.write_bytes(damaged)
        library.chmod(0o700)
        assert not store.is_complete(library)
    fresh()
    check()
    assert store.is_complete(*tmp_path.glob("*/*.so"))


def test_a_library_that_does_not_load_is_compiled_again(fresh, tmp_path):
    check()
    (library,) = tmp_path.glob("*/*.so")
    library.unlink()
    junk = library.with_name(f"{library.name[:66]}{hashlib.sha256(b'junk').hexdigest()[:32]}.so")
    junk.write_bytes(b"junk")
    junk.chmod(0o700)
    assert store.is_complete(junk)  # it is what some compiler made
    fresh()
    check()
    assert list(tmp_path.glob("*/*.so")) == [library]


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


def test_folders_are_the_users_alone_whatever_the_umask(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("QTORCH_CACHE_DIR", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        check()
    finally:
        os.umask(before)
    kernels = tmp_path / "a" / "b" / "kernels"
    (library,) = kernels.glob("*.so")
    made = tmp_path / "a", tmp_path / "a" / "b", kernels, library
    assert [one.stat().st_mode & 0o777 for one in made] == [0o700] * 4


@pytest.mark.parametrize("change", ["mode", "owner", "mode of the library"])
def test_what_others_can_write_is_not_loaded(fresh, tmp_path, change):
    """Also between two loads: each asks for owner and mode."""
    check()
    (library,) = tmp_path.glob("*/*.so")
    if change == "owner":
        if os.getuid():
            pytest.skip("only root gives files away")
        os.chown(library.parent, 12345, -1)
    else:
        (library.parent if change == "mode" else library).chmod(0o777)
    fresh()
    if change == "mode of the library":
        check()
        assert library.stat().st_mode & 0o777 == 0o700  # a new one
        return
    with pytest.warns(RuntimeWarning, match="for this process only: .*can be written by others"):
        check()
    with store.folder() as another:  # without a second warning
        assert another.path != library.parent
        assert another.path.stat().st_mode & 0o777 == 0o700
        assert len(list(another.path.glob("*.so"))) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not find files by descriptors")
def test_a_folder_stays_the_one_that_was_checked(fresh, tmp_path):
    with store.folder() as kernels:
        (kernels.path / "first").touch()
        kernels.path.rename(tmp_path / "moved")
        kernels.path.mkdir()
        assert [one.name for one in kernels.held.iterdir()] == ["first"]


def test_what_killed_compilers_left_is_cleared(fresh, tmp_path):
    folders = tmp_path / "kernels" / "tmpold", tmp_path / "kernels" / "tmpnew"
    for folder, age in zip(folders, (3700, 3500), strict=True):
        store.make_private(folder)
        (folder / "kernel.c").touch()
        os.utime(folder, (time.time() - age,) * 2)
    check()
    assert [folder.exists() for folder in folders] == [False, True]


FORKS = """
import os, signal, threading, time, torch, qtorch
x = torch.ones(1 << 20)
def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # ends a child that hangs
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1]
thread = threading.Thread(target=lambda: qtorch.quantize(x, "e5m2", "nearest"))
thread.start()
while not os.path.exists("begun"): time.sleep(0.001)
print(child(lambda: qtorch.quantize(x[:10], "e5m2", "nearest")), thread.is_alive())
open("ended", "w", encoding="utf-8").close()
thread.join()
torch.set_num_threads(2)
qtorch.quantize(x, "e5m2", "nearest")  # OpenMP has threads from here on, which children have not
def work():
    torch.set_num_threads(1)  # what docs/platforms.md asks for
    qtorch.quantize(x, "e5m2", "nearest")
print(child(work))
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_that_is_forked_while_a_kernel_is_compiled_or_after_one_ran(tmp_path):
    """The first compiler waits until the child has ended, which has a compiler of its own."""
    wait = f"cd {tmp_path}; if mkdir begun 2>/dev/null; then while [ ! -e ended ]; do sleep 0.01; done; fi"
    script = tmp_path / "cc"
    script.write_text(f'#!/bin/sh\n{wait}\nexec {compiler.command(())[0]} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    program = f"import os; os.chdir({str(tmp_path)!r})\n{FORKS}"
    assert finish(start(tmp_path / "cache", program, CC=str(script)))[0].split() == ["0", "True", "0"]


def test_kernels_do_not_grow_with_formats_or_shapes(fresh, tmp_path):
    """18 formats x 5 shapes: one kernel for the elementwise formats, two for blocks, of which large ones are shared."""
    numbers = [FloatingPoint(5, man) for man in range(1, 7)] + [FixedPoint(8, fl) for fl in range(6)]
    numbers += [BlockFloatingPoint(wl) for wl in range(2, 8)]
    for number in numbers:
        for shape in ((3,), (2, 5), (7, 1, 3), (1000,), (50_000,)):
            qtorch.quantize(torch.randn(shape), number, "nearest")
    assert len(libraries(tmp_path)) == 2


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
    with store.folder() as kernels:
        assert list(kernels.path.glob("*.so"))


def test_where_kernels_are_kept(monkeypatch, tmp_path):
    home = pwd.getpwuid(os.getuid()).pw_dir
    for cache, caches, here, expected in (
        ("~/kept", "/caches", "/home/me", "/home/me/kept"),
        ("~/kept", "", "", f"{home}/kept"),
        ("here", "", "", tmp_path / "here"),
        ("", "/caches", "", "/caches/qtorch"),
        ("", "caches", "/home/me", "/home/me/.cache/qtorch"),  # must be absolute, says its standard
        ("", "", "", f"{home}/.cache/qtorch"),
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("QTORCH_CACHE_DIR", cache)
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
        monkeypatch.setenv("HOME", here)
        assert store.cache_root() == Path(expected)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    monkeypatch.setenv("QTORCH_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    with pytest.raises(RuntimeError, match="user 987654 has no home; set QTORCH_CACHE_DIR"):
        store.cache_root()
