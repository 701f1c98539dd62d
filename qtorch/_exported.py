"""Operations in programs that leave as ONNX: each is one node, not the operations of its law.

The nodes have the domain "qbits". `qtorch.export.to_onnx` replaces them by the laws of `qcore.exchange.laws`; other
programs, such as those of `torch.export.export`, never have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import torch

DOMAIN = "qbits"
WANTED: ContextVar[bool] = ContextVar("nodes of the laws instead of their operations", default=False)


NEAR: ContextVar[bool] = ContextVar("functions of numbers instead of the laws of integers", default=False)


def is_near() -> bool:
    """True while a model is traced for a file that need not be exact."""
    return is_wanted() and NEAR.get()


def is_wanted() -> bool:
    """True while a model is traced for ONNX."""
    return not torch.compiler.is_dynamo_compiling() and WANTED.get()


def rounded(x: torch.Tensor, number: str, rounding: str, overflow: str) -> torch.Tensor:
    """A tensor rounded to a format, in its dtype; an empty overflow is the format's own."""
    texts = {"number": number, "rounding": rounding, "overflow": overflow}
    return node("Round", (x,), x.dtype, x.shape, texts)


def unpacked(packed: torch.Tensor, bits: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The codes that bytes hold, size of them along the last axis."""
    return node("Unpack", (packed,), dtype, (*packed.shape[:-1], size), {"bits": bits, "size": size})


def decoded(
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    scale: torch.Tensor | None,
    number: str,
    dtype: torch.dtype,
    shape: Sequence[Any],
) -> torch.Tensor:
    """The numbers of a format's codes, of this shape, with the scales of its blocks and of the whole."""
    return node("Decode", (codes, scales, scale), dtype, shape, {"number": number, "dtype": named(dtype)})


def node(
    name: str, inputs: Sequence[torch.Tensor | None], dtype: torch.dtype, shape: Sequence[Any], attributes: Any
) -> torch.Tensor:
    """A node of the domain, whose result has a dtype and a shape."""
    return torch.onnx.ops.symbolic(f"{DOMAIN}::{name}", inputs, attributes, dtype=dtype, shape=shape, version=1)


def named(dtype: torch.dtype) -> str:
    """The name of a dtype as attributes have it."""
    return str(dtype).removeprefix("torch.")
