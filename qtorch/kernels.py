"""Fused kernels: the law compiled ahead of time by Inductor, on first use, and kept on disk.

One kernel serves all formats of a kind: their integers are in a small tensor argument. A kernel is called through
AOTInductor's loader (about two microseconds), which looks at sizes only: its inputs must be contiguous.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import qcore
from qcore.program import Program
from qcore.random import Noise, Rotate, rotate_left
from qcore.rounding import Rounding
from qcore.tiles import Tiles
from qtorch import inductor
from qtorch.lanes import ROW, lane_dtype, pair_dtype, run, run_keyed, run_pairs

Kernel = Callable[[list[torch.Tensor]], list[torch.Tensor]]
Example = tuple[torch.nn.Module, tuple[torch.Tensor, ...], tuple[object, ...]]  # see `load_module`

# Which dimensions a kernel's input has, as an example that is large enough to be compiled for all threads, and which of
# them lie inside of blocks ("r" in `Merged`) or outside ("k"). Elementwise rounding sees every tensor as whole rows of
# `ROW` elements: "flat", or "pairs" (`run_pairs`), or with memory for the result "onto" and "keyed" (`run_keyed`).
LAYOUTS: dict[str, tuple[tuple[int, ...], str]] = {
    "flat": ((1 << 20,), ""),
    "onto": ((1 << 20,), ""),
    "pairs": ((1 << 20,), ""),
    "whole": ((1 << 20,), "r"),
    "rows": ((1 << 14, 64), "kr"),
    "columns": ((1 << 14, 64), "rk"),
    "middle": ((16, 64, 1 << 10), "rkr"),
    "bands": ((64, 32, 1 << 9), "krk"),
    "squares": ((16, 64, 16, 64), "krkr"),
    "keyed": ((1 << 14, ROW), "kk"),
}
_one_thread = threading.Lock()  # compiles at a time; other processes are not waited for


class _Law(torch.nn.Module):
    def __init__(self, program: Program, layout: str, rotate: Rotate) -> None:
        super().__init__()
        self.program = program
        self.layout = layout
        self.rotate = rotate

    def forward(self, x: torch.Tensor, constants: torch.Tensor, *others: torch.Tensor) -> Any:
        if self.layout == "keyed":
            keys, starts, target = others
            return target.copy_(run_keyed(self.program, x, constants.unbind(), keys, starts, self.rotate))
        words, pattern = Noise(*others) if others and self.layout != "onto" else None, LAYOUTS[self.layout][1]
        if self.layout == "pairs":
            return run_pairs(self.program, x, constants.unbind(), words, self.rotate)
        lanes = x if pattern else x.view(-1, ROW)
        inside = tuple(axis for axis, kind in enumerate(pattern) if kind == "r")
        blocks = Tiles(lanes.shape, lanes.shape, lanes.shape, inside, ())
        result = run(self.program, lanes, constants.unbind(), blocks, words, large=False, rotate=self.rotate)
        if not pattern:  # Inductor would write a view of another kind to memory twice
            result = result.as_strided(x.shape, (1,))
        return others[0].copy_(result) if self.layout == "onto" else result


@cache
def load(program: Program, layout: str, device: torch.device) -> Kernel | None:
    """The kernel of a program, from disk or freshly compiled; None, after one warning, where none can be made."""
    result = f"{program.codes}{program.storage}{program.element}" if program.codes else "numbers"
    name = f"{program.kind}-{program.mode.value}-{program.carrier.name}-{result}-{layout}"
    has_small_parts = program.mode is Rounding.STOCHASTIC or layout == "whole"  # keys, a scale
    stack = has_small_parts and not program.codes  # with which a scale may be a result
    return load_module(name, _law_files(), device, partial(_example, program, layout, device), stack)


def load_module(
    name: str,
    sources: tuple[Path, ...],
    device: torch.device,
    example: Callable[[], Example],
    stack: bool = False,
) -> Kernel | None:
    """The kernel of any module, from disk or freshly compiled; None, after one warning, where none can be made.

    Args:
        name: of the kernel's file; it says everything that example depends on.
        sources: the files that the kernel's code depends on, besides this one.
        device: where it runs.
        example: makes the module, arguments that are large enough to be compiled for all threads, and which of their
            sizes vary, as `torch.export.export` takes them.
        stack: whether intermediate results of fixed sizes are kept on the stack, which saves a call up to a
            microsecond, and takes two seconds more to compile. Not where a result of the kernel has a fixed size: the
            next call would write on it.
    """
    chip = "cpu" if device.type == "cpu" else f"{device.type}{torch.cuda.get_device_capability(device)}"
    path = _directory(sources) / f"{name}-{chip}.pt2"
    try:
        with _one_thread:
            if path.exists():
                with contextlib.suppress(RuntimeError):  # a damaged file is compiled again
                    return _open(path, device)
            _keep_device_guard()
            with ThreadPoolExecutor(1) as fresh:  # in which no mode of torch is on: whoever calls may be under some
                fresh.submit(_compile, example, path, stack).result()
            return _open(path, device)
    except Exception as error:  # whatever a compiler may raise, the slower path has the same bits
        warnings.warn(
            f"qtorch could not compile a kernel for {device.type} and runs operation by operation, which is slower "
            f"and has the same results: {type(error).__name__}: {str(error)[:300]}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def constant_tensor(program: Program, constants: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """A format's integers as a kernel's argument: on the CPU as rows, of which vectors are loaded.

    A single number would have to be made a vector anew for each vector of results, since a compiler cannot know that
    those are not written over it.
    """
    tensor = torch.tensor(constants, dtype=lane_dtype(program.carrier), device=device)
    return tensor if program.shared or device.type != "cpu" else tensor[:, None].repeat(1, ROW)


def _example(program: Program, layout: str, device: torch.device) -> Example:
    shape, pattern = LAYOUTS[layout]
    dtype = pair_dtype(program) if layout == "pairs" else getattr(torch, program.carrier.name)
    x = torch.zeros(shape, dtype=dtype, device=device)
    arguments = [x, constant_tensor(program, (0,) * program.count(), device)]
    sizes = {axis: torch.export.Dim(f"d{axis}", min=2, max=2**31 - 1) for axis in range(len(shape))}
    if not pattern:
        sizes = {0: ROW * torch.export.Dim("rows", min=2, max=2**31 // ROW - 1)}
    dynamic: tuple[object, ...] = (sizes, None)
    if layout == "keyed":
        words = [torch.zeros(size, dtype=torch.int32, device=device) for size in ((shape[0], 2), shape[:1])]
        arguments += [*words, torch.zeros_like(x)]
        rows = {0: sizes[0]}
        dynamic = (rows, None, (rows, rows, rows))
    elif layout == "onto":
        arguments.append(torch.zeros_like(x))
        dynamic += ((sizes,),)
    elif program.mode is Rounding.STOCHASTIC:
        arguments += [torch.zeros(size, dtype=torch.int32, device=device) for size in (2, 3)]
        dynamic += ((None, None),)
    rotate = inductor.rotation() if device.type == "cpu" else rotate_left
    return _Law(program, layout, rotate), tuple(arguments), dynamic


def _compile(example: Callable[[], Example], path: Path, stack: bool) -> None:
    from torch._inductor import config

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # Inductor's own, which users can do nothing about
        module, arguments, dynamic = example()
        exported = torch.export.export(module, arguments, dynamic_shapes=dynamic)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            package = os.path.join(folder, path.name)
            # Inductor's own folder of outputs is the same for all processes that compile the same kernel, and they
            # would package each other's half-written files.
            with config.patch({"aot_inductor.output_path": os.path.join(folder, "output")}), inductor.shortcuts(stack):
                torch._inductor.aoti_compile_and_package(
                    exported, package_path=package, inductor_configs=inductor.options(stack)
                )
            os.replace(package, path)


def _keep_device_guard() -> None:
    """Has torch make its stand-in for a missing GPU in the calling thread.

    Version 2.11 built for CUDA makes it in the thread that traces first, and crashes when another one traces after the
    end of that.
    """
    make = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if make is not None and not torch.cuda.is_available():
        make()


def _open(path: Path, device: torch.device) -> Kernel:
    index = -1 if device.index is None else device.index
    try:
        # The public loader imports all of Inductor first, which takes more than a second.
        from torch._C._aoti import AOTIModelPackageLoader
    except ImportError:
        return torch._inductor.aoti_load_package(str(path), device_index=index).loader.run  # type: ignore[attr-defined]
    return AOTIModelPackageLoader(str(path), "model", False, 1, index).run


def cache_root() -> Path:
    """Where compiled programs are kept."""
    chosen, caches = os.environ.get("QTORCH_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else Path(caches or Path.home() / ".cache") / "qtorch"


@cache
def _directory(sources: tuple[Path, ...] = ()) -> Path:
    """The folder of this torch, law and processor; ours alone, so that nobody can put code there."""
    folder = cache_root() / _fingerprint(sources)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
        if hasattr(os, "getuid") and (info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise PermissionError(f"{folder} can be written by others")
    except OSError as error:
        warnings.warn(f"qtorch keeps its kernels for this process only: {error}", RuntimeWarning, stacklevel=2)
        return Path(tempfile.mkdtemp(prefix="qtorch-"))
    return folder


def _law_files() -> tuple[Path, ...]:
    core, here = Path(qcore.__file__).parent, Path(__file__).parent
    law = ("carrier", "codes", "encoding", "lanes", "law", "program", "random", "rounding", "sharing", "tapered")
    return (*(core / f"{name}.py" for name in (*law, "tiles", "two_level")), here / "inductor.py", here / "lanes.py")


def _fingerprint(sources: tuple[Path, ...]) -> str:
    """A hash of all that a kernel's code depends on."""
    machine = f"{torch.__version__} {torch.version.cuda} {platform.system()} {platform.machine()}"
    digest = hashlib.sha256(machine.encode())
    for path in (*sources, Path(__file__)):
        digest.update(path.read_bytes())
    digest.update("".join(sorted(_processor_flags())).encode())
    return digest.hexdigest()[:16]


def _processor_flags() -> Iterator[str]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith(("flags", "Features", "model name")):
                yield line
            if not line.strip():
                return
