"""Code of models that knows more than its layers' calls: hooks, lists of layers, stored tensors, dtypes, weights."""

import warnings
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtorch.quantization import QConfig, default_dynamic_qconfig, default_qconfig, quantize_model, report

INT8, FORMATS, WEIGHTS = default_qconfig, QConfig("e4m3fn", "e4m3fn"), QConfig(None, "mxfp8_e4m3")
SETTINGS = {"int8": INT8, "formats": FORMATS, "weights": WEIGHTS, "dynamic": default_dynamic_qconfig}
QUANTIZED = ("quantized", "rounded")


def quantized(model, settings, x):
    with warnings.catch_warnings():  # of layers that dynamic settings leave in floats
        warnings.simplefilter("ignore")
        return quantize_model(model.eval(), settings, None if settings is default_dynamic_qconfig else [x])


def errors(model, small, x):
    with torch.no_grad():
        y, expected = small(x), model(x)
    return float((y - expected).norm() / expected.norm())


class Borrowing(nn.Module):
    """A function takes a layer's weight and bias, so all three must have one dtype."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm, self.table = nn.Linear(8, 8), nn.Linear(8, 4), nn.LayerNorm(4), nn.Embedding(3, 4)

    def forward(self, x):
        x = self.b(F.linear(self.a(x), self.a.weight, self.a.bias).relu())
        return F.layer_norm(self.norm(x) + self.table.weight.sum(0), (4,), self.norm.weight, self.norm.bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_quantized_model_goes_to_another_dtype(name, dtype):
    model, x = Borrowing(), torch.randn(16, 8)
    small = quantized(model, SETTINGS[name], x)
    before = {key: value.dtype for key, value in small.state_dict().items() if "scale" in key or "codes" in key}
    y = small(x)
    small.to(dtype)
    assert small(x.to(dtype)).dtype is next(small.parameters()).dtype is dtype
    assert small.a.weight.dtype is small.a.bias.dtype is dtype
    assert {key: value.dtype for key, value in small.state_dict().items() if key in before} == before
    assert (small(x.to(dtype)).float() - y).norm() < 0.1 * y.norm()
    assert small.float()(x).dtype is torch.float32


def test_results_have_the_dtype_of_their_layer():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8).half(), nn.Linear(8, 4)

        def forward(self, x):
            h = self.a(x.half())
            assert h.dtype is torch.float16
            return self.b(h.float())

    model, x = Mixed(), torch.randn(4, 8)
    assert quantized(model, INT8, x)(x).dtype is torch.float32


def halved(layer, inputs):
    return (inputs[0] / 2,)


def doubled(layer, inputs, y):
    assert type(y) is torch.Tensor
    return y * 2


@pytest.mark.parametrize("training", [False, True])
def test_hooks_see_and_change_floats(training):
    model, x = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 4), nn.Linear(4, 4)), X
    model[0][1].register_forward_pre_hook(halved)
    model[0].register_forward_hook(doubled)
    model[1].register_forward_hook(doubled)
    model.eval()
    small = quantize_model(model, train=lambda model: model(x)) if training else quantize_model(model, INT8, [x])
    assert errors(model, small, x) < 0.05
    assert sum(row.state == "quantized" for row in report(small)) >= 4


X = torch.randn(64, 8)


@dataclass
class Out:
    y: torch.Tensor
    more: list


class Telling(nn.Module):
    """Layers' results leave the model in a dataclass, in attributes, and in an object that the caller brings."""

    def __init__(self):
        super().__init__()
        self.a, self.relu, self.b, self.c = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4), nn.Linear(4, 4)

    def forward(self, x, cache):
        self.last = {"a": [self.relu(self.a(x))]}
        cache.seen = self.b(self.last["a"][0])
        y = self.c(cache.seen)
        return Out(y, [{"y": y}])


@pytest.mark.parametrize("training", [False, True])
def test_what_leaves_a_model_is_floats(training):
    model, cache = Telling(), SimpleNamespace(seen=None)

    def run(model):
        model(X, cache).y.sum()

    small = quantize_model(model, train=run) if training else quantize_model(model.eval(), INT8, [(X, cache)])
    out = small(X, cache)
    for found in (out.y, out.more[0]["y"], small.last["a"][0], cache.seen):
        assert type(found) is torch.Tensor
    expected = model.eval()(X, cache)
    assert (out.y - expected.y).norm() < 0.05 * expected.y.norm()
    quantize_model(model, WEIGHTS)  # the float model's last results depend on others by gradients


class Listing(nn.Module):
    """Layers are called by lists, dictionaries, partial functions and methods, which no module registers."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Linear(4, 8)
        self.one, self.two, self.three = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.convs, self.table = [(self.conv, self.bn)], {"fc": [self.fc]}
        self.call, self.method = partial(self.one), self.two.forward
        self.__dict__["last"] = self.three

    def forward(self, x):
        for conv, bn in self.convs:
            x = bn(conv(x)).relu()
        return self.last(self.method(self.call(self.table["fc"][0](x.mean(-1)))))


@pytest.mark.parametrize("name", ["int8", "weights"])
def test_layers_in_lists_are_the_quantized_ones(name):
    model, x = Listing(), torch.randn(16, 2, 8)
    small = quantized(model, SETTINGS[name], x)
    assert 0 < errors(model, small, x) < 0.1
    layers = dict(small.named_children())
    assert small.convs[0] == (layers["conv"], layers["bn"])
    assert small.table["fc"][0] is layers["fc"]
    assert small.call.func is layers["one"]
    assert small.method == layers["two"].forward
    assert small.last is layers["three"]
    assert type(model.convs[0][0]) is nn.Conv1d


class Positions(nn.Module):
    """DeBERTa's layers take the weight of a table."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.a, self.b = nn.Embedding(6, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.b(x) @ (self.a(self.norm(self.table.weight)) + self.a(self.table.weight)).T


