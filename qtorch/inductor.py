"""What Inductor is asked to do for kernels.

A version of torch without the rotation has slower kernels; one whose program cannot be read has none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from qtorch.vectors import in_this_thread, known_vectors, quick_casts, quick_maxima

Define = Callable[[list[str], str], Callable[..., Any]]


class Rows(NamedTuple):
    """A kernel's first input and result as rows of elements, of which only the number varies.

    Attributes:
        elements: how many make a row.
        window: which of its inputs has the index of the first element, see `qcore.random.Noise`; -1 if none has.
    """

    elements: int
    window: int


class Example(NamedTuple):
    """What a kernel is compiled from.

    Attributes:
        module: returns what the kernel computes. A NaN among floats of which it takes the maximum is lost on the CPU,
            see `qtorch.vectors.quick_maxima`.
        arguments: tensors large enough to be compiled for all threads.
        dynamic: for each of them which of its sizes vary, as `torch.export.export` takes them.
        rows: if there are some; on the CPU the kernel then takes the number of elements, of which the last row need not
            be full, instead of the number of rows.
    """

    module: torch.nn.Module
    arguments: tuple[torch.Tensor, ...]
    dynamic: tuple[Any, ...]
    rows: Rows | None = None


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


def program(example: Example, define: Define) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The Python program that Inductor writes for a module on the CPU, without compiling what that calls.

    Args:
        example: of which only the rows are not read.
        define: makes a function of what C++ the program would have compiled, of its arguments' types and its text.

    Returns:
        The program's names, of which `call` takes a list of tensors, and the inputs' sizes, as ints and symbols.
    """
    from torch._functorch import config as functorch_config
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering

    quick_casts()
    written: list[str] = []

    def keep(graph: Any) -> Any:
        written.append(graph.codegen()[0].value)
        return SimpleNamespace(call=lambda *_: None)

    def defined(_: Any, types: list[str], source: str) -> Callable[..., Any]:
        return define(types, source)

    shapes = (example.dynamic,)
    graph = torch.export.export(Variadic(example.module), example.arguments, dynamic_shapes=shapes).graph_module
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    caches = functorch_config.patch(enable_autograd_cache=False)
    written_only = in_this_thread(GraphLowering, "compile_to_module", keep)
    with caches, config.patch(settings()), known_vectors(), quick_maxima(), written_only:
        compile_fx(graph, inputs)
    names: dict[str, Any] = {}
    with in_this_thread(AsyncCompile, "cpp_pybinding", defined):
        exec(written.pop(), names)
    return names, [tuple(size if isinstance(size, int) else size.node.expr for size in x.shape) for x in inputs]


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
