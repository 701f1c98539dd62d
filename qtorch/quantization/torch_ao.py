"""State_dicts of torch.ao's models in the layout of the models here, and the other way round.

A state_dict's versions are in an attribute that files may have lost, so the keys decide.
"""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from qcore.arguments import check_type, quoted
from qcore.notices import warn
from qtorch._torch_internals import pack_linear, pack_recurrent, with_versions
from qtorch.quantization.tree import check_mapping, check_state_dict

# Entries of torch.ao's state_dicts; None is a bias that is not there.
Entry = torch.Tensor | tuple[torch.Tensor, torch.Tensor | None] | torch.dtype | torch.ScriptObject | None
_PACKED = "_packed_params."
_RECURRENT, _CELL = re.compile(r"_all_weight_values\.(\d+)\.$"), re.compile("_packed_weight_(ih|hh)")
_PRODUCT = re.compile(r"(?<![^.])(ih|hh)\.(?:(\d+)\.)?$")
_PROJECTION = re.compile(r"(?<![^.])hr\.\d+\.$")
_PER_CHANNEL = torch.per_channel_affine, torch.per_channel_symmetric
_OBSERVED = "min_val", "fake_quant_enabled"
_OLD_NAMES = {"min_vals": "min_val", "max_vals": "max_val"}  # of observers of channels


