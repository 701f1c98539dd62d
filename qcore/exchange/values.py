"""Tensors of ONNX in a framework's arrays: element types, the arrays that hold them, and conversions between them.

Few frameworks have arrays of all types. So integers of up to 32 bits are held as int32, uint32 and int64 as int64, and
floats of 8 and 4 bits by their codes as int32.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import quoted
from qcore.formats.number import check_number, prepare
from qcore.law.carrier import CARRIERS
from qcore.law.program import Constants, Decoding, Program
from qcore.law.rounding import check_rounding

TYPES = {  # by the number in a file
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
    25: "uint2",
    26: "int2",
}
# Floats that are held by codes: our format, and what ONNX makes of large numbers where it does not saturate.
CODED = {
    "float8_e4m3fn": ("e4m3fn", "nan"),
    "float8_e4m3fnuz": ("e4m3fnuz", "nan"),
    "float8_e5m2": ("e5m2", "inf"),
    "float8_e5m2fnuz": ("e5m2fnuz", "nan"),
    "float4_e2m1fn": ("e2m1fn", "saturate"),
    "float8_e8m0fnu": ("e8m0fnu", "nan"),
}
FLOATS = ("float32", "float64", "float16", "bfloat16")
_E8M0_MODES = {"up": "up", "down": "toward_zero", "nearest": "nearest_away"}
_MOST = 2**28  # elements of an array that a node makes from sizes alone


class Value(NamedTuple):
    """A tensor.

    Attributes:
        array: an array of a framework, or of NumPy for what does not depend on inputs.
        type: the name of its element type, as ml_dtypes has it.
        host: the same as a NumPy array, if it does not depend on inputs.
    """

    array: Any
    type: str
    host: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return self.array.ndim


def is_integer(type: str) -> bool:
    """True for int4, uint8 and so on, False for bool."""
    return "int" in type


def bits_of(type: str) -> int:
    """The width of an element in a file."""
    if type == "bool":
        return 8
    return check_number(CODED[type][0]).bits if type in CODED else int("".join(filter(str.isdigit, type[1:])))


def range_of(type: str) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    bits = bits_of(type)
    return (0, 2**bits - 1) if type.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def held_as(type: str) -> str:
    """The dtype of the arrays that hold a type."""
    if type == "bool" or type in FLOATS:
        return type
    return "int64" if type in ("int64", "uint32") else "int32"


def returned_as(type: str) -> str:
    """The dtype of the arrays in which a user gets and gives a type."""
    if type in CODED:
        return "uint8"
    return f"{'u' if type.startswith('u') else ''}int8" if is_integer(type) and bits_of(type) < 8 else type


def type_of(number: int, name: str) -> str:
    """The type with a number in a file; raises for types that are not supported."""
    if number not in TYPES:
        raise ValueError(f"{name} has element type {number}; allowed are {', '.join(map(str, TYPES))}")
    return TYPES[number]


def check_tensor(tensor: Any, onnx: Any) -> str:
    """The type of a tensor of a file; raises if its data do not have the size of its shape."""
    name = f"tensor {quoted(tensor.name)}"
    type = type_of(tensor.data_type, name)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError(f"{name} lies in another file; allowed is the path of a model whose other files lie beside it")
    if any(size < 0 for size in tensor.dims):
        raise ValueError(f"{name} has shape {tuple(tensor.dims)}; allowed are sizes from 0 on")
    count, bits = prod(tensor.dims), bits_of(type)
    if tensor.HasField("raw_data"):
        found, wanted, unit = len(tensor.raw_data), -(-count * bits // 8), "bytes"
    else:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        found, unit = len(getattr(tensor, field)), f"numbers of {field}"
        wanted = -(-count * bits // 8) if bits < 8 else count
    if found != wanted:
        raise ValueError(f"{name} of {type} has shape {tuple(tensor.dims)} and {found} {unit}; allowed are {wanted}")
    return type


def of_tensor(tensor: Any, onnx: Any) -> Value:
    """A tensor of a file, whose size is checked before memory is taken."""
    type, array = check_tensor(tensor, onnx), onnx.numpy_helper.to_array(tensor)
    array = array.astype(held_as(type)) if type not in CODED else array.view(np.uint8).astype(np.int32)
    return Value(array, type, array)


def of_user(xp: Any, name: str, x: Any, type: str) -> Value:
    """An input that a user gives for a tensor of a type."""
    found = xp.dtype(x)
    if found not in (type, returned_as(type)):
        allowed = " or ".join(dict.fromkeys((type, returned_as(type))))
        raise ValueError(f"input {quoted(name)} has dtype {found}; allowed is {allowed}")
    if found in CODED:
        return cast(xp, Value(xp.astype(x, "float32"), "float32"), type)
    return Value(xp.astype(x, held_as(type)), type)


def lifted(xp: Any, value: Value) -> Value:
    """A value as an array of the framework."""
    if value.host is None or value.array is not value.host:
        return value
    return value._replace(array=xp.asarray(value.host))


def check_count(shape: Any) -> tuple[int, ...]:
    """The shape of an array that a node makes from sizes alone."""
    shape = tuple(int(size) for size in shape)
    if any(size < 0 for size in shape) or prod(shape) > _MOST:
        raise ValueError(f"a result has shape {quoted(shape)}; allowed are sizes from 0 on, of at most 2^28 elements")
    return shape


def wrapped(xp: Any, x: Any, type: str) -> Any:
    """Integers modulo 2^bits, in the range of a type; x has the dtype that holds it."""
    bits = bits_of(type)
    if held_as(type) == f"int{bits}":
        return x
    half = 0 if type.startswith("u") else 1 << (bits - 1)
    return ((x + half) & ((1 << bits) - 1)) - half


def integers(xp: Any, x: Any, type: str) -> Any:
    """Floats, cut toward zero, as integers of a type modulo 2^bits; NaN and numbers beyond int64 are 0."""
    x = xp.trunc(xp.where(abs(x) < 2.0**63, x, xp.full_like(x, 0, xp.dtype(x))))
    return xp.astype(wrapped(xp, xp.astype(x, "int64"), type if type != "int32" else "int64"), held_as(type))


def cast(xp: Any, value: Value, type: str, saturate: bool = True, round_mode: str = "up") -> Value:
    """A value in another type, by the rules of ONNX's Cast."""
    x = value.array
    if value.type == type:
        return value
    if value.type in CODED:
        return cast(xp, Value(decode(xp, x, value.type), "float32"), type, saturate, round_mode)
    if type in CODED:
        mode = _E8M0_MODES[round_mode] if type == "float8_e8m0fnu" else "nearest"
        return Value(encode(xp, xp.astype(x, "float32"), type, saturate, mode), type)
    if type == "bool":
        return Value(x != 0, type)
    if is_integer(type) and value.type in FLOATS:
        return Value(integers(xp, x, type), type)
    if is_integer(type) and held_as(type) != held_as(value.type):
        x = xp.astype(x, "int64")
        return Value(xp.astype(wrapped(xp, x, type) if bits_of(type) < 32 else x, held_as(type)), type)
    return Value(wrapped(xp, x, type) if is_integer(type) else xp.astype(x, type), type)


