"""Models of integers as ONNX: onnxruntime has the library's integers at every layer, with and without optimizations."""

import torch
from export_support import check
from torch import nn

from qtorch.quantization import quantize_model


def operators(model):
    return {node.op_type for node in model.graph.node}


def test_a_static_network(tmp_path):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 3, 6, 6)
    made, compared = check(quantize_model(model, calibrate=[x]), (x,), tmp_path)
    assert compared >= 4
    assert {"ConvInteger", "MatMulInteger"} <= operators(made)
    assert {node.domain for node in made.graph.node} == {""}
    assert [one.version for one in made.opset_import] == [19]
