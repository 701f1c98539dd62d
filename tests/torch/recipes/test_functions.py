"""Recipes reach products where they happen: models as people write them, under every recipe, eager and compiled."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support import assert_all_same_bits, assert_same_bits
from torch import nn
from torch.utils.checkpoint import checkpoint

import qtorch
from qcore import RECIPES, Entry, Product, Recipe
from qtorch import _torch_internals, insight, linalg
from qtorch.recipes import lower, report
from qtorch.recipes.modes import product_arguments

NARROW = Product("e4m3fn", "e5m2")
ALL = Recipe([Entry("*", kind, NARROW, NARROW, NARROW) for kind in (None, "attention", "matmul")])
SAID = product_arguments(ALL.entries[0].products)


class Conv1D(nn.Module):
    """Hugging Face's layer of GPT-2."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs) / 6), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj, self.norm = Conv1D(96, 32), Conv1D(32, 32), nn.LayerNorm(32)

    def forward(self, x):
        heads = self.c_attn(self.norm(x)).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return x + self.c_proj(y.transpose(1, 2).flatten(-2))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.weight = nn.Linear(32, 3), nn.Parameter(torch.randn(3, 32, 32) / 6)

    def forward(self, x):
        parts = torch.einsum("btd,edf->betf", x, self.weight)
        return torch.einsum("bte,betf->btf", self.gate(x).softmax(-1), parts)


class LoRA(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(4, inputs) / 6), nn.Parameter(torch.randn(outputs, 4) / 6)

    def forward(self, x):
        return F.linear(x, self.weight + self.up @ self.down, self.bias)


def vocoder():
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Conv1d(5, 8, 3, padding="same")), nn.ReLU(), norm(nn.Conv1d(8, 5, 3, padding=1)))


MODELS = {
    "GPT-2": lambda: nn.Sequential(Block(), Block(), nn.Linear(32, 7)),
    "encoder": lambda: nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True),
    "experts": Experts,
    "LoRA": lambda: nn.Sequential(LoRA(32, 32), nn.GELU(), LoRA(32, 5)),
    "vocoder": vocoder,
}
X = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))


def made(name):
    torch.manual_seed(0)
    return MODELS[name]()


def run(model, seed=2):
    """The output and all gradients."""
    torch.manual_seed(seed)
    model.zero_grad()
    y = model(X)
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.filterwarnings("ignore:.*stays in high precision")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_all_work_is_lowered_or_has_a_reason(model, recipe):
    kinds = {entry.layer_type for entry in RECIPES[recipe].entries}
    if model == "vocoder" and kinds == {"linear"}:
        with pytest.raises(ValueError, match="no layer to apply to"):
            lower(made(model), RECIPES[recipe])
        return
    found = report(lower(made(model), RECIPES[recipe]), X)
    assert all((row.products is None) == bool(row.reason) for row in found)
    assert sum(row.share for row in found) == pytest.approx(1)
    wide = {row.reason.partition(" is for")[0] for row in found if row.products is None}
    allowed = {"no entry of the recipe", "the recipe leaves it in high precision", "no rule or entry"}
    assert wide <= allowed
    if recipe in ("bf16_mixed", "swalp", "hfp8"):
        assert all(row.kind in ("attention_scores", "attention_output", "matmul") for row in found if row.reason)


SLOW = [pytest.param(name, marks=pytest.mark.heavy) for name in ("GPT-2", "encoder", "experts", "vocoder")]


@pytest.mark.parametrize("model", [*SLOW, "LoRA"])
def test_compiled_equals_eager(model):
    low = lower(made(model), ALL)
    assert report(low, X).lowered == 1
    eager = run(low)
    torch._dynamo.reset()
    assert_all_same_bits(run(torch.compile(low, fullgraph=True, backend="aot_eager")), eager)
    wide = run(made(model))
    assert not torch.equal(eager[0], wide[0])
    torch.testing.assert_close(eager[0], wide[0], rtol=0.3, atol=0.7)


def test_a_stochastic_recipe_draws_the_same_keys_compiled():
    low = lower(made("LoRA"), RECIPES["swalp"])
    torch._dynamo.reset()
    assert_all_same_bits(run(torch.compile(low, fullgraph=True, backend="eager")), run(low))


