"""Weights that several layers share: one array stays one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, get_args

import jax
import numpy as np
from flax import nnx

from qjax._models import modules_of, name_of, names_of
from qjax.nnx.quantization.quantization_mappings import keeps_children
from qjax.nnx.quantized.weights import Weight

Ties = list[list[str]]  # the names of the layers that share a variable, one list for each variable


def ties_of(model: nnx.Module) -> Ties:
    """The layers of a float model that share variables."""
    users, modules = defaultdict[int, list[str]](list), modules_of(model)
    wholes = {path for path, module in modules.items() if keeps_children(module)}
    for path, module in modules.items():
        outer = next((path[:end] for end in range(len(path)) if path[:end] in wholes), path)
        for value in vars(module).values():
            if isinstance(value, nnx.Param):
                users[id(value)].append(name_of(outer, modules))
    return [names for names in users.values() if len(names) > 1]


def tie(model: nnx.Module, ties: Ties) -> None:
    """Makes equal weights of layers that shared a variable one module again; other settings made other weights."""
    layers = names_of(model)
    for names in ties:
        made: list[nnx.Module] = []
        for layer in (layers[name] for name in names if name in layers):
            for _, part in list(nnx.iter_modules(layer)):  # a layer may have stubs around it
                _share(part, made)


def _share(owner: Any, made: list[nnx.Module]) -> None:
    for name, part in list(vars(owner).items()):
        if not isinstance(part, get_args(Weight)):
            continue
        twin = next((one for one in made if _equal(one, part)), None)
        if twin is not None:
            setattr(owner, name, twin)
        else:
            made.append(part)


def _equal(first: nnx.Module, second: nnx.Module) -> bool:
    """True if weights have the same settings and the same bits."""
    (kind, mine), (other, others) = nnx.split(first), nnx.split(second)
    return kind == other and all(map(np.array_equal, jax.tree.leaves(mine), jax.tree.leaves(others)))
