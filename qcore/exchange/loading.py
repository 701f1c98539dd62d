"""Quantized weights from files of other programs, and back: `load_quantized` and `save_quantized`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qcore.arguments import check_regular, check_type, quoted
from qcore.exchange import gguf
from qcore.exchange.dialects import DIALECTS, Dialect, WeightTensors
from qcore.exchange.encoded import Content, Encoded
from qcore.exchange.formats.gguf import GGUF
from qcore.exchange.safetensors import CODED, Tensor, bfloat16, content_of, read_header, write_file
from qcore.exchange.writing import contents_of
from qcore.formats.text import parse
from qcore.packing import unpack

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_LARGEST_JSON = 1 << 28  # bytes
# What configurations call the dialects.
_METHODS = "compressed-tensors modelopt fp8 fbgemm_fp8 mxfp4 bitsandbytes gptq awq".split()
# Ends of names that only tensors of quantized weights have, and those of scales of activations, which stay as they are.
_PARTS_OF_WEIGHTS = tuple(
    "qweight qzeros scales g_idx _packed _blocks absmax quant_map SCB _scale_inv weight_scale weight_scale_2 "
    "weight_global_scale weight_zero_point weight_shape".split()
)


def load_quantized(path: str | os.PathLike[str]) -> dict[str, Encoded[np.ndarray] | np.ndarray]:
    """The weights of a file, or of a sharded model, with quantized ones as codes, scales and formats.

    Dialects are recognized by names and dtypes: compressed-tensors (integers in int32 and int8, float8, nvfp4, mxfp4),
    ModelOpt (NVFP4, FP8), DeepSeek FP8, GPT-OSS MXFP4, bitsandbytes (4 bits, also with double quantization, and 8),
    GPTQ and AWQ. A config.json beside the file says what shapes leave open. Files are read as data: all that they say
    is checked before memory is taken.

    Args:
        path: a .safetensors file, the index of a sharded model (model.safetensors.index.json), a folder with either, or
            a .gguf file, all of whose blocks are `Encoded` in a format `GGUF`.

    Returns:
        A dict by name. A quantized weight is one `Encoded` under the weight's name; tensors of 8-, 6- and 4-bit floats
        without scales are `Encoded` too. Others are NumPy arrays: scales of activations, norms, biases.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a file is cut off or contradicts itself, or has parts of weights in a dialect that is not known.
            The message names the tensors; `qcore.exchange.safetensors.read_header` gives each as it is.

    Example:
        >>> import tempfile
        >>> from qcore.exchange import encode_weight, save_quantized
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     weight = encode_weight(np.ones((2, 32), np.float32), "GPT-OSS MXFP4")
        ...     save_quantized(f"{folder}/model.safetensors", {"mlp": weight})
        ...     load_quantized(folder)
        {'mlp': Encoded(shape=(2, 32), number=mxfp4, dialect=GPT-OSS MXFP4)}
    """
    file = _file_of(path)
    if file.suffix == ".gguf":
        return {name: _of_gguf(tensor) for name, tensor in gguf.read(file).tensors.items()}
    tensors = _sharded(file) if file.name.endswith(".json") else read_header(file)[0]
    config = _config_beside(file)
    found, names, entries = _weights_of(tensors, config), set[str](), dict[str, Any]()
    for name, (dialect, roles) in found.items():
        names.update(tensor.name for tensor in roles.values())
        entries[name] = dialect.make(WeightTensors(name, roles, config))
    rest = [name for name in tensors if name not in names]
    _check_rest([tensors[name] for name in rest], config, bool(found))
    for name in rest:
        if name in entries:
            raise ValueError(f"there are two weights named {quoted(name)}; allowed is one")
        entries[name] = _plain(tensors[name])
    return entries


def save_quantized(path: str | os.PathLike[str], entries: Mapping[str, Encoded[np.ndarray] | np.ndarray]) -> None:
    """Writes weights to a safetensors file, each with the names and dtypes of its dialect.

    Args:
        path: of the file; an existing one is replaced. One that ends in .gguf becomes a GGUF file without metadata;
            `qcore.exchange.gguf.write` writes them too.
        entries: by name `Encoded` weights, from `load_quantized` or `encode_weight`, and NumPy arrays. An `Encoded`
            without a dialect and without scales is a tensor of the file's own dtype, such as F8_E4M3 or F4; in GGUF
            files the formats are `GGUF`.

    Returns:
        Nothing.

    Raises:
        ValueError: if a weight's dialect or format has no such tensors, or two tensors would have the same name.

    Example:
        >>> import tempfile
        >>> from qcore import encode, parse
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     codes = Encoded(encode(np.float32([1, 2]), "e4m3fn"), parse("e4m3fn"))
        ...     save_quantized(f"{folder}/w.safetensors", {"w": codes, "b": np.float32([3])})
        ...     load_quantized(f"{folder}/w.safetensors")
        {'b': array([3.], dtype=float32), 'w': Encoded(shape=(2,), number=e4m3fn)}
    """
    check_type("path", path, (str, os.PathLike), "a str or os.PathLike")
    check_type("entries", entries, Mapping, "a dict")
    tensors: dict[str, Content] = {}
    for name, value in entries.items():
        check_type(f"the name {quoted(name)} of entries", name, str, "a str")
        check_type(f"entry {quoted(name)}", value, (Encoded, np.ndarray), "an Encoded or a NumPy array")
    if Path(os.fspath(path)).suffix == ".gguf":
        gguf.write(path, {name: _for_gguf(name, value) for name, value in entries.items()}, {})
        return
    for name, value in entries.items():
        try:
            found = contents_of(name, value) if isinstance(value, Encoded) else {name: content_of(value)}
        except ValueError as error:
            raise ValueError(f"entry {quoted(name)}: {error}") from error
        if twice := [one for one in found if one in tensors]:
            raise ValueError(f"there are two tensors named {quoted(twice[0])}; allowed is one")
        tensors.update(found)
    write_file(path, tensors, {"format": "pt"})


def _of_gguf(tensor: gguf.Tensor) -> Any:
    kind, shape, data = tensor
    if kind in gguf.PLAIN:
        dtype = np.dtype(gguf.PLAIN[kind][1])
        numbers = data.view(dtype).astype(dtype.newbyteorder("=")).reshape(shape)
        return numbers.view(bfloat16()) if kind == "BF16" else numbers
    number = GGUF(kind)
    row = shape[-1] // number.layout.size * number.layout.width
    return Encoded(np.array(data).reshape(*shape[:-1], row), number, dialect="GGUF")


def _for_gguf(name: str, value: Encoded | np.ndarray) -> gguf.Tensor:
    if isinstance(value, Encoded):
        if not isinstance(value.number, GGUF):
            raise ValueError(
                f"entry {quoted(name)} has the format {quoted(value.number.text)}; allowed in GGUF files are those of "
                "gguf()"
            )
        return gguf.Tensor(value.number.type.upper(), value.shape, value.codes)
    found = next(
        (kind for kind, (_, dtype) in gguf.PLAIN.items() if np.dtype(dtype) == value.dtype.newbyteorder("<")), ""
    )
    if value.dtype.name == "bfloat16":
        found, value = "BF16", value.view("u2")
    elif found in ("", "BF16"):
        raise ValueError(f"entry {quoted(name)} has dtype {value.dtype}; allowed are {', '.join(gguf.PLAIN)}")
    return gguf.Tensor(found, value.shape, value.astype(value.dtype.newbyteorder("<"), copy=False))


def _file_of(path: Any) -> Path:
    check_type("path", path, (str, os.PathLike), "a str or os.PathLike")
    found = Path(os.fspath(path))
    if not found.is_dir():
        return found
    inside = next((found / name for name in (_INDEX, _SINGLE) if (found / name).exists()), None)
    if inside is None:
        files = sorted(found.glob("*.safetensors"))
        if len(files) != 1:
            raise FileNotFoundError(
                f"{found} has {len(files)} files .safetensors and no {_INDEX}; allowed is one of them"
            )
        return files[0]
    return inside


def _json(path: Path) -> dict[str, Any]:
    check_regular(path)
    if path.stat().st_size > _LARGEST_JSON:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes; allowed are {_LARGEST_JSON}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not JSON in UTF-8: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is a {type(found).__name__}; allowed is a dict")
    return found


def _sharded(index: Path) -> dict[str, Tensor]:
    """The tensors of all files that an index names; each must be where the index says."""
    places = _json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
        raise ValueError(f"weight_map of {index.name} is {quoted(places)}; allowed is a dict of names of files")
    files: dict[str, dict[str, Tensor]] = {}
    for file in dict.fromkeys(places.values()):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ValueError(
                f"weight_map of {index.name} has the file {quoted(file)}; allowed are names ending .safetensors"
            )
        files[file] = read_header(index.parent / file)[0]
    for name, file in places.items():
        if name not in files[file]:
            raise ValueError(f"tensor {quoted(name)} is not in {file}, where {index.name} says it is")
    for file, tensors in files.items():
        for name in tensors:
            if places.get(name) != file:
                raise ValueError(f"tensor {quoted(name)} of {file} is not in weight_map of {index.name}")
    return {name: files[file][name] for name, file in places.items()}


def _config_beside(file: Path) -> dict[str, Any]:
    """What a configuration beside a file says of its quantization, in one flat dict; empty without one."""
    found: Any = None
    for name, key in (("config.json", "quantization_config"), ("hf_quant_config.json", "quantization")):
        if found is None and (file.parent / name).exists():
            found = _json(file.parent / name).get(key)
    if not isinstance(found, dict):
        return {}
    flat = {key: value for key, value in found.items() if not isinstance(value, dict)}
    groups = found.get("config_groups")
    weights = [
        group["weights"]
        for group in (groups.values() if isinstance(groups, dict) else [])
        if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    ]
    for key in ("num_bits", "group_size", "block_structure"):  # what all groups say alike
        values = [weight.get(key) for weight in weights]
        if values and all(value == values[0] for value in values):
            flat[key] = values[0]
    return flat


def _weights_of(tensors: Mapping[str, Tensor], config: Any) -> dict[str, tuple[Dialect, dict[str, Tensor]]]:
    """The quantized weights by name: their dialect, and their tensors by role."""
    found: dict[str, tuple[Dialect, dict[str, Tensor]]] = {}
    claimed: set[str] = set()
    for dialect in DIALECTS:
        for name in tensors:
            if name in claimed or not name.endswith(dialect.weight):
                continue
            roles = _roles_of(name, dialect, tensors)
            if roles is None or claimed & {one.name for one in roles.values()}:
                continue
            claimed.update(one.name for one in roles.values())
            weight = name.removesuffix(dialect.weight) + ("weight" if dialect.weight in dialect.apart else "")
            if weight in found:
                raise ValueError(f"there are two weights named {quoted(weight)}; allowed is one")
            found[weight] = dialect, roles
    return {name: found[name] for name in sorted(found)}


def _roles_of(name: str, dialect: Dialect, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The tensors of the weight by role; None if one is missing or has another dtype."""
    base, folder = name.removesuffix(dialect.weight), name[: name.rfind(".") + 1]
    roles = {}
    for role in (*dialect.dtypes, *dialect.others):
        tensor = tensors.get((folder if role in dialect.apart else base) + role)
        if tensor is not None and tensor.dtype in dialect.dtypes.get(role, (tensor.dtype,)):
            roles[role] = tensor
        elif role in dialect.dtypes:
            return None
    return roles


