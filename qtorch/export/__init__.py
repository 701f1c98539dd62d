"""Models as files for other programs: `to_onnx` writes a model in ONNX with the library's integers, bit for bit."""

from qtorch.export.models import to_onnx

__all__ = ["to_onnx"]
