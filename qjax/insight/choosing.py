"""The search for the formats of a function's layers, by its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore import Number
from qcore.insight import choosing
from qcore.insight.choosing import Batch, Choice, Evaluate, Formats, Sensitivity, check_batches, mean_over, recipe_of
from qcore.lazy import public_names
from qcore.reproducible.norms import IGNORED
from qjax._rounding.inputs import ArrayLike, as_numbers
from qjax.recipes import lower_part, product_sites

__all__ = ["choose_formats", "cross_entropy", "sensitivity"]
__dir__ = public_names(__name__)

Model = Callable[..., jax.Array]
Loss = Callable[..., jax.Array]


def cross_entropy(logits: ArrayLike, targets: ArrayLike) -> jax.Array:
    """The mean cross entropy of logits, with classes along the last axis, and of target classes.

    Args:
        logits: array of shape (..., classes), of any float dtype.
        targets: int array of the shape without the last axis, of classes from 0 to classes - 1; examples with -100 are
            left out.

    Returns:
        An array of shape () and the logits' dtype, in nats; NaN if all are left out, or a target is not a class.

    Raises:
        TypeError: if logits is not an array of numbers, or targets are not ints.
        ValueError: if logits has shape (), the shape of targets does not fit, or an int is too large for an array.

    Example:
        >>> round(float(jnp.exp(cross_entropy(jnp.zeros((2, 3, 4)), jnp.ones((2, 3), int)))), 5)
        4.0
    """
    logarithms, targets = jax.nn.log_softmax(as_numbers(logits, "logits")), as_numbers(targets, "targets")
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise TypeError(f"targets has dtype {targets.dtype}; allowed are ints, the classes")
    known = (targets >= 0) & (targets < logarithms.shape[-1])
    chosen = jnp.take_along_axis(logarithms, jnp.where(known, targets, 0)[..., None], -1)[..., 0]
    return -jnp.where(known, chosen, jnp.nan).mean(where=targets != IGNORED)


def sensitivity(
    model: Model, data: Iterable[Batch], candidates: Iterable[Number | str], loss: Loss = cross_entropy
) -> tuple[Sensitivity, ...]:
    """Rounds the input and the weight of each layer alone to each format, to nearest, and measures the model.

    The layers are the same as for recipes, see `qjax.recipes.lower`, by their dotted name scopes; layers with the same
    name are one site. Put `jax.named_scope` around layers without a name. The model runs operation by operation, not
    under jit, because each choice of formats is another program.

    Args:
        model: a function of inputs, or a module, such as one of flax.nnx in evaluation mode.
        data: batches, pairs of the model's input and of targets.
        candidates: formats or their texts.
        loss: the mean loss of the model's outputs and targets.

    Returns:
        A row for each site and format.

    Raises:
        ValueError: if the model has no such layers or is lowered, data is empty, or a candidate is unknown, has no
            codes or is given twice.

    Example:
        >>> w = jnp.float32([[0.3, -1.1, 0.7], [2.3, 0.9, -0.2]])
        >>> def model(x):
        ...     with jax.named_scope("first"):
        ...         return x @ w
        >>> data = [(jnp.float32([[0.3, 0.4], [1.7, -0.6]]), jnp.array([0, 2]))]
        >>> [
        ...     (row.site, row.format, round(row.sqnr))
        ...     for row in sensitivity(model, data, ["e4m3fn", "e2m1fn"])
        ... ]
        [('first', 'e4m3fn', 29), ('first', 'e2m1fn', 10)]
    """
    batches = check_batches(data)
    return choosing.sensitivity(product_sites(model, batches[0][0]), candidates, _evaluate(model, batches, loss))


def choose_formats(
    model: Model,
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
        >>> from qjax.recipes import lower
        >>> w = jnp.float32([[0.3, -1.1, 0.7], [2.3, 0.9, -0.2]])
        >>> data = [(jnp.float32([[0.3, 0.4], [1.7, -0.6]]), jnp.array([0, 2]))]
        >>> choice = choose_formats(lambda x: x @ w, data, 4, ["e4m3fn", "e2m1fn"])
        >>> choice.chosen.formats
        {'': 'e2m1fn'}
        >>> lowered = lower(lambda x: x @ w, choice.recipe)
    """
    batches = check_batches(data)
    sites = product_sites(model, batches[0][0])
    return choosing.choose_formats(sites, candidates, _evaluate(model, batches, loss), budget_bits)


def _evaluate(model: Model, batches: list[tuple[Any, Any]], loss: Loss) -> Evaluate:
    def evaluate(formats: Formats) -> tuple[float, Any]:
        lowered = lower_part(model, recipe_of(formats)) if formats else model

        def step(inputs: Any, targets: Any) -> tuple[float, Any]:
            outputs = lowered(inputs)
            return float(loss(outputs, targets)), np.asarray(outputs)

        return mean_over(batches, step)

    return evaluate
