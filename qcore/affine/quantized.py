"""Quantized arrays: the methods that all frameworks share, and the checks of layers that compute with integers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from qcore.affine import law
from qcore.affine.integers import AffineInteger
from qcore.affine.operations import dequantize
from qcore.affine.parameters import QParams, check_qparams
from qcore.arguments import check_choice, check_size, check_sizes, quoted
from qcore.namespace import Array, Names


def moving(name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Makes a method that moves integers, by a function of the integers or, for None, by their method of this name.

    Array and result have one scale for the whole array. The function returns one array, or several.
    """

    def own(values: Any, *arguments: Any, **settings: Any) -> Any:
        return getattr(values, name)(*arguments, **settings)

    def method(self: Q, *arguments: object, **settings: object) -> Q | tuple[Q, ...]:
        self._whole(name)
        return self._moved(function or own, *arguments, **settings)

    return _named(method, name, f"The arrays' `{name}`, where there are no channels.")


def comparison(name: str) -> Callable[..., Any]:
    """Makes a method that compares the numbers, not the integers."""

    def method(self: QuantizedArray, other: Any) -> Any:
        numbers = other.dequantize() if isinstance(other, QuantizedArray) else other
        return getattr(operator, name)(self.dequantize(), numbers)

    return _named(method, name, f"`{name}` of the dequantized arrays, element by element.")


def parameter(name: str, field: str, about: str, returned: str) -> Callable[..., Any]:
    """Makes a method that returns a field of the parameters, per channel or for the whole array, as its name says."""
    channels = "per_channel" in name

    def method(self: QuantizedArray) -> Array | int:
        return getattr(self._channels(name) if channels else self._whole(name), field)

    wrong = "there are no channels" if channels else "there is one for each channel"
    made, shown = _EXAMPLES[name]
    return _named(
        method,
        name,
        f"""{about}.

        Returns:
            {returned}.

        Raises:
            ValueError: if {wrong}.

        Example:
            >>> import numpy as np
            >>> q = QArray(np.uint8([[1, 2]]), QParams.of({made}), AffineInteger(0, 255))
            >>> q.{name}()
            {shown}
        """,
    )


_EXAMPLES = {  # by property: the parameters of an example's array, and the property's value
    "q_scale": ("0.5, 3", "array(0.5, dtype=float32)"),
    "q_zero_point": ("0.5, 3", "array(3, dtype=int32)"),
    "q_per_channel_scales": ("[0.5, 0.25], [0, 3], 1", "array([0.5 , 0.25], dtype=float32)"),
    "q_per_channel_zero_points": ("[0.5, 0.25], [0, 3], 1", "array([0, 3], dtype=int32)"),
    "q_per_channel_axis": ("[0.5, 0.25], [0, 3], 1", "1"),
}


def _named(method: Callable[..., Any], name: str, about: str) -> Callable[..., Any]:
    method.__name__ = name
    method.__doc__ = about
    return method