def encode(xp: Any, x: Any, type: str, saturate: bool, mode: str = "nearest") -> Any:
    """The codes of float32 numbers."""
    program, constants = _encoding(type, saturate, mode)
    bits = xp.float32_bits(x.reshape(x.shape or (1,)))
    if type == "float8_e8m0fnu":  # what lies beyond its ends is decided before it is rounded
        magnitude, outside = bits & 0x7FFFFFFF, 0x00400000 if saturate else 0x7FC00000
        bits = xp.where(magnitude < 0x00400000, outside, bits)
        bits = bits if saturate else xp.where(magnitude > 0x7F000000, outside, bits)
    return program.run(xp, bits, constants, ()).reshape(x.shape)


def decode(xp: Any, codes: Any, type: str) -> Any:
    """The float32 numbers with these codes."""
    decoding, constants = _decoding(type)
    return xp.float32_from(decoding.run(xp, codes.reshape(codes.shape or (1,)), constants)).reshape(codes.shape)


@cache
def _encoding(type: str, saturate: bool, mode: str) -> tuple[Program, Constants]:
    number, otherwise = CODED[type]
    overflow = "saturate" if saturate else otherwise
    return prepare(check_number(number), check_rounding(mode), CARRIERS["float32"], overflow, True)


@cache
def _decoding(type: str) -> tuple[Decoding, tuple[int, ...]]:
    return check_number(CODED[type][0]).decoding(CARRIERS["float32"])
