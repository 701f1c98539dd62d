"""quantize_model, where the code of a model asks for classes, or later data take another way through it."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq

X = np.random.default_rng(0).standard_normal((16, 4), np.float32)
FEW = X[:3]


class Torch:
    """What the models below are made of, in PyTorch."""

    called = "forward"
    package, Module, array = tq, nn.Module, staticmethod(torch.from_numpy)
    relu, clip, cat = torch.relu, staticmethod(lambda x: torch.clamp(x, 0, 6)), torch.cat
    quantize_model, report = staticmethod(tq.quantize_model), staticmethod(tq.report)
    Linear = nn.Linear

    @staticmethod
    def linear(outputs=4):
        return nn.Linear(4, outputs)

    @staticmethod
    def ready(make):
        torch.manual_seed(0)
        return make().eval()


class Flax:
    """The same in flax."""

    called = "__call__"
    package, Module, array = jq, nnx.Module, staticmethod(jnp.asarray)
    relu, clip, cat = staticmethod(nnx.relu), staticmethod(lambda x: jnp.clip(x, 0, 6)), staticmethod(jnp.concatenate)
    quantize_model, report = staticmethod(qnn.quantize_model), staticmethod(qnn.report)
    Linear = nnx.Linear

    @staticmethod
    def linear(outputs=4):
        return nnx.Linear(4, outputs, rngs=nnx.Rngs(0))

    @staticmethod
    def ready(make):
        return make()


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

    setattr(Net, of.called, Net.run)
    return of.ready(Net)


def error(of, made, model, x):
    expected = np.asarray(model(x).detach() if of is Torch else model(x))
    return np.linalg.norm(np.asarray(made(x).detach() if of is Torch else made(x)) - expected) / np.linalg.norm(
        expected
    )


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

    setattr(Net, of.called, Net.run)
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
    [(Torch, name) for name in BRANCHES]
    + [(Flax, "a clamp in one way")]
    + [pytest.param(Flax, name, marks=pytest.mark.heavy) for name in BRANCHES if name != "a clamp in one way"],
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


@both
def test_data_that_can_be_read_once(of):
    model, batches = branching(of, lambda x: x, lambda x: x + 1), [of.array(X), of.array(FEW)]
    with pytest.raises(ValueError, match="calibrate can be read once, and later inputs take another way"):
        of.quantize_model(model, None, iter(batches))
    of.quantize_model(model, None, iter(batches[:1] * 2))
