"""A transformation of functions that rounds the layers of programs written without low precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import WRAPPER_ASSIGNMENTS, wraps
from inspect import Parameter, Signature, signature
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

import jax.numpy as jnp
import numpy as np

from qcore import Entry, Number, Quantization, Recipe, Rule
from qcore.arguments import missing_key, quoted
from qcore.law.rounding import RoundingLike
from qcore.lazy import public_names
from qcore.linalg.product import Products
from qcore.notices import warn
from qcore.recipes.coverage import shortfall
from qcore.recipes.published import NOTHING_TO_LOWER, recipe_hint, recipe_of
from qcore.recipes.recipe import check_alone, check_machine
from qcore.report import ProductReport, RunReport, with_own_gradients
from qjax import linalg
from qjax._rounding.keys import Key, key_words
from qjax.linalg.states import ScalingState, rows_of
from qjax.recipes.call import TracedCall
from qjax.recipes.layers import GROUPS
from qjax.recipes.plan import LoweringPlan, Planner
from qjax.recipes.stacks import WHILE, ProgramProduct, State

__all__ = ["GROUPS", "first_scaling", "lower", "report"]
__dir__ = public_names(__name__)

Given = ParamSpec("Given")
Returned = TypeVar("Returned", covariant=True)
_MARK = "__lowered__"
_MEASURED = ""  # among the warnings of a function that are done with: its first call was measured


class _LoweredFunction(Protocol[Given, Returned]):
    """The type of a lowered function: fn's, and with a key or with states any arguments."""

    @overload
    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Returned: ...
    @overload
    def __call__(self, *args: Any, key: Key, **kwargs: Any) -> Returned: ...
    @overload
    def __call__(self, *args: Any, scaling: Any, **kwargs: Any) -> Returned: ...


