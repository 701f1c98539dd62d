"""Models in ONNX and QONNX, executed by JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import check_type, quoted
from qcore.exchange.run import execute
from qjax.reproducible.operations import Names

if TYPE_CHECKING:
    from onnx import ModelProto


def run_onnx(
    file: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Mapping[str, jax.Array],
    outputs: Sequence[str] | None = None,
) -> dict[str, jax.Array]:
    """The outputs of a model in ONNX or QONNX, with the bits of `qcore.exchange.run_onnx`; best under `jax.jit`.

    Without it JAX compiles each operation by itself, which takes minutes for a network of many layers.

    Args:
        file: the path of a model, its bytes, or an `onnx.ModelProto`.
        inputs: arrays by the names of the model's inputs. Integers of 2 and 4 bits are int8 or uint8 arrays, floats of
            8 and 4 bits are uint8 arrays of their codes, or arrays of JAX's dtypes.
        outputs: the names of the tensors to return, which may lie within the model; None is the model's outputs.

    Returns:
        Arrays by name; integers of 2 and 4 bits, and floats of 8 and 4 bits, as for inputs.

    Raises:
        ImportError: if the package onnx is not installed.
        TypeError: if an argument has the wrong type.
        ValueError: as `qcore.exchange.run_onnx` does.

    Example:
        >>> from onnx import helper
        >>> graph = helper.make_graph(
        ...     [helper.make_node("QuantizeLinear", ["x", "scale"], ["y"])],
        ...     "small",
        ...     [helper.make_tensor_value_info("x", 1, [3])],
        ...     [helper.make_tensor_value_info("y", 2, [3])],
        ...     [helper.make_tensor("scale", 1, [], [0.5])],
        ... )
        >>> run_onnx(helper.make_model(graph), {"x": jnp.array([-1, 0.75, 9])})
        {'y': Array([ 0,  2, 18], dtype=uint8)}
    """
    check_type("inputs", inputs, Mapping, "a dict of arrays")
    for name, x in inputs.items():
        check_type(f"input {quoted(name)}", x, jax.Array | np.ndarray, "an array")
    with Names.arithmetic():  # else NumPy's int64 would become int32
        arrays = {name: jnp.asarray(x) for name, x in inputs.items()}
    return execute(Names, file, arrays, outputs)
