"""Laws in recorded kernels: the bits of the laws operation by operation, for all layouts of tensors."""

import numpy as np
import pytest
import torch
from numerics_support import CASES, by_numpy, by_torch, numbers
from support import assert_all_same_bits, assert_same_bits

from qcore import numerics
from qtorch import reproducible
from qtorch.reproducible import call
from qtorch.reproducible.fused import loops, plan

RNG = np.random.default_rng(27)
LAWS = ("gelu_tanh", "divide of special numbers", "var", "softmax", "cross_entropy", "batch_norm", "layer_norm")


@pytest.fixture
def by_operations(monkeypatch):
    """No kernels."""
    monkeypatch.setattr(call, "plan_for", lambda *arguments: None)


@pytest.mark.parametrize("name", LAWS)
def test_laws_without_kernels(name, by_operations):
    function, arrays = next(case[1:] for case in CASES if case[0] == name)
    assert_all_same_bits(by_torch(function, arrays), by_numpy(function, arrays))


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(loops, "_function", lambda text: None)
    plan._plan.cache_clear()
    function, arrays = next(case[1:] for case in CASES if case[0] == "softmax")
    try:
        assert_all_same_bits(by_torch(function, arrays), by_numpy(function, arrays))
    finally:
        plan._plan.cache_clear()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::2, 1:],
        lambda x: x[:, :1].expand(-1, 9),
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: x.reshape(2, 3, 4, 3).to(memory_format=torch.channels_last),
    ],
    ids=["transposed", "strided", "expanded", "one number", "empty", "channels last"],
)
def test_layouts(view):
    x = view(torch.from_numpy(numbers(RNG, 8, 9)))
    y = torch.from_numpy(np.array(numbers(RNG, *x.shape[-1:])))
    functions = (lambda x: reproducible.multiply(x, y)), reproducible.gelu, reproducible.sum
    arrays = (lambda a: numerics.multiply(a, y.numpy())), numerics.gelu, numerics.sum
    assert_all_same_bits([f(x) for f in functions], [f(x.numpy()) for f in arrays])


def test_more_dimensions_than_kernels_have():
    a, b = (torch.from_numpy(numbers(RNG, *shape)) for shape in ((2, 1, 3, 1, 2), (1, 2, 1, 2, 1)))
    assert_same_bits(reproducible.add(a, b), reproducible.add(a.expand(2, 2, 3, 2, 2), b.expand(2, 2, 3, 2, 2)))


def test_other_sizes_and_options_take_the_same_kernels():
    def run(size, eps):
        x = torch.ones(3, size, requires_grad=True)
        reproducible.layer_norm(x, torch.ones(size), None, eps=eps).sum().backward()

    run(4, 1e-5)
    before = loops._function.cache_info().misses
    run(5, 1e-3)
    assert loops._function.cache_info().misses == before


def test_gradients_do_not_share_memory():
    a, b = (torch.ones(4, requires_grad=True) for _ in range(2))
    reproducible.add(a, b).sum().backward()
    a.grad += 1
    assert b.grad.tolist() == [1.0] * 4


def test_threads_make_no_difference():
    x, gradient = (torch.from_numpy(numbers(RNG, 250, 400)) for _ in range(2))

    def run(threads):
        torch.set_num_threads(threads)
        given = x.clone().requires_grad_()
        y = reproducible.softmax(reproducible.gelu(given, "tanh"))
        return [y, *torch.autograd.grad(y, given, gradient)]

    before = torch.get_num_threads()
    try:
        assert_all_same_bits(run(1), run(2))
    finally:
        torch.set_num_threads(before)
