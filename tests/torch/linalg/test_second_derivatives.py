"""Derivatives of derivatives of torch's products: float64's with wide formats, products by hand with narrow ones."""

import pytest
import torch
import torch.nn.functional as F
from covering import usually
from support import assert_same_bits
from torch.func import hessian, jacfwd, jacrev

from qcore import Accumulator, Product
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry
from qtorch import linalg, reproducible
from qtorch.quant import Quantizer

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR)


CASES = {
    "matmul": (linalg.matmul, torch.matmul, [(3, 5), (5, 2)]),
    "batches": (linalg.bmm, torch.bmm, [(4, 3, 5), (4, 5, 2)]),
    "batches and a matrix": (linalg.matmul, torch.matmul, [(4, 3, 5), (5, 2)]),
    "linear": (linalg.linear, F.linear, [(3, 5), (2, 5), (2,)]),
    "conv1d": (lambda *x: linalg.conv1d(*x, 2, 1), lambda *x: F.conv1d(*x, 2, 1), [(2, 4, 9), (6, 4, 3), (6,)]),
    "groups": (
        lambda *x: linalg.conv2d(*x, 2, 1, 1, 2),
        lambda *x: F.conv2d(*x, 2, 1, 1, 2),
        [(2, 4, 6, 5), (6, 2, 3, 3), (6,)],
    ),
    "conv3d": (linalg.conv3d, F.conv3d, [(1, 2, 3, 4, 3), (2, 2, 2, 2, 2), (2,)]),
    "attention": (
        lambda *x: linalg.scaled_dot_product_attention(*x, is_causal=True),
        lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
        [(2, 4, 8), (2, 4, 8), (2, 4, 3)],
    ),
}


def three_orders(f, tensors):
    """The gradients of sum(sin(f)), of the sum of their squares, and of the sum of these ones' squares."""
    tensors = [x.clone().requires_grad_() for x in tensors]
    found, value = [], torch.sin(f(*tensors)).sum()
    for _ in range(3):
        gradients = torch.autograd.grad(value, tensors, create_graph=True)
        found += gradients
        value = sum((one**2).sum() for one in gradients)
    return found


def assert_close(found, expected):
    for one, wide in zip(found, expected, strict=True):
        assert (one - wide).abs().max() <= 3e-6 * wide.abs().max()


@pytest.mark.parametrize("case", CASES)
def test_wide_formats_have_the_derivatives_of_float64(case):
    f, wide, shapes = CASES[case]
    tensors = [random(*shape) for shape in shapes]
    assert_close(three_orders(f, tensors), three_orders(wide, [x.double() for x in tensors]))


def test_finite_differences():
    """Of the gradient's norm, whose terms only second derivatives of products give."""
    x, w, step = random(4, 6), random(3, 6), random(3, 6) * 2.0**-10

    def penalty(w):
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(linalg.linear(leaf, w).tanh().sum(), leaf, create_graph=True)
        return gradient.double().square().sum()

    slope = torch.autograd.grad(penalty(leaf := w.clone().requires_grad_()), leaf)[0]
    difference = (penalty(w + step) - penalty(w - step)).item() / 2
    assert abs((slope * step).sum().item() - difference) < 1e-3 * abs(difference)


SUMS = Accumulator("float(6,9)", chunk=4)
LOW = {
    "operands": ("e4m3fn", "e4m3fn"),
    "accumulator": SUMS,
    "grad_a": Product("e5m2", "e4m3fn", SUMS),
    "grad_b": Product("e5m2", "e3m2fn", SUMS),
}


@pytest.mark.parametrize("transform", [lambda f: f, torch.func.vmap], ids=["alone", "vmap"])
def test_second_products_have_formats_and_accumulators_of_their_role(transform):
    """Derivatives of gradients are the products that qcore computes of the tensors that take each other's places."""
    a, b, g, of_a, of_b = (random(*shape) for shape in ((3, 16), (16, 5), (3, 5), (3, 16), (16, 5)))
    products = {FORWARD: Product(*LOW["operands"], SUMS), GRAD_A: LOW["grad_a"], GRAD_B: LOW["grad_b"]}

    def by_hand(which, first, second, shape):
        other = b.shape if which == FORWARD else shape
        found = multiply_arrays(
            MatrixGeometry(), which, products[which], first.numpy(), second.numpy(), tuple(other), None
        )
        return torch.from_numpy(found.reshape(shape))

    def second(a, b, g, of_a, of_b):
        def gradients(a, b, g):
            return torch.func.vjp(lambda a, b: linalg.matmul(a, b, **LOW), a, b)[1](g)

        return torch.func.vjp(gradients, a, b, g)[1]((of_a, of_b))

    found = [x[0] for x in torch.func.vmap(second)(*(x[None] for x in (a, b, g, of_a, of_b)))]
    if transform is not torch.func.vmap:
        leaves = [x.clone().requires_grad_() for x in (a, b, g)]
        first = torch.autograd.grad(linalg.matmul(*leaves[:2], **LOW), leaves[:2], leaves[2], create_graph=True)
        for one, expected in zip(first, (by_hand(GRAD_A, g, b, a.shape), by_hand(GRAD_B, g, a, b.shape)), strict=True):
            assert_same_bits(one.detach(), expected)
        found = torch.autograd.grad(first, leaves, (of_a, of_b))
    assert_same_bits(found[0], by_hand(GRAD_A, g, of_b, a.shape))
    assert_same_bits(found[1], by_hand(GRAD_B, g, of_a, b.shape))
    assert_same_bits(found[2], by_hand(FORWARD, of_a, b, g.shape) + by_hand(FORWARD, a, of_b, g.shape))
    assert not torch.equal(found[0], g @ of_b.T)


