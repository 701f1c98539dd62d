"""Models that several threads run at once: each call has the bits that it has alone."""

import copy

import pytest
import torch
from support import assert_all_same_bits
from threads_support import in_threads, threads_that_switch_often  # noqa: F401  # a fixture
from torch import nn

from qtorch import RECIPES, insight, reproducible
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer
from qtorch.quantization import (
    QuantWrapper,
    convert,
    default_qat_qconfig,
    default_qconfig,
    prepare,
    prepare_qat,
    quantize_dynamic,
)
from qtorch.recipes import lower

THREADS, CALLS = 4, 12


class Exp(nn.Module):
    """A function that `reproducible.convert` replaces."""

    def forward(self, x):
        return torch.exp(x)


def layers(*others):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), *others, nn.Linear(24, 8))


def data():
    return torch.randn(32, 16, generator=torch.Generator().manual_seed(1))


def with_qconfig(model, qconfig):
    model.qconfig = qconfig
    return model


def calibrated():
    prepared = prepare(with_qconfig(QuantWrapper(layers()).eval(), default_qconfig))
    prepared(data())
    return convert(prepared)


def defined():
    model = reproducible.convert(layers(Exp(), nn.Dropout(0.5)))
    reproducible.set_key(model, 7)
    return model


MODELS = {
    "lowered": lambda: lower(layers(), ["linear", "activation"], "e4m3fn", "e5m2", "nearest", "nearest"),
    "recipe": lambda: lower(layers(), RECIPES["mxfp8"]),
    "reproducible": defined,
    "reproducible with a recipe": lambda: reproducible.convert(layers(Exp()), RECIPES["mxfp8"]),
    "quantizer": lambda: nn.Sequential(Quantizer("e4m3fn", "e5m2", "nearest", "nearest"), layers()),
    "converted": calibrated,
    "dynamic": lambda: quantize_dynamic(layers().eval()),
}


def run(model):
    """A call's result and gradients, which are left nowhere."""
    y = model(data())
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [y.detach(), *(torch.autograd.grad(y.square().sum(), parameters) if parameters else ())]


def trained(model):
    """The weights after steps of OptimLP with random words."""
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    stochastic = Quantizer("e5m2", forward_rounding="stochastic")
    optimizer = OptimLP(inner, stochastic, momentum_quant=stochastic, acc_quant="bfloat16", key=3)
    for _ in range(3):
        optimizer.zero_grad()
        model(data()).square().sum().backward()
        optimizer.step()
    return [x.detach() for x in model.state_dict().values()]


def watched(model):
    """What a watch saw."""
    with insight.watch(model) as watching:
        for _ in range(2):
            run(model)
            watching.step()
    return [torch.tensor(list(map(ord, repr(watching.record.to_json()))))]


OWN = {  # what changes a model, of which each thread then has its own
    "optimizer": (layers, trained),
    "QAT": (lambda: prepare_qat(with_qconfig(QuantWrapper(layers()).train(), default_qat_qconfig)), trained),
    "watched": (lambda: lower(layers(), RECIPES["mxfp8"]), watched),
    "watched reproducible": (lambda: reproducible.convert(layers(Exp()), RECIPES["mxfp8"]), watched),
}


def assert_the_same_in_threads(functions, expected, calls=CALLS):
    for results in in_threads(functions, calls):
        assert_all_same_bits(results, expected)


@pytest.mark.parametrize("kind", MODELS)
def test_one_model(kind):
    model = MODELS[kind]()
    assert_the_same_in_threads([lambda: run(model)] * THREADS, run(model))


@pytest.mark.parametrize("kind", MODELS | OWN)
def test_while_another_thread_compiles(kind, monkeypatch):
    """`torch.compiler.is_compiling` is true in all threads then."""
    make, change = OWN[kind] if kind in OWN else (MODELS[kind], run)
    model = make()
    expected = change(copy.deepcopy(model))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert_all_same_bits(change(model), expected)


@pytest.mark.parametrize("kind", OWN)
def test_a_model_of_each_thread(kind):
    make, change = OWN[kind]
    model = make()
    copies = [copy.deepcopy(model) for _ in range(THREADS)]
    expected = change(model)
    assert_the_same_in_threads([lambda one=one: change(one) for one in copies], expected, calls=1)


def test_models_of_all_kinds_at_once():
    """State that one kind of model sets while it runs is none of the others'."""
    models = [make() for make in MODELS.values()]
    expected = [run(model) for model in models]

    def same(model, results):
        return [torch.tensor([torch.equal(x, y) for x, y in zip(run(model), results, strict=True)]).all()]

    functions = [lambda pair=pair: same(*pair) for pair in zip(models, expected, strict=True)]
    assert_the_same_in_threads(functions, [torch.tensor(True)])


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        *((kind, "eager") for kind in ("lowered", "recipe")),
        *(
            pytest.param(kind, "eager", marks=pytest.mark.heavy)
            for kind in ("converted", "quantizer", "dynamic", "reproducible")
        ),
        *(pytest.param(kind, "inductor", marks=pytest.mark.heavy) for kind in ("lowered", "recipe", "reproducible")),
    ],
)
def test_one_compiled_model(kind, backend):
    """Programs compiled once, which all threads run."""
    torch.compiler.reset()
    model = MODELS[kind]()
    compiled = torch.compile(model, backend=backend)

    def forward(model=compiled):
        with torch.no_grad():
            return [model(data())]

    assert_the_same_in_threads([forward] * THREADS, forward(), calls=3)
    assert torch.equal(*forward(), *forward(model))
