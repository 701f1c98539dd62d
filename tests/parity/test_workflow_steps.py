"""Fusing, preparing and converting: what happens to which layer, and what is said, in PyTorch and in flax."""

import numpy as np
import pytest
from module_packages import Flax, Torch
from networks import between

import qjax.nnx as qnn
import qtorch.quantization as tq

X = np.random.default_rng(0).standard_normal((3, 4), np.float32)
both = pytest.mark.parametrize("of", [Torch, Flax])


@both
def test_a_layer_with_two_names_stays_one_and_is_named(of):
    class Twice(between(of)):
        def parts(self):
            self.first = of.linear()
            self.inner = of.Sequential(self.first)

        def network(self, x):
            return self.inner(self.first(x))

    model = of.ready(Twice)
    prepared = of.prepared(model, of.package.default_qconfig)
    of.run(prepared, of.array(X))
    with pytest.warns(UserWarning, match="layer 'first' ran 2 times while the model ran 1 times"):
        made = of.convert(prepared)
    assert type(made.first) is of.layers.Linear
    trained = of.prepared(model, of.package.default_qat_qconfig, True)
    for one in (made, trained):
        assert (one.inner[0] if of is Torch else one.inner.layers[0]) is one.first
    with pytest.raises(ValueError, match=r"one layer with the names \['first', 'inner.0'\]"):
        of.fuse_modules(model, ["first", "inner"])


@pytest.mark.parametrize(
    ("of", "eager"), [(Torch, True), (Flax, True), pytest.param(Flax, False, marks=pytest.mark.heavy)]
)
def test_layers_that_run_twice_are_named(of, eager):
    """And no others: neither those that run less often than the model, nor all of a model that ran several times."""

    class Repeats(between(of)):
        def parts(self):
            self.once, self.twice, self.seldom, self.last = (of.linear() for _ in range(4))
            self.sum = of.FloatFunctional()

        def network(self, x):
            x = self.twice(self.twice(self.once(x)))
            x = self.sum.add(x, x)
            return self.last(self.seldom(x) if x.shape[0] == 3 else x)

    class Siamese(of.Module):
        def __init__(self):
            super().__init__()
            self.quant, self.dequant = (stub() for stub in of.stubs)
            self.sum = of.FloatFunctional()

        def run(self, x):
            return self.dequant(self.sum.add(self.quant(x), self.quant(2 * x)))

    class Sums(between(of)):
        def parts(self):
            self.sum = of.FloatFunctional()

        def network(self, x):
            return self.sum.add(self.sum.add(x, x), x)

    x, own = of.array(np.tile(X, (2, 1))), of.package.default_qconfig
    for make, sizes, message in (
        (Repeats, (2, 3, 4), "layer 'twice' ran 6 times while the model ran 3 times"),
        (Siamese, (3,), "layer 'quant' ran 2 times while the model ran 1 times"),
        (Sums, (3,), "layer 'sum' ran 2 times while the model ran 1 times"),
    ):
        prepared = of.prepared(of.ready(make), own)
        for size in sizes:
            prepared(x[:size]) if eager else of.run(prepared, x[:size])
        with pytest.warns(UserWarning, match=message) as warned:
            of.convert(of.prepared(prepared, own))
        assert len(warned) == 1


@both
def test_a_missing_quant_stub_is_named(of):
    prepared = of.prepared(of.Sequential(of.Sequential(of.linear()), of.ReLU()), of.package.default_qconfig)
    prepared(of.array(X))
    with pytest.raises(
        TypeError, match=r"0\.0'?: input is a (Tensor|\w*Array\w*); allowed is a QTensor: insert a QuantStub"
    ):
        of.convert(prepared)(of.array(X))


@both
def test_the_model_itself_is_converted(of):
    for train, settings in ((False, of.package.default_qconfig), (True, of.package.default_qat_qconfig)):
        prepared = of.prepared(of.linear(), settings, train)
        prepared(of.array(X))
        assert type(of.convert(prepared)) is of.layers.Linear


