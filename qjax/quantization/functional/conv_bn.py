"""Convolutions with batch norms: folding them into one layer, and training with the folded, rounded weight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import check_flag, check_float, check_size, check_sizes, check_type
from qjax._namespace import Names
from qjax._rounding.inputs import as_array
from qjax.quantization.fake_state import FakeQuantize, FakeQuantizeState, disable_observer
from qjax.quantization.rounding import FormatRounding, NoState


class ConvBnParams(NamedTuple):
    """The trained parameters of a convolution and its batch norm.

    Attributes:
        weight: of shape (outputs, inputs / groups, *kernel).
        bias: of shape (outputs,), or None.
        gamma, beta: the batch norm's weight and bias, of shape (outputs,).

    Example:
        >>> ConvBnParams(jnp.ones((1, 1, 3)), None, jnp.ones(1), jnp.zeros(1)).weight.shape
        (1, 1, 3)
    """

    weight: jax.Array
    bias: jax.Array | None
    gamma: jax.Array
    beta: jax.Array


class ConvBnState(NamedTuple):
    """The observed state of a convolution and its batch norm.

    Attributes:
        mean, var: running statistics of the convolution's outputs, of shape (outputs,).
        weight_fake_quant: the state of what rounds the weight, say `FakeQuantize().init(weight.shape)`; or None.

    Example:
        >>> ConvBnState(jnp.zeros(1), jnp.ones(1)).weight_fake_quant
    """

    mean: jax.Array
    var: jax.Array
    weight_fake_quant: FakeQuantizeState | NoState | None = None


def fold_conv_bn(
    params: ConvBnParams, mean: jax.Array, var: jax.Array, eps: float = 1e-5, linear: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The weight and the bias of a convolution that computes what it and its batch norm compute in evaluation.

    With r = 1 / sqrt(var + eps) they are weight * (gamma * r) and (bias - mean) * r * gamma + beta, or (bias - mean) *
    (gamma * r) + beta for a linear layer, in float32 and in this order, as torch's `fuse_modules` computes them.

    Args:
        params: of the layer and its batch norm.
        mean, var: running statistics, of shape (outputs,).
        eps: of the batch norm, at least 0.
        linear: True for a linear layer, whose weight has the shape (outputs, inputs).

    Returns:
        The weight, float32 of its own shape, and the bias, float32 of shape (outputs,).

    Raises:
        ValueError: if shapes do not fit, or eps is below 0.

    Example:
        >>> params = ConvBnParams(jnp.ones((1, 1, 1)), None, jnp.float32([2]), jnp.float32([1]))
        >>> fold_conv_bn(params, jnp.float32([3]), jnp.float32([4]), eps=0.0)
        (Array([[[1.]]], dtype=float32), Array([-2.], dtype=float32))
    """
    check_flag("linear", linear)
    return _folded(params, mean, var, _check_channels(params, mean, var, eps), linear)


@partial(jax.jit, static_argnums=4)
def _folded(params: ConvBnParams, mean: Any, var: Any, eps: Any, linear: bool) -> tuple[jax.Array, jax.Array]:
    """`fold_conv_bn` of checked arguments."""
    weight, gamma, beta = (jnp.asarray(x, jnp.float32) for x in (params.weight, params.gamma, params.beta))
    ones = jnp.where(var == var, jnp.float32(1), var)  # XLA takes a constant over a root for an inexact rsqrt
    inverse = Names.divide(ones, jnp.sqrt(var + jnp.float32(eps)))
    factor = Names.rounded(gamma * inverse)
    centered = -mean if params.bias is None else jnp.asarray(params.bias, jnp.float32) - mean
    shift = centered * factor if linear else Names.rounded(centered * inverse) * gamma
    return weight * _along(factor, 0, weight.ndim), Names.rounded(shift) + beta


def folded_in_training(params: ConvBnParams, mean: jax.Array, var: jax.Array, eps: float) -> tuple[jax.Array, Any]:
    """`fold_conv_bn` by the operations of training, whose weight is the one that is rounded."""
    deviation = jnp.sqrt(_variance(var) + eps)
    mean = mean if params.bias is None else mean - params.bias
    weight = params.weight * _along(params.gamma / deviation, 0, params.weight.ndim)
    shift = params.beta - params.gamma * mean / deviation
    return weight.astype(params.weight.dtype), shift.astype(params.beta.dtype)


