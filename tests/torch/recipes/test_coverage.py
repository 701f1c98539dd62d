"""Functions and layers of torch that are written by products: beside torch's own numbers, and their bits."""

import types

import pytest
import torch
import torch.nn.functional as F
from support import assert_all_same_bits, assert_same_bits
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qcore import RECIPES, Entry, Product, Recipe
from qtorch import linalg
from qtorch.recipes import lower, report
from qtorch.recipes.functions import PRODUCTS
from qtorch.recipes.modes import product_arguments

KINDS = (None, "attention", "matmul")
WIDE = Recipe([Entry("*", kind, Product(), Product(), Product()) for kind in KINDS])
NARROW = Product("e4m3fn", "e5m2")
ALL = Recipe([Entry("*", kind, NARROW, NARROW, NARROW) for kind in KINDS])
SAID = product_arguments(ALL.entries[0].products)


class Do(nn.Module):
    """A function of inputs and a parameter."""

    def __init__(self, function, *shape):
        super().__init__()
        self.w, self.function = nn.Parameter(torch.randn(shape)), function

    def forward(self, *inputs):
        return self.function(*inputs, self.w)


class Packed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y, h = self.layer(pack_padded_sequence(x, torch.tensor([3, 6, 1]), enforce_sorted=False))
        return pad_packed_sequence(y)[0], h


def einsum(equation, *shape):
    return lambda: Do(lambda *arrays: torch.einsum(equation, *arrays), *shape)


ENDS = torch.tensor([2, 2, 6], dtype=torch.int32)
# A module, and the shapes of its inputs.
MODULES = {
    **{
        f"transposed {dims}d {options}": (
            lambda kind=kind, options=options: kind(4, 6, 2, **options),
            [(2, 4, *(5, 4, 3)[:dims])],
        )
        for dims, kind in enumerate((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), 1)
        for options in (
            {},
            {"stride": 3, "padding": 2, "output_padding": 1},
            {"stride": 2, "padding": 1, "dilation": 2, "groups": 2, "output_padding": 1},
        )
    },
    "transposed without a batch": (lambda: nn.ConvTranspose2d(4, 6, 3, 2), [(4, 5, 3)]),
    "bilinear": (lambda: nn.Bilinear(5, 4, 3), [(2, 6, 5), (2, 6, 4)]),
    "multi_dot": (lambda: Do(lambda *x: torch.linalg.multi_dot(x), 7, 2), [(5, 9), (9, 7)]),
    "multi_dot of vectors": (lambda: Do(lambda a, b, w: torch.linalg.multi_dot([a, w, b]), 9, 7), [(9,), (7,)]),
    "addbmm": (lambda: Do(lambda a, b, w: torch.addbmm(w, a, b, beta=2), 4, 5), [(3, 4, 6), (3, 6, 5)]),
    "vecdot": (lambda: Do(lambda a, w: torch.linalg.vecdot(a, w, dim=0), 4, 5), [(4, 5)]),
    "implicit": (einsum("bij,jk", 4, 5), [(2, 3, 4)]),
    "dots": (einsum("...ij,...jk", 2, 4, 5), [(1, 3, 4)]),
    "three operands": (einsum("bqd,bkd,bkf->bqf", 2, 5, 6), [(2, 3, 4), (2, 5, 4)]),
    "a sum over one operand": (einsum("ij,jkl->k", 3, 4, 5), [(2, 3)]),
    "an outer product": (einsum("ij,kl->ijkl", 4, 5), [(2, 3)]),
    "LSTM": (lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True), [(6, 3, 4)]),
    "LSTM without biases": (lambda: nn.LSTM(4, 5, bias=False, batch_first=True), [(6, 3, 4)]),
    "LSTM with projections": (lambda: nn.LSTM(4, 5, num_layers=2, proj_size=3, bidirectional=True), [(6, 3, 4)]),
    "GRU": (lambda: nn.GRU(4, 5, bidirectional=True), [(6, 3, 4)]),
    "RNN without a batch": (lambda: nn.RNN(4, 5, nonlinearity="relu"), [(6, 4)]),
    "LSTM cell": (lambda: nn.LSTMCell(4, 5), [(3, 4)]),
    "GRU cell": (lambda: nn.GRUCell(4, 5), [(3, 4)]),
    "RNN cell": (lambda: nn.RNNCell(4, 5, bias=False), [(3, 4)]),
    "packed LSTM": (lambda: Packed(nn.LSTM(4, 5, num_layers=2, bidirectional=True)), [(6, 3, 4)]),
    "packed GRU": (lambda: Packed(nn.GRU(4, 5)), [(6, 3, 4)]),
}