@both
def test_what_is_in_evaluation_is_not_prepared_for_training(of):
    own = of.package.default_qat_qconfig

    def prepare_qat(model):
        if of is Flax:
            return qnn.prepare_qat(model, own)
        model.qconfig = own
        return tq.prepare_qat(model)

    model = of.Sequential(of.norm(), of.linear(), of.norm())
    model.eval()
    with pytest.raises(ValueError, match=r"model is in evaluation(, as layer '0' is)?; allowed .*model\.train\(\)"):
        prepare_qat(model)
    model.train()
    prepared = prepare_qat(model)
    prepared.eval()
    with pytest.raises(ValueError, match="model is in evaluation"):
        prepare_qat(prepared)
    (model[0] if of is Torch else model.layers[0]).eval()
    prepare_qat(model)  # with a frozen batch norm, in a model that is in training


def some(of):
    """A model of which some layers do not run."""

    class Some(between(of)):
        def parts(self):
            self.used, self.one, self.other = of.linear(), of.linear(), of.linear()
            self.unused_sum = of.FloatFunctional()

        def network(self, x):
            return self.used(x)

    return of.ready(Some)


SETTINGS = {
    "integers": lambda package: package.default_qconfig,
    "channels": lambda package: package.default_per_channel_qconfig,
    "trained": lambda package: package.default_qat_qconfig,
    "formats": lambda package: package.QConfig("e4m3fn", "mxfp4"),
}


@pytest.mark.parametrize(
    ("of", "name"),
    [(Torch, name) for name in SETTINGS]
    + [(Flax, "integers"), (Flax, "trained")]
    + [pytest.param(Flax, name, marks=pytest.mark.heavy) for name in ("channels", "formats")],
)
def test_layers_that_saw_nothing_raise_when_they_are_called(of, name):
    x = of.array(X)
    prepared = of.prepared(some(of), SETTINGS[name](of.package), name == "trained")
    with pytest.raises(
        ValueError, match=r"layer '(used|unused_sum)'.* have an observer that has seen nothing; run the"
    ):
        of.convert(prepared)
    prepared(x)
    with pytest.warns(
        UserWarning, match="layer 'one', .*'other'.* have an observer that has seen nothing, and"
    ) as found:
        made = of.convert(prepared)
    assert len(found) == 1
    made(x)
    inside = made.quant(x)
    with pytest.raises(RuntimeError, match=r"one'? runs for the first time, and has no range"):
        made.one(inside)
    if name in ("integers", "channels"):
        with pytest.raises(RuntimeError, match=r"unused_sum'? runs for the first time"):
            made.unused_sum.add(inside, inside)
    with pytest.warns(UserWarning, match="layer 'other' has an observer"):
        allowed = of.convert(prepared, allow_uncalibrated=["one", "unused_sum"])
    allowed.one(inside)
    for wrong, error in (("one", TypeError), ([1], TypeError), (None, TypeError), (["two"], ValueError)):
        with pytest.raises(error, match="allow_uncalibrated"):
            of.convert(prepared, allow_uncalibrated=wrong)
    of.convert(prepared, allow_uncalibrated=True).other(inside)


DERIVED = {of: type("Derived", (of.Linear,), {}) for of in (Torch, Flax)}
OTHER = type("Other", (), {})


def row(of, *names):
    """Layers by their names, one after the other."""
    makers = {
        "linear": of.linear,
        "derived": lambda: of.linear(4, DERIVED[of]),
        "conv": of.conv,
        "wide": lambda: of.conv(4, 8),
        "norm": of.norm,
        "relu": of.ReLU,
    }
    return of.Sequential(*(makers[name]() for name in names))


