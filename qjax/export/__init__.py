"""Functions and models as files for other programs, bit for bit.

`to_onnx` writes them in ONNX, `to_qonnx` in QONNX for tools that build hardware, and `run_onnx` executes a file.
"""

from qcore.lazy import public_names
from qjax.export.hardware import to_qonnx
from qjax.export.models import to_onnx
from qjax.export.run import run_onnx

__all__ = ["run_onnx", "to_onnx", "to_qonnx"]
__dir__ = public_names(__name__)
