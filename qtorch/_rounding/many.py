"""Operations of an optimizer on all its tensors at once: rounding, scaling, copying, and finding foreign changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count, repeat
from operator import attrgetter

import torch

from qcore import Number, Rounding
from qcore.formats.block import BlockNumber
from qtorch._kernels import laws
from qtorch._kernels.launch import serve_cpu
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import window_tensor
from qtorch._rounding.plan import plan_for
from qtorch._rounding.sharded import is_sharded
from qtorch._torch_internals import is_memory

Tensors = Sequence[torch.Tensor]

JOINED = {"cuda"}  # devices where a launch costs more than small tensors' work: there they are rounded side by side
SMALL = 1 << 16  # elements of a tensor that is joined with others at most

_IS_CPU, _DTYPE, _address = attrgetter("is_cpu"), attrgetter("dtype"), torch.Tensor.data_ptr
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}  # by the size of an element in bytes


@torch.no_grad()
def round_each(
    targets: Tensors, sources: Tensors, number: Number, rounding: Rounding, keys: torch.Tensor | None = None
) -> None:
    """Rounds every source and writes the result onto its target, with the bits of a call of `quantize` for each.

    Autograd records nothing; a backward pass that needs the old value of a target raises torch's error.

    Args:
        targets: a tensor of the same shape, dtype and device for each source: the source itself, or memory of its own.
            Memory that two targets share gets the bits of one of them.
        sources: tensors of any dtypes, devices and strides, DTensors included.
        number: the format.
        rounding: the mode.
        keys: an int32 tensor of shape (len(sources), 2) on the CPU with the two words of each source's key, for
            stochastic rounding; None for other modes.

    Raises:
        TypeError, ValueError: as `quantize` does.

    Example:
        >>> from qcore import FloatingPoint
        >>> x, y = torch.tensor([0.3]), torch.tensor(5.3)
        >>> round_each([x, y], [x, y], FloatingPoint(5, 2), Rounding.NEAREST)
        >>> x, y
        (tensor([0.3125]), tensor(5.))
    """
    blocks = isinstance(number, BlockNumber)
    plan = None if blocks or not sources or serve_cpu() else plan_for(number, rounding, sources[0].dtype, None, False)
    if plan is not None and _are_memory(plan.dtype, targets, sources) and (kernel := plan.kernels["flat"]):
        # One call of C for all tensors: their arguments follow each other, and threads share all elements.
        function, constants = kernel
        calls = [map(torch.Tensor.numel, sources), map(_address, sources), repeat(constants)]
        if keys is not None:
            keys, window = keys.contiguous(), window_tensor(24, 0, None)
            calls += [count(keys.data_ptr(), 8), repeat(window.data_ptr())]
        function(*chain.from_iterable(zip(*calls, map(_address, targets), strict=False)))
        torch.autograd.graph.increment_version(targets)  # the kernel wrote behind autograd's back
        return
    groups, rest = _arrange(sources) if keys is None and not blocks else ([], range(len(sources)))
    for group in groups:
        _split_onto(targets, group, quantize(_join(sources, group), number, rounding))
    each = None if keys is None or not sources else keys.to(sources[0].device)
    for i in rest:
        targets[i].copy_(quantize(sources[i], number, rounding, key=None if each is None else each[i]))


@torch.no_grad()
def follow_each(values: Tensors, weights: Tensors, written: Tensors) -> None:
    """Finds the elements of weights that other code has changed, and copies them to the values and to `written`.

    Args:
        values: tensors that follow the weights.
        weights: tensors of any dtypes, devices and strides, DTensors included.
        written: the numbers that were last written to the weights. An element is changed if its bits differ: -0.0
            differs from 0.0, and a NaN equals itself.

    Example:
        >>> value, weight, last = (
        ...     torch.tensor([1.1, 2.1]),
        ...     torch.tensor([1.0, 3.0]),
        ...     torch.tensor([1.0, 2.0]),
        ... )
        >>> follow_each([value], [weight], [last])
        >>> value, last
        (tensor([1.1000, 3.0000]), tensor([1., 3.]))
    """
    together = bool(weights) and _are_memory(weights[0].dtype, values, weights, written)
    if together and (kernel := laws.following(8 * weights[0].element_size())):
        kept, changed = list(map(_address, values)), list(map(_address, written))
        sizes, given = map(torch.Tensor.numel, weights), map(_address, weights)
        kernel(*chain.from_iterable(zip(sizes, kept, given, changed, kept, changed, strict=True)))
        torch.autograd.graph.increment_version((*values, *written))
        return
    groups, rest = _arrange(weights)
    for group in groups:
        value, weight, last = (_join(tensors, group) for tensors in (values, weights, written))
        _split_onto(values, group, torch.where(_as_integers(weight) == _as_integers(last), value, weight))
        _split_onto(written, group, weight)
    for i in rest:
        now, before = _as_integers(weights[i]), _as_integers(written[i])
        if now.is_cpu and not is_sharded(now) and torch.equal(now, before):  # other devices would have to be waited for
            continue
        values[i].copy_(torch.where(now == before, values[i], weights[i]))
        written[i].copy_(weights[i])


def have_same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """True if two tensors of one shape and dtype have the same bits: -0.0 differs from 0.0, and a NaN equals itself."""
    return torch.equal(_as_integers(x), _as_integers(y))


@torch.no_grad()
def copy_each(targets: Tensors, sources: Tensors) -> None:
    """Copies every source onto its target."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


@torch.no_grad()
def scale_each(tensors: Tensors, factor: float) -> None:
    """Multiplies every tensor in place; a tensor that is given twice is multiplied once."""
    for x in {id(x): x for x in tensors}.values():
        x.mul_(factor)


def _are_memory(dtype: torch.dtype, *lists: Tensors) -> bool:
    """True if one call of a kernel on the CPU may read and write all tensors of all lists."""
    return all(
        {torch.Tensor, torch.nn.Parameter}.issuperset(map(type, tensors))
        and all(map(_IS_CPU, tensors))
        and {dtype}.issuperset(map(_DTYPE, tensors))
        and all(map(torch.Tensor.is_contiguous, tensors))
        and not any(map(torch.Tensor.is_neg, tensors))
        and is_memory(*tensors)
        for tensors in lists
    )


def _as_integers(x: torch.Tensor) -> torch.Tensor:
    """The bits, for comparisons in which NaN equals itself."""
    return x.view(_INTEGERS[x.element_size()])


def _arrange(tensors: Tensors) -> tuple[list[list[int]], list[int]]:
    """The indices of small tensors, grouped by dtype and device where joining pays, and all other indices."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    rest = []
    for i, x in enumerate(tensors):
        if x.device.type in JOINED and type(x) in (torch.Tensor, torch.nn.Parameter) and x.numel() <= SMALL:
            groups.setdefault((x.dtype, x.device), []).append(i)
        else:
            rest.append(i)
    return list(groups.values()), rest


def _join(tensors: Tensors, group: list[int]) -> torch.Tensor:
    return torch.cat([tensors[i].reshape(-1) for i in group])


def _split_onto(targets: Tensors, group: list[int], flat: torch.Tensor) -> None:
    own = [targets[i] for i in group]
    parts = flat.split([x.numel() for x in own])
    copy_each(own, [part.view(x.shape) for part, x in zip(parts, own, strict=True)])
