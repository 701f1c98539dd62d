"""A product and the bias that is added to it, as one law."""

from __future__ import annotations

from typing import Any

from qcore.linalg.convolution import geometry_of
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementwise import ADD
from qcore.reproducible.moves import SETTLE
from qtorch.linalg.native import ProductSpec


class _Composed(Differentiable):
    """A law that is made of products, which take numbers as they are, and of laws that settle theirs."""

    def run(self, xp: Any, arrays: Any, options: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        return self.forward(xp, *arrays, **options)

    def gradients(self, xp: Any, saved: Any, gradient: Any, options: dict[str, Any]) -> tuple[Any, ...]:
        return self.backward(xp, saved, gradient, **options)


def _forward(
    xp: Any, a: Any, b: Any, bias: Any, geometry: str, products: tuple[str, ...]
) -> tuple[Any, tuple[Any, ...]]:
    shape = geometry_of(geometry).result(tuple(a.shape), tuple(b.shape))
    y = xp.multiplied(a, b, ProductSpec(tuple(b.shape), shape, geometry, FORWARD, products[0]))
    found, of_sum = SETTLE.run(xp, (y,), {}) if bias is None else ADD.run(xp, (y, bias), {})
    return found, (a, b, *of_sum)


def _backward(
    xp: Any, saved: tuple[Any, ...], gradient: Any, geometry: str, products: tuple[str, ...]
) -> tuple[Any, ...]:
    a, b, *of_sum = saved
    of_y, *of_bias = (ADD if of_sum else SETTLE).gradients(xp, tuple(of_sum), gradient, {})
    shapes = tuple(a.shape), tuple(b.shape)
    of_a = xp.multiplied(of_y, b, ProductSpec(shapes[0], shapes[0], geometry, GRAD_A, products[1]))
    of_b = xp.multiplied(of_y, a, ProductSpec(shapes[1], shapes[1], geometry, GRAD_B, products[2]))
    return of_a, of_b, *(of_bias or (None,))


# Of a, b, and a bias or None; the options are the geometry and the products that `qtorch.linalg.call.prepare` returns.
PRODUCT = _Composed(_forward, _backward)