def lower(
    fn: Callable[Given, Returned],
    layer_types: Iterable[str] | Recipe = ("conv", "linear"),
    forward_number: Number | str | None = None,
    backward_number: Number | str | None = None,
    forward_rounding: RoundingLike = "stochastic",
    backward_rounding: RoundingLike = "stochastic",
    *,
    weight_number: Number | str | None = None,
    weight_rounding: RoundingLike = "nearest",
    rules: Iterable[Rule] = (),
    overflow: str | None = None,
    on: str | None = None,
    recipe: Recipe | None = None,
) -> _LoweredFunction[Given, Returned]:
    """Returns a function with the results of fn, in which the outputs of layers and their gradients are rounded.

    Layers are operations of the traced program, at any depth: in jit, checkpoint, scan, while_loop, cond, vmap,
    shard_map, custom_jvp, custom_vjp, or a derivative that fn itself takes. The groups:

    | group | operations | functions, by name |
    | --- | --- | --- |
    | conv | `conv_general_dilated` | |
    | linear | `dot_general`, `ragged_dot_general`: all products of matrices, also in attention | |
    | embedding | `gather` and `dynamic_slice` of an input of fn, at computed indices | |
    | pool | `reduce_window_max`, `_min`, `_sum` and `reduce_window` | |
    | pad | `pad` | `jax.numpy.pad` |
    | activation | `tanh`, `logistic` | those of `jax.nn`, with the exceptions below |
    | normalization | | batch_norm, group_norm, instance_norm, layer_norm, rms_norm, standardize |

    Functions count if they are under jit, custom_jvp or custom_vjp. Nothing inside of a rounded function is rounded.
    `jax.nn.softmax` and `gelu` and the normalization layers of flax and equinox have no name in the program, unless a
    jitted function with such a name calls them. There are no groups for dropout, losses, cells and attention. Values
    that do not depend on inputs of fn are not layers; nor are results in other dtypes than float16, bfloat16, float32
    and float64.

    A layer's output is the operation's result. It includes a transposition, if nothing else uses the result. For conv
    and linear it includes a bias: an input of fn that is added only here (after reshapes or transpositions) and is
    smaller than the output or has one axis. For sums of windows it includes the division that makes them averages.

    A layer's weight is an operand of conv or linear that is an input of fn (an argument or a captured array), perhaps
    after reshapes, casts and slices. It may also be computed from parts of one container, or from captured arrays,
    alone. If this is true for both operands, the weight is the operand from a container (a module, a dictionary; of
    two, the earlier argument), else the captured one, else the one with the last axis of the result.

    A recipe multiplies by `qjax.linalg` all products of float32, bfloat16 and float16 numbers that its entries match:
    the operands' numbers are rounded to the formats, the accumulator's result once to the program's dtype. Their kinds:
    "linear" is a product with a weight, in any layout, also a weight for each of a batch (experts) or group of rows
    (`ragged_dot`); "conv" a convolution, where a dilated input is an input with zeros between its elements;
    "attention_scores" and "attention_output" two products with softmax between them; "matmul" all other products.
    `report` lists them, with their names: the dotted name scope, or else the path of the module that owns the weight.
    Entries with `arithmetic` also find softmax, GELU and norms where JAX, flax and equinox write them out.

    A scan over layers counts as the layers of all its iterations, in the order of their run: `first` and `last` of an
    entry are as in the program written out, and delayed scales have a state for each iteration. Its layers are products
    whose weights it slices, or reads at its counter, as fori_loop with bounds that are ints does. A product with the
    same weight in all iterations, as in scans over microbatches or time, is one layer with one state. So is one in a
    while_loop, which has no delayed scales.

    State of flax.nnx modules among the arguments (batch statistics, counts of dropout) moves as under `nnx.jit`.

    A function with its own derivative keeps it. Its values, and the residuals of its rule, are computed with rounded
    layers inside. Then the rule is called unchanged: the rounding inside does not affect its gradient. Solvers
    (`custom_linear_solve`), kernels of Pallas, foreign functions (`ffi_call`, `pure_callback`), and products of complex
    and of sparse arrays are unchanged.

    The n-th layer, n = 0, 1, ... in the order of the program, rounds with k = fold_in(key, n): its output with k, its
    gradient with fold_in(k, 1), its weight with fold_in(k, 2). jit and checkpoint are inlined. A loop, a cond, a
    shard_map and a function with its own derivative count as one layer if they contain layers. Their layers are
    numbered from 0 again, with the key fold_in(key, n), in a loop with fold_in(fold_in(key, n), i) for the i-th slice
    or iteration (while_loop's condition comes before its body). Random words repeat among examples under vmap(lower(f))
    and among shards, but not under lower(vmap(f)), where a batch is one array.

    `jax.grad(lower(fn))` rounds gradients where they arrive at layers' outputs. In `lower(jax.grad(fn))` the
    backward pass is a part of the program, and its products are layers. Rounded outputs have no forward-mode
    derivatives (`jax.jvp`, `jax.hessian`; `jax.jacrev(jax.grad(f))` works); weights and recipes have them.

    Args:
        fn: a function, or a module. Arrays among its arguments are traced as under jit, other arguments are not.
        layer_types: names of groups. Or a `qcore.Recipe`, alone, whose n-th product has the key fold_in(key, n).
            Differentiate the lowered function: only then the gradients follow the recipe. A derivative inside of fn is
            an error.
        forward_number, backward_number, forward_rounding, backward_rounding: see `qcore.Quantization`. With delayed
            scales the function takes `scaling=`, see `first_scaling`.
        weight_number, weight_rounding: the format and the rounding of weights; their gradient passes unchanged.
        overflow: the policy for numbers beyond the range of these formats, as in `qjax.quantize`: "saturate", "inf",
            "nan" or "wrap"; None is each format's own policy. Rules have their own: "e4m3fn:saturate".
        on: with a recipe, the machine whose instructions its products run on, such as "hopper"; see `Recipe.on`.
        recipe: another name of layer_types for a recipe: `lower(fn, recipe=RECIPES["mxfp8"])`.
        rules: rules that precede the arguments above. The first rule that matches a layer applies; a rule without
            formats leaves its layers unchanged. A rule's name matches the layer's name, as `report` has it: the dotted
            name scope ("M.Dense_0" in flax linen), or else the path in the arguments ("blocks.0.query" in nnx and
            equinox); in equinox also the scope ("eqx.nn.Linear"). Its layer_type is a group.

    Returns:
        A function with fn's arguments and results, and `key=` for stochastic rounding, see `quantize` (it hides an
        argument of fn with that name). Call it under jit, because it traces fn at each call.

    Raises:
        ValueError: if an argument is out of range, or fn is lowered; in a call: if an entry of a recipe, or all rules,
            match no layer, stochastic rounding has no key, fn calls a lowered function or changes an argument that is
            not a module of flax.nnx, or a layer cannot be rounded where it is.

    Warns:
        UserWarning: once, in a call: for a product that matches a recipe but cannot be reached, for functions with
            lowered products and a derivative of their own, and if layer_types match no layer.

    Example:
        >>> import jax.numpy as jnp
        >>> f = lower(
        ...     lambda w, b, x: jnp.tanh(x @ w + b), forward_number="e5m2", forward_rounding="nearest"
        ... )
        >>> f(jnp.eye(3), jnp.float32([0.3, 0, 0]), jnp.float32([1, 2, 5.5])) == jnp.tanh(
        ...     jnp.float32([1.25, 2, 6])
        ... )
        Array([ True,  True,  True], dtype=bool)
    """
    if not callable(fn):
        raise TypeError(f"fn={quoted(fn)} is a {type(fn).__name__}; allowed is a function or a module")
    if hasattr(fn, _MARK):
        raise ValueError("fn is lowered; lower once, with rules= for layers of different formats")
    arguments: tuple[Any, ...] = (forward_number, backward_number, forward_rounding, backward_rounding)
    outputs = Quantization(*arguments, overflow=overflow)
    rule = Rule("*", None, outputs, weight_number, weight_rounding, overflow)  # type: ignore[arg-type]
    chosen = recipe_of(layer_types, recipe, layer_types == ("conv", "linear"))
    return _lowered(fn, _settings(chosen, rule, rules, on), set())


