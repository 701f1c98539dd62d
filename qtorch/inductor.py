"""What Inductor is asked to do for kernels, and taught; without what a version has not got, they are slower."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from qcore.random import Rotate, rotate_left


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
def wrapper(stack: bool) -> Iterator[None]:
    """Has Inductor write the code around kernels in the way that `options` asks for.

    It chooses once in a process, by the options of the first program that anybody compiles, and the wrong way knows
    nothing of the stack.
    """
    if not stack:
        yield
        return
    try:
        from torch._inductor.codegen import common
        from torch._inductor.codegen.cpp_wrapper_cpu_array_ref import CppWrapperCpuArrayRef

        common.init_backend_registration()
        usual = common.device_codegens["cpu"]
        common.device_codegens["cpu"] = replace(usual, cpp_wrapper_codegen=CppWrapperCpuArrayRef)
    except (ImportError, AttributeError, TypeError):
        yield
        return
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
