"""Layers for quantized models: fused, for training with simulated quantization, and in integers."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qtorch.nn import intrinsic, qat, quantized, rounded

__all__ = ["intrinsic", "qat", "quantized", "rounded"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