def from_torch_ao(state_dict: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """A state_dict of a model that torch.ao prepared, trained or converted, for the same model here.

    Load it into a model that went through the same steps here: `prepare`, `prepare_qat`, `convert(prepare(model),
    allow_uncalibrated=True)` or `quantize_dynamic`. Integers, scales and zero points stay as they are; weights become
    buffers of integers, (weight, bias) pairs are split, and entries with names of old versions are renamed.
    The packed weights of recurrent layers, which `torch.load(file, weights_only=False)` reads, become products `ih`
    and `hh`.

    Args:
        state_dict: of torch 1.3 to 2.13, as `torch.load` gives it.

    Returns:
        Plain tensors by name.

    Raises:
        TypeError: if state_dict is not a dictionary, a name is not a text, or the kind of an entry is not known.
        ValueError: if a table of embeddings has zero points that are not integers.

    Warns:
        UserWarning: of recurrent layers that quantize activations to 8 bits; here they have 7 bits.

    Example:
        >>> entries = {"fc.scale": torch.tensor(0.5), "fc.zero_point": torch.tensor(3)}
        >>> from_torch_ao(entries)["fc.zero_point"]
        tensor(3, dtype=torch.int32)
    """
    _check_names(state_dict)
    result = {}
    dynamic = _dynamic_layers(state_dict)
    for key, value in state_dict.items():
        prefix, _, name = key.rpartition(".")
        if prefix in dynamic and name in ("scale", "zero_point"):
            continue  # of no result
        for new, tensor in _entries(f"{prefix}." if prefix else "", name, value):
            result[new] = tensor
    return result


def _check_names(state_dict: Any) -> None:
    check_mapping("state_dict", state_dict)
    for key in state_dict:
        check_type(f"the name {quoted(key)} of state_dict", key, str, "a str")


def _dynamic_layers(state_dict: Mapping[str, Any]) -> set[str]:
    """The linear layers that are dynamic: their scale is 1 and their zero point 0, and both are not used."""
    layers = {key[: key.index(_PACKED)] for key in state_dict if _PACKED in key}
    unused = {"scale": 1.0, "zero_point": 0.0}
    return {
        layer.removesuffix(".")
        for layer in layers
        if {name: float(state_dict.get(layer + name, torch.nan)) for name in unused} == unused
    }


def _entries(prefix: str, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The entries here for one entry of torch.ao."""
    if value is None or isinstance(value, torch.dtype):
        return
    layer = prefix.removesuffix(_PACKED)
    if isinstance(value, tuple) and name == "_packed_params" and len(value) == 2:
        yield from _entries(prefix, "weight", value[0])
        yield from _entries(layer, "bias", value[1])
    elif isinstance(value, torch.ScriptObject) and (_RECURRENT.search(prefix) or _CELL.fullmatch(name)):
        yield from _products(prefix, name, value)
    elif not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        raise TypeError(
            f"state_dict[{quoted(prefix + name)}] is a {kind}; allowed are tensors, and packed pairs of them"
        )
    elif value.is_quantized:
        owner = f"{layer}weight" if name == "_packed_weight" else layer + name  # the former of embeddings
        yield from ((f"{owner}.{part}", tensor) for part, tensor in _parts(owner, value))
    elif name == "weight" and layer != prefix:
        yield f"{layer}weight", value.to(torch.float16)  # which it was made of
    elif name == "zero_point":
        yield prefix + name, value.to(torch.int32)
    else:
        yield layer + _OLD_NAMES.get(name, name), value


def _products(prefix: str, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The weights and biases of a recurrent layer's two products, or of one of a cell's."""
    found = _RECURRENT.search(prefix)
    if found is None:
        packed, biases, names = [value], [None], [name.rpartition("_")[2]]
        layer = prefix
    else:
        layer = prefix[: found.start()]
        kind, biases, _, reduced, packed = value.__getstate__()[0]
        names = [f"ih.{found[1]}", f"hh.{found[1]}"]
        if kind == "quantized_dynamic" and not reduced[0]:
            products = " and ".join(f"{layer}{product}" for product in names)
            warn(
                f"{products} were made for activations of 8 bits (reduce_range=False), and here have 7; after loading, "
                "set their `activations` to qcore.affine.UINT8"
            )
    for product, one, bias in zip(names, packed, biases or [None, None], strict=True):
        weight, own_bias = one.__getstate__()[0]
        bias = own_bias if bias is None else bias
        yield from _entries(f"{layer}{product}.{_PACKED}", "weight", weight)
        yield from _entries(f"{layer}{product}.", "bias", None if bias is None else bias.detach())


def _parts(name: str, q: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers of a quantized weight."""
    yield "int_repr", q.int_repr()
    if q.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        yield "scale", torch.tensor(q.q_scale())
        yield "zero_point", torch.tensor(q.q_zero_point(), dtype=torch.int32)
    else:
        zero_points = q.q_per_channel_zero_points()
        if (zero_points != zero_points.round()).any():
            raise ValueError(
                f"{name} has zero points that are no integers, as torch.ao's float_qparams_weight_only_qconfig makes "
                "them; allowed are integers: quantize the table here"
            )
        yield "scale", q.q_per_channel_scales().to(torch.float32)
        yield "zero_point", zero_points.to(torch.int32)


def to_torch_ao(
    state_dict: Mapping[str, torch.Tensor], model: torch.nn.Module | None = None
) -> OrderedDict[str, Entry]:
    """The inverse of `from_torch_ao`: a state_dict for torch.ao's model at the same step.

    Weights become torch's quantized tensors, packed where torch packs them, and the versions that torch asks for are in
    the attribute `_metadata`.

    Args:
        state_dict: of a model that was prepared, trained or converted here.
        model: torch.ao's, for `model.load_state_dict(to_torch_ao(state_dict, model))`. torch.ao's ELU, PReLU and
            Sigmoid have their parameters as attributes that they neither save nor load: here the model gets
            them, and the result leaves them out. Without the model they stay in the result (load with strict=False).

    Returns:
        Entries by name: tensors; for a packed weight a pair of it (torch's quantized tensor, or float32) and its bias,
        with their dtype as an entry of its own; and torch's packed objects of recurrent layers.

    Raises:
        TypeError: if state_dict is not a dictionary, a name is not a text, an entry is not a tensor, or model is not a
            module.
        ValueError: if a weight has integers that torch.ao does not have: other than int8, or uint8 for embeddings, or
            a dynamic layer's input has, or no entry for its scale or zero point, or the model does not have a layer of
            state_dict.

    Example:
        >>> int8 = {
        ...     "fc.weight.int_repr": torch.zeros(1, 2, dtype=torch.int8),
        ...     "fc.weight.scale": torch.tensor(0.5),
        ... }
        >>> int8 |= {"fc.weight.zero_point": torch.tensor(0), "fc.scale": torch.tensor(1.0)}
        >>> list(to_torch_ao(int8 | {"fc.zero_point": torch.tensor(0)}))
        ['fc.scale', 'fc.zero_point', 'fc._packed_params.dtype', 'fc._packed_params._packed_params']
    """
    check_state_dict(state_dict)
    check_type("model", model, (torch.nn.Module, type(None)), "a torch.nn.Module or None")
    rest, layers = dict(state_dict), dict[str, tuple[torch.Tensor, torch.Tensor | None]]()
    halves = not any(key.endswith(_OBSERVED) for key in state_dict)  # dynamic layers, and no model in float16
    for key, value in state_dict.items():
        if key.rpartition(".")[2] == "input_range":
            raise ValueError(
                f"state_dict has {key}, of a layer with other integers or ranges of its input than torch.ao's; allowed "
                "are layers of quantize_dynamic"
            )
        layer = key.removesuffix("weight.packed").removesuffix("weight.int_repr").removesuffix("weight")
        if key.endswith(("weight.packed", "weight.int_repr")):
            layers[layer] = _quantized(key, layer, rest), rest.pop(f"{layer}bias", None)
        elif halves and key.endswith("weight") and value.dtype is torch.float16:
            layers[layer] = rest.pop(key).to(torch.float32), rest.pop(f"{layer}bias", None)
    result = OrderedDict[str, Entry](
        # of shape (1,) as torch.ao's Quantize has them; its other layers take that for a number
        (key, value.to(torch.int64).reshape(-1) if key.endswith("zero_point") else _of_one(key, value))
        for key, value in rest.items()
    )
    versions = {key.rpartition(".")[0]: 3 for key in rest if key.endswith("min_val")}
    versions |= {key.rpartition(".bn.")[0]: 2 for key in rest if key.endswith(".bn.weight")}
    for layer, (weight, bias) in layers.items():
        if _PROJECTION.search(layer):
            raise ValueError(f"state_dict has {layer}weight, of an LSTM with proj_size; torch.ao has no such LSTM")
        if found := _PRODUCT.search(layer):
            owner = layer[: found.start()]
            if found[1] == "hh" and found[2]:
                if (other := f"{owner}ih.{found[2]}.") not in layers:
                    raise ValueError(f"state_dict has {layer}weight and no {other}weight; allowed are both")
                result[f"{owner}_all_weight_values.{found[2]}.param"] = pack_recurrent(
                    *layers[f"{owner}ih.{found[2]}."], weight, bias
                )
                versions[owner.removesuffix(".")] = 2
            elif not found[2]:
                result[f"{owner}_packed_weight_{found[1]}"] = pack_linear(weight, bias)
        elif weight.dim() == 1:  # of a PReLU
            result[f"{layer}weight"] = weight
        elif weight.dim() > 2:
            result |= {f"{layer}weight": weight, f"{layer}bias": bias}
        elif weight.dtype is torch.quint8:
            result |= {f"{layer}{_PACKED}dtype": torch.quint8, f"{layer}{_PACKED}_packed_weight": weight}
        else:
            result |= _linear(layer, weight, bias, versions, f"{layer}scale" in rest)
    if model is not None:
        _set_attributes(model, result)
    return with_versions(result, versions)


def _of_one(key: str, value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1) if key.rpartition(".")[2] == "scale" else value


def _set_attributes(model: torch.nn.Module, entries: dict[str, Any]) -> None:
    """Sets the attributes of torch.ao's layers that they neither save nor load, and removes them from the entries.

    Raises:
        ValueError: if a transposed convolution has a scale for each output, for which torch.ao has no kernel.
    """
    for path, module in model.named_modules():
        weight = entries.get(f"{path}.weight" if path else "weight")
        if getattr(module, "transposed", False) and weight is not None and weight.qscheme() in _PER_CHANNEL:
            raise ValueError(
                f"state_dict: {path}.weight has a scale for each output, with which torch.ao has no transposed "
                "convolutions; allowed is one scale: convert with the weight observer default_weight_observer"
            )
    known = model.state_dict().keys()
    kinds = {"scale": float, "zero_point": int}
    for key in [key for key in entries if key not in known]:
        path, _, name = key.rpartition(".")
        try:
            module = model.get_submodule(path)
        except AttributeError:
            raise ValueError(f"model has no layer {path}, whose {name} is in state_dict") from None
        if name == "weight" and hasattr(module, "set_weight"):
            module.set_weight(entries.pop(key))  # type: ignore[operator]
        for attribute in (name, f"output_{name}"):  # the latter of Sigmoid
            if name in kinds and hasattr(module, attribute):
                setattr(module, attribute, kinds[name](entries.pop(key)))
                break


def _linear(
    layer: str, weight: torch.Tensor, bias: torch.Tensor | None, versions: dict[str, int], static: bool
) -> dict[str, Any]:
    versions |= {layer.removesuffix("."): 3 if static else 4, f"{layer}_packed_params": 3}
    unused = {} if static else {f"{layer}scale": torch.tensor(1.0), f"{layer}zero_point": torch.tensor(0)}
    dtype = torch.qint8 if weight.is_quantized else torch.float16
    return unused | {f"{layer}{_PACKED}dtype": dtype, f"{layer}{_PACKED}_packed_params": (weight, bias)}


def _quantized(key: str, layer: str, rest: dict[str, torch.Tensor]) -> torch.Tensor:
    """The weight of a layer as torch's quantized tensor, taken out of a state_dict."""
    names = key, f"{layer}weight.scale", f"{layer}weight.zero_point"
    for name in names:
        if name not in rest:
            raise ValueError(f"state_dict has {key} and no {name}; allowed are weights with their scale and zero point")
    values, scale, zero_point = map(rest.pop, names)
    is_table = values.dtype is torch.uint8 and values.dim() == 2 and key.endswith("int_repr")  # of an embedding
    if values.dtype is not torch.int8 and not is_table:
        raise ValueError(f"state_dict has {key} of {values.dtype}; allowed is int8, which torch.ao multiplies with")
    channels = tuple(values.shape[:1]) if scale.dim() else ()
    for name, part in zip(names[1:], (scale, zero_point), strict=True):
        if tuple(part.shape) != channels:
            raise ValueError(f"state_dict has {name} of shape {tuple(part.shape)}; allowed is {channels} for {key}")
    least = 0 if is_table else -128
    if zero_point.is_floating_point() or not ((zero_point >= least) & (zero_point <= least + 255)).all():
        kind = "uint8" if is_table else "int8"
        raise ValueError(
            f"state_dict has {names[2]} that is no {kind}; allowed are integers from {least} to {least + 255}"
        )
    if not scale.is_floating_point() or not ((scale > 0) & scale.isfinite()).all():
        raise ValueError(f"state_dict has {names[1]} that is no scale; allowed are finite numbers above 0")
    axes = (-1, *(1,) * (values.dim() - 1)) if scale.dim() else ()
    if values.dim() == 1:
        values, zero_point = values.to(torch.int32) + 128, zero_point + 128  # slopes are quint8 there
    numbers = (values.to(torch.int32) - zero_point.reshape(axes)).to(torch.float32) * scale.reshape(axes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's quantized tensors are deprecated
        # 8 bits are exact after the conversion to floats and back
        if is_table:  # torch.ao's have a scale for each row, and zero points of floats
            scales, zeros = (one.to(torch.float32).expand(len(values)).contiguous() for one in (scale, zero_point))
            return torch.quantize_per_channel(numbers, scales, zeros, 0, torch.quint8)
        if scale.dim():
            return torch.quantize_per_channel(numbers, scale.double(), zero_point.to(torch.int64), 0, torch.qint8)
        dtype = torch.quint8 if values.dim() == 1 else torch.qint8
        return torch.quantize_per_tensor(numbers, float(scale), int(zero_point), dtype)
