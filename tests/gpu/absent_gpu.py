"""Kernels for a GPU that is not there: Inductor writes them, Triton's interpreter runs them, Triton's ptxas ends them.

    write       the library's example of a kernel -> the program that Inductor writes for a GPU: kernels in Triton
    interpret   runs the program on tensors of the CPU; Triton's interpreter is NumPy
    assemble    compiles the program's kernels to machine code

Triton decides when it is imported whether it interprets: `interpreter` and `compiler` are processes of their own. All
stand-ins for torch.cuda are in `absent_gpu`, which takes them away again.
"""

from __future__ import annotations

import ast
import logging
import os
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any
from unittest import mock

import numpy as np
import torch

from qtorch._affine import launch as affine
from qtorch._kernels import packages
from qtorch._rounding.paths import kernels as rounding

GPU = torch.device("cuda", 0)
CAPABILITY = 90


# The GPU's stand-ins.


def _properties(capability: int) -> types.SimpleNamespace:
    """What Inductor asks of a GPU; sizes are an H100's."""
    return types.SimpleNamespace(
        name="absent",
        type="cuda",
        major=capability // 10,
        minor=capability % 10,
        multi_processor_count=132,
        regs_per_multiprocessor=1 << 16,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        L2_cache_size=50 << 20,
        total_memory=80 << 30,
        warp_size=32,
    )


@contextmanager
def absent_gpu(capability: int = CAPABILITY) -> Iterator[None]:
    """Lets Inductor and Triton see one GPU, on which nothing can run."""
    import triton
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget

    properties = _properties(capability)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
        "_lazy_init": lambda: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
    }
    driver = mock.Mock()
    driver.get_current_target.return_value = GPUTarget("cuda", capability, 32)
    driver.get_current_device.return_value = 0
    with ExitStack() as stack:
        for owner in (torch.cuda, CudaInterface, CudaInterface.Worker):
            for name, answer in answers.items():
                if name in vars(owner):
                    answer = answer if owner is torch.cuda else staticmethod(answer)
                    stack.enter_context(mock.patch.object(owner, name, answer))
        stack.enter_context(mock.patch.object(torch._C, "_cuda_getCurrentRawStream", create=True, return_value=0))
        stack.enter_context(mock.patch.object(triton_helpers, "set_driver_to_gpu"))
        stack.enter_context(mock.patch.object(type(triton.runtime.driver), "active", driver))
        yield


# Inductor writes.


class _Written(Exception):
    """Ends Inductor's work once its program is there."""


def _stop(program: str) -> None:
    raise _Written(program)


def write(example: packages.Example, capability: int = CAPABILITY) -> str:
    """The program that Inductor writes for a GPU from an example whose tensors are on the CPU."""
    from torch._inductor import compile_fx, config

    def on_gpu(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        with absent_gpu(capability):
            return compile_fx.compile_fx_inner(graph, _move(graph), **options)

    stop = mock.patch("torch._inductor.graph.GraphLowering.save_output_code", _stop)
    with stop, torch.no_grad(), config.patch({**packages.OPTIONS, "force_disable_caches": True, "compile_threads": 1}):
        exported = packages.export(example)
        inputs = [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"]
        try:
            compile_fx.compile_fx(exported.module(check_guards=False), inputs, inner_compile=on_gpu)
        except Exception as error:
            written = getattr(error, "inner_exception", error)
            if isinstance(written, _Written):
                return written.args[0]
            raise
    raise AssertionError("Inductor wrote nothing")


def _move(graph: torch.fx.GraphModule) -> list[Any]:
    """Puts a graph that was traced on the CPU on the GPU, and returns its inputs."""
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = node.kwargs | {"device": GPU}
        node.meta["val"] = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to(GPU), node.meta.get("val"))
    graph.recompile()
    return [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]


# What there is in a program.


def kernels(program: str) -> dict[str, str]:
    """The sources of a program's kernels by their names."""
    found = {}
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "async_compile.triton":
            name, source = (argument.value for argument in node.args[:2])  # type: ignore[attr-defined]
            found[name] = source
    return found


# Triton runs.


def interpret(program: str, tensors: list[torch.Tensor]) -> None:
    """Runs a program on tensors of the CPU, the last of which it writes; in an `interpreter` only."""
    with absent_gpu(), _whole_interpreter():
        names: dict[str, Any] = {"__name__": "program"}
        exec(compile(program, "program", "exec"), names)
        names["empty_strided_cuda"] = names["empty_strided_cpu"]
        names["call"](list(tensors))


@contextmanager
def _whole_interpreter() -> Iterator[None]:
    """Gives Triton's interpreter what it lacks: one of CUDA's functions, and casts to bfloat16 that round."""
    from torch._inductor.runtime.triton_helpers import libdevice
    from triton.language import bfloat16, tensor
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def nearest_even(x: Any) -> Any:
        return tensor(interpreter.TensorHandle(np.rint(x.handle.data), x.handle.dtype), x.type)

    def rounded(values: Any, given: Any, wanted: Any, mode: Any) -> Any:
        if wanted != bfloat16:
            return convert(values, given, wanted, mode)
        return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16).view(torch.int16).numpy()

    with (
        mock.patch.object(libdevice, "nearbyint", nearest_even),
        mock.patch.object(interpreter, "_convert_float", rounded),
    ):
        yield


def assemble(program: str, capability: int) -> list[dict[str, Any]]:
    """PTX and machine code of a program's kernels in all configurations that Inductor tries; in a `compiler` only."""
    from torch._inductor import config
    from torch._inductor.codecache import PyCodeCache

    compiled = []
    with absent_gpu(capability), config.patch(use_static_triton_launcher=False):
        for name, source in kernels(program).items():
            kernel = getattr(PyCodeCache.load(source), name)
            kernel.device_props = kernel.device_props._replace(cc=capability, major=capability // 10)
            compiled += [kernel._precompile_config(one).kernel.asm for one in kernel.configs]
    return [{form: asm[form] for form in ("ptx", "cubin")} for asm in compiled]


# What the library launches.


def launch(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[str]]:
    """What one of the library's launching functions returns where kernels are interpreted, and their programs."""
    programs: list[str] = []

    def load(name: str, sources: Any, device: torch.device, example: Callable[[], packages.Example]) -> Any:
        programs.append(_program(name, example))
        return partial(interpret, programs[-1])

    with mock.patch.object(packages, "load", load), ExitStack() as fresh:
        for cached in (rounding.load, rounding.load_decoder, affine.load):
            cached.cache_clear()
            fresh.callback(cached.cache_clear)
        return function(*arguments), programs


def run(module: torch.nn.Module, x: torch.Tensor) -> tuple[str, torch.Tensor]:
    """The program of a module, and what it returns where its kernels are interpreted."""
    import torch._dynamo  # before Inductor: torch imports the two in a circle
    import torch._inductor.lowering

    result = torch.empty_like(x)
    program = write(packages.Example(module, (x,), (None,)))
    interpret(program, [x, result])
    return program, result


_written: dict[str, str] = {}


def _program(name: str, example: Callable[[], packages.Example]) -> str:
    if name not in _written:
        _written[name] = write(example())
    return _written[name]


# Processes of their own.


def interpreter(caches: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), _prepare, (caches, "1"))


def compiler(caches: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), _prepare, (caches, "0"))


def _prepare(caches: str, interpret: str) -> None:
    """What Inductor and Triton leave behind goes to a folder of the test's."""
    os.environ["TRITON_INTERPRET"] = interpret
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = caches
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
