"""The functions of tensors."""

from __future__ import annotations

from typing import Any

import torch

from qcore.arithmetic.binding import Arithmetic
from qcore.arithmetic.call import DTYPES, OperationCall, table_of
from qcore.arithmetic.law import one_nan
from qcore.arithmetic.operations import OPERATIONS
from qcore.binding import TORCH
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import decode, encode, quantize
from qtorch._rounding.gradients import apart
from qtorch._rounding.keys import given_or_drawn
from qtorch._rounding.packing import check_codes
from qtorch._torch_internals import constant_result
from qtorch.linalg.namespace import Float64

_DTYPES = {getattr(torch, name): name for name in DTYPES}


def _rounded(call: OperationCall, dtype: torch.dtype, key: Any, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The results of tensors of one shape."""
    exact = call.exact(Float64(), *(x.to(torch.float64) for x in tensors))
    return one_nan(Float64, quantize(exact, **call.quantizing, key=key)).to(dtype)


class _Differentiable(torch.autograd.Function):
    """(call, the result's dtype, key or None, *tensors of one shape) -> the results."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: tuple[Any, ...], dtype: torch.dtype, key: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return _rounded(OperationCall(*call), dtype, key, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        call, _, _, *tensors = inputs
        ctx.operation = call[0]
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        tensors = ctx.saved_tensors
        wide = [x.to(torch.float64) for x in (gradient, *tensors)]
        found = OPERATIONS[ctx.operation].gradients(Float64(), *wide)
        return None, None, None, *(g.to(x.dtype) for g, x in zip(found, tensors, strict=True))


@constant_result
def _table(*call: Any) -> torch.Tensor:
    return torch.from_numpy(table_of(OperationCall(*call)).copy())


class Tensors(Arithmetic, package=__name__.rpartition(".")[0], words=TORCH):
    """The functions of tensors."""

    def floats(self, name: str, x: Any) -> tuple[torch.Tensor, str]:
        if not isinstance(x, torch.Tensor) or x.dtype not in _DTYPES:
            came = f"a tensor of {x.dtype}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
            raise TypeError(f"{name} is {came}; allowed is a torch.Tensor of {', '.join(DTYPES)}")
        check_dense(name, x)
        return x, _DTYPES[x.dtype]

    def codes(self, name: str, x: Any) -> torch.Tensor:
        return check_codes(x, name)

    def on_numbers(self, call: OperationCall, arrays: tuple[Any, ...], dtype: str, key: Any) -> torch.Tensor:
        words = given_or_drawn(key, call.is_stochastic, False)
        tensors, kind = torch.broadcast_tensors(*arrays), getattr(torch, dtype)
        if torch.compiler.is_dynamo_compiling() and not _is_recorded(arrays):
            return _rounded(call, kind, words, tensors)
        return _Differentiable.apply(tuple(call), kind, words, *apart(*tensors))  # type: ignore[no-any-return]

    def on_codes(self, call: OperationCall, codes: tuple[Any, ...], key: Any) -> torch.Tensor:
        if call.has_table:
            return _looked_up(call, codes)
        words = given_or_drawn(key, call.is_stochastic, False)
        numbers = [decode(x, text, torch.float64) for x, text in zip(codes, call.operands, strict=True)]
        return encode(call.exact(Float64(), *torch.broadcast_tensors(*numbers)), **call.quantizing, key=words)


def _is_recorded(tensors: tuple[torch.Tensor, ...]) -> bool:
    """True if a traced program differentiates a call; Dynamo refuses an autograd function where nothing does."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _looked_up(call: OperationCall, codes: tuple[torch.Tensor, ...]) -> torch.Tensor:
    place = codes[0].to(torch.int32) & (1 << call.widths[0]) - 1
    for x, bits in zip(codes[1:], call.widths[1:], strict=True):
        place = (place << bits) | (x.to(torch.int32) & (1 << bits) - 1)
    return _table(*call).to(place.device)[place]


FUNCTIONS = Tensors()