@pytest.mark.heavy
def test_with_inductor():
    low = lower(nn.Sequential(Conv1D(32, 32), nn.ReLU(), LoRA(32, 8)), ALL)
    eager = run(low)
    torch._dynamo.reset()
    assert_all_same_bits(run(torch.compile(low, fullgraph=True)), eager)


class Do(nn.Module):
    """One function of an input and a parameter."""

    def __init__(self, function, *shape):
        super().__init__()
        self.w, self.function = nn.Parameter(torch.randn(shape)), function

    def forward(self, x):
        return self.function(x, self.w)


Y, Z = X, X[0]
ATTENTION = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(2))
# A function of an input and a weight, the weight's shape, the input, and the product that it is.
FUNCTIONS = {
    "matmul": (lambda x, w: x @ w, (32, 6), Y, lambda x, w: linalg.linear(x, w.mT, **SAID)),
    "of a view": (lambda x, w: torch.matmul(x, w.T), (6, 32), Y, lambda x, w: linalg.linear(x, w, **SAID)),
    "cast": (lambda x, w: x @ w.to(torch.float64).to(x.dtype), (32, 6), Z, lambda x, w: linalg.linear(x, w.mT, **SAID)),
    "weight first": (lambda x, w: w @ x.mT, (6, 32), Y, lambda x, w: linalg.linear(x, w, **SAID).mT),
    "vector": (lambda x, w: x[0] @ w, (32, 6), Z, lambda x, w: linalg.linear(x[:1], w.mT, **SAID)[0]),
    "mv": (lambda x, w: torch.mv(w, x[0]), (6, 32), Z, lambda x, w: linalg.linear(x[:1], w, **SAID)[0]),
    "addmm": (
        lambda x, w: torch.addmm(x[:, :6], x, w, beta=0.5, alpha=2),
        (32, 6),
        Z,
        lambda x, w: linalg.linear(x, w.mT, **SAID) * 2 + x[:, :6] * 0.5,
    ),
    "einsum": (lambda x, w: torch.einsum("btd,hdf->bthf", x, w), (2, 32, 3), Y,
               lambda x, w: linalg.linear(x, w.permute(0, 2, 1).reshape(6, 32), **SAID).reshape(2, 5, 2, 3)),
    "einsum, weight first": (lambda x, w: torch.einsum("of,bf->ob", [w, x]), (6, 32), Z,
                             lambda x, w: linalg.linear(x, w, **SAID).mT),
    "einsum of a batch": (lambda x, w: torch.einsum("btd,bdf->btf", x, w), (2, 32, 6), Y,
                          lambda x, w: linalg.linear(x, w.mT, **SAID)),
    "tensordot": (lambda x, w: torch.tensordot(x, w, 1), (32, 6), Y, lambda x, w: linalg.linear(x, w.mT, **SAID)),
    "conv, same": (lambda x, w: F.conv1d(x, w, padding="same", dilation=3), (4, 5, 2), Y,
                   lambda x, w: linalg.conv1d(F.pad(x, (1, 2)), w, dilation=3, **SAID)),
    "conv without a batch": (lambda x, w: F.conv1d(x, w), (4, 5, 2), Z,
                             lambda x, w: linalg.conv1d(x[None], w, **SAID)[0]),
    "two inputs": (lambda x, w: x @ x.mT, (1,), Y, lambda x, w: linalg.linear(x, x, **SAID)),
    "broadcast": (lambda x, w: x[:, None] @ x[:1, None].mT, (1,), Y,
                  lambda x, w: linalg.linear(x, x[:1].expand(2, -1, -1), **SAID)[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_products(name):
    function, shape, x, product = FUNCTIONS[name]
    torch.manual_seed(0)
    low = lower(nn.Sequential(Do(function, *shape)), ALL)
    x = x.clone().requires_grad_()
    found, expected = low(x), product(x, low[0].w)
    assert_same_bits(found, expected)
    gradients = [torch.autograd.grad(y.square().sum(), (x, low[0].w), allow_unused=True) for y in (found, expected)]
    assert_all_same_bits(*([g for g in one if g is not None] for one in gradients))
    assert [row.kind for row in report(low, x)] == [
        "matmul" if name in ("two inputs", "broadcast") else "conv" if "conv" in name else "linear"
    ]


def test_attention_is_two_products_in_the_layout_of_layers():
    """The key is (outputs, inputs) as it is; the value is transposed."""
    q, k, v = ATTENTION, ATTENTION.flip(1), ATTENTION.flip(2)
    blocks = "scaled(e4m3fn,{-1:4})"  # along the sums
    low = lower(
        nn.Sequential(Do(lambda x, w: F.scaled_dot_product_attention(q, k, v), 1)),
        Recipe([Entry("0", "attention", Product(blocks, blocks))]),
    )
    scores = linalg.linear(q * 8**-0.5, k, operands=(blocks, blocks))
    found, narrow = low(q), qtorch.quantize(v.mT, blocks).mT
    torch.testing.assert_close(found, scores.softmax(-1) @ narrow, rtol=0.1, atol=0.1)
    one = lower(nn.Sequential(Do(low[0].function, 1)), Recipe([Entry("0", "attention_output", NARROW)]))
    assert [bool(row.products) for row in report(one, q)] == [False, True]
    assert not torch.equal(one(q), found)


def test_weights_of_attention_modules_and_masks():
    """The four projections and the two products, with and without the weights that attention returns."""
    torch.manual_seed(0)
    layer, mask = nn.MultiheadAttention(32, 2, batch_first=True), torch.tensor([[False] * 4 + [True]] * 2)
    wide = layer(X, X, X, key_padding_mask=mask)
    low = lower(layer, ALL)
    for needs in (False, True):
        found = report(low, X, X, X, key_padding_mask=mask, need_weights=needs)
        assert found.lowered == 1
        assert [row.kind for row in found] == ["linear", "attention_scores", "attention_output", "linear"]
        torch.testing.assert_close(
            low(X, X, X, key_padding_mask=mask, need_weights=needs)[0], wide[0], rtol=0, atol=0.1
        )


@pytest.mark.heavy
def test_programs_in_bfloat16_and_under_autocast():
    """Operands are the numbers that come; the result in float32 is rounded once."""
    low = lower(nn.Sequential(Conv1D(32, 32), LoRA(32, 8)), ALL).bfloat16()
    y = low(X.bfloat16())
    y.float().square().sum().backward()
    assert y.dtype is torch.bfloat16
    assert all(p.grad.dtype is torch.bfloat16 and p.grad.any() for p in low.parameters())
    torch._dynamo.reset()
    assert_same_bits(torch.compile(low, fullgraph=True, backend="eager")(X.bfloat16()), y)
    layer = nn.Linear(32, 4)
    low = lower(copy.deepcopy(layer), ALL)
    x, w, b = X.bfloat16(), *(p.detach().bfloat16() for p in (layer.weight, layer.bias))
    exact = linalg.linear(x.float(), w.float(), b.float(), **SAID)
    assert_same_bits(linalg.linear(x, w, b, **SAID), exact.bfloat16())
    assert_same_bits(low.bfloat16()(x), exact.bfloat16())
    low = lower(copy.deepcopy(layer), ALL)
    with torch.autocast("cpu", torch.bfloat16):  # a float32 layer is not rounded to bfloat16 first
        assert_same_bits(low(X), linalg.linear.__wrapped__(X, layer.weight, layer.bias, **SAID).bfloat16())
        assert lower(nn.Sequential(Conv1D(4, 32)), ALL)(X).dtype is torch.bfloat16


def test_delayed_scales_stay_in_float32():
    """A model that is lowered and then cast runs, with the magnitudes that it had."""
    low = lower(nn.Sequential(nn.Linear(32, 32), Conv1D(8, 32)), RECIPES["fp8_delayed"])
    run(low)
    before = [state.clone() for state in low.buffers()]
    for cast in (low.bfloat16, low.half):
        assert_all_same_bits(list(cast().buffers()), before)
    low.bfloat16()(X.bfloat16()).float().sum().backward()
    assert report(low, X.bfloat16()).lowered == 1  # GPT-2's layer has a bias that comes before its weight
    assert all(p.grad.dtype is torch.bfloat16 for p in low.parameters())


def test_first_and_last_count_the_layers_of_programs():
    low = lower(made("GPT-2"), Recipe([Entry(last=1), Entry("*", first=2), Entry(forward=NARROW)]))
    lowered = {row.path for row in report(low, X) if row.products}
    assert lowered == {"1.c_attn", "1.c_proj"}


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layer, self.reentrant = Conv1D(32, 32), reentrant

    def part(self, x):
        return (x @ self.layer.weight).relu()

    def forward(self, x):
        return checkpoint(self.part, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_methods_that_checkpoints_run_again(reentrant):
    low, results = lower(Checkpointed(reentrant), ALL), []
    for function in (low, low.part):
        x = X.clone().requires_grad_()
        low.zero_grad()
        y = function(x)
        y.square().sum().backward()
        results.append([y, x.grad, low.layer.weight.grad])
    assert_all_same_bits(*results)
    assert_same_bits(results[0][0], linalg.linear(X, low.layer.weight.mT, **SAID).relu())


def test_lowered_models_remain_models():
    low = lower(made("GPT-2"), ALL)
    y = low(X)
    for twin in (copy.deepcopy(low), pickle.loads(pickle.dumps(low)), torch.export.export(low, (X,)).module()):
        assert_same_bits(twin(X), y)
    values = {name: p.detach() for name, p in low.named_parameters()}
    assert_same_bits(torch.func.functional_call(low, values, (X,)), y)
    assert set(low.state_dict()) == set(made("GPT-2").state_dict())
    assert isinstance(low[0].c_attn, Conv1D)
    assert str(low[0].c_attn) == "Conv1D(products=e4m3fn x e5m2)"
    assert max(map(len, str(lower(made("GPT-2"), RECIPES["hfp8"])).splitlines())) < 160
    for trace in (lambda: torch.jit.trace(low, (X,)), lambda: torch.fx.symbolic_trace(low)):
        with pytest.raises(RuntimeError, match=r"allowed are torch.export.export\(model, inputs\) and torch.compile"):
            trace()
    removed = lower(made("vocoder"), ALL)
    y = removed(X)
    nn.utils.parametrize.remove_parametrizations(removed[0], "weight")
    assert_same_bits(removed(X), y)


def test_products_of_functions_are_watched():
    low = lower(nn.Sequential(Conv1D(4, 32)), ALL)
    with insight.watch(low) as watching:
        run(low)
        watching.step()
    assert {"0:operand:input", "0:operand:weight", "0:operand:grad_weight.input"} <= {*map(str, watching.record.sites)}


def test_a_torch_that_cannot_hide_functions_from_modes(monkeypatch):
    monkeypatch.setattr(_torch_internals, "_disable_functions", None)
    with pytest.raises(RuntimeError, match=r"has no torch._C.DisableTorchFunction; lowered there are only models"):
        lower(made("LoRA"), ALL)
    assert lower(nn.Linear(32, 4), ALL)(X).shape == (2, 5, 4)


VECTORS = {
    "@": lambda x, w: x @ w,
    "reflected @": lambda x, w: w @ x,
    "dot": torch.dot,
    "inner": torch.inner,
    "vecdot": torch.linalg.vecdot,
    "einsum": lambda x, w: torch.einsum("i,i->", x, w),
    "tensordot": lambda x, w: torch.tensordot(x, w, 1),
    "linear": lambda x, w: F.linear(x, w, torch.tensor(0.0)),
    "no weight": lambda x, w: x @ x.flip(0) + 0 * w[0],
}


@pytest.mark.parametrize("name", VECTORS)
def test_products_of_two_vectors(name):
    """One example is a batch of one."""

    class Score(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.linspace(-1.3, 2.1, 32))

        def forward(self, x):
            return VECTORS[name](x, self.w)

    product = Product("e4m3fn", "e4m3fn")
    low = lower(Score(), Recipe([Entry("*", kind, product, product, product) for kind in (None, "matmul")]))
    x = torch.linspace(-0.7, 1.9, 32, requires_grad=True)
    y = low(x)
    w = x.flip(0) if name == "no weight" else low.w
    expected = linalg.linear(x.detach()[None], w.detach()[None], operands=("e4m3fn", "e4m3fn"))
    assert_same_bits(y.detach(), expected[0, 0])
    y.backward()
    assert x.grad is not None
