"""Layers with accumulators: torch's parameters and state, the functions' bits, and arguments that are refused."""

import numpy as np
import pytest
import torch
from support import assert_all_same_bits, assert_same_bits

from qcore import Accumulator, Product
from qtorch import linalg, reproducible

HALF = Accumulator("float(6,9)", chunk=8)
PRODUCTS = {
    "operands": ("e4m3fn", "e4m3fn"),
    "accumulator": HALF,
    "grad_input": Product("e5m2", "e4m3fn", HALF),
    "grad_weight": "product(e5m2,e4m3fn)",
}
LAYERS = {
    "Linear": ((6, 4), (3, 6)),
    "Conv1d": ((2, 4, 3), (2, 2, 7)),
    "Conv2d": ((4, 4, 3, 2, 1, 1, 2), (2, 4, 7, 6)),
    "Conv3d": ((2, 2, 2), (1, 2, 3, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_torchs_with_other_products(name):
    arguments, shape = LAYERS[name]
    layer, original = getattr(linalg, name)(*arguments, **PRODUCTS), getattr(torch.nn, name)(*arguments)
    layer.load_state_dict(original.state_dict())
    x = torch.randn(shape, requires_grad=True, generator=torch.Generator().manual_seed(0))
    function = getattr(linalg, name.lower() if name != "Linear" else "linear")
    settings = () if name == "Linear" else (layer.stride, layer.padding, layer.dilation, layer.groups)
    expected = function(x, layer.weight, layer.bias, *settings, **PRODUCTS)
    y = layer(x)
    assert_same_bits(y, expected)
    tensors = (x, layer.weight, layer.bias)
    gradients = [torch.autograd.grad(one, tensors, torch.ones_like(one)) for one in (y, expected)]
    assert_all_same_bits(*gradients)
    assert (y - original(x)).abs().max() < 0.5
    assert "accumulator(float(6,9),chunk=8)" not in repr(original)


def test_attention_is_torchs_with_exact_products():
    torch.manual_seed(0)
    original = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    layer = linalg.MultiheadAttention(8, 2)
    layer.load_state_dict(original.state_dict())
    x, mask = torch.randn(2, 5, 8), torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = original(x, x, x, attn_mask=mask, need_weights=False)[0]
    for options in ({"attn_mask": mask}, {"is_causal": True}):
        torch.testing.assert_close(layer(x, x, x, **options)[0], expected, rtol=1e-5, atol=1e-6)
    low = linalg.MultiheadAttention(8, 2, linear=PRODUCTS, scores={"accumulator": HALF}, output={"accumulator": HALF})
    low.load_state_dict(original.state_dict())
    y = low(x, x, x)[0]
    y.sum().backward()
    assert low.in_proj_weight.grad is not None
    assert not torch.equal(y, layer(x, x, x)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operands": ("e4m3fn",)}, "operands="),
        ({"operands": ("e4m3fn", 3)}, r"operands\[1\]=3"),
        ({"accumulator": "e4m3fn"}, "accumulator='e4m3fn'"),
        ({"accumulator": "accumulator(e4m3fn,chunk=0)"}, "chunk=0"),
        ({"grad_a": Accumulator()}, "grad_a="),
        ({"key": -1}, "key=-1"),
        ({"operands": ("block(8,dim=5)", None)}, "dim=5"),
    ],
)
def test_wrong_arguments(arguments, message):
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with pytest.raises((TypeError, ValueError), match=message):
        linalg.matmul(a, b, **arguments)


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (4, 3)), ((3,), (3, 4)), ((2, 2, 3), (3, 3, 4)), ((2, 3), (2, 3, 4)), ((2, 3), (3,))]
)
def test_wrong_shapes(a, b):
    with pytest.raises(ValueError, match="a has shape"):
        linalg.matmul(torch.ones(a), torch.ones(b))


