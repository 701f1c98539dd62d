"""Wrong calls of `quantize` and of the formats: the same table for all three packages."""

import numpy as np

from qcore import BinaryFloat, BlockFloatingPoint, FixedPoint, FloatingPoint, Posit, p3109

F = FloatingPoint(5, 2)

# (what makes the format, exception, words of the message: argument, value, what is allowed)
BAD_FORMATS = [
    (lambda: FixedPoint("8", 4), TypeError, ["wl", "'8'", "int from 1 to"]),
    (lambda: FixedPoint(8.0, 4), TypeError, ["wl", "8.0", "int from 1 to"]),
    (lambda: FixedPoint(True, 4), TypeError, ["wl", "True", "int from 1 to"]),
    (lambda: FixedPoint(0, 4), ValueError, ["wl", "0", "from 1 to"]),
    (lambda: FixedPoint(8, 4.5), TypeError, ["fl", "4.5", "int"]),
    (lambda: FixedPoint(8, None), TypeError, ["fl", "None", "int"]),
    (lambda: FixedPoint(8, 4, clamp=1), TypeError, ["clamp", "1", "True and False"]),
    (lambda: FixedPoint(8, 4, symmetric="no"), TypeError, ["symmetric", "'no'", "True and False"]),
    (lambda: FloatingPoint(0, 2), ValueError, ["exp", "0", "1 to 64"]),
    (lambda: FloatingPoint(65, 2), ValueError, ["exp", "65", "1 to 64"]),
    (lambda: FloatingPoint(5, -1), ValueError, ["man", "-1", "0 to 52"]),
    (lambda: FloatingPoint(5, 53), ValueError, ["man", "53", "0 to 52"]),
    (lambda: FloatingPoint(5, 2, bias=1.0), TypeError, ["bias", "1.0", "int"]),
    (lambda: FloatingPoint(5, 2, subnormals=0), TypeError, ["subnormals", "0", "True and False"]),
    (lambda: FixedPoint(8, 4, signed=1), TypeError, ["signed", "1", "True and False"]),
    (lambda: FixedPoint(8, 4, symmetric=True, signed=False), ValueError, ["symmetric", "True", "False where signed"]),
    (lambda: FixedPoint(8, 4, symmetric=True, wrap=True), ValueError, ["symmetric", "True", "wrap=True"]),
    (lambda: FixedPoint(32, 4, wrap=True), ValueError, ["wl", "32", "1 to 31"]),
    (lambda: BinaryFloat(32, 2), ValueError, ["exp", "32", "0 to 31"]),
    (lambda: BinaryFloat(4, 53), ValueError, ["man", "53", "0 to 52"]),
    (lambda: BinaryFloat(4, 3, 1.5), TypeError, ["bias", "1.5", "int"]),
    (lambda: BinaryFloat(4, 3, specials="ocp"), ValueError, ["specials", "'ocp'", "ieee, fn"]),
    (lambda: BinaryFloat(4, 3, specials=None), TypeError, ["specials", "None", "ieee, fn"]),
    (lambda: BinaryFloat(4, 0), ValueError, ["man", "0", "more bits", "ieee"]),
    (lambda: BinaryFloat(0, 7, specials="fn", subnormals=False), ValueError, ["exp=0, man=7", "more bits", "fn"]),
    (lambda: BinaryFloat(0, 0, specials="fn"), ValueError, ["exp=0, man=0", "more bits", "fn"]),
    (lambda: BinaryFloat(4, 3, specials="fnuz", signed=False), ValueError, ["specials", "fnuz", "finite"]),
    (lambda: BinaryFloat(4, 3, overflow="wrap"), ValueError, ["overflow", "'wrap'", "inf, nan, saturate"]),
    (lambda: BinaryFloat(4, 3, specials="fn", overflow="inf"), ValueError, ["overflow", "'inf'", "nan, saturate"]),
    (lambda: BinaryFloat(4, 3, specials="finite", overflow="nan"), ValueError, ["overflow", "'nan'", "saturate"]),
    (lambda: p3109(1, 1), ValueError, ["bits", "1", "2 to 16"]),
    (lambda: p3109(8, 9), ValueError, ["precision", "9", "1 to 8"]),
    (lambda: p3109(8, 3, signed=1), TypeError, ["signed", "1", "True and False"]),
    (lambda: Posit(1), ValueError, ["bits", "1", "2 to 32"]),
    (lambda: Posit(33, 2), ValueError, ["bits", "33", "2 to 32"]),
    (lambda: Posit(), TypeError, ["bits", "None", "2 to 32"]),
    (lambda: Posit(8, -1), ValueError, ["es", "-1", "from 0 to 64"]),
    (lambda: Posit(8, 2.0), TypeError, ["es", "2.0", "from 0 to 64"]),
    (lambda: FloatingPoint(5.0, 2), TypeError, ["exp", "5.0", "1 to 64"]),
    (lambda: FloatingPoint(5, [2]), TypeError, ["man", "[2]", "0 to 52"]),
    (lambda: BlockFloatingPoint(1), ValueError, ["wl", "1", "2 to 25"]),
    (lambda: BlockFloatingPoint(26), ValueError, ["wl", "26", "2 to 25"]),
    (lambda: BlockFloatingPoint(8, -2), ValueError, ["dim", "-2", "-1"]),
    (lambda: BlockFloatingPoint(8, 0.0), TypeError, ["dim", "0.0", "int"]),
]

# (arguments of quantize after x, exception, words of the message)
BAD_CALLS = [
    ({"number": "e5m2x"}, ValueError, ["number", "e5m2x", "bfloat16, tf32"]),
    ({"number": F, "overflow": "inf", "rounding": "nearest"}, ValueError, ["overflow", "'inf'", "saturate"]),
    ({"number": F, "overflow": "clip", "rounding": "nearest"}, ValueError, ["overflow", "'clip'", "propagate, inf"]),
    ({"number": F, "overflow": 1, "rounding": "nearest"}, TypeError, ["overflow", "1", "propagate, inf"]),
    ({"number": "int8", "overflow": "nan", "rounding": "nearest"}, ValueError, ["overflow", "'nan'", "wrap"]),
    ({"number": "posit8", "overflow": "inf", "rounding": "nearest"}, ValueError, ["overflow", "'inf'", "saturate"]),
    ({"number": BlockFloatingPoint(8), "overflow": "nan", "rounding": "nearest"}, ValueError, ["overflow", "'nan'"]),
    ({"number": FloatingPoint(5, 24), "rounding": "nearest"}, ValueError, ["man=24", "float32", "man <= 23"]),
    ({"number": FloatingPoint(2, 1, bias=-200), "rounding": "nearest"}, ValueError, ["float32", "largest"]),
    ({"number": FixedPoint(25, 4, signed=False, wrap=True), "rounding": "nearest"}, ValueError, ["wl=25", "wl <= 24"]),
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
    (np.int32, ["int32", "float32, ", "bfloat16"]),
    (np.bool_, ["bool", "float32, ", "bfloat16"]),
    (np.complex64, ["complex64", "float32, ", "bfloat16"]),
]
