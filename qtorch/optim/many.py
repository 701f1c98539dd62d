"""Rounding many tensors in few kernel calls: a call costs microseconds, which small tensors do not take to round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import torch

from qcore import Number, Quantization, Rounding
from qcore.named import check_number
from qtorch.dispatch import is_ordinary, quantize
from qtorch.lanes import ROW
from qtorch.launch import aligned, round_each, round_onto, round_rows
from qtorch.sharded import is_sharded

_SMALL = 1 << 15  # elements: from there on two copies take longer than a call


def quantize_many(
    tensors: Sequence[torch.Tensor], quantization: Quantization, keys: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Rounds many tensors: the bits are those of one call of `quantize` for each.

    Args:
        tensors: any, of any dtypes and devices.
        quantization: how; only `forward_number`, which may not be None, and `forward_rounding` are read.
        keys: for stochastic rounding, and only then: an integer tensor of shape (len(tensors), 2), two words a tensor.

    Returns:
        New tensors of the same shapes, dtypes and devices; some may share memory.

    Raises:
        TypeError, ValueError: as `quantize` does.

    Example:
        >>> quantize_many([torch.tensor([0.3]), torch.tensor(5.3)], Quantization("e5m2", forward_rounding="nearest"))
        [tensor([0.3125]), tensor(5.)]
    """
    number, rounding = check_number(quantization.forward_number, "forward_number"), quantization.forward_rounding
    if joins(quantization) and len(tensors) > 1:
        bundle = Bundle(tensors)
        return bundle.apart(bundle.round(bundle.take(tensors), quantization, keys))
    each = [None] * len(tensors) if keys is None else keys.unbind()
    return [quantize(x, number, rounding, key=key) for x, key in zip(tensors, each, strict=True)]


def joins(quantization: Quantization) -> bool:
    """Whether an element's result does not depend on other elements, so that tensors may be rounded as one."""
    number = quantization.forward_number
    return isinstance(number, Number) and type(number).axes is Number.axes  # only blocks have some


