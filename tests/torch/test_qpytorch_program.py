"""Every public name of QPyTorch's documentation, with every documented argument, positional and by keyword.

Where its tutorial prints numbers, the printed inputs give the printed results.
"""

import inspect

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

import qtorch.optim
import qtorch.quant
import qtorch.recipes
from qtorch import BlockFloatingPoint, FixedPoint, FloatingPoint, Number
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer, block_quantize, fixed_point_quantize, float_quantize, quantizer
from qtorch.recipes import lower, sequential_lower

DOCUMENTED = {  # names and defaults, in order; `...` where there is none
    qtorch.FixedPoint: {"wl": ..., "fl": ..., "clamp": True, "symmetric": False},
    qtorch.BlockFloatingPoint: {"wl": ..., "dim": -1},
    qtorch.quant.fixed_point_quantize: {
        "x": ..., "wl": ..., "fl": ..., "clamp": True, "symmetric": False, "rounding": "stochastic",
    },
    qtorch.quant.block_quantize: {"x": ..., "wl": ..., "dim": -1, "rounding": "stochastic"},
    qtorch.quant.float_quantize: {"x": ..., "exp": ..., "man": ..., "rounding": "stochastic"},
    qtorch.quant.quantizer: {
        "forward_number": None, "backward_number": None, "forward_rounding": "stochastic",
        "backward_rounding": "stochastic", "clamping_grad_zero": False, "backward_hooks": (),
    },
    qtorch.quant.Quantizer: {
        "forward_number": None, "backward_number": None, "forward_rounding": "stochastic",
        "backward_rounding": "stochastic",
    },
    qtorch.optim.OptimLP: {
        "optim": ..., "weight_quant": None, "grad_scaling": 1.0, "grad_quant": None, "momentum_quant": None,
        "acc_quant": None,
    },
    qtorch.recipes.lower: {
        "model": ..., "layer_types": (), "forward_number": None, "backward_number": None,
        "forward_rounding": "stochastic", "backward_rounding": "stochastic",
    },
    qtorch.recipes.sequential_lower: {
        "model": ..., "layer_types": (), "forward_number": None, "backward_number": None,
        "forward_rounding": "stochastic", "backward_rounding": "stochastic",
    },
}  # fmt: skip


@pytest.mark.parametrize("function", DOCUMENTED, ids=lambda f: f.__name__)
def test_signatures_begin_as_documented(function):
    documented = DOCUMENTED[function]
    parameters = list(inspect.signature(function).parameters.values())[: len(documented)]
    assert [p.name for p in parameters] == list(documented)
    for p in parameters:
        assert p.kind is p.POSITIONAL_OR_KEYWORD
        assert p.default == (p.empty if documented[p.name] is ... else documented[p.name])


# Formats and functions

X = torch.tensor([0.3, -0.3, 0.6, -9.0, 9.0, 0.0])


def test_formats():
    assert FixedPoint(8, 4, True, False) == FixedPoint(wl=8, fl=4, clamp=True, symmetric=False) == FixedPoint(8, 4)
    assert BlockFloatingPoint(8, -1) == BlockFloatingPoint(wl=8, dim=-1) == BlockFloatingPoint(8)
    assert FloatingPoint(5, 2) == FloatingPoint(exp=5, man=2) == FloatingPoint(bit=8)
    assert FloatingPoint(6, 9) == FloatingPoint(bit=16)
    for number, text in (
        (FixedPoint(8, 4), "FixedPoint (wl=8, fl=4)"),
        (FloatingPoint(5, 2), "FloatingPoint (exponent=5, mantissa=2)"),
        (BlockFloatingPoint(8), "BlockFloatingPoint (wl=8, dim=-1)"),
    ):
        assert isinstance(number, Number)
        assert str(number) == text


