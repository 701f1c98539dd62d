"""Layers for quantization-aware training: they train with the rounding of their quantized form."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

import jax
from flax import nnx

from qjax._models import check_model, unnamed
from qjax.nnx.functional import relu
from qjax.nnx.intrinsic import Fused
from qjax.nnx.layouts import flax_layout, torch_layout
from qjax.nnx.quantization.fusion import with_parameters
from qjax.nnx.quantization.observing import Observed, Observer
from qjax.quantization import QConfig, fake_state
from qjax.quantization.functional.conv_bn import ConvBnParams, folded_in_training, normalized


class Trained(Observed):
    """A layer with a fake-quantized weight and fake-quantized results.

    With a batch norm it has the form that is stable for gamma = 0. With y = conv(x, w), the batch norm sees y + bias,
    and the result is conv(x, fq(w * gamma / s)) * s / s' + beta - gamma * mean(y) / s', where s is the running
    deviation after this batch and s' the deviation of the batch, each sqrt(variance + eps). In evaluation, and with
    frozen statistics, it is conv(x, fq(w * gamma / s)) + beta + (bias - mean) * gamma / s with running statistics.

    Args:
        module: an `nnx.Linear`, an `nnx.Conv`, or a fused layer.
        qconfig: the fake quantization of results and weights.

    Attributes:
        weight_fake_quant: the fake quantization of the weight, in torch's layout.
        frozen: True if running statistics stay as they are; see `freeze_bn_stats`.

    Example:
        >>> from qjax.quantization import default_qat_qconfig
        >>> layer = Trained(nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0)), default_qat_qconfig)
        >>> type(layer.weight_fake_quant.description).__name__, layer.frozen
        ('FakeQuantize', False)
    """

    def __init__(self, module: nnx.Linear | nnx.Conv | Fused, qconfig: QConfig) -> None:
        super().__init__(module, qconfig)
        layer = module.layer if isinstance(module, Fused) else module
        if not hasattr(layer, "kernel"):
            raise TypeError(f"module is a {type(module).__name__}; allowed are a Linear, a Conv and fused ones")
        self.weight_fake_quant = Observer(qconfig.weight, torch_layout(layer).shape)
        self.frozen = False

    def __call__(self, inputs: jax.Array) -> jax.Array:
        x = inputs
        module: Any = self.module
        layer: Any = module.layer if isinstance(module, Fused) else module
        bn = module.bn if isinstance(module, Fused) else None
        if bn is None:
            y = self._run(layer, torch_layout(layer), None if layer.bias is None else layer.bias[...], x)
        elif self.frozen or bn.use_running_average:
            y = self._run(layer, *folded(layer, bn), x)
        else:
            y = self._normalized(layer, bn, x)
        y = y.astype(x.dtype)  # a batch norm's statistics are float32 in models of bfloat16, too
        return self.observed(relu(y) if isinstance(module, Fused) and module.has_relu else y)

    def _run(self, layer: Any, weight: jax.Array, bias: Any, x: jax.Array) -> jax.Array:
        return with_parameters(layer, flax_layout(self.weight_fake_quant(weight)), bias)(x)

    def _normalized(self, layer: Any, bn: nnx.BatchNorm, x: jax.Array) -> jax.Array:
        def convolve(weight: jax.Array) -> jax.Array:
            return with_parameters(layer, flax_layout(weight), None)(x)

        def observe(y: jax.Array) -> Any:
            bn(y)
            return bn.var[...]

        return normalized(convolve, conv_bn_params(layer, bn), observe, self.weight_fake_quant, bn.epsilon, -1)


def conv_bn_params(layer: Any, bn: Any) -> ConvBnParams:
    """The parameters of a convolution and its batch norm, in torch's layout."""
    bias = None if layer.bias is None else layer.bias[...]
    return ConvBnParams(torch_layout(layer), bias, bn.scale[...], bn.bias[...])


