"""State_dicts of torch.ao's models, in the layout of the models here.

A state_dict's versions lie in an attribute that files may have lost, so that its keys decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["from_torch_ao"]

_PACKED = "_packed_params."
_OLD_NAMES = {"min_vals": "min_val", "max_vals": "max_val"}  # of observers of channels


def from_torch_ao(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """A state_dict of a model that torch.ao prepared, trained or converted, for the same model here.

    Load it into a model that went through the same steps here: `prepare`, `prepare_qat`, `convert(prepare(model),
    allow_uncalibrated=True)` or `quantize_dynamic`. Integers, scales and zero points stay as they are; weights become
    buffers of integers, (weight, bias) pairs are taken apart, and what old versions called otherwise is renamed.

    Args:
        state_dict: of torch 1.3 to 2.13, as `torch.load` gives it.

    Returns:
        Plain tensors by name.

    Raises:
        TypeError: if an entry is of no known kind.

    Example:
        >>> entries = {"fc.scale": torch.tensor(0.5), "fc.zero_point": torch.tensor(3)}
        >>> from_torch_ao(entries)["fc.zero_point"]
        tensor(3, dtype=torch.int32)
    """
    result = {}
    dynamic = _dynamic_layers(state_dict)
    for key, value in state_dict.items():
        prefix, _, name = key.rpartition(".")
        if prefix in dynamic and name in ("scale", "zero_point"):
            continue  # of no result
        for new, tensor in _entries(f"{prefix}." if prefix else "", name, value):
            result[new] = tensor
    return result


def _dynamic_layers(state_dict: Mapping[str, Any]) -> set[str]:
    """The linear layers that are dynamic: their scale is 1 and their zero point 0, which nothing reads."""
    layers = {key[: key.index(_PACKED)] for key in state_dict if _PACKED in key}
    unused = {"scale": 1.0, "zero_point": 0.0}
    return {
        layer.removesuffix(".")
        for layer in layers
        if {name: float(state_dict.get(layer + name, torch.nan)) for name in unused} == unused
    }


def _entries(prefix: str, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an entry becomes."""
    if value is None or isinstance(value, torch.dtype):
        return
    layer = prefix.removesuffix(_PACKED)
    if isinstance(value, tuple) and name == "_packed_params" and len(value) == 2:
        yield from _entries(layer, "weight", value[0])
        yield from _entries(layer, "bias", value[1])
    elif not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        raise TypeError(f"state_dict[{prefix + name!r}] is a {kind}; allowed are tensors, and packed pairs of them")
    elif value.is_quantized:
        yield from ((f"{layer}{name}.{part}", tensor) for part, tensor in _parts(value))
    elif name == "zero_point":
        yield prefix + name, value.to(torch.int32)
    else:
        yield layer + _OLD_NAMES.get(name, name), value


def _parts(q: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers of a quantized weight."""
    yield "int_repr", q.int_repr()
    if q.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        yield "scale", torch.tensor(q.q_scale())
        yield "zero_point", torch.tensor(q.q_zero_point(), dtype=torch.int32)
    else:
        yield "scale", q.q_per_channel_scales().to(torch.float32)
        yield "zero_point", q.q_per_channel_zero_points().to(torch.int32)
