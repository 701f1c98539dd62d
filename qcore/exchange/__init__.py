"""Files for other programs, and of them: graphs in ONNX. What needs the package onnx imports it when it is used."""

from qcore.exchange.run import run_onnx

__all__ = ["run_onnx"]
