"""`QTensor`: integers with scale and zero point.

It is an ordinary class around a plain tensor of integers. A subclass of torch.Tensor would have to handle each of
torch's two thousand operators; this class has only the methods that torch's quantized tensors had. torch's functions of
the same names call them: `torch.relu(q)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, overload

import torch

from qcore import affine
from qcore.affine import AffineInteger, QParams, law
from qcore.affine.functional.activations import unit_qparams
from qcore.affine.quantized import QuantizedArray, moving
from qcore.arguments import check_float, check_type, quoted
from qtorch._affine import exported
from qtorch._affine.conversion import dequantize, quantize
from qtorch._affine.namespace import Names
from qtorch._affine.torch_functions import FUNCTIONS, JOINS, OF_NUMBERS, without_integers
from qtorch._affine.traced import keeps_first, of_traced_sizes
from qtorch._rounding.dense import listed
from qtorch._rounding.paths.choice import check_device
from qtorch._torch_internals import name_of, operator_of

_TOKENS = {affine.UINT8: torch.quint8, affine.INT8: torch.qint8, affine.INT32: torch.qint32}


def _refusal(operator: str) -> Callable[..., NoReturn]:
    """An operator that raises TypeError, since its result would need a new scale."""

    def method(self: QTensor, *others: Any) -> NoReturn:
        raise TypeError(without_integers(operator))

    return method


def _of_numbers(name: str, function: Any, first: QTensor, arguments: Any, settings: Any) -> QTensor:
    """torch's function of the numbers, in a file that need not be exact."""
    others, rest = arguments[1:], {key: value for key, value in settings.items() if key != "input"}
    signed = OF_NUMBERS[name]
    output = first.qparams if signed is None else unit_qparams(first, first.form, signed)
    return exported.of_numbers(lambda x: function(x, *others, **rest), first, output=output, form=first.form)


class _NoFunctionError(TypeError, AttributeError):
    """The error of a method of torch.Tensor that QTensor does not have; its text is that of torch's function."""


