"""What the tests of OptimLP share: parameters and gradients of many shapes, steps, and the law in NumPy."""

import torch
from support import to_torch

import qcore
from qcore import FloatingPoint
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer

F, H = FloatingPoint(5, 2), FloatingPoint(6, 9)
KEY = 7
SHAPES = [(4, 3, 3, 3), (4,), (), (5, 4), (1,), (300, 300)]  # the last is rounded by itself


def parameters(shapes=SHAPES, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def give_gradients(params, step):
    generator = torch.Generator().manual_seed(1000 + step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def sgd(params, **options):
    return torch.optim.SGD(params, **{"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3} | options)


def train(optimizer, params, steps):
    for step in steps:
        give_gradients(params, step)
        optimizer.step()


def tensors_of(optimizer, params):
    """All that a step changes."""
    found = [p.detach().clone() for p in params] + [p.grad.clone() for p in params if p.grad is not None]
    for p in params:
        found += [value.clone() for _, value in sorted(optimizer.state.get(p, {}).items()) if torch.is_tensor(value)]
        found += [optimizer.weight_acc[p].clone()] if optimizer.weight_acc else []
    return found


def inner_with_acc(inner):
    inner.weight_acc = {}
    return inner


def trained(steps=2, **options):
    params = parameters()
    optimizer = OptimLP(sgd(params), **{"weight_quant": F, "acc_quant": H} | options)
    train(optimizer, params, range(steps))
    return optimizer, params


def rounded_by_law(x, number, role, j, step_key, mode="stochastic"):
    """The law of keys, in NumPy."""
    key = qcore.fold_in(qcore.fold_in(step_key, role), j) if mode == "stochastic" else None
    return to_torch(qcore.quantize(x.detach().numpy(), number, mode, key=key)).view(x.shape)


def quantizer_for(number, mode):
    return Quantizer(forward_number=number, forward_rounding=mode)