def folded(layer: Any, bn: Any) -> tuple[jax.Array, jax.Array]:
    """The weight (in torch's layout) and bias of a convolution after folding its batch norm's running statistics."""
    return folded_in_training(conv_bn_params(layer, bn), bn.mean[...], bn.var[...], bn.epsilon)


unnamed(Trained, "module")


def _switch(name: str, what: str) -> Callable[[nnx.Module], nnx.Module]:
    """A function of `qjax.quantization` for states, of a model: it returns a copy `what`."""
    verb, _, field = name.partition("_")
    other = f"{'disable' if verb == 'enable' else 'enable'}_{field}"

    def switch(model: nnx.Module) -> nnx.Module:
        """A copy of a model {what}.

        Args:
            model: the result of `prepare_qat`.

        Returns:
            A module of model's class with its own arrays; model is not changed.

        Example:
            >>> from qjax.nnx import prepare_qat
            >>> from qjax.quantization import default_qat_qconfig
            >>> model = {other}(prepare_qat(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), default_qat_qconfig))
            >>> {name}(model).weight_fake_quant.state.get_value().{field}_enabled
            Array({is_on}, dtype=bool)
        """
        return _switched(model, getattr(fake_state, name))

    texts = {"name": name, "what": what, "other": other, "field": field, "is_on": verb == "enable"}
    switch.__doc__ = cleandoc(switch.__doc__ or "").format(**texts)
    switch.__name__ = switch.__qualname__ = name
    return switch


disable_observer = _switch("disable_observer", "with fixed ranges and parameters; see `prepare_qat`")
enable_observer = _switch("enable_observer", "that observes ranges in training")
disable_fake_quant = _switch("disable_fake_quant", "that computes in floats, and still observes")
enable_fake_quant = _switch("enable_fake_quant", "whose weights and results are fake-quantized")


def _freezing(name: str, frozen: bool, what: str) -> Callable[[nnx.Module], nnx.Module]:
    """A function of a model: it returns a copy whose fused batch norms do `what`."""

    def freeze(model: nnx.Module) -> nnx.Module:
        """A copy of a model for training whose fused batch norms {what}.

        Args:
            model: the result of `prepare_qat`.

        Returns:
            A module of model's class with its own arrays; model is not changed.

        Raises:
            TypeError, ValueError: if it is something else, or has no fused batch norm.

        Example:
            >>> from qjax.nnx.intrinsic import ConvBn
            >>> from qjax.quantization import default_qat_qconfig
            >>> layers = nnx.Conv(1, 1, (1,), rngs=nnx.Rngs(0)), nnx.BatchNorm(1, rngs=nnx.Rngs(0))
            >>> {name}(Trained(ConvBn(*layers), default_qat_qconfig)).frozen
            {frozen}
        """
        return _frozen(model, frozen)

    freeze.__doc__ = cleandoc(freeze.__doc__ or "").format(name=name, what=what, frozen=frozen)
    freeze.__name__ = freeze.__qualname__ = name
    return freeze


freeze_bn_stats = _freezing("freeze_bn_stats", True, "use running statistics without updating them")
update_bn_stats = _freezing("update_bn_stats", False, "use and update statistics of each batch again")


def _switched(model: nnx.Module, switch: Callable[[Any], Any]) -> nnx.Module:
    check_model("model", model)
    copy = nnx.clone(model)
    observers = [module for _, module in nnx.iter_modules(copy) if isinstance(module, Observer) and module._rounds]
    if not observers:
        raise ValueError("model has no fake quantization; allowed is what prepare_qat returned")
    for observer in observers:
        observer.state.set_value(switch(observer.state.get_value()))
    return copy


def _frozen(model: nnx.Module, frozen: bool) -> nnx.Module:
    check_model("model", model)
    copy = nnx.clone(model)
    layers = [module for _, module in nnx.iter_modules(copy) if isinstance(module, Trained)]
    fused = [one for one in layers if isinstance(one.module, Fused) and one.module.bn is not None]
    if not fused:
        raise ValueError("model has no batch norm that is fused with a Conv; allowed is what prepare_qat returned")
    for layer in fused:
        layer.frozen = frozen
    return copy