X = torch.ones(2, 2)
WRONG = [
    (lambda: linalg.matmul(X, X, scaling=3), TypeError, "scaling is a int; allowed is a torch.Tensor of float32"),
    (lambda: linalg.bmm(None, X), TypeError, "a is a NoneType; allowed is a torch.Tensor of float32"),
    (lambda: linalg.scaled_dot_product_attention(3, X, X), TypeError, "query is a int; allowed is a torch.Tensor of"),
    (
        lambda: linalg.scaled_dot_product_attention(X, X, X.double()),
        TypeError,
        r"value has dtype torch.float64; allowed is torch\.float32",
    ),
    (lambda: linalg.scaled_dot_product_attention(X, X, X, scores=3), TypeError, "scores is a int; allowed is a dict"),
    (lambda: linalg.scaled_dot_product_attention(X, X, X, output="e"), TypeError, "output is a str; allowed is a dict"),
    (lambda: linalg.MultiheadAttention(8, 2, linear=3), TypeError, "linear is a int; allowed is a dict"),
    (lambda: linalg.MultiheadAttention(8, 2, scores=[3]), TypeError, "scores is a list; allowed is a dict"),
    (
        lambda: linalg.MultiheadAttention(8, 3),
        ValueError,
        "embed_dim=8 with num_heads=3; allowed are multiples of num_",
    ),
    (lambda: linalg.MultiheadAttention(8.0, 2), TypeError, r"embed_dim=8\.0 is a float; allowed is an int >= 1"),
    (
        lambda: linalg.MultiheadAttention(2, 1)(X, X, X, attn_mask=[[1]]),
        TypeError,
        "attn_mask is a list; allowed are arrays of bool and float32, and None",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_wrong_tensors():
    x = torch.ones(2, 2)
    for wrong in (x.double(), x.half(), np.ones((2, 2), np.float32), [[1.0]]):
        with pytest.raises(TypeError, match="b "):
            linalg.matmul(x, wrong)
    with pytest.raises(ValueError, match="bias has shape"):
        linalg.linear(x, x, torch.ones(3))
    with pytest.raises(ValueError, match="padding='some'; allowed are ints, 'same' and 'valid'"):
        linalg.conv1d(x, x[None], padding="some")
    with pytest.raises(
        TypeError, match=r"dtypes torch.bfloat16 and torch.float32; allowed is one for all, or torch.auto"
    ):
        linalg.matmul(x.bfloat16(), x)


def test_keys_are_drawn():
    """Without a key, one is drawn from torch's generator at each call."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    accumulator = Accumulator("e5m2", chunk=8, rounding="stochastic")

    def call():
        return linalg.matmul(x, x.T, accumulator=accumulator)

    torch.manual_seed(3)
    first, second = call(), call()
    torch.manual_seed(3)
    assert_same_bits(call(), first)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert_same_bits(torch.compile(call, fullgraph=True, backend="aot_eager")(), first)


@pytest.mark.parametrize("function", [linalg.matmul, reproducible.multiply], ids=["matmul", "multiply"])
def test_a_tensor_may_be_given_twice_to_compiled_programs(function):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(2), requires_grad=True)
    torch._dynamo.reset()
    found = [program(x, x) for program in (function, torch.compile(function, fullgraph=True, backend="aot_eager"))]
    assert_same_bits(found[1], found[0])
    gradients = [torch.autograd.grad(y.sum(), x)[0] for y in found]
    assert_same_bits(gradients[1], gradients[0])


def test_vmap_is_a_loop():
    rng = torch.Generator().manual_seed(2)
    a, b = torch.randn(3, 4, 6, generator=rng), torch.randn(6, 5, generator=rng)
    accumulator = Accumulator("float(6,9)", chunk=2, rounding="stochastic")

    def call(a):
        return linalg.matmul(a, b, accumulator=accumulator, operands=("block(8,dim=0)", None), key=5)

    assert_same_bits(torch.func.vmap(call)(a), torch.stack([call(one) for one in a]))
    gradients = torch.func.vmap(torch.func.grad(lambda a: call(a).sum()))(a)
    assert_same_bits(gradients, torch.stack([torch.func.grad(lambda a: call(a).sum())(one) for one in a]))
