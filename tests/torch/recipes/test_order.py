"""What is lowered, prepared or watched after a model was compiled is in the compiled program too, in any order."""

import copy

import pytest
import torch
from covering import usually
from support import assert_same_bits
from torch import nn

import qtorch
from qcore import RECIPES, Quantization, Rule
from qtorch import insight
from qtorch.quantization import default_qconfig, prepare
from qtorch.recipes import lower, sequential_lower


class Net(nn.Module):
    """One class for all models of this file: compiled programs of one are tried for the others."""

    def __init__(self):
        super().__init__()
        self.layer, self.own = nn.Linear(32, 32), Own(32, 32)

    def forward(self, x):
        return self.own(self.layer(x).relu())


class Own(nn.Linear):
    def forward(self, x):
        return x @ self.weight.T


X = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
WAYS = {
    "outputs": lambda m, text: lower(m, ["linear"], text, None, "nearest"),
    "weights": lambda m, text: lower(m, ["linear"], weight_number=text),
    "pairs": lambda m, text: sequential_lower(m, ["linear"], text, None, "nearest"),
    "rules": lambda m, text: lower(m, rules=[Rule("own", outputs=Quantization(text, None, "nearest"))]),
    "recipe": lambda m, text: lower(m, RECIPES["mxfp8" if text == "int4" else "bf16_mixed"]),
}


@pytest.mark.parametrize("way", usually(("outputs", "rules", "recipe"), WAYS))
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.heavy)])
def test_formats_in_a_row(way, backend):
    """The float32 baseline first, two formats of copies, and the baseline again."""
    torch._dynamo.reset()
    base, seen = Net(), []
    for text in (None, "int4", "e5m2", None):
        model = copy.deepcopy(base)
        model = model if text is None else WAYS[way](model, text)
        y = torch.compile(model, backend=backend)(X)
        assert_same_bits(y, model(X))
        seen.append(y)
    assert torch.equal(seen[0], seen[3])
    assert not any(torch.equal(seen[0], y) for y in seen[1:3])


@pytest.mark.parametrize(
    ("way", "in_place"), [("outputs", True), ("weights", False), ("rules", True), ("recipe", False)]
)
def test_compiled_and_run_before(way, in_place):
    """Forward only, then with backward; by torch.compile, and by Module.compile."""
    torch._dynamo.reset()
    model = Net()
    compiled = model if in_place else torch.compile(model, backend="eager")
    if in_place:
        model.compile(backend="eager")
    with torch.no_grad():
        wide = compiled(X)
    WAYS[way](model, "int4")
    with torch.no_grad():
        assert_same_bits(compiled(X), model.forward(X))
    y = compiled(X)
    assert not torch.equal(y, wide)
    y.sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    model.forward(X).sum().backward()
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        if gradient is not None:
            assert_same_bits(p.grad, gradient)


@pytest.mark.heavy
def test_with_inductor():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(32, 32))
    compiled = torch.compile(model)
    wide = compiled(X)
    lower(model, ["linear"], "int4", None, "nearest")
    assert_same_bits(compiled(X), model(X))
    assert not torch.equal(compiled(X), wide)


def test_observers_and_watches_after_compilation():
    torch._dynamo.reset()
    model = Net()
    torch.compile(model, backend="eager")(X)
    model.qconfig = default_qconfig
    prepared = prepare(model)
    torch.compile(prepared, backend="eager")(X)
    assert prepared.layer.activation_post_process.min_val == model.layer(X).min()
    low = lower(Net(), ["linear"], "int4", None, "nearest")
    compiled = torch.compile(low, backend="eager")
    with torch.no_grad():
        before = compiled(X)
        for _ in range(2):
            with insight.watch(compiled) as watching:
                assert_same_bits(compiled(X), before)
                watching.step()
            assert [str(site) for site in watching.record.sites] == ["layer:output", "own:output"]
        assert_same_bits(compiled(X), before)


MXFP4 = "scaled(e2m1fn,{-1:32},rule=rceil)"


@pytest.mark.heavy
@pytest.mark.parametrize("first", ["weights", "recipe"])
@pytest.mark.parametrize("recipe", ["mxfp8", "fp8_delayed"])
def test_weights_on_a_grid_under_a_recipe(first, recipe):
    """A recipe's operand is the rounded weight, in layers of torch and in a program's own, whichever comes first."""
    model = Net()
    expected = lower(copy.deepcopy(model), RECIPES[recipe])
    for layer in (expected.layer, expected.own):
        layer.weight.data = qtorch.quantize(layer.weight.data, MXFP4, "nearest")
    for step in sorted(("weights", "recipe"), key=lambda one: one != first):
        if step == "weights":
            lower(model, ["linear"], weight_number=MXFP4)
        else:
            lower(model, RECIPES[recipe])
    for _ in range(2):  # the second with scales of the first
        y, z = model(X), expected(X)
        assert_same_bits(y, z)
        y.sum().backward()
        z.sum().backward()
    found = {name.replace("parametrizations.weight.original", "weight"): p for name, p in model.named_parameters()}
    for name, p in expected.named_parameters():
        assert (found[name].grad is None) == (p.grad is None)
        if p.grad is not None:
            assert_same_bits(found[name].grad, p.grad)
    torch._dynamo.reset()
    assert_same_bits(torch.compile(model, backend="eager")(X), model(X))
    assert_same_bits(copy.deepcopy(model)(X), model(X))


def test_weights_of_layers_that_a_recipe_leaves_wide():
    model = lower(nn.Sequential(Net(), nn.Conv1d(4, 4, 3, bias=False)), RECIPES["mxfp8"])
    lower(model, ["conv"], "e5m2", None, "nearest", weight_number="int4")
    weight = qtorch.quantize(model[1].parametrizations.weight.original, "int4", "nearest")
    assert_same_bits(model[1](X), qtorch.quantize(nn.functional.conv1d(X, weight), "e5m2", "nearest"))
    for again in (
        lambda: lower(model, RECIPES["mxfp8"]),
        lambda: lower(model, ["conv"], weight_number="int8"),
        lambda: lower(model, ["conv"], "int8"),
    ):
        with pytest.raises(ValueError, match="is lowered already"):
            again()
