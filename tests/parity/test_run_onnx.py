"""`run_onnx` of the three packages: the same bits for each operator, floats included, and for a converted network."""

import jax
import numpy as np
import onnxruntime
import pytest
import torch
from onnx_cases import cases, one_node
from torch import nn

from qcore.exchange import run_onnx
from qjax.export import run_onnx as run_in_jax
from qtorch.export import run_onnx as run_in_torch
from qtorch.export import to_onnx
from qtorch.quantization import quantize_model

CASES = cases()


def compared(case, run, array):
    wanted = onnxruntime.InferenceSession(one_node(case)[0].SerializeToString()).run(None, one_node(case)[1])
    model, inputs = one_node(case, wanted)
    found = run(model, {name: array(x) for name, x in inputs.items()})
    for name, ours in run_onnx(model, inputs).items():
        other = np.asarray(found[name])
        assert (ours.dtype, ours.shape) == (other.dtype, other.shape), case
        assert ours.tobytes() == other.tobytes(), case


def test_torch_has_numpys_bits():
    for case in CASES:
        compared(case, run_in_torch, torch.from_numpy)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.heavy), 40])
def test_jax_has_numpys_bits(step):
    for case in CASES[::step]:
        compared(case, run_in_jax, np.asarray)


def test_a_converted_network_has_onnxruntimes_bits_in_all_packages(tmp_path):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 5)
    x = torch.randn(2, 3, 6, 6)
    model, path = quantize_model(nn.Sequential(*layers).eval(), calibrate=[x]), tmp_path / "model.onnx"
    to_onnx(model, (x,), path)
    session = onnxruntime.InferenceSession(path)
    (name,) = (one.name for one in session.get_inputs())
    (wanted,) = session.run(None, {name: x.numpy()})
    assert wanted.tobytes() == model(x).numpy().tobytes()
    (ours,) = run_onnx(path, {name: x.numpy()}).values()
    (in_torch,) = run_in_torch(path, {name: x}).values()
    (in_jax,) = jax.jit(lambda x: run_in_jax(path, {name: x}))(x.numpy()).values()
    for found in (ours, in_torch.numpy(), np.asarray(in_jax)):
        assert found.tobytes() == wanted.tobytes()
