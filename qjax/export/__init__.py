"""Functions and models as files for other programs, bit for bit.

`to_onnx` writes them in ONNX, `to_qonnx` in QONNX for tools that build hardware, and `to_compressed_tensors` weights
of models of flax and a configuration for servers.
"""

from typing import TYPE_CHECKING

from qcore.lazy import subpackages
from qjax.export.hardware import to_qonnx
from qjax.export.models import to_onnx

if TYPE_CHECKING:
    from qjax.export.servers import to_compressed_tensors

__all__ = ["to_compressed_tensors", "to_onnx", "to_qonnx"]
# It needs flax, and is imported when it is first used.
__getattr__, __dir__ = subpackages(__name__, [], {"qjax.export.servers": ["to_compressed_tensors"]})
