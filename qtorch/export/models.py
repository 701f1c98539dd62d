"""A model of torch as a file in ONNX: traced by torch, translated by torch's exporter, its laws written by ours."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import Any, BinaryIO

import torch

from qcore.arguments import check_flag, check_type
from qcore.exchange.graph import OPSETS, Graph, check_target, onnx_package
from qtorch._classes import check_model
from qtorch._exported import NEAR, WANTED
from qtorch._torch_internals import exported_operators, map_tree
from qtorch.export.expansion import FUSED, LAWS, Laws, expanded


def to_onnx(
    model: torch.nn.Module,
    args: tuple[object, ...],
    file: str | os.PathLike[str] | BinaryIO,
    *,
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: Mapping[str, object] | tuple[object, ...] | list[object] | None = None,
    exact: bool = True,
) -> None:
    """Writes a model as ONNX: a runtime that follows the standard computes the same integers at every layer.

    Quantized layers become MatMulInteger and ConvInteger with the law's own rounding, weights keep their integers, and
    other operations are those of `torch.onnx.export`. The opset is the smallest that has all operators.

    With exact=False they become QuantizeLinear and DequantizeLinear around operators of floats, which runtimes fuse to
    fast kernels: some integers differ by one.

    Args:
        model: a module in evaluation: converted, dynamic, weight-only, trained with fake quantization, or of floats.
        args: the inputs of one call, tensors whose shapes and types the file has.
        file: path of the file, which is written whole or not at all, or a file that is open for bytes, such as
            `io.BytesIO`. The weights of a model of more than 2 GB lie beside its path, in a file with its name and
            .data behind it.
        kwargs: the inputs that the call takes by name, which are the file's too.
        dynamic_shapes: the sizes that may vary, as `torch.export.export` takes them.
        exact: False for a fast file whose integers are near the model's.

    Returns:
        Nothing; the file is written, and an existing file is replaced.

    Raises:
        ValueError: if the model is in training, or a layer has a law that ONNX cannot say; the message names the layer.
        ImportError: if onnx or onnxscript is missing.

    Example:
        >>> import tempfile
        >>> from qtorch.quantization import quantize_model
        >>> x = torch.randn(2, 4)
        >>> model = quantize_model(torch.nn.Sequential(torch.nn.Linear(4, 3)).eval(), calibrate=[x])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_onnx(model, (x,), f"{folder}/model.onnx")
    """
    check_target(file)
    check_flag("exact", exact)
    token = NEAR.set(not exact)
    try:
        graph, opset = made_of(model, args, kwargs, dynamic_shapes, LAWS if exact else FUSED)
    finally:
        NEAR.reset(token)
    graph.save(file, opset)


def made_of(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Any, dynamic_shapes: Any, written: Laws
) -> tuple[Graph, int]:
    """The graph of a model whose laws are written by these functions, and the smallest opset for it."""
    check_model("model", model)
    check_type("args", args, tuple, "a tuple of the model's inputs")
    check_type("kwargs", kwargs, (Mapping, NoneType), "None, or a dict of inputs by name")
    given = dict(kwargs or {})
    for name in given:
        check_type("kwargs: a name", name, str, "the name of an input")
    map_tree(_check_argument, (args, given))
    check_type("dynamic_shapes", dynamic_shapes, (dict, tuple, list, NoneType), "None, a dict, a tuple or a list")
    if any(module.training for module in model.modules()):
        raise ValueError("model is in training; allowed is evaluation: model.eval()")
    onnx_package()
    program = _traced(model, args, given, dynamic_shapes)
    _check_operators(program)
    graph = expanded(_translated(program, OPSETS[0]), written)
    opset = graph.opset()
    if opset > OPSETS[0]:  # torch's own operators may be others in a newer opset
        graph = expanded(_translated(program, opset), written)
    return graph, opset


def _check_argument(x: Any) -> None:
    """Raises TypeError for an array of another package."""
    if hasattr(x, "__array__") and not isinstance(x, torch.Tensor):
        raise TypeError(
            f"an input is a {type(x).__name__}; allowed are tensors, and numbers: torch.from_numpy makes them"
        )


def _traced(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> Any:
    token = WANTED.set(True)
    try:
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    finally:
        WANTED.reset(token)


def _translated(program: Any, opset: int) -> Any:
    """The model of torch's exporter, with our nodes as nodes of the domain "qbits"."""
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("models in ONNX need the package onnxscript: pip install 'qbits[export]'") from error
    try:
        with _quiet():
            made: Any = torch.onnx.export(
                program, dynamo=True, verbose=False, opset_version=opset, custom_translation_table=_table()
            )
    except torch.onnx.OnnxExporterError as error:
        raise _named(program, error) from error
    return made.model_proto


