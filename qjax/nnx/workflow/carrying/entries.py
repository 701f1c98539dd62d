"""The arrays of a `state_dict` by name, which of them were used, and the quantized weights that they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qcore.affine.checkpoint import numbers_of
from qcore.arguments import check_type, quoted
from qjax.quantization import QTensor
from qjax.quantization.integer.packed import unpacked

_INT4 = AffineInteger.of_width(4)
_BY_DTYPE = {"int8": INT8, "uint8": UINT8, "int16": AffineInteger.of_width(16), "uint16": AffineInteger(0, 65535)}
_IGNORED = "num_batches_tracked", "eps"


def check_tensors(tensors: Any) -> None:
    """Raises unless an argument is a mapping of names.

    Raises:
        TypeError: if it is no mapping.
        ValueError: if a name is no text.
    """
    check_type("tensors", tensors, Mapping, "a mapping of names to arrays")
    for name in tensors:
        if not isinstance(name, str):
            raise ValueError(f"the name {quoted(name)} of tensors is a {type(name).__name__}; allowed is a str")


class Entries:
    """The arrays of a `state_dict` below a name.

    Args:
        tensors: all arrays by their whole names.
        prefix: of the names that are meant, with its dot.
        used: the whole names of arrays that were taken.
    """

    def __init__(self, tensors: Mapping[str, Any], prefix: str = "", used: set[str] | None = None) -> None:
        self.tensors, self.prefix = tensors, prefix
        self.used = set() if used is None else used

    def of(self, name: str) -> Entries:
        """Those below a name."""
        return Entries(self.tensors, f"{self.prefix}{name}." if name else self.prefix, self.used)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def take(self, name: str, ndim: int | None = None, size: int | None = None) -> np.ndarray:
        """An array of real numbers, which counts as used.

        Raises:
            ValueError: if it is missing or something else, or has another number of dimensions or elements.
        """
        whole = self.prefix + name
        if name not in self:
            raise ValueError(f"tensors has no {quoted(whole)}")
        self.used.add(whole)
        array = numbers_of(f"tensors[{quoted(whole)}]", self.tensors[whole])
        if ndim not in (None, array.ndim):
            raise ValueError(f"tensors[{quoted(whole)}] has shape {array.shape}; allowed are {ndim} dimensions")
        if size not in (None, array.size):
            raise ValueError(f"tensors[{quoted(whole)}] has shape {array.shape}; allowed are {size} elements")
        return array

    def maybe(self, name: str, ndim: int | None = None) -> np.ndarray | None:
        """An array, or None."""
        return self.take(name, ndim) if name in self else None

    def check_all_used(self) -> None:
        """Raises ValueError if an array belongs to no module."""
        left = [name for name in self.tensors if name not in self.used and name.rpartition(".")[2] not in _IGNORED]
        if left:
            raise ValueError(
                f"tensors has {', '.join(sorted(left)[:8])}, for which model has no module of this name and kind"
            )


def weight_from(shape: tuple[int, ...], entries: Entries, form: AffineInteger | None, channels: int = 0) -> QTensor:
    """The weight in integers that has a shape in torch; without a form, of all integers of its dtype, or of 4 bits.

    `channels` is the dimension of outputs in torch: 1 of transposed convolutions.

    Raises:
        ValueError: if an array is missing, or has another shape or dtype.
    """
    scale, zero_point = entries.take("scale"), entries.take("zero_point")
    qparams = QParams(jnp.asarray(scale), jnp.asarray(zero_point), channels if scale.ndim else None)
    if "packed" in entries:
        form = _INT4 if form is None else form
        values = unpacked(jnp.asarray(entries.take("packed")), form, shape)
    else:
        values = jnp.asarray(entries.take("int_repr"))
        allowed = list(_BY_DTYPE) if form is None else [form.storage]
        if values.dtype.name not in allowed:
            raise ValueError(f"{entries.prefix}int_repr has dtype {values.dtype}; allowed is {' or '.join(allowed)}")
        form = _BY_DTYPE[values.dtype.name] if form is None else form
    if values.shape != shape:
        raise ValueError(
            f"{quoted(entries.prefix[:-1])} of tensors has shape {values.shape}; allowed is {shape}, as the model's"
        )
    weight = QTensor(values, qparams, form)
    try:
        weight.check()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{quoted(entries.prefix[:-1])} of tensors: {error}") from error
    check_range(values, form, entries.prefix[:-1])
    return weight


def check_range(values: jax.Array, form: AffineInteger, name: str) -> None:
    """Raises ValueError if the integers of a weight are out of range."""
    if ((values < form.qmin) | (values > form.qmax)).any():
        raise ValueError(f"{quoted(name)} of tensors has integers outside of {form}; allowed are none")


def parameters_from(entries: Entries) -> QParams:
    """The parameters of a result."""
    scale, zero_point = (entries.take(name, size=1).reshape(()) for name in ("scale", "zero_point"))
    if zero_point.dtype.kind not in "iu":
        raise ValueError(f"{entries.prefix}zero_point is {zero_point.dtype}; allowed are integers")
    return QParams(jnp.asarray(scale, jnp.float32), jnp.asarray(zero_point, jnp.int32))
