"""A call of a function as a traced program: its arrays, where they come from, and the state that it changes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

import jax
from jax.tree_util import SequenceKey, keystr, tree_flatten_with_path

from qjax._jaxprs import is_array, split_arrays
from qjax.linalg.states import anchored
from qjax.recipes.evaluate import evaluate
from qjax.recipes.layers import BARE, Origin, Path, part_of
from qjax.recipes.plan import SCOPE, LoweringPlan, Planner

_VALUE = "value"  # of a variable of flax


class TracedCall:
    """A call of a function as a program.

    Objects of flax.nnx among the arguments are rebuilt as graphs, so shared parts stay shared. After `run` they have
    the state that the function gave them. A change of any other argument is a ValueError.
    """

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_object)
        self.objects = [leaf for leaf in leaves if _is_object(leaf)]
        graph, state = _split(self.objects)
        others = [None if _is_object(leaf) else leaf for leaf in leaves]
        self.arrays, rebuild = split_arrays((state, others))
        self.origins, layers = _origins(fn, state, args, kwargs)
        self.captured, more = _captured(fn)
        self.layers = layers | more
        self.results: Any = None
        self.count = 0  # how many arrays the result has; the arrays of changed state come behind them
        self.changes: Callable[[Sequence[Any]], None] = lambda arrays: None

        def flat(*arrays: Any) -> Sequence[Any]:
            state, others = rebuild(arrays)
            objects = _merge(graph, state)
            remaining = iter(objects)
            given = [next(remaining) if _is_object(leaf) else other for leaf, other in zip(leaves, others, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, given)
            computed, self.results = split_arrays(fn(*args, **kwargs))
            _check_unchanged(jax.tree.unflatten(tree, given), (args, kwargs))
            changed, self.changes = self._changed(graph, {id(array) for array in arrays}, objects)
            self.count = len(computed)
            return [*computed, *changed]

        self.program = jax.make_jaxpr(flat)(*self.arrays)

    def _changed(
        self, graph: Any, before: set[int], objects: list[Any]
    ) -> tuple[list[Any], Callable[[Sequence[Any]], None]]:
        """The arrays of changed variables, and the function that writes them into the caller's objects."""
        if not objects:
            return [], lambda arrays: None
        from flax import nnx

        after, state = nnx.split(objects)
        changed = [
            (path, one)
            for path, one in nnx.to_flat_state(state)
            if any(id(leaf) not in before for leaf in jax.tree.leaves(one))
        ]
        arrays, rebuild = split_arrays(nnx.from_flat_state(changed))

        def update(arrays: Sequence[Any]) -> None:
            if changed:
                nnx.update(self.objects, rebuild(arrays))
            if after != graph and nnx.graphdef(self.objects) != after:
                raise ValueError(
                    "fn changes attributes of a flax object that are no variables; allowed are changes of variables, "
                    "as a lowered function runs as under jit"
                )

        return arrays, update

    def plan(self, planner: Planner) -> LoweringPlan:
        """The plan of the program."""
        planner.captured, planner.owners = self.captured, self.layers
        return planner.plan(self.program.jaxpr, self.program.consts, self.origins)

    def run(self, plan: LoweringPlan, words: Any, scaling: Sequence[Any]) -> Any:
        """The function's result by a plan; objects of flax get their new state."""
        with jax.named_scope(SCOPE):
            found = evaluate(plan, self.arrays, words, scaling)
        if scaling:
            found = [anchored(x, scaling) for x in found]
        self.changes(found[self.count :])
        return self.results(found[: self.count])


def _is_object(leaf: Any) -> bool:
    """True for objects of flax.nnx, which have state; flax need not be installed, and is not imported here."""
    nnx: Any = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(leaf, (nnx.Pytree, nnx.Variable))


def _split(objects: list[Any]) -> tuple[Any, Any]:
    if not objects:
        return None, None
    from flax import nnx

    return nnx.split(objects)


def _merge(graph: Any, state: Any) -> list[Any]:
    if graph is None:
        return []
    from flax import nnx

    return nnx.merge(graph, state)


def _check_unchanged(before: Any, after: Any) -> None:
    """Raises for new values in containers among the arguments, which would be lost."""
    old = dict(tree_flatten_with_path(before, is_leaf=_is_object)[0])
    for path, leaf in tree_flatten_with_path(after, is_leaf=_is_object)[0]:
        if path not in old or old[path] is not leaf:
            name = keystr(path[1:])
            raise ValueError(
                f"fn changes its argument {name}, whose new value would be lost; allowed are changes of objects of "
                "flax.nnx, and new values as results of fn"
            )


def _origins(fn: Callable[..., Any], state: Any, args: Any, kwargs: Any) -> tuple[list[Origin], set[Path]]:
    """The origins of a call's arrays (first the state of objects, then all others), and the owners that are layers."""
    leaves = tree_flatten_with_path((args, kwargs), is_leaf=_is_object)[0]
    arguments = list(dict.fromkeys(path[:2] for path, _ in leaves))
    objects = [path for path, leaf in leaves if _is_object(leaf)]
    paths = [objects[path[0].key] + tuple(path[1:]) for path, _ in tree_flatten_with_path(state)[0]]
    paths += [path for path, leaf in leaves if is_array(leaf)]
    owners, layers = _owners([path[2:] for path in paths])
    origins = [
        BARE._replace(argument=_argument(fn, path))
        if len(path) == 2
        else part_of(arguments.index(path[:2]), owner, _place(path[2:]))
        for path, owner in zip(paths, owners, strict=True)
    ]
    return origins, layers


def _argument(fn: Callable[..., Any], path: Any) -> str:
    """The name of an argument of a function, by its path in the pair of positional arguments and keywords."""
    if path[0].idx == 1:
        return path[1].key
    try:
        parameters = [one for one in signature(fn).parameters.values() if one.kind is not Parameter.VAR_POSITIONAL]
    except ValueError:  # some functions in C
        return ""
    return parameters[path[1].idx].name if path[1].idx < len(parameters) else ""


def _place(path: Any) -> str:
    """The path of an array in a list, or at the top of an argument; "" in a module, which has the name."""
    names = _names(path)
    return ".".join(names) if len(names) == 1 or isinstance(path[-1], SequenceKey) else ""


def _names(path: Any) -> Path:
    """The keys of a path as texts, without that of the value of flax's variables."""
    names = tuple(str(keystr((key,), simple=True)) for key in path)
    return names[:-1] if names[-1:] == (_VALUE,) else names


def _owners(paths: Sequence[Any]) -> tuple[list[Path], set[Path]]:
    """The module that owns each array, and the modules that own one array beside a bias, which are layers."""
    names = [_names(path) for path in paths]
    counts = Counter(path[:-1] for path in names if path[-1:] != ("bias",))
    return [path[:-1] for path in names], {owner for owner, count in counts.items() if count == 1}


def _captured(fn: Callable[..., Any]) -> tuple[dict[int, Path], set[Path]]:
    """The owners of the arrays that a module as function, or its method, captures; and the owners that are layers."""
    leaves = tree_flatten_with_path(getattr(fn, "__self__", fn))[0]
    found = [(path, leaf) for path, leaf in leaves if path and is_array(leaf)]
    owners, layers = _owners([path for path, _ in found])
    return {id(leaf): owner for (_, leaf), owner in zip(found, owners, strict=True)}, layers
