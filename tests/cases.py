"""Wrong calls of `quantize` and of the formats: the same table for all three packages."""

import numpy as np

from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint

F = FloatingPoint(5, 2)

# (what makes the format, exception, words of the message: argument, value, what is allowed)
BAD_FORMATS = [
    (lambda: FixedPoint("8", 4), TypeError, ["wl", "'8'", "int >= 1"]),
    (lambda: FixedPoint(8.0, 4), TypeError, ["wl", "8.0", "int >= 1"]),
    (lambda: FixedPoint(True, 4), TypeError, ["wl", "True", "int >= 1"]),
    (lambda: FixedPoint(0, 4), ValueError, ["wl", "0", ">= 1"]),
    (lambda: FixedPoint(8, 4.5), TypeError, ["fl", "4.5", "int"]),
    (lambda: FixedPoint(8, None), TypeError, ["fl", "None", "int"]),
    (lambda: FixedPoint(8, 4, clamp=1), TypeError, ["clamp", "1", "True and False"]),
    (lambda: FixedPoint(8, 4, symmetric="no"), TypeError, ["symmetric", "'no'", "True and False"]),
    (lambda: FloatingPoint(0, 2), ValueError, ["exp", "0", "1 to 64"]),
    (lambda: FloatingPoint(65, 2), ValueError, ["exp", "65", "1 to 64"]),
    (lambda: FloatingPoint(5, -1), ValueError, ["man", "-1", "0 to 23"]),
    (lambda: FloatingPoint(5, 24), ValueError, ["man", "24", "0 to 23"]),
    (lambda: FloatingPoint(5.0, 2), TypeError, ["exp", "5.0", "1 to 64"]),
    (lambda: FloatingPoint(5, [2]), TypeError, ["man", "[2]", "0 to 23"]),
    (lambda: BlockFloatingPoint(1), ValueError, ["wl", "1", "2 to 25"]),
    (lambda: BlockFloatingPoint(26), ValueError, ["wl", "26", "2 to 25"]),
    (lambda: BlockFloatingPoint(8, -2), ValueError, ["dim", "-2", "-1"]),
    (lambda: BlockFloatingPoint(8, 0.0), TypeError, ["dim", "0.0", "int"]),
]

# (arguments of quantize after x, exception, words of the message)
BAD_CALLS = [
    ({"number": "e5m2x"}, TypeError, ["number", "e5m2x", "Number"]),
    ({"number": (5, 2)}, TypeError, ["number", "(5, 2)", "Number"]),
    ({"number": [5, 2]}, TypeError, ["number", "[5, 2]", "Number"]),
    ({"number": F, "rounding": "neerest"}, ValueError, ["rounding", "neerest", "nearest, nearest_away"]),
    ({"number": F, "rounding": 3}, TypeError, ["rounding", "3", "nearest, nearest_away"]),
    ({"number": F, "rounding": ["nearest"]}, TypeError, ["rounding", "['nearest']", "nearest, nearest_away"]),
    ({"number": F, "key": -1}, ValueError, ["key", "-1", "int from 0"]),
    ({"number": F, "key": 2**64}, ValueError, ["key", str(2**64), "int from 0"]),
    ({"number": F, "key": 1.0}, TypeError, ["key", "1.0", "int from 0"]),
    ({"number": F, "key": "seed"}, TypeError, ["key", "'seed'", "int from 0"]),
    ({"number": F, "key": (1, 2, 3)}, ValueError, ["key", "(1, 2, 3)", "two"]),
    ({"number": F, "key": (1, 2**32)}, ValueError, ["key[1]", str(2**32), "int from 0"]),
    ({"number": F, "rounding": "nearest", "key": -1}, ValueError, ["key", "-1", "int from 0"]),
    ({"number": F, "key": 1, "random_bits": 0}, ValueError, ["random_bits", "0", "1 to 24"]),
    ({"number": F, "key": 1, "random_bits": 25}, ValueError, ["random_bits", "25", "1 to 24"]),
    ({"number": F, "key": 1, "random_bits": 8.0}, TypeError, ["random_bits", "8.0", "1 to 24"]),
    ({"number": F, "rounding": "nearest", "random_bits": "8"}, TypeError, ["random_bits", "'8'", "1 to 24"]),
    ({"number": F, "key": 1, "start": -1}, ValueError, ["start", "-1", "int from 0"]),
    ({"number": F, "key": 1, "start": 2**64}, ValueError, ["start", str(2**64), "int from 0"]),
    ({"number": F, "key": 1, "start": [0]}, TypeError, ["start", "[0]", "int from 0"]),
    ({"number": FixedPoint(8, 150), "rounding": "nearest"}, ValueError, ["fl", "150", "-127 <= fl <= 149"]),
    ({"number": FixedPoint(8, -128), "rounding": "nearest"}, ValueError, ["fl", "-128", "-127 <= fl <= 149"]),
    ({"number": BlockFloatingPoint(8, 2), "rounding": "nearest"}, ValueError, ["dim", "2", "0 <= dim < 2"]),
]

# dtypes that no carrier exists for, with words of the message
BAD_DTYPES = [
    (np.float64, ["float64", "float32, ", "bfloat16"]),
    (np.int32, ["int32", "float32, ", "bfloat16"]),
    (np.bool_, ["bool", "float32, ", "bfloat16"]),
    (np.complex64, ["complex64", "float32, ", "bfloat16"]),
]
