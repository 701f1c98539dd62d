"""Rounding and codes in programs for `torch.compile`: operators, which call the kernels that eager programs call.

Dynamo, autograd and vmap see one call. Inductor then makes a loop of it where a loop is not slower (`inductor`). If the
law were traced instead, compilers would take seconds for each Threefry, and Inductor would compute every intermediate
value again at each of its uses.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from qcore.formats.foreign import BytesNumber, NestedNumber
from qcore.formats.text import parse
from qcore.law.tiles import block_counts
from qcore.random.threefry import Noise
from qtorch._kernels.launch import with_strides_of
from qtorch._namespace import FLOATS
from qtorch._rounding.cache import cached
from qtorch._rounding.paths import inductor
from qtorch._rounding.paths.choice import are_plain_tensors, decode_tensor, is_plain_tensor, round_tensor
from qtorch._rounding.paths.operations import bytes_of, lane_dtype, scale_dtype
from qtorch._rounding.plan import RoundingPlan, plan_for
from qtorch._torch_internals import map_tree

Maybe = torch.Tensor | None


@cached
def _plan(dtype: torch.dtype, coded: bool, number: str, rounding: str, overflow: str, law: str) -> RoundingPlan:
    return plan_for(number, rounding, dtype, overflow or None, coded)


def run_round(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    return _run(False, x, *arguments)[0]


def run_encode(x: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    return _run(True, x, *arguments)


def _run(coded: bool, x: torch.Tensor, key: Maybe, window: Maybe, *text: str) -> list[torch.Tensor]:
    """The results of `round_tensor`. A key of two dimensions has a row for each example, along x's first dimension."""
    if key is None or window is None:
        noise = None
    elif key.dim() > 1:
        examples = [_run(coded, example, own, window, *text) for example, own in zip(x, key, strict=True)]
        return [each.contiguous() for each in _stacked(examples)]  # stacked strides are not what `_shapes` promised
    else:
        noise = Noise(key, window)
    plan = _plan(x.dtype, coded, *text)
    if coded and isinstance(plan.number, BytesNumber):
        return [bytes_of(x, plan.number)]
    results = round_tensor(x, plan, noise, is_plain_tensor(x))
    first, *others = results if isinstance(results, tuple) else (results,)
    return [with_strides_of(x, first), *others]


def run_decode(codes: torch.Tensor, scales: Maybe, scale: Maybe, number: str, dtype: torch.dtype, law: str) -> Any:
    plain = are_plain_tensors((codes, scales, scale))
    return with_strides_of(codes, decode_tensor(codes, parse(number), dtype, scales, scale, plain))


def round_shape(x: torch.Tensor, key: Maybe, window: Maybe, *text: str) -> torch.Tensor:
    return _shapes(False, x, key, *text)[0]


def encode_shapes(x: torch.Tensor, key: Maybe, window: Maybe, *text: str) -> list[torch.Tensor]:
    return _shapes(True, x, key, *text)


def _shapes(coded: bool, x: torch.Tensor, key: Maybe, *text: str) -> list[torch.Tensor]:
    inductor.register()
    plan, axes = _plan(x.dtype, coded, *text), 0 if key is None else key.dim() - 1
    if coded and isinstance(plan.number, BytesNumber):
        return [x.new_empty(plan.number.shape_of_bytes(tuple(x.shape)), dtype=torch.uint8)]
    first = x.new_empty(x.shape, dtype=plan.dtype) if axes else torch.empty_like(x, dtype=plan.dtype)
    if not (coded and plan.program.shared):
        return [first]
    examples, shape = tuple(x.shape[:axes]), tuple(x.shape[axes:])
    counts = block_counts(shape, plan.number.block_sizes(len(shape)))
    results = [first, x.new_empty((*examples, *counts), dtype=scale_dtype(plan.program))]
    if isinstance(plan.number, NestedNumber):
        lengths = [-(-prod(counts) // plan.number.block)] if counts else []
        results += [x.new_empty((*examples, *lengths), dtype=torch.float32), x.new_empty(examples, dtype=torch.float32)]
    if plan.program.has_array_scale:
        results.append(x.new_empty(examples, dtype=FLOATS[lane_dtype(plan.program.carrier)]))
    return results


def decode_shape(codes: torch.Tensor, *arguments: Any) -> torch.Tensor:
    inductor.register()
    return torch.empty_like(codes, dtype=arguments[3])


def batch_round(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[torch.Tensor, int]:
    return _batched(torch.ops.qtorch.round, info.batch_size, in_dims, *arguments), 0


def batch_encode(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[list[torch.Tensor], list[int]]:
    found = _batched(torch.ops.qtorch.encode, info.batch_size, in_dims, *arguments)
    return found, [0] * len(found)


def _batched(operator: Any, count: int, in_dims: tuple[Any, ...], x: torch.Tensor, key: Maybe, *rest: Any) -> Any:
    """The operator under vmap: each example is rounded as if alone, with its own indices and blocks."""
    x = _examples(x, in_dims[0], count)
    if key is None:
        return _each(operator, [x], key, *rest)
    key = _examples(key, in_dims[1], count)
    if key.dim() == 2:
        return operator(x, key, *rest)
    # A vmap inside of a vmap: both dimensions of examples become one.
    flat = operator(x.flatten(0, 1), key.flatten(0, 1), *rest)
    return map_tree(lambda each: each.unflatten(0, x.shape[:2]), flat)


def batch_decode(
    info: Any, in_dims: tuple[Any, ...], codes: torch.Tensor, scales: Maybe, scale: Maybe, *rest: Any
) -> tuple[torch.Tensor, int]:
    given = zip((codes, scales, scale), in_dims[:3], strict=True)
    tensors = [one if one is None else _examples(one, axis, info.batch_size) for one, axis in given]
    return _each(torch.ops.qtorch.decode, tensors, *rest), 0


def _each(operator: Any, tensors: list[Maybe], *rest: Any) -> Any:
    """The operator on each example along the tensors' first dimension."""
    columns = [[None] * len(tensors[0]) if one is None else one for one in tensors]  # type: ignore[arg-type]
    return _stacked([operator(*example, *rest) for example in zip(*columns, strict=True)])


def _examples(x: torch.Tensor, axis: int | None, count: int) -> torch.Tensor:
    return x.expand(count, *x.shape) if axis is None else x.movedim(axis, 0)


def _stacked(examples: list[Any]) -> Any:
    """The results of all examples, stacked: one tensor, or one for each result of the operator."""
    if isinstance(examples[0], torch.Tensor):
        return torch.stack(examples)
    return [torch.stack(each) for each in zip(*examples, strict=True)]