class QuantizedArray:
    """Integers `values` with their parameters; a framework's class adds how arrays are made and shown.

    Since scales are above 0, integers are in the order of their numbers. Methods that may mix channels need parameters
    for the whole array; their results have the same parameters.
    """

    values: Any
    qparams: QParams
    form: AffineInteger
    names: ClassVar[Any] = Names

    reshape, flatten, squeeze = moving("reshape"), moving("flatten"), moving("squeeze")
    transpose, __getitem__ = moving("transpose"), moving("__getitem__")
    eq, ne, __eq__, __ne__ = comparison("eq"), comparison("ne"), comparison("eq"), comparison("ne")  # type: ignore[assignment]
    lt, le, __lt__, __le__ = comparison("lt"), comparison("le"), comparison("lt"), comparison("le")
    gt, ge, __gt__, __ge__ = comparison("gt"), comparison("ge"), comparison("gt"), comparison("ge")
    __hash__ = object.__hash__
    q_scale = parameter("q_scale", "scale", "The scale of the whole", "A float32 array of shape ()")
    q_zero_point = parameter("q_zero_point", "zero_point", "The zero point of the whole", "An int32 array of shape ()")
    q_per_channel_scales = parameter(
        "q_per_channel_scales", "scale", "The channels' scales", "A float32 array of shape (channels,)"
    )
    q_per_channel_zero_points = parameter(
        "q_per_channel_zero_points", "zero_point", "The channels' zero points", "An int32 array of shape (channels,)"
    )
    q_per_channel_axis = parameter(
        "q_per_channel_axis", "axis", "The dimension along which the channels lie", "An int, counted from the first"
    )

    @property
    def shape(self) -> Any:
        """The sizes of all dimensions."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        return self.values.ndim

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def dequantize(self) -> Any:
        """The numbers, in float32."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises unless the arrays fit each other and the form, which transformations of pytrees may change."""
        if not hasattr(self.values, "shape"):
            raise TypeError(f"values is a {type(self.values).__name__}; allowed is an array of integers")
        check_qparams(self.qparams, self.form, tuple(self.shape), self.names)
        if self.names.dtype(self.values) != self.form.storage:
            raise TypeError(f"values has dtype {self.values.dtype}; allowed is {self.form.storage} for {self.form}")

    def relu(self) -> Any:
        """max(x, 0)."""
        xp, qparams = self.names, self.qparams
        zero = law.along(qparams.zero_point, qparams.axis, self.ndim)
        return self._with(xp.astype(xp.maximum(xp.astype(self.values, "int32"), zero), self.form.storage))

    @classmethod
    def _made(cls, values: Any, qparams: QParams, form: AffineInteger) -> Any:
        """An array of parts that fit each other, which are not checked."""
        array = object.__new__(cls)
        array.__dict__.update(values=values, qparams=qparams, form=form)
        return array

    def _with(self, values: Any) -> Any:
        """Other integers with the same parameters."""
        if values.dtype != self.values.dtype:  # which `view` may change
            return type(self)(values, self.qparams, self.form)  # type: ignore[call-arg]
        return self._made(values, self.qparams, self.form)

    def _moved(self, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """Applies a function to the integers; the arrays that it returns get the same parameters."""
        moved = function(self.values, *arguments, **settings)
        return tuple(map(self._with, moved)) if isinstance(moved, (tuple, list)) else self._with(moved)

    def _whole(self, name: str) -> QParams:
        if self.qparams.axis is not None:
            raise ValueError(f"{name} of a QTensor with axis={self.qparams.axis}; allowed is one without channels")
        return self.qparams

    def _channels(self, name: str) -> QParams:
        if self.qparams.axis is None:
            raise ValueError(f"{name} of a QTensor without an axis; allowed is one with channels")
        return self.qparams


Q = TypeVar("Q", bound=QuantizedArray)  # a quantized array of any package


@dataclass(frozen=True, eq=False)
class QArray(QuantizedArray):
    """Quantized NumPy arrays: the reference of the arithmetic in `qcore.affine.functional`.

    Args:
        values: the array of the integers, of the form's dtype.
        qparams: the scale and zero point of the array, or of each channel.
        form: the integers' range.

    Raises:
        TypeError, ValueError: if they do not fit each other.

    Example:
        >>> import numpy as np
        >>> QArray(np.int8([5, 7]), QParams.of(0.5, 3), AffineInteger(-8, 7)).dequantize()
        array([1., 2.], dtype=float32)
    """

    values: np.ndarray
    qparams: QParams[np.ndarray]
    form: AffineInteger

    def __post_init__(self) -> None:
        self.check()

    def dequantize(self) -> np.ndarray:
        """The numbers, in float32."""
        return dequantize(self.values, self.qparams, self.form, xp=self.names)


PADDING_MODES = ("zeros", "reflect", "replicate", "circular")  # of convolutions


def check_linear(input: Any, weight: Any, widths: tuple[int, ...] = (8,)) -> None:
    """Raises unless a linear layer can have these quantized operands; `widths` are the bits of integers in memory."""
    _check_operands(input, weight, 2, widths)
    if input.ndim == 0 or input.shape[-1] != weight.shape[1]:
        raise ValueError(f"input has shape {tuple(input.shape)}; allowed is (..., {weight.shape[1]}), as weight says")


def check_convolution(
    input: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    padding_mode: Any,
    dimensions: int = 2,
    widths: tuple[int, ...] = (8,),
) -> tuple[Any, ...]:
    """The stride, padding and dilation of all dimensions; raises unless a convolution can have these arguments.

    An image has 1, 2 or 3 `dimensions`; `widths` are the bits of integers in memory.
    """
    _check_operands(input, weight, dimensions + 2, widths)
    check_size("groups", groups)
    check_choice("padding_mode", padding_mode, PADDING_MODES)
    shape, kernel = tuple(input.shape), tuple(weight.shape)
    if len(shape) != len(kernel) or shape[1] != kernel[1] * groups or kernel[0] % groups:
        sizes = ", ".join(("depth", "height", "width")[-dimensions:])
        raise ValueError(
            f"input has shape {shape} and weight {kernel} for groups={groups}; allowed are (batch, channels, {sizes}) "
            f"and (outputs, channels / groups, {sizes}), outputs a multiple of groups"
        )
    stride, padding, dilation = (
        check_sizes(name, value, least, dimensions)
        for name, value, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1))
    )
    for size, count, place, step in zip(shape[2:], kernel[2:], padding, dilation, strict=True):
        if size + 2 * place <= (count - 1) * step:
            raise ValueError(
                f"input has shape {shape} with padding={padding}; allowed are images no smaller than the kernel "
                f"of shape {kernel} with dilation={dilation}"
            )
        most = {"reflect": size - 1, "circular": size}.get(padding_mode, place)
        if place > most:
            raise ValueError(
                f"input has shape {shape} with padding={padding} and padding_mode={quoted(padding_mode)}; allowed are "
                f"paddings of up to {most} of a size of {size}"
            )
    return stride, padding, dilation


def check_convolution_sizes(
    inputs: Any, outputs: Any, kernel_size: Any, stride: Any, dilation: Any, groups: Any, dimensions: int
) -> list[tuple[int, ...]]:
    """The sizes, strides and dilations of a convolution's kernel in each dimension, checked."""
    check_size("in_channels", inputs)
    check_size("out_channels", outputs)
    check_size("groups", groups)
    if inputs % groups or outputs % groups:
        raise ValueError(f"groups={groups}; allowed are divisors of in_channels={inputs} and out_channels={outputs}")
    named = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
    return [check_sizes(name, value, 1, dimensions) for name, value in named.items()]


def _check_operands(input: Any, weight: Any, ndim: int, widths: tuple[int, ...]) -> None:
    storages = [f"{sign}int{width}" for width in widths for sign in ("", "u")]
    for name, q, axes in (("input", input, (None,)), ("weight", weight, (None, 0))):
        if not isinstance(q, QuantizedArray):
            raise TypeError(f"{name} is a {type(q).__name__}; allowed is a QTensor")
        if q.form.storage not in storages:
            raise TypeError(f"{name} has integers of {q.form.storage}; allowed are {', '.join(storages)}")
        if q.qparams.axis not in axes:
            raise ValueError(f"{name} has axis={q.qparams.axis}; allowed is {' or '.join(map(str, axes))}")
    if weight.ndim != ndim:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; allowed are {ndim} dimensions")
