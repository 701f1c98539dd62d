"""A function or a model of JAX as a file in ONNX: traced by JAX, walked equation by equation."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import NoneType
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp

from qcore.arguments import check_flag, check_type
from qcore.exchange.graph import Graph, check_target, onnx_package
from qjax._rounding.inputs import ArrayLike
from qjax._rounding.scopes import LAYER
from qjax.export.operations import FUSED, OPERATIONS, STORED, reader
from qjax.export.primitives import PRIMITIVES
from qjax.export.walk import Translation, Walk


def to_onnx(
    fn: Callable[..., object],
    args: tuple[object, ...],
    file: str | PathLike[str] | BinaryIO,
    *,
    kwargs: Mapping[str, object] | None = None,
    exact: bool = True,
) -> None:
    """Writes a function or a model as ONNX: a runtime that follows the standard computes the same integers.

    Quantized layers become MatMulInteger and ConvInteger with the law's own rounding, weights keep their integers, and
    roundings become the operators that have the same results. Inputs have the names of fn's parameters; results are
    output, or output_0, output_1 and so on. The opset is the smallest that has all operators.

    With exact=False layers become QuantizeLinear and DequantizeLinear around operators of floats, which runtimes fuse
    to fast kernels: some integers differ by one.

    Args:
        fn: a function of arrays, or a module of flax nnx: converted, dynamic, weight-only, trained with fake
            quantization, or of floats. A module is in evaluation; its arrays are constants of the file.
        args: the arguments of one call, whose shapes and dtypes the file has: arrays, `jax.ShapeDtypeStruct`s, and
            pytrees of them.
        file: path of the file, which is written whole or not at all, or a file that is open for bytes, such as
            `io.BytesIO`. The weights of a model of more than 2 GB lie beside its path, in a file with its name and
            .data behind it.
        kwargs: the arguments that the call takes by name, which are the file's inputs too.
        exact: False for a fast file whose integers are near the model's.

    Returns:
        Nothing; the file is written, and an existing file is replaced.

    Raises:
        ValueError: if the function computes what ONNX cannot say, or the model changes its state; the message names
            the layer.
        ImportError: if onnx is missing.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_onnx(lambda x: jax.nn.relu(x @ x.T), (jnp.ones((2, 3)),), f"{folder}/model.onnx")
    """
    check_target(file)
    check_flag("exact", exact)
    made_of(fn, args, kwargs, reader(OPERATIONS if exact else FUSED, STORED)).save(file)


def made_of(fn: Any, args: tuple[Any, ...], kwargs: Any, operations: Translation) -> Graph:
    """The graph of a function whose calls of operations are translated by this function."""
    if not callable(fn):
        raise TypeError(f"fn is a {type(fn).__name__}; allowed are functions and modules of flax nnx")
    if any(kind.__module__.startswith("torch.nn") for kind in type(fn).__mro__):  # without an import of torch
        raise TypeError(
            f"fn is a {type(fn).__name__}, a module of torch; allowed are functions of JAX and modules of flax nnx: "
            "qtorch.export writes modules of torch"
        )
    check_type("args", args, tuple, "a tuple of the function's arguments")
    check_type("kwargs", kwargs, (Mapping, NoneType), "None, or a dict of arguments by name")
    for name in kwargs or ():
        check_type("kwargs: a name", name, str, "the name of an argument")
    onnx_package()
    return _graph_of(fn, args, kwargs or {}, operations)


def _graph_of(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], operations: Translation) -> Graph:
    inputs, rebuild = _arguments(fn, args, kwargs)
    constants, run = _split(fn) if _is_module(fn) else ([], lambda _, call: (fn(*call.args, **call.kwargs), []))
    paths: list[Any] = []

    def flat(state: list[Any], arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        made, after = run(state, rebuild(arrays))
        found = jax.tree_util.tree_flatten_with_path(made)[0]
        paths.extend(path for path, _ in found)
        return [leaf for _, leaf in found], after

    kinds = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for _, leaf in inputs]
    traced = jax.make_jaxpr(flat)([leaf for _, leaf in constants], kinds)
    graph = Graph(getattr(fn, "__name__", type(fn).__name__))
    walk = Walk(graph, PRIMITIVES, operations)
    given = [walk.captured(leaf, name) for name, leaf in constants]
    given += [walk.input(graph.free_name(name), leaf.dtype, leaf.shape) for name, leaf in inputs]
    made = walk.run(traced.jaxpr, traced.consts, given)
    for (name, _), before, after in zip(constants, given, made[len(paths) :], strict=False):
        if after is not before and not after.equals(before):
            raise ValueError(f"fn changes {name} when it runs; allowed are models in evaluation: model.eval()")
    for path, value in zip(paths, made, strict=False):
        rest = jax.tree_util.keystr(path, simple=True, separator=".")
        graph.output(walk.name(value), value.dtype.name, value.shape, graph.free_name(f"output_{rest}".rstrip("_")))
    return graph


def _is_module(fn: Any) -> bool:
    flax = sys.modules.get("flax.nnx")  # which is imported where there is a module
    return flax is not None and isinstance(fn, flax.Module)


def _split(model: Any) -> tuple[list[tuple[str, Any]], Callable[..., tuple[Any, list[Any]]]]:
    """A module's arrays by name, and a function that runs it with them, and returns them as they are afterwards.

    Keys, and the counts of how often they were drawn, are the last arrays, and the function does not return them.
    """
    from flax import nnx

    from qjax._models import run_in_scopes

    no_keys = nnx.Not(nnx.RngState)
    graph, *state = nnx.split(model, no_keys, ...)
    leaves, tree = jax.tree_util.tree_flatten_with_path(state)

    def run(arrays: Sequence[Any], call: inspect.BoundArguments) -> tuple[Any, list[Any]]:
        copy: Any = nnx.merge(graph, *jax.tree.unflatten(tree, arrays))
        run_in_scopes(copy, LAYER)
        made = copy(*call.args, **call.kwargs)
        return made, jax.tree.leaves(nnx.state(copy, no_keys))

    return [(jax.tree_util.keystr(path[1:-1], simple=True, separator="."), leaf) for path, leaf in leaves], run


def _arguments(
    fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], inspect.BoundArguments]]:
    """The arrays of the arguments by name, and a function that puts others in their place."""
    try:
        named = inspect.signature(fn).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise TypeError(f"args do not fit fn: {error}") from error
    names, values = list(named.arguments), list(named.arguments.values())  # a dictionary's leaves would be sorted
    found, structure = jax.tree_util.tree_flatten_with_path(values)
    inputs = []
    for (place, *rest), leaf in found:
        name = ".".join(filter(None, (names[place.idx], jax.tree_util.keystr(tuple(rest), simple=True, separator="."))))
        if not isinstance(leaf, (ArrayLike, jax.ShapeDtypeStruct)):
            raise TypeError(
                f"args: {name} is a {type(leaf).__name__}; allowed are arrays and jax.ShapeDtypeStructs: give fn other "
                "arguments by functools.partial"
            )
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise ValueError(f"args: {name} is a random key; allowed are functions without random numbers")
        inputs.append((name, leaf))

    def rebuild(arrays: Sequence[Any]) -> inspect.BoundArguments:
        named.arguments.update(zip(names, jax.tree.unflatten(structure, arrays), strict=True))
        return named

    return inputs, rebuild
