"""flax's modules as a tree, for the workflow that PyTorch and JAX share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

import jax
import numpy as np
from flax import nnx

from qcore.workflow.tree import Change, Tree
from qjax._models import all_names, children_of, modules_of, name_of, rebuilt
from qjax.nnx.quantization.quantization_mappings import keeps_children
from qjax.nnx.quantized.weights import Weight


class Modules(Tree):
    """flax's modules; see `qcore.workflow.tree`."""

    def class_of(self, module: Any) -> type:
        return type(module)

    def named(self, model: nnx.Module) -> list[tuple[str, Any]]:
        return all_names(model)

    def walk(self, model: nnx.Module) -> Iterator[tuple[str, Any]]:
        modules = modules_of(model)
        leaves = {path for path, module in modules.items() if keeps_children(module)}
        for path, module in modules.items():
            if not any(path[:end] in leaves for end in range(len(path))):
                yield name_of(path, modules), module

    def children(self, module: Any) -> list[tuple[str, Any]]:
        return [] if keeps_children(module) else children_of(module)

    def rebuilt(self, model: nnx.Module, change: Change) -> Any:
        return rebuilt(model, change, keeps_children)

    def parameters(self, module: Any) -> Iterable[int]:
        parts = [one for _, one in nnx.iter_modules(module)] if keeps_children(module) else [module]
        return {id(value) for part in parts for value in vars(part).values() if isinstance(value, nnx.Param)}

    def weights(self, module: Any) -> Iterator[tuple[Any, str, Any]]:
        for _, part in list(nnx.iter_modules(module)):  # a layer may have stubs around it
            for name, weight in list(vars(part).items()):
                if isinstance(weight, get_args(Weight)):
                    yield part, name, weight

    def same(self, weight: nnx.Module, other: nnx.Module) -> bool:
        (kind, mine), (another, others) = nnx.split(weight), nnx.split(other)
        return kind == another and all(map(np.array_equal, jax.tree.leaves(mine), jax.tree.leaves(others)))