def lower_part(fn: Callable[Given, Returned], recipe: Recipe) -> _LoweredFunction[Given, Returned]:
    """`lower` by a recipe that means a few layers, without a warning that most of the work stays in high precision."""
    return _lowered(fn, _Settings((), (), recipe), {_MEASURED})


def _lowered(fn: Callable[Given, Returned], settings: _Settings, warned: set[str]) -> _LoweredFunction[Given, Returned]:
    """The lowered function; `warned` are the warnings that it has given."""

    @wraps(fn, assigned=WRAPPER_ASSIGNMENTS if _is_named(fn) else (), updated=())
    def lowered(*args: Any, key: Key = None, **kwargs: Any) -> Any:
        scaling = kwargs.pop("scaling", None) if settings.delayed else None
        words = None if key is None else key_words(key).view(np.uint32)
        if words is None and settings.stochastic:
            raise missing_key()
        call = TracedCall(fn, args, kwargs)
        plan = settings.plan(call, warned)
        settings.measure(plan.planner, warned)
        states = _check_states(plan.planner.states, scaling)
        try:
            return call.run(plan, words if plan.planner.stochastic else None, states)
        except TypeError as error:
            raise _forward_mode(error) from None

    def planner(args: Any, kwargs: Any) -> Planner:
        own = {"key", "scaling"} if settings.delayed else {"key"}
        kwargs = {name: value for name, value in kwargs.items() if name not in own}
        return settings.plan(TracedCall(fn, args, kwargs), warned).planner

    vars(lowered).update({_MARK: planner, "__signature__": _signature(fn)})
    return cast(Any, lowered)