def normalized(
    convolve: Callable[[jax.Array], jax.Array],
    params: ConvBnParams,
    observe: Callable[[jax.Array], jax.Array],
    rounded: Callable[[jax.Array], jax.Array],
    eps: float,
    axis: int,
) -> jax.Array:
    """The result of `conv_bn` in training.

    Args:
        convolve: the convolution with a weight, without a bias.
        params: the arrays that are trained.
        observe: takes the outputs that the batch norm sees, and returns the running variance after them.
        rounded: rounds a weight.
        eps: of the batch norm.
        axis: along which the results' channels lie.
    """
    plain = convolve(params.weight)
    dimensions = plain.ndim
    seen = plain if params.bias is None else plain + _along(params.bias, axis, dimensions)
    running = jnp.sqrt(_variance(observe(jax.lax.stop_gradient(seen))) + eps)
    others = tuple(place for place in range(dimensions) if place != axis % dimensions)
    wide = _wide(plain)
    mean = wide.mean(others)
    deviation = jnp.sqrt(jnp.square(wide - _along(mean, axis, dimensions)).mean(others) + eps)
    weight = params.weight * _along(params.gamma / running, 0, params.weight.ndim)
    result = convolve(rounded(weight.astype(params.weight.dtype))) * _along(running / deviation, axis, dimensions)
    return result + _along(params.beta - params.gamma * mean / deviation, axis, dimensions)


def conv_bn(
    x: jax.Array,
    params: ConvBnParams,
    state: ConvBnState,
    fake_quant: FakeQuantize | FormatRounding | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    eps: float = 1e-5,
    momentum: float = 0.1,
    training: bool = True,
    freeze_bn: bool = False,
    channels_last: bool = False,
) -> tuple[jax.Array, ConvBnState]:
    """A convolution and a batch norm of floats, whose joint weight is rounded: quantization-aware training.

    In training, with y = conv(x, w), the statistics are those of y + bias, and the result is conv(x, fq(w * gamma / s))
    * s / s' + beta - gamma * mean(y) / s', with the running deviation s after this batch and the batch's s', each
    sqrt(variance + eps): the form of pytorch's pull request 85744, which is stable where gamma is 0. Else it is conv(x,
    fq(w * gamma / s)) + beta + (bias - mean) * gamma / s with running statistics. Gradients reach the weight through
    both convolutions, and pass the rounding straight through.

    Args:
        x: floats of shape (batch, channels, *sizes), with as many sizes as the weight's kernel.
        params: the arrays that are trained, such as the first argument of `jax.grad`.
        state: the observers' states.
        fake_quant: what rounds the weight, with its state in `state`; None rounds nothing.
        stride, padding, dilation: for all dimensions, or for each.
        groups: into how many parts channels and outputs are split.
        eps, momentum: of the batch norm, at least 0, and from 0 to 1. Running variances are unbiased, as torch's.
        training: False leaves the state as it is.
        freeze_bn: True uses running statistics in training, and leaves them; the weight's range goes on.
        channels_last: True for images of shape (batch, *sizes, channels), of input and output; the weight stays.

    Returns:
        The result in x's dtype, and the next state.

    Raises:
        ValueError: if shapes or settings do not fit.

    Example:
        >>> params = ConvBnParams(jnp.ones((1, 1, 2)), None, jnp.ones(1), jnp.zeros(1))
        >>> state = ConvBnState(jnp.zeros(1), jnp.ones(1))
        >>> y, state = conv_bn(jnp.float32([[[1, 3, 5, 7]]]), params, state)
        >>> y.ravel().round(2), state.mean
        (Array([-1.22,  0.  ,  1.22], dtype=float32), Array([0.8], dtype=float32))
    """
    _check(fake_quant, momentum, training=training, freeze_bn=freeze_bn, channels_last=channels_last)
    x, axis, after = as_array(x), -1 if channels_last else 1, [state]
    check_type("state", state, ConvBnState, "a ConvBnState")
    eps = _check_channels(params, state.mean, state.var, eps)
    convolve = _convolution(x, params, (stride, padding, dilation, groups), channels_last)

    def observe(y: jax.Array) -> jax.Array:
        mean, var = statistics(y, axis)
        old = after[0]
        moved = old._replace(mean=_moved(old.mean, mean, momentum), var=_moved(old.var, var, momentum))
        after[0] = moved
        return moved.var

    def rounded(weight: jax.Array) -> jax.Array:
        if fake_quant is None:
            return weight
        own: Any = after[0].weight_fake_quant
        y, own = fake_quant.apply(own if training else disable_observer(own), weight)
        after[0] = after[0]._replace(weight_fake_quant=own if training else after[0].weight_fake_quant)
        return y

    if training and not freeze_bn:
        result = normalized(convolve, params, observe, rounded, eps, axis)
    else:
        weight, shift = folded_in_training(params, state.mean, state.var, eps)
        result = convolve(rounded(weight)) + _along(shift, axis, x.ndim)
    return result.astype(x.dtype), after[0]


