"""A transformation of functions that rounds the layers of programs written without low precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import WRAPPER_ASSIGNMENTS, partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any

import jax
import numpy as np

from qcore import Entry, Number, Quantization, Recipe, Rounding, Rule
from qcore.arguments import missing_key
from qcore.recipes.recipe import check_alone
from qjax import linalg
from qjax._rounding.keys import Key, key_words
from qjax.auto_low.arrays import is_array, take_arrays
from qjax.auto_low.evaluate import evaluate
from qjax.auto_low.groups import GROUPS
from qjax.auto_low.origins import BARE
from qjax.auto_low.plan import SCOPE, Plan, Planner

__all__ = ["GROUPS", "first_scaling", "lower"]

_MARK = "__lowered__"


def lower(
    fn: Callable[..., Any],
    layer_types: Iterable[str] | Recipe = ("conv", "linear"),
    forward_number: Number | str | None = None,
    backward_number: Number | str | None = None,
    forward_rounding: str | Rounding = "stochastic",
    backward_rounding: str | Rounding = "stochastic",
    *,
    weight_number: Number | str | None = None,
    weight_rounding: str | Rounding = "nearest",
    rules: Iterable[Rule] = (),
) -> Callable[..., Any]:
    """Returns a function that computes as fn does, with the outputs of layers, and their gradients, rounded.

    Layers are operations of the traced program, at any depth: in jit, checkpoint, scan, while_loop, cond, vmap,
    shard_map, custom_jvp, custom_vjp, or a derivative that fn itself takes. The groups:

    | group | operations | functions, by name |
    | --- | --- | --- |
    | conv | `conv_general_dilated` | |
    | linear | `dot_general`, `ragged_dot_general`: all products of matrices, attention's too | |
    | embedding | `gather` and `dynamic_slice` of an input of fn, at computed indices | |
    | pool | `reduce_window_max`, `_min`, `_sum` and `reduce_window` | |
    | pad | `pad` | `jax.numpy.pad` |
    | activation | `tanh`, `logistic` | those of `jax.nn`, with the exceptions below |
    | normalization | | batch_norm, group_norm, instance_norm, layer_norm, rms_norm, standardize |

    Functions are those under jit, custom_jvp or custom_vjp; inside a function that is rounded nothing else is.
    `jax.nn.softmax` and `gelu` and the normalization layers of flax and equinox have no name in the program, unless a
    jitted function with such a name calls them. Dropout, losses, cells and attention are no groups. Values that are
    the same for all inputs of fn are no layers, nor are dtypes other than float16, bfloat16, float32 and float64.

    A layer's output is the operation's result. It includes a transposition, if nothing else uses the result; for conv
    and linear a bias: an input of fn that is added (after reshapes or transpositions, and to nothing else) and is
    smaller than the output or has one axis; for sums of windows the division that makes them averages.

    A layer's weight is an operand of conv or linear that is an input of fn (an argument or a captured array), perhaps
    after reshapes, casts and slices. If both operands are, the weight is the one from a container (a module, a
    dictionary; of two, the earlier argument), else the captured one, else the second operand.

    A function with its own derivative keeps it. Its values, and the residuals of its rule, are computed with the layers
    inside rounded, then the rule is called unchanged: the rounding inside does not affect that gradient. Solvers
    (`custom_linear_solve`) and Pallas kernels are unchanged.

    The n-th layer, n = 0, 1, ... in the order of the program, rounds with k = fold_in(key, n): its output with k, its
    gradient with fold_in(k, 1), its weight with fold_in(k, 2). jit and checkpoint are inlined. A loop, a cond, a
    shard_map and a function with its own derivative count as one layer if they contain layers; these are numbered from
    0 again, with the key fold_in(key, n), in a loop with fold_in(fold_in(key, n), i) for the i-th slice or iteration
    (while_loop's condition comes before its body). Random words repeat among examples under vmap(lower(f)) and among
    shards; not so under lower(vmap(f)), where a batch is one array.

    `jax.grad(lower(fn))` rounds gradients where they arrive at layers' outputs. In `lower(jax.grad(fn))` the
    backward pass is a part of the program, and its products are layers. Forward-mode derivatives do not exist.

    Args:
        fn: a function, or a module. Arrays among its arguments are traced as under jit, other arguments are not. State
            that a module changes must be a result.
        layer_types: names of groups. Or a `qcore.Recipe`, alone: float32 products of a weight become those of
            `qjax.linalg`, where the weight is a matrix or a convolution has no input dilation; the n-th one has the
            key fold_in(key, n). Differentiate the lowered function: only its gradients are those of the recipe, and a
            derivative inside fn is an error.
        forward_number, backward_number, forward_rounding, backward_rounding: see `qcore.Quantization`.
        weight_number, weight_rounding: how weights are rounded; their gradient passes unchanged.
        rules: rules that precede the arguments above. The first that matches a layer applies; a rule without formats
            leaves its layers unchanged. A rule's name matches the dotted name scope ("M.Dense_0" in flax linen,
            "eqx.nn.Linear" in equinox, that of `jax.named_scope` in nnx), its layer_type is a group.

    Returns:
        A function with fn's arguments and results, and `key=` for stochastic rounding, see `quantize` (it hides an
        argument of fn with that name). Call it under jit, because it traces fn at each call.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range, or fn is lowered; in a call: if an entry of a recipe matches no
            layer, stochastic rounding has no key, fn
            calls a lowered function, or a layer cannot be rounded where it is.

    Example:
        >>> import jax.numpy as jnp
        >>> f = lower(lambda w, b, x: jnp.tanh(x @ w + b), forward_number="e5m2", forward_rounding="nearest")
        >>> f(jnp.eye(3), jnp.float32([0.3, 0, 0]), jnp.float32([1, 2, 5.5])) == jnp.tanh(jnp.float32([1.25, 2, 6]))
        Array([ True,  True,  True], dtype=bool)
    """
    if not callable(fn):
        raise TypeError(f"fn={fn!r} is a {type(fn).__name__}; allowed is a function or a module")
    if hasattr(fn, _MARK):
        raise ValueError("fn is lowered; lower once, with rules= for layers of different formats")
    outputs = Quantization(forward_number, backward_number, forward_rounding, backward_rounding)  # type: ignore[arg-type]
    rule = Rule("*", None, outputs, weight_number, weight_rounding)  # type: ignore[arg-type]
    make, delayed = _planners(layer_types, rule, rules)

    @wraps(fn, assigned=WRAPPER_ASSIGNMENTS if _is_named(fn) else (), updated=())
    def lowered(*args: Any, key: Key = None, **kwargs: Any) -> Any:
        scaling = kwargs.pop("scaling", None) if delayed else None
        words = None if key is None else key_words(key).view(np.uint32)
        if words is None and make().stochastic:
            raise missing_key()
        traced = _Traced(fn, args, kwargs)
        plan = traced.plan(make)
        plan.planner.scaling = _check_states(plan.planner.histories, scaling)
        return traced.run(plan, words if plan.planner.stochastic else None)

    def histories(args: Any, kwargs: Any) -> list[int]:
        return _Traced(fn, args, kwargs).plan(make).planner.histories

    vars(lowered).update(
        {_MARK: histories, "__signature__": _signature(fn, ("key", "scaling") if delayed else ("key",))}
    )
    return lowered


def _planners(layer_types: Any, rule: Rule, rules: Iterable[Rule]) -> tuple[Callable[..., Planner], bool]:
    """What makes a planner of the arguments of `lower`, and True if there are delayed scales."""
    if isinstance(layer_types, Recipe):
        check_alone({"rules": rules, "formats": rule != Rule()})
        return partial(Planner, (), layer_types), layer_types.delayed
    groups = [replace(rule, layer_type=group) for group in _check_groups(layer_types)]
    return partial(Planner, [*_check_rules(rules), *groups]), False


def first_scaling(lowered: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[jax.Array, ...]:
    """The states of delayed scales that a lowered function takes as `scaling=`, before the first call.

    The next states are the derivative with respect to them: `jax.grad` of a loss with respect to parameters and
    scaling gives both. Not under vmap, which adds up states of examples.

    Args:
        lowered: what `lower` returned for a recipe.
        args, kwargs: arguments of the function; only shapes count.

    Returns:
        For each layer with delayed scales, in the program's order, what `qjax.linalg.first_scaling` returns.

    Raises:
        TypeError: if the function is not lowered.

    Example:
        >>> import jax.numpy as jnp
        >>> from qcore import RECIPES
        >>> f = lower(lambda w, x: (x @ w["w"]).sum(), RECIPES["fp8_delayed"])
        >>> w, x = {"w": 2 * jnp.eye(3)}, jnp.ones((2, 3))
        >>> states = first_scaling(f, w, x)
        >>> gradients, states = jax.grad(lambda w, states: f(w, x, scaling=states), (0, 1))(w, states)
        >>> [row[:2].tolist() for row in states[0]]
        [[448.0, 1.0], [224.0, 2.0], [57344.0, 1.0]]
    """
    if not hasattr(lowered, _MARK):
        raise TypeError(f"lowered={lowered!r} is a {type(lowered).__name__}; allowed is what lower returned")
    return tuple(map(linalg.first_scaling, vars(lowered)[_MARK](args, kwargs)))


def _check_states(histories: Sequence[int], scaling: Any) -> Sequence[Any]:
    """The states of the layers with delayed scales; `linear` and its like check each."""
    given = () if scaling is None else tuple(scaling)
    if len(given) != len(histories):
        came = "None" if scaling is None else f"{len(given)} arrays"
        raise ValueError(
            f"scaling is {came}; allowed are {len(histories)}, for each layer with delayed scales, see first_scaling"
        )
    return given


def product_sites(fn: Callable[..., Any], *args: Any) -> dict[str, int]:
    """The layers that a recipe may apply to, by their dotted name scopes, and how many weights each has.

    Layers of one name count as one. Of a loop's weights those of one iteration count.
    """
    traced, planner = _Traced(fn, args, {}), Planner((), Recipe([Entry()]))
    planner.plan(traced.program.jaxpr, traced.program.consts, traced.origins)
    found: dict[str, int] = {}
    for (name, _), size in zip(planner.layers, planner.sizes, strict=True):
        found[name] = found.get(name, 0) + size
    return found


def _is_named(fn: Callable[..., Any]) -> bool:
    """True for functions; modules have no name, or another attribute with that name."""
    return isinstance(getattr(fn, "__name__", None), str)


def _signature(fn: Callable[..., Any], more: tuple[str, ...]) -> Signature | None:
    """fn's signature with `key` and its like; decorators such as equinox's read it."""
    try:
        parameters = dict(signature(fn).parameters)
    except ValueError:  # some functions in C
        return None
    for name in more:
        parameters.setdefault(name, Parameter(name, Parameter.KEYWORD_ONLY, default=None))
    return Signature(sorted(parameters.values(), key=lambda parameter: parameter.kind))


class _Traced:
    """A call of a function as a program."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        paths, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
        arguments = list(dict.fromkeys(path[:2] for path, _ in paths))
        self.origins = [BARE if len(path) == 2 else arguments.index(path[:2]) for path, leaf in paths if is_array(leaf)]
        self.arrays, rebuild = take_arrays((args, kwargs))
        self.results: Any = None

        def flat(*arrays: Any) -> Sequence[Any]:
            args, kwargs = rebuild(arrays)
            computed, self.results = take_arrays(fn(*args, **kwargs))
            return computed

        self.program = jax.make_jaxpr(flat)(*self.arrays)

    def plan(self, make: Callable[..., Planner]) -> Plan:
        planner = make()
        plan = planner.plan(self.program.jaxpr, self.program.consts, self.origins)
        if planner.recipe is None:
            return plan
        planner.recipe.check(planner.layers)
        return make(planner.layers).plan(self.program.jaxpr, self.program.consts, self.origins)

    def run(self, plan: Plan, words: Any) -> Any:
        with jax.named_scope(SCOPE):
            return self.results(evaluate(plan, self.arrays, words))


def _check_groups(layer_types: Any) -> list[str]:
    if isinstance(layer_types, str) or not isinstance(layer_types, Iterable):
        kind = type(layer_types).__name__
        raise TypeError(f"layer_types={layer_types!r} is a {kind}; allowed is a list of {', '.join(GROUPS)}")
    return [_check_group("layer_types", group) for group in layer_types]


def _check_group(name: str, group: Any) -> str:
    if not isinstance(group, str):
        raise TypeError(f"{name} has {group!r}, a {type(group).__name__}; allowed are {', '.join(GROUPS)}")
    if group not in GROUPS:
        raise ValueError(f"{name} has {group!r}; allowed are {', '.join(GROUPS)}")
    return group


def _check_rules(rules: Any) -> list[Rule]:
    if not isinstance(rules, Iterable):
        raise TypeError(f"rules={rules!r} is a {type(rules).__name__}; allowed is a list of Rule")
    rules = list(rules)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise TypeError(f"rules has {rule!r}, a {type(rule).__name__}; allowed are Rule")
        if rule.layer_type is not None:
            _check_group("rules' layer_type", rule.layer_type)
    return rules
