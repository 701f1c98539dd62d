"""What Inductor is taught about vectors on the CPU: which there are, and better C++ than it would write.

All but the rotation, which it has no code for, and the bits of vectors are for the thread that compiles a kernel alone.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator
from functools import cache, wraps
from inspect import getattr_static
from threading import get_ident
from typing import Any
from unittest.mock import patch

import torch

from qcore.random import Rotate, rotate_left


@contextlib.contextmanager
def in_this_thread(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replaces a function where this thread calls it: others may be compiling programs of their own."""
    usual, thread = getattr(owner, name), get_ident()

    @wraps(usual)
    def chosen(*arguments: Any, **named: Any) -> Any:
        return (replacement if get_ident() == thread else usual)(*arguments, **named)

    static = isinstance(getattr_static(owner, name), staticmethod)
    with patch.object(owner, name, staticmethod(chosen) if static else chosen):
        yield


@contextlib.contextmanager
def known_vectors() -> Iterator[None]:
    """Has Inductor believe the processor.

    It would compile a program for every kind of vectors, and run each in a new process, in seconds.
    """
    from torch._inductor import cpu_vec_isa

    vectors = [] if "ATEN_CPU_CAPABILITY" in os.environ else _vectors()
    with in_this_thread(cpu_vec_isa, "valid_vec_isa_list", lambda: vectors) if vectors else contextlib.nullcontext():
        yield


def _vectors() -> list[Any]:
    """The widest that the processor has, if Inductor can tell.

    Inductor's own objects try, when they are taken for a truth value, and remember what they found.
    """
    from torch._inductor import cpu_vec_isa

    try:
        known = cpu_vec_isa.x86_isa_checker()
        usable = [isa for isa in cpu_vec_isa.supported_vec_isa_list if str(isa) in known]
    except AttributeError:
        return []
    return [type(type(isa).__name__, (type(isa),), {"__bool__": lambda _: True})() for isa in usable[:1]]


@contextlib.contextmanager
def quick_maxima() -> Iterator[None]:
    """Has Inductor not ask of each maximum whether one of the two is a NaN.

    That takes three operations more, each of which waits for the one before. The floats of which kernels take maxima
    are none, see `qtorch.lanes`.
    """
    from torch._inductor.codegen.cpp import CppVecKernel

    combine = CppVecKernel.reduction_combine_vec

    def greater(*arguments: Any, **named: Any) -> str:
        return combine(*arguments, **named).replace("at::vec::maximum(", "at::vec::clamp_min(")

    with in_this_thread(CppVecKernel, "reduction_combine_vec", greater):
        yield


@cache
def quick_casts() -> None:
    """Has Inductor take a vector of floats for integers, and back, as it is, for kernels and for users' programs.

    It would do so by way of memory, in parts, and wait for each where a processor cannot read as a whole what it has
    just written in parts. The bits are the same.
    """
    try:
        from torch._inductor.codegen.cpp import CppVecOverrides
        from torch._inductor.virtualized import V

        usual = CppVecOverrides.to_dtype_bitcast
    except (ImportError, AttributeError):
        return

    @wraps(usual)  # whose name Inductor looks for among its functions of scalars
    def same_bits(x: Any, dtype: torch.dtype, source: torch.dtype) -> Any:
        if {dtype, source} not in ({torch.int32, torch.float32}, {torch.int64, torch.float64}):
            return usual(x, dtype, source)
        kernel: Any = V.kernel
        copied = f"std::memcpy(static_cast<void*>(&bits), &{x}, sizeof(bits))"  # torch 2.11's bit_cast takes no vectors
        return f"[&]() {{ {kernel._get_vec_type(dtype)} bits; {copied}; return bits; }}()"

    CppVecOverrides.to_dtype_bitcast = staticmethod(same_bits)  # type: ignore[assignment]


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
