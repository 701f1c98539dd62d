"""The parts of large modules in the API reference: a page each, with the names that match its patterns.

A name belongs to the first part that has a pattern for it. Patterns are those of `fnmatch`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from qcore.affine.functional import activations
from qcore.affine.rows import OPERATIONS

_ACTIVATIONS = " ".join(activations.__all__)
_LAYERS = " ".join(name for law in activations.__all__ for name in OPERATIONS[law].layers)
_QUANTIZATION = {
    "workflow": "quantize_model prepare* convert* fuse* *eport quantize quantize_dynamic quantize_qat",
    "layers and files": "default_eval_fn load* save restore *_torch_ao *Stub QuantWrapper add_* swap_module "
    "propagate_qconfig_ *_mappings get_default_qconfig_propagation_list Layer*",
    "fake quantization": "*fake_quant* FakeQuantize* disable_observer enable_observer get_observer_dict",
    "observers": "*bserver*",
    "settings": "*qconfig* QConfig*",
    "tensors": "*",
}
_REPRODUCIBLE = {
    "arithmetic": "abs add clamp divide equal less* *imum multiply Names reciprocal subtract to_integers where settle",
    "elementary functions": "cos erf exp expm1 log log1p pow rsqrt sin sqrt",
    "activations": "*elu* *sigmoid hardswish hardtanh prelu silu softplus tanh",
    "sums and orders": "argmax argsort logsumexp max mean norm sort sum var",
    "shapes": "broadcast_to chunk embedding moved narrow pad part take take_along_axis",
    "layers and losses": "*pool2d *_norm conv* cross_entropy dropout linear *softmax matmul mse normalize *_attention",
    "training": "*",
}
_ARITHMETIC = {
    "sums and roots": "add subtract multiply divide fma faa reciprocal sqrt rsqrt hypot",
    "sums and roots of codes": "add_* subtract_* multiply_* divide_* fma_* faa_* reciprocal_* sqrt_* rsqrt_* hypot_*",
    "exponentials of codes": "exp*_codes log*_codes softplus_codes erf_codes",
    "exponentials": "exp* log* softplus erf",
    "hyperbolas of codes": "*sinh_codes *cosh_codes *tanh_codes",
    "hyperbolas": "*sinh *cosh *tanh",
    "choices of codes": "abs_* negate_* copysign_* clamp_* *imum*_codes next_*_codes",
    "choices": "abs negate copysign clamp *imum* next_*",
    "questions of codes": "is_*_codes less*_codes greater*_codes equal_* total_order_* classify_*",
    "questions": "is_* less* greater* equal total_order classify CLASSES",
    "circles of codes": "*_codes",
    "circles": "*",
}

PARTS = {
    "qcore": {
        "formats": "BinaryFloat FloatingPoint FixedPoint NAMED Number Posit Table p3109",
        "formats of blocks": "Block* Doubled GGUF NVFP4",
        "arrays": "quantize encode decode pack unpack Rounding fold_in parse register_format",
        "products and recipes": "*",
    },
    "qcore.arithmetic": _ARITHMETIC,
    "qcore.affine": {"observers": "*MinMax Extremes Noop Recording Histogram Counts", "numbers and parameters": "*"},
    "qcore.affine.functional": {
        "activations": f"{_ACTIVATIONS} unit_qparams",
        "layers": "*pool* *norm interpolate mean",
        "elementwise": "*",
    },
    "qcore.engines": {"data": "Attention CACHES ENGINES Engine KVCache Published*", "attention and mismatch": "*"},
    "qcore.insight": {"choosing": "Choice choose_formats Point Sensitivity sensitivity", "records": "*"},
    "qcore.reproducible": _REPRODUCIBLE,
    "qjax.arithmetic": _ARITHMETIC,
    "qjax.nnx": {
        "layers": f"{_LAYERS} ReLU* Activation Conv Linear Multihead* Scaling GRU LSTM *Stub QuantWrapper Identity",
        "functions": "*pool* *relu* hard_tanh softmax",
        "observers": "Observe* FloatFunctional Quantizer Trained *fake_quant *observer *bn_stats",
        "workflow": "*",
    },
    "qjax.quantization": _QUANTIZATION,
    "qjax.quantization.functional": {
        "shapes": "channel_shuffle chunk concatenate flip masked_fill pad pixel_shuffle repeat split stack tile un*",
        "layers": "*",
    },
    "qjax.reproducible": _REPRODUCIBLE,
    "qtorch.arithmetic": _ARITHMETIC,
    "qtorch.nn.quantized": {"activations and operations": f"{_LAYERS} ReLU* *Functional", "layers": "*"},
    "qtorch.quantization": _QUANTIZATION,
    "qtorch.reproducible": _REPRODUCIBLE,
}


def part_of(module: str, name: str) -> str:
    """The part of a module that describes a name; "" if the module has one page."""
    for title, patterns in PARTS.get(module, {}).items():
        if any(fnmatchcase(name, pattern) for pattern in patterns.split()):
            return title
    return ""
