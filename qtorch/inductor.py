"""What Inductor is asked to do for kernels, and taught.

A version of torch without the rotation has slower kernels; one whose program cannot be read has none.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from qcore.random import Rotate, rotate_left

Define = Callable[[list[str], str], Callable[..., Any]]


def settings() -> dict[str, object]:
    """Inductor's settings, as far as this version has them."""
    wanted = {
        "cpp.dynamic_threads": True,  # else a kernel that one thread compiles has one thread for ever
        "compile_threads": 1,  # others are processes, which start longer than a kernel takes
        "cpp_wrapper": False,
        "fx_graph_cache": False,
        "graph_partition": False,
        "size_asserts": False,
    }
    from torch._inductor import config

    return {name: value for name, value in wanted.items() if name in config._config}  # type: ignore[attr-defined]


class Variadic(torch.nn.Module):
    """A module as one of any number of tensors, of which the sizes that vary can be listed."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.module(*tensors)


def program(
    module: torch.nn.Module, arguments: tuple[torch.Tensor, ...], dynamic: tuple[object, ...], define: Define
) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The Python program that Inductor writes for a module on the CPU, without compiling what that calls.

    Args:
        module, arguments, dynamic: see `qtorch.kernels.Example`.
        define: makes a function of what C++ the program would have compiled, of its arguments' types and its text.

    Returns:
        The program's names, of which `call` takes a list of tensors, and the inputs' sizes, as ints and symbols.
    """
    from torch._functorch import config as functorch_config
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering

    written: list[str] = []

    def keep(graph: Any) -> Any:
        written.append(graph.codegen()[0].value)
        return SimpleNamespace(call=lambda *_: None)

    def defined(_: Any, types: list[str], source: str) -> Callable[..., Any]:
        return define(types, source)

    graph = torch.export.export(Variadic(module), arguments, dynamic_shapes=(dynamic,)).graph_module
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    caches = functorch_config.patch(enable_autograd_cache=False)
    with caches, config.patch(settings()), known_vectors(), _in_this_thread(GraphLowering, "compile_to_module", keep):
        compile_fx(graph, inputs)
    names: dict[str, Any] = {}
    with _in_this_thread(AsyncCompile, "cpp_pybinding", defined):
        exec(written.pop(), names)
    return names, [tuple(size if isinstance(size, int) else size.node.expr for size in x.shape) for x in inputs]


@contextlib.contextmanager
def _in_this_thread(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replaces a function where this thread calls it: others may be compiling programs of their own."""
    usual, thread = getattr(owner, name), get_ident()

    def chosen(*arguments: Any, **named: Any) -> Any:
        return (replacement if get_ident() == thread else usual)(*arguments, **named)

    with patch.object(owner, name, chosen):
        yield


def expand(size: Any) -> Any:
    """A size in a form in which equal ones are the same."""
    import sympy

    return sympy.expand(size)


def cpp(size: Any) -> str:
    """C++ for a size, which may depend on others."""
    from torch._inductor.codegen.cpp_utils import cexpr

    return cexpr(size)


def build(source: Path) -> Path:
    """Compiles a file of C++ to a library beside it, as Inductor would."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with known_vectors():
        chosen = CppTorchOptions(vec_isa=pick_vec_isa())
    builder = CppBuilder(source.stem, str(source), chosen, str(source.parent))
    builder.build()
    return Path(builder.get_target_file_path())


@contextlib.contextmanager
def known_vectors() -> Iterator[None]:
    """Has Inductor believe the processor.

    It would compile a program for every kind of vectors, and run each in a new process, in seconds.
    """
    from torch._inductor import cpu_vec_isa

    vectors = [] if "ATEN_CPU_CAPABILITY" in os.environ else _vectors()
    with _in_this_thread(cpu_vec_isa, "valid_vec_isa_list", lambda: vectors) if vectors else contextlib.nullcontext():
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
