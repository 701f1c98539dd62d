"""Checkpoints of quantized arrays and of observers' states: one layout for all packages.

A checkpoint is a flat dict of arrays, in a safetensors file. A state is one array for each field, "name.field"; a field
that is a state has fields in turn. Names, shapes and dtypes are those in the `state_dict` of a torch module: scales,
zero points and switches have one dimension, and switches are uint8. A reader accepts other shapes and dtypes.
A quantized array is "name.int_repr", "name.scale" and "name.zero_point"; its axis and the text of its range are in the
file's metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from qcore.affine.integers import AffineInteger
from qcore.affine.parameters import QParams, check_qparams
from qcore.affine.quantized import QuantizedArray
from qcore.arguments import check_regular, check_type, numbers_of, quoted
from qcore.files import replaced
from qcore.formats.text import parse

_METADATA = "quantized"
_ARRAYS = ("int_repr", "scale", "zero_point")
_WITH_A_DIMENSION = ("scale", "zero_point", "fake_quant_enabled", "observer_enabled")  # where torch has one


class Quantized(NamedTuple):
    """A quantized array: integers that stand for (int_repr - zero_point) * scale; the axis is None or the channels'."""

    int_repr: Any
    scale: Any
    zero_point: Any
    axis: int | None
    form: AffineInteger


