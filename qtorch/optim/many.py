"""Rounding many tensors in few kernel calls: a call costs microseconds, which small tensors do not take to round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from qcore import Number, Quantization, Rounding
from qcore.named import check_number
from qtorch.dispatch import quantize
from qtorch.keys import draw
from qtorch.lanes import TABLE as ROW
from qtorch.launch import round_rows

_SMALL = 1 << 16  # elements: where two more copies take as long as a call


def quantize_many(
    tensors: Sequence[torch.Tensor], quantization: Quantization, keys: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Rounds many tensors: the bits are those of one call of `quantize` for each.

    Args:
        tensors: any, of any dtypes and devices.
        quantization: how; only `forward_number`, which may not be None, and `forward_rounding` are read.
        keys: for stochastic rounding: an integer tensor of shape (len(tensors), 2), two words a tensor; None draws
            one for each.

    Returns:
        New tensors of the same shapes, dtypes and devices; some may share memory.

    Raises:
        TypeError, ValueError: as `quantize` does.

    Example:
        >>> quantize_many([torch.tensor([0.3]), torch.tensor(5.3)], Quantization("e5m2", forward_rounding="nearest"))
        [tensor([0.3125]), tensor(5.)]
    """
    number, rounding = check_number(quantization.forward_number, "forward_number"), quantization.forward_rounding
    stochastic = rounding is Rounding.STOCHASTIC
    if stochastic and keys is None:
        keys = torch.stack([draw() for _ in tensors]) if tensors else None
    groups, large = _arrange(tensors) if len(tensors) > 1 and _elementwise(number) else ([], range(len(tensors)))
    each = [None] * len(tensors) if keys is None or not stochastic else keys.unbind()
    results = {i: quantize(tensors[i], number, rounding, key=each[i]) for i in large}
    for members in groups:
        small = [tensors[i] for i in members]
        if keys is None or not stochastic:
            rounded = _together(small, number, rounding)
        else:
            rounded = _with_keys(small, number, keys[members])
        results |= dict(zip(members, rounded, strict=True))
    return [results[i] for i in range(len(tensors))]


def _together(tensors: list[torch.Tensor], number: Number, rounding: Rounding) -> list[torch.Tensor]:
    flat = quantize(torch.cat([x.reshape(-1) for x in tensors]), number, rounding)
    return [piece.view(x.shape) for piece, x in zip(flat.split([x.numel() for x in tensors]), tensors, strict=True)]


def _with_keys(tensors: list[torch.Tensor], number: Number, keys: torch.Tensor) -> list[torch.Tensor]:
    """Stochastic rounding of tensors that lie in rows, each row with its tensor's key."""
    x = tensors[0]
    rows, starts = _rows(tuple(x.numel() for x in tensors))
    flat = torch.zeros(starts.numel() * ROW, dtype=x.dtype, device=x.device)
    copy_all(_unpacked(flat, rows, tensors), tensors)
    words = keys.to(torch.int32).repeat_interleave(torch.tensor(rows), 0, output_size=starts.numel())
    told = torch.cat([words.t(), starts[None]]).to(x.device)
    rounded = round_rows(flat.view(-1, ROW), number, told)
    if rounded is None:
        return [quantize(x, number, Rounding.STOCHASTIC, key=key) for x, key in zip(tensors, keys, strict=True)]
    return _unpacked(rounded.view(-1), rows, tensors)


def _unpacked(flat: torch.Tensor, rows: list[int], like: list[torch.Tensor]) -> list[torch.Tensor]:
    rooms = flat.split([count * ROW for count in rows])
    return [room[: x.numel()].view(x.shape) for room, x in zip(rooms, like, strict=True)]


@lru_cache(maxsize=64)
def _rows(sizes: tuple[int, ...]) -> tuple[list[int], torch.Tensor]:
    """How many rows tensors take, and the index in its tensor of each row's first element."""
    rows = [-(-size // ROW) for size in sizes]
    return rows, torch.cat([torch.arange(count, dtype=torch.int32) * ROW for count in rows])


def _elementwise(number: Number) -> bool:
    return type(number).axes is Number.axes  # only blocks have some


def joins(quantization: Quantization) -> bool:
    """Whether an element's result does not depend on the tensor it is in, so that tensors may be rounded as one."""
    number, rounding = quantization.forward_number, quantization.forward_rounding
    return isinstance(number, Number) and _elementwise(number) and rounding is not Rounding.STOCHASTIC


class Bundle:
    """Room for tensors like the given ones: the small ones side by side in flat tensors, which are rounded as one.

    Attributes:
        small, large: which of the tensors lie side by side, and which do not.
        flats: the memory of the small ones.
        places: the small ones, as views of it.
    """

    def __init__(self, like: Sequence[torch.Tensor]) -> None:
        groups, self.large = _arrange(like)
        self.small = [i for members in groups for i in members]
        self.flats: list[torch.Tensor] = []
        self.places: list[torch.Tensor] = []
        for members in groups:
            sizes = [like[i].numel() for i in members]
            words = -(-sum(sizes) // 4) * 4  # whole 64-bit words of any dtype, see `same_bits`
            flat = torch.zeros(words, dtype=like[members[0]].dtype, device=like[members[0]].device)
            self.flats.append(flat)
            pieces = flat[: sum(sizes)].split(sizes)
            self.places += [piece.view(like[i].shape) for i, piece in zip(members, pieces, strict=True)]
        self._like = _properties(like)

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these have the number, shapes, dtypes and devices of the tensors that there is room for."""
        return _properties(tensors) == self._like

    def take(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies the small ones in; returns `flats` and the large ones, which together are all the elements."""
        copy_all(self.places, [tensors[i] for i in self.small])
        return self.flats + [tensors[i] for i in self.large]

    def give(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the small ones back."""
        copy_all([tensors[i] for i in self.small], self.places)


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)  # type: ignore[attr-defined]


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have the same bits (-0.0 differs from 0.0, a NaN equals itself)."""
    if x.dim() == 1 and x.nbytes % 8 == 0 and x.is_contiguous():
        return torch.equal(x.view(torch.int64), y.view(torch.int64))  # in half the time
    return torch.equal(as_bits(x), as_bits(y))


def as_bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()])


def _arrange(tensors: Sequence[torch.Tensor]) -> tuple[list[list[int]], list[int]]:
    """Groups of small tensors of one dtype and device, and the others."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    large = []
    for i, x in enumerate(tensors):
        plain = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
        if plain and x.numel() <= _SMALL:
            groups.setdefault((x.dtype, x.device), []).append(i)
        else:
            large.append(i)
    return list(groups.values()), large


def _properties(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Size], list[torch.dtype], list[torch.device]]:
    return [x.shape for x in tensors], [x.dtype for x in tensors], [x.device for x in tensors]
