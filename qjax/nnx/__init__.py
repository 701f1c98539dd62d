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

Each step returns a new model. Structure is decided outside jit; ranges, scales and integers are nnx.Variables that are
no nnx.Param, so that gradients and optimizers leave them alone. docs/workflow.md has the steps.
"""

try:
    import flax.nnx  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("qjax.nnx needs flax: pip install flax") from error

from qjax.nnx import intrinsic, quantized
from qjax.nnx.functional import relu
from qjax.nnx.products import Conv, Linear, MultiheadAttention
from qjax.nnx.quantizer import Quantizer
from qjax.nnx.workflow.carrying import from_torch
from qjax.nnx.workflow.observing import FloatFunctional, Observed, Observer, ObserverState
from qjax.nnx.workflow.steps.conversion import convert
from qjax.nnx.workflow.steps.fusion import fuse_modules
from qjax.nnx.workflow.steps.preparation import prepare
from qjax.nnx.workflow.steps.training import (
    Trained,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    freeze_bn_stats,
    prepare_qat,
    update_bn_stats,
)
from qjax.nnx.workflow.stubs import DeQuantStub, Identity, QuantStub, QuantWrapper, ReLU

__all__ = [
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
    "ReLU",
    "Trained",
    "convert",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "freeze_bn_stats",
    "from_torch",
    "fuse_modules",
    "intrinsic",
    "prepare",
    "prepare_qat",
    "quantized",
    "relu",
    "update_bn_stats",
]
