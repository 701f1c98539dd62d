"""The first call of a lowered model, which warns if a recipe lowers less than half: copies, programs, failures."""

import copy
import pickle
import warnings

import pytest
import torch
from support import assert_same_bits
from torch import nn

from qcore import RECIPES
from qtorch.insight import choose_formats
from qtorch.recipes import lower, report

X = torch.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8) / 100


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x):
        y = self.body(x).flatten(1)
        if len(x) == 1:
            raise KeyError("one")
        return self.head(y)


def made(name="mxfp8"):
    torch.manual_seed(0)
    return lower(Net(), RECIPES[name])


def warned(call):
    """The texts of a call's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught]


TEXT = (
    'the recipe lowers 7.0% of the multiply-adds of this model; 93.0% are conv products: RECIPES["mxfp8_conv"] lowers'
)


def test_a_report_and_a_call_that_fails_are_not_the_first():
    model = made()
    hooks = [len(one._forward_hooks) for one in model.modules()]
    with pytest.raises(KeyError, match="one"):
        model(X[:1])
    assert warned(lambda: report(model, X)) == []
    assert [len(one._forward_hooks) for one in model.modules()] == hooks
    (text,) = warned(lambda: model(X))
    assert text.startswith(TEXT)
    assert warned(lambda: model(X)) == []


def test_copies_have_a_first_call_of_their_own():
    model = made()
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for one in (model, *copies, copy.deepcopy(copies[0])):
        assert [text.startswith(TEXT) for text in warned(lambda: one(X))] == [True]  # noqa: B023
    assert warned(lambda: copy.deepcopy(model)(X)) == []


def test_programs_of_a_part_of_the_model_do_not_run_at_the_first_call():
    torch._dynamo.reset()
    model, plain = made(), made()
    model.body = torch.compile(model.body, backend="aot_eager", fullgraph=True)
    (text,) = warned(lambda: model(X))
    assert text.startswith(TEXT)
    warned(lambda: plain(X))
    assert_same_bits(model(X), plain(X))


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.heavy)])
def test_a_program_warns_when_it_is_traced_and_is_not_compiled_again(dynamic):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = made()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=dynamic)
    (text,) = warned(lambda: compiled(X))
    assert text.startswith(TEXT)
    assert warned(lambda: (model(X), compiled(X), compiled(X))) == []
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.heavy
def test_a_model_in_several_programs_is_not_measured_by_a_part():
    class Broken(Net):
        def forward(self, x):
            y = self.body(x)
            torch._dynamo.graph_break()
            return self.head(y.flatten(1))

    torch._dynamo.reset()
    model = lower(Broken(), RECIPES["mxfp8"])
    assert warned(lambda: torch.compile(model, backend="eager")(X)) == []
    assert len(warned(lambda: model(X))) == 1


def test_a_trace_without_dynamos_record_does_not_warn(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr("qtorch.recipes.coverage.traced_program", lambda: None)
    assert warned(lambda: torch.compile(made(), backend="eager", fullgraph=True)(X)) == []


def test_formats_that_are_tried_layer_by_layer_do_not_warn():
    data = [(X, torch.tensor([1, 2]))]
    assert warned(lambda: choose_formats(Net(), data, 8, ["e4m3fn", "e2m1fn"])) == []
