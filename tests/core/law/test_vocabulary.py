"""The core needs nothing of an array namespace but a few names, and takes integers and 0-d arrays alike."""

import ast
import types
from pathlib import Path

import numpy as np
import torch
from covering import pairwise
from support import assert_same_bits

import qcore
import qtorch
from benchmarks.support.inputs import MODES, hard_inputs
from qcore import NAMED, NVFP4, BlockFloatingPoint, BlockScaled, FixedPoint, FloatingPoint, Posit
from qcore.formats.number import prepare
from qcore.law.carrier import FLOAT32
from qcore.law.rounding import rounds_distance
from qcore.namespace import Names
from qcore.random.threefry import Noise, leading_bits_mask, rounding_words

NAMES = ("where", "clip", "amax", "float_bits", "integers", "product_bits", "take", "named")
NAMES += ("quotient_bits", "quotient_error", "short")
NUMBERS = (
    FloatingPoint(5, 2),
    FloatingPoint(9, 2),
    FixedPoint(8, 4),
    FixedPoint(8, 4, wrap=True),
    BlockFloatingPoint(8, 1),
    *(NAMED[name][0] for name in ("e4m3fn", "e4m3fnuz", "e8m0fnu", "posit16", "posit32")),
    Posit(16, 4),
    BlockScaled("e4m3fn", {1: None}),
    BlockScaled("e8m0fnu", {1: None, 2: None}, "rceil"),
    BlockScaled("int8", {1: None}, scale="float32"),
    NVFP4({...: None}),
)


CODED = [(number, coded) for number in NUMBERS for coded in (False, True)]
CODED.remove((BlockFloatingPoint(8, 1), True))  # which has no codes for single numbers
CODED.remove((BlockScaled("int8", {1: None}, scale="float32"), True))


@pairwise(**{"number, coded": CODED}, mode=MODES, package=["numpy", "torch"], scalar=["int", "0-d"])
def test_law_on_a_closed_vocabulary(number, coded, mode, package, scalar):
    xp = {"numpy": np, "torch": torch}[package]
    own = Names if xp is np else qtorch._namespace.Names
    names = types.SimpleNamespace(**{name: getattr(own, name) for name in NAMES})
    x = hard_inputs(number, 24 * 300)[0]
    x = x if x.ndim == 3 else np.random.default_rng(1).choice(x, (40, 8, 9))
    mode = qcore.Rounding(mode)
    program, constants = prepare(number, mode, FLOAT32, None, coded)
    lanes = x.view(np.int32)
    if xp is torch:
        lanes = torch.from_numpy(lanes)
    if scalar == "0-d":
        make = np.int32 if xp is np else lambda value: torch.tensor(value, dtype=torch.int32)
        constants = tuple(map(make, constants))

    def arange(size):
        return xp.arange(size, dtype=xp.int32)

    def one(value):
        return xp.asarray([value], dtype=xp.int32)

    noise = Noise((one(0), one(6)), (one(0), one(0), one(leading_bits_mask(24))))
    word = rounding_words(arange, lanes.shape, noise, rounds_distance(mode))
    inside = tuple(axis for axis, size in enumerate(number.block_sizes(3)) if size is None)
    result = program.run(names, lanes, constants, inside, word)
    if coded and program.shared:
        codes, scales = qcore.encode(x, number, mode, key=6)
        np.testing.assert_array_equal(result[0], codes.astype(np.int32))
        np.testing.assert_array_equal(np.ravel(result[1]), np.ravel(scales[0] if len(result) == 3 else scales))
        return
    result = np.asarray(result)
    if coded:
        np.testing.assert_array_equal(result, qcore.encode(x, number, mode, key=6).astype(np.int32))
    else:
        assert_same_bits(result.view(np.float32), qcore.quantize(x, number, mode, key=6))


def test_names_for_c_are_those_of_the_law():
    """A call of `named` has the name of its function, and values under the names of their variables."""
    folder, count = Path(qcore.__file__).parent, 0
    for path in [*folder.glob("law/*.py"), *folder.glob("linalg/*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (one for one in tree.body if isinstance(one, ast.FunctionDef)):
            for call in (one for one in ast.walk(function) if isinstance(one, ast.Call)):
                if ast.unparse(call.func) == "xp.named":
                    count += 1
                    assert ast.literal_eval(call.args[0]) == function.name
                    for keyword in call.keywords:
                        assert keyword.arg in {one.id for one in ast.walk(keyword.value) if isinstance(one, ast.Name)}
    assert count > 60
