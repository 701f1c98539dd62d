"""What a model must be before it is trained with rounding, or converted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from flax import nnx

from qcore.notices import warn
from qjax._models.tree import all_names, children_of, modules_of, shown
from qjax.nnx.intrinsic import Fused
from qjax.nnx.workflow.observing import FloatFunctional, Observed


def check_training(model: nnx.Module) -> None:
    """Raises if all layers that know whether they are in evaluation are, as after `model.eval()`."""
    modes = {
        name: mode
        for name, module in all_names(model)
        for flag in ("use_running_average", "deterministic")
        if isinstance(mode := getattr(module, flag, None), bool)
    }
    if modes and all(modes.values()):
        raise ValueError(
            f"model is in evaluation, as {shown(next(iter(modes)))} is; allowed is one in training: call "
            "model.train(), and freeze_bn_stats afterwards where statistics should stay"
        )


def warn_of_unfused(model: nnx.Module) -> None:
    """Warns of a convolution right before a batch norm: it would be trained with other weights than inference has."""
    names = {id(module): name for name, module in all_names(model)}
    for parent in modules_of(model).values():
        children: Any = [] if isinstance(parent, Fused) else children_of(parent)
        for (_, first), (_, second) in pairwise(children):
            adjacent = isinstance(first, nnx.Conv) and isinstance(second, nnx.BatchNorm)
            if adjacent and first.out_features == second.num_features:
                pair = [names[id(first)], names[id(second)]]
                warn(
                    f"{shown(pair[0])} is a convolution before the batch norm '{pair[1]}', and not fused with it: "
                    f"training sees other weights than the converted model has; call fuse_modules(model, [{pair}])"
                )


def warn_of_repeats(model: nnx.Module) -> None:
    """Warns of layers that ran more than once each time that the model ran, with one observer for all calls.

    A model runs as often as the layer that is its first does, or its last, whichever ran less.
    """
    observers = {
        name: module.activation_post_process
        for name, module in all_names(model)
        if isinstance(module, (Observed, FloatFunctional))
    }
    found = {name: one.ran for name, one in observers.items() if one is not None and one.ran.calls}
    ends = sorted(found.values(), key=lambda ran: ran.first)[:1] + sorted(found.values(), key=lambda ran: ran.last)[-1:]
    times = min((ran.calls for ran in ends), default=0)
    for name, ran in found.items():
        if ran.calls > times:
            warn(
                f"{shown(name)} ran {ran.calls} times while the model ran {times} times (or was traced, where it is "
                "compiled): all calls share one observer, and will share one scale; use a module for each call"
            )
