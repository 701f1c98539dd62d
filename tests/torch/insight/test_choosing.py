"""Formats for the layers of torch's models: the sites, and what is refused."""

import copy

import pytest
import torch
from torch import nn

from qtorch import parse
from qtorch.insight import choose_formats, cross_entropy, sensitivity
from qtorch.recipes import lower

DATA = [(torch.linspace(-1, 1, 24).reshape(6, 4), torch.arange(6) % 3)]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_the_chosen_recipe_has_the_loss_that_is_said():
    model = network()
    before = copy.deepcopy(model.state_dict())
    choice = choose_formats(model, DATA, 6, ["e4m3fn", "e2m1fn"])
    assert list(choice.chosen.formats) == ["0", "2"]
    assert model.training  # the model itself is as it was
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for recipe in (choice.recipe, parse(choice.recipe.text)):
        lowered = lower(copy.deepcopy(model), recipe).eval()
        assert cross_entropy(lowered(DATA[0][0]), DATA[0][1]).item() == choice.chosen.loss


@pytest.mark.parametrize(
    ("model", "data", "text"),
    [
        (nn.ReLU(), DATA, "model has no sites"),
        (network(), [], "data is empty"),
        (lower(network(), ["linear"], "e4m3fn"), DATA, "is lowered already"),
    ],
)
def test_refused(model, data, text):
    with pytest.raises(ValueError, match=text):
        sensitivity(model, data, ["e4m3fn"])


LOGITS, TARGETS = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
WRONG = [
    (lambda: sensitivity(3, DATA, ["e4m3fn"]), TypeError, "model is a int; allowed is a torch.nn.Module"),
    (lambda: sensitivity(network(), DATA, ["e4m3fn"], "loss"), TypeError, "loss is a str; allowed is a function of"),
    (lambda: choose_formats(None, DATA, 6, ["e4m3fn"]), TypeError, "model is a NoneType; allowed is a torch.nn.Module"),
    (lambda: cross_entropy([1.0], TARGETS), TypeError, "logits is a list; allowed is a torch.Tensor of floats"),
    (lambda: cross_entropy(TARGETS, TARGETS), TypeError, "logits has dtype torch.int64; allowed are floats"),
    (lambda: cross_entropy(LOGITS, 3), TypeError, "targets is a int; allowed is a torch.Tensor of torch.int64"),
    (lambda: cross_entropy(LOGITS, TARGETS.int()), TypeError, "targets has dtype torch.int32; allowed is torch.int64"),
    (
        lambda: cross_entropy(LOGITS[0, 0], TARGETS),
        ValueError,
        r"logits has shape \(4,\); allowed are two dimensions or",
    ),
    (lambda: cross_entropy(LOGITS, TARGETS.T), ValueError, r"targets has shape \(3, 2\); allowed is \(2, 3\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
