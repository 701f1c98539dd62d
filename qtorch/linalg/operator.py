"""One product of two tensors: a function for eager programs, and an operator for compiled and transformed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

from qcore import Number
from qcore.linalg.convolution import ConvolutionGeometry, Geometry, geometry_of
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B
from qcore.linalg.law import Sums, batch_shape, multiply
from qcore.linalg.operands import Operand
from qcore.linalg.product import FIRST, ROLES, ROWS, SECOND, Product
from qcore.linalg.rounded import Matrices, apart, matrices, rounded_tensors
from qcore.linalg.scaling import of_both, prepared, rescaled
from qtorch._rounding.dispatch import decode, encode, quantize
from qtorch._rounding.keys import fold_in
from qtorch._rounding.paths.choice import are_plain_tensors, is_plain_tensor
from qtorch._rounding.sharded import is_sharded
from qtorch._torch_internals import unseen_by_modes
from qtorch.linalg.delayed import given_scales
from qtorch.linalg.namespace import Float64
from qtorch.linalg.native import (
    BLOCK,
    ProductSpec,
    convolution_product,
    direct_product,
    matrix_product,
    multiply_directly,
    one_nan,
    product_of,
    sums_for,
)

Axes = dict[int, int]

_SIDE = 1024  # rows and columns of a result

# Called with (kind, role, before, after, format) for every rounding; kind and role as in `qcore.insight.Site`.
Observer = Callable[[str, str, torch.Tensor, torch.Tensor, Number], None]
_OPERANDS = {
    FORWARD: {FIRST: "input", SECOND: "weight"},
    GRAD_A: {FIRST: "grad_input.gradient", SECOND: "grad_input.weight"},
    GRAD_B: {FIRST: "grad_weight.gradient", SECOND: "grad_weight.input"},
}
_GRADIENTS = {FORWARD: "", GRAD_A: "grad_input", GRAD_B: "grad_weight"}

# The observer of the products that are computed now; None unless a model is watched.
OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observed_by(observer: Observer | None) -> Iterator[None]:
    """Calls an observer for the roundings of products within, and of their gradients whenever these are computed."""
    token = OBSERVER.set(observer)
    try:
        yield
    finally:
        OBSERVER.reset(token)


def multiply_tensors(
    first: torch.Tensor,
    second: torch.Tensor,
    key: torch.Tensor | None,
    state: torch.Tensor | None,
    spec: ProductSpec,
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    """One of a geometry's products, as a float32 tensor without a gradient.

    Args:
        first, second: the operands, see `qcore.linalg.geometry.MatrixGeometry.matrices`.
        key: int32 tensor of two words, the key of the forward product; None without stochastic rounding.
        state: a tensor with delayed scales in the first column; None without delayed scales.
        spec: the product.
        addend: a float32 tensor of the result's shape, at which the accumulators start; None is +0.
    """
    if are_plain_tensors((first, second, addend)):
        return _multiply_plain(first, second, addend, key, state, spec)
    if is_sharded(first, second):
        return _multiply_shards(first, second, key, spec)
    return torch.ops.qtorch.product(first, second, addend, key, state, *spec)


def run_product(
    first: torch.Tensor, second: torch.Tensor, addend: Any, key: Any, state: Any, other: Any, shape: Any, *texts: str
) -> torch.Tensor:
    """`qtorch::product`, which compiled and transformed programs hold."""
    spec = ProductSpec(tuple(other), tuple(shape), *texts)
    multiply_them = _multiply_plain if are_plain_tensors((first, second, addend)) else _multiply_by_operations
    return multiply_them(first, second, addend, key, state, spec)


def _multiply_plain(
    first: torch.Tensor, second: torch.Tensor, addend: Any, key: Any, state: Any, spec: ProductSpec
) -> torch.Tensor:
    # An observer sees operands and sums apart, which one kernel for all does not have; such a kernel has no addend.
    if OBSERVER.get() is None and first.is_cpu and addend is None:
        direct = direct_product(spec, first.shape, second.shape)
        found = direct and multiply_directly(direct, spec, first, second)
        if found is not None:
            return found if found.shape == spec.shape else found.reshape(spec.shape)
    return _multiply_by_operations(first, second, addend, key, state, spec)


def _multiply_by_operations(
    first: torch.Tensor, second: torch.Tensor, addend: Any, key: Any, state: Any, spec: ProductSpec
) -> torch.Tensor:
    with unseen_by_modes():  # a mode that lowers functions would find these products as well
        geometry, product, which = geometry_of(spec.geometry), product_of(spec.product), spec.which
        key = _key_of_role(key, which)
        multiply_rounded = _with_operands(geometry, product, (first.detach(), second.detach()), state, spec, key)
        addend = None if addend is None else addend.detach()
        shapes = tuple(first.shape), tuple(second.shape), spec.other, addend is not None
        result = multiply_rounded(key, sums_for(geometry, which, product, *shapes), addend).reshape(spec.shape)
        observer = OBSERVER.get()
        if observer is not None and product._unrounded != product:
            wide = multiply_rounded(None, sums_for(geometry, which, product._unrounded, *shapes), addend)
            observer("accumulator", _GRADIENTS[which], wide.reshape(spec.shape), result, product.accumulator.number)
        return result


def _key_of_role(key: torch.Tensor | None, which: str) -> torch.Tensor | None:
    """The key of a product: the forward product has the caller's, the gradients' follow from it."""
    return key if key is None or which == FORWARD else fold_in(key, ROLES[which], True)


def _with_operands(
    geometry: Geometry, product: Product, tensors: tuple[Any, Any], state: Any, spec: ProductSpec, key: Any
) -> Callable[[Any, Sums, Any], torch.Tensor]:
    """Rounds both operands, and returns a function that multiplies them with a key and sums, from an addend on."""
    which, other = spec.which, spec.other
    given = given_scales(product.operands, ROWS[which], state)
    round_ = partial(_rounded, key, which)
    # Scales of blocks along what is summed over, and transforms, are those of the matrices that are multiplied; all
    # other operands of a convolution are rounded as they are, so that a kernel can read them without columns.
    if product._as_matrices or not isinstance(geometry, ConvolutionGeometry):
        return partial(_multiply_matrices, matrices(Float64, geometry, which, product, tensors, other, round_, given))
    (x, y), inverses = rounded_tensors(geometry, which, product, tensors, round_, given)
    factor = of_both(Float64, *inverses)

    def multiply_rounded(key: Any, sums: Sums, addend: Any) -> torch.Tensor:
        found = convolution_product(geometry, which, x, y, other, sums, key, addend)
        if found is not None:
            return found if factor is None else one_nan(rescaled(Float64, found, factor).to(torch.float32))
        found = Matrices(*geometry.matrices(Float64, which, x, y, other), None, factor)
        return _multiply_matrices(found, key, sums, addend)

    return multiply_rounded


def _multiply_matrices(found: Matrices, key: Any, sums: Sums, addend: torch.Tensor | None = None) -> torch.Tensor:
    """The product of matrices that are rounded; the accumulators start at an addend's elements, in order."""
    left, right, scales, factor = found
    key = None if key is None else key.to(left.device)
    names = Float64(key, sums.narrow)
    result = matrix_product(left, right, sums, key, addend) if scales is None else None
    if result is not None:
        return result if factor is None else one_nan(rescaled(names, result, factor).to(torch.float32))
    result = left.new_empty((*batch_shape(left, right), left.shape[-2], right.shape[-1]))
    if addend is not None:
        result.copy_(addend.reshape(result.shape))
    pair = (left, right) if scales is None else (left, right, *scales)
    for part, a, b, *of_part in _blocks(result, pair, sums.accumulator.stochastic):
        scales_of_part = (of_part[0], of_part[1]) if of_part else None
        sum_ = multiply(names, a, b, sums, scales_of_part, None if addend is None else part)
        part.copy_(sum_ if factor is None else rescaled(names, sum_, factor))
    return one_nan(result, sums.accumulator.nan)


