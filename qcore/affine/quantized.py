"""What quantized arrays do in all frameworks: with their integers alone, or with the numbers that these stand for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from qcore.affine import law
from qcore.affine.format import AffineInteger
from qcore.affine.names import Names
from qcore.affine.parameters import QParams


def rearrangement(name: str) -> Callable[..., Any]:
    """A method that only rearranges elements, of arrays that have parameters for the whole."""

    def method(self: QuantizedArray, *arguments: Any, **settings: Any) -> Any:
        self._whole(name)
        return self._with(getattr(self.values, name)(*arguments, **settings))

    return _named(method, name, f"The arrays' `{name}`, where there are no channels.")


def comparison(name: str) -> Callable[..., Any]:
    """A method that compares numbers, not integers."""

    def method(self: QuantizedArray, other: Any) -> Any:
        numbers = other.dequantize() if isinstance(other, QuantizedArray) else other
        return getattr(operator, name)(self.dequantize(), numbers)

    return _named(method, name, f"`{name}` of the dequantized arrays, element by element.")


def _named(method: Callable[..., Any], name: str, about: str) -> Callable[..., Any]:
    method.__name__ = name
    method.__doc__ = about
    return method


class QuantizedArray:
    """Integers `values`, and what they stand for; a framework's class adds how it makes and shows them.

    Since scales are above 0, integers are in the order of their numbers. What may mix channels is only for arrays with
    parameters for the whole; its results have the same parameters.
    """

    values: Any
    qparams: QParams
    form: AffineInteger
    names: ClassVar[Any] = Names

    reshape, flatten, squeeze = rearrangement("reshape"), rearrangement("flatten"), rearrangement("squeeze")
    transpose, __getitem__ = rearrangement("transpose"), rearrangement("__getitem__")
    eq, ne, __eq__, __ne__ = comparison("eq"), comparison("ne"), comparison("eq"), comparison("ne")  # type: ignore[assignment]
    lt, le, __lt__, __le__ = comparison("lt"), comparison("le"), comparison("lt"), comparison("le")
    gt, ge, __gt__, __ge__ = comparison("gt"), comparison("ge"), comparison("gt"), comparison("ge")
    __hash__ = object.__hash__

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

    def relu(self) -> Any:
        """max(x, 0)."""
        xp, qparams = self.names, self.qparams
        zero = law.along(qparams.zero_point, qparams.axis, self.ndim)
        return self._with(xp.astype(xp.maximum(xp.astype(self.values, "int32"), zero), self.form.storage))

    def q_per_channel_scales(self) -> Any:
        """The channels' scales, float32.

        Raises:
            ValueError: if there is one for all.
        """
        return self._channels("q_per_channel_scales").scale

    def q_per_channel_zero_points(self) -> Any:
        """The channels' zero points, int32.

        Raises:
            ValueError: if there is one for all.
        """
        return self._channels("q_per_channel_zero_points").zero_point

    def q_per_channel_axis(self) -> Any:
        """The dimension along which the channels lie.

        Raises:
            ValueError: if there are no channels.
        """
        return self._channels("q_per_channel_axis").axis

    def _with(self, values: Any) -> Any:
        """Other integers with the same parameters."""
        return type(self)(values, self.qparams, self.form)  # type: ignore[call-arg]

    def _whole(self, name: str) -> QParams:
        if self.qparams.axis is not None:
            raise ValueError(f"{name} of a QTensor with axis={self.qparams.axis}; allowed is one without channels")
        return self.qparams

    def _channels(self, name: str) -> QParams:
        if self.qparams.axis is None:
            raise ValueError(f"{name} of a QTensor without an axis; allowed is one with channels")
        return self.qparams
