"""Element types of ONNX as dtypes of NumPy and ml_dtypes, and the law of conversions between them."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from qcore.arguments import quoted
from qcore.exchange.limits import check_shape
from qcore.formats.number import check_number, prepare
from qcore.law.carrier import CARRIERS
from qcore.law.program import Constants, Program
from qcore.law.rounding import check_rounding
from qcore.namespace import Names

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
    13: "uint64",
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
# Small floats: our format, and what ONNX makes of large numbers where it does not saturate.
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


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a type."""
    import ml_dtypes  # a requirement of onnx

    return np.dtype(getattr(ml_dtypes, name, name))


def type_of(number: int, name: str) -> str:
    """The type with a number in a file; raises for types that are not supported."""
    if number not in TYPES:
        raise ValueError(f"{name} has element type {number}; allowed are {', '.join(map(str, TYPES))}")
    return TYPES[number]


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


def returned_as(type: str) -> str:
    """The dtype of the arrays in which a user gets and gives a type."""
    if type in CODED:
        return "uint8"
    return f"{'u' if type.startswith('u') else ''}int8" if is_integer(type) and bits_of(type) < 8 else type


def returned(x: Any) -> Any:
    """An array as a user gets it; a sequence has several."""
    if not isinstance(x, np.ndarray | np.generic):
        return [returned(one) for one in x] if isinstance(x, list) else x
    type = x.dtype.name
    return x.view(np.uint8) if type in CODED else np.asarray(x).astype(returned_as(type), copy=False)


def of_user(name: str, x: np.ndarray, type: str) -> np.ndarray:
    """An input that a user gives for a tensor of a type."""
    found, given = x.dtype.name, returned_as(type)
    if found not in (type, given):
        allowed = " or ".join(dict.fromkeys((type, given)))
        raise ValueError(f"input {quoted(name)} has dtype {found}; allowed is {allowed}")
    if found == type:
        return x
    low, high = (0, 2 ** bits_of(type) - 1) if type in CODED else range_of(type)
    if x.size and not low <= int(x.min()) <= int(x.max()) <= high:
        raise ValueError(f"input {quoted(name)} of {type} has {x.min()} to {x.max()}; allowed are {low} to {high}")
    return np.ascontiguousarray(x).view(dtype_of(type)) if type in CODED else x.astype(dtype_of(type))


def check_tensor(tensor: Any, onnx: Any) -> None:
    """Raises if a tensor of a file does not have the size of its shape, before memory is taken."""
    name = f"tensor {quoted(tensor.name)}"
    type = type_of(tensor.data_type, name)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError(f"{name} lies in another file; allowed is the path of a model whose other files lie beside it")
    count, bits = prod(tensor.dims), bits_of(type)
    if count <= 0:  # no data say how large the other sizes may be
        check_shape(tuple(tensor.dims), name)
    if tensor.HasField("raw_data"):
        found, wanted, unit = len(tensor.raw_data), -(-count * bits // 8), "bytes"
    else:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        found, unit = len(getattr(tensor, field)), f"numbers of {field}"
        wanted = -(-count * bits // 8) if bits < 8 else count
    if found != wanted:
        raise ValueError(f"{name} of {type} has shape {tuple(tensor.dims)} and {found} {unit}; allowed are {wanted}")


def cast(x: np.ndarray, type: str, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """An array in another type, by the rules of ONNX's Cast.

    Floats beyond the range of an integer type are open in ONNX. They are cut toward zero and taken modulo 2^bits here;
    NaN and numbers beyond int64 are 0.
    """
    source = x.dtype.name
    if source == type or source not in TYPES.values():
        return x.astype(type, copy=False)
    if source in CODED or source == "bfloat16":
        x = x.astype(np.float32)
    if type in CODED:
        mode = _E8M0_MODES[round_mode] if type == "float8_e8m0fnu" else "nearest"
        return encode(x.astype(np.float32), type, saturate, mode)
    if not is_integer(type):
        return x.astype(dtype_of(type))
    if x.dtype.kind == "f":
        x = np.trunc(np.where(abs(x) < 2.0**63, x, np.zeros_like(x))).astype(np.int64)
    return wrapped(x.astype(np.int64), type) if bits_of(type) < 8 else x.astype(type)


def wrapped(x: np.ndarray, type: str) -> np.ndarray:
    """int64 numbers modulo 2^bits, in a type of fewer bits."""
    bits = bits_of(type)
    half = 0 if type.startswith("u") else 1 << (bits - 1)
    return (((x + half) & ((1 << bits) - 1)) - half).astype(dtype_of(type))


def encode(x: np.ndarray, type: str, saturate: bool, mode: str = "nearest") -> np.ndarray:
    """float32 numbers in a type of small floats."""
    program, constants = _encoding(type, saturate, mode)
    bits = np.ascontiguousarray(x).reshape(x.shape or (1,)).view(np.int32)
    if type == "float8_e8m0fnu":  # what lies beyond its ends is decided before it is rounded
        magnitude, outside = bits & 0x7FFFFFFF, np.int32(0x00400000 if saturate else 0x7FC00000)
        bits = np.where(magnitude < 0x00400000, outside, bits)
        bits = bits if saturate else np.where(magnitude > 0x7F000000, outside, bits)
    codes: Any = program.run(Names, bits, constants, ())
    return codes.reshape(x.shape).astype(np.uint8).view(dtype_of(type))


@cache
def _encoding(type: str, saturate: bool, mode: str) -> tuple[Program, Constants]:
    number, otherwise = CODED[type]
    overflow = "saturate" if saturate else otherwise
    return prepare(check_number(number), check_rounding(mode), CARRIERS["float32"], overflow, True)