def _check_operators(program: Any) -> None:
    """Raises for operators of the library that have no law in ONNX."""
    for node in program.graph.nodes:
        name = str(node.target)
        if name.startswith("qtorch."):
            raise ValueError(
                f"{_place(node)}: {name.split('.')[1]} cannot be said in ONNX (random bits, accumulators, delayed or "
                "blocked scales, sums with defined bits); allowed are roundings of each element to nearest, or without "
                "random bits, and products in float32 or integers: leave this layer out"
            )


def _named(program: Any, error: Exception) -> ValueError:
    """The error of torch's exporter, with the layer and the operator that it stopped at, and the first cause."""
    place, operator, cause = "the model", "the model", error
    while True:
        if found := re.search(r"call_function\[target=(?:torch\.ops\.)?([\w.]+)\]", str(cause)):
            operator = found[1]
            places = [_place(node) for node in program.graph.nodes if str(node.target) == operator]
            place = places[0] if places else place
        if not isinstance(cause.__cause__, Exception):
            break
        cause = cause.__cause__
    return ValueError(
        f"{place}: torch.onnx.export cannot translate {operator} ({str(cause).splitlines()[0]}); allowed are its "
        "operators: replace this one, or leave its layer out"
    )


def _place(node: Any) -> str:
    """The path of the module in which a node of a traced program was made."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return (stack[-1][0] if stack else "") or "the model"


def _table() -> dict[Any, Any]:
    """Operators of torch that its exporter lacks, or whose numbers it rounds to float32 on the way to float64."""
    import onnx_ir
    from onnxscript import opset18

    op: Any = opset18

    def view(x: Any, dtype: int) -> Any:
        """Bits as another type: integers of one width, which Cast converts modulo their range."""
        if x.dtype != dtype and {str(x.dtype).lstrip("U"), str(dtype).lstrip("U")} not in ({"INT8"}, {"INT16"}):
            raise ValueError(f"{x.dtype} viewed as {dtype}: ONNX has no operator for the bits of a number")
        return op.Cast(x, to=dtype)

    def number(value: float, dtype: int) -> Any:
        kind = onnx_ir.DataType(dtype)
        return op.Constant(value=onnx_ir.tensor(value, dtype=kind))

    def full_like(x: Any, fill_value: float, dtype: int = -1, **_: Any) -> Any:
        return op.Expand(number(fill_value, x.dtype if dtype == -1 else dtype), op.Shape(x))

    def full(size: Any, fill_value: float, dtype: int = 1, **_: Any) -> Any:
        return op.Expand(number(fill_value, dtype), op.Cast(size, to=onnx_ir.DataType.INT64))

    def scalar_tensor(s: float, dtype: int = 1, **_: Any) -> Any:
        return number(s, dtype)

    own = {"view": view, "full": full, "full_like": full_like, "scalar_tensor": scalar_tensor}
    found = exported_operators()
    return {found[name]: function for name, function in own.items() if found[name] is not None}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides warnings of torch's exporter that concern neither the model nor the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
