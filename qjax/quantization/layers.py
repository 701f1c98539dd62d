"""Layers of a traced program: products of an activation with a parameter, and their quantized parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qcore.affine import AffineInteger, QParams, law
from qcore.affine.functional import recurrent
from qjax._jaxprs import bind
from qjax._namespace import Names
from qjax._parameters import Parameters, parameters
from qjax.quantization.affine import fake_quantize
from qjax.quantization.fake_state import FakeQuantize, FakeQuantizeState
from qjax.quantization.integer import PackedTensor, sums_of_products, sums_of_windows
from qjax.quantization.observer import State
from qjax.quantization.rounding import CodedArray, FormatRounding
from qjax.quantization.scaled import round_with_scale
from qjax.quantization.tensor import QTensor

_FLOATS = ("float32", "bfloat16", "float16")


class Use(NamedTuple):
    """How a layer uses a parameter.

    Attributes:
        order: the parameter's axes in torch's order: outputs, inputs, sizes of the kernel.
        stacked: the number of leading axes over which scans take one weight after the other.
    """

    order: tuple[int, ...]
    stacked: int = 0


class Source(NamedTuple):
    """The origin of a variable that holds a parameter, with its axes in some order.

    Attributes:
        path: of the parameter.
        use: the order of the variable's axes.
    """

    path: str
    use: Use

    def transposed(self, order: Sequence[int]) -> Source:
        """The source after a transposition."""
        return self._replace(use=self.use._replace(order=tuple(self.use.order[axis] for axis in order)))

    def sliced(self) -> Source | None:
        """One slice along the first axis; None if that is not the parameter's first axis."""
        if not self.use.order or self.use.order[0] != 0:
            return None
        return Source(self.path, Use(tuple(axis - 1 for axis in self.use.order[1:]), self.use.stacked + 1))


@partial(jax.tree_util.register_dataclass, data_fields=["input", "weight"], meta_fields=["use"])
@dataclass(frozen=True)
class LayerState:
    """The state of a layer's observers: a pytree.

    Attributes:
        input: the state of the observer, or of the `FakeQuantize`, of what goes into the layer; None if it is quantized
            by its own range.
        weight: the state of the weight's `FakeQuantize`, else None.
        use: how the layer uses its parameter.

    Example:
        >>> from qjax.quantization import default_dynamic_qconfig, prepare_fn
        >>> init, _ = prepare_fn(lambda w, x: x @ w["w"], default_dynamic_qconfig)
        >>> init({"w": jnp.ones((2, 1))}, jnp.ones((1, 2)))["w"]  # inputs first: outputs are on axis 1
        LayerState(input=None, weight=None, use=Use(order=(1, 0), stacked=0))
    """

    input: FakeQuantizeState | State | None
    weight: FakeQuantizeState | None
    use: Use


@partial(jax.tree_util.register_dataclass, data_fields=["weight", "input"], meta_fields=["form", "use", "dtype"])
@dataclass(frozen=True)
class LayerWeight:
    """A quantized parameter, which `convert_params` puts in a parameter's place: a pytree.

    Attributes:
        weight: the quantized parameter. A QTensor or an array of float16 has its axes in their places; integers of up
            to 4 bits lie two in a byte, and numbers of other formats as codes, with outputs first.
        input: the parameters of what goes into the layer, or None.
        form: the integers of what goes in, which is quantized by its own range where input is None; or what rounds it.
        use: how the layer uses the parameter.
        dtype: of the parameter in floats.

    Example:
        >>> from qcore.affine import UINT8
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.float32([[0.5], [-1]]), 0.25, 0, "qint8")
        >>> layer = LayerWeight(weight, None, UINT8, Use((1, 0)), "float32")
        >>> layer.shape, layer.dequantize().ravel()
        ((2, 1), Array([ 0.5, -1. ], dtype=float32))
    """

    weight: QTensor | PackedTensor | CodedArray | jax.Array
    input: QParams | None
    form: AffineInteger | FormatRounding | FakeQuantize
    use: Use
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameter's."""
        shape = tuple(self.weight.shape)
        if isinstance(self.weight, (PackedTensor, CodedArray)):
            codes = self.weight.packed if isinstance(self.weight, PackedTensor) else self.weight.codes
            own = 2 if isinstance(self.weight, PackedTensor) else len(shape)
            return (*codes.shape[: codes.ndim - own], *(shape[place] for place in inverse(self.use.order)))
        return shape

    def dequantize(self) -> jax.Array:
        """The parameter in floats."""
        numbers = LayerWeight._numbers
        for _ in range(len(self.shape) - len(self.use.order)):
            numbers = jax.vmap(numbers)
        return numbers(self).astype(self.dtype)

    def _numbers(self) -> jax.Array:
        return jnp.transpose(self._numbers_in_torch_layout(), inverse(self.use.order))

    def _in_torch_layout(self) -> QTensor | None:
        """The integers of one weight with its outputs first, or None if it has none."""
        q = self.weight
        if isinstance(q, PackedTensor):
            return q.unpacked()
        if not isinstance(q, QTensor):
            return None
        axis = None if q.qparams.axis is None else 0
        return QTensor(
            jnp.transpose(q.values, self.use.order), QParams(q.qparams.scale, q.qparams.zero_point, axis), q.form
        )

    def _numbers_in_torch_layout(self) -> jax.Array:
        """The numbers of one weight in float32 with its outputs first."""
        if (q := self._in_torch_layout()) is not None:
            return q.dequantize()
        weight: Any = self.weight
        if isinstance(weight, CodedArray):
            return weight.numbers()
        return jnp.transpose(weight, self.use.order).astype(jnp.float32)


