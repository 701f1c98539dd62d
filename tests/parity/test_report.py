"""Reports: one table of states, formats and observers for a model of PyTorch and the same model of flax."""

import numpy as np
import pytest
import torch
from flax import nnx
from flax_support import layer_of, run

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
INT8, CHANNELS, UINT7, UINT8 = (
    "affine(-128,127)",
    "affine(-128,127) per channel",
    "affine(0,127)",
    "affine(0,255,middle=128)",
)


class OfTorch:
    name, package, settings, linear = "torch", tq, tq, torch.nn.Linear

    class Derived(torch.nn.Linear):
        pass

    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x) @ self.table

    def model(self):
        parts = tq.QuantStub(), torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
        return torch.nn.Sequential(*parts, tq.DeQuantStub(), self.Derived(2, 2), self.Holder())

    def prepared(self, settings, train=False, left=True):
        model = self.model().train(train)
        model.qconfig = settings
        if left:
            model[7].qconfig = None
        return (tq.prepare_qat if train else tq.prepare)(model)

    def run(self, model):
        model(torch.from_numpy(X))

    def convert(self, model):
        return tq.convert(model.eval())


class OfJax:
    name, package, settings, linear = "jax", qnn, jq, nnx.Linear

    class Derived(nnx.Linear):
        pass

    class Holder(nnx.Module):
        def __init__(self):
            self.table, self.inner = nnx.Param(np.ones((2, 2), np.float32)), layer_of(nnx.Linear, 2, 2)

        def __call__(self, x):
            return self.inner(x) @ self.table

    def model(self):
        parts = qnn.QuantStub(), layer_of(nnx.Linear, 4, 8), qnn.ReLU(), layer_of(nnx.LayerNorm, 8)
        parts += layer_of(nnx.Linear, 8, 2), qnn.DeQuantStub(), layer_of(self.Derived, 2, 2)
        return nnx.Sequential(*parts, self.Holder())

    def prepared(self, settings, train=False, left=True):
        return (qnn.prepare_qat if train else qnn.prepare)(self.model(), {"": settings} | ({"7": None} if left else {}))

    def run(self, model):
        run(model, X)

    def convert(self, model):
        model.eval()
        return qnn.convert(model)


BOTH = pytest.mark.parametrize("of", [OfTorch(), OfJax()], ids=["torch", "jax"])
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


HEAVY = "jax", "trained"
CASES = [
    pytest.param(
        of, step, marks=[pytest.mark.heavy] * (step == "trained" and of.package is qnn), id=f"{of.name} {step}"
    )
    for of in (OfTorch(), OfJax())
    for step in STEPS
]


@pytest.mark.parametrize(("of", "step"), CASES)
def test_each_step(of, step):
    """Weights of norms stay floats, results of layers without a weight are rounded too, and a scale is chosen once."""
    settings, before, after = STEPS[step]
    prepared = of.prepared(settings(of.settings), step == "trained")
    rows = of.package.report(prepared)
    paths = {"0": before[0], "1": before[1], "3": before[2], "4": before[1]}
    assert {path: columns(rows[path]) for path in paths} == paths
    assert {rows[path].reason for path in paths} == {UNSEEN}
    of.run(prepared)
    seen, made = of.package.report(prepared), of.package.report(of.convert(prepared))
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
    rows = of.package.report(of.prepared(of.settings.default_qconfig, left=False))
    assert rows["6"].reason.startswith("it is of a subclass of Linear, and only exact types are swapped")
    expected = {"7": "code of its own uses its table", "7.inner": UNSEEN, "5": "it is for integers"}
    assert {path: rows[path].reason for path in expected} == expected


@BOTH
def test_dynamic_layers(of):
    made = of.package.quantize_dynamic(of.model(), {of.linear: of.settings.default_dynamic_qconfig})
    rows = of.package.report(made)
    assert {path: columns(rows[path]) for path in ("1", "4", "7", "7.inner")} == {
        "1": ("quantized", INT8, 8, "", ""),
        "4": ("quantized", INT8, 8, "", ""),
        "7": ("float", "", None, "", ""),
        "7.inner": ("quantized", INT8, 8, "", ""),
    }
    with pytest.raises(TypeError, match="model is a int"):
        of.package.report(3)
    with pytest.raises(KeyError):
        rows["8"]
