"""Models as files for other programs, bit for bit.

`to_onnx` writes a model in ONNX, `to_qonnx` in QONNX for tools that build hardware, and `to_compressed_tensors` weights
and a configuration for servers.
"""

from qcore.lazy import public_names
from qtorch.export.hardware import to_qonnx
from qtorch.export.models import to_onnx
from qtorch.export.servers import to_compressed_tensors

__all__ = ["to_compressed_tensors", "to_onnx", "to_qonnx"]
__dir__ = public_names(__name__)
