"""What the tests of qtorch.quantization share: torch.ao without its warnings, and what flows through a network."""

import warnings
from contextlib import contextmanager
from functools import cache

import torch
from sklearn.datasets import load_digits


@contextmanager
def torch_ao():
    """torch.ao.quantization warns that it is deprecated, and of much else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.ao.quantization as peer

        yield peer


@contextmanager
def torch_engine(name):
    """One of torch's engines; fbgemm and x86 overflow at 8-bit activations on processors without VNNI."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


@cache
def activations():
    """What flows through a network while it learns digits: inputs, sums, their ReLU, logits and a weight, 300 times."""
    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    weights = [torch.randn(shape, generator=generator) / 8 for shape in ((32, 64), (10, 32))]
    for weight in weights:
        weight.requires_grad_()
    steps = []
    for _ in range(300):
        chosen = torch.randint(len(images), (32,), generator=generator)
        sums = images[chosen] @ weights[0].t()
        logits = sums.relu() @ weights[1].t()
        steps.append([x.detach().clone() for x in (images[chosen], sums, sums.relu(), logits, weights[0])])
        gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels[chosen]), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= gradient / 4
    return [list(kind) for kind in zip(*steps, strict=True)]
