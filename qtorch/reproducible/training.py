"""What models need besides arithmetic, as functions of tensors."""

from __future__ import annotations

from typing import Any

import torch

from qcore.linalg.forms import GRAD_A, GRAD_B
from qcore.reproducible.reductions import SUM
from qtorch import linalg
from qtorch._rounding.keys import key_tensor
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch.linalg.call import Call, differentiable_product, gradient_product, prepare
from qtorch.linalg.matrices import LINEAR, MATMUL
from qtorch.linalg.operator import OBSERVER
from qtorch.reproducible.call import Tensors, differentiable
from qtorch.reproducible.products import PRODUCT


def _recorded(
    arrays: tuple[Any, ...],
    needed: tuple[bool, ...],
    gradient: torch.Tensor,
    shape: tuple[int, ...],
    form: str,
    products: tuple[str, str, str],
) -> tuple[Any, ...]:
    """The gradients of `PRODUCT` by two products and a sum, each a function that autograd knows."""
    a, b, _ = arrays
    call, of_y = Call(form, products, a.shape, b.shape, shape), FUNCTIONS.settle(gradient)
    of_a = gradient_product(of_y, b, GRAD_A, call) if needed[0] else None
    of_b = gradient_product(of_y, a, GRAD_B, call) if needed[1] else None
    rows = tuple(range(gradient.ndim - 1))
    return of_a, of_b, FUNCTIONS.call(SUM, gradient, axes=rows, keepdims=False) if needed[2] else None


_product = differentiable(PRODUCT, recorded=_recorded)
_FORMS = {"matmul": (MATMUL, "grad_a", "grad_b"), "linear": (LINEAR, "grad_input", "grad_weight")}


class TrainingTensors(Tensors):
    """Torch's."""

    linalg = linalg

    def _product(self, name: str, a: Any, b: Any, bias: Any, products: dict[str, Any]) -> Any:
        """As one law of plain tensors of the CPU, unless the product reads random words, or is watched."""
        form, of_a, of_b = _FORMS[name]
        known = {"operands", "accumulator", of_a, of_b, "key", "scaling"}
        plain = not torch.compiler.is_dynamo_compiling() and are_plain_tensors((a, b, bias)) and a.is_cpu
        if not plain or OBSERVER.get() is not None or not products.keys() <= known:
            return super()._product(name, a, b, bias, products)
        operands, accumulator, grad_a, grad_b, key, scaling = map(
            products.get, ("operands", "accumulator", of_a, of_b, "key", "scaling")
        )
        key, scaling, call = prepare(form, a, b, operands, accumulator, grad_a, grad_b, (of_a, of_b), key, scaling)
        if key is not None or scaling is not None:
            return self._plus(differentiable_product(a, b, key, scaling, call), bias, 0)
        if bias is not None:
            self._check_bias(bias, call.result[-1])
        return _product(a, b, bias, shape=call.result, form=call.form, products=call.products)

    def key_words(self, key: Any) -> torch.Tensor:
        return key_tensor(key)


FUNCTIONS = TrainingTensors()
