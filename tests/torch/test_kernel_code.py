"""What kernels, and users' programs, are compiled from: better C++ than Inductor would write by itself."""

import platform
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch._inductor.utils import fresh_cache, run_and_get_code

from qcore import BlockFloatingPoint, FloatingPoint
from qcore.random import rotate_left
from qtorch import kernels, native, plan, quantize, vectors

F, B = FloatingPoint(5, 2), BlockFloatingPoint(8, 0)


def code(number, mode, layout, dtype=torch.float32):
    program = plan.make_plan(number, mode, dtype, None, False).program
    return native.write_kernel(kernels._example(program, layout, torch.device("cpu")))


def test_single_numbers_are_read_before_the_loops():
    head, loops = code(F, "stochastic", "flat").partition("bool is_large(")[0].split("for(", 1)
    words = re.findall(r"const auto ((\w+)_(\d)) = \2\[\3\];", head)
    assert len(words) == 5  # a key's, and three of a window
    for word, name, _ in words:
        assert f"{word};" in loops
        assert f"{name}[" not in loops


def test_memory_is_fetched_ahead():
    """Where a loop goes along it: its input and its result. The format's integers, and columns, it reads again."""
    rows = code(F, "nearest", "flat").split("static void serial0(")[1]
    fetched = re.findall(r"__builtin_prefetch\(\(const char\*\)\((\w+) \+ .*?x1 \+ 64L\*x0\)\) \+ 2048, (\d)\)", rows)
    assert fetched == [("in_ptr1", "0"), ("out_ptr1", "1")]
    assert rows.count("__builtin_prefetch") == 2
    columns = code(B, "nearest", "columns")
    assert "x0 + ks0*x1" in columns
    assert not re.search(r"__builtin_prefetch\([^;]*x0 \+ ks0\*x1", columns)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no such vectors")
def test_rotations_are_instructions():
    """Without them there are the same bits, of more operations: nothing else would tell."""
    assert vectors.rotation() is not rotate_left


def test_small_tensors_are_rounded_without_other_threads():
    """Otherwise they have the same bits, and wait for threads."""
    source = code(B, "nearest", "rows")
    serial, parallel, run = map(source.index, ("static void serial0(", "static void parallel0(", "bool is_large("))
    assert "#pragma omp" not in source[serial:parallel]
    assert "#pragma omp" in source[parallel:run]
    assert f">= {native.SERIAL_BELOW};" in source[run:]
    assert "(threads ? parallel0 : serial0)(" in source[run:]
    elements = code(F, "nearest", "flat").partition("// What follows")[0]
    assert "static void serial0(" in elements
    assert "#pragma omp" not in elements


def test_threads_share_a_single_example():
    """Of tensors with their channels side by side: the positions in it, as well as examples."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert "#pragma omp for collapse(2)" in code(F, "stochastic", "channels")
    finally:
        torch.set_num_threads(threads)


def test_blocks_along_rows_are_read_once():
    """The maximum of a block and its rounding are in one loop over blocks."""
    assert code(B, "nearest", "rows").count("#pragma omp for") == 1


def test_kernels_take_bits_and_maxima_at_once():
    """Otherwise they are the same, and rows of a few numbers take three times as long. The user's maxima stay."""
    from torch._inductor.codegen.cpp import CppVecKernel

    usual = CppVecKernel.reduction_combine_vec
    source = code(B, "nearest", "rows", torch.float64)
    assert "tmpbuf" not in source
    assert "_vec = at::vec::clamp_min(" in source
    assert "_vec = at::vec::maximum(" not in source
    assert usual == CppVecKernel.reduction_combine_vec


def compiled_code(function, x):
    with fresh_cache():
        _, (source,) = run_and_get_code(torch.compile(function), x)
    return source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_programs_take_bits_at_once(dtype, monkeypatch):
    """By way of memory they have the same bits, only later."""
    taught = []
    monkeypatch.setattr(plan, "quick_casts", lambda: taught.append(vectors.quick_casts()))
    source = compiled_code(partial(quantize, number=F, rounding="nearest"), torch.ones(64, 64, dtype=dtype))
    assert source.count("std::memcpy(static_cast<void*>(&bits)") == 2
    assert "tmpbuf" not in source
    assert taught


def test_compiled_programs_write_results_as_convolutions_want_them():
    """Otherwise in the order of dimensions, of which then copies are made."""
    first, second, images = torch.nn.Conv2d(16, 16, 3), torch.nn.Conv2d(16, 16, 3), torch.ones(4, 16, 16, 16)
    rounded, usual = (
        compiled_code(lambda x, between=between: second(between(first(x))), images).count("transpose_mxn")
        for between in (partial(quantize, number=F, rounding="nearest"), torch.relu)
    )
    assert rounded == usual


def test_patches_are_for_the_thread_that_compiles():
    """Others may be compiling programs of their own, to which they would do harm."""

    class Compiler:
        def name(self):
            return "usual"

        @staticmethod
        def kind():
            return "usual"

    names = vectors.in_this_thread(Compiler, "name", lambda _: "ours")
    with ThreadPoolExecutor(1) as other, names, vectors.in_this_thread(Compiler, "kind", lambda: "ours"):
        assert Compiler().name() == Compiler().kind() == "ours"
        assert other.submit(Compiler().name).result() == other.submit(Compiler().kind).result() == "usual"
    assert Compiler().name() == Compiler().kind() == "usual"


@pytest.mark.parametrize("sizes", [((4, 2), (2, 2)), ((2, 2), (2, 2))], ids=["a part", "shared"])
def test_results_that_do_not_fill_memory_of_their_own_are_refused(sizes):
    recorder = native._Recorder(rows=False)
    room = recorder.allocate(sizes[0], (2, 1), torch.float32)
    part = native._view(room, sizes[1], (2, 1))
    with pytest.raises(NotImplementedError):
        recorder.whole([room, part] if sizes[0] == sizes[1] else [part])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="others have one kind of vectors")
def test_vectors_are_known_without_a_trial(monkeypatch):
    """Inductor's own list takes seconds, of a compiler and of a process for each kind; it stays what it was."""
    from torch._inductor import cpu_vec_isa

    def tried(self):
        raise AssertionError(f"{self} was tried")

    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    for kind in {type(isa) for isa in cpu_vec_isa.supported_vec_isa_list} | {cpu_vec_isa.VecISA}:
        monkeypatch.setattr(kind, "__bool__", tried)
    usual = cpu_vec_isa.valid_vec_isa_list
    with vectors.known_vectors():
        (widest,) = cpu_vec_isa.valid_vec_isa_list()
        assert widest
        assert cpu_vec_isa.pick_vec_isa() is widest
        assert widest.bit_width() == (512 if torch.cpu._is_avx512_supported() else 256)
    assert cpu_vec_isa.valid_vec_isa_list is usual
