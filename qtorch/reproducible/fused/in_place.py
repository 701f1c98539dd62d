"""A law of many groups of tensors, whose results take the place of some of these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.autograd.graph import increment_version

from qcore.reproducible.differentiable import Differentiable, without_gradients
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch.reproducible.fused.plan import plan_for


def replace(
    law: Differentiable,
    groups: Sequence[Sequence[torch.Tensor]],
    common: Sequence[torch.Tensor | None],
    places: Sequence[int],
    options: dict[str, Any],
) -> bool:
    """Puts law(*group, *common, **options) in the place of some of each group's tensors; False if that cannot be.

    Args:
        law: without gradients; its results are as many as `places`, or None.
        groups: of tensors.
        common: what all have in common.
        places: in a group, of the tensors that the results replace.
        options: the law's.
    """
    old = [group[place] for group in groups for place in places]
    if torch.compiler.is_dynamo_compiling() or not all(x.dtype is torch.float32 and x.is_contiguous() for x in old):
        return False
    tensors = [x for group in groups for x in group]
    if not all(x.dtype is torch.float32 for x in tensors):
        return False
    tensors = [*tensors, *common]
    many = _of_groups(law, len(groups), len(groups[0]))
    plan = plan_for(many, "each", tensors, tuple(options.items())) if are_plain_tensors(tensors) else None
    if plan is None or not _may_replace(plan, len(groups), len(groups[0]), tuple(places)):
        return False
    increment_version(old)
    plan.run_in_place([None if x is None else x.contiguous() for x in tensors], old)
    return True


@cache
def _of_groups(law: Differentiable, count: int, size: int) -> Differentiable:
    """The law of so many groups of a size, followed by what they have in common."""

    def function(xp: Any, *arrays: Any, **options: Any) -> tuple[Any, ...]:
        groups = [arrays[begin : begin + size] for begin in range(0, count * size, size)]
        return tuple(law.forward(xp, *group, *arrays[count * size :], **options)[0] for group in groups)

    return without_gradients(function)


@cache
def _may_replace(plan: Any, count: int, size: int, places: tuple[int, ...]) -> bool:
    return plan.may_replace([index * size + place for index in range(count) for place in places])