@pytest.mark.parametrize(
    ("positional", "by_keyword", "expected"),
    [
        (
            lambda: fixed_point_quantize(X, 4, 2, True, True, "nearest"),
            lambda: fixed_point_quantize(x=X, wl=4, fl=2, clamp=True, symmetric=True, rounding="nearest"),
            [0.25, -0.25, 0.5, -1.75, 1.75, 0.0],
        ),
        (
            lambda: fixed_point_quantize(X, 4, 2, False, False, "nearest"),
            lambda: fixed_point_quantize(x=X, wl=4, fl=2, clamp=False, symmetric=False, rounding="nearest"),
            [0.25, -0.25, 0.5, -9.0, 9.0, 0.0],
        ),
        (
            lambda: block_quantize(X, 6, -1, "nearest"),
            lambda: block_quantize(x=X, wl=6, dim=-1, rounding="nearest"),
            [0.5, -0.5, 0.5, -9.0, 9.0, 0.0],
        ),
        (
            lambda: block_quantize(X, 4, 0, "nearest"),
            lambda: block_quantize(x=X, wl=4, dim=0, rounding="nearest"),
            [0.3125, -0.3125, 0.625, -8.0, 8.0, 0.0],
        ),
        (
            lambda: float_quantize(X, 5, 2, "nearest"),
            lambda: float_quantize(x=X, exp=5, man=2, rounding="nearest"),
            [0.3125, -0.3125, 0.625, -8.0, 8.0, 0.0],
        ),
    ],
)
def test_functions_to_nearest(positional, by_keyword, expected):
    assert positional().tolist() == by_keyword().tolist() == expected


@pytest.mark.parametrize(
    ("default", "named", "neighbours"),
    [
        (
            lambda: fixed_point_quantize(X, 4, 2),
            lambda: fixed_point_quantize(X, 4, 2, rounding="stochastic"),
            {0.25, 0.5},
        ),
        (lambda: block_quantize(X, 6), lambda: block_quantize(X, 6, rounding="stochastic"), {0.0, 0.5}),
        (lambda: float_quantize(X, 5, 2), lambda: float_quantize(X, 5, 2, "stochastic"), {0.25, 0.3125}),
    ],
)  # fmt: skip
def test_functions_are_stochastic_unless_told(default, named, neighbours):
    torch.manual_seed(0)
    results = [default() for _ in range(60)]
    assert {result[0].item() for result in results} == neighbours
    torch.manual_seed(0)
    for result in results:
        assert torch.equal(named(), result)


# What the tutorial prints


def low(x):
    return float_quantize(x, exp=5, man=2, rounding="nearest")


def high(x):
    return float_quantize(x, exp=6, man=9, rounding="nearest")


def printed(x):
    """Numbers as torch prints them."""
    return [f"{value:.4f}" for value in x.flatten().tolist()]


def texts(*numbers):
    return [f"{number:.4f}" for number in numbers]


def test_printed_quantization():
    x = torch.tensor([0.1241, 0.3602, 0.7104, 0.8344, 0.0211])
    assert printed(float_quantize(x, exp=5, man=2, rounding="nearest")) == texts(0.1250, 0.3750, 0.7500, 0.8750, 0.0195)


def parameter(values, gradient):
    p = nn.Parameter(torch.tensor([values]))
    p.grad = torch.tensor([gradient])
    return p


def test_printed_step():
    p = parameter([-0.1850, 0.1250, -0.1007, -0.0862, 0.3034], [0.1051, 0.2755, 0.0375, 0.1643, 0.1883])
    optimizer = OptimLP(SGD([p], momentum=0.9, lr=0.1), weight_quant=low, grad_quant=low, momentum_quant=high)
    optimizer.step()
    assert printed(p.data) == texts(-0.1875, 0.0938, -0.1094, -0.1094, 0.3125)
    assert printed(p.grad) == texts(0.1094, 0.2500, 0.0391, 0.1562, 0.1875)
    optimizer.zero_grad()
    assert p.grad is None or not p.grad.any()


def test_printed_accumulator():
    """The gradients are not printed; these are of the printed size and lead from the printed weights to the rest."""
    weights, steps = [0.2943, -0.1296, -0.4130, -0.2599, -0.4059], [0.125, 0.0137, 0.125, 0.0039, 0.125]
    p = parameter(weights, steps)
    optimizer = OptimLP(SGD([p], momentum=0, lr=0.1), low, 1.0, low, high, high)
    optimizer.step()
    assert printed(optimizer.weight_acc[p]) == texts(0.2817, -0.1309, -0.4253, -0.2603, -0.4185)
    assert printed(p.data) == texts(0.3125, -0.1250, -0.4375, -0.2500, -0.4375)


# Quantizers