def flat(y):
    return [y] if isinstance(y, torch.Tensor) else [x for part in y for x in flat(part)]


def run(model, inputs):
    """The results and all gradients."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    model.zero_grad()
    found = flat(model(*inputs))
    sum(y.square().sum() for y in found).backward()
    return [y.detach() for y in found] + [x.grad for x in inputs] + [p.grad for p in model.parameters()]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", MODULES)
def test_wide_products_are_what_torch_computes(name):
    make, shapes = MODULES[name]
    torch.manual_seed(0)
    model, inputs = make(), [torch.randn(shape) for shape in shapes]
    expected, wide = run(model, inputs), report(model, *inputs)
    low = lower(model, WIDE)
    for x, y in zip(run(low, inputs), expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4 * float(y.abs().max()))
    found = report(low, *inputs)
    assert found.lowered == 1
    assert [row.multiply_adds for row in found] == [row.multiply_adds for row in wide]


def by_hand(layer, x, count):
    """An LSTM's loop as its documentation has it, with the first `count` steps of each sequence."""
    h, c, results = torch.zeros(3, 5), torch.zeros(3, 5), []
    for step in range(count):
        gates = linalg.linear(x[step], layer.weight_ih_l0, layer.bias_ih_l0, **SAID)
        gates = gates + linalg.linear(h, layer.weight_hh_l0, layer.bias_hh_l0, **SAID)
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        results.append(h)
    return torch.stack(results), h[None], c[None]


def test_the_bits_of_recurrent_layers_are_those_of_a_loop():
    torch.manual_seed(0)
    layer, x = nn.LSTM(4, 5), torch.randn(6, 3, 4)
    expected = by_hand(layer, x, 6)
    low = lower(layer, ALL)
    y, state = low(x)
    assert_all_same_bits([y, *state], list(expected))
    low.bfloat16()
    assert low(x.bfloat16())[0].dtype is torch.bfloat16


def test_the_bits_of_layers_in_both_forms():
    """A transposed convolution is one of the input with zeros; a bilinear layer a linear one of all pairs."""
    torch.manual_seed(0)
    layer, x = nn.ConvTranspose1d(2, 3, 3, stride=2), torch.randn(1, 2, 4)
    spread = torch.zeros(1, 2, 11)
    spread[..., 2:9:2] = x
    expected = linalg.conv1d(spread, layer.weight.flip(2).transpose(0, 1), layer.bias, **SAID)
    assert_same_bits(lower(layer, ALL)(x), expected)
    layer, x, y = nn.Bilinear(3, 4, 2), torch.randn(5, 3), torch.randn(5, 4)
    pairs = torch.einsum("bi,bj->bij", x, y).flatten(1)
    expected = linalg.linear(pairs, layer.weight.flatten(1), layer.bias, **SAID)
    assert_same_bits(lower(layer, ALL)(x, y), expected)


class Experts(nn.Module):
    """A weight for each group of rows, as Mixture-of-Experts models of Hugging Face have it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 8, 16))

    def forward(self, x):
        return F.grouped_mm(x, self.w.mT, offs=ENDS)


def test_grouped_products():
    torch.manual_seed(0)
    low, x = lower(Experts(), ALL), torch.randn(6, 16)
    x[0, 0] = torch.inf  # which must not reach other groups as inf * 0
    found = report(low, x)
    assert [(row.kind, row.reason) for row in found] == [("linear", "")]
    expected = torch.cat([linalg.linear(x[:2], low.w[0], **SAID), linalg.linear(x[2:], low.w[2], **SAID)])
    assert_same_bits(low(x), expected)


def test_compiled_programs_show_all_products_to_modes():
    """torch's lists of functions that modes see leave out those whose names begin with an underscore."""
    from torch._dynamo.variables.torch import get_overridable_functions

    torch.manual_seed(0)
    low, x = lower(Experts().bfloat16(), ALL), torch.randn(6, 16).bfloat16()
    torch._dynamo.reset()
    found = torch.compile(low, backend="eager", fullgraph=True)(x)
    assert_same_bits(found, low(x))
    assert not torch.equal(found, Experts.forward(low, x))
    seen, hidden = get_overridable_functions(), []
    for room in (torch, torch.linalg, torch.Tensor, torch.sparse, F):
        for name in dir(room):
            function = getattr(room, name)
            if getattr(function, "__name__", None) in PRODUCTS and not isinstance(function, types.FunctionType):
                hidden += [name] if function not in seen else []
    assert hidden == []