def test_stochastic_products_have_the_words_of_their_role():
    a, b, ones, v = random(3, 16).requires_grad_(), random(16, 5), torch.ones(3, 5).requires_grad_(), random(3, 16)
    options = {"operands": (None, "operand(e4m3fn,rounding=stochastic)"), "key": 7}
    (gradient,) = torch.autograd.grad(linalg.matmul(a, b, **options), a, ones, create_graph=True)
    assert_same_bits(torch.autograd.grad(gradient, ones, v)[0], linalg.matmul(v, b, **options))


def attention(x):
    return (linalg.scaled_dot_product_attention(x, x, x) ** 2).sum()


def layer(x):
    return (linalg.linear(x, 2 * x, x.sum(1)) ** 2).sum()


WIDE = {
    attention: lambda x: (F.scaled_dot_product_attention(x, x, x) ** 2).sum(),
    layer: lambda x: (F.linear(x, 2 * x, x.sum(1)) ** 2).sum(),
}


@pytest.mark.parametrize("f", WIDE, ids=lambda f: f.__name__)
def test_transforms_of_torch_func(f):
    x, wide = random(3, 4), WIDE[f]
    expected = hessian(wide)(x.double())
    for second in (hessian, lambda g: jacrev(jacrev(g)), lambda g: jacrev(jacfwd(g))):
        assert_close([second(f)(x)], [expected])
    assert_close([torch.func.jvp(f, (x,), (x + 1,))[1]], [torch.func.jvp(wide, (x.double(),), (x.double() + 1,))[1]])
    with pytest.raises(NotImplementedError, match="jacfwd of jacrev"):  # where torch gives zeros
        jacfwd(jacfwd(f))(x)


def test_delayed_scales_have_first_derivatives():
    kept = "operand(binary(4,3,specials=fn,overflow=saturate),scale=scale(history=2))"
    x, state = random(3, 4).requires_grad_(), linalg.first_scaling(2)
    options = {"operands": (kept, kept), "grad_b": f"product(None,{kept})", "scaling": state}
    (gradient,) = torch.autograd.grad(linalg.matmul(x, random(4, 2), **options).tanh().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="delayed scales have no second derivatives"):
        gradient.sum().backward()
    with pytest.raises(NotImplementedError, match="delayed scales have no forward-mode derivatives"):
        torch.func.jvp(lambda x: linalg.matmul(x, x.mT, **options), (x.detach(),), (x.detach(),))


def test_compiled_programs_refuse_second_derivatives():
    """As torch's own products do."""
    torch._dynamo.reset()
    x = random(3, 4).requires_grad_()
    program = torch.compile(lambda x: linalg.matmul(x, x.mT).sum(), backend="aot_eager")
    try:
        with pytest.raises(RuntimeError, match=r"donated buffers|double backward"):
            torch.autograd.grad(program(x), x, create_graph=True)[0].sum().backward()
    finally:
        torch._dynamo.reset()


ONCE = {
    "product": lambda x: linalg.linear(x, torch.ones(3, 4)),
    "bias": lambda x: linalg.linear(torch.ones(2, 4), torch.ones(4, 4), x[0]),
    "attention": lambda x: linalg.scaled_dot_product_attention(x[None], x[None], x[None]),
    "quantizer": Quantizer("e4m3fn", "e5m2"),
    "function": reproducible.tanh,
}


@pytest.mark.parametrize("name", usually(("product", "function"), ONCE))
def test_compiled_programs_have_no_second_derivatives(name):
    """With the backend "eager" Dynamo's autograd functions would forget that gradients depend on anything."""
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
    program = torch.compile(lambda x: ONCE[name](x).pow(3).sum(), backend="eager", fullgraph=True)
    torch.autograd.grad(program(x), x)
    with pytest.raises(NotImplementedError, match="no second derivatives: with backend='eager'"):
        torch.autograd.grad(program(x), x, create_graph=True)
