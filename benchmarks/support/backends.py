"""The ways to round an array whose bits the consistency run compares: NumPy's, PyTorch's and JAX's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import jax
import numpy as np
import torch

import qcore
import qjax
import qtorch
from qcore import NAMED, BlockFloatingPoint, BlockScaled, FixedPoint, FloatingPoint, Number, Posit
from qcore.law.rounding import RoundingName
from qcore.random.threefry import Noise
from qtorch._kernels.launch import serve_cpu
from qtorch._rounding.keys import key_tensor, window_tensor
from qtorch._rounding.paths.choice import by_operations
from qtorch._rounding.plan import plan_for

KEY = 0x0123_4567_89AB_CDEF  # of all stochastic rounding; both words count

# JAX traces the law into a program that a user compiles, which takes seconds each: every kind of format and every mode.
INLINE: tuple[tuple[Number, str], ...] = (
    (FloatingPoint(4, 3), "nearest_away"),
    (FloatingPoint(5, 2), "nearest"),
    (FloatingPoint(5, 2), "stochastic"),
    (FloatingPoint(8, 0), "nearest"),
    (FloatingPoint(8, 7), "nearest_up"),
    (FloatingPoint(9, 2), "stochastic"),
    (FixedPoint(8, 4), "nearest_down"),
    (FixedPoint(8, 4), "stochastic"),
    (FixedPoint(8, 7, clamp=False), "nearest_up"),
    (BlockFloatingPoint(8, -1), "nearest"),
    (BlockFloatingPoint(8, 0), "stochastic"),
    (BlockFloatingPoint(22, 1), "nearest_away"),
    (NAMED["e4m3fn"][0], "toward_zero"),
    (NAMED["e4m3fnuz"][0], "nearest"),
    (NAMED["e8m0fnu"][0], "up"),
    (FixedPoint(8, 0, wrap=True), "odd"),
    (NAMED["posit16"][0], "nearest"),
    (Posit(32, 3), "stochastic"),
    (NAMED["mxfp8_e4m3"][0], "stochastic"),
    (NAMED["nvfp4"][0], "nearest"),
    (BlockScaled("e4m3fn", {-1: 32}, scale="e5m2", tensor_scale="float32"), "stochastic"),
)
PART = 1 << 15  # elements that NumPy's reference rounds at a time: its temporaries then stay in a core's cache

Quantizer = Callable[[Any, int], Any]  # of an array and the index of its first element


@dataclass(frozen=True)
class Backend:
    """A way to round arrays.

    Attributes:
        name: as reports show it.
        load: makes of a NumPy array what the quantizer takes.
        prepare: makes the quantizer of a format and a rounding mode; its results are ready when it returns.
        store: makes a NumPy array of the quantizer's result.
        pairs: the formats and modes that this backend is for; all if None.
        hard_only: whether it is for the hard inputs only, because each new shape costs seconds.
        compiles: whether a first call for a shape may compile; a second one is timed then.
    """

    name: str
    load: Callable[[np.ndarray], Any]
    prepare: Callable[[Number, RoundingName], Quantizer]
    store: Callable[[Any], np.ndarray]
    pairs: tuple[tuple[Number, str], ...] | None = None
    hard_only: bool = False
    compiles: bool = True

    def run(self, quantizer: Quantizer, x: np.ndarray, start: int, new: bool) -> tuple[np.ndarray, float]:
        """Rounds an array; the result, and the seconds that it took: of a second call where a first may compile, as it
        may where the array's shape is new.
        """
        loaded = self.load(x)
        seconds = float("inf")
        for _ in range(2 if self.compiles and new else 1):
            begin = perf_counter()
            result = quantizer(loaded, start)
            seconds = min(seconds, perf_counter() - begin)
        return self.store(result), seconds


def reference() -> Backend:
    """qcore, which decides what is right."""
    return Backend("numpy", _same, _numpy, _same, compiles=False)


def reference_in_parts() -> Backend:
    """The same for large elementwise inputs, some of them at a time."""
    return Backend("numpy", _same, _numpy_in_parts, _same, compiles=False)


def all_backends() -> list[Backend]:
    """All that are compared with the reference on this machine.

    "jax inline" are programs that a user compiles, "jax jit" is what qjax compiles itself, once for all formats of a
    kind. `benchmarks.support.compiled` has those of torch.
    """
    cpu = jax.devices("cpu")[0]
    return [
        Backend("torch ops", torch.from_numpy, _torch_operations, _from_torch, compiles=False),
        Backend(eager_kernels(), torch.from_numpy, _torch_kernel, _from_torch),
        Backend(
            "jax eager",
            partial(jax.device_put, device=cpu),
            partial(_jax_eager, device=cpu),
            np.asarray,
            hard_only=True,
        ),
        Backend("jax jit", partial(jax.device_put, device=cpu), partial(_jax_call, device=cpu), np.asarray),
        Backend(
            "jax inline",
            partial(jax.device_put, device=cpu),
            partial(_jax_inline, device=cpu),
            np.asarray,
            INLINE,
            hard_only=True,
        ),
        *_on_gpus(),
    ]


def fast_backends() -> list[Backend]:
    """Those that can go through all float32 numbers."""
    cpu = jax.devices("cpu")[0]
    return [
        Backend(eager_kernels(), torch.from_numpy, _torch_kernel, _from_torch),
        Backend("jax jit", partial(jax.device_put, device=cpu), partial(_jax_call, device=cpu), np.asarray),
        *_on_gpus(),
    ]


def eager_kernels() -> str:
    """Which kernels eager calls have in this process; packages are asked for by QTORCH_KERNELS=inductor."""
    return "torch package" if serve_cpu() else "torch kernel"


def _on_gpus() -> list[Backend]:
    found = []
    if torch.cuda.is_available():
        found.append(Backend("torch cuda", lambda x: torch.from_numpy(x).cuda(), _torch_cuda, _from_torch))
    try:
        gpu = jax.devices("gpu")[0]
    except RuntimeError:
        return found
    return [*found, Backend("jax gpu", partial(jax.device_put, device=gpu), partial(_jax_call, device=gpu), np.asarray)]


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _from_torch(x: torch.Tensor) -> np.ndarray:
    return x.cpu().numpy()


def _numpy(number: Number, rounding: RoundingName) -> Quantizer:
    return lambda x, start: qcore.quantize(x, number, rounding, key=KEY, start=start)


def _numpy_in_parts(number: Number, rounding: RoundingName) -> Quantizer:
    def quantizer(x: np.ndarray, start: int) -> np.ndarray:
        result = np.empty_like(x)
        for begin in range(0, x.size, PART):
            part = slice(begin, begin + PART)
            result[part] = qcore.quantize(x[part], number, rounding, key=KEY, start=start + begin)
        return result

    return quantizer


def _torch_operations(number: Number, rounding: RoundingName) -> Quantizer:
    plan = plan_for(number, rounding, torch.float32, None, False)

    def quantizer(x: torch.Tensor, start: int) -> torch.Tensor:
        noise = Noise(key_tensor(KEY), window_tensor(24, start, x.device)) if plan.stochastic else None
        return by_operations(x, plan, noise)

    return quantizer


def _torch_kernel(number: Number, rounding: RoundingName) -> Quantizer:
    return lambda x, start: qtorch.quantize(x, number, rounding, key=KEY, start=start)


def _torch_cuda(number: Number, rounding: RoundingName) -> Quantizer:
    def quantizer(x: torch.Tensor, start: int) -> torch.Tensor:
        result = qtorch.quantize(x, number, rounding, key=KEY, start=start)
        torch.cuda.synchronize()
        return result

    return quantizer


def _jax_call(number: Number, rounding: RoundingName, device: Any) -> Quantizer:
    def quantizer(x: jax.Array, start: int) -> jax.Array:
        with jax.default_device(device):
            return qjax.quantize(x, number, rounding, key=KEY, start=start).block_until_ready()

    return quantizer


def _jax_eager(number: Number, rounding: RoundingName, device: Any) -> Quantizer:
    call = _jax_call(number, rounding, device)

    def quantizer(x: jax.Array, start: int) -> jax.Array:
        with jax.disable_jit():
            return call(x, start)

    return quantizer


def _jax_inline(number: Number, rounding: RoundingName, device: Any) -> Quantizer:
    key = np.array([KEY >> 32, KEY & 0xFFFFFFFF], np.uint32)
    program = jax.jit(lambda x, key: qjax.quantize(x, number, rounding, key=key))

    def quantizer(x: jax.Array, start: int) -> jax.Array:
        with jax.default_device(device):
            return program(x, key).block_until_ready()

    return quantizer