def test_a_weight_first_in_bfloat16_is_the_weight():
    """The cast to float32 makes other tensors of the arguments: they are the weights that they were."""
    torch.manual_seed(0)
    model = lower(Do(lambda x, w: w @ x, 5, 4), ALL)
    model.w.data = model.w.data.bfloat16().float()
    x = torch.randn(4, 3).bfloat16()
    expected = model(x.float()).bfloat16()
    assert_same_bits(model.bfloat16()(x), expected)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))

    def forward(self, x):
        return x * self.weight


class Twice(nn.Module):
    """Two weights, of which one is used twice; and a module without products."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Parameter(torch.randn(32, 32)), nn.Parameter(torch.randn(8, 32)), Norm()

    def forward(self, x):
        return F.linear(F.linear(F.linear(x, self.a), self.a), self.b)


@pytest.mark.parametrize("cast", [torch.float32, torch.bfloat16])
def test_each_weight_of_a_module_has_its_delayed_scales(cast):
    torch.manual_seed(0)
    low = lower(nn.Sequential(Twice(), nn.MultiheadAttention(8, 2), nn.LSTM(8, 4)), RECIPES["fp8_delayed"]).to(cast)
    assert [name for name, _ in low.named_buffers()] == (
        "0.scaling_of_a 0.scaling_of_b 1.scaling_of_in_proj_weight 1.scaling_of_out_proj_weight "
        "2.scaling_of_weight_ih_l0 2.scaling_of_weight_hh_l0"
    ).split()
    x = torch.randn(4, 3, 32, dtype=cast)
    h = low[0](x)
    y = low[2](low[1](h, h, h)[0])[0]
    y.float().sum().backward()
    for name, state in low.named_buffers():
        assert (state[:, 1] > 0).all(), name
    seen = low[0].scaling_of_a[:, 1]  # the largest magnitudes of the first pass, of both uses
    first, second = (t.detach().float().abs().max() for t in (x, F.linear(x, low[0].a)))
    torch.testing.assert_close(seen[0], torch.maximum(first, second), rtol=0.1, atol=0)
    saved = {name: value for name, value in low.state_dict().items() if "scaling" not in name}
    low.load_state_dict(saved)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(32, 32))

    def forward(self, x):
        y = torch.cdist(x, x) + torch.einsum("bij,kk->bi", x, self.w)[..., None]
        return torch.ops.aten.mm.default(y[0], x[0]) + torch.einsum("ij->ij", y[0]).sum()


def test_what_stays_wide_is_named_once():
    low, x = lower(Odd(), ALL), torch.randn(2, 5, 32)
    with pytest.warns(UserWarning, match="stays in high precision") as caught:
        found = report(low, x)
    assert [str(one.message).partition(" in the model")[0] for one in caught] == ["cdist", "einsum", "mm.default"]
    with pytest.warns(UserWarning, match="lowers 0.0% .*; 66.7% are cdist products: qtorch.linalg has no") as caught:
        low(x)
    assert len(caught) == 1
    low(x)  # which warns no more
    assert [(row.kind, row.multiply_adds) for row in found] == [
        ("cdist", 2 * 5 * 5 * 32),
        ("linear", None),
        ("mm.default", 5 * 32 * 5),
    ]
    assert {row.reason for row in found} == {"qtorch.linalg has no such product", "einsum with a diagonal"}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["transposed 2d {}", "three operands", "LSTM cell"])
def test_compiled_programs_have_the_same_bits(name):
    make, shapes = MODULES[name]
    torch.manual_seed(0)
    model, inputs = lower(nn.Sequential(make()), ALL)[0], [torch.randn(shape) for shape in shapes]
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = run(model, inputs)
    found = flat(compiled(*(x.clone() for x in inputs)))
    assert_all_same_bits(found, expected[: len(found)])


def test_rounded_weights_of_programs():
    """The format of weights reaches what a program multiplies by, in recurrent and chained functions as well."""
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    for function, shape in (
        (lambda x, w: torch.linalg.multi_dot([x, w, w.mT]), (4, 5)),
        (lambda x, w: torch.rnn_tanh_cell(x, x @ torch.eye(4), w, w), (4, 4)),
        (lambda x, w: torch.einsum("bi,ij,kj->bk", x, w, w), (4, 5)),
    ):
        model = Do(function, *shape)
        expected = function(x, model.w.to(torch.float8_e4m3fn).float())
        low = lower(model, [Do], weight_number="e4m3fn")
        torch.testing.assert_close(low(x), expected)
