"""Modules of flax nnx: `Quantizer`, layers of `qjax.linalg`, and torch's workflow of quantized models.

It needs flax, which `import qjax` does not.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from qjax.quantization import default_qconfig
    >>> model = prepare(QuantWrapper(nnx.Linear(2, 3, rngs=nnx.Rngs(0))), default_qconfig)
    >>> nnx.jit(lambda model, x: model(x))(model, jnp.ones((4, 2))).shape  # calibration
    (4, 3)
    >>> convert(model)(jnp.ones((4, 2))).shape
    (4, 3)

Each step returns a new model. Structure is decided outside jit. Ranges, scales and integers are nnx.Variables but not
nnx.Params, so gradients and optimizers do not change them. docs/workflow.md has the steps.
"""

try:
    import flax.nnx  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("qjax.nnx needs flax: pip install flax") from error

from qcore.lazy import public_names
from qjax.nnx import activations, intrinsic, quantized
from qjax.nnx.activations import *
from qjax.nnx.functional import avg_pool, hard_tanh, leaky_relu, max_pool, relu, relu6, softmax
from qjax.nnx.products import Conv, Linear, MultiheadAttention, Scaling
from qjax.nnx.quantization.conversion import convert
from qjax.nnx.quantization.front import quantize_model
from qjax.nnx.quantization.fusion import fuse_modules
from qjax.nnx.quantization.loading import from_torch, to_torch
from qjax.nnx.quantization.observing import FloatFunctional, Observed, Observer, ObserverState
from qjax.nnx.quantization.one_call import quantize_dynamic
from qjax.nnx.quantization.preparation import prepare, prepare_qat
from qjax.nnx.quantization.reporting import report
from qjax.nnx.quantization.stubs import DeQuantStub, Identity, QuantStub, QuantWrapper
from qjax.nnx.quantization.training import (
    Trained,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    freeze_bn_stats,
    update_bn_stats,
)
from qjax.nnx.quantizer import Quantizer
from qjax.nnx.recurrent import GRU, LSTM

__all__ = [
    "GRU",
    "LSTM",
    "Conv",
    "DeQuantStub",
    "FloatFunctional",
    "Identity",
    "Linear",
    "MultiheadAttention",
    "Observed",
    "Observer",
    "ObserverState",
    "QuantStub",
    "QuantWrapper",
    "Quantizer",
    "Scaling",
    "Trained",
    "avg_pool",
    "convert",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "freeze_bn_stats",
    "from_torch",
    "fuse_modules",
    "hard_tanh",
    "intrinsic",
    "leaky_relu",
    "max_pool",
    "prepare",
    "prepare_qat",
    "quantize_dynamic",
    "quantize_model",
    "quantized",
    "relu",
    "relu6",
    "report",
    "softmax",
    "to_torch",
    "update_bn_stats",
]
__all__ += activations.__all__
__dir__ = public_names(__name__)
