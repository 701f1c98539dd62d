"""Formats for the layers of torch's models: the sites, and what is refused."""

import copy

import pytest
import torch
from torch import nn

from qtorch import parse
from qtorch.auto_low import lower
from qtorch.insight import choose_formats, cross_entropy, sensitivity

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
