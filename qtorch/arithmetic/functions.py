"""The functions of tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from qcore.arithmetic.call import (
    DTYPES,
    OperationCall,
    Question,
    are_bits,
    indices_of,
    numbers_of,
    slopes_of,
    stand_ins_of,
    table_of,
)
from qcore.arithmetic.operations import OPERATIONS
from qcore.arithmetic.rows import Arithmetic
from qcore.binding import TORCH
from qcore.formats.number import check_number
from qcore.packing import storage
from qtorch._kernels.gather import gather
from qtorch._kernels.launch import aligned, serve_cpu
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import decode, encode, quantize
from qtorch._rounding.gradients import apart
from qtorch._rounding.keys import given_or_drawn
from qtorch._rounding.packing import check_codes
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch.linalg.namespace import Float64

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32}
_PART = 1 << 16  # elements
_DTYPES = {getattr(torch, name): name for name in DTYPES}


def _rounded(call: OperationCall, dtype: torch.dtype, key: Any, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The results of tensors of one shape."""
    exact = call.exact(Float64(), *(x.to(torch.float64) for x in tensors))
    return _narrowed(quantize(exact, **call.quantizing, key=key), dtype)


def _narrowed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers that a dtype has, in it; all NaN are one."""
    found = torch.where(x == x, x, torch.nan).to(torch.float32)
    if dtype is not torch.bfloat16 or found.requires_grad:  # for second derivatives
        return found.to(dtype)
    # By the bits: torch's conversion has two NaN, one of its vectors and one of what is left of them.
    return (found.view(torch.int32) >> 16).to(torch.int16).view(dtype)


def _index_of(call: OperationCall, codes: tuple[Any, ...]) -> torch.Tensor:
    return indices_of(call.widths, tuple(x.to(torch.int32) for x in codes))  # type: ignore[no-any-return]


def _codes_of(x: torch.Tensor, text: str) -> Any:
    """The codes of numbers; of the 16-bit formats of their dtypes these are the low bits of integers."""
    return x.view(torch.int16) if are_bits(_DTYPES[x.dtype], text) else encode(x, text)


def _by_parts(table: torch.Tensor, call: OperationCall, codes: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The entries of a table for plain tensors of codes; without a kernel by parts that caches of processors hold."""
    if table.is_cpu and not serve_cpu():
        looked_up = gather(table, tuple(aligned(x.contiguous()) for x in codes), call.widths)
        if looked_up is not None:
            return looked_up
    shape = codes[0].shape
    flat = [x.reshape(-1) for x in codes]
    entries = table.view(_SIGNED[table.dtype]) if table.dtype in _SIGNED else table
    parts = [x.split(_PART) for x in flat]
    found = torch.empty(flat[0].shape, dtype=entries.dtype, device=entries.device)
    for part, *given in zip(found.split(_PART), *parts, strict=True):
        torch.index_select(entries, 0, _index_of(call, tuple(given)), out=part)
    return found.view(table.dtype).reshape(shape)