class Layer(NamedTuple):
    """An equation that is a layer.

    Attributes:
        weight: the index of the operand that is the parameter.
        source: the parameter, with its axes in torch's order.
        axes: the operand's axes in torch's order.
    """

    weight: int
    source: Source
    axes: tuple[int, ...]


def layer_of(equation: Any, sources: Sequence[Any]) -> Layer | None:
    """The layer that an equation is, or None: a product or a convolution of floats, of which one is a parameter."""
    known = [number for number, source in enumerate(sources) if isinstance(source, Source)]
    name = equation.primitive.name
    if len(known) != 1 or any(atom.aval.dtype.name not in _FLOATS for atom in (*equation.invars, *equation.outvars)):
        return None
    (number,) = known
    if name == "dot_general":
        contracted, batch = parameters(equation).dimension_numbers
        if len(contracted[0]) != 1 or batch[0] or len(equation.invars[number].aval.shape) != 2:
            return None
        inputs = contracted[number][0]
        return _layer(number, sources[number], (1 - inputs, inputs))
    if name != "conv_general_dilated" or number != 1 or not _is_plain(parameters(equation)):
        return None
    return _layer(1, sources[1], tuple(parameters(equation).dimension_numbers.rhs_spec))


def _layer(number: int, source: Source, axes: tuple[int, ...]) -> Layer:
    return Layer(number, source.transposed(axes), axes)


def _is_plain(params: Parameters) -> bool:
    steps = params.lhs_dilation
    pads = all(low >= 0 and high >= 0 for low, high in params.padding)
    return params.batch_group_count == 1 and pads and all(step == 1 for step in steps) and 1 <= len(steps) <= 3


def result_of(equation: Any, layer: Layer, x: jax.Array, weight: LayerWeight) -> jax.Array:
    """The layer's result: computed in integers if both operands are integers, else from the rounded floats."""
    w, form = weight._in_torch_layout(), weight.form
    if isinstance(form, FormatRounding):
        x = form.apply(None, x)[0]
    elif isinstance(form, FakeQuantize):
        x = round_with_scale(x, weight.input.scale, form.number, 0)  # type: ignore[union-attr, arg-type]
    elif w is not None:
        return _in_integers(equation, layer.weight, x, weight.input, form, w)
    elif weight.input is not None:
        x = fake_quantize(x, weight.input, form)
    numbers = jnp.transpose(weight._numbers_in_torch_layout(), inverse(layer.axes))
    operands = [x, numbers.astype(equation.invars[layer.weight].aval.dtype)]
    return bind(equation, operands if layer.weight else operands[::-1])[0]


def _in_integers(
    equation: Any, number: int, x: jax.Array, qparams: QParams | None, form: AffineInteger, w: QTensor
) -> jax.Array:
    """Exact sums of integers, times both scales (`qcore.affine.functional.recurrent`)."""
    q, scale = _quantized(x, qparams, form)
    if equation.primitive.name == "dot_general":
        axis = parameters(equation).dimension_numbers[0][1 - number][0]
        sums = sums_of_products(q._with(jnp.moveaxis(q.values, axis, -1)[..., None, :]), w)
        y = recurrent.dynamic_output(Names, sums, scale, w.qparams.scale, None)
        y = y if number == 1 else jnp.moveaxis(y, -1, 0)
    else:
        params = parameters(equation)
        layout = params.dimension_numbers
        batch, features, *sizes = layout.lhs_spec
        images = q._with(jnp.transpose(q.values, (batch, *sizes, features)))
        settings = params.window_strides, params.padding, params.rhs_dilation
        sums = sums_of_windows(images, w, *settings, params.feature_group_count)
        y = jnp.moveaxis(recurrent.dynamic_output(Names, sums, scale, w.qparams.scale, None), -1, 1)
        y = jnp.transpose(y, inverse(layout.out_spec))
    return y.astype(equation.outvars[0].aval.dtype)


def _quantized(x: jax.Array, qparams: QParams | None, form: AffineInteger) -> tuple[QTensor, jax.Array]:
    """The integers of a layer's input, and their scale, which may be NaN; without parameters by its own range."""
    x = Names.astype(x, "float32")
    if qparams is None:
        q, qparams = recurrent.quantize_dynamic(Names, x, form)
    else:
        with Names.arithmetic():
            q = law.quantize(Names, x, qparams.scale, qparams.zero_point, None, form)
    whole = QParams(jnp.ones_like(qparams.scale), qparams.zero_point)
    return QTensor(q.astype(form.storage), whole, form), qparams.scale


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The transposition that undoes another one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))
