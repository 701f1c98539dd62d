"""Laws as operators of compiled programs, which Inductor does not look into: at run time C computes them.

Inductor writes an expression again wherever it is read, and a law reads its numbers many times. So a model of laws that
are traced operation by operation compiles for minutes a layer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from qcore.reproducible import elementwise, moves, norms, reductions
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary import ELEMENTARY, PIECEWISE
from qtorch._rounding.cache import literal
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch._rounding.sharded import is_sharded
from qtorch._torch_internals import constant_result
from qtorch.reproducible.fused.plan import Backward, plan_for
from qtorch.reproducible.operations import Names

# By names that another process has too: compiled programs are kept on disk. Each has one result.
_LAWS: dict[str, Differentiable] = ELEMENTARY | PIECEWISE
_LAWS |= {
    name: law
    for file, names in (
        (elementwise, "ADD SUB MUL DIV POW MAXIMUM MINIMUM PRELU COMPARED"),
        (reductions, "SUM MEAN VAR NORM MAX LOGSUMEXP"),
        (norms, "SOFTMAX LOG_SOFTMAX LAYER_NORM"),
        (moves, "SETTLE"),
    )
    for name, law in vars(file).items()
    if name in names.split()
}
_NONE = torch.complex64
_NAMES = {law.name: name for name, law in _LAWS.items()}


def is_operator(law: Differentiable, tensors: tuple[Any, ...]) -> bool:
    """True if a program that is traced holds a law of these tensors as an operator.

    A GPU has no C for it, and an exported program may run where qtorch's operators are not.
    """
    given = [x for x in tensors if x is not None]
    on_cpu = all(x.is_cpu for x in given) and not is_sharded(*given)
    return law.name in _NAMES and on_cpu and not torch.compiler.is_exporting()


def call_of(law: Differentiable, options: tuple[tuple[str, Any], ...]) -> tuple[str, str]:
    """The texts of an operator's call: the name of a law, and its options."""
    return _written(_NAMES[law.name], literal(options))


@constant_result
def _written(name: str, options: tuple[tuple[str, Any], ...]) -> tuple[str, str]:
    return name, json.dumps(dict(options))


def _options(text: str) -> tuple[tuple[str, Any], ...]:
    return tuple([(name, tuple(x) if isinstance(x, list) else x) for name, x in json.loads(text).items()])


def run_law(tensors: list[torch.Tensor | None], name: str, text: str) -> torch.Tensor:
    """`qtorch::reproduce`."""
    law, options = _LAWS[name], _options(text)
    plan = plan_for(law, "result", tensors, options) if law.fusible and are_plain_tensors(tensors) else None
    found = law.run(Names, tensors, dict(options))[0] if plan is None else plan.run(tensors)
    return found.contiguous()


def law_shape(tensors: list[torch.Tensor | None], name: str, text: str) -> torch.Tensor:
    found = _LAWS[name].run(Names, tensors, dict(_options(text)))[0]
    return torch.empty(found.shape, dtype=found.dtype, device=found.device)


def run_recorded(tensors: list[torch.Tensor | None], name: str, text: str) -> list[torch.Tensor]:
    """`qtorch::reproduce_recorded`: the result, and what the law saves for its gradients."""
    law, options = _LAWS[name], _options(text)
    plan = plan_for(law, "forward", tensors, options) if law.fusible and are_plain_tensors(tensors) else None
    result, saved = law.run(Names, tensors, dict(options)) if plan is None else plan.run(tensors)
    return _apart(tensors, (result, *_written_down(saved)))


def recorded_shapes(tensors: list[torch.Tensor | None], name: str, text: str) -> list[torch.Tensor]:
    result, saved = _LAWS[name].run(Names, tensors, dict(_options(text)))
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (result, *_written_down(saved))]


def run_law_gradients(
    saved: list[torch.Tensor], gradient: torch.Tensor, name: str, text: str, wanted: list[bool]
) -> list[torch.Tensor]:
    """`qtorch::reproduce_gradients`: those of the arrays that are wanted."""
    law, options = _LAWS[name], _options(text)
    kept, plan = _read(saved), None
    given = *kept, gradient
    if law.fusible and are_plain_tensors(given):
        plan = plan_for(law, Backward(len(kept), tuple(wanted)), given, options)
    found = law.gradients(Names, kept, gradient, dict(options)) if plan is None else plan.run(given)
    return _apart(given, [x for x, one in zip(found, wanted, strict=True) if one])


def gradients_shape(
    saved: list[torch.Tensor], gradient: torch.Tensor, name: str, text: str, wanted: list[bool]
) -> list[torch.Tensor]:
    found = _LAWS[name].gradients(Names, _read(saved), gradient, dict(_options(text)))
    results = [x for x, one in zip(found, wanted, strict=True) if one]
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in results]


def _written_down(saved: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Saved arrays as an operator's results, which are tensors: None is a complex one, which no law saves."""
    return [torch.empty(0, dtype=_NONE) if x is None else x for x in saved]


def _read(saved: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    return tuple([None if x.dtype == _NONE else x for x in saved])


def _apart(given: Any, found: Any) -> list[torch.Tensor]:
    """The found tensors, each in memory of its own, as operators' results are."""
    taken = {x.untyped_storage().data_ptr() for x in given if x is not None}
    results = []
    for x in found:
        made = x.contiguous()
        made = made.clone() if made.untyped_storage().data_ptr() in taken else made
        taken.add(made.untyped_storage().data_ptr())
        results.append(made)
    return results


def batch_law(info: Any, in_dims: tuple[Any, ...], tensors: list[Any], *call: str) -> tuple[torch.Tensor, int]:
    """Under vmap each example is a call of its own."""
    return torch.stack([torch.ops.qtorch.reproduce(each, *call) for each in _examples(info, in_dims[0], tensors)]), 0


def batch_recorded(
    info: Any, in_dims: tuple[Any, ...], tensors: list[Any], *call: str
) -> tuple[list[torch.Tensor], list[int]]:
    return _stacked([torch.ops.qtorch.reproduce_recorded(each, *call) for each in _examples(info, in_dims[0], tensors)])


def batch_law_gradients(
    info: Any, in_dims: tuple[Any, ...], saved: list[Any], gradient: torch.Tensor, *call: Any
) -> tuple[list[torch.Tensor], list[int]]:
    examples = _examples(info, (*in_dims[0], in_dims[1]), (*saved, gradient))
    return _stacked([torch.ops.qtorch.reproduce_gradients(each[:-1], each[-1], *call) for each in examples])


def _examples(info: Any, dims: Sequence[int | None], tensors: Sequence[Any]) -> list[list[Any]]:
    pairs = zip(tensors, dims, strict=True)
    each = [[x] * info.batch_size if dim is None else x.unbind(dim) for x, dim in pairs]
    return [list(example) for example in zip(*each, strict=True)]


def _stacked(found: list[list[torch.Tensor]]) -> tuple[list[torch.Tensor], list[int]]:
    return [torch.stack(one) for one in zip(*found, strict=True)], [0] * len(found[0])
