"""Pure functions of quantized arrays: layers, pools, norms, activations and sums, by one law for all frameworks.

They take and return QTensors, which are pytrees, under jit, vmap, scan and any sharding. The results of most have the
parameters that `output`, or `scale` and `zero_point`, give; results of pools and clamps have the parameters of their
input. Images have channels first; with channels_last=True, pools, norms and convolutions take them last. Products of
floats with quantized weights, and recurrent layers, quantize their input by its own range.

    >>> import jax.numpy as jnp
    >>> from qjax.quantization import quantize_per_tensor
    >>> images = quantize_per_tensor(jnp.arange(16.0).reshape(1, 4, 4, 1), 0.1, 0, "quint8")
    >>> max_pool(images, 2, kernel_size=2, channels_last=True).dequantize()[0, :, :, 0]
    Array([[ 5.,  7.],
           [13., 15.]], dtype=float32)
"""

from qcore.affine.functional import activations, elementwise
from qcore.affine.functional.activations import *
from qcore.affine.functional.elementwise import *
from qcore.lazy import public_names
from qjax.quantization import moves
from qjax.quantization.functional import dynamic, images, products
from qjax.quantization.functional.conv_bn import ConvBnParams, ConvBnState, conv_bn, fold_conv_bn
from qjax.quantization.functional.dynamic import *
from qjax.quantization.functional.images import *
from qjax.quantization.functional.products import *
from qjax.quantization.moves import *
from qjax.quantization.moves import concatenate
from qjax.quantization.moves import masked_fill as masked_fill  # of arrays, too, unlike those of elementwise
from qjax.quantization.moves import stack as stack

__all__ = ["ConvBnParams", "ConvBnState", "concatenate", "conv_bn", "fold_conv_bn"]
__all__ += activations.__all__
__all__ += dynamic.__all__
__all__ += elementwise.__all__
__all__ += images.__all__
__all__ += moves.__all__
__all__ += products.__all__
__dir__ = public_names(__name__)