def _blocks(result: torch.Tensor, operands: Sequence[Any], undivided: bool) -> Iterator[tuple[Any, ...]]:
    """Parts of a product and of its operands, small enough for float64 copies; or the whole product.

    Operands are a left and a right matrix, or two such pairs, one of which may be None.
    """
    a, b = operands[:2]
    if undivided or max(result.numel(), a.numel(), b.numel()) <= BLOCK:
        yield result, *operands
    elif result.dim() > 2:
        for index, part in enumerate(result):
            parts = [x if x is None or x.dim() < result.dim() else x[min(index, len(x) - 1)] for x in operands]
            yield from _blocks(part, parts, undivided)
    else:
        length = min(max(BLOCK // a.shape[1], 64), _SIDE)
        for top in range(0, a.shape[0], length):
            for left in range(0, b.shape[1], length):
                rows, columns = slice(top, top + length), slice(left, left + length)
                places = (rows, (slice(None), columns)) * 2
                yield (
                    result[rows, columns],
                    *(None if x is None else x[place] for x, place in zip(operands, places, strict=False)),
                )


def _multiply_shards(first: Any, second: Any, key: Any, spec: ProductSpec) -> Any:
    """The product of DTensors; each process computes its part of the result."""
    from torch.distributed.tensor import DTensor

    geometry, product, which = geometry_of(spec.geometry), product_of(spec.product), spec.which
    key = _key_of_role(key, which)
    tensors: Any = first.detach(), second.detach()
    operands, _ = rounded_tensors(geometry, which, product, tensors, partial(_rounded, key, which), (None, None))
    sums = sums_for(geometry, which, product, tuple(first.shape), tuple(second.shape), spec.other)
    # Axes that are summed over are gathered, so that sums keep their order. A stochastic accumulator needs the whole,
    # as its random words are counted by the elements of the result.
    whole = sums.accumulator.stochastic
    kept = ({}, {}) if whole else geometry.kept_axes(which, first.dim(), second.dim(), len(spec.other))
    mesh = first.device_mesh
    placements = zip(operands[0].placements, operands[1].placements, strict=True)
    *placed, results = zip(*[_placement(*both, kept) for both in placements], strict=True)
    x, y = (one.redistribute(mesh, p).to_local() for one, p in zip(operands, placed, strict=True))
    part = list(spec.shape)
    for local, whole_operand, axes in zip((x, y), operands, kept, strict=True):
        for axis, of_result in axes.items():
            if local.shape[axis] != whole_operand.shape[axis]:
                part[of_result] = local.shape[axis]
    other = tuple(y.shape) if which == FORWARD else tuple(part)
    left, right = geometry.matrices(Float64, which, x, y, other)
    found = _multiply_matrices(Matrices(left, right, None, None), key, sums).reshape(part)
    strides = torch.empty(spec.shape, device="meta").stride()
    return DTensor.from_local(found, mesh, results, run_check=False, shape=torch.Size(spec.shape), stride=strides)


def _placement(first: Any, second: Any, kept: tuple[Axes, Axes]) -> tuple[Any, Any, Any]:
    """The placements of both operands and the result along a dimension of the mesh.

    `kept` has for each operand the axes along which it may stay sharded, and the result's axis for each.
    """
    from torch.distributed.tensor import Replicate, Shard

    for index, placement in enumerate((first, second)):
        if type(placement) is not Shard or placement.dim not in kept[index]:
            continue
        of_result = kept[index][placement.dim]
        same = [axis for axis, target in kept[1 - index].items() if target == of_result]  # of batches
        other = Shard(same[0]) if same else Replicate()
        left, right = (placement, other) if index == 0 else (other, placement)
        return left, right, Shard(of_result)
    return Replicate(), Replicate(), Replicate()


def _rounded(
    key: torch.Tensor | None,
    which: str,
    x: torch.Tensor,
    operand: Operand,
    given: Any,
    role: int,
    coded: bool = False,
) -> tuple[torch.Tensor, Any]:
    """An operand rounded, and the inverse of its scale or None; see `qcore.linalg.rounded.Round`."""
    x, inverse = prepared(Float64, x, operand, given)
    if operand.number is None:
        return x, inverse
    key = fold_in(key, role, True) if operand.stochastic and key is not None else None
    parts = apart(operand.number, encode(x, operand.number, operand.rounding, key=key), decode) if coded else None
    observer = OBSERVER.get()
    if parts is not None and observer is None:
        return parts
    y = quantize(x, operand.number, operand.rounding, key=key)
    if observer is not None and is_plain_tensor(x):
        observer("operand", _OPERANDS[which][role], x, y, operand.number)
    return (y, inverse) if parts is None else parts


def product_shape(
    first: torch.Tensor, second: torch.Tensor, addend: Any, key: Any, state: Any, other: Any, shape: Any, *text: str
) -> Any:
    """A tensor of the product's shape and dtype, without values."""
    return first.new_empty(shape)


def batch_product(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, int]:
    """Under vmap each example is a product of its own."""
    rest = arguments[5:]
    tensors = [
        [x] * info.batch_size if dim is None else x.unbind(dim)
        for x, dim in zip(arguments[:5], in_dims[:5], strict=True)
    ]
    return torch.stack([torch.ops.qtorch.product(*each, *rest) for each in zip(*tensors, strict=True)]), 0


def check_placed(name_a: str, name_b: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Raises for a DTensor together with a tensor of one process, on another mesh, or in a traced program."""
    if torch.compiler.is_dynamo_compiling():
        raise TypeError(f"{name_a} or {name_b} is a DTensor in torch.compile; allowed there are plain tensors")
    meshes = [getattr(x, "device_mesh", None) for x in (a, b)]
    if meshes[0] != meshes[1]:
        raise TypeError(f"{name_a} and {name_b} lie on {meshes[0]} and {meshes[1]}; allowed are DTensors of one mesh")
