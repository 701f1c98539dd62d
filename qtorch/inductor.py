"""What Inductor is asked to do for kernels, and taught; without what a version has not got, they are slower."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import torch

from qcore.random import Rotate, rotate_left

SERIAL_BELOW = 1 << 15  # numbers; torch's own operations have the same threshold


def options(stack: bool) -> dict[str, object]:
    """Inductor's settings, as far as this version has them; for `stack` see `qtorch.kernels.load_module`."""
    wanted = {
        "aot_inductor.precompile_headers": False,  # they pay from the fifth kernel on, and most programs need two
        "aot_inductor.allow_stack_allocation": stack,
        "cpp.dynamic_threads": True,  # else a kernel that one thread compiles has one thread for ever
    }
    from torch._inductor import config

    return {name: value for name, value in wanted.items() if name in config._config}  # type: ignore[attr-defined]


@contextlib.contextmanager
def shortcuts(stack: bool) -> Iterator[None]:
    """Has Inductor compile sooner, and write what kernels on the CPU need in the way that `options` asks for."""
    with contextlib.ExitStack() as patches:
        for shortcut in (_one_vector_width, _side_by_side, _serial_loops, *([_stack_wrapper] if stack else [])):
            with contextlib.suppress(ImportError, AttributeError, TypeError):
                patches.enter_context(shortcut())
        yield


@contextlib.contextmanager
def _one_vector_width() -> Iterator[None]:
    """Inductor tries to compile for every kind of vectors that the processor has, and then takes the first."""
    from torch._inductor import cpu_vec_isa

    usual, flags = cpu_vec_isa.valid_vec_isa_list, set(cpu_vec_isa.x86_isa_checker())
    there = (isa for isa in cpu_vec_isa.supported_vec_isa_list if flags.issuperset(str(isa).split()) and isa)
    chosen = list(islice(there, 1)) if flags and "ATEN_CPU_CAPABILITY" not in os.environ else usual()
    cpu_vec_isa.valid_vec_isa_list = lambda: chosen
    try:
        yield
    finally:
        cpu_vec_isa.valid_vec_isa_list = usual


@contextlib.contextmanager
def _side_by_side() -> Iterator[None]:
    """Has the code around a kernel compiled beside the kernel, which Inductor would do one after the other."""
    from torch._inductor.cpp_builder import CppBuilder

    usual = CppBuilder.build

    def build(builder: Any) -> None:
        if builder._name.endswith(".wrapper") and builder._compile_only:
            started[builder._output_dir] = beside.submit(usual, builder)
            return
        usual(builder)
        if builder._output_dir in started:
            started.pop(builder._output_dir).result()

    with ThreadPoolExecutor(1) as beside:
        started: dict[str, Future[None]] = {}
        CppBuilder.build = build  # type: ignore[method-assign]
        try:
            yield
        finally:
            CppBuilder.build = usual  # type: ignore[method-assign]


@contextlib.contextmanager
def _serial_loops() -> Iterator[None]:
    """Has small loops run on the calling thread.

    A parallel loop waits for all threads, which takes milliseconds when other programs hold the processors.
    """
    from torch._inductor.codegen import cpp
    from torch._inductor.codegen.cpp_utils import cexpr_index
    from torch._inductor.utils import sympy_product

    usual, generate = cpp.WorkSharing, cpp.CppKernel.codegen_loops_impl

    class Sharing(usual):  # type: ignore[misc, valid-type]
        size: Any = None

        def parallel(self, threads: int) -> None:
            super().parallel(threads)
            lines, pragma = self.code._lines, "#pragma omp parallel"
            place = max(index for index, line in enumerate(lines) if str(line).lstrip().startswith(pragma))
            head, _, others = lines[place].partition(" if(")  # of loops before this one in the same region
            large = f"{cexpr_index(self.size)} >= {SERIAL_BELOW})"
            lines[place] = f"{head} if({others.removesuffix(')')} || {large}" if others else f"{head} if({large}"

    def with_size(self: Any, loop_nest: Any, code: Any, worksharing: Any) -> None:
        worksharing.size = sympy_product(loop.size for loop in loop_nest.loops or ())
        generate(self, loop_nest, code, worksharing)

    cpp.WorkSharing, cpp.CppKernel.codegen_loops_impl = Sharing, with_size
    try:
        yield
    finally:
        cpp.WorkSharing, cpp.CppKernel.codegen_loops_impl = usual, generate


@contextlib.contextmanager
def _stack_wrapper() -> Iterator[None]:
    """Inductor chooses what writes the code around kernels once in a process, by the options of the first program that
    anybody compiles; the wrong one knows nothing of the stack.

    The right one includes all of ATen, a third of the time that such code takes to compile, for conversions that
    kernels do not need.
    """
    from torch._inductor.codegen import common
    from torch._inductor.codegen.cpp_wrapper_cpu_array_ref import CppWrapperCpuArrayRef

    class Lean(CppWrapperCpuArrayRef):
        @staticmethod
        def create(*_: Any, **__: Any) -> Any:
            return Lean()

        @staticmethod
        def get_device_include_path_aot(device: str) -> str:
            headers = (f"aoti_include/{device}", "aoti_runtime/arrayref_tensor", "aoti_runtime/thread_local")
            return "\n".join(f"#include <torch/csrc/inductor/{name}.h>" for name in headers)

    common.init_backend_registration()
    usual = common.device_codegens["cpu"]
    common.device_codegens["cpu"] = replace(usual, cpp_wrapper_codegen=Lean)
    try:
        yield
    finally:
        common.device_codegens["cpu"] = usual


@cache
def rotation() -> Rotate:
    """`rotate_left` for kernels on this CPU, as one instruction where it has one.

    Inductor has neither rotations nor shifts without a sign for vectors, so that a rotation takes four operations and
    the random words of an element half as long again. It has an operator whose code is given, of which it writes code
    for GPUs only: here it learns to for CPUs.
    """
    try:
        from torch._higher_order_ops import inline_asm_elementwise
        from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
    except ImportError:
        return rotate_left
    if "inline_asm_elementwise" in vars(CppOverrides) or platform.machine() != "x86_64":
        return rotate_left

    def rotate(x: torch.Tensor, distance: int) -> torch.Tensor:
        return inline_asm_elementwise(x, asm_str=str(distance), constraints="=r,r", dtype=torch.int32)

    CppOverrides.inline_asm_elementwise = staticmethod(_rotated)  # type: ignore[assignment]
    CppVecOverrides.inline_asm_elementwise = staticmethod(_rotated_vector)  # type: ignore[assignment]
    return rotate


def _rotated(x: Any, asm: str, **_: Any) -> str:
    return f"int32_t({_turned(f'uint32_t({x})', int(asm))})"


def _rotated_vector(x: Any, asm: str, **_: Any) -> str:
    """As a vector of the compiler's own, whose shifts it makes a rotation of."""
    return (
        f"[&]() {{ typedef uint32_t words __attribute__((vector_size(sizeof({x})))); "
        f"const auto word = c10::bit_cast<words>({x}); "
        f"return c10::bit_cast<std::decay_t<decltype({x})>>(words({_turned('word', int(asm))})); }}()"
    )


def _turned(word: str, distance: int) -> str:
    return f"({word} << {distance}) | ({word} >> {32 - distance})"
