"""quantize_model, where the code of a model asks for classes, or later data take another way through it."""

import numpy as np
import pytest
from module_packages import Flax, Torch
from support import assert_same_bits

X = np.random.default_rng(0).standard_normal((16, 4), np.float32)
FEW = X[:3]


both = pytest.mark.parametrize("of", [Torch, Flax])


def asking(of, all_layers):
    """A model whose code asks for the class of its first layers, as SIREN does."""

    class Net(of.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = of.linear(), of.linear(), of.linear(2)

        def run(self, x):
            for layer in (self.one, self.two):
                x = 30 * layer(x) if isinstance(layer, of.Linear) else layer(x)
            return 3 * self.head(x) if all_layers and type(self.head) is of.Linear else self.head(x)

    return of.ready(Net)


def error(of, made, model, x):
    expected = of.numbers(model(x))
    return np.linalg.norm(of.numbers(made(x)) - expected) / np.linalg.norm(expected)


SETTINGS = {
    "integers": lambda package: None,
    "formats": lambda package: package.QConfig("e4m3fn", "e4m3fn"),
    "weights alone": lambda package: package.QConfig(None, "mxfp8_e4m3"),
}


@pytest.mark.parametrize(
    ("of", "name"),
    [*((Torch, name) for name in SETTINGS), (Flax, "formats")]
    + [pytest.param(Flax, name, marks=pytest.mark.heavy) for name in ("integers", "weights alone")],
)
def test_layers_whose_class_is_asked_for_stay_in_floats(of, name):
    model, x = asking(of, False), of.array(X)
    with pytest.warns(
        UserWarning, match=r"layer 'one' \(Linear\): code of the model asks for its class \(isinstance\)"
    ):
        made = of.quantize_model(model, SETTINGS[name](of.package), [x])
    states = {row.path.partition(".")[0]: row.state for row in of.report(made)}
    assert (states["one"], states["two"]) == ("float", "float")
    assert "asks for its class" in of.report(made)["one"].reason
    assert states["head"] != "float"
    assert error(of, made, model, x) < 0.1


@both
def test_a_model_that_asks_for_all_classes_is_an_error(of):
    with pytest.raises(
        ValueError, match=r"no layer can be quantized: layer '\w+', layer '\w+', layer 'two': code of|'head': code of"
    ):
        of.quantize_model(asking(of, True), None, [of.array(X)])


def branching(of, first, other):
    """A model that calls `other` between its layers for few rows, and `first` for many."""

    class Net(of.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = of.linear(), of.linear()

        def run(self, x):
            x = self.one(x)
            return self.two(other(x) if x.shape[0] < 8 else first(x))

    return of.ready(Net)


BRANCHES = {  # and the least range of the first layer's result
    "integers in one way": (lambda of, x: x, lambda of, x: x + 1),
    "integers in the other way": (lambda of, x: x + 1, lambda of, x: x),
    "a clamp in one way": (lambda of, x: of.clip(x), lambda of, x: x),
    "a ReLU in one way": (lambda of, x: of.relu(x), lambda of, x: x),
    "a ReLU in the other way": (lambda of, x: x, lambda of, x: of.relu(x)),
}


@pytest.mark.parametrize(
    ("of", "name"),
    [(Torch, name) for name in BRANCHES] + [pytest.param(Flax, name, marks=pytest.mark.heavy) for name in BRANCHES],
)
def test_integers_and_ranges_suit_all_ways(of, name):
    first, other = BRANCHES[name]
    model = branching(of, lambda x: first(of, x), lambda x: other(of, x))
    many, few = of.array(X), of.array(FEW)
    made = of.quantize_model(model, None, [many, few])
    assert error(of, made, model, many) < 0.1
    assert error(of, made, model, few) < 0.1

    def run(model):
        model(many)
        model(few)

    again = of.quantize_model(model, None, run)
    assert error(of, again, model, few) == error(of, made, model, few)


@pytest.mark.parametrize("of", [Torch, pytest.param(Flax, marks=pytest.mark.heavy)])
def test_data_that_can_be_read_once(of):
    model, batches = branching(of, lambda x: x, lambda x: x + 1), [of.array(X), of.array(FEW)]
    with pytest.raises(ValueError, match="calibrate can be read once, and later inputs take another way"):
        of.quantize_model(model, None, iter(batches))
    of.quantize_model(model, None, iter(batches[:1] * 2))


MODEL = "model"
WRONG = [
    (3, (), TypeError, "model is a int"),
    (MODEL, (3,), TypeError, "qconfig is a int; .*; data is calibrate="),
    (MODEL, ({"": 3},), TypeError, "the entry '' .*int; allowed are .*QConfig.* and None"),
    (MODEL, ({"": None},), ValueError, "no settings but None"),
    (MODEL, (), ValueError, "calibrate=None; the model itself needs the range"),
    (MODEL, (None, X), TypeError, r"calibrate is a \w+; allowed are None, a list of inputs"),
    (MODEL, (None, []), ValueError, "calibrate has no inputs"),
    (MODEL, (None, lambda model: None), ValueError, "calibrate has not run the model"),
    (MODEL, ({"fc": None, "": "default"}, [X]), ValueError, "names no module"),
]


@both
@pytest.mark.parametrize(("model", "arguments", "kind", "text"), WRONG)
def test_wrong_calls(of, model, arguments, kind, text):
    def own(value):
        if isinstance(value, dict):
            return {name: of.package.default_qconfig if one == "default" else one for name, one in value.items()}
        return of.array(value) if value is X else [own(one) for one in value] if isinstance(value, list) else value

    with pytest.raises(kind, match=text):
        of.quantize_model(of.linear() if model is MODEL else model, *map(own, arguments))


@both
def test_wrong_functions_and_entries(of):
    with pytest.raises(TypeError, match="train is a int"):
        of.quantize_model(of.linear(), train=3)
    with pytest.raises(TypeError, match="calibrate and train are given"):
        of.quantize_model(of.linear(), None, [of.array(X)], train=lambda model: None)
    with pytest.raises(ValueError, match=r"the entry Conv\w* is the exact type of no module"):
        of.quantize_model(of.linear(), {of.Conv: of.package.default_qconfig}, [of.array(X)])
    with pytest.raises(ValueError, match="model has no layer to observe"):
        of.quantize_model(of.Sequential(of.ReLU()), None, [of.array(X)])


@pytest.mark.parametrize("of", [Torch, pytest.param(Flax, marks=pytest.mark.heavy)])
def test_functions_that_calibrate_and_arguments_by_name(of):
    model, x, settings = branching(of, lambda x: x, lambda x: x), of.array(X), of.package.default_qconfig
    data = [x], lambda model: model(x), [{"x": x}], [(x,)], ((one,) for one in [x])
    first, *others = (of.quantize_model(model, settings, one) for one in data)
    for other in others:
        assert_same_bits(of.numbers(other(x)), of.numbers(first(x)))


@both
def test_wrappers_have_the_attributes_of_their_layer(of):
    made = of.quantize_model(of.linear(), of.package.default_qconfig, [of.array(X)])
    assert made.weight is made.module.weight