def test_quantizer_with_every_argument():
    number, error = FixedPoint(4, 2), FloatingPoint(5, 2)
    hooks = [lambda grad: grad * 2, lambda grad: grad + 1]
    positional = quantizer(number, error, "nearest", "nearest", True, hooks)
    by_keyword = quantizer(
        forward_number=number,
        backward_number=error,
        forward_rounding="nearest",
        backward_rounding="nearest",
        clamping_grad_zero=True,
        backward_hooks=hooks,
    )
    for q in (positional, by_keyword):
        x = X.clone().requires_grad_()
        y = q(x)
        y.backward(torch.full_like(x, 0.55))
        assert y.tolist() == [0.25, -0.25, 0.5, -2.0, 1.75, 0.0]
        assert x.grad.tolist() == [2.0, 2.0, 2.0, 0.0, 0.0, 2.0]  # 2.1 rounded, and 0 where clamped


def test_quantizer_module():
    number, error = FixedPoint(wl=4, fl=2), FloatingPoint(exp=5, man=2)
    positional = Quantizer(number, error, "nearest", "stochastic")
    by_keyword = Quantizer(
        forward_number=number, backward_number=error, forward_rounding="nearest", backward_rounding="stochastic"
    )
    results = []
    for q in (positional, by_keyword):
        assert isinstance(q, nn.Module)
        torch.manual_seed(0)
        x = X.clone().requires_grad_()
        y = q.forward(x)
        y.backward(torch.full_like(x, 0.3))
        assert y.tolist() == [0.25, -0.25, 0.5, -2.0, 1.75, 0.0]
        assert set(x.grad.tolist()) <= {0.25, 0.3125}
        results.append(x.grad)
    assert torch.equal(*results)
    assert Quantizer()(X).tolist() == X.tolist()


# Optimizers


@pytest.mark.parametrize("make", [lambda ps: SGD(ps, lr=0.1, momentum=0.9), lambda ps: Adam(ps, lr=0.1)])
def test_optimizer_with_every_argument(make):
    results = []
    for by_keyword in (False, True):
        p = parameter([0.3, -0.7, 1.1], [100.0, -300.0, 500.0])
        if by_keyword:
            told = {"weight_quant": low, "grad_quant": low, "momentum_quant": high, "acc_quant": high}
            optimizer = OptimLP(optim=make([p]), grad_scaling=1 / 1000, **told)
        else:
            optimizer = OptimLP(make([p]), low, 1 / 1000, low, high, high)
        optimizer.step()
        assert torch.equal(p.grad, low(torch.tensor([[0.1, -0.3, 0.5]])))
        assert torch.equal(p.data, low(optimizer.weight_acc[p]))
        results.append(torch.cat([p.data, optimizer.weight_acc[p]]))
    assert torch.equal(*results)


# Whole models


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


@pytest.mark.parametrize("transform", [lower, sequential_lower])
def test_lowering_with_every_argument(transform):
    number = FloatingPoint(5, 2)
    groups = ["conv", "linear", "pool", "pad", "activation", "normalization", "dropout", "loss"]
    positional = transform(net(), groups, number, number, "nearest", "nearest")
    by_keyword = transform(
        model=net(),
        layer_types=groups,
        forward_number=number,
        backward_number=number,
        forward_rounding="nearest",
        backward_rounding="nearest",
    )
    x, plain = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)), net()
    expected = low(plain[3](plain[2](low(plain[1](low(plain[0](x)))))))
    for model in (positional, by_keyword):
        assert torch.equal(model(x), expected)
    untouched = net()
    with pytest.warns(UserWarning, match="nothing is lowered"):
        assert (transform(untouched) is untouched) == (transform is lower)


def test_the_posters_program():
    def step():
        nn.functional.cross_entropy(model(torch.randn(3, 1, 4, 4)), torch.tensor([0, 1, 0])).backward()
        optim.step()

    prec = FloatingPoint(bit=8)
    acc_prec = FloatingPoint(bit=16)

    model = net()
    model = lower(model, layer_type=["conv"], forward_number=prec, backward_number=prec)

    optim = SGD(model.parameters(), lr=0.01)
    optim = OptimLP(optim, weight_quant=prec,
                    grad_quant=prec,
                    acc_quant=acc_prec)  # fmt: skip

    step()
    for p in model.parameters():
        assert torch.equal(p.data, low(optim.weight_acc[p]))
        assert torch.equal(p.grad, low(p.grad))
    convolved = model[0](torch.randn(3, 1, 4, 4))
    assert torch.equal(convolved, low(convolved))
