"""Models out and in: ONNX and QONNX."""

from qjax.export.models import to_onnx
from qjax.export.run import run_onnx

__all__ = ["run_onnx", "to_onnx"]