# Settings by names and types for prepare, rows to fuse, and settings of dynamic layers; and what is said.
WRONG = {
    "prepared": [
        (lambda of, own: {"9": own}, "the entry '9' names no module; there are 0, 1, 2"),
        (lambda of, own: {OTHER: own}, "the entry Other is the exact type of no module; there are "),
        (lambda of, own: {3: own}, "the entry 3 is a int; allowed are names and types of modules"),
        (
            lambda of, own: {"0": "int8"},
            r"the entry '0' has a qconfig that is a builtins\.str; allowed are q\w+\.quant",
        ),
        (lambda of, own: {of.ReLU: own}, "has no layer to observe"),
    ],
    "fuse_modules": [
        (
            lambda of, own: ["2", "1"],
            r"modules_to_fuse has \['2', '1'\]: there is no fused layer of \(BatchN\w+, Conv\w*\)",
        ),
        (lambda of, own: ["4", "2"], "num_features=4; allowed is 8"),
        (lambda of, own: None, "modules_to_fuse has None; allowed are lists of names"),
        (
            lambda of, own: [["1", "2"], "01"],
            "modules_to_fuse has '01'; allowed are lists of names",
        ),
    ],
    "quantize_dynamic": [
        (lambda of, own: {"9"}, "the entry '9' names no module"),
        (lambda of, own: {OTHER}, "the entry Other is the exact type of no module"),
        (lambda of, own: {DERIVED[of]}, "the entry Derived has no layer that is quantized dynamically"),
        (lambda of, own: {"3"}, "the entry '3' has no layer that is quantized dynamically; allowed are exactly Linear"),
        (lambda of, own: {"0": 3}, r"the entry '0' has a qconfig that is a builtins\.int; allowed are q\w+\.quantiz"),
        (lambda of, own: "0", "qconfig_spec='0' is a str; allowed are None, a dict, and a set"),
    ],
}


@both
@pytest.mark.parametrize(
    ("step", "number"), [(step, number) for step, rows in WRONG.items() for number in range(len(rows))]
)
def test_what_would_do_nothing_is_refused(of, step, number):
    argument, message = WRONG[step][number]
    model = row(of, "linear", "conv", "norm", "relu", "wide", "derived")
    before = str(model)
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(of, step)(model, argument(of, of.package.default_qconfig))
    assert str(model) == before


