"""Compilers: how they are named, what they say, and what they lack."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from support import assert_same_bits

import qcore
import qtorch
from qtorch._kernels import compiler, store


def check():
    x = torch.randn(1001)
    assert_same_bits(qtorch.quantize(x, "e5m2", "nearest"), qcore.quantize(x.numpy(), "e5m2", "nearest"))


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Makes a compiler of a few lines of shell, which may end with the real one, and lets CC name it."""
    real = compiler.command(())[0]

    def write(lines, name="cc"):
        path = tmp_path / "bin of scripts" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(f"#!/bin/bash\n{lines}\n".replace("REAL", real).encode("latin-1"))
        path.chmod(0o700)
        monkeypatch.setenv("CC", str(path))
        return path

    return write


def libraries(tmp_path):
    return sorted(tmp_path.glob("kernels/*.so"))


@pytest.mark.parametrize(("words", "seen"), [("{0} -O0 -DX='a b'", "-O0 -DX=a b"), ("{0}", ""), ("env {0} -O0", "-O0")])
def test_a_compiler_may_have_arguments(fresh, script, monkeypatch, tmp_path, words, seen):
    path = script('echo "$@" >> "${0%/*/*}/seen"; exec REAL "$@"')
    quoted = str(path) if words == "{0}" else f"'{path}'"  # a path with spaces that is all of CC needs no quotes
    monkeypatch.setenv("CC", words.format(quoted))
    check()
    assert all(line.startswith(seen) for line in (tmp_path / "seen").read_text().splitlines())
    assert len(libraries(tmp_path)) == 1


def test_words_that_are_none(fresh, monkeypatch):
    monkeypatch.setenv("CC", "gcc 'x")
    with pytest.raises(ValueError, match=r"CC=.* No closing quotation; allowed are words"):
        check()


def test_each_compiler_has_its_own_libraries(fresh, script, monkeypatch, tmp_path):
    paths = [script('exec REAL "$@"', name) for name in ("one", "two")]
    for path in (*paths, paths[0]):
        monkeypatch.setenv("CC", str(path))
        fresh()
        check()
    assert len(libraries(tmp_path)) == 2
    monkeypatch.setenv("CC", "/nonexistent/cc")  # then those of any compiler serve
    fresh()
    check()
    path = script('exec REAL "$@"  # newer', "one")
    fresh()
    check()
    assert (len(libraries(tmp_path)), str(path) in compiler.identity()) == (3, True)


def test_what_a_compiler_says_comes_first_and_points_at_the_users_line(fresh, script):
    script("echo 'kernel.c: In function f:' >&2; echo 'fatal \xe9rror: error: no omp.h' >&2; exit 1")
    with pytest.warns(RuntimeWarning) as found:
        torch.nn.Sequential(qtorch.quant.Quantizer(qtorch.FloatingPoint(5, 2)))(torch.ones(3))
    (one,) = found
    assert str(one.message).startswith("qtorch has no kernel for cpu: fatal \ufffdrror: error: no omp.h (")
    assert "runs operation by operation, which is slower and has the same results" in str(one.message)
    assert one.filename == __file__


def test_a_compiler_that_says_nothing(fresh, script):
    script("exit 3")
    with pytest.warns(RuntimeWarning, match=r"no kernel for cpu: status 3 \("):
        check()


def test_a_compiler_that_makes_junk_is_not_believed(fresh, script, tmp_path):
    script('while [ "$1" != -o ]; do shift; done; echo junk > "$2"')
    with pytest.warns(RuntimeWarning, match="a library that does not load"):
        check()
    assert not libraries(tmp_path)


NO_OPENMP = 'for x; do [ "$x" = -fopenmp ] && { echo "error: unsupported option" >&2; exit 1; }; done; exec REAL "$@"'


def test_without_openmp_kernels_run_on_one_thread(fresh, script, tmp_path):
    script(NO_OPENMP)
    x = torch.randn(100_000)
    for _ in range(2):  # the second finds what the first made
        with pytest.warns(
            RuntimeWarning, match=r"on one thread, because .*cc has no OpenMP: error: unsupported option"
        ):
            assert_same_bits(qtorch.quantize(x, "block(8)", key=3), qcore.quantize(x.numpy(), "block(8)", key=3))
        assert len(libraries(tmp_path)) == 1
        fresh()


LIBOMP = """
import ctypes, torch, qtorch
for threads in (1, 2, 1):
    torch.set_num_threads(threads)
    qtorch.quantize(torch.ones(1 << 17), "e5m2", "nearest")
    maps = open("/proc/self/maps", encoding="utf-8").read().split()
    (other,) = {one for one in maps if "libomp.so" in one or "libomp-" in one or "libomp5" in one}
    print(ctypes.CDLL(other).omp_get_max_threads())
"""


@pytest.mark.skipif(shutil.which("clang") is None or sys.platform != "linux", reason="needs clang with libomp")
def test_an_openmp_that_is_not_torchs_takes_its_number_of_threads(tmp_path):
    variables = {**os.environ, "QTORCH_CACHE_DIR": str(tmp_path), "CC": "clang", "QTORCH_CFLAGS": ""}
    result = subprocess.run([sys.executable, "-c", LIBOMP], env=variables, capture_output=True, text=True, check=False)
    if "has no OpenMP" in result.stderr:
        pytest.skip("clang is there, and libomp is not")
    assert (result.stdout.split(), result.stderr) == (["1", "2", "1"], "")


def test_an_empty_instruction_set_is_none(fresh, monkeypatch):
    flags = compiler.target_flags()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "")
    fresh()
    assert compiler.target_flags() == flags


def test_warnings_of_folders_point_at_the_users_line(fresh, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("QTORCH_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="this process only") as found:
        check()
    assert [one.filename for one in found] == [__file__]
    with store.folder() as kernels:
        shutil.rmtree(kernels.path)
