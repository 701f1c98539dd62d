"""Models exported to ONNX beside the models themselves: integers of every layer, in onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from qtorch.export import to_onnx
from qtorch.nn.quantized.weights import Weight
from qtorch.quantization import QTensor


class Probe(nn.Module):
    """A model whose results are its own, and the integers of all quantized tensors that its modules return."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args):
        seen, handles = [], []
        for module in self.model.modules():
            if isinstance(module, Weight):  # which kernels do not call
                continue
            handles.append(module.register_forward_hook(lambda module, args, result: seen.append(result)))
        try:
            own = self.model(*args)
        finally:
            for handle in handles:
                handle.remove()
        integers = [one.values.clone() for one in seen if isinstance(one, QTensor)]
        own = [one.values.clone() if isinstance(one, QTensor) else one for one in tree_leaves(own)]
        return *own, *integers


def sessions(path):
    """The file as most users run it, and without a runtime's optimizations."""
    for level in (
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, 1
        yield onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def run(session, args):
    names = [one.name for one in session.get_inputs()]
    return session.run(None, {name: one.numpy() for name, one in zip(names, args, strict=True)})


def assert_bits(expected, found, about=""):
    expected = expected.detach().contiguous().numpy()
    assert (expected.dtype, expected.shape) == (found.dtype, found.shape), about
    assert np.array_equal(expected.view(np.uint8), found.view(np.uint8)), (about, expected, found)


def check(model, args, folder, **settings):
    """Exports the model, and the model with all of its integers; the bits of both are those of torch.

    Returns:
        The exported model, and the number of layers whose integers were compared.
    """
    counts = []
    with torch.no_grad():
        for number, one in enumerate((model, Probe(model))):
            path = folder / f"model{number}.onnx"
            to_onnx(one.eval(), args, path, **settings)
            expected = one(*args)
            counts.append(len(expected := tree_leaves(expected)))
            for session in sessions(path):
                for place, (ours, found) in enumerate(zip(expected, run(session, args), strict=True)):
                    assert_bits(ours.values if isinstance(ours, QTensor) else ours, found, place)
    return onnx.load(folder / "model0.onnx"), counts[1] - counts[0]
