"""The search for the formats of a model's layers, by the model's loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qcore import Number
from qcore.arguments import check_type
from qcore.insight import choosing
from qcore.insight.choosing import Batch, Choice, Evaluate, Formats, Sensitivity, check_batches, mean_over, recipe_of
from qcore.lazy import public_names
from qtorch._classes import check_model
from qtorch._rounding.dense import check_dense
from qtorch.recipes import lower_part
from qtorch.recipes.products import product_sites

__all__ = ["choose_formats", "cross_entropy", "sensitivity"]
__dir__ = public_names(__name__)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy of logits, with classes along the last axis, and of target classes.

    Args:
        logits: tensor of shape (..., classes), with at least two dimensions, of any float dtype.
        targets: int64 tensor of the shape without the last axis, of classes from 0 to classes - 1; examples with -100
            are left out.

    Returns:
        A tensor without dimensions of the logits' dtype, in nats.

    Raises:
        TypeError: if an argument is not a tensor, or has another dtype.
        ValueError: if logits has less than two dimensions, or targets has another shape.
        IndexError: if a target is not a class, on the CPU.

    Example:
        >>> cross_entropy(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.int64)).exp()
        tensor(4.)
    """
    check_type("logits", logits, torch.Tensor, "a torch.Tensor of floats")
    check_type("targets", targets, torch.Tensor, "a torch.Tensor of torch.int64")
    check_dense("logits", logits)
    check_dense("targets", targets)
    if not logits.is_floating_point():
        raise TypeError(f"logits has dtype {logits.dtype}; allowed are floats")
    if targets.dtype is not torch.int64:
        raise TypeError(f"targets has dtype {targets.dtype}; allowed is torch.int64, the classes")
    if logits.dim() < 2:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; allowed are two dimensions or more")
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"targets has shape {tuple(targets.shape)}; allowed is {tuple(logits.shape[:-1])}")
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def sensitivity(
    model: nn.Module, data: Iterable[Batch], candidates: Iterable[Number | str], loss: Loss = cross_entropy
) -> tuple[Sensitivity, ...]:
    """Rounds the input and the weight of each layer alone to each format, to nearest, and measures the model.

    The layers are all `nn.Linear` and `nn.Conv1d` to `Conv3d` (without subclasses), as for recipes, by their dotted
    names. The model does not change; copies of it are measured in evaluation mode, without gradients.

    Args:
        model: any module.
        data: batches, pairs of the model's input and of targets.
        candidates: formats or their texts.
        loss: the mean loss of the model's outputs and targets.

    Returns:
        A row for each layer and format.

    Raises:
        ValueError: if the model has no such layers or is lowered, data is empty, or a candidate is unknown, has no
            codes or is given twice.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> rows = sensitivity(model, [(torch.randn(16, 4), torch.randint(3, (16,)))], ["e4m3fn", "e2m1fn"])
        >>> [(row.site, row.format) for row in rows]
        [('0', 'e4m3fn'), ('0', 'e2m1fn'), ('2', 'e4m3fn'), ('2', 'e2m1fn')]
        >>> rows[0].sqnr > rows[1].sqnr + 6
        True
    """
    return choosing.sensitivity(_sites(model, loss), candidates, _evaluate(model, data, loss))


def choose_formats(
    model: nn.Module,
    data: Iterable[Batch],
    budget_bits: float,
    candidates: Iterable[Number | str],
    loss: Loss = cross_entropy,
) -> Choice:
    """The formats by layer with the least loss found within a budget of bits, by `qcore.insight.choose_formats`.

    That function describes the search, which is deterministic if the model is.

    Args:
        model, data, candidates, loss: as for `sensitivity`.
        budget_bits: the largest mean of bits over all weights of the layers.

    Returns:
        The front of bits against loss, and its point within the budget, with the `recipe` for `lower`.

    Raises:
        TypeError, ValueError: as for `sensitivity`, if the budget is below the narrowest candidate's bits, or if no
            formats within it have a finite loss.

    Example:
        >>> from qtorch.recipes import lower
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> data = [(torch.randn(16, 4), torch.randint(3, (16,)))]
        >>> choice = choose_formats(model, data, 6.5, ["e4m3fn", "e2m1fn"])
        >>> choice.chosen.bits <= 6.5
        True
        >>> lowered = lower(copy.deepcopy(model), choice.recipe)
    """
    return choosing.choose_formats(_sites(model, loss), candidates, _evaluate(model, data, loss), budget_bits)


def _sites(model: Any, loss: Any) -> dict[str, int]:
    check_model("model", model)
    check_type("loss", loss, Callable, "a function of outputs and targets")
    return product_sites(model)


def _evaluate(model: nn.Module, data: Iterable[Batch], loss: Loss) -> Evaluate:
    batches = check_batches(data)

    def evaluate(formats: Formats) -> tuple[float, Any]:
        copied = copy.deepcopy(model).eval()
        lowered = lower_part(copied, recipe_of(formats)) if formats else copied

        def step(inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, Any]:
            outputs = lowered(inputs)
            return loss(outputs, targets).item(), outputs.double().cpu().numpy()

        with torch.no_grad():
            return mean_over(batches, step)

    return evaluate
