"""Functions of quantized tensors, with the names and arguments of torch's; the law is `qcore.affine.functional`.

Pools, interpolation and clamps keep the input's parameters; other functions take a scale and a zero point.
"""

from qcore.lazy import public_names
from qtorch._affine import activations, elementwise, pools, resize
from qtorch._affine.activations import *
from qtorch._affine.elementwise import *
from qtorch._affine.functional import conv1d, conv2d, conv3d, linear
from qtorch._affine.pools import *
from qtorch._affine.resize import *

__all__ = ["conv1d", "conv2d", "conv3d", "linear"]
__all__ += activations.__all__
__all__ += elementwise.__all__
__all__ += pools.__all__
__all__ += resize.__all__
__dir__ = public_names(__name__)
