"""Weights that layers compute at each call: weight_norm, spectral_norm and pruning, parametrized and by hooks."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, remove_spectral_norm, remove_weight_norm

from qtorch.quantization import (
    QConfig,
    QuantWrapper,
    default_dynamic_qconfig,
    default_qconfig,
    prepare,
    quantize_dynamic,
    quantize_model,
    report,
)


def by_hook(function):
    def make(layer):
        with warnings.catch_warnings():  # torch's, of old functions
            warnings.simplefilter("ignore")
            return function(layer)

    return make


def parametrized(layer):
    parametrize.remove_parametrizations(layer, "weight")


# What computes a weight, what leaves the computed one, and the function that a message names.
WAYS = {
    "weight_norm": (parametrizations.weight_norm, parametrized, "remove_parametrizations"),
    "spectral_norm": (parametrizations.spectral_norm, parametrized, "remove_parametrizations"),
    "orthogonal": (parametrizations.orthogonal, parametrized, "remove_parametrizations"),
    "weight_norm hook": (by_hook(nn.utils.weight_norm), remove_weight_norm, "remove_weight_norm"),
    "spectral_norm hook": (by_hook(nn.utils.spectral_norm), remove_spectral_norm, "remove_spectral_norm"),
    "pruning": (lambda x: prune.l1_unstructured(x, "weight", 0.3), lambda x: prune.remove(x, "weight"), "prune.remove"),
}
SETTINGS = {"int8": None, "weights": QConfig(None, "mxfp4"), "dynamic": {"2": default_dynamic_qconfig}}


def model(way):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).train()
    for layer in made[::2]:
        WAYS[way][0](layer)
    made(torch.randn(4, 16))  # weights of hooks are tensors with gradients now
    return made.eval()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("way", WAYS)
def test_weights_are_computed_once(way, settings):
    x, original = torch.randn(4, 16), model(way)
    before = original(x)
    small = quantize_model(original, SETTINGS[settings], None if settings == "dynamic" else [x])
    assert torch.equal(original(x), before)
    assert [*original.state_dict()] == [*model(way).state_dict()]
    plain = model(way)
    for layer in plain[::2]:
        WAYS[way][1](layer)
    assert torch.equal(small(x), quantize_model(plain, SETTINGS[settings], None if settings == "dynamic" else [x])(x))
    assert [row.state for row in report(small) if row.path.startswith("2")][-1] in ("quantized", "rounded")


@pytest.mark.parametrize("way", ["weight_norm", "weight_norm hook", "spectral_norm hook", "pruning"])
def test_where_they_are_not_the_message_has_the_remedy(way):
    remedy = WAYS[way][2]
    x, float_model = torch.randn(4, 16), model(way)
    if remedy == "remove_parametrizations":
        wrapped = QuantWrapper(nn.Sequential(*float_model, nn.Linear(4, 4)))
        wrapped.qconfig = default_qconfig
        assert sum(remedy in row.reason for row in report(prepare(wrapped))) == 2
        with pytest.warns(UserWarning, match=f"layer '0' .*{remedy}"):
            quantize_model(nn.Sequential(*float_model, nn.Linear(4, 4)), train=lambda model: model(x))
        return
    float_model.qconfig = default_qconfig
    for wrong in (
        lambda: quantize_dynamic(float_model),
        lambda: prepare(float_model),
        lambda: quantize_model(float_model, train=lambda model: model(x)),
    ):
        with pytest.raises(ValueError, match=rf"layer '[02].*{remedy}\(layer, 'weight'\)"):
            wrong()


def test_a_weight_that_changes_at_each_call_stays():
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    noisy = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    parametrize.register_parametrization(noisy[0], "weight", Noise())
    with pytest.warns(UserWarning, match=r"layer '0' .*: its weight is computed at each call"):
        small = quantize_model(noisy, calibrate=[torch.randn(2, 4)])
    assert parametrize.is_parametrized(small[0])