def _from_table(call: OperationCall, dtype: torch.dtype, key: Any, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The results of a function that is a table."""
    if are_plain_tensors(tensors) and not call.is_stochastic:
        table = _narrowed(run_table("numbers", _texts(call), tensors[0].device), dtype)
        return _by_parts(table, call, tuple(map(_codes_of, tensors, call.operands)))
    index = _index_of(call, tuple(map(_codes_of, tensors, call.operands)))
    if not call.is_stochastic:
        return _narrowed(_taken("numbers", call, index), dtype)
    exact = _taken("exact", call, index)
    return _narrowed(quantize(exact, **call.quantizing, key=key), dtype)


class _Differentiable(torch.autograd.Function):
    """(call, the result's dtype, key or None, *tensors of one shape) -> the results."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: tuple[Any, ...], dtype: torch.dtype, key: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return _results(OperationCall(*call), dtype, key, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        call, _, _, *tensors = inputs
        ctx.call = call
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        tensors, gradients = ctx.saved_tensors, OPERATIONS[ctx.call[0]].gradients
        wide = [x.to(torch.float64) for x in (gradient, *tensors)]
        # Dynamo refuses an autograd function in a backward pass, and second derivatives of its programs.
        by_slopes = _by_slopes if torch.compiler.is_dynamo_compiling() else _BySlopes.apply
        found: Any = by_slopes(ctx.call, wide[0], *tensors) if gradients is None else gradients(Float64(), *wide)
        # Rounded once: torch's own conversions to 16 bits go by float32.
        rounded = (quantize(g, _DTYPES[x.dtype]) for g, x in zip(found, tensors, strict=True))
        return None, None, None, *(_narrowed(g, x.dtype) for g, x in zip(rounded, tensors, strict=True))


class _BySlopes(torch.autograd.Function):
    """(call, gradient, *operands of a table) -> their gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: tuple[Any, ...], gradient: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _by_slopes(call, gradient, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operation = inputs[0][0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise TypeError(f"x of {ctx.operation} is differentiated twice; allowed are first derivatives of a table")


def _by_slopes(call: Any, gradient: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    call = OperationCall(*call)
    index = _index_of(call, tuple(_codes_of(x.detach(), text) for x, text in zip(tensors, call.operands, strict=True)))
    return tuple(gradient * _taken(f"slope {i}", call, index).to(torch.float64) for i in range(len(tensors)))


def _results(call: OperationCall, dtype: torch.dtype, key: Any, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return (_from_table if call.operands else _rounded)(call, dtype, key, tensors)


def _taken(which: str, call: OperationCall, index: torch.Tensor) -> torch.Tensor:
    """The entries of a table of a call."""
    texts = _texts(call)
    if torch.compiler.is_dynamo_compiling():
        table = torch.ops.qtorch.arithmetic_table(which, texts, index.device)
    else:
        table = run_table(which, texts, index.device)
    if table.dtype in _SIGNED:  # torch cannot take from unsigned tables of more than 8 bits
        return table.view(_SIGNED[table.dtype])[index].view(table.dtype)
    return table[index]


def _texts(call: OperationCall) -> list[str]:
    """A call as an operator takes it; tables do not depend on its `start`."""
    return [call.operation, call.result, call.rounding, call.overflow or "", str(call.random_bits), *call.operands]


def run_table(which: str, texts: list[str], device: torch.device) -> torch.Tensor:
    """A table as a tensor: of "codes", of "numbers", of "exact" results, or "slope 0" and "slope 1"."""
    return _on_cpu(which, *texts).to(device)


def table_for_program(which: str, texts: list[str], device: torch.device) -> torch.Tensor:
    """`qtorch::arithmetic_table`: a copy, since compiled programs write other results to memory that they have read."""
    return run_table(which, texts, device).clone()


@lru_cache(maxsize=64)
def _on_cpu(which: str, operation: str, result: str, rounding: str, overflow: str, bits: str, *operands: str) -> Any:
    call = OperationCall(operation, operands, result, rounding, overflow or None, int(bits), 0)
    if which.startswith("slope"):
        found = slopes_of(operation, operands)[int(which[-1])]
    else:
        found = {"codes": table_of, "numbers": numbers_of, "exact": stand_ins_of}[which](call)
    return torch.from_numpy(found.copy())


def table_shape(which: str, texts: list[str], device: torch.device) -> torch.Tensor:
    """A tensor of the table's shape and type."""
    size = 1 << sum(check_number(text).bits for text in texts[5:])
    codes = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}
    kinds = {"codes": codes[storage(check_number(texts[1]).bits)], "exact": torch.float64}
    return torch.empty(size, dtype=kinds.get(which, torch.float32), device=device)


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
            return _results(call, kind, words, tensors)
        return _Differentiable.apply(tuple(call), kind, words, *apart(*tensors))  # type: ignore[no-any-return]

    def on_question(self, question: Question, given: tuple[Any, ...]) -> torch.Tensor:
        if question.operands:
            given = tuple(decode(x, text) for x, text in zip(given, question.operands, strict=True))
        found: torch.Tensor = question.answer(Float64(), *(x.detach().to(torch.float64) for x in given))
        return found.to(torch.uint8) if question.name == "classify" else found

    def on_codes(self, call: OperationCall, codes: tuple[Any, ...], key: Any) -> torch.Tensor:
        words = given_or_drawn(key, call.is_stochastic, False)
        if call.is_looked_up and not call.is_stochastic and are_plain_tensors(codes):
            table = run_table("codes", _texts(call), codes[0].device)
            return _by_parts(table, call, torch.broadcast_tensors(*codes))
        if call.is_looked_up:
            index = _index_of(call, codes)
            if not call.is_stochastic:
                return _taken("codes", call, index)
            exact = _taken("exact", call, index)
            return encode(exact, **call.quantizing, key=words)
        numbers = [decode(x, text, torch.float64) for x, text in zip(codes, call.operands, strict=True)]
        return encode(call.exact(Float64(), *torch.broadcast_tensors(*numbers)), **call.quantizing, key=words)


def _is_recorded(tensors: tuple[torch.Tensor, ...]) -> bool:
    """True if a traced program differentiates a call; Dynamo refuses an autograd function where nothing does."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


FUNCTIONS = Tensors()
