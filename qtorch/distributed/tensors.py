"""Sums over ranks on tensors."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch

from qcore.distributed.arrays import check_stack, scattered
from qcore.distributed.backends import CollectiveLike, check_collective, check_ranks
from qcore.distributed.collective import GATHER, REDUCE, SCATTER, Collective
from qcore.distributed.law import SUM, Signed, run
from qcore.formats.number import Number, check_number
from qcore.formats.text import parse_argument
from qcore.law.rounding import Rounding
from qtorch._rounding.cache import literal
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import Key, fold_in, given_or_drawn
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._rounding.sharded import check_not_sharded
from qtorch._torch_internals import constant_result
from qtorch.linalg.namespace import Float64


class Terms(Signed, Float64):
    """The array namespace of sums over ranks, see `qcore.distributed.arrays.Terms`."""

    def each_rounded(self, x: torch.Tensor, number: Number, mode: Rounding, first: int) -> torch.Tensor:
        keys = [None if self.key is None else fold_in(self.key, first + place, False) for place in range(len(x))]
        return torch.stack([quantize(one, number, mode, key=key) for one, key in zip(x, keys, strict=True)])


def reduce(stack: torch.Tensor, collective: CollectiveLike, *, key: Key = None) -> torch.Tensor:
    """The sum of N ranks' tensors that every rank has after an all-reduce, or their mean.

    It has the bits of `qcore.distributed.reduce`, eagerly and in programs of `torch.compile`.

    Args:
        stack: tensor of shape (N, ...), float32, float16 or bfloat16: the tensor of each rank. It is one message, cut
            as the collective cuts it. A bucket of several tensors is their concatenation.
        collective: a name of `qcore.distributed.BACKENDS`, such as "gloo" or "nccl.ring.bf16", with ".avg" after it for
            the mean; or a `Collective`, or its text.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, two 32-bit words, or an integer tensor of two words.
            None draws one from torch's default generator.

    Returns:
        A tensor of shape (...), of stack's dtype and device, without a gradient.

    Raises:
        TypeError: if stack has another dtype; sums of integers are exact in every order.
        ValueError: if the collective has no all-reduce, or stack requires gradients.

    Example:
        >>> reduce(torch.tensor([[1.0], [256.0], [1.0]]), "nccl.ring.bf16")  # 257 is no bfloat16
        tensor([256.])
    """
    return _call(REDUCE, stack, collective, key)


def reduce_scatter(stack: torch.Tensor, collective: CollectiveLike, *, key: Key = None) -> torch.Tensor:
    """What each of N ranks has after a reduce-scatter: its part of the sum of all tensors, or of their mean.

    Args:
        stack: tensor of shape (N, n, ...), whose n is a multiple of N; dtypes as for `reduce`.
        collective, key: as for `reduce`.

    Returns:
        A tensor of shape (N, n / N, ...) and stack's dtype, with the part of each rank.

    Raises:
        ValueError: if N does not divide n, the collective has no reduce-scatter, or stack requires gradients.

    Example:
        >>> reduce_scatter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "nccl.pat")
        tensor([[4.],
                [6.]])
    """
    return _call(SCATTER, stack, collective, key)


def all_gather(stack: torch.Tensor, collective: CollectiveLike, *, key: Key = None) -> torch.Tensor:
    """What every rank has after an all-gather: the tensors of all ranks, rounded to the wire.

    Args:
        stack, collective, key: as for `reduce`.

    Returns:
        A tensor of stack's shape and dtype.

    Raises:
        ValueError: if stack requires gradients.

    Example:
        >>> all_gather(torch.tensor([[0.3], [1.0]]), "collective(wire=e4m3fn)")
        tensor([[0.3125],
                [1.0000]])
    """
    return _call(GATHER, stack, collective, key)


def _call(call: str, stack: torch.Tensor, collective: Any, key: Key) -> torch.Tensor:
    if isinstance(stack, torch.Tensor):  # before its shape is read, which nested tensors have not
        check_dense("stack", stack)
    dtype = check_stack(stack, torch.Tensor, "a torch.Tensor", call == SCATTER)
    check_not_sharded(stack, "stack")
    if stack.requires_grad and torch.is_grad_enabled():
        raise ValueError("stack requires gradients, which sums over ranks do not have; allowed is stack.detach()")
    text, stochastic = _described(literal(_text_of(collective)), dtype, call)
    plain = is_plain_tensor(stack)
    words = given_or_drawn(key, stochastic, plain)
    arguments = stack, words, text, call
    return run_collective(*arguments) if plain else torch.ops.qtorch.collective(*arguments)


def _text_of(collective: Any) -> Any:
    """The text of a `Collective`, which a traced program holds; what else a user gave as it is."""
    return collective.text if isinstance(collective, Collective) else collective


@constant_result
def _described(collective: Any, dtype: str, call: str) -> tuple[str, bool]:
    """The text of a call's law, and if it is stochastic."""
    law = check_collective(collective, dtype, call)
    return law.text, law.stochastic


def run_collective(stack: torch.Tensor, key: torch.Tensor | None, text: str, call: str) -> torch.Tensor:
    """`qtorch::collective`, which compiled programs hold."""
    law = parse_argument(text, "collective")
    key = None if key is None else key.to(stack.device)
    dtype = str(stack.dtype).removeprefix("torch.")
    result = _empty(stack, law, call)
    if result.numel() == 0:
        return result
    x = stack.detach().reshape(stack.shape[0], prod(stack.shape[1:])).to(torch.float32)
    names = partial(names_of, key)
    found = run(names, x, law, check_number(dtype), call, tuple(stack.shape[1:])).to(torch.float32).to(stack.dtype)
    return found.masked_fill_(found.isnan(), torch.nan).reshape(result.shape)


def collective_shape(stack: torch.Tensor, key: torch.Tensor | None, text: str, call: str) -> torch.Tensor:
    """A tensor of the result's shape."""
    return _empty(stack, parse_argument(text, "collective"), call)


def batch_collective(
    info: Any, in_dims: tuple[Any, ...], stack: torch.Tensor, key: torch.Tensor | None, text: str, call: str
) -> tuple[torch.Tensor, int]:
    """The rule for vmap: each stack is a call of its own, as with one key for all."""
    pairs = zip((stack, key), in_dims[:2], strict=True)
    stacks, keys = ([x] * info.batch_size if x is None or n is None else x.unbind(n) for x, n in pairs)
    return torch.stack([torch.ops.qtorch.collective(*one, text, call) for one in zip(stacks, keys, strict=True)]), 0


def _empty(stack: torch.Tensor, law: Collective, call: str) -> torch.Tensor:
    """A tensor of the result's shape; numbers of ranks may be symbols of a traced program."""
    check_ranks(law, stack.shape[0])
    shapes = {REDUCE: lambda shape: shape[1:], SCATTER: scattered, GATHER: lambda shape: shape}
    return stack.new_empty(shapes[call](stack.shape))


def names_of(key: torch.Tensor | None, flush: bool, role: int) -> Terms:
    """The namespace for a role of a key."""
    return Terms(key if role == SUM or key is None else fold_in(key, role, False), flush)
