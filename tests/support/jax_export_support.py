"""Functions and models of JAX exported to ONNX beside themselves: integers of every layer, in onnxruntime."""

import jax
import numpy as np
import onnx
import onnxruntime
from flax import nnx

from qcore.exchange import run_onnx
from qjax._models import modules_of
from qjax.export import to_onnx
from qjax.nnx.quantized import QuantizedWeight
from qjax.quantization import QTensor

LEVELS = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def probed(model):
    """A function with a model's results, and the integers of all quantized arrays that its modules return."""

    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state)

    def function(*args):
        seen, copy = [], nnx.merge(graph, jax.tree.unflatten(tree, leaves))
        for module in modules_of(copy).values():
            kind = type(module)
            if issubclass(kind, QuantizedWeight):  # known integers, which a loop over steps would take along
                continue

            def call(self, *args, kind=kind, **settings):
                made = kind.__call__(self, *args, **settings)
                seen.extend([made.values] if isinstance(made, QTensor) else [])
                return made

            object.__setattr__(module, "__class__", type(kind.__name__, (kind,), {"__call__": call}))
        return copy(*args), seen

    return function


def results(path, args):
    """What onnxruntime computes, as most users run it and without optimizations, and what `run_onnx` computes."""
    for level in LEVELS:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, 1
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        inputs = {name: np.asarray(x) for name, x in zip(names, jax.tree.leaves(args), strict=True)}
        yield session.run(None, inputs)
    yield [*map(np.asarray, run_onnx(path, inputs).values())]


def assert_bits(expected, found, about=""):
    expected = np.asarray(expected)
    assert (expected.dtype, expected.shape) == (found.dtype, found.shape), about
    lanes = [np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (expected, found)]
    assert np.array_equal(*lanes), (about, np.flatnonzero(lanes[0] != lanes[1]), expected, found)


def check(fn, args, folder, near=None, run=True, nan=False):
    """Exports a function or model; results have the bits of JAX, or with `near` floats are as near as the number says.

    Without `run` the file is only read; with `nan` every NaN is as good.

    Returns:
        The exported model.
    """
    path = folder / "model.onnx"
    to_onnx(fn, args, path)
    if not run:
        return onnx.load(path)
    run = nnx.jit(lambda fn, *args: fn(*args)) if isinstance(fn, nnx.Module) else lambda fn, *args: jax.jit(fn)(*args)
    expected = jax.tree.leaves(run(fn, *args))
    for found in results(path, args):
        for place, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
            if nan:
                ours, theirs = (np.where(one == one, one, np.float32(np.nan)) for one in (ours, theirs))
            if near is None or not np.issubdtype(theirs.dtype, np.floating):
                assert_bits(ours, theirs, place)
            else:
                np.testing.assert_allclose(theirs, np.asarray(ours), near, near)
    return onnx.load(path)


def check_layers(model, args, folder, near=None):
    """`check` of a model, and of all integers in it.

    Returns:
        The exported model, and the number of layers whose integers were compared.
    """
    made = check(model, args, folder, near)
    function = probed(model)
    check(function, args, folder, near)
    return made, len(function(*args)[1])
