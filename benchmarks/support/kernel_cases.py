"""Calls of each kind of qtorch's kernels on the CPU. Inputs are integers, so that all processors get the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import qcore
from benchmarks.support.inputs import hard_inputs
from qcore.law.rounding import RoundingName

FORMATS = ("e5m2", "float(5,10)", "fixed(8,4)", "block(8)", "mxfp8_e4m3", "nvfp4", "posit8")
CODED = ("e5m2", "posit8", "mxfp4", "nvfp4")
DTYPES = ("float32", "bfloat16", "float16", "float64")
RANDOM: dict[str, Any] = {"key": 0x0123456789ABCDEF, "start": 2**32 - 7}  # the index grows beyond 32 bits
# Signalling and quiet NaNs with payloads, the ends of the subnormals, zeros and infinities, of both signs.
_POSITIVE = (0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FC12345, 0x7FFFFFFF, 0x00000001, 0x007FFFFF, 0x00000000, 0x7F800000)
PATTERNS = np.array([sign | bits for sign in (0, 1 << 31) for bits in _POSITIVE], np.uint32)
_COUNT = 4000  # hard inputs of a format
_ROOM = np.uint64(52)  # bits of float64's significand

Case = tuple[str, str, str, Callable[[], Any]]  # part, mode, name, call


def kernel_inputs() -> dict[str, np.ndarray]:
    """Unsigned integers that hold the bits of all inputs.

    No dtype is converted to another on the other processor, because processors differ in the NaN that this makes.
    """
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(np.float32)

    def integers(*shape: int) -> np.ndarray:
        return rng.integers(0, 255, shape, np.uint8, endpoint=True)

    every = rng.permutation(2**16).astype(np.uint16).reshape(64, 1024)
    image = numbers(2, 32, 6, 8)
    wide = np.uint64(rng.integers(983, 1063, (8, 512))) << _ROOM | rng.integers(0, 2**52, (8, 512), np.uint64)
    hard = {
        f"float32 {text} {place}": x
        for text in FORMATS
        for place, x in enumerate(hard_inputs(qcore.parse(text), _COUNT))
    }
    return {name: x.view(np.uint32) for name, x in hard.items()} | {
        "float32 all patterns": np.broadcast_to(PATTERNS, (2, PATTERNS.size)).copy(),
        "float32 all numbers": image.view(np.uint32),
        "bfloat16 all patterns": every,
        "bfloat16 all numbers": (image.view(np.uint32) >> 16).astype(np.uint16),
        "float16 all patterns": every,
        "float16 all numbers": image.astype(np.float16).view(np.uint16),
        "float64 all numbers": wide | np.uint64(rng.integers(0, 2, wide.shape)) << np.uint64(63),
        "float64 all patterns": rng.integers(0, 2**64 - 1, (8, 512), np.uint64, endpoint=True),
        "left": numbers(17, 130).view(np.uint32),
        "right": numbers(130, 33).view(np.uint32),
        "rows": numbers(40, 513).view(np.uint32),
        "index": rng.integers(0, 7, 40, np.uint32),
        "activations": integers(5, 130),
        "weights": integers(33, 130),
        "pixels": integers(2, 16, 8, 9),
        "filters": integers(33, 16, 3, 3),
        "one filter each": integers(16, 1, 3, 3),
    }


def kernel_digests(inputs: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    """The number of results and the digest of each call."""
    tensors = _Tensors(inputs)
    return {f"{part} {mode} {name}": _digest(call()) for kind in KINDS for part, mode, name, call in kind(tensors)}


def _digest(results: Any) -> list[Any]:
    import torch

    digest, count = hashlib.sha256(), 0
    for one in _flat(results):
        row = torch.empty(one.numel(), dtype=one.dtype).copy_(one.reshape(-1))
        digest.update(row.view(torch.uint8).numpy().tobytes())
        count += row.numel()
    return [count, digest.hexdigest()]


def _flat(results: Any) -> Iterator[Any]:
    if isinstance(results, tuple | list):
        for one in results:
            yield from _flat(one)
    elif results is not None:
        yield results


class _Tensors:
    """The inputs as tensors."""

    def __init__(self, inputs: dict[str, np.ndarray]) -> None:
        self.inputs = inputs

    def get(self, name: str, dtype: str) -> Any:
        import torch

        bits = self.inputs[name]
        return torch.from_numpy(bits.view(f"i{bits.itemsize}").copy()).view(getattr(torch, dtype))

    def of_format(self, text: str, dtype: str) -> list[Any]:
        """Hard inputs of a format, bit patterns and numbers."""
        return [self.get(name, dtype) for name in self.inputs if name.startswith((f"{dtype} {text} ", f"{dtype} all "))]


def rounding_calls(tensors: _Tensors) -> Iterator[Case]:
    """Formats, modes, dtypes and channels_last."""
    import torch

    import qtorch

    def rounded(text: str, mode: RoundingName, dtype: str) -> list[torch.Tensor]:
        return [qtorch.quantize(x, text, mode, **_random(mode)) for x in tensors.of_format(text, dtype)]

    for text in FORMATS:
        for mode in ("nearest", "toward_zero", "stochastic"):
            for dtype in DTYPES if mode != "toward_zero" else DTYPES[:1]:
                yield (
                    "quantize",
                    mode,
                    f"{text} {dtype}",
                    partial(rounded, text, mode, dtype),
                )
    for text in ("e5m2", "block(8,dim=1)", "mxfp8_e4m3"):
        for mode in ("nearest", "stochastic"):
            x = tensors.get("bfloat16 all numbers", "bfloat16").contiguous(memory_format=torch.channels_last)
            yield (
                "quantize",
                mode,
                f"{text} channels_last",
                partial(qtorch.quantize, x, text, mode, **_random(mode)),
            )


def code_calls(tensors: _Tensors) -> Iterator[Case]:
    """Codes of numbers, and numbers of codes."""
    import qtorch

    def both(text: str, mode: RoundingName) -> Any:
        x = tensors.get("float32 all numbers", "float32")
        found = qtorch.encode(x, text, mode, **_random(mode))
        codes, scales = found if isinstance(found, tuple) else (found, None)
        return codes, scales, qtorch.decode(codes, text, scales=scales)

    for text in CODED:
        for mode in ("nearest", "stochastic"):
            yield "codes", mode, text, lambda text=text, mode=mode: both(text, mode)


def _random(mode: str) -> dict[str, Any]:
    return RANDOM if mode.startswith("stochastic") else {}


def product_calls(tensors: _Tensors) -> Iterator[Case]:
    """Products with accumulators."""
    import qtorch
    from qcore import Accumulator, FloatingPoint

    a, b = tensors.get("left", "float32"), tensors.get("right", "float32")
    half = FloatingPoint(5, 10)
    accumulators = {
        "exact": None,
        "float(5,10) chunk 16": Accumulator(half, chunk=16),
        "float(8,7) chunk 1": Accumulator(FloatingPoint(8, 7), chunk=1),
        "float(5,10) chunk 4": Accumulator(half, rounding="stochastic", chunk=4),
    }
    for name, accumulator in accumulators.items():
        mode = "stochastic" if accumulator is not None and accumulator.stochastic else "nearest"
        key = {"key": RANDOM["key"]} if mode.startswith("stochastic") else {}
        for operands in (None, ("e5m2", "e5m2")):
            yield (
                "matmul",
                mode,
                f"{name} {operands}",
                lambda accumulator=accumulator, operands=operands, key=key: qtorch.linalg.matmul(
                    a, b, operands=operands, accumulator=accumulator, **key
                ),
            )


def affine_calls(tensors: _Tensors) -> Iterator[Case]:
    """Fake quantization of a tensor and of channels."""
    import torch

    import qtorch.quantization as room

    scales = torch.tensor([0.03, 0.5, 3.0, 0.011] * 8)
    zeros = torch.tensor([0, 3, -7, 100] * 8, dtype=torch.int32)
    for dtype in ("float32", "bfloat16"):
        x = tensors.get(f"{dtype} all numbers", dtype)
        yield (
            "fake_quantize",
            "nearest",
            f"tensor {dtype}",
            lambda x=x: room.fake_quantize_per_tensor_affine(x, scales[0], zeros[1], -128, 127),
        )
        yield (
            "fake_quantize",
            "nearest",
            f"channel {dtype}",
            lambda x=x: room.fake_quantize_per_channel_affine(x, scales, zeros, 1, -128, 127),
        )


def integer_calls(tensors: _Tensors) -> Iterator[Case]:
    """Layers of integers of 8 bits."""
    import torch

    import qcore.affine as law
    import qtorch.quantization as room
    from qcore.affine import QParams

    def of(name: str, form: Any, scale: float, zero: int) -> Any:
        parameters = QParams(torch.tensor(scale), torch.tensor(zero, dtype=torch.int32))
        return room.QTensor(tensors.get(name, str(form.storage)), parameters, form)

    result = {"scale": 0.37, "zero_point": 5}
    for form, token in ((law.UINT8, torch.quint8), (law.INT8, torch.qint8)):
        x, w = of("activations", form, 0.05, 7), of("weights", law.INT8, 0.0078125, 0)
        yield "integers", "nearest", f"linear {token}", lambda x=x, w=w: room.linear(x, w, None, **result).values
        pixels = of("pixels", form, 0.05, 7)
        for filters, groups in (("filters", 1), ("one filter each", 16)):
            w = of(filters, law.INT8, 0.0078125, 0)
            yield (
                "integers",
                "nearest",
                f"conv2d {token} {groups}",
                lambda pixels=pixels, w=w, groups=groups, token=token: (
                    room.conv2d(pixels, w, None, padding=1, groups=groups, **result, dtype=token).values
                ),
            )


def function_calls(tensors: _Tensors) -> Iterator[Case]:
    """Functions with defined bits, and sums."""
    import torch

    from qtorch import reproducible
    from qtorch.reproducible.operations import Names

    x = tensors.get("rows", "float32")
    calls: dict[str, Callable[[], Any]] = {
        "exp": lambda: reproducible.exp(x),
        "softmax": lambda: reproducible.softmax(x, -1),
        "layer_norm": lambda: reproducible.layer_norm(x),
        "sum": lambda: [reproducible.sum(x, axes) for axes in ((0,), (1,), (0, 1))],
        "mean": lambda: reproducible.mean(x, (0,)),
        "norm": lambda: reproducible.norm(x, (1,)),
        "by index": lambda: Names.sums_by_index(x, tensors.get("index", "int32"), 7),
    }
    for name, call in calls.items():
        yield "functions", "nearest", name, call

    def gradient() -> Any:
        y = x.clone().requires_grad_()
        z = reproducible.softmax(y, -1)
        return torch.autograd.grad(z, y, x)

    yield "functions", "nearest", "softmax's gradient", gradient


def statistics_calls(tensors: _Tensors) -> Iterator[Case]:
    """What a rounding did."""
    import qtorch

    for text in ("e4m3fn", "mxfp4"):
        for dtype in ("float32", "bfloat16"):
            x = tensors.get(f"{dtype} all numbers", dtype)
            yield (
                "statistics",
                "nearest",
                f"{text} {dtype}",
                lambda text=text, x=x: qtorch.insight.statistics_of(x, text).lanes,
            )


KINDS = (
    rounding_calls,
    code_calls,
    product_calls,
    affine_calls,
    integer_calls,
    function_calls,
    statistics_calls,
)
