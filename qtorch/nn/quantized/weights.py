"""Weights of quantized layers: integers or codes of a format in buffers, and how observers choose them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch

from qcore import Number
from qcore.affine import AffineInteger, QParams
from qcore.arguments import quoted
from qcore.formats.foreign import BytesNumber, stored_bits
from qcore.law.rounding import RoundingLike
from qtorch._affine import conversion, exported
from qtorch._affine.dtypes import FixedDtypes, integers
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.observer import RangeObserver
from qtorch._affine.programs import law
from qtorch._affine.tensor import QTensor
from qtorch._conversion import converted
from qtorch._rounding.dispatch import decode, encode, quantize
from qtorch._rounding.packing import pack, unpack
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._states import keeps_zero_point
from qtorch._torch_internals import map_tree, name_of
from qtorch.quant import Quantizer

_BITS = 4  # of integers that share a byte
_STORED = {"int_repr", "values"}  # names of buffers that torch has methods for
_HARMLESS = {"requires_grad_", "detach_", "share_memory_"}  # what changes no number


class Weight(FixedDtypes):
    """A module that replaces a weight; code may use it like the float tensor that it replaces.

    It has the properties of a tensor (`dtype`, `shape`, `size()`, ...), and functions and methods of torch take it as
    its numbers: models read `layer.weight.dtype`, or multiply with `layer.weight`. Its own `to()`, `half()` and others
    return a tensor; those of the layer, or of the model, move it.

    Attributes:
        shape: of the weight.
        dtype: of the numbers: torch.float32, or the dtype of the layer that was converted.
    """

    shape: tuple[int, ...]

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.stand_for(dtype)

    def numbers(self) -> torch.Tensor:
        """The weight as floats, of `dtype`."""
        return converted(self(), self.dtype)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Weight:
        super()._apply(fn, recurse)
        self.dtype = self.stands_for_parameters.dtype
        return self

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls torch's function with the numbers."""
        _check_in_place(name_of(function))

        def plain(leaf: Any) -> Any:
            return leaf.numbers() if isinstance(leaf, Weight) else leaf

        return function(*map_tree(plain, tuple(args)), **map_tree(plain, kwargs or {}))

    @property
    def device(self) -> torch.device:
        """The weight's device."""
        return next(self.buffers()).device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """`torch.Tensor.size`."""
        return torch.Size(self.shape) if dim is None else self.shape[dim]

    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def dequantize(self) -> torch.Tensor:
        """The numbers, as floats."""
        return self.numbers()

    def __getattr__(self, name: str) -> Any:
        """An attribute of the module, or of the numbers: `weight.T`, `weight.abs()`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name in _STORED or not hasattr(torch.Tensor, name):
                raise
            _check_in_place(name)
            return getattr(self.numbers(), name)


def _check_in_place(name: str) -> None:
    """Raises TypeError for a function that changes a tensor: it would change a copy of the numbers."""
    if name.endswith("_") and not name.startswith("_") and name not in _HARMLESS:
        raise TypeError(
            f"{name} of a quantized weight would change a copy of its numbers; allowed are functions that return a new "
            f"tensor, such as {name.removesuffix('_')}, and {name} of the float layer's weight before it is quantized"
        )


def _of_numbers(name: str) -> Any:
    return lambda self, *others, **settings: getattr(self.numbers(), name)(*others, **settings)


_SYMBOLS = "add radd sub rsub mul rmul truediv rtruediv floordiv mod pow rpow matmul rmatmul neg abs lt le gt ge"
for _name in f"{_SYMBOLS} getitem len iter".split():
    setattr(Weight, f"__{_name}__", _of_numbers(f"__{_name}__"))
# Modules have these as well as tensors: code writes `layer.weight.to(x.dtype)`.
for _name in "to float double half bfloat16 type cpu cuda".split():
    setattr(Weight, _name, _of_numbers(_name))


class CodedWeight(Weight):
    """A tensor rounded to a format and stored as packed codes, or as rounded numbers if the format has no codes.

    GGUF's types are stored as their bytes, unless rows are so short that blocks take more than floats.

    Args:
        weight: tensor of floats.
        number: the format.
        rounding: the mode, as for `qtorch.quantize`.

    Example:
        >>> from qtorch import parse
        >>> weight = CodedWeight(torch.tensor([[1.0, -1.2], [0.3, 7.0]]), parse("e2m1fn"))
        >>> weight(), weight.codes
        (tensor([[ 1.0000, -1.0000],
                [ 0.5000,  6.0000]]), tensor([[162],
                [113]], dtype=torch.uint8))
    """

    codes: torch.Tensor

    def __init__(self, weight: torch.Tensor, number: Number, rounding: RoundingLike = "nearest") -> None:
        super().__init__(weight.dtype)
        self.number, self.shape = number, tuple(weight.shape)
        self.bits = stored_bits(number, self.shape)
        weight = weight.detach().to(torch.float32)
        scales: list[torch.Tensor] = []
        if self.bits is None:
            codes = quantize(weight, number, rounding)
        elif isinstance(number, BytesNumber):
            codes = encode(torch.nn.functional.pad(weight, (0, -self.shape[-1] % number.block[0])), number, rounding)
        else:
            codes = encode(weight, number, rounding)
            if isinstance(codes, tuple):
                codes, found = codes
                scales = list(found) if isinstance(found, tuple) else [found]
            codes = pack(codes, self.bits)
        self.register_buffer("codes", codes.contiguous())  # files take no views, and a view keeps what it was cut from
        self.scales = [f"scales{index}" for index in range(len(scales))]
        for name, scale in zip(self.scales, scales, strict=True):
            self.register_buffer(name, scale)

    def forward(self) -> torch.Tensor:
        """The numbers, in float32."""
        return self._decoded(self.codes, *(getattr(self, name) for name in self.scales))

    def _decoded(self, codes: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
        """The numbers of stored codes, or of a part of them that has all of the last axis."""
        if self.bits is None or codes.is_floating_point():  # floats of a type of GGUF are in older pickles
            return codes
        if isinstance(self.number, BytesNumber):
            return decode(codes, self.number)[..., : self.shape[-1]]
        shape = *codes.shape[:-1], self.shape[-1]
        empty = partial(torch.empty, shape, dtype=torch.float32, device=codes.device)
        return law(_decoded, (codes, scales), self.number, self.bits, shape[-1], empty=empty)

    def unpacked(self, bits: int) -> torch.Tensor:
        """The codes as integers of the weight's shape, in a format whose codes have so many bits."""
        return unpack(self.codes, bits, self.shape[-1])

    def __getitem__(self, index: Any) -> torch.Tensor:
        """A part of the numbers; of one matrix of a stack only this matrix is decoded."""
        known = type(index) is int or (
            isinstance(index, torch.Tensor)
            and is_plain_tensor(index)
            and index.is_cpu
            and index.dim() == 0
            and index.dtype in (torch.int32, torch.int64)
        )
        matrix = self._matrix(int(index)) if known and self.dim() > 2 else None
        return self.numbers()[index] if matrix is None else converted(matrix, self.dtype)

    def _matrix(self, index: int) -> torch.Tensor | None:
        """The numbers at an index of the first axis, in float32; None if blocks reach over several indices."""
        sizes, scales = self.number.block_sizes(self.dim()), [getattr(self, name) for name in self.scales]
        apart = sizes[0] == 1 and self.number.block_sizes(self.dim() - 1) == sizes[1:]
        if not apart or any(one.dim() not in (0, self.dim()) for one in scales):
            return None
        return self._decoded(self.codes[index], *(one[index] if one.dim() else one for one in scales))

    def extra_repr(self) -> str:
        return f"{self.shape}, {self.number.text}"


