"""Models in ONNX and QONNX, executed by torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from qcore.arguments import check_type, quoted
from qcore.exchange.run import execute
from qtorch.reproducible.operations import Names

if TYPE_CHECKING:
    from onnx import ModelProto


class _OnDevice(Names):
    """The operations of tensors, with constants on the device of a model's inputs."""

    def __init__(self, device: torch.device) -> None:
        # An attribute of the instance, as a call has its device.
        self.asarray = lambda x: torch.from_numpy(np.array(x)).to(device)  # a copy: constants may be read-only


def run_onnx(
    file: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str] | None = None,
) -> dict[str, torch.Tensor]:
    """The outputs of a model in ONNX or QONNX, with the bits of `qcore.exchange.run_onnx`.

    Args:
        file: the path of a model, its bytes, or an `onnx.ModelProto`.
        inputs: tensors by the names of the model's inputs, all on one device. Integers of 2 and 4 bits are int8 or
            uint8 tensors, floats of 8 and 4 bits are uint8 tensors of their codes, or tensors of torch's dtypes.
        outputs: the names of the tensors to return, which may lie within the model; None is the model's outputs.

    Returns:
        Tensors by name; integers of 2 and 4 bits, and floats of 8 and 4 bits, as for inputs.

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
        >>> run_onnx(helper.make_model(graph), {"x": torch.tensor([-1, 0.75, 9])})
        {'y': tensor([ 0,  2, 18], dtype=torch.uint8)}
    """
    check_type("inputs", inputs, Mapping, "a dict of tensors")
    for name, x in inputs.items():
        check_type(f"input {quoted(name)}", x, torch.Tensor, "a tensor")
    devices = {x.device for x in inputs.values()} or {torch.device("cpu")}
    if len(devices) > 1:
        raise ValueError(f"inputs lie on {', '.join(sorted(map(str, devices)))}; allowed is one device")
    return execute(_OnDevice(*devices), file, inputs, outputs)