class _Settings:
    """The checked arguments of `lower`: the rules of `rules`, the rules of all other arguments, or a recipe."""

    def __init__(self, given: Sequence[Rule], made: Sequence[Rule], recipe: Recipe | None = None) -> None:
        self.given, self.made, self.recipe = given, made, recipe
        self.stochastic = Planner([*given, *made], recipe).stochastic
        self.delayed = any(one.outputs.history is not None for one in (*given, *made))
        self.delayed = self.delayed or (recipe is not None and recipe.delayed)

    def plan(self, call: TracedCall, warned: set[str]) -> LoweringPlan:
        """The plan of a call; warns once of products that cannot be lowered, and raises if no product can."""
        planner = Planner([*self.given, *self.made], self.recipe)
        plan = call.plan(planner)
        if self.recipe is None:
            self._check_rules(planner, warned)
            return call.plan(Planner(planner.rules, None, planner.found)) if self.delayed else plan
        _warn_of_unreached(self.recipe, planner.found, warned)
        calls = [(one.path, one.kind) for one in planner.functions]
        self.recipe.check([*((one.name, one.kind) for one in planner.found), *calls])
        planner = Planner((), self.recipe, planner.found)
        plan = call.plan(planner)
        for one in planner.functions:
            if one.reason:
                _warn_once(f"{quoted(one.path)} ({one.kind}) stays in high precision: {one.reason}", warned)
        for name in planner.own_derivatives:
            _warn_once(
                f"{quoted(name)} has a derivative of its own, whose products a recipe does not reach: its "
                "result is computed "
                "as the recipe says, its gradient by its rule",
                warned,
            )
        return plan

    def measure(self, planner: Planner, warned: set[str]) -> None:
        """Warns at the first call if a recipe lowers less than half of it."""
        if self.recipe is None or _MEASURED in warned:
            return
        warned.add(_MEASURED)
        if message := shortfall(self.recipe, _run(planner)):
            warn(f"{message}. qjax.recipes.report(fn, *inputs) lists all products")

    def _check_rules(self, planner: Planner, warned: set[str]) -> None:
        """Raises if no rule matches a layer; warns if the other arguments match none, which may be intended."""
        if any(rule in self.given or rule._rounds for rule in planner.matched):
            return
        if not (self.given or any(rule._rounds for rule in self.made)):
            return
        layers = ", ".join(f"{quoted(name)} ({group})" for name, group in dict.fromkeys(planner.layers)) or "none"
        if self.given:
            raise ValueError(f"rules match no layer; the layers are {layers}")
        _warn_once(f"layer_types match no layer, so nothing is lowered; the layers are {layers}", warned)


def _forward_mode(error: TypeError) -> TypeError:
    """The error for a forward-mode derivative of rounded outputs in place of JAX's; other errors as they are."""
    if "forward-mode autodiff (jvp) to a custom_vjp" not in str(error):
        return error
    return TypeError(
        "fn has no forward-mode derivatives (jvp, jacfwd, hessian), as rounded outputs and own derivatives have none; "
        "allowed are jax.jacrev(jax.grad(f)) for jax.hessian, and recipes and weight_number, which have them"
    )


def _warn_of_unreached(recipe: Recipe, found: Sequence[ProgramProduct], warned: set[str]) -> None:
    """Warns of products that entries of a recipe match, and that cannot be lowered, or not counted."""
    for one in found:
        entry = recipe._entry_at(one.name, one.kind) if one.reason else None
        if entry is not None and entry.products is not None:
            _warn_once(
                f"{quoted(one.name)} ({one.kind}) stays in high precision: {one.reason}; "
                "qjax.recipes.report(fn, *inputs) lists all "
                "products",
                warned,
            )
        if WHILE in one.sliced and any(each.counts and each._matches(one.name, one.kind) for each in recipe.entries):
            _warn_once(
                f"{quoted(one.name)} ({one.kind}) is in a while_loop that reads its weights one by one, and counts as "
                "one layer for first and last of the recipe: how often it runs is not known. Allowed is scan, or "
                "fori_loop with bounds that are ints",
                warned,
            )


def _warn_once(message: str, warned: set[str]) -> None:
    if message not in warned:
        warned.add(message)
        warn(message)


def _settings(layer_types: Any, rule: Rule, rules: Iterable[Rule], on: str | None) -> _Settings:
    if isinstance(layer_types, Recipe):
        check_alone({"rules": rules, "formats": rule != Rule()})
        return _Settings((), (), layer_types.on(on))
    check_machine(on)
    given, groups = _check_rules(rules), _check_groups(layer_types)
    if groups and not given and not rule._rounds:
        warn(NOTHING_TO_LOWER)
    return _Settings(given, [replace(rule, layer_type=group) for group in groups])