def flatten(entries: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays and the metadata of a checkpoint.

    Args:
        entries: by name arrays, quantized arrays, and states: named tuples of NumPy arrays and of states.

    Returns:
        A flat dict of arrays, and a dict of strings that describe them.

    Example:
        >>> w = Quantized(np.int8([5]), np.float32(0.5), np.int32(0), None, AffineInteger(-8, 7))
        >>> list(flatten({"w": w})[0])
        ['w.int_repr', 'w.scale', 'w.zero_point']
    """
    check_type("entries", entries, Mapping, "a dict")
    arrays: dict[str, Any] = {}
    descriptions = {}
    for entry, value in entries.items():
        check_type(f"the name {quoted(entry)} of entries", entry, str, "a str")
        if isinstance(value, QuantizedArray):
            qparams = value.qparams
            value = Quantized(value.values, qparams.scale, qparams.zero_point, qparams.axis, value.form)
        if isinstance(value, Quantized):
            descriptions[entry] = {"axis": value.axis, "format": value.form.text}
        for name, array in _arrays_of(entry, value):
            if name in arrays:
                raise ValueError(f"there are two arrays named {quoted(name)}; allowed is one")
            arrays[name] = array
    return arrays, {_METADATA: json.dumps(descriptions)}


def _arrays_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Quantized):
        yield from ((f"{name}.{part}", getattr(value, part)) for part in _ARRAYS)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field in value._fields:  # type: ignore[attr-defined]
            for path, array in _arrays_of(f"{name}.{field}", getattr(value, field)):
                array = array.astype(np.uint8) if array.dtype == bool else array
                yield path, array.reshape(-1) if field in _WITH_A_DIMENSION else array
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        yield name, value
    else:
        raise TypeError(
            f"entry {quoted(name)} is a {type(value).__name__}; allowed are arrays, quantized arrays and states"
        )


def unflatten(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The inverse of `flatten`, but states stay arrays; `restore` gives them their types.

    Args:
        arrays: arrays by name.
        metadata: strings by name; None for files without metadata of this library.
    """
    entries = dict(arrays)
    for name, description in _descriptions(metadata).items():
        parts = {part: _entry(entries, f"{name}.{part}") for part in _ARRAYS}
        for part in _ARRAYS:
            del entries[f"{name}.{part}"]
        try:
            entries[name] = _quantized(parts, description)
        except (TypeError, ValueError) as error:
            raise ValueError(f"array {quoted(name)} of the checkpoint: {error}") from error
    return entries


def _descriptions(metadata: Any) -> dict[str, Any]:
    """The descriptions of quantized arrays in the metadata, by name."""
    text = (metadata or {}).get(_METADATA, "{}")
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise ValueError(f"metadata[{quoted(_METADATA)}]={quoted(text)}; allowed is a dict of dicts, as save wrote it")
    return found


def _quantized(parts: dict[str, Any], description: dict[str, Any]) -> Quantized:
    """An array whose parts fit each other."""
    axis, form = description.get("axis"), _form(description)
    values, scale, zero_point = (np.asarray(parts[part]) for part in _ARRAYS)
    check_qparams(QParams(scale, zero_point, axis), form, values.shape)
    if values.dtype.kind not in "iu":
        raise TypeError(f"int_repr is {values.dtype}; allowed is {form.storage}")
    outside = values[(values < form.qmin) | (values > form.qmax)]
    if outside.size:
        raise ValueError(f"int_repr has {outside.flat[0]}; allowed are integers from {form.qmin} to {form.qmax}")
    return Quantized(**parts, axis=axis, form=form)


def _form(description: Mapping[str, Any]) -> AffineInteger:
    """The range of an array's integers, from its text; older files have its fields instead."""
    if "format" not in description:
        return AffineInteger(**{field: value for field, value in description.items() if field != "axis"})
    form = parse(description["format"])
    if not isinstance(form, AffineInteger):
        raise ValueError(f"format={quoted(form.text)}; allowed is affine(qmin,qmax)")
    return form


def _entry(entries: Mapping[str, Any], name: str) -> Any:
    if name not in entries:
        raise ValueError(f"there is no array named {quoted(name)}; there are {', '.join(entries)}")
    return entries[name]


def wrapped(value: Any, make: Callable[[Any, QParams, AffineInteger], Any]) -> Any:
    """Turns a `Quantized` into a framework's quantized array; returns anything else as it is."""
    if not isinstance(value, Quantized):
        return value
    return make(value.int_repr, QParams(value.scale, value.zero_point, value.axis), value.form)


def restore(state: Any, entries: Mapping[str, Any], name: str) -> Any:
    """A state of a checkpoint, in the shapes and dtypes of another state.

    Args:
        state: a state of the wanted kind and shapes, such as an observer's first state.
        entries: NumPy arrays by name; arrays that do not belong to the state are ignored.
        name: the name of the state.

    Returns:
        A state of NumPy arrays.

    Example:
        >>> from qcore.affine import MinMax
        >>> restore(MinMax().init(), {"x.min_val": np.float32([-1]), "x.max_val": np.float32([2])}, "x")
        Extremes(min_val=array(-1., dtype=float32), max_val=array(2., dtype=float32))
    """
    check_type("name", name, str, "a str")
    if isinstance(state, tuple):
        if not hasattr(state, "_fields"):
            raise TypeError(f"state is or has a {type(state).__name__}; allowed are named tuples of arrays and states")
        pairs = zip(state._fields, state, strict=True)  # type: ignore[attr-defined]
        return type(state)(*(restore(value, entries, f"{name}.{field}") for field, value in pairs))
    array, shape = numbers_of(f"array {quoted(name)}", _entry(entries, name)), tuple(state.shape)
    if array.size != np.prod(shape):
        raise ValueError(f"array {quoted(name)} has shape {array.shape}; allowed is {shape}")
    dtype = np.asarray(state).dtype
    with np.errstate(invalid="ignore", over="ignore"):
        found = array.reshape(shape).astype(dtype)
    if dtype.kind in "iu" and (found != array.reshape(shape)).any():
        raise ValueError(f"array {quoted(name)} has {quoted(array.tolist())}; allowed are integers of {dtype}")
    return found


def save_file(path: str | os.PathLike[str], entries: Mapping[str, Any]) -> None:
    """Writes a checkpoint, the entries of `flatten`, to a safetensors file; needs safetensors."""
    check_path(path)
    arrays, metadata = flatten(entries)
    write = installed("safetensors.numpy").save_file
    with replaced(path) as fresh:
        write({name: np.array(array, order="C") for name, array in arrays.items()}, fresh, metadata)


def load_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The contents of a safetensors file, from `save_file` or another program: NumPy arrays and `Quantized`."""
    return unflatten(*read_file(path, "numpy"))


def read_file(path: str | os.PathLike[str], framework: str) -> tuple[dict[str, Any], dict[str, str] | None]:
    """The arrays and the metadata of a safetensors file, as arrays of "numpy" or "torch"."""
    check_path(path)
    check_regular(path)
    safetensors = installed("safetensors")
    try:
        with safetensors.safe_open(path, framework) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"path={quoted(os.fsdecode(path))} is not what safetensors wrote: {error}") from error


def check_path(path: Any) -> None:
    check_type("path", path, (str, bytes, os.PathLike), "a str or os.PathLike")


def installed(module: str) -> Any:
    """Imports safetensors, or a module of it; without it, an error with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError("checkpoints need safetensors: pip install safetensors") from error