@pytest.mark.parametrize("name", SETTINGS)
def test_layers_take_weights_of_other_layers(name):
    model = Positions()
    settings = SETTINGS[name] if name != "dynamic" else {"": SETTINGS[name], "table": SETTINGS[name]}
    small = quantized(model, settings, X) if name != "dynamic" else quantize_model(model.eval(), settings)
    assert next(row for row in report(small) if row.path == "table").state in QUANTIZED or name == "formats"
    assert errors(model, small, X) < 0.1


def test_weights_have_operators_and_are_not_changed_in_place():
    layer = quantize_model(nn.Sequential(nn.Linear(8, 4)), WEIGHTS)[0]
    numbers = layer.weight.numbers()
    for function in (lambda w: w > 0, lambda w: w <= 0.1, abs, lambda w: w // 0.1, lambda w: w % 0.1, lambda w: 2**w):
        assert torch.equal(function(layer.weight), function(numbers))
    assert layer.weight.requires_grad_(False) is not None
    for found in (layer.weight.to(torch.float64), layer.weight.double(), layer.weight.type(torch.float64)):
        assert torch.equal(found, numbers.double())
    assert layer.weight.dtype is torch.float32
    for change in (lambda: layer.weight.clamp_(0, 1), lambda: torch.relu_(layer.weight), lambda: layer.weight.zero_()):
        with pytest.raises(TypeError, match="_ of a quantized weight would change a copy"):
            change()


class Unsuited(nn.Module):
    def __init__(self, unsuited):
        super().__init__()
        self.conv, self.unsuited, self.fc = nn.Conv1d(8, 8, 1), unsuited, nn.Linear(8, 4)

    def forward(self, x):
        x = self.conv(x[..., None])
        takes = self.unsuited.weight.dtype
        x = self.unsuited(x.to(takes)) if takes.is_complex else self.unsuited(x.expand(-1, -1, 3))
        return self.fc((x.abs() if takes.is_complex else x).mean(-1))


@pytest.mark.parametrize(
    ("layer", "names", "reason"),
    [
        (lambda: nn.Conv1d(8, 8, 1, dtype=torch.complex64), SETTINGS, "its numbers are complex"),
        (lambda: nn.BatchNorm1d(8, track_running_stats=False), ["int8"], "it has no running statistics"),
        (lambda: nn.InstanceNorm1d(8, affine=True, track_running_stats=True), ["int8"], "it has running statistics"),
    ],
)
def test_layers_that_nothing_suits_stay_in_floats(layer, names, reason):
    for name in names:
        model = Unsuited(layer())
        small = quantized(model, SETTINGS[name], X)
        row = next(row for row in report(small) if row.path == "unsuited")
        assert row.state == "float"
        assert reason in row.reason
        assert errors(model, small, X) < 0.1


def test_layers_without_elements_and_without_shapes():
    with warnings.catch_warnings():  # of torch, about initialization
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 0), nn.Linear(0, 4))
    for name in SETTINGS:
        small = quantized(model, SETTINGS[name], X)
        assert [row.reason for row in report(small)][-2:] == ["its weight has no elements"] * 2
        assert torch.equal(small(X), model(X))
        with pytest.raises(ValueError, match=r"'0' is a LazyLinear .* no shape yet; call the model once"):
            quantized(nn.Sequential(nn.LazyLinear(4)), SETTINGS[name], X)


class Masking(nn.Module):
    """DeBERTa writes the least number of the dtype of a layer's result into products of autocast's dtype."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        return (y @ self.b(x).T).masked_fill(y @ y.T > 1, torch.finfo(y.dtype).min)


@pytest.mark.parametrize("name", SETTINGS)
def test_results_have_the_dtype_of_autocast(name):
    small = quantized(Masking(), SETTINGS[name], X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert small(X).dtype is small.a(X).dtype is torch.bfloat16
    assert small(X).dtype is small.a(X).dtype is torch.float32


def test_hooks_of_transformers_show_nothing():
    """A model of the package has them from its first call on; fresh models must become the same."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval()

    def hook(layer, inputs, y):
        return None

    hook.__module__ = "transformers.utils.output_capturing"
    fresh = quantize_model(model, INT8, [X]).state_dict()
    model[0].register_forward_hook(hook)
    assert quantize_model(model, INT8, [X]).state_dict().keys() == fresh.keys()


class Own(nn.Linear):
    pass


def test_models_of_a_table_or_of_subclasses_are_rounded():
    ids = torch.arange(6)
    for settings, model, x in ((WEIGHTS, nn.Embedding(6, 32), ids), (FORMATS, nn.Sequential(Own(8, 4)), X)):
        small = quantize_model(model.eval(), settings, [x])
        assert 0 < errors(model, small, x) < 0.1
    with pytest.raises(
        ValueError, match=r"no layer to observe; .* LSTM; the model itself: .*\{nn.LSTM: default_dynamic"
    ):
        quantize_model(nn.LSTM(2, 2), default_qconfig, [torch.zeros(1, 2)])


@pytest.mark.parametrize("name", SETTINGS)
def test_quantized_layers_run_under_vmap(name):
    layer = quantized(nn.Sequential(nn.Linear(8, 4)), SETTINGS[name], X)[0]
    with warnings.catch_warnings():  # of torch, which has no batching rule
        warnings.simplefilter("ignore")
        y = torch.vmap(layer)(X.reshape(4, 16, 8))
    assert torch.equal(y.reshape(64, 4), layer(X))
