"""Models exported to ONNX beside the models themselves: integers of every layer, in onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from qcore.affine.functional import recurrent
from qcore.exchange import run_onnx
from qcore.namespace import Names
from qtorch.export import to_onnx
from qtorch.nn.quantized import dynamic
from qtorch.nn.quantized.weights import Weight
from qtorch.quantization import QTensor


class Probe(nn.Module):
    """A model whose results are its own, and the integers of all quantized tensors that its modules return."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args):
        seen = []
        # Kernels do not call modules of weights.
        layers = [module for module in self.model.modules() if not isinstance(module, Weight)]
        handles = [layer.register_forward_hook(lambda module, args, result: seen.append(result)) for layer in layers]
        try:
            own = self.model(*args)
        finally:
            for handle in handles:
                handle.remove()
        return own, [one.values.clone() for one in seen if isinstance(one, QTensor)]


def operators(model):
    return {node.op_type for node in model.graph.node}


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


def assert_same(expected, found, place, exact):
    """Bits are equal; where a model has layers of floats, whose sums have no order, those of integers."""
    expected = (expected.values if isinstance(expected, QTensor) else expected).contiguous().numpy()
    assert (expected.dtype, expected.shape) == (found.dtype, found.shape), place
    if exact or expected.dtype.kind != "f":
        assert np.array_equal(expected.view(np.uint8), found.view(np.uint8)), (place, expected, found)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def check(model, args, folder, exact=True, others=(), dynamic_shapes=None):
    """Exports a model, alone and with all of its integers, and compares both with torch, also for other inputs.

    Args:
        exact: False for a model with layers of floats: floats need only be close.
        others: more inputs, for which the same files run.

    Returns:
        The exported model, and the number of layers whose integers were compared.
    """
    compared = []
    with torch.no_grad():
        for number, one in enumerate((model, Probe(model))):
            path = folder / f"model{number}.onnx"
            shapes = dynamic_shapes if dynamic_shapes is None or number == 0 else (dynamic_shapes,)
            to_onnx(one.eval(), args, path, dynamic_shapes=shapes)
            for session in sessions(path):
                for given in (args, *others):
                    expected = tree_leaves(one(*given))
                    for place, (ours, found) in enumerate(zip(expected, run(session, given), strict=True)):
                        assert_same(ours, found, place, exact)
            names = [info.name for info in onnx.load(path).graph.input]
            ours = tree_leaves(one(*args))
            ran = run_onnx(path, {name: x.numpy() for name, x in zip(names, args, strict=True)}).values()
            for place, (expected_one, found) in enumerate(zip(ours, ran, strict=True)):
                assert_same(expected_one, np.array(found, order="C"), place, exact)
            compared.append(len(expected))
    return onnx.load(folder / "model0.onnx"), compared[1] - compared[0]


def check_dynamic(model, args, folder):
    """Compares the integers of every dynamic linear layer: those of its input, and their sums of products.

    Returns:
        The number of layers that were compared.
    """
    to_onnx(model, args, folder / "inner.onnx")
    seen, made = [], onnx.load(folder / "inner.onnx")
    layers = [module for module in model.modules() if isinstance(module, dynamic.Linear)]
    handles = [layer.register_forward_pre_hook(lambda layer, given: seen.append((layer, *given))) for layer in layers]
    with torch.no_grad():
        model(*args)
    for handle in handles:
        handle.remove()
    products = [node for node in made.graph.node if node.op_type == "MatMulInteger"]
    assert len(products) == len(seen) > 0
    names = [name for node in products for name in (node.input[0], node.input[2], node.output[0])]
    made.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    onnx.save(made, folder / "inner.onnx")
    for session in sessions(folder / "inner.onnx"):
        feeds = {one.name: x.numpy() for one, x in zip(session.get_inputs(), args, strict=True)}
        found = [one.astype(np.int64) for one in session.run(names, feeds)]
        for place, (layer, x) in enumerate(seen):
            q, zero, sums = found[3 * place : 3 * place + 3]
            ours, qparams = recurrent.quantize_dynamic(Names, x.numpy(), layer.activations)
            ours = (ours.astype(np.int64) - qparams.zero_point).reshape(-1, x.shape[-1])
            weight = layer.weight().values.numpy() - layer.weight.zero_point.numpy().astype(np.int64).reshape(-1, 1)
            assert np.array_equal((q - zero).reshape(ours.shape), ours), place
            assert np.array_equal(sums.reshape(len(ours), -1), ours @ weight.T), place
    return len(seen)
