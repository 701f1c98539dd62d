"""What Inductor is asked to do for kernels, and taught.

Without a shortcut or the rotation that a version has not got they are slower; whose program cannot be read has none.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from qcore.random import Rotate, rotate_left

Define = Callable[[list[str], str], Callable[..., Any]]

SERIAL_BELOW = 1 << 15  # numbers; torch's own operations have the same threshold


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
    with caches, config.patch(settings()), shortcuts(), _in_this_thread(GraphLowering, "compile_to_module", keep):
        compile_fx(graph, inputs)
    names: dict[str, Any] = {}
    with _in_this_thread(AsyncCompile, "cpp_pybinding", defined):
        exec(written.pop(), names)
    return names, [tuple(size if isinstance(size, int) else size.node.expr for size in x.shape) for x in inputs]


@contextlib.contextmanager
def _in_this_thread(owner: type, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replaces a method where this thread calls it: others may be compiling programs of their own."""
    usual, thread = getattr(owner, name), get_ident()

    def method(*arguments: Any, **named: Any) -> Any:
        return (replacement if get_ident() == thread else usual)(*arguments, **named)

    with patch.object(owner, name, method):
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

    with shortcuts():
        chosen = CppTorchOptions(vec_isa=pick_vec_isa())
    builder = CppBuilder(source.stem, str(source), chosen, str(source.parent))
    builder.build()
    return Path(builder.get_target_file_path())


@contextlib.contextmanager
def shortcuts() -> Iterator[None]:
    """Has Inductor compile sooner, and small loops run without other threads."""
    with contextlib.ExitStack() as patches:
        for shortcut in (_one_vector_width, _serial_loops):
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
def _serial_loops() -> Iterator[None]:
    """Has small loops run on the calling thread.

    A parallel loop waits for all threads, which takes milliseconds when other programs hold the processors.
    """
    from torch._inductor.codegen import cpp
    from torch._inductor.codegen.cpp_utils import cexpr_index
    from torch._inductor.utils import sympy_product

    usual, generate, thread = cpp.WorkSharing, cpp.CppKernel.codegen_loops_impl, get_ident()

    class Sharing(usual):  # type: ignore[misc, valid-type]
        size: Any = None

        def parallel(self, threads: int) -> None:
            super().parallel(threads)
            if self.size is None:  # another thread's program
                return
            lines, pragma = self.code._lines, "#pragma omp parallel"
            place = max(index for index, line in enumerate(lines) if str(line).lstrip().startswith(pragma))
            head, _, others = lines[place].partition(" if(")  # of loops before this one in the same region
            large = f"{cexpr_index(self.size)} >= {SERIAL_BELOW})"
            lines[place] = f"{head} if({others.removesuffix(')')} || {large}" if others else f"{head} if({large}"

    def with_size(self: Any, loop_nest: Any, code: Any, worksharing: Any) -> None:
        if get_ident() == thread:
            worksharing.size = sympy_product(loop.size for loop in loop_nest.loops or ())
        generate(self, loop_nest, code, worksharing)

    cpp.WorkSharing, cpp.CppKernel.codegen_loops_impl = Sharing, with_size
    try:
        yield
    finally:
        cpp.WorkSharing, cpp.CppKernel.codegen_loops_impl = usual, generate


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
