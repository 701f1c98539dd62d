"""`lower` with a recipe: in place, by name and type, and what it refuses."""

import copy
import pickle

import numpy as np
import pytest
import torch
from support import assert_same_bits
from torch import nn

from qcore import RECIPES, Entry, Product, Recipe, Rule
from qtorch import insight, linalg
from qtorch.recipes import lower

CHUNKED = Recipe(RECIPES["fp8_chunked"].entries[-1:])


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))


X = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def test_layers_change_in_place_and_the_first_entry_counts():
    model = small()
    layers, parameters, names = list(model), list(model.parameters()), list(model.state_dict())
    recipe = Recipe([Entry("4"), Entry("2", forward=Product("int8", "int4")), *CHUNKED.entries])
    assert lower(model, recipe) is model
    kinds = [linalg.Conv2d, nn.Flatten, linalg.Linear, nn.ReLU]
    assert [type(layer) for layer in model[:4]] == kinds
    assert isinstance(model[4], nn.Linear)
    assert not isinstance(model[4], linalg.Linear)
    assert all(one is other for one, other in zip(model, layers, strict=True))
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == names
    y = linalg.conv2d(X, layers[0].weight, layers[0].bias, operands=("float(5,2)",) * 2, accumulator=_accumulator())
    y = linalg.linear(y.flatten(1), layers[2].weight, layers[2].bias, operands=("int8", "int4")).relu()
    assert_same_bits(model(X), nn.functional.linear(y, layers[4].weight, layers[4].bias))


def _accumulator():
    return CHUNKED.entries[0].forward.accumulator


def test_copies_and_pickles_are_lowered_too():
    model = lower(small(), CHUNKED)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same_bits(other(X), model(X))
    assert not torch.equal(model(X), small()(X))


def test_a_model_may_be_a_layer():
    assert type(lower(nn.Linear(3, 2), CHUNKED)) is linalg.Linear


def test_transformers_call_their_layers_in_evaluation():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        wide = layer(x)
        assert not torch.equal(lower(layer, CHUNKED)(x), wide)


@pytest.mark.parametrize(
    ("model", "recipe", "message"),
    [
        (
            small,
            Recipe([Entry("head")]),
            r"entry\('head'\), which matches no layer; the layers are '0' \(conv\), '2' \(lin",
        ),
        (nn.ReLU, CHUNKED, "no layer to apply to"),
        (lambda: lower(small(), CHUNKED), CHUNKED, "0 is lowered already"),
        (lambda: lower(small(), ["linear"], "int8"), CHUNKED, "2 is lowered already"),
        (lambda: nn.Sequential(nn.Linear(1, 1), nn.LazyLinear(1)), CHUNKED, "1 has no weight yet"),
        (
            lambda: nn.Sequential(nn.Conv1d(1, 1, 1)),
            RECIPES["mxfp8"],
            r"no layer to apply to; the layers are '0' \(conv",
        ),
    ],
)
def test_refused_models_are_unchanged(model, recipe, message):
    model = model()
    types = [type(layer) for layer in model.modules()]
    with pytest.raises(ValueError, match=message):
        lower(model, recipe)
    assert [type(layer) for layer in model.modules()] == types


@pytest.mark.parametrize("others", [{"rules": [Rule()]}, {"layer_type": ["conv"]}, {"weight_number": "int8"}])
def test_a_recipe_stands_alone(others):
    with pytest.raises(ValueError, match="beside a Recipe"):
        lower(small(), CHUNKED, **others)


def test_delayed_scales_are_buffers_that_backward_passes_advance():
    wide = nn.Linear(4, 3)
    plain = wide.state_dict()
    layer = lower(wide, RECIPES["fp8_delayed"])
    layer.load_state_dict(plain)  # a checkpoint from before
    x = torch.tensor([[1.0, -2.0, 0.5, 0.25]])
    before = layer(x)
    assert layer.scaling[:, 0].tolist() == [1.0] * 3  # forward passes leave it
    before.sum().backward()
    weight = layer.weight.detach().abs().max().item()
    assert layer.scaling[:, :2].tolist() == [[224.0, 2.0], [layer.scaling[1, 0].item(), weight], [57344.0, 1.0]]
    assert not torch.equal(layer(x), before)
    other = lower(nn.Linear(4, 3), RECIPES["fp8_delayed"])
    other.load_state_dict(layer.state_dict())
    assert_same_bits(other(x), layer(x))


def test_delayed_scales_advance_in_torch_compile():
    torch.manual_seed(0)
    eager, traced = (lower(nn.Sequential(nn.Linear(4, 3)), RECIPES["fp8_delayed"]) for _ in range(2))
    traced.load_state_dict(eager.state_dict())
    torch._dynamo.reset()
    compiled = torch.compile(traced, fullgraph=True, backend="aot_eager")
    x = torch.tensor([[1.0, -2.0, 0.5, 0.25]])
    for factor in (1.0, 100.0, 1e-3):
        results = eager(factor * x), compiled(factor * x)
        for y in results:
            y.square().sum().backward()
        assert_same_bits(*results)
        assert_same_bits(eager[0].scaling, traced[0].scaling)
        assert_same_bits(eager[0].weight.grad, traced[0].weight.grad)
    assert traced[0].scaling[0, 1:4].tolist() == [2 * np.float32(1e-3), 200.0, 2.0]


def test_layers_are_counted_from_both_ends():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    lower(model, Recipe([Entry("*", first=1, last=2), *CHUNKED.entries]))
    assert [type(layer) is linalg.Linear for layer in model] == [False, True, False, False]


def test_accumulators_of_products_with_tiles_are_watched():
    model = lower(nn.Sequential(nn.Linear(200, 3)), Recipe(RECIPES["deepseek_v3_fp8"].entries[-1:]))
    with insight.watch(model) as watching:
        model(torch.linspace(-3, 3, 1000).reshape(5, 200)).sum().backward()
        watching.step()
    roles = {entry.site.role for entry in watching.record.entries if entry.site.kind == "accumulator"}
    assert roles == {"", "grad_weight"}


def test_a_recipe_has_an_argument_of_its_own():
    assert_same_bits(lower(small_of(0), recipe=CHUNKED)(X), lower(small_of(0), CHUNKED)(X))
    for arguments, kind, message in (
        ({"recipe": "mxfp8"}, TypeError, r"recipe='mxfp8' is a str; allowed is a Recipe; the recipe is RECIPES\["),
        ({"recipe": "mxfp9"}, TypeError, r"recipe='mxfp9' is a str; .* did you mean mxfp8\?"),
        ({"recipe": CHUNKED, "layer_types": ["conv"]}, ValueError, "layer_types beside a Recipe"),
        ({"recipe": CHUNKED, "layer_types": CHUNKED}, ValueError, "layer_types beside a Recipe"),
        ({"recipe": CHUNKED, "weight_number": "int8"}, ValueError, "formats beside a Recipe"),
    ):
        with pytest.raises(kind, match=message):
            lower(small(), **arguments)


def small_of(seed):
    torch.manual_seed(seed)
    return small()
