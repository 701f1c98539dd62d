"""Affine integer quantization: the names of `torch.quantization` as pure functions of arrays and pytrees.

Everything has the bits of `qcore.affine`, and of `qtorch.quantization`; `docs/affine.md` has the law. Observers and
`FakeQuantize` are frozen descriptions, whose states the caller keeps and passes through jit, scan, vmap and grad:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> module = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
    >>> batches = jnp.float32([[-1, 0.5, 2], [-0.5, 0.25, 3]])
    >>> state, outputs = jax.lax.scan(
    ...     lambda state, x: module.apply(state, x)[::-1], module.init(), batches
    ... )
    >>> quantize_affine(batches[1], module.qparams(state), "quint8").int_repr()
    Array([ 42, 105, 255], dtype=uint8)

Traced programs do not check the values of parameters. Histogram observers and `choose_qparams_dynamic` compute with
64-bit types even if x64 is not enabled.
"""

from qcore.affine import AffineInteger, QParams
from qcore.lazy import public_names
from qjax.quantization.affine import (
    choose_qparams_dynamic,
    fake_quantize,
    fake_quantize_per_channel_affine,
    fake_quantize_per_tensor_affine,
)
from qjax.quantization.checkpoint import load, restore, save
from qjax.quantization.fake_state import (
    FakeQuantize,
    FakeQuantizeState,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    get_observer_dict,
)
from qjax.quantization.functional.products import conv1d, conv2d, conv3d, linear
from qjax.quantization.functions import LayerState, LayerWeight, convert_fn, convert_params, prepare_fn
from qjax.quantization.observer import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAverageObserver,
    MovingAveragePerChannelMinMaxObserver,
    NoopObserver,
    Observer,
    ObserverBase,
    PerChannelMinMaxObserver,
    RecordingObserver,
    RuleObserver,
)
from qjax.quantization.qconfig import (
    QConfig,
    QConfigDynamic,
    default_activation_only_qconfig,
    default_debug_observer,
    default_debug_qconfig,
    default_dynamic_qconfig,
    default_fake_quant,
    default_histogram_fake_quant,
    default_histogram_observer,
    default_observer,
    default_per_channel_qconfig,
    default_per_channel_weight_fake_quant,
    default_per_channel_weight_observer,
    default_qat_qconfig,
    default_qconfig,
    default_weight_fake_quant,
    default_weight_observer,
    default_weight_only_qconfig,
    float16_dynamic_qconfig,
    get_default_qat_qconfig,
    get_default_qconfig,
    per_channel_dynamic_qconfig,
)
from qjax.quantization.tensor import (
    QTensor,
    dequantize,
    int_repr,
    q_per_channel_axis,
    q_per_channel_scales,
    q_per_channel_zero_points,
    q_scale,
    q_zero_point,
    quantize_affine,
    quantize_per_channel,
    quantize_per_tensor,
)

__all__ = [
    "AffineInteger",
    "FakeQuantize",
    "FakeQuantizeState",
    "HistogramObserver",
    "LayerState",
    "LayerWeight",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAverageObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "NoopObserver",
    "Observer",
    "ObserverBase",
    "PerChannelMinMaxObserver",
    "QConfig",
    "QConfigDynamic",
    "QParams",
    "QTensor",
    "RecordingObserver",
    "RuleObserver",
    "choose_qparams_dynamic",
    "conv1d",
    "conv2d",
    "conv3d",
    "convert_fn",
    "convert_params",
    "default_activation_only_qconfig",
    "default_debug_observer",
    "default_debug_qconfig",
    "default_dynamic_qconfig",
    "default_fake_quant",
    "default_histogram_fake_quant",
    "default_histogram_observer",
    "default_observer",
    "default_per_channel_qconfig",
    "default_per_channel_weight_fake_quant",
    "default_per_channel_weight_observer",
    "default_qat_qconfig",
    "default_qconfig",
    "default_weight_fake_quant",
    "default_weight_observer",
    "default_weight_only_qconfig",
    "dequantize",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "fake_quantize",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_tensor_affine",
    "float16_dynamic_qconfig",
    "get_default_qat_qconfig",
    "get_default_qconfig",
    "get_observer_dict",
    "int_repr",
    "linear",
    "load",
    "per_channel_dynamic_qconfig",
    "prepare_fn",
    "q_per_channel_axis",
    "q_per_channel_scales",
    "q_per_channel_zero_points",
    "q_scale",
    "q_zero_point",
    "quantize_affine",
    "quantize_per_channel",
    "quantize_per_tensor",
    "restore",
    "save",
]
__dir__ = public_names(__name__, "functional")
