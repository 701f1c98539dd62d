"""Reports: one table of states, formats and observers for a model of PyTorch and the same model of flax."""

import numpy as np
import pytest
from module_packages import Flax, Torch

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
INT8, CHANNELS, UINT7, UINT8 = (
    "affine(-128,127)",
    "affine(-128,127) per channel",
    "affine(0,127)",
    "affine(0,255,middle=128)",
)


DERIVED = {of: type("Derived", (of.Linear,), {}) for of in (Torch, Flax)}


def model_of(of):
    class Holder(of.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = of.parameter(np.ones((2, 2), np.float32)), of.linear(2, inputs=2)

        def run(self, x):
            return self.inner(x) @ self.table

    parts = of.stubs[0](), of.linear(8), of.ReLU(), of.LayerNorm(8), of.linear(2, inputs=8), of.stubs[1]()
    return of.Sequential(*parts, of.linear(2, DERIVED[of], inputs=2), Holder())


BOTH = pytest.mark.parametrize("of", [Torch, Flax])
UNSEEN = "it has seen nothing yet"
MINMAX, TRAINED, SCALED = (
    "MinMaxObserver",
    "FakeQuantize(MovingAverageMinMaxObserver)",
    "FakeQuantize(MinMaxObserver, e4m3fn)",
)
# State, weight, bits, result, observer of the stub, both linear layers and the norm; then of the same converted.
STEPS = {
    "observed": (
        lambda package: package.default_qconfig,
        [
            ("observed", "", None, UINT7, MINMAX),
            ("observed", INT8, 32, UINT7, MINMAX),
            ("observed", "", 32, UINT7, MINMAX),
        ],
        [
            ("quantized", "", None, UINT8, MINMAX),
            ("quantized", INT8, 8, UINT8, MINMAX),
            ("quantized", "", 32, UINT8, MINMAX),
        ],
    ),
    "trained": (
        lambda package: package.get_default_qat_qconfig("fbgemm"),
        [
            ("observed", "", None, UINT7, TRAINED),
            ("trained", CHANNELS, 32, UINT7, TRAINED),
            ("observed", "", 32, UINT7, TRAINED),
        ],
        [
            ("quantized", "", None, UINT7, TRAINED),
            ("quantized", CHANNELS, 8, UINT7, TRAINED),
            ("quantized", "", 32, UINT7, TRAINED),
        ],
    ),
    "formats": (
        lambda package: package.QConfig("e4m3fn", "mxfp4"),
        [
            ("observed", "", None, "e4m3fn", SCALED),
            ("observed", "mxfp4", 32, "e4m3fn", SCALED),
            ("observed", "", 32, "e4m3fn", SCALED),
        ],
        [
            ("rounded", "", None, "e4m3fn", SCALED),
            ("rounded", "mxfp4", 4, "e4m3fn", SCALED),
            ("rounded", "", 32, "e4m3fn", SCALED),
        ],
    ),
}


def columns(row):
    return row.state, row.weight, row.bits, row.output, row.observer


CASES = [*((Torch, step) for step in STEPS), (Flax, "observed")]
CASES += [pytest.param(Flax, step, marks=pytest.mark.heavy) for step in STEPS if step != "observed"]


@pytest.mark.parametrize(("of", "step"), CASES)
def test_each_step(of, step):
    """Weights of norms stay floats, results of layers without a weight are rounded too, and a scale is chosen once."""
    settings, before, after = STEPS[step]
    prepared = of.prepared(model_of(of), {"": settings(of.package), "7": None}, step == "trained")
    rows = of.report(prepared)
    paths = {"0": before[0], "1": before[1], "3": before[2], "4": before[1]}
    assert {path: columns(rows[path]) for path in paths} == paths
    assert {rows[path].reason for path in paths} == {UNSEEN}
    of.run(prepared, of.array(X))
    seen = of.report(prepared)
    prepared.eval()
    made = of.report(of.convert(prepared))
    paths = {"0": after[0], "1": after[1], "3": after[2], "4": after[1]}
    assert {path: columns(made[path]) for path in paths} == paths
    for path in paths:
        assert seen[path].scale is not None
        assert seen[path].scale == pytest.approx(made[path].scale)
        assert (made[path].zero_point in (seen[path].zero_point, None), made[path].reason) == (True, "")
    passing, kept = made["2"], made["7"]
    assert (passing.state, passing.reason) == ("passing", "its result has the scale of its input")
    assert (columns(kept), kept.bytes) == (("float", "", None, "", ""), 16)  # without those of the layer in it
    assert (made["7.inner"].state, made["7.inner"].bits, made["7.inner"].bytes) == ("float", 32, 24)


@BOTH
def test_why_layers_are_in_floats(of):
    rows = of.report(of.prepared(model_of(of), of.package.default_qconfig))
    assert rows["6"].reason.startswith("it is of a subclass of Linear, and only exact types are swapped")
    expected = {"7": "code of its own uses its table", "7.inner": UNSEEN, "5": "it is for integers"}
    assert {path: rows[path].reason for path in expected} == expected


@BOTH
def test_functionals_of_floats_are_floats(of):
    assert of.report(of.Sequential(of.FloatFunctional()))["0"].state == "float"


@BOTH
def test_dynamic_layers(of):
    rows = of.report(of.quantize_dynamic(model_of(of), {of.Linear: of.package.default_dynamic_qconfig}))
    assert {path: columns(rows[path]) for path in ("1", "4", "7", "7.inner")} == {
        "1": ("quantized", INT8, 8, "", ""),
        "4": ("quantized", INT8, 8, "", ""),
        "7": ("float", "", None, "", ""),
        "7.inner": ("quantized", INT8, 8, "", ""),
    }
    with pytest.raises(TypeError, match="model is a int"):
        of.report(3)
    with pytest.raises(KeyError):
        rows["8"]