def report(fn: Callable[..., object], *args: object, **kwargs: object) -> RunReport:
    """Every product of a function's run: its place, shapes, formats, and share of all multiply-adds.

    A product's place is its dotted name scope. Without a scope, and in equinox, it is the module that owns its weight,
    by its path in the arguments ("blocks.0.query"), for weights in lists or on top the path of the array; or the module
    that contains the layers whose results are multiplied. Entries, watches and errors have the same names. A
    product in a loop counts for each iteration, except in a while_loop, whose number of iterations is not known.
    Products of constants, and of integers, are left out. Foreign functions have a row without a number of
    multiply-adds. A product in a function with its own derivative has wide gradients there.

    Args:
        fn: a function or a module, lowered or not.
        args, kwargs: its arguments; only shapes count. `key=` and `scaling=` of a lowered function may be left out.

    Returns:
        A `qcore.report.RunReport`; `print` shows it.

    Raises:
        ValueError: as a call of the function does.

    Example:
        >>> import jax.numpy as jnp
        >>> from qcore import RECIPES
        >>> fn = lower(lambda w, x: (x @ w["w"]) @ jnp.tanh(x), RECIPES["mxfp8"])
        >>> [
        ...     (one.kind, one.share, one.reason)
        ...     for one in report(fn, {"w": jnp.eye(32)}, jnp.ones((32, 32)))
        ... ]
        [('linear', 0.5, ''), ('matmul', 0.5, 'no entry of the recipe is for matmul here')]
    """
    if not callable(fn):
        raise TypeError(f"fn={quoted(fn)} is a {type(fn).__name__}; allowed is a function or a module")
    if hasattr(fn, _MARK):
        planner: Planner = vars(fn)[_MARK](args, kwargs)
    else:
        planner = Planner(())
        TracedCall(fn, args, kwargs).plan(planner)
    return _run(planner)


def _run(planner: Planner) -> RunReport:
    """The products that a planner found, with their formats, or the reasons why they stay in high precision."""
    numbers: Counter[str] = Counter()
    rows = []
    for one, products, share in _runs(planner):
        reason = "" if products is not None else one.reason or _why_wide(planner, one)
        if products is not None and one.own:
            products, reason = with_own_gradients(products, one.own)
        count = None if one.multiply_adds is None else int(one.multiply_adds * share)
        rows.append(ProductReport(one.name, numbers[one.name], one.kind, one.shapes, count, products, reason))
        numbers[one.name] += 1
    return RunReport(rows, planner.functions)


def _runs(planner: Planner) -> Iterator[tuple[ProgramProduct, Products | None, Fraction]]:
    """The products of a program, in the order of their run: all iterations of a scan with the same formats together.

    With each the part of the product's iterations that they are.
    """
    if planner.chosen is None or planner.stacks is None:
        yield from ((one, None, Fraction(1)) for one in planner.found)
        return
    runs: list[tuple[int, Products | None, int]] = []
    last: dict[int, int] = {}  # the number of the latest run of each product
    for place, at in planner.stacks.instances():
        products = planner.chosen[place].get(at)
        if place in last and runs[last[place]][1] == products:
            runs[last[place]] = place, products, runs[last[place]][2] + 1
        else:
            last[place] = len(runs)
            runs.append((place, products, 1))
    total = Counter[int]()
    for place, _, count in runs:
        total[place] += count
    yield from ((planner.found[place], products, Fraction(count, total[place])) for place, products, count in runs)


def _why_wide(planner: Planner, found: ProgramProduct) -> str:
    """Why a product that could be lowered is not."""
    if planner.recipe is None:
        return "lower rounds results of layers; recipes have products" if planner.rules else "not lowered"
    return planner.recipe.why_wide(found.name, found.kind)


