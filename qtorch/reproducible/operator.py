"""Laws as operators of compiled programs, which Inductor does not look into: at run time C computes them.

Inductor writes an expression again wherever it is read, and a law reads its numbers many times. So a model of laws that
are traced operation by operation compiles for minutes a layer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from qcore.reproducible import elementwise, moves, norms, reductions
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary import ELEMENTARY, PIECEWISE
from qtorch._rounding.cache import literal
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch._rounding.sharded import is_sharded
from qtorch._torch_internals import constant_result
from qtorch.linalg.operator import OBSERVER, observed_by
from qtorch.reproducible.fused.plan import Backward, FusedProgram, plan_for
from qtorch.reproducible.operations import Names
from qtorch.reproducible.product import PRODUCT

# By names that another process has too: compiled programs are kept on disk. Each has one result.
_LAWS: dict[str, Differentiable] = ELEMENTARY | PIECEWISE
_LAWS |= {
    name: law
    for file, names in (
        (elementwise, "ADD SUB MUL DIV POW MAXIMUM MINIMUM PRELU COMPARED"),
        (reductions, "SUM MEAN VAR NORM MAX LOGSUMEXP"),
        (norms, "SOFTMAX LOG_SOFTMAX CROSS_ENTROPY MSE LAYER_NORM"),
        (moves, "SETTLE"),
    )
    for name, law in vars(file).items()
    if name in names.split()
}
_LAWS["PRODUCT"] = PRODUCT
_NAMES = {law.name: name for name, law in _LAWS.items()}


def is_operator(law: Differentiable, tensors: tuple[Any, ...]) -> bool:
    """True if a program that is traced holds a law of these tensors as an operator.

    A GPU has no C for it, and an exported program may run where qtorch's operators are not.
    """
    given = [x for x in tensors if x is not None]
    on_cpu = all(x.is_cpu for x in given) and not is_sharded(*given)
    return on_cpu and _has_name(law.name) and not torch.compiler.is_exporting()


def call_of(law: Differentiable, options: tuple[tuple[str, Any], ...]) -> tuple[str, str]:
    """The texts of an operator's call: the name of a law, and its options."""
    return _written(law.name, literal(options))


# Constants of a program: what it looks up in a table, it compares with the table again at each call.
@constant_result
def _has_name(law: str) -> bool:
    return law in _NAMES


@constant_result
def _written(law: str, options: tuple[tuple[str, Any], ...]) -> tuple[str, str]:
    return _NAMES[law], json.dumps(dict(options))


@cache
def _options(text: str) -> tuple[tuple[str, Any], ...]:
    return tuple([(name, tuple(x) if isinstance(x, list) else x) for name, x in json.loads(text).items()])


def _plan(
    law: Differentiable, results: str | Backward, tensors: Sequence[torch.Tensor | None], options: tuple[Any, ...]
) -> FusedProgram | None:
    plain = law.fusible and are_plain_tensors(tensors) and OBSERVER.get() is None  # a plan tells an observer nothing
    return plan_for(law, results, tensors, options) if plain else None


def run_law(tensors: list[torch.Tensor | None], name: str, text: str) -> torch.Tensor:
    """`qtorch::reproduce`."""
    law, options = _LAWS[name], _options(text)
    plan = _plan(law, "result", tensors, options)
    found = law.run(Names, tensors, dict(options))[0] if plan is None else plan.run(tensors)
    return found.contiguous()


def law_shape(tensors: list[torch.Tensor | None], name: str, text: str) -> torch.Tensor:
    found = _LAWS[name].run(Names, tensors, dict(_options(text)))[0]
    return torch.empty(found.shape, dtype=found.dtype, device=found.device)


def run_law_gradients(
    tensors: list[torch.Tensor | None], gradient: torch.Tensor, name: str, text: str, wanted: list[bool]
) -> list[torch.Tensor]:
    """`qtorch::reproduce_gradients`, of the tensors that are wanted. What the law saves is computed again."""
    law, options, given = _LAWS[name], _options(text), (*tensors, gradient)
    plan = _plan(law, Backward(None, tuple(wanted)), given, options)
    if plan is None:
        with observed_by(None):  # which has seen the products of the forward pass
            saved = law.run(Names, tensors, dict(options))[1]
        found = law.gradients(Names, saved, gradient, dict(options))
    else:
        found = plan.run(given)
    return _apart([x.contiguous() for x, one in zip(found, wanted, strict=True) if one])


def _apart(results: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results in memory of their own: a law may find one gradient for two arrays, and programs write over them."""
    return [y.clone() if any(y is x for x in results[:i]) else y for i, y in enumerate(results)]


def gradients_shape(
    tensors: list[torch.Tensor | None], gradient: torch.Tensor, name: str, text: str, wanted: list[bool]
) -> list[torch.Tensor]:
    pairs = zip(tensors, wanted, strict=True)
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x, one in pairs if one and x is not None]


def batch_law(info: Any, in_dims: tuple[Any, ...], tensors: list[Any], *call: str) -> tuple[torch.Tensor, int]:
    """Under vmap each example is a call of its own."""
    examples = zip(*(_examples(info, *pair) for pair in zip(tensors, in_dims[0], strict=True)), strict=True)
    return torch.stack([torch.ops.qtorch.reproduce(each, *call) for each in examples]), 0


def batch_law_gradients(
    info: Any, in_dims: tuple[Any, ...], tensors: list[Any], gradient: torch.Tensor, *call: Any
) -> tuple[list[torch.Tensor], list[int]]:
    pairs = zip((gradient, *tensors), (in_dims[1], *in_dims[0]), strict=True)
    examples = zip(*(_examples(info, *pair) for pair in pairs), strict=True)
    found = [torch.ops.qtorch.reproduce_gradients(each, of_result, *call) for of_result, *each in examples]
    return [torch.stack(one) for one in zip(*found, strict=True)], [0] * len(found[0])


def _examples(info: Any, x: Any, dim: int | None) -> Any:
    return [x] * info.batch_size if dim is None else x.unbind(dim)
