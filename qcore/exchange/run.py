"""Models in ONNX and QONNX, executed by onnx.reference with operators of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from qcore.arguments import check_int, check_regular, check_type, quoted
from qcore.exchange.graph import onnx_package, without_weights
from qcore.exchange.limits import MAX_ELEMENTS, MAX_STEPS, limited
from qcore.exchange.types import check_tensor, of_user, returned, type_of

if TYPE_CHECKING:
    from onnx import ModelProto

_DEEPEST = 64  # graphs within one another
_MOST_FUNCTIONS = 1000


def run_onnx(
    file: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
    *,
    max_elements: int = MAX_ELEMENTS,
    max_steps: int = MAX_STEPS,
) -> dict[str, np.ndarray]:
    """The outputs of a model in ONNX or QONNX, by onnx's reference with operators of this library.

    Integers are those of onnxruntime, and for QONNX's operators those of its executor: QuantizeLinear, DequantizeLinear
    (also of blocks, and of all types of up to 16 bits), QLinearConv, QLinearMatMul, ConvInteger, MatMulInteger,
    DynamicQuantizeLinear, Cast; Quant, IntQuant, FloatQuant, BipolarQuant, Trunc, MultiThreshold. The operators that
    onnxruntime's quantizer writes (com.microsoft: QLinearAdd, QGemm, ...) follow their documentation. ONNX does not
    define the order of sums of floats, nor the bits of functions such as Exp, so onnxruntime's differ in the last bits.

    Args:
        file: the path of a model, its bytes, or an `onnx.ModelProto`.
        inputs: NumPy arrays by the names of the model's inputs. Integers of 2 and 4 bits are int8 or uint8 arrays,
            floats of 8 and 4 bits are uint8 arrays of their codes. Arrays of ml_dtypes with these types are taken too.
        outputs: the names of the tensors to return, which may lie within the model; None is the model's outputs.
        max_elements: the most elements of an array that a node makes; its size is known before it is made.
        max_steps: the most nodes that run, those of functions and of each step of loops included. Time is not bounded.

    Returns:
        Arrays by name; integers of 2 and 4 bits, and floats of 8 and 4 bits, as for inputs.

    Raises:
        ImportError: if the package onnx is not installed.
        TypeError: if an argument has the wrong type, such as a tensor of torch or an array of JAX.
        ValueError: if the file is not a model, a tensor has another size than its shape, an operator is not supported
            or does not fit its inputs, an input is missing, unknown, or of another dtype or shape, or a bound is
            reached. The message names the tensor or the node.

    Example:
        >>> import numpy as np
        >>> from onnx import helper
        >>> graph = helper.make_graph(
        ...     [helper.make_node("QuantizeLinear", ["x", "scale"], ["y"])],
        ...     "small",
        ...     [helper.make_tensor_value_info("x", 1, [3])],
        ...     [helper.make_tensor_value_info("y", 2, [3])],
        ...     [helper.make_tensor("scale", 1, [], [0.5])],
        ... )
        >>> run_onnx(helper.make_model(graph), {"x": np.float32([-1, 0.75, 9])})
        {'y': array([ 0,  2, 18], dtype=uint8)}
    """
    check_type("inputs", inputs, Mapping, "a dict of arrays")
    for name, x in inputs.items():
        what = "a NumPy array: onnxruntime runs files elsewhere, and models of qtorch and qjax run themselves"
        check_type(f"input {quoted(name)}", x, np.ndarray | np.generic, what)
    if isinstance(outputs, str) or not isinstance(outputs, (Sequence, NoneType)):
        raise TypeError(f"outputs is a {type(outputs).__name__}; allowed are None, and a list of names of tensors")
    for name in outputs or ():
        check_type("outputs: a name", name, str, "a name of a tensor")
    check_int("max_elements", max_elements, 1)
    check_int("max_steps", max_steps, 1)
    onnx = onnx_package()
    with limited(max_elements, max_steps), np.errstate(all="ignore"):
        model, given = _taken_apart(_read(file, onnx), onnx)
        return _run(model, given, inputs, outputs)


def _run(
    model: Any, given: dict[str, np.ndarray], inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None
) -> dict[str, Any]:
    """The outputs of a model whose large constants are arrays by name."""
    from qcore.exchange.evaluator import Evaluator  # which needs onnx

    given = {**given, **_checked_inputs(model.graph, inputs, given)}
    wanted = [output.name for output in model.graph.output] if outputs is None else list(outputs)
    known = {*given, *(one.name for one in model.graph.initializer)}
    known.update(name for node in model.graph.node for name in node.output if name)
    for name in wanted:
        if name not in known:
            raise ValueError(f"outputs names {quoted(name)}; allowed are tensors of the model")
    found = Evaluator(model).run(wanted, given)
    return {name: returned(one) for name, one in zip(wanted, found, strict=True)}


def _read(file: Any, onnx: Any) -> Any:
    """The model in a file."""
    if isinstance(file, onnx.ModelProto):
        return file
    if not isinstance(file, bytes | str | os.PathLike):
        raise TypeError(f"file is a {type(file).__name__}; allowed is a path, bytes, or an onnx.ModelProto")
    if not isinstance(file, bytes):
        check_regular(file)
    try:
        return onnx.load_from_string(file) if isinstance(file, bytes) else onnx.load(os.fspath(file))
    except FileNotFoundError:
        raise
    except Exception as error:  # of protobuf, whose classes differ from version to version
        raise ValueError(f"file is not a model in ONNX: {quoted(str(error))}") from error


def _taken_apart(model: Any, onnx: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """A checked copy of a model without its large constants, and these as arrays."""
    from qcore.exchange.evaluator import in_order  # which needs onnx

    for tensor in _tensors(model):
        check_tensor(tensor, onnx)  # before the package's own checks, which do not say sizes
    if len(model.functions) > _MOST_FUNCTIONS:  # the package keeps a list of all in each
        raise ValueError(f"the model has {len(model.functions)} functions; allowed are {_MOST_FUNCTIONS}")
    bare = without_weights(model)
    del bare.functions[:]
    bare.functions.extend(in_order(model.functions))
    small = {one.name for one in bare.graph.initializer}
    large = (one for one in model.graph.initializer if one.name not in small)
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in large}
    for one in bare.opset_import:
        one.domain = "" if one.domain == "ai.onnx" else one.domain
    for graph in _graphs(bare.graph, *bare.functions):
        for node in graph.node:
            node.domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        onnx.checker.check_model(bare)
    except Exception as error:  # a ValidationError, or what the C++ below raises
        raise ValueError(f"file is not a valid model: {quoted(str(error))}") from error
    return bare, weights


def _graphs(*graphs: Any, depth: int = 0) -> Iterator[Any]:
    """Graphs, or functions, and the graphs in their loops and branches."""
    if depth > _DEEPEST:
        raise ValueError(f"graphs lie deeper than {_DEEPEST} within one another; allowed are fewer")
    for graph in graphs:
        yield graph
        for node in graph.node:
            yield from _graphs(*(one.g for one in node.attribute if one.HasField("g")), depth=depth + 1)


def _tensors(model: Any) -> Iterator[Any]:
    """All tensors of a model: the constants of its graphs, and attributes of nodes."""
    for graph in _graphs(model.graph, *model.functions):
        yield from getattr(graph, "initializer", ())  # which functions have not
        attributes = [one for node in graph.node for one in node.attribute]
        if getattr(graph, "sparse_initializer", ()) or any(one.HasField("sparse_tensor") for one in attributes):
            raise ValueError("the model has sparse tensors; allowed are dense ones")
        yield from (tensor for one in attributes for tensor in (*[one.t] * one.HasField("t"), *one.tensors))


def _checked_inputs(
    graph: Any, inputs: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The inputs of a graph that a user gives."""
    defaults = {*weights, *(tensor.name for tensor in graph.initializer)}
    declared = {info.name: info for info in graph.input}
    for name in inputs:
        if name not in declared:
            raise ValueError(f"inputs has {quoted(name)}; allowed are {', '.join(map(quoted, declared))}")
    found = {}
    for name, info in declared.items():
        if name not in inputs:
            if name in defaults:
                continue
            raise ValueError(f"inputs lacks {quoted(name)}; allowed are {', '.join(map(quoted, declared))}")
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type"):
            raise ValueError(f"input {quoted(name)} is no tensor; allowed are models whose inputs are tensors")
        found[name] = of_user(name, np.asarray(inputs[name]), type_of(kind.elem_type, f"input {quoted(name)}"))
        if kind.HasField("shape"):
            _check_sizes(name, found[name].shape, kind.shape.dim)
    return found


def _check_sizes(name: str, shape: tuple[int, ...], dims: Any) -> None:
    """Raises if an input does not have the sizes of a file, where a negative one is open, as one that is left out."""
    sizes = [one.dim_value if one.HasField("dim_value") and one.dim_value >= 0 else None for one in dims]
    if len(sizes) != len(shape) or any(
        size is not None and size != length for size, length in zip(sizes, shape, strict=True)
    ):
        allowed = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"input {quoted(name)} has shape {shape}; allowed is ({allowed})")