def first_scaling(lowered: Callable[..., object], *args: object, **kwargs: object) -> tuple[ScalingState, ...]:
    """The states of delayed scales that a lowered function takes as `scaling=`, before the first call.

    The next states are the derivative with respect to the states: `jax.grad` of a loss with respect to parameters and
    scaling returns both. A state may be used any number of times in a step, for microbatches in sums, vmap, scan or
    `lax.map`: its newest magnitudes are the largest of all uses.

    Args:
        lowered: a result of `lower`.
        args, kwargs: arguments of the function; only shapes count.

    Returns:
        For each layer with delayed scales, in the program's order, a state of `qjax.linalg.first_scaling`; for a
        rounded output only its first two rows; for layers in a scan the states of all its iterations, stacked.

    Raises:
        TypeError: if the function is not lowered.

    Example:
        >>> import jax
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
        raise TypeError(f"lowered={quoted(lowered)} is a {type(lowered).__name__}; allowed is what lower returned")
    states = vars(lowered)[_MARK](args, kwargs).states
    first = (linalg.first_scaling(state.history)[: state.rows].array for state in states)
    return tuple(ScalingState(jnp.broadcast_to(one, state.shape)) for one, state in zip(first, states, strict=True))


def _check_states(states: Sequence[State], scaling: Any) -> list[Any]:
    """The states of the layers with delayed scales, as arrays."""
    given = [] if scaling is None else [rows_of(one) for one in scaling]
    if len(given) != len(states):
        came = "None" if scaling is None else f"{len(given)} arrays"
        raise ValueError(
            f"scaling is {came}; allowed are {len(states)}, for each layer with delayed scales, see first_scaling"
        )
    for i, (state, rows) in enumerate(zip(states, given, strict=True)):
        shape = tuple(getattr(rows, "shape", ()))
        if shape != state.shape:
            raise ValueError(f"scaling[{i}] has shape {shape}; allowed is {state.shape}, see first_scaling")
    return given


def product_sites(fn: Callable[..., Any], *args: Any) -> dict[str, int]:
    """The layers that a recipe may apply to, by their dotted names, with their numbers of weights.

    Layers with the same name count as one. In a loop the weights of one iteration count.
    """
    planner = Planner((), Recipe([Entry()]))
    TracedCall(fn, args, {}).plan(planner)
    found: dict[str, int] = {}
    for one in planner.found:
        if one.size and not one.reason:
            found[one.name] = found.get(one.name, 0) + one.size
    return found


def _is_named(fn: Callable[..., Any]) -> bool:
    """True for functions; a module has no attribute `__name__`, or one that is not its name."""
    return isinstance(getattr(fn, "__name__", None), str)


def _signature(fn: Callable[..., Any]) -> Signature | None:
    """fn's signature, with any further keywords, for `key` and `scaling`.

    They are not named in it: flax.nnx would fill in their defaults, and then raise for every keyword.
    """
    try:
        parameters = list(signature(fn).parameters.values())
    except ValueError:  # some functions in C
        return None
    if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters):
        parameters.append(Parameter("options", Parameter.VAR_KEYWORD))
    return Signature(parameters)


def _check_groups(layer_types: Any) -> list[str]:
    if isinstance(layer_types, str) or not isinstance(layer_types, Iterable):
        kind, groups = type(layer_types).__name__, ", ".join(GROUPS)
        raise TypeError(
            f"layer_types={quoted(layer_types)} is a {kind}; allowed is a list of {groups}{recipe_hint(layer_types)}"
        )
    return [_check_group("layer_types", group) for group in layer_types]


def _check_group(name: str, group: Any) -> str:
    if not isinstance(group, str):
        kinds = f"{type(group).__name__}; allowed are {', '.join(GROUPS)}{recipe_hint(group)}"
        raise TypeError(f"{name} has {quoted(group)}, a {kinds}")
    if group not in GROUPS:
        raise ValueError(f"{name} has {quoted(group)}; allowed are {', '.join(GROUPS)}")
    return group


def _check_rules(rules: Any) -> list[Rule]:
    if not isinstance(rules, Iterable):
        raise TypeError(f"rules={quoted(rules)} is a {type(rules).__name__}; allowed is a list of Rule")
    rules = list(rules)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise TypeError(f"rules has {quoted(rule)}, a {type(rule).__name__}; allowed are Rule")
        if rule.layer_type is not None:
            _check_group("rules' layer_type", rule.layer_type)
    return rules
