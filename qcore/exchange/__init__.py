"""Files of other programs: models in ONNX, and quantized weights.

What needs the package onnx imports it when it is used.
"""

from qcore.exchange.encoded import Encoded
from qcore.exchange.loading import load_quantized, save_quantized
from qcore.exchange.run import run_onnx
from qcore.exchange.writing import encode_weight
from qcore.lazy import public_names

__all__ = ["Encoded", "encode_weight", "load_quantized", "run_onnx", "save_quantized"]
__dir__ = public_names(__name__)
