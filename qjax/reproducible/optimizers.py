"""SGD, Adam and AdamW as pure functions of trees, with the steps of `qcore.reproducible`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import MOST_QUOTED, check_float, check_type
from qcore.reproducible.optimizers import adam_options, sgd_options
from qjax._rounding.inputs import PyTree
from qjax.reproducible.functions import FUNCTIONS


class Optimizer(NamedTuple):
    """An optimizer, whose step makes new parameters itself: an addition outside of the law would not be settled.

    Attributes:
        init: parameters -> state.
        step: (parameters, gradients, state, rate=None) -> (parameters, state); a rate, such as a schedule's, replaces
            the optimizer's rate.

    Example:
        >>> optimizer = sgd(0.25)
        >>> p = {"weight": jnp.ones(1)}
        >>> p, state = optimizer.step(p, {"weight": jnp.ones(1)}, optimizer.init(p))
        >>> p["weight"]
        Array([0.75], dtype=float32)
    """

    init: Callable[[PyTree], PyTree]
    step: Callable[..., tuple[PyTree, PyTree]]


def sgd(rate: float = 1e-3, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> Optimizer:
    """Gradient descent by `qjax.reproducible.sgd_step`, for trees of float32 arrays.

    Args:
        rate: the learning rate, at least 0; a number or an array without dimensions.
        momentum: the velocity's factor, at least 0.
        nesterov: True for Nesterov's momentum.
        weight_decay: times the parameter is added to its gradient, at least 0.

    Returns:
        An `Optimizer`, whose state is a tree of velocities, float32 arrays of the parameters' shapes; None without
        momentum.

    Raises:
        TypeError, ValueError: if an argument is out of range; at a step, if parameters are not float32, or trees or
            shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> optimizer = sgd(0.25)
        >>> p = jnp.ones(1)
        >>> optimizer.step(p, jnp.ones(1), optimizer.init(p))[0]
        Array([0.75], dtype=float32)
    """
    options = sgd_options(momentum, nesterov, weight_decay)
    default = _checked(rate)

    def init(params: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, params) if momentum else None

    def step(params: Any, gradients: Any, state: Any, rate: Any = None) -> tuple[Any, Any]:
        rate = jnp.asarray(default if rate is None else _checked(rate), jnp.float32)
        leaves, tree = jax.tree.flatten(params)
        velocities = _leaves(tree, "state", state) if momentum else [None] * len(leaves)
        each = zip(leaves, _leaves(tree, "gradients", gradients), velocities, strict=True)
        found = [FUNCTIONS.sgd_step(*one, rate, **options) for one in each]
        new = [velocity for _, velocity in found]
        return tree.unflatten([p for p, _ in found]), tree.unflatten(new) if momentum else None

    return Optimizer(init, step)


def _leaves(tree: Any, name: str, given: Any) -> list[Any]:
    """The leaves of an argument that is a tree like the parameters."""
    try:
        return tree.flatten_up_to(given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is another tree than params: {str(error)[:MOST_QUOTED]}") from None


def _checked(rate: Any) -> Any:
    """A rate, checked if it is a number; the step checks the shape of an array."""
    return rate if isinstance(rate, jax.Array | np.ndarray) else check_float("rate", rate)


class AdamState(NamedTuple):
    """The number of steps so far, and trees of moments."""

    step: jax.Array
    first: Any
    second: Any


def adam(
    rate: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
) -> Optimizer:
    """Adam by `qjax.reproducible.adam_step`, for trees of float32 arrays.

    Args:
        rate: the learning rate, at least 0; a number or an array without dimensions.
        betas: the moments' factors, at least 0 and below 1.
        eps: added to the root of the second moment, at least 0.
        weight_decay: times the parameter is added to its gradient, at least 0.

    Returns:
        An `Optimizer`, whose state is an `AdamState`: the number of steps so far, and trees of both moments, float32
        arrays of the parameters' shapes.

    Raises:
        TypeError, ValueError: if an argument is out of range; at a step, if parameters are not float32, or trees or
            shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> optimizer = adam(0.5)
        >>> p = jnp.ones(1)
        >>> optimizer.step(p, jnp.ones(1), optimizer.init(p))[0]
        Array([0.5], dtype=float32)
    """
    return _optimizer(rate, **adam_options(betas, eps, weight_decay))


def adamw(
    rate: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01
) -> Optimizer:
    """Adam whose weight decay is decoupled: parameters are multiplied with 1 - rate * weight_decay.

    Args:
        rate, betas, eps: as for `adam`.
        weight_decay: the factor of the weights' decay, at least 0.

    Returns:
        An `Optimizer`, with a state as `adam`'s.

    Raises:
        TypeError, ValueError: as for `adam`.

    Example:
        >>> optimizer = adamw(0.25, weight_decay=1.0)
        >>> p = jnp.ones(1)
        >>> optimizer.step(p, jnp.ones(1), optimizer.init(p))[0]  # 1 * (1 - 0.25), then a step of 0.25
        Array([0.5], dtype=float32)
    """
    return _optimizer(rate, **adam_options(betas, eps, weight_decay), decoupled=True)


def _optimizer(rate: float, **options: Any) -> Optimizer:
    def init(params: Any) -> AdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdamState(jnp.zeros((), jnp.float32), zeros, zeros)

    default = _checked(rate)

    def step(params: Any, gradients: Any, state: AdamState, rate: Any = None) -> tuple[Any, AdamState]:
        check_type("state", state, AdamState, "an AdamState, which init makes")
        count = FUNCTIONS.count("state.step", state.step, 0) + 1
        rate = jnp.asarray(default if rate is None else _checked(rate), jnp.float32)
        leaves, tree = jax.tree.flatten(params)
        given = {"gradients": gradients, "state.first": state.first, "state.second": state.second}
        others = [_leaves(tree, name, one) for name, one in given.items()]
        found = [
            FUNCTIONS.adam_step(x, g, m, v, count, rate, **options) for x, g, m, v in zip(leaves, *others, strict=True)
        ]
        params, first, second = (tree.unflatten(part) for part in zip(*found, strict=True))
        return params, AdamState(count, first, second)

    return Optimizer(init, step)
