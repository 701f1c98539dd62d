"""Models as files for other programs, bit for bit: `to_onnx` writes a model in ONNX, `run_onnx` executes one."""

from qtorch.export.models import to_onnx
from qtorch.export.run import run_onnx

__all__ = ["run_onnx", "to_onnx"]