def _check(fake_quant: Any, momentum: Any, **flags: Any) -> None:
    for name, flag in flags.items():
        check_flag(name, flag)
    if not isinstance(fake_quant, FakeQuantize | FormatRounding | None):
        kind = type(fake_quant).__name__
        raise TypeError(f"fake_quant is a {kind}; allowed are a FakeQuantize, a format as a QConfig has it, and None")
    if isinstance(momentum, jax.Array):
        _check_traced("momentum", momentum)
    else:
        check_float("momentum", momentum, "a number from 0 to 1", lambda number: 0 <= number <= 1)


def _check_channels(params: Any, mean: Any, var: Any, eps: Any) -> Any:
    """Raises unless there is a number for each output. Returns eps, a float or an array that may be traced."""
    check_type("params", params, ConvBnParams, "a ConvBnParams")
    shape = np.shape(params.weight)[:1]
    for name, x in zip(("bias", "gamma", "beta", "mean", "var"), (*params[1:], mean, var), strict=True):
        if np.shape(x) != shape and (name != "bias" or x is not None):
            raise ValueError(f"{name} has shape {np.shape(x)}; allowed is {shape}")
    if isinstance(eps, jax.Array):
        _check_traced("eps", eps)
        return eps
    return check_float("eps", eps)


def _check_traced(name: str, number: jax.Array) -> None:
    """Raises unless a number that may be traced is one float."""
    if number.shape != () or not jnp.issubdtype(number.dtype, jnp.floating):
        raise TypeError(f"{name} is {number.dtype}{list(number.shape)}; allowed is a float, or an array of one")


def statistics(y: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """The mean and the unbiased variance of each channel."""
    others = tuple(place for place in range(y.ndim) if place != axis % y.ndim)
    count, y = y.size // y.shape[axis], _wide(y)
    return y.mean(others), y.var(others) * (count / max(1, count - 1))


def _wide(x: jax.Array) -> jax.Array:
    """Float32 at least, as torch's batch norms compute: squares of float16 overflow."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _variance(running: jax.Array) -> jax.Array:
    """A running variance, of which 16 bits may hold the infinity alone: their largest number divides as well."""
    if running.dtype.itemsize > 2:
        return running
    return jnp.where(running == jnp.inf, jnp.finfo(running.dtype).max, running).astype(jnp.float32)


def _moved(old: jax.Array, new: jax.Array, momentum: float) -> jax.Array:
    return ((1 - momentum) * old + momentum * new).astype(old.dtype)


def _convolution(x: jax.Array, params: ConvBnParams, settings: Any, last: bool) -> Callable[[jax.Array], jax.Array]:
    dimensions, groups = params.weight.ndim - 2, check_size("groups", settings[3])
    channels = params.weight.shape[1] * groups
    if dimensions not in (1, 2, 3):
        raise ValueError(f"weight has shape {params.weight.shape}; allowed are kernels of one to three dimensions")
    if x.ndim != dimensions + 2 or x.shape[-1 if last else 1] != channels:
        where = "last" if last else "second"
        raise ValueError(f"x has shape {x.shape}; allowed are {dimensions + 2} axes with {channels} channels {where}")
    names = zip(("stride", "padding", "dilation"), settings, (1, 0, 1), strict=False)
    stride, padding, dilation = (check_sizes(name, value, least, dimensions) for name, value, least in names)
    sizes = "DHW"[-dimensions:]
    layout = f"N{sizes}C" if last else f"NC{sizes}"

    def convolve(weight: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            weight.astype(x.dtype),
            stride,
            [(place, place) for place in padding],
            rhs_dilation=dilation,
            dimension_numbers=(layout, f"OI{sizes}", layout),
            feature_group_count=groups,
        )

    return convolve


def _along(x: jax.Array, axis: int, dimensions: int) -> jax.Array:
    shape = [1] * dimensions
    shape[axis] = -1
    return x.reshape(shape)
