"""Arithmetic of quantized arrays, by one law that NumPy, PyTorch and JAX run alike.

The functions take quantized arrays of any framework (`QArray`, `qtorch.quantization.QTensor`,
`qjax.quantization.QTensor`) and return arrays of the same kind. docs/affine.md has the law.
"""

from qcore.affine.functional import activations, elementwise, norms, pools, resize
from qcore.affine.functional.activations import *
from qcore.affine.functional.activations import unit_qparams
from qcore.affine.functional.elementwise import *
from qcore.affine.functional.norms import *
from qcore.affine.functional.pools import *
from qcore.affine.functional.resize import *
from qcore.lazy import public_names

__all__ = ["unit_qparams"]
__all__ += activations.__all__
__all__ += elementwise.__all__
__all__ += norms.__all__
__all__ += pools.__all__
__all__ += resize.__all__
__dir__ = public_names(__name__)
