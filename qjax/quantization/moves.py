"""Functions that only move numbers: of arrays, and of quantized arrays, whose parameters stay.

Each is a method of QTensor, too. `jax.numpy` has most of them; the others are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import jax
import jax.numpy as jnp
import numpy as np

from qcore.affine import functional
from qcore.affine.functional.operands import check_operand, integer_of
from qcore.affine.quantized import QuantizedArray
from qcore.arguments import check_choice, check_flag, check_float, check_int, check_size
from qjax._rounding.inputs import ArrayLike, as_numbers

if TYPE_CHECKING:  # the class has a table of these functions
    from qjax.quantization.tensor import QTensor

__all__ = [
    "channel_shuffle",
    "chunk",
    "flip",
    "pad",
    "pixel_shuffle",
    "repeat",
    "split",
    "tile",
    "unbind",
    "unflatten",
]

P = ParamSpec("P")
OfArray = TypeVar("OfArray", covariant=True)
OfQTensor = TypeVar("OfQTensor", covariant=True)


class Either(Protocol[P, OfArray, OfQTensor]):
    """A function of arrays that returns arrays, and of QTensors that returns QTensors."""

    __name__: str

    @overload
    def __call__(self, x: QTensor, *arguments: P.args, **settings: P.kwargs) -> OfQTensor: ...
    @overload
    def __call__(self, x: ArrayLike, *arguments: P.args, **settings: P.kwargs) -> OfArray: ...


@overload
def _moving(function: Callable[Concatenate[Any, P], jax.Array | QTensor]) -> Either[P, jax.Array, QTensor]: ...
@overload
def _moving(
    function: Callable[Concatenate[Any, P], Sequence[jax.Array] | tuple[QTensor, ...]],
) -> Either[P, Sequence[jax.Array], tuple[QTensor, ...]]: ...
def _moving(function: Callable[..., Any]) -> Any:
    """Extends a function of arrays to quantized arrays, whose integers it moves."""

    @wraps(function)
    def either(x: Any, *arguments: Any, **settings: Any) -> Any:
        if not isinstance(x, QuantizedArray):
            return function(x, *arguments, **settings)
        x._whole(function.__name__)
        return x._moved(function, *arguments, **settings)

    return either


@_moving
def split(
    x: ArrayLike | QTensor, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[jax.Array] | tuple[QTensor, ...]:
    """`jnp.split`: parts of equal size, or parts between given indices.

    Args:
        x: array or QTensor.
        indices_or_sections: the number of parts, or the indices where parts begin, except the first.
        axis: the axis to split.

    Returns:
        A list of arrays like x; for a QTensor a tuple.

    Raises:
        TypeError, ValueError: if there are no such parts, or a QTensor has a scale for each channel.

    Example:
        >>> split(jnp.int8([1, 2, 3, 4]), 2)[1]
        Array([3, 4], dtype=int8)
    """
    x, axis = _along(x, axis)
    if isinstance(indices_or_sections, Sequence | np.ndarray | jax.Array):
        ends = [check_int("indices_or_sections", one) for one in indices_or_sections]
        return jnp.split(x, ends, axis)
    return jnp.split(x, check_int("indices_or_sections", indices_or_sections, 1), axis)


def _along(x: Any, axis: int) -> tuple[jax.Array, int]:
    """An array that has parts along an axis, and the axis from 0 on."""
    x = as_numbers(x, "x")
    if x.ndim == 0:
        raise ValueError("x has no axes; allowed are arrays with some")
    return x, check_int("axis", axis, -x.ndim, x.ndim - 1) % x.ndim


@_moving
def chunk(x: ArrayLike | QTensor, chunks: int, axis: int = 0) -> list[jax.Array] | tuple[QTensor, ...]:
    """`torch.chunk`: a number of parts, of which the last may be smaller, or missing.

    Args:
        x: array or QTensor.
        chunks: the number of parts.
        axis: the axis to split.

    Returns:
        Arrays like x; for a QTensor in a tuple.

    Raises:
        TypeError, ValueError: if chunks is not an int above 0, x has no such axis, or a QTensor has a scale for each
            channel.

    Example:
        >>> [len(part) for part in chunk(jnp.arange(5), 3)]
        [2, 2, 1]
    """
    x, axis = _along(x, axis)
    size = x.shape[axis]
    step = max(1, -(-size // check_int("chunks", chunks, 1)))
    return jnp.split(x, list(range(step, size, step)), axis)


@_moving
def unbind(x: ArrayLike | QTensor, axis: int = 0) -> tuple[jax.Array, ...] | tuple[QTensor, ...]:
    """`torch.unbind`, which is `jnp.unstack`: all slices along an axis.

    Args:
        x: array or QTensor.
        axis: the axis of the slices, which the results do not have.

    Returns:
        A tuple of arrays like x.

    Raises:
        ValueError: if a QTensor has a scale for each channel.

    Example:
        >>> unbind(jnp.int8([[1, 2], [3, 4]]), 1)
        (Array([1, 3], dtype=int8), Array([2, 4], dtype=int8))
    """
    x, axis = _along(x, axis)
    return jnp.unstack(x, axis=axis)


@_moving
def flip(x: ArrayLike | QTensor, axis: int | Sequence[int] | None = None) -> jax.Array | QTensor:
    """`jnp.flip`: reverses the order along axes.

    Args:
        x: array or QTensor.
        axis: one, several, or None for all.

    Returns:
        An array like x.

    Raises:
        ValueError: if there is no such axis, or a QTensor has a scale for each channel.

    Example:
        >>> flip(jnp.int8([1, 2, 3]))
        Array([3, 2, 1], dtype=int8)
    """
    return jnp.flip(as_numbers(x, "x"), axis)


@_moving
def repeat(x: ArrayLike | QTensor, repeats: int, axis: int | None = None) -> jax.Array | QTensor:
    """`jnp.repeat`: repeats each number.

    Args:
        x: array or QTensor.
        repeats: the number of repetitions.
        axis: the axis; None for the flattened array.

    Returns:
        An array like x.

    Raises:
        TypeError, ValueError: if an argument is not as above, or a QTensor has a scale for each channel.

    Example:
        >>> repeat(jnp.int8([1, 2]), 2)
        Array([1, 1, 2, 2], dtype=int8)
    """
    return jnp.repeat(as_numbers(x, "x"), repeats, axis)


@_moving
def tile(x: ArrayLike | QTensor, reps: int | Sequence[int]) -> jax.Array | QTensor:
    """`jnp.tile`, torch's `repeat`: repeats the array along each of the last axes.

    Args:
        x: array or QTensor.
        reps: the number of repetitions, one for each axis.

    Returns:
        An array like x.

    Raises:
        TypeError, ValueError: if reps are not ints from 0 on, or a QTensor has a scale for each channel.

    Example:
        >>> tile(jnp.int8([1, 2]), 2)
        Array([1, 2, 1, 2], dtype=int8)
    """
    each = reps if isinstance(reps, Sequence) else (reps,)
    return jnp.tile(as_numbers(x, "x"), [check_int("reps", one, 0) for one in each])


@_moving
def unflatten(x: ArrayLike | QTensor, axis: int, sizes: Sequence[int]) -> jax.Array | QTensor:
    """`torch.unflatten`: one axis becomes several.

    Args:
        x: array or QTensor.
        axis: the axis to split.
        sizes: the sizes of the new axes. One of them may be -1.

    Returns:
        An array like x.

    Raises:
        TypeError, ValueError: if sizes do not fit, or a QTensor has a scale for each channel.

    Example:
        >>> unflatten(jnp.zeros((2, 6)), 1, (3, -1)).shape
        (2, 3, 2)
    """
    x = as_numbers(x, "x")
    axis = check_int("axis", axis, -x.ndim, x.ndim - 1) % x.ndim
    sizes = [check_int("sizes", size, -1) for size in sizes]
    known = prod(size for size in sizes if size != -1)
    made = tuple(x.shape[axis] // known if size == -1 and known else size for size in sizes)
    if prod(made) != x.shape[axis] or sizes.count(-1) > 1:
        raise ValueError(f"sizes={tuple(sizes)}; allowed are sizes of {x.shape[axis]} numbers, of which one may be -1")
    return x.reshape(*x.shape[:axis], *made, *x.shape[axis + 1 :])


@_moving
def pixel_shuffle(x: ArrayLike | QTensor, upscale_factor: int, channels_last: bool = False) -> jax.Array | QTensor:
    """`torch.nn.functional.pixel_shuffle`: channels become pixels beside each other.

    Args:
        x: array or QTensor of shape (..., channels * factor^2, height, width).
        upscale_factor: by which images get larger.
        channels_last: True for shapes (..., height, width, channels).

    Returns:
        An array like x, of shape (..., channels, height * factor, width * factor).

    Raises:
        TypeError, ValueError: if the shape does not fit, or a QTensor has a scale for each channel.

    Example:
        >>> pixel_shuffle(jnp.int8([1, 2, 3, 4]).reshape(4, 1, 1), 2)[0]
        Array([[1, 2],
               [3, 4]], dtype=int8)
    """
    x = as_numbers(x, "x")
    factor = check_int("upscale_factor", upscale_factor, 1)
    check_flag("channels_last", channels_last)
    if x.ndim < 3 or x.shape[-1 if channels_last else -3] % factor**2:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; allowed are images with channels that upscale_factor^2={factor**2} divides"
        )
    x = jnp.moveaxis(x, -1, -3) if channels_last else x
    *batch, channels, height, width = x.shape
    parts = x.reshape(*batch, channels // factor**2, factor, factor, height, width)
    one = len(batch)
    parts = parts.transpose(*range(one), one, one + 3, one + 1, one + 4, one + 2)
    made = parts.reshape(*batch, channels // factor**2, height * factor, width * factor)
    return jnp.moveaxis(made, -3, -1) if channels_last else made


@_moving
def channel_shuffle(x: ArrayLike | QTensor, groups: int, channels_last: bool = False) -> jax.Array | QTensor:
    """`torch.nn.functional.channel_shuffle`: the first channel of each group, then the second of each, and so on.

    Args:
        x: array or QTensor of shape (batch, channels, *sizes).
        groups: how many; they divide the channels.
        channels_last: True for shapes (batch, *sizes, channels).

    Returns:
        An array like x.

    Raises:
        TypeError, ValueError: if groups do not divide the channels, or a QTensor has a scale for each channel.

    Example:
        >>> channel_shuffle(jnp.int8([[1, 2, 3, 4]]), 2)
        Array([[1, 3, 2, 4]], dtype=int8)
    """
    check_flag("channels_last", channels_last)
    x = as_numbers(x, "x")
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}; allowed are two axes or more")
    channels = x.shape[axis := x.ndim - 1 if channels_last else 1]
    if channels % check_size("groups", groups):
        raise ValueError(f"groups={groups}; allowed are divisors of {channels}, the channels")
    order = np.arange(channels).reshape(groups, -1).T.reshape(-1)
    return jnp.take(x, order, axis)


_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


Widths = int | Sequence[int] | Sequence[Sequence[int]]


@overload
def pad(x: QTensor, pad_width: Widths, mode: str = "constant", constant_values: float = 0.0) -> QTensor: ...
@overload
def pad(x: ArrayLike, pad_width: Widths, mode: str = "constant", constant_values: float = 0.0) -> jax.Array: ...
def pad(
    x: ArrayLike | QTensor, pad_width: Widths, mode: str = "constant", constant_values: float = 0.0
) -> jax.Array | QTensor:
    """`jnp.pad`: numbers around an array: one number, which is quantized, or by the other modes numbers of its own.

    Args:
        x: array or QTensor.
        pad_width: how many before and after: pairs for each dimension, one pair, or one number.
        mode: "constant", "edge", "reflect", "symmetric" or "wrap".
        constant_values: the number around it, with mode "constant".

    Returns:
        An array like x.

    Raises:
        TypeError, ValueError: if an argument is not as above, or a QTensor has a scale for each channel.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> q = quantize_per_tensor(jnp.float32([1, 2, 3]), 0.5, 7, "quint8")
        >>> pad(q, (1, 0)).dequantize(), pad(q, (0, 2), "reflect").dequantize()
        (Array([0., 1., 2., 3.], dtype=float32), Array([1., 2., 3., 2., 1.], dtype=float32))
    """
    check_choice("mode", mode, _MODES)
    more: dict[str, Any] = {"constant_values": constant_values} if mode == "constant" else {}
    if not isinstance(x, QuantizedArray):
        return jnp.pad(as_numbers(x, "x"), pad_width, mode, **more)
    check_operand("x", x)
    if more:
        number = check_float("constant_values", constant_values, "a number", lambda number: number == number)
        with x.names.arithmetic():
            more = {"constant_values": integer_of(x, number).astype(x.values.dtype)}
    return x._moved(jnp.pad, pad_width, mode, **more)


@overload
def masked_fill(x: QTensor, mask: ArrayLike, value: float) -> QTensor: ...
@overload
def masked_fill(x: ArrayLike, mask: ArrayLike, value: float) -> jax.Array: ...
def masked_fill(x: ArrayLike | QTensor, mask: ArrayLike, value: float) -> jax.Array | QTensor:
    """A number, which is quantized, where a mask is true; see `qcore.affine.functional.masked_fill`.

    Args:
        x: array or QTensor.
        mask: bools whose shape broadcasts to x's.
        value: a number, which may be infinite.

    Returns:
        An array like x.

    Raises:
        TypeError, ValueError: if an argument is not as above, or a QTensor has a scale for each channel.

    Example:
        >>> masked_fill(jnp.float32([1, 2]), jnp.array([True, False]), 0.5)
        Array([0.5, 2. ], dtype=float32)
    """
    if isinstance(x, QuantizedArray):
        return cast("QTensor", functional.masked_fill(x, cast("jax.Array", mask), value))
    x = as_numbers(x, "x")
    return jnp.where(as_numbers(mask, "mask"), jnp.asarray(value, x.dtype), x)


METHODS = *[globals()[name] for name in __all__], masked_fill


@overload
def concatenate(arrays: Sequence[QTensor], axis: int = 0) -> QTensor: ...
@overload
def concatenate(arrays: Sequence[ArrayLike], axis: int = 0) -> jax.Array: ...
def concatenate(arrays: Sequence[ArrayLike] | Sequence[QTensor], axis: int = 0) -> jax.Array | QTensor:
    """`jnp.concatenate`; QTensors get the parameters of the first, as by torch's kernel for quantized tensors.

    Numbers beyond the first one's range are clipped to it: `FloatFunctional.cat` gives the result a scale of its own.

    Args:
        arrays: arrays or QTensors, of equal sizes but along the axis.
        axis: along which they are joined.

    Returns:
        An array, or a QTensor with the first one's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above, or a QTensor has a scale for each channel.

    Example:
        >>> concatenate([jnp.int8([1, 2]), jnp.int8([3])])
        Array([1, 2, 3], dtype=int8)
    """
    given: Any = arrays
    return functional.cat(given, axis) if _has_quantized(given) else jnp.concatenate(given, axis)


@overload
def stack(arrays: Sequence[QTensor], axis: int = 0) -> QTensor: ...
@overload
def stack(arrays: Sequence[ArrayLike], axis: int = 0) -> jax.Array: ...
def stack(arrays: Sequence[ArrayLike] | Sequence[QTensor], axis: int = 0) -> jax.Array | QTensor:
    """`jnp.stack`; QTensors get the parameters of the first, as by `concatenate`.

    Args:
        arrays: arrays or QTensors, of one shape.
        axis: the new axis.

    Returns:
        An array, or a QTensor with the first one's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above, or a QTensor has a scale for each channel.

    Example:
        >>> stack([jnp.int8([1, 2]), jnp.int8([3, 4])], 1)
        Array([[1, 3],
               [2, 4]], dtype=int8)
    """
    given: Any = arrays
    return functional.stack(given, axis) if _has_quantized(given) else jnp.stack(given, axis)


def _has_quantized(arrays: Any) -> bool:
    return any(isinstance(x, QuantizedArray) for x in arrays)


class Places:
    """What `q.at` is: `q.at[index].set(numbers)` is q with other numbers there, quantized with its parameters."""

    def __init__(self, q: Any, index: Any = None) -> None:
        self.q, self.index = q, index

    def __getitem__(self, index: Any) -> Places:
        return Places(self.q, index)

    def set(self, numbers: Any) -> Any:
        """The quantized array with other numbers at the places.

        Args:
            numbers: array, QTensor or number, which broadcasts.

        Raises:
            ValueError: if there is a scale for each channel.
        """
        q = self.q
        q._whole("index assignment")
        integers = q._integers_of(numbers)
        return q._with(q.values.at[self.index].set(integers))