class Group(NamedTuple):
    """Tensors in one flat tensor: each fills whole rows of `ROW` elements.

    Attributes:
        members: which tensors.
        rows: how many rows each of them has.
        owners: for each row the tensor that it belongs to.
        starts: for each row the index in its tensor of its first element.
    """

    members: list[int]
    rows: list[int]
    owners: torch.Tensor
    starts: torch.Tensor

    def split(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The rows of each tensor."""
        return flat.split([count * ROW for count in self.rows])


class Bundle:
    """Room for tensors like the given ones: the small ones side by side in flat tensors, which are rounded as one.

    Attributes:
        small, large: which of the tensors lie side by side, and which do not.
        flats: the memory of the small ones.
        places: the small ones, as views of it.

    Args:
        like: tensors that it has room for.
        limit: how many elements a small one has at most.
    """

    def __init__(self, like: Sequence[torch.Tensor], limit: int = _SMALL) -> None:
        groups, self.large = _arrange(like, limit)
        self.small = [i for members in groups for i in members]
        self.flats: list[torch.Tensor] = []
        self._groups: list[Group] = []
        for members in groups:
            rows = [-(-like[i].numel() // ROW) for i in members]
            first = like[members[0]]
            owners = torch.tensor(members).repeat_interleave(torch.tensor(rows))
            starts = torch.cat([torch.arange(count, dtype=torch.int32) * ROW for count in rows]).to(first.device)
            self._groups.append(Group(members, rows, owners, starts))
            self.flats.append(torch.zeros(starts.numel() * ROW, dtype=first.dtype, device=first.device))
        self._like = properties(like)
        self.places = self._views(self.flats)

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these have the number, shapes, dtypes and devices of the tensors that there is room for."""
        return properties(tensors) == self._like

    def take(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies the small ones in; returns `flats` and the large ones, which together are all the elements."""
        copy_all(self.places, [tensors[i] for i in self.small])
        return self.parts_with(tensors)

    def parts_with(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`flats` and the large ones of these tensors."""
        return self.flats + [tensors[i] for i in self.large]

    def give(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the small ones back."""
        copy_all([tensors[i] for i in self.small], self.places)

    def round(self, parts: Sequence[torch.Tensor], told: Quantization, keys: torch.Tensor | None) -> list[torch.Tensor]:
        """What `take` returns, rounded; keys are those of all the tensors, see `quantize_many`."""
        number, rounding = check_number(told.forward_number), told.forward_rounding
        if keys is None:
            return [quantize(part, number, rounding) for part in parts]
        rounded = [torch.empty_like(flat) for flat in self.flats]
        self._round_with_keys(rounded, parts, number, keys)
        large = zip(self.large, parts[len(rounded) :], strict=True)
        return rounded + [quantize(x, number, rounding, key=keys[i]) for i, x in large]

    def round_onto(
        self, targets: list[torch.Tensor], parts: list[torch.Tensor], told: Quantization, keys: torch.Tensor | None
    ) -> None:
        """The same, onto other such parts or the same ones."""
        number, rounding, flats = check_number(told.forward_number), told.forward_rounding, len(self.flats)
        if keys is not None:
            self._round_with_keys(targets, parts, number, keys)
            for i, target, x in zip(self.large, targets[flats:], parts[flats:], strict=True):
                target.copy_(quantize(x, number, rounding, key=keys[i]))
            return
        for i, (target, part) in enumerate(zip(targets, parts, strict=True)):
            onto = round_onto if i < flats else _round_onto
            if not onto(target, part, number, rounding):
                target.copy_(quantize(part, number, rounding))

    def _round_with_keys(
        self, targets: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], number: Number, keys: torch.Tensor
    ) -> None:
        """Stochastic rounding of the flat ones among the parts, onto others or themselves."""
        words = keys.to(torch.int32)
        for target, flat, group in zip(targets, parts, self._groups, strict=False):  # the large ones follow
            own = words.index_select(0, group.owners).to(flat.device)
            if not round_rows(target.view(-1, ROW), flat.view(-1, ROW), number, own, group.starts):
                for i, to, room in zip(group.members, group.split(target), group.split(flat), strict=True):
                    to.copy_(quantize(room, number, Rounding.STOCHASTIC, key=keys[i]))

    def apart(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors, as views of such parts."""
        found = dict(zip(self.small, self._views(parts[: len(self.flats)]), strict=True))
        found |= dict(zip(self.large, parts[len(self.flats) :], strict=True))
        return [found[i] for i in range(len(found))]

    def _views(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        shapes = [self._like[i][0] for i in self.small]
        rooms = [room for flat, group in zip(flats, self._groups, strict=True) for room in group.split(flat)]
        return [room[: shape.numel()].view(shape) for room, shape in zip(rooms, shapes, strict=True)]


def _round_onto(target: torch.Tensor, x: torch.Tensor, number: Number, rounding: Rounding) -> bool:
    """`round_onto` for tensors of any kind, which others may have saved for a backward pass."""
    if not (_has_kernel(x) and (target is x or _has_kernel(target))):
        return False
    flat = x.view(-1)
    done = round_onto(flat if target is x else target.view(-1), flat, number, rounding)
    if done:
        torch.autograd.graph.increment_version(target)
    return done


def _has_kernel(x: torch.Tensor) -> bool:
    return x.is_contiguous() and is_ordinary(x) and aligned(x) is x


def round_in_place(tensors: Sequence[torch.Tensor], told: Quantization) -> bool:
    """Whether one kernel call rounds tensors, without random words, where `lie_apart`; if so, it has."""
    done = round_each(tensors, check_number(told.forward_number), told.forward_rounding)
    if done:
        torch.autograd.graph.increment_version(tensors)
    return done


def lie_apart(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are ordinary contiguous tensors of one dtype on the CPU, none of them twice.

    They may overlap in part, see `overlap`: to round an element twice does no harm.
    """
    return (
        is_ordinary(tensors[0])
        and len(set(map(attrgetter("dtype"), tensors))) == 1
        and {torch.Tensor, torch.nn.Parameter}.issuperset(map(type, tensors))
        and all(map(attrgetter("is_cpu"), tensors))
        and all(map(torch.Tensor.is_contiguous, tensors))
        and not any(map(torch.Tensor.is_neg, tensors))
        and len(places := set(map(torch.Tensor.data_ptr, tensors))) == len(tensors)
        and 0 not in places  # as those of a gradient that is known to be zero
    )


def overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether contiguous tensors have elements in common."""
    places = sorted(zip(map(torch.Tensor.data_ptr, tensors), map(attrgetter("nbytes"), tensors), strict=True))
    return any(begin + size > after for (begin, size), (after, _) in pairwise(places))


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if is_sharded(*targets):  # which torch copies one by one only
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    elif targets:
        torch._foreach_copy_(targets, sources)  # type: ignore[attr-defined]


def scale_all(tensors: list[torch.Tensor], factor: float) -> None:
    if is_sharded(*tensors):  # which torch scales beside others one by one only
        for x in tensors:
            x.mul_(factor)
    else:
        torch._foreach_mul_(tensors, factor)  # type: ignore[attr-defined]


def _arrange(tensors: Sequence[torch.Tensor], limit: int) -> tuple[list[list[int]], list[int]]:
    """Groups of small tensors of one dtype and device, and the others."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    large = []
    for i, x in enumerate(tensors):
        plain = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
        if plain and x.numel() <= limit:
            groups.setdefault((x.dtype, x.device), []).append(i)
        else:
            large.append(i)
    return list(groups.values()), large


def properties(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return list(map(attrgetter("shape", "dtype", "device"), tensors))