@both
def test_entries_that_reach_no_layer_are_refused(of):
    own, x = of.package.default_qconfig, [of.array(X)]
    model = row(of, "relu", "linear")
    for entries, key in (({"": own, "0": own}, "'0'"), ({"0": own}, "'0'"), ({"": own, of.ReLU: own}, "ReLU")):
        with pytest.raises(ValueError, match=f"the entry {key} has no layer to observe"):
            of.quantize_model(model, entries, x)
    assert of.quantize_model(model, {"": own, "0": None}, x) is not model

    class Twice(of.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.relu = of.linear(), of.ReLU()

        def run(self, x):
            return self.layer(self.layer(self.relu(x)))

    with pytest.raises(ValueError, match="the entry 'relu' has no layer to observe"):
        of.quantize_model(of.ready(Twice), {"layer": own, "relu": own}, x)


@both
def test_models_without_such_a_layer_are_refused(of):
    own = of.package.default_qconfig
    with pytest.raises(ValueError, match="layer '0' is of a subclass, which needs an entry of its own"):
        of.prepared(row(of, "derived"), {of.Linear: own})
    with pytest.raises(ValueError, match="model has no layer to observe"):
        of.prepared(row(of, "relu"), own)
    with pytest.raises(
        ValueError, match="model has no layer that is quantized dynamically; allowed are exactly Linear"
    ):
        of.quantize_dynamic(row(of, "conv"))
    with pytest.raises(ValueError, match=r"dtype='int32'; allowed are [\w.]*qint8"):
        of.quantize_dynamic(row(of, "linear"), dtype="int32")
    with pytest.raises(ValueError, match="call prepare"):
        of.convert(row(of, "linear"))
    for step in of.convert, of.quantize_dynamic, lambda model: of.fuse_modules(model, ["0", "1"]):
        with pytest.raises(TypeError, match=r"mod(el|ule) is a int; allowed is a "):
            step(3)


@both
def test_settings_of_none_alone_prepare_nothing(of):
    with pytest.raises(ValueError, match="model has no layer to observe"):
        of.prepared(row(of, "linear"), {"": None})


@both
def test_a_layer_goes_into_one_row(of):
    model = row(of, "conv", "norm", "relu")
    with pytest.raises(ValueError, match="modules_to_fuse has '1' in two rows; allowed is one"):
        of.fuse_modules(model, [["0", "1"], ["1", "2"]])


@both
def test_results_have_the_dtype_of_most_parameters(of):
    """Not that of the first: norms are often float32 in a model of bfloat16."""

    class Mixed(of.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.linear = of.parameter(X), of.linear(64)
            self.quant, self.dequant = (stub() for stub in of.stubs)

        def run(self, x):
            return self.dequant(self.linear(self.quant(x)))

    model = of.ready(Mixed)
    model.linear = of.narrow(model.linear)
    prepared = of.prepared(model, of.package.default_qconfig)
    x = of.narrow(of.array(X))
    of.run(prepared, x)
    made = of.convert(prepared)
    assert str(of.run(made, x).dtype).endswith("bfloat16")


@both
def test_unfused_batch_norms_are_said(of):
    model, own = row(of, "conv", "norm", "relu", "linear"), of.package.default_qat_qconfig
    with pytest.warns(UserWarning, match="layer '0' is a convolution before the batch norm '1', and not fused"):
        of.prepared(model, own, True)
    of.prepared(of.fuse_modules(model, ["0", "1"]), own, True)
    of.prepared(model, {"": own, "0": None}, True)  # its weight is not rounded


@both
def test_evaluation_before_any_training_calibrates(of):
    """As in torch, where evaluation observes; ranges of training, and loaded ones, stay in evaluation."""
    floats, x = of.QuantWrapper(row(of, "linear", "relu")), of.array(np.tile(X, (20, 1)))
    model, fresh = (of.prepared(floats, of.package.default_qat_qconfig, True) for _ in range(2))
    model.eval()
    fresh.eval()

    def near(found, expected, decibels):
        error = np.linalg.norm(of.numbers(found) - of.numbers(expected)) / np.linalg.norm(of.numbers(expected))
        return 20 * np.log10(error + 1e-9) < -decibels

    def scale(model, x):
        of.run(model, x)
        return of.report(model)["quant"].scale

    before = scale(model, x)
    assert near(of.run(model, x), floats(x), 30)
    assert scale(model, 9 * x) > before
    y = of.run(model, x)
    assert near(of.run(of.convert(model), x), y, 60)
    model.train()
    scale(model, x)
    model.eval()
    after = scale(model, x)
    assert scale(model, 99 * x) == after
    loaded = of.loaded(fresh, model)
    assert scale(loaded, 99 * x) == after
    assert near(of.run(loaded, x), of.run(model, x), 150)


@both
def test_functionals_of_scalars_need_no_range(of):
    """But if nothing runs, they raise when they are called; and what they note causes no new program."""

    class Scalars(of.Module):
        def __init__(self):
            super().__init__()
            self.sum, self.product = of.FloatFunctional(), of.FloatFunctional()

        def run(self, x):
            return self.product.mul_scalar(self.sum.add_scalar(x, 1.0), 2.0)

    x, programs = of.array(X), getattr(of.run, "_cache_size", lambda: 0)
    for train in (False, True) if of is Torch else (False,):
        prepared, unseen = (
            of.prepared(of.QuantWrapper(Scalars()), of.package.default_qat_qconfig, train) for _ in range(2)
        )
        of.run(prepared, x)
        before = programs()
        of.run(prepared, x)
        assert programs() == before
        made = of.convert(prepared)
        scale = of.report(made)["quant"].scale
        assert made.module(made.quant(x)).q_scale() == 2 * scale
        assert abs(of.numbers(of.run(made, x)) - (2 * X + 2)).max() <= 2 * scale
        unseen.quant(x)
        with pytest.warns(UserWarning, match=r"module\.\w+', .*module\.\w+' have an observer that has seen nothing"):
            made = of.convert(unseen)
        with pytest.raises(RuntimeError, match=r"module\.sum'? runs for the first time"):
            of.run(made, x)


@both
def test_layers_in_formats_may_have_seen_nothing(of):
    """Functionals of scalars, which need no range, and layers that do not run and are allowed not to."""

    class Some(of.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.product, self.unused = of.linear(), of.FloatFunctional(), of.linear()

        def run(self, x):
            return self.product.mul_scalar(self.linear(x), 2.0)

    setattr(Some, of.called, Some.run)
    for train in False, True:
        prepared = of.prepared(of.ready(Some), of.package.QConfig("e4m3fn", "e4m3fn"), train)
        of.run(prepared, of.array(X))
        prepared.eval()
        made = of.convert(prepared, allow_uncalibrated=["unused"])
        assert [one.state for one in of.report(made)] == ["rounded"] * 3
        assert np.isfinite(of.numbers(of.run(made, of.array(X)))).all()
