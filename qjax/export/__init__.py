"""Models out and in: ONNX and QONNX."""

from qjax.export.run import run_onnx

__all__ = ["run_onnx"]
