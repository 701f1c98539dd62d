"""Formats in settings: arrays are rounded as they pass, and weights are stored as codes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qcore import Number
from qcore.formats.foreign import BytesNumber, stored_bits
from qcore.law.rounding import RoundingLike
from qjax._rounding.dispatch import decode, encode, quantize
from qjax._rounding.inputs import ArrayLike
from qjax._rounding.packing import pack, unpack
from qjax.quant.quantizer import QuantizeFunction


class NoState(NamedTuple):
    """The empty state of a rounding, which remembers nothing."""


@dataclass(frozen=True)
class FormatRounding:
    """Rounds arrays as they pass; in settings it stands where an observer would. Gradients go straight through.

    Args:
        function: what rounds, without random numbers: `qjax.quantizer("e4m3fn", forward_rounding="nearest")`; one
            without a format passes arrays as they are.

    Raises:
        ValueError: if it needs a key.

    Example:
        >>> from qjax.quantization import QConfig
        >>> QConfig("mxfp8_e5m2", "mxfp4").activation.apply(NoState(), jax.numpy.float32([1.2]))[0]
        Array([1.25], dtype=float32)
    """

    function: QuantizeFunction

    def __post_init__(self) -> None:
        if self.function.stochastic:
            raise ValueError("a quantizer with stochastic rounding needs a key at each call; allowed are other modes")

    @property
    def number(self) -> Number | None:
        """The format, or None."""
        return self.function.forward_number

    def __repr__(self) -> str:
        return "None" if self.number is None else repr(self.function)  # as `QConfig` takes it

    def init(self, shape: tuple[int, ...] = ()) -> NoState:
        """No state, for arrays of any shape."""
        return NoState()

    def apply(self, state: Any, x: ArrayLike) -> tuple[jax.Array, Any]:
        """The rounded array, and the state."""
        return self.function(x), state

    def coded(self, weight: jax.Array) -> Any:
        """A rounded weight: a `CodedArray`, or floats if there is no format."""
        if self.number is None:
            return weight
        return CodedArray.of(weight, self.number, self.function.forward_rounding)


def rounds_to_format(description: Any) -> bool:
    """True of settings that round to a format that is not a range of integers, or leave numbers as they are."""
    return isinstance(description, FormatRounding) or getattr(description, "number", None) is not None


@partial(jax.tree_util.register_dataclass, data_fields=["codes", "scales"], meta_fields=["number", "shape"])
@dataclass(frozen=True)
class CodedArray:
    """An array rounded to a format, as its packed codes; for formats without codes, as the rounded numbers. A pytree.

    GGUF's types are stored as their bytes, unless rows are so short that blocks take more than floats.

    Attributes:
        codes: uint8 of shape (..., bytes), or the numbers.
        scales: of blocks, as their codes.
        number: the format.
        shape: of the array.

    Example:
        >>> from qjax import parse
        >>> array = CodedArray.of(jax.numpy.float32([[1.0, -1.2], [0.3, 7.0]]), parse("e2m1fn"))
        >>> array.codes.ravel(), array.numbers()
        (Array([162, 113], dtype=uint8), Array([[ 1. , -1. ],
               [ 0.5,  6. ]], dtype=float32))
    """

    codes: jax.Array
    scales: tuple[jax.Array, ...]
    number: Number
    shape: tuple[int, ...]

    @classmethod
    def of(cls, x: jax.Array, number: Number, rounding: RoundingLike = "nearest") -> CodedArray:
        """The codes of an array of floats."""
        bits = stored_bits(number, x.shape)
        if bits is None:
            return cls(quantize(x, number, rounding), (), number, x.shape)
        if isinstance(number, BytesNumber):
            missing = -x.shape[-1] % number.block[0]
            whole = jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, missing)])
            return cls(encode(whole, number, rounding), (), number, x.shape)
        codes, scales = encode(x, number, rounding), ()
        if isinstance(codes, tuple):
            codes, found = codes
            scales = tuple(found) if isinstance(found, tuple) else (found,)
        return cls(pack(codes, bits), scales, number, x.shape)

    def numbers(self) -> jax.Array:
        """The numbers, in float32."""
        if jnp.issubdtype(self.codes.dtype, jnp.floating):
            return self.codes
        if isinstance(self.number, BytesNumber):
            return decode(self.codes, self.number)[..., : self.shape[-1]]
        scales = self.scales[0] if len(self.scales) == 1 else self.scales or None
        return decode(unpack(self.codes, self.number.bits, self.shape[-1]), self.number, scales=scales)
