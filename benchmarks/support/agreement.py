"""How long OptimLP and qjax.optim.low_precision go together: the same weights, gradients and keys, step by step.

Both round gradients, accumulators, weights and momenta with the same bits, given the same numbers. Between the
roundings torch's and optax's own optimizers compute in float32, in different orders and with multiply-adds of their
own, and from the first number that they disagree on, the two runs are different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import optax
import torch

import qjax
import qtorch
from qcore import FloatingPoint
from qjax.optim import accumulators, apply_updates, low_precision
from qtorch.optim import OptimLP

KEY = 7
SHAPES = ((64, 32), (64,), (16, 16, 3, 3), (10, 64), (10,))
OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], optax.GradientTransformation]] = {
    "SGD with momentum": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), optax.sgd(0.01, momentum=0.9)),
    "Adam": (lambda p: torch.optim.Adam(p, lr=1e-3), optax.adam(1e-3)),
}

Step = dict[str, list[np.ndarray]]  # the tensors of each quantity after a step


@dataclass(frozen=True)
class Agreement:
    """Where two runs of an optimizer part.

    Attributes:
        optimizer: its name.
        steps, elements: how many steps were taken, and how many elements were compared after each.
        first: the first step, counted from 1, after which something differs; None if nothing ever does.
        quantities: what differs then, and in how many elements.
        last: how many elements differ after the last step.
    """

    optimizer: str
    steps: int
    elements: int
    first: int | None
    quantities: dict[str, int]
    last: int

    def record(self) -> dict[str, Any]:
        return asdict(self)


def compare(optimizer: str, steps: int) -> Agreement:
    """Steps both and compares bits after each step."""
    first, found, differing = None, {}, {}
    elements = 0
    for number, (ours, theirs) in enumerate(zip(by_torch(optimizer, steps), by_jax(optimizer, steps), strict=True), 1):
        differing = {name: _differing(arrays, theirs[name]) for name, arrays in ours.items()}
        elements = sum(array.size for arrays in ours.values() for array in arrays)
        if first is None and any(differing.values()):
            first, found = number, {name: count for name, count in differing.items() if count}
    return Agreement(optimizer, steps, elements, first, found, sum(differing.values()))


def _differing(xs: list[np.ndarray], ys: list[np.ndarray]) -> int:
    return sum(int((x.view(np.uint32) != y.view(np.uint32)).sum()) for x, y in zip(xs, ys, strict=True))


def weights() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32) / 8 for shape in SHAPES]


def gradients(steps: int) -> Iterator[list[np.ndarray]]:
    random = np.random.default_rng(1)
    for _ in range(steps):
        yield [random.standard_normal(shape, np.float32) / 8 for shape in SHAPES]


def _quantizers(quantizer: Callable[..., Any]) -> dict[str, Any]:
    """CIFAR10's of the examples, but all of them stochastic."""
    low, high = (quantizer(FloatingPoint(*bits)) for bits in ((5, 2), (6, 9)))
    return {"weight_quant": low, "grad_quant": low, "momentum_quant": high, "acc_quant": high}


def by_torch(name: str, steps: int) -> Iterator[Step]:
    params = [torch.nn.Parameter(torch.from_numpy(weight)) for weight in weights()]
    optimizer = OptimLP(OPTIMIZERS[name][0](params), **_quantizers(qtorch.quantizer), key=KEY)
    for grads in gradients(steps):
        for p, grad in zip(params, grads, strict=True):
            p.grad = torch.from_numpy(grad)
        optimizer.step()
        moments = [
            value
            for p in params
            for name, value in sorted(optimizer.state[p].items())
            if value is not None and value.dim() and not name.startswith("low_precision_")
        ]
        found = {
            "gradient": [p.grad for p in params],
            "accumulator": [optimizer.weight_acc[p] for p in params],
            "weight": [p.detach() for p in params],
            "momentum": moments,
        }
        yield {quantity: [x.numpy().copy() for x in tensors] for quantity, tensors in found.items()}  # type: ignore


def by_jax(name: str, steps: int) -> Iterator[Step]:
    seen: list[Any] = []

    def watch(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        jax.debug.callback(seen.append, updates)
        return inner.update(updates, state, params)

    inner = OPTIMIZERS[name][1]
    tx = low_precision(optax.GradientTransformation(inner.init, watch), **_quantizers(qjax.quantizer), key=KEY)

    @jax.jit
    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates, state), state

    params = [jax.numpy.asarray(weight) for weight in weights()]
    state = tx.init(params)
    for grads in gradients(steps):
        params, state = step(params, state, grads)
        jax.effects_barrier()
        moments: Any = state.inner[0]
        parts = [moments.trace] if hasattr(moments, "trace") else [moments.mu, moments.nu]
        found = {
            "gradient": seen.pop(),
            "accumulator": accumulators(state),
            "weight": params,
            "momentum": [tensor for tensors in zip(*parts, strict=True) for tensor in tensors],
        }
        yield {quantity: [np.asarray(x) for x in arrays] for quantity, arrays in found.items()}
