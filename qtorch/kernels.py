"""Fused kernels: the law compiled by Inductor, on first use, and kept on disk.

One kernel serves all formats of a kind: their integers are in a small tensor argument.
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
from qtorch import inductor, native, packaged, vectors
from qtorch.inductor import Example, Rows
from qtorch.lanes import ROW, indices_in_groups, lane_dtype, pair_dtype, run, run_keyed, run_pairs

# Of the sizes that vary, in the order of the first input's dimensions, or the number of elements (see `Rows`; of whole
# rows on a GPU), and of tensors without gaps, first inputs and then results. A kernel on the CPU looks at their memory
# only, so that their shapes do not matter. If it takes numbers of elements it takes the arguments of several calls too.
Kernel = Callable[..., object]

# Which dimensions a kernel's input has, as an example, and which of them lie inside of blocks ("r" in `Merged`) or
# outside ("k"). Elementwise rounding sees every tensor as rows of `ROW` elements, of which only the number varies:
# "flat", "pairs" (`run_pairs`) or "keyed" (`run_keyed`). Of "channels" (`indices_in_groups`) the first may be 1: so few
# that threads share the others as well.
LAYOUTS: dict[str, tuple[tuple[int, ...], str]] = {
    "flat": ((1 << 14, ROW), ""),
    "pairs": ((1 << 14, ROW), ""),
    "keyed": ((1 << 14, ROW), ""),
    "whole": ((1 << 20,), "r"),
    "rows": ((1 << 14, 64), "kr"),
    "columns": ((1 << 14, 64), "rk"),
    "middle": ((16, 64, 1 << 10), "rkr"),
    "bands": ((64, 32, 1 << 9), "krk"),
    "squares": ((16, 64, 16, 64), "krkr"),
    "channels": ((3, 1 << 12, 64), "kkk"),
}
ROWS = {"flat": ROW, "pairs": 2 * ROW}  # the elements of a row where a kernel takes the number of elements
_one_thread = threading.Lock()  # compiles at a time; other processes are not waited for


class _Law(torch.nn.Module):
    def __init__(self, program: Program, layout: str, rotate: Rotate) -> None:
        super().__init__()
        self.program = program
        self.layout = layout
        self.rotate = rotate

    def forward(self, x: torch.Tensor, constants: torch.Tensor, *words: torch.Tensor) -> Any:
        integers = constants.unbind()
        if self.layout == "keyed":
            keys, starts = words
            return run_keyed(self.program, x, integers, keys, starts, self.rotate)
        noise = Noise(*words[:2]) if words else None
        places = indices_in_groups(x.shape, *words[2:]) if self.layout == "channels" else None
        if self.layout == "pairs":
            return run_pairs(self.program, x, integers, noise, self.rotate)
        inside = tuple(axis for axis, kind in enumerate(LAYOUTS[self.layout][1]) if kind == "r")
        blocks = Tiles(x.shape, x.shape, x.shape, inside, ())
        return run(self.program, x, integers, blocks, noise, large=False, rotate=self.rotate, places=places)


@cache
def load(program: Program, layout: str, device: torch.device) -> Kernel | None:
    """The kernel of a program, from disk or freshly compiled; None, after one warning, where none can be made."""
    result = f"{program.codes}{program.storage}{program.element}" if program.codes else "numbers"
    name = f"{program.kind}-{program.mode.value}-{program.carrier.name}-{result}-{layout}"
    kernel = load_module(name, _law_files(), device, partial(_example, program, layout, device))
    return kernel if kernel is None or device.type == "cpu" else partial(_shaped, kernel, program, layout)


def _shaped(kernel: Kernel, program: Program, layout: str, *given: Any) -> None:
    """Calls a kernel that looks at shapes."""
    count = len(LAYOUTS[layout][1]) or 1
    sizes, x, others = given[:count], given[count], given[count + 1 :]
    shape = sizes if LAYOUTS[layout][1] else (sizes[0] // ROWS.get(layout, 1), ROW)
    inputs = (5 if layout == "channels" else 3) if program.mode is Rounding.STOCHASTIC else 1
    result, *scales = others[inputs:]
    strides = torch.empty(shape, device="meta").stride()
    lanes, memory = (tensor.as_strided(shape, strides) for tensor in (x, result))  # whatever their order
    kernel(*sizes, lanes, *others[:inputs], memory, *(scale.view(-1) for scale in scales))


def load_module(
    name: str, sources: tuple[Path, ...], device: torch.device, example: Callable[[], Example]
) -> Kernel | None:
    """The kernel of any module, from disk or freshly compiled; None, after one warning, where none can be made.

    Args:
        name: of the kernel's file; it says everything that example depends on.
        sources: the files that the kernel's code depends on, besides this one and those that compile it.
        device: where it runs.
        example: makes the module and its arguments.
    """
    chip = "cpu" if device.type == "cpu" else f"{device.type}{torch.cuda.get_device_capability(device)}"
    maker = native if device.type == "cpu" else packaged
    path = _directory(sources) / f"{name}-{chip}{maker.SUFFIX}"
    try:
        with _one_thread:
            if path.exists():
                with contextlib.suppress(OSError, RuntimeError):  # a damaged file is compiled again
                    return maker.open_kernel(path, device)
            _keep_device_guard()
            with ThreadPoolExecutor(1) as fresh:  # in which no mode of torch is on: whoever calls may be under some
                fresh.submit(_compile, example, path, maker).result()
            return maker.open_kernel(path, device)
    except Exception as error:  # whatever a compiler may raise, the slower path has the same bits
        warnings.warn(
            f"qtorch could not compile a kernel for {device.type} and runs operation by operation, which is slower "
            f"and has the same results: {type(error).__name__}: {str(error)[:300]}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _compile(example: Callable[[], Example], path: Path, maker: Any) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # Inductor's own, which users can do nothing about
        maker.compile_kernel(example(), path)


def constant_tensor(program: Program, constants: tuple[int, ...], layout: str, device: torch.device) -> torch.Tensor:
    """A format's integers as a kernel's argument: of elementwise ones on the CPU as rows, of which vectors are loaded.

    A single number would have to be made a vector anew for each vector of results, or occupy a register throughout the
    loops, before which kernels read those that remain (see `qtorch.native`).
    """
    tensor = torch.tensor(constants, dtype=lane_dtype(program.carrier), device=device)
    elementwise = not LAYOUTS[layout][1]
    return tensor[:, None].repeat(1, ROW) if elementwise and device.type == "cpu" else tensor


def _example(program: Program, layout: str, device: torch.device) -> Example:
    shape, pattern = LAYOUTS[layout]
    dtype = pair_dtype(program) if layout == "pairs" else getattr(torch, program.carrier.name)
    arguments = [torch.zeros(shape, dtype=dtype, device=device)]
    arguments += [constant_tensor(program, (0,) * program.count(), layout, device)]
    sizes = {axis: torch.export.Dim(f"d{axis}", min=2, max=2**31 - 1) for axis in range(len(pattern) or 1)}
    dynamic: list[object] = [sizes, None]
    if program.mode is Rounding.STOCHASTIC:
        words: list[tuple[tuple[int, ...], object]] = [((2,), None), ((3,), None)]
        if layout == "keyed":
            words = [((shape[0], 2), sizes), (shape[:1], sizes)]
        elif layout == "channels":
            words += [(shape[2:], {0: sizes[2]}), ((1,), None)]
        arguments += [torch.zeros(size, dtype=torch.int32, device=device) for size, _ in words]
        dynamic += [varies for _, varies in words]
    rotate = vectors.rotation() if device.type == "cpu" else rotate_left
    rows = Rows(ROWS[layout], 3 if program.mode is Rounding.STOCHASTIC else -1) if layout in ROWS else None
    return Example(_Law(program, layout, rotate), tuple(arguments), tuple(dynamic), rows)


def _keep_device_guard() -> None:
    """Has torch make its stand-in for a missing GPU in the calling thread.

    Version 2.11 built for CUDA makes it in the thread that traces first, and crashes when another one traces after the
    end of that.
    """
    make = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if make is not None and not torch.cuda.is_available():
        make()


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
    return (*(core / f"{name}.py" for name in (*law, "tiles", "two_level")), here / "lanes.py")


def _fingerprint(sources: tuple[Path, ...]) -> str:
    """A hash of all that a kernel's code depends on."""
    machine = f"{torch.__version__} {torch.version.cuda} {platform.system()} {platform.machine()}"
    digest = hashlib.sha256(machine.encode())
    compiling = (Path(module.__file__ or "") for module in (inductor, native, packaged, vectors))
    for path in (*sources, *compiling, native.CALL, Path(__file__)):
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