def _decoded(
    codes: torch.Tensor, scales: tuple[torch.Tensor, ...], number: Number, bits: int, size: int
) -> torch.Tensor:
    return decode(unpack(codes, bits, size), number, scales=scales[0] if len(scales) == 1 else scales or None)


class Dequantized(Weight):
    """A weight whose numbers are floats: a float tensor, or integers that are dequantized at each call.

    Args:
        weight: a tensor, or a `QuantizedWeight`.

    Example:
        >>> Dequantized(torch.ones(1))()
        tensor([1.])
    """

    values: torch.Tensor

    def __init__(self, weight: torch.Tensor | QuantizedWeight) -> None:
        super().__init__(weight.dtype)
        self.shape = tuple(weight.shape)
        if isinstance(weight, QuantizedWeight):
            self.integers = weight
        else:
            self.register_buffer("values", weight.to(torch.float32))

    def forward(self) -> torch.Tensor:
        """The numbers, in float32."""
        return self.integers().dequantize() if hasattr(self, "integers") else self.values


class QuantizedWeight(Weight):
    """A weight whose integers are in buffers; `weight()` returns them as a QTensor.

    Integers of at most 4 bits are packed two in a byte, one row for each output, as `qtorch.pack` does; their buffer is
    `packed`, of shape (outputs, bytes). The buffer of other integers is `int_repr`. The buffers' names are those of
    quantized tensors in checkpoints.

    Args:
        weight: the weight as a QTensor.
        dtype: of the numbers, `numbers()`.

    Example:
        >>> from qcore.affine import AffineInteger
        >>> from qtorch.quantization import quantize_per_tensor
        >>> weight = QuantizedWeight(
        ...     quantize_per_tensor(torch.tensor([[-1.0, 0.5]]), 0.5, 0, AffineInteger(-8, 7))
        ... )
        >>> weight.packed, weight().int_repr()
        (tensor([[30]], dtype=torch.uint8), tensor([[-2,  1]], dtype=torch.int8))
    """

    channels = 0  # along which dimension scales lie, if there are several
    packed: torch.Tensor
    int_repr: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(self, weight: QTensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        self.form, self.shape, self.axis = weight.form, tuple(weight.shape), weight.qparams.axis
        least = -(1 << _BITS - 1) if self.form.signed else 0
        self.is_packed = least <= self.form.qmin and self.form.qmax < least + (1 << _BITS)
        values = weight.values.contiguous()
        if self.is_packed:
            self.register_buffer("packed", pack(values.reshape(len(values), -1), _BITS))
        else:
            self.register_buffer("int_repr", values)
        self.register_buffer("scale", weight.qparams.scale)
        self.register_buffer("zero_point", weight.qparams.zero_point)

    def numbers(self) -> torch.Tensor:
        """The weight as floats, of `dtype`."""
        return converted(self().dequantize(), self.dtype)

    def forward(self) -> QTensor:
        """The weight."""
        values = self._unpacked(self.packed) if self.is_packed else self.int_repr
        return QTensor(values, QParams(self.scale, self.zero_point, self.axis), self.form)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Some rows of the weight as numbers, in float32."""
        if exported.is_wanted():  # all rows of a constant are unpacked once
            values = self().values[indices]
        elif self.is_packed:
            chosen = self._unpacked(self.packed[indices].reshape(-1, self.packed.shape[1]))
            values = chosen.reshape(*indices.shape, self.shape[1])
        else:
            values = self.int_repr[indices]
        zero, scale = self.zero_point, self.scale
        if self.axis is not None:
            zero, scale = (parameter[indices].unsqueeze(-1) for parameter in (zero, scale))
        return (values.to(torch.int32) - zero).to(torch.float32) * scale

    def _unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        codes, sign = unpack(packed, _BITS, prod(self.shape[1:])), 1 << _BITS - 1
        codes = codes.reshape(-1, *self.shape[1:])
        # Two's complement of 4 bits: flipping the sign bit adds 8 to each number.
        return (codes ^ sign).to(torch.int8) - sign if self.form.signed else codes

    def extra_repr(self) -> str:
        return f"{self.shape}, {self.form}, axis={self.axis}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Loads one scale, or one for each output, as the entry has; refuses floats and other dtypes of integers."""
        name = "packed" if self.is_packed else "int_repr"
        found, own = state_dict.get(prefix + name), getattr(self, name)
        if found is not None and found.dtype != own.dtype:
            others[-1].append(f"{prefix}{name} has dtype {found.dtype}; allowed is {own.dtype}")
            return
        if not keeps_zero_point(self, state_dict, prefix, others[-1]):
            return
        scale = state_dict.get(prefix + "scale")
        if scale is not None and (scale.ndim == 0 or scale.shape == (self.shape[self.channels],)):
            self.axis = self.channels if scale.ndim else None
            self.scale, self.zero_point = (old.new_empty(scale.shape) for old in (self.scale, self.zero_point))
        super()._load_from_state_dict(state_dict, prefix, *others)


def output_of(module: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor, AffineInteger]:
    """The scale, the zero point and the integers of a layer's result, as its `activation_post_process` chose them.

    reduce_range keeps sums of 16 bits from overflowing; the sums here are exact, so the result may have all the
    integers of its type. After fake quantization they are the integers with which the layer was trained.
    """
    observer = getattr(module, "activation_post_process", None)
    if not isinstance(observer, FakeQuantize | RangeObserver):
        raise TypeError(
            f"{type(module).__name__} has as activation_post_process {type(observer).__name__}; allowed are observers "
            "of ranges and FakeQuantize: call prepare with a QConfig whose activation makes one"
        )
    scale, zero_point, form = _chosen(observer)
    if scale.numel() != 1:
        raise ValueError(f"activation_post_process has {scale.numel()} scales; allowed is one for all of a result")
    if isinstance(observer, RangeObserver) and observer.reduce_range:
        form = form._unreduced(integers(observer.dtype))
    return scale.reshape(()), zero_point.reshape(()), form


def weight_of(module: Any, weight: torch.Tensor) -> QTensor:
    """A layer's float32 weight, quantized.

    A layer that was trained with fake quantization keeps the parameters in `weight_fake_quant`. For other layers an
    observer that `qconfig.weight` makes observes the weight.
    """
    observer: Any = getattr(module, "weight_fake_quant", None)
    if observer is None:
        if getattr(module, "qconfig", None) is None:
            raise TypeError(f"{type(module).__name__} has no qconfig and no weight_fake_quant; allowed is one of them")
        # Weights do not depend on data: one observation is enough.
        observer = module.qconfig.weight().to(weight.device)
        observer(weight)
    if not isinstance(observer, (FakeQuantize, RangeObserver)):
        raise TypeError(
            f"qconfig.weight makes {type(observer).__name__}; allowed are observers of ranges and FakeQuantize"
        )
    scale, zero_point, form = _chosen(observer)
    axis: Any = None if scale.numel() == 1 else observer.ch_axis
    shape = () if axis is None else (-1,)
    qparams = QParams(scale.reshape(shape).clone(), zero_point.reshape(shape).clone(), axis)
    return QTensor(conversion.quantize(weight, qparams, form), qparams, form)


def _chosen(observer: Any) -> tuple[torch.Tensor, torch.Tensor, AffineInteger]:
    """The parameters and integers that an observer chooses, or that fake quantization was trained with."""
    if not isinstance(observer, FakeQuantize):
        scale, zero_point = observer.calculate_qparams()
        return _checked_scale(scale), zero_point, observer.rule.form
    if not observer._has_seen:
        raise ValueError("fake quantization has seen nothing; run the model on some data before it is converted")
    scale = _checked_scale(observer.scale.detach().to(torch.float32))
    return scale, observer.zero_point, observer.activation_post_process.rule.form


def _checked_scale(scale: torch.Tensor) -> torch.Tensor:
    """The scale; a range with NaN or infinity has none."""
    if not scale.is_meta and not scale.isfinite().all():
        raise ValueError(
            f"scale={quoted(scale[~scale.isfinite()][0].item())}, since its observer saw numbers that are not finite; "
            "allowed is finite data: did training diverge (a smaller learning rate), or has the data NaN or infinity?"
        )
    return scale


def float_parameters(module: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight and bias in float32 of a layer or of a `torch.nn.Sequential` that begins with one.

    A layer with a method `folded` returns them with its batch norm folded in.
    """
    layer: Any = module[0] if isinstance(module, torch.nn.Sequential) else module
    weight, bias = layer.folded() if hasattr(layer, "folded") else (layer.weight, layer.bias)
    return weight.detach().to(torch.float32), None if bias is None else bias.detach().to(torch.float32).clone()


def in_float32(bias: torch.Tensor | None) -> torch.Tensor | None:
    """A layer's bias, which has the model's dtype, in the dtype of sums; exactly, as float32 holds them all."""
    return bias if bias is None or bias.dtype is torch.float32 else bias.to(torch.float32)


def weight_module(maker: Any, owner: Any, numbers: torch.Tensor) -> Weight:
    """The numbers of a float layer's weight, rounded once by the module that `weight_maker` gives for the layer."""
    if isinstance(maker, Quantizer) and (number := maker.quantization.forward_number) is not None:
        return CodedWeight(numbers, number, maker.quantization.forward_rounding)
    if rounds(maker):
        return Dequantized(numbers.detach().clone())
    return Dequantized(QuantizedWeight(weight_of(owner, numbers.detach().to(torch.float32)), numbers.dtype))


def weight_maker(layer: Any) -> torch.nn.Module:
    """The module that rounds or observes a layer's weight: the one of its training, or one made by its settings."""
    trained = getattr(layer, "weight_fake_quant", None)
    return layer.qconfig.weight() if trained is None else trained


def rounds(module: Any) -> bool:
    """True if a module rounds to a format of floats, or leaves numbers as they are."""
    return isinstance(module, (Quantizer, torch.nn.Identity)) or getattr(module, "number", None) is not None


def empty_weight(shape: tuple[int, ...], dtype: Any) -> QTensor:
    """A weight of zeros."""
    form = integers(dtype)
    values = torch.zeros(shape, dtype=getattr(torch, form.storage))
    return QTensor(values, QParams(torch.tensor(1.0), torch.tensor(0, dtype=torch.int32)), form)


def check_weight(layer: Any, weight: Any) -> None:
    """Raises unless a weight can replace a layer's weight."""
    if not isinstance(weight, QTensor):
        raise TypeError(f"weight is a {type(weight).__name__}; allowed is a QTensor")
    if tuple(weight.shape) != layer.weight.shape:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; allowed is {layer.weight.shape}")
