"""Linear layers over several axes, as one `nnx.Linear` between two reshapes: `nnx.LinearGeneral` and `nnx.Einsum`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.arguments import quoted
from qjax._models import unnamed


class Axes(NamedTuple):
    """Where the numbers of a product's matrices lie in a layer's arrays; negative axes count from the end.

    Attributes:
        inputs: the axes of the input over which the layer sums; in their order in the input, as flax has them.
        kernel: the order of the kernel's axes as a matrix: those over which it sums, then the features.
        outputs: the axes of the result with the features.
    """

    inputs: tuple[int, ...]
    kernel: tuple[int, ...]
    outputs: tuple[int, ...]


class Flattened(nnx.Module):
    """A layer on arrays whose axes of features become one, as those of an attention's heads do.

    Moves and reshapes are exact, so the numbers are those of the inner layer, in floats and in integers.

    Args:
        module: the layer, an `nnx.Linear` or what takes its place.
        axes: as of an `nnx.LinearGeneral` or `nnx.Einsum`.
        features: the lengths of the axes of features in the result.

    Attributes:
        layer_name: the layer's name in a model, for its errors.

    Example:
        >>> layer = Flattened(
        ...     nnx.Linear(6, 4, rngs=nnx.Rngs(0)), Axes((-2, -1), (0, 1, 2, 3), (-2, -1)), (2, 2)
        ... )
        >>> layer(jnp.ones((5, 2, 3))).shape
        (5, 2, 2)
    """

    layer_name = ""

    def __init__(self, module: nnx.Module, axes: Axes, features: tuple[int, ...]) -> None:
        self.module, self.axes, self.features = module, axes, features

    def __call__(self, inputs: Any, **settings: Any) -> Any:
        """The result for an array, or a QTensor where the inner layer takes one.

        Raises:
            TypeError: if an argument besides the input is not None.
        """
        if more := [name for name, value in settings.items() if value is not None]:
            raise TypeError(
                f"{self.layer_name or 'LinearGeneral'} has {more[0]}={quoted(settings[more[0]])}; allowed in a "
                "quantized layer is None"
            )
        module: Any = self.module
        axes, outputs = sorted(axis % inputs.ndim for axis in self.axes.inputs), self.axes.outputs
        x = _moved(inputs, axes, range(-len(axes), 0))
        rest = x.shape[: x.ndim - len(axes)]
        y = module(x if len(axes) == 1 else x.reshape(*rest, prod(x.shape[len(rest) :])))
        y = y if len(self.features) == 1 else y.reshape(*rest, *self.features)
        return _moved(y, range(-len(outputs), 0), outputs)


unnamed(Flattened, "module")


def _moved(x: Any, source: Any, target: Any) -> Any:
    """`jnp.moveaxis` of an array or a QTensor; the same object if nothing moves."""
    from_, to = ([axis % x.ndim for axis in axes] for axes in (source, target))
    rest = iter([axis for axis in range(x.ndim) if axis not in from_])
    order = [from_[to.index(axis)] if axis in to else next(rest) for axis in range(x.ndim)]
    return x if order == list(range(x.ndim)) else x.transpose(*order)


def axes_of(layer: nnx.LinearGeneral | nnx.Einsum) -> Axes:
    """Where the numbers of a layer's product lie.

    Raises:
        ValueError: if the layer is no product of one matrix; the message is the reason.
    """
    if getattr(layer, "dot_general", None) not in (None, jax.lax.dot_general) or getattr(layer, "dot_general_cls", 0):
        raise ValueError("it has a dot_general of its own")
    if isinstance(layer, nnx.Einsum):
        return _axes_of_einsum(layer)
    if layer.batch_axis:
        raise ValueError(f"it has batch_axis={dict(layer.batch_axis)}, so that its kernel is {_STACK}")
    count, features = len(layer.in_features), len(layer.out_features)
    return Axes(layer.axis, tuple(range(count + features)), tuple(range(-features, 0)))


_STACK = (
    "a stack of matrices: allowed are layers one by one, or prepare_fn of qjax.quantization, which quantizes stacks"
)


def _axes_of_einsum(layer: nnx.Einsum) -> Axes:
    if layer.einsum_op is not jnp.einsum:
        raise ValueError("it has an einsum_op of its own")
    operands, result = layer.einsum_str.replace("...", ".").split("->")
    first, kernel = operands.split(",")
    if any(len(set(part)) < len(part) for part in (first, kernel, result)) or "." in kernel:
        raise ValueError(f"its einsum_str is {layer.einsum_str}; allowed are letters once in an array")
    summed = [letter for letter in first if letter in kernel and letter not in result]
    features = [letter for letter in result if letter in kernel and letter not in first]
    if stack := [letter for letter in kernel if letter in first and letter in result]:
        raise ValueError(f"its einsum_str is {layer.einsum_str}, in which its kernel is along {stack[0]} {_STACK}")
    rest = [letter for letter in first if letter not in summed]
    if len(summed) + len(features) < len(kernel) or rest != [one for one in result if one not in features]:
        raise ValueError(f"its einsum_str is {layer.einsum_str}; allowed are sums over axes of input and kernel")
    order = tuple(kernel.index(letter) for letter in (*summed, *features))
    return Axes(tuple(_places(first, summed)), order, tuple(_places(result, features)))


def _places(spec: str, letters: list[str]) -> Iterator[int]:
    """The axes of letters; behind an ellipsis they count from the end."""
    for letter in letters:
        place = spec.index(letter)
        yield place - len(spec) if "." in spec[:place] else place


def flattened(layer: Any) -> tuple[Flattened, nnx.Linear]:
    """A `LinearGeneral` or an `Einsum` as a `Flattened` one, with the `nnx.Linear` in it."""
    axes, kernel = axes_of(layer), layer.kernel[...]
    lengths = [kernel.shape[axis] for axis in axes.kernel]
    features = tuple(lengths[len(axes.inputs) :])
    matrix = kernel.transpose(axes.kernel).reshape(-1, prod(features))
    same = "dtype", "param_dtype", "precision", "promote_dtype", "preferred_element_type"
    options: dict[str, Any] = {name: getattr(layer, name) for name in same}
    options |= {"use_bias": layer.bias is not None, "kernel_init": nnx.initializers.zeros, "rngs": nnx.Rngs(0)}
    linear = nnx.Linear(*matrix.shape, **options)
    linear.kernel = nnx.Param(matrix)
    if layer.bias is not None:
        linear.bias = nnx.Param(layer.bias[...].reshape(-1))
    return Flattened(linear, axes, features), linear


def take_matrix(layer: Any, linear: nnx.Linear) -> None:
    """Gives a layer the numbers of the linear layer that `flattened` made of it."""
    order, kernel = axes_of(layer).kernel, layer.kernel[...]
    matrices = linear.kernel[...].reshape([kernel.shape[axis] for axis in order])
    layer.kernel.set_value(matrices.transpose([order.index(axis) for axis in range(kernel.ndim)]))
    if layer.bias is not None and linear.bias is not None:
        layer.bias.set_value(linear.bias[...].reshape(layer.bias.shape))