def _check_rest(rest: list[Tensor], config: Mapping[str, Any], known: bool) -> None:
    """Raises if tensors that belong to no known dialect are parts of quantized weights."""
    integers = ("U8", "I8", "I32", "U32", "I16", "U16", "I64")
    strange = [
        tensor
        for tensor in rest
        if tensor.name.endswith(_PARTS_OF_WEIGHTS)
        or ".quant_state." in tensor.name
        or (tensor.dtype in integers and tensor.name.endswith("weight"))
    ]
    method = config.get("quant_method")
    if strange or (method is not None and method not in _METHODS and not known):
        listed = ", ".join(f"{quoted(one.name)} ({one.dtype}, {list(one.shape)})" for one in strange[:8])
        more = f" and {len(strange) - 8} more" if len(strange) > 8 else ""
        raise ValueError(
            f"the file has parts of weights in a dialect that is not known, quant_method={quoted(method)}: "
            f"{listed or 'none by name'}{more}; allowed are {', '.join(_METHODS)}. "
            "qcore.exchange.safetensors.read_header gives each tensor as it is"
        )


def _plain(tensor: Tensor) -> Any:
    """A tensor that belongs to no quantized weight: an array, or codes of a format that NumPy lacks."""
    found = tensor.array()
    if tensor.dtype not in CODED:
        return found
    number = parse(CODED[tensor.dtype])
    if number.bits < 8:  # codes lie side by side over the ends of rows, the first one in the lowest bits
        found = unpack(found, number.bits, found.size * 8 // number.bits).reshape(tensor.shape)
    return Encoded(found, number)