class QTensor(QuantizedArray):
    """A tensor of numbers (q - zero_point) * scale, kept as integers q.

    It has many methods of torch.Tensor. Results with numbers are QTensors with the same parameters. Methods that may
    mix channels need parameters for the whole tensor.

    Args:
        values: tensor of integers, of the type `form.storage`.
        qparams: the parameters, on the same device.
        form: the range of the integers.

    Raises:
        ValueError: if the parameters do not fit the values or the integers.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> q = quantize_per_tensor(torch.tensor([-0.52, 0.26, 1.0]), 0.5, 2, torch.quint8)
        >>> q
        QTensor([-0.5000,  0.5000,  1.0000], size=(3,), dtype=torch.quint8, scale=0.5, zero_point=2)
        >>> torch.relu(q).int_repr()
        tensor([2, 3, 4], dtype=torch.uint8)
    """

    is_quantized = True
    names = Names

    def __init__(self, values: torch.Tensor, qparams: QParams, form: AffineInteger) -> None:
        self.values = values
        self.qparams = qparams
        self.form = form
        self.check()
        check_device("scale", qparams.scale, values.device, "values")
        check_device("zero_point", qparams.zero_point, values.device, "values")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), settings: Any = None) -> Any:
        """Runs torch's functions by `FUNCTIONS` and the methods of the same names."""
        name, settings = name_of(function), settings or {}
        if name in JOINS:
            return JOINS[name](*arguments, **settings)
        method = FUNCTIONS.get(name) or getattr(cls, name, None)
        first = arguments[0] if arguments else settings.get("input")
        if method is None or not isinstance(first, cls):
            raise TypeError(without_integers(name or operator_of(function)))
        if exported.is_near() and name in OF_NUMBERS and first.qparams.axis is None:
            return _of_numbers(name, function, first, arguments, settings)
        return method(*arguments, **settings)

    def __getattr__(self, name: str) -> Any:
        """Raises an error for a method of torch.Tensor whose result is not integers."""
        if hasattr(torch.Tensor, name) and not name.startswith("__"):
            raise _NoFunctionError(without_integers(name))
        raise AttributeError(f"a QTensor has no attribute {quoted(name)}")

    __add__, __mul__, __sub__, __truediv__, __matmul__ = map(_refusal, ("+", "*", "-", "/", "@"))
    __radd__, __rmul__, __rsub__, __rtruediv__, __rmatmul__ = __add__, __mul__, __sub__, __truediv__, __matmul__
    __neg__ = _refusal("-")

    @property
    def device(self) -> torch.device:
        """The values' device."""
        return self.values.device

    @property
    def dtype(self) -> torch.dtype | AffineInteger:
        """torch's dtype of the integers, or their `AffineInteger` if torch has none."""
        return _TOKENS.get(self.form, self.form)

    @overload
    def size(self, dim: None = None) -> torch.Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> torch.Size | int:
        """`torch.Tensor.size`."""
        return self.values.size(dim)

    def dim(self) -> int:
        """The number of dimensions."""
        return self.values.dim()

    def numel(self) -> int:
        """The number of elements."""
        return self.values.numel()

    def qscheme(self) -> torch.qscheme:
        """torch.per_tensor_affine or torch.per_channel_affine."""
        return torch.per_tensor_affine if self.qparams.axis is None else torch.per_channel_affine

    def int_repr(self) -> torch.Tensor:
        """A copy of the integers."""
        return self.values.clone()

    def dequantize(self) -> torch.Tensor:
        """The numbers, in float32."""
        return dequantize(self.values, self.qparams, self.form)

    def q_scale(self) -> float:
        """The scale of the whole tensor, as `float`; see `QuantizedArray.q_scale`."""
        return float(super().q_scale())

    def q_zero_point(self) -> int:
        """The zero point of the whole tensor, as `int`; see `QuantizedArray.q_zero_point`."""
        return int(super().q_zero_point())

    T, mT = property(moving("T", lambda values: values.T)), property(moving("mT", lambda values: values.mT))  # noqa: N815

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        """`torch.Tensor.is_contiguous`."""
        return self.values.is_contiguous(memory_format=memory_format)

    @overload
    def stride(self, dim: None = None) -> tuple[int, ...]: ...
    @overload
    def stride(self, dim: int) -> int: ...
    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """`torch.Tensor.stride`."""
        return self.values.stride() if dim is None else self.values.stride(dim)

    def expand_as(self, other: QTensor | torch.Tensor) -> QTensor:
        """`torch.Tensor.expand_as`."""
        return self.expand(other.shape)

    def view_as(self, other: QTensor | torch.Tensor) -> QTensor:
        """`torch.Tensor.view_as`."""
        return self.view(other.shape)

    def reshape_as(self, other: QTensor | torch.Tensor) -> QTensor:
        """`torch.Tensor.reshape_as`."""
        return self.reshape(other.shape)

    def __setitem__(self, index: Any, source: QTensor | torch.Tensor | float) -> None:
        """Writes the elements of a tensor, or a number, to an index, quantized with this tensor's one scale."""
        self._whole("index assignment")
        if not isinstance(source, (QTensor, torch.Tensor)):
            source = torch.tensor(check_float("source", source, "a number", lambda number: number == number))
        lanes = _lanes(self.values)
        lanes[index] = _lanes(self._integers_of(source).to(lanes.device))

    def equal(self, other: QTensor) -> bool:
        """True if integers and parameters are the same."""
        same = isinstance(other, QTensor) and (self.form, self.qparams.axis) == (other.form, other.qparams.axis)
        return same and all(map(torch.equal, self._tensors(), other._tensors()))

    def clone(self, *, memory_format: torch.memory_format = torch.preserve_format) -> QTensor:
        """A copy that shares no memory."""
        qparams = self.qparams
        copied = QParams(qparams.scale.clone(), qparams.zero_point.clone(), qparams.axis)
        return QTensor(self.values.clone(memory_format=memory_format), copied, self.form)

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> QTensor:
        """`torch.Tensor.contiguous`."""
        return self._with(self.values.contiguous(memory_format=memory_format))

    def detach(self) -> QTensor:
        """The tensor itself: integers have no gradients."""
        return self

    def to(
        self, device: torch.device | str | None = None, *, memory_format: torch.memory_format = torch.preserve_format
    ) -> QTensor:
        """The tensor on a device, or in another order in memory."""
        place = self.device if device is None else torch.device(device)
        qparams = QParams(self.qparams.scale.to(place), self.qparams.zero_point.to(place), self.qparams.axis)
        return QTensor(self.values.to(place, memory_format=memory_format), qparams, self.form)

    def copy_(self, source: QTensor | torch.Tensor) -> QTensor:
        """Writes source's elements here, quantized with this tensor's parameters."""
        check_type("source", source, (QTensor, torch.Tensor), "a QTensor or a torch.Tensor")
        self.values.copy_(self._integers_of(source.expand(self.shape)))
        return self

    def _integers_of(self, source: QTensor | torch.Tensor) -> torch.Tensor:
        """Source's elements as integers with this tensor's parameters."""
        if isinstance(source, QTensor):
            if source.form == self.form and source.qparams is self.qparams:
                return source.values
            source = source.dequantize()
        return quantize(source, self.qparams, self.form)

    def resize_(self, *sizes: int | Sequence[int]) -> QTensor:
        """`torch.Tensor.resize_`."""
        self._whole("resize_")
        self.values.resize_(*sizes)  # type: ignore[arg-type]
        return self

    @overload
    def min(self, dim: None = None, keepdim: bool = False) -> QTensor: ...
    @overload
    def min(self, dim: int, keepdim: bool = False) -> tuple[QTensor, torch.Tensor]: ...
    def min(self, dim: int | None = None, keepdim: bool = False) -> QTensor | tuple[QTensor, torch.Tensor]:
        """The least number, or the least numbers along a dimension and their indices."""
        return self._select("min", *(() if dim is None else (dim, keepdim)))

    @overload
    def max(self, dim: None = None, keepdim: bool = False) -> QTensor: ...
    @overload
    def max(self, dim: int, keepdim: bool = False) -> tuple[QTensor, torch.Tensor]: ...
    def max(self, dim: int | None = None, keepdim: bool = False) -> QTensor | tuple[QTensor, torch.Tensor]:
        """The greatest number, or the greatest numbers along a dimension and their indices."""
        return self._select("max", *(() if dim is None else (dim, keepdim)))

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[QTensor, torch.Tensor]:
        """The sorted numbers along a dimension, and their indices before."""
        return self._select("sort", dim, descending)

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[QTensor, torch.Tensor]:
        """The k greatest or least numbers along a dimension, and their indices."""
        return self._select("topk", k, dim, largest, sorted)

    def mean(self, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> QTensor:
        """The mean of the integers, rounded to nearest even."""
        self._whole("mean")
        if exported.is_near():
            function = torch.mean if dim is None else lambda x: torch.mean(x, dim, keepdim)
            return exported.of_numbers(function, self, output=self.qparams, form=self.form)
        values, counted = self.values, {0} if dim is None else {dim} if isinstance(dim, int) else {*dim}
        if torch.jit.is_tracing() and counted & {0, -self.ndim}:  # type: ignore[attr-defined]
            values = of_traced_sizes(values, True)
        sums = values.to(torch.int64).sum(dim, keepdim)
        return self._with(law.mean(Names, sums, self.numel() // max(1, sums.numel())).to(self.values.dtype))

    def relu(self, inplace: bool = False) -> QTensor:
        """max(x, 0)."""
        if inplace:
            return self.relu_()
        if self.qparams.axis is None and self.values.dtype in (torch.int8, torch.uint8):
            return self._with(torch.maximum(self.values, self.qparams.zero_point.to(self.values.dtype)))
        return super().relu()

    def dropout(self, p: float = 0.5, training: bool = True, inplace: bool = False) -> QTensor:
        """The tensor itself; raises ValueError in training, since a converted model is in evaluation."""
        if training:
            raise ValueError("dropout of a QTensor in training; allowed is evaluation: model.eval()")
        return self

    dropout1d = dropout2d = dropout3d = feature_dropout = dropout

    def relu_(self) -> QTensor:
        """max(x, 0), written over x."""
        self.values.copy_(self.relu().values)
        return self

    def __repr__(self) -> str:
        whole = self.dequantize()
        numbers = "meta" if whole.is_meta else str(whole).removeprefix("tensor(").removesuffix(")")
        scale, zero_point = listed(self.qparams.scale), listed(self.qparams.zero_point)
        axis = "" if self.qparams.axis is None else f", axis={self.qparams.axis}"
        about = f"size={tuple(self.shape)}, dtype={self.dtype}, scale={scale}, zero_point={zero_point}{axis}"
        return f"QTensor({numbers}, {about})"

    def __reduce__(self) -> tuple[Any, ...]:
        form = self.form
        return _rebuilt, (*self._tensors(), self.qparams.axis, form.qmin, form.qmax, form.signed, form.middle)

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        return self.values, self.qparams.scale, self.qparams.zero_point

    def _moved(self, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        lanes = _lanes(self.values)
        moved = function(lanes, *arguments, **settings)
        if torch.jit.is_tracing() and not keeps_first(function, lanes, moved, *arguments, **settings):  # type: ignore[attr-defined]
            moved = function(of_traced_sizes(lanes, True), *arguments, **settings)
        if isinstance(moved, torch.Tensor):
            return self._with(_stored(moved, self.values.dtype))
        return tuple(self._with(_stored(one, self.values.dtype)) for one in moved)

    def _select(self, name: str, *arguments: Any) -> Any:
        """Calls a method of torch that selects elements, and may return indices."""
        self._whole(name)
        widen = self.values.dtype is torch.uint16  # torch has no min and max for uint16
        found = getattr(self.values.to(torch.int32) if widen else self.values, name)(*arguments)
        if isinstance(found, torch.Tensor):
            return self._with(found.to(self.values.dtype))
        return self._with(found[0].to(self.values.dtype)), found[1]


def _lanes(values: torch.Tensor) -> torch.Tensor:
    """Integers of 16 bits as int16, since torch has fewer functions for uint16."""
    return values.view(torch.int16) if values.dtype is torch.uint16 else values


def _stored(lanes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The integers of `_lanes`; in their own dtype they stay as they are, as torch.jit.trace records no view of it."""
    return lanes if lanes.dtype is dtype else lanes.view(dtype)


def _rebuilt(values: Any, scale: Any, zero_point: Any, axis: int | None, *form: Any) -> QTensor:
    return QTensor(values, QParams(scale, zero_point, axis), AffineInteger(*form))


for _name, _function in FUNCTIONS.items():
    if hasattr(torch.Tensor, _name):
        setattr(QTensor, _name, _function)

torch.serialization.add_safe_globals([_rebuilt])
