"""Quantization of models given as functions of a pytree: observe layers, convert parameters, run in integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from qcore.affine import QParams
from qcore.arguments import quoted
from qcore.notices import warn
from qjax import _jaxprs as jaxprs
from qjax._jaxprs import Program, bind, is_array, split_arrays
from qjax._parameters import parameters
from qjax._rounding.inputs import PyTree, Result
from qjax.quant import quantizer
from qjax.quantization.fake_state import FakeQuantize
from qjax.quantization.functional.dynamic import ACTIVATIONS, halves
from qjax.quantization.integer import PackedTensor, packs
from qjax.quantization.layers import Layer, LayerState, LayerWeight, Source, Use, inverse, layer_of, result_of
from qjax.quantization.observer import NoopObserver, RangeObserver
from qjax.quantization.qconfig import QConfig, QConfigDynamic, input_rounding, output_form, range_observer
from qjax.quantization.rounding import FormatRounding, rounds_to_format
from qjax.quantization.tensor import QTensor, quantize_affine

States = dict[str, Any]
LayerStates = dict[str, LayerState]
Replace = Callable[[Any, Layer, list[Any], Any], tuple[Any, Any]]


ROUNDS = FakeQuantize, FormatRounding
_CASTS = ("convert_element_type", "copy", "stop_gradient", "sharding_constraint", "reshard", "pvary")
Rules = Mapping[str, QConfig | QConfigDynamic | None] | QConfig | QConfigDynamic


def prepare_fn(
    apply_fn: Callable[..., Result], rules: Rules
) -> tuple[Callable[..., LayerStates], Callable[..., tuple[Result, LayerStates]]]:
    """Two functions: one makes the state of observers for a function's layers, the other runs the function with it.

    A layer is a product of matrices or a convolution, of floats, of which one operand is a parameter: an array in the
    function's first argument, perhaps transposed or cast. Its name is the parameter's path in that argument. Layers are
    found at any depth: in jit, checkpoint, scan (also over stacked parameters, which then have a state for each),
    while_loop, cond, and functions with their own derivative, whose own rule is left out where it holds layers.

    Args:
        apply_fn: apply_fn(params, *args, **kwargs), of any pytree of parameters: an equinox module, a dictionary.
        rules: settings for all layers; or a mapping of settings, or None for floats, by shell patterns for names such
            as "layers.*.weight", of which the first that matches applies. A `QConfig`'s activation sees what goes into
            a layer; with `FakeQuantize` that and the weight are fake-quantized, for training, and with formats rounded.
            With a `QConfigDynamic` nothing is observed, and what goes in is later quantized by its own range.

    Returns:
        init(params, *args, **kwargs), the state, a dictionary of `LayerState` by name; it computes shapes only. And
        apply(params, state, *args, **kwargs), the result and the next state. Both work under jit, vmap, grad and scan,
        with any sharding. Each call traces apply_fn, so use jit.

    Raises:
        ValueError: in a call, if a pattern matches no layer, or a layer cannot be replaced where it is.

    Warns:
        UserWarning: in a call of init, if several layers share a parameter, and so one observer.

    Example:
        >>> from qjax.quantization import default_qconfig
        >>> def apply_fn(params, x):
        ...     return jnp.tanh(x @ params["w1"]) @ params["w2"]
        >>> params = {"w1": jnp.eye(2), "w2": jnp.ones((2, 1))}
        >>> init, apply = prepare_fn(apply_fn, default_qconfig)
        >>> x = jnp.float32([[1, -2]])
        >>> y, state = jax.jit(apply)(params, init(params, x), x)
        >>> list(state), state["w1"].input.min_val
        (['w1', 'w2'], Array(-2., dtype=float32))
        >>> convert_fn(apply_fn)(convert_params(params, state, default_qconfig), x)
        Array([[-0.20301433]], dtype=float32)
    """
    settings = _Settings(rules)
    if not callable(apply_fn):
        raise TypeError(f"apply_fn is a {type(apply_fn).__name__}; allowed is a function")

    def init(params: Any, *args: Any, **kwargs: Any) -> States:
        traced = _Traced(apply_fn, params, args, kwargs)
        return {path: _first_state(settings.of(path), shape, use) for path, shape, use in traced.layers(settings)}

    def apply(params: Any, state: States, *args: Any, **kwargs: Any) -> tuple[Any, States]:
        def observe(equation: Any, layer: Layer, operands: list[Any], own: LayerState) -> tuple[Any, LayerState]:
            operands, own = _observed(settings.of(layer.source.path), layer, operands, own)
            return bind(equation, operands)[0], own

        traced = _Traced(apply_fn, params, args, kwargs)
        return traced.run(observe, {path: one.use for path, one in state.items()}, state)

    return init, apply


def convert_params(params: PyTree, state: LayerStates, rules: Rules) -> PyTree:
    """Replaces the parameters of layers by integers.

    Args:
        params: the function's parameters.
        state: the state that the functions of `prepare_fn` returned.
        rules: the rules that were given to `prepare_fn`.

    Returns:
        The pytree with a `LayerWeight` in the place of each parameter that has a state; for `convert_fn`. It holds
        integers, of up to 4 bits two in a byte, or float16, or the packed codes of another format. Stacked parameters
        have parameters of quantization for each weight.

    Raises:
        TypeError: if an argument has the wrong type, or an observer chooses no parameters.
        ValueError: if the state belongs to other parameters or rules, or observers saw no data: the message names the
            layers.

    Example:
        >>> from qjax.quantization import default_dynamic_qconfig as rules
        >>> params, x = {"w": jnp.float32([[1], [-2]])}, jnp.ones((1, 2))
        >>> init, _ = prepare_fn(lambda params, x: x @ params["w"], rules)
        >>> convert_params(params, init(params, x), rules)["w"].weight.values.ravel()
        Array([  64, -127], dtype=int8)
    """
    settings, left, unseen = _Settings(rules), dict(state), []

    def convert(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        own = left.pop(name, None)
        if own is None:
            return leaf
        chosen = settings.of(name)
        if chosen is None:
            raise ValueError(f"rules has None for {name}, which state has; allowed are the rules that prepare_fn had")
        if has_not_seen(chosen, own):
            unseen.append(name)
            return leaf
        return converted(chosen, leaf, own)

    made = jax.tree_util.tree_map_with_path(convert, params)
    if left:
        raise ValueError(f"state has {', '.join(left)}, which params has not; allowed is a state of these parameters")
    if unseen:
        raise ValueError(
            f"layers {', '.join(unseen)} have seen nothing; run apply on data that reaches them, or give them None"
        )
    return made


def convert_fn(apply_fn: Callable[..., Result]) -> Callable[..., Result]:
    """The function that takes the result of `convert_params`, and computes its layers in integers.

    A layer's result is float32(sums) * (scale of its input * scale of its weight), where sums are exact; with float16
    or another format on either side it is apply_fn's own product of the rounded numbers. Everything else is unchanged.
    A parameter that is also used outside of layers is dequantized there.

    Args:
        apply_fn: the function that was given to `prepare_fn`.

    Returns:
        fn(params, *args, **kwargs), for jit, vmap, scan and any sharding; each call traces apply_fn.

    Raises:
        TypeError: if apply_fn is not a function; in a call, if no parameter is converted.

    Example:
        >>> from qjax.quantization import QParams, quantize_affine
        >>> q = quantize_affine(jnp.float32([[1], [-2]]), QParams.of(0.5, 0), "qint8")
        >>> convert_fn(lambda w, x: x @ w)(
        ...     LayerWeight(q, q.qparams, q.form, Use((1, 0)), "float32"), jnp.ones((1, 2))
        ... )
        Array([[-1.]], dtype=float32)
    """
    if not callable(apply_fn):
        raise TypeError(f"apply_fn is a {type(apply_fn).__name__}; allowed is a function")

    def converted(params: Any, *args: Any, **kwargs: Any) -> Any:
        def replace(equation: Any, layer: Layer, operands: list[Any], _: Any) -> tuple[Any, Any]:
            return result_of(equation, layer, operands[1 - layer.weight], operands[layer.weight]), None

        traced = _Traced(apply_fn, params, args, kwargs)
        uses = {path: leaf.use for path, leaf in traced.params() if isinstance(leaf, LayerWeight)}
        if not uses:
            raise TypeError("params has no LayerWeight; allowed is what convert_params returned")
        return traced.run(replace, uses, dict.fromkeys(uses))[0]

    return converted


class _Settings:
    """Settings by patterns for names."""

    def __init__(self, rules: Any) -> None:
        self.rules: dict[str, Any] = dict(rules) if isinstance(rules, Mapping) else {"*": rules}
        for pattern, one in self.rules.items():
            if not isinstance(pattern, str):
                raise TypeError(f"rules has the key {quoted(pattern)}; allowed are patterns for names, as str")
            if not isinstance(one, QConfig | QConfigDynamic | None):
                kind = type(one).__name__
                raise TypeError(
                    f"rules has for {quoted(pattern)} a {kind}; allowed are QConfig, QConfigDynamic and None"
                )
            parts = (one.activation, one.weight) if isinstance(one, QConfig) else ()
            if any(isinstance(part, FakeQuantize) and part.number is None for part in parts) and not all(
                isinstance(x, ROUNDS) for x in parts
            ):
                raise TypeError(
                    f"rules has for {quoted(pattern)} a QConfig of which one is FakeQuantize; "
                    "allowed are both, and formats"
                )

    def pattern_of(self, name: str) -> str | None:
        """The first pattern that matches."""
        return next((pattern for pattern in self.rules if fnmatchcase(name, pattern)), None)

    def of(self, name: str) -> Any:
        """The settings of a layer, or None."""
        pattern = self.pattern_of(name)
        return None if pattern is None else self.rules[pattern]

    def check_used(self, names: list[str]) -> None:
        """Raises ValueError if a pattern is not the first match of any layer, or no layer has settings."""
        used = {self.pattern_of(name) for name in names}
        unused = [pattern for pattern in self.rules if pattern not in used]
        if unused or not any(self.of(name) for name in names):
            what = f"the pattern {quoted(unused[0])} applies to no layer" if unused else "no layer has settings"
            raise ValueError(f"{what}; there are {', '.join(names) or 'none'}")


class _Traced:
    """A function's program for some arguments; the first argument holds the parameters."""

    def __init__(self, fn: Callable[..., Any], params: Any, args: Any, kwargs: Any) -> None:
        self.tree = params
        self.arrays, rebuild = split_arrays((params, args, kwargs), LayerWeight)
        self.results: Any = None

        def flat(*arrays: Any) -> list[Any]:
            params, args, kwargs = rebuild(arrays)
            computed, self.results = split_arrays(fn(params, *args, **kwargs))
            return computed

        traced = jax.make_jaxpr(flat)(*map(_abstract, self.arrays))
        named = [(path, leaf) for path, leaf in self.params() if is_array(leaf, LayerWeight)]
        self.shapes = {path: tuple(leaf.shape) for path, leaf in named}
        sources: list[Any] = [Source(path, Use(tuple(range(len(leaf.shape))))) for path, leaf in named]
        sources += [None] * (len(self.arrays) - len(sources))
        self.program = Program(traced.jaxpr, traced.consts, sources)

    def params(self) -> list[tuple[str, Any]]:
        """The leaves of the parameters by name."""
        whole = jax.tree_util.tree_flatten_with_path(self.tree, is_leaf=lambda node: isinstance(node, LayerWeight))[0]
        return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in whole]

    def layers(self, settings: _Settings) -> list[tuple[str, tuple[int, ...], Use]]:
        """The names, shapes and uses of the layers with settings."""
        found = _find_layers(self.program)
        settings.check_used(list(found))
        for path, uses in found.items():
            if len(uses) > 1 and isinstance(settings.of(path), QConfig):
                _warn_of_uses(path, uses.count(uses[0]), len(uses))
        return [(path, self.shapes[path], uses[0]) for path, uses in found.items() if settings.of(path) is not None]

    def run(self, replace: Any, uses: dict[str, Use], states: States) -> tuple[Any, States]:
        """The results with layers replaced, and the states after it."""
        results, states = _Walk(replace, uses).run(self.program, self.arrays, states)
        return self.results(results), states


def _warn_of_uses(path: str, alike: int, count: int) -> None:
    shared = f"; {alike} share one observer, and will share one scale" if alike > 1 else ""
    other = f"; {count - alike} take it along other axes, and stay in floats" if alike < count else ""
    warn(
        f"the parameter {quoted(path)} is that of {count} layers{shared}{other}; "
        "use a parameter for each layer, or give it "
        "None"
    )


def _abstract(array: Any) -> Any:
    return jax.ShapeDtypeStruct(array.shape, array.dtype) if isinstance(array, LayerWeight) else array


def _first_state(settings: Any, shape: tuple[int, ...], use: Use) -> LayerState:
    stack, own = shape[: use.stacked], shape[use.stacked :]
    of_weight = tuple(own[axis] for axis in use.order)

    def repeated(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (*stack, *jnp.shape(x))), tree)

    if isinstance(settings, QConfigDynamic):
        return LayerState(None, None, use)
    weight = settings.weight.init(of_weight) if isinstance(settings.weight, FakeQuantize) else None
    return LayerState(repeated(settings.activation.init()), repeated(weight), use)


def _observed(settings: Any, layer: Layer, operands: list[Any], own: LayerState) -> tuple[list[Any], LayerState]:
    """A layer's operands, observed or rounded by its settings, and its next state."""
    if isinstance(settings, QConfigDynamic):
        return operands, own
    x, weight = operands[1 - layer.weight], operands[layer.weight]
    of_input: Any = own.input
    of_weight: Any = own.weight
    if isinstance(settings.activation, ROUNDS):
        x, of_input = settings.activation.apply(of_input, x)
    else:
        of_input = settings.activation.update(of_input, x)
    if isinstance(settings.weight, ROUNDS):
        rounded, of_weight = settings.weight.apply(of_weight, jnp.transpose(weight, layer.axes))
        weight = jnp.transpose(rounded, inverse(layer.axes))
    return [weight, x] if layer.weight == 0 else [x, weight], LayerState(of_input, of_weight, own.use)


def _find_layers(program: Program) -> dict[str, list[Use]]:
    """The parameters of a program's layers, and their uses in order; for branches, the longest list of uses.

    The program's inputs are `Source`s, or None for inputs that are not parameters.
    """
    found: dict[str, list[Use]] = {}

    def step(_: int, equation: Any, sources: list[Any]) -> list[Any]:
        layer = layer_of(equation, sources)
        if layer is not None:
            found.setdefault(layer.source.path, []).append(layer.source.use)
        inside: dict[str, list[Use]] = {}
        for one in _programs(equation, sources):
            uses = _find_layers(one)
            if uses and equation.primitive.name == "shard_map":
                raise ValueError(
                    f"shard_map holds layers, of {', '.join(uses)}; allowed are jit with shardings, scan, while_loop, "
                    "cond, checkpoint and functions with their own derivative"
                )
            for path, more in uses.items():
                before = inside.get(path, [])
                # One branch of a cond runs; both programs of a while_loop do.
                inside[path] = max(before, more, key=len) if equation.primitive.name == "cond" else before + more
        for path, more in inside.items():
            found.setdefault(path, []).extend(more)
        return _results(equation, sources)

    jaxprs.walk(program.jaxpr, [None] * len(program.consts), program.inputs, step, lambda literal: None)
    return found


def _results(equation: Any, sources: Sequence[Any]) -> list[Any]:
    """The sources of an equation's results: a transposed or cast parameter is still a parameter."""
    name = equation.primitive.name
    first = sources[0] if sources else None
    if name == "transpose" and first is not None:
        first = first.transposed(parameters(equation).permutation)
    elif name not in _CASTS:
        first = None
    return [first] * len(equation.outvars)


def _programs(equation: Any, sources: Sequence[Any]) -> list[Program]:
    """The programs that an equation runs, with the sources of their inputs."""
    found = jaxprs.inner_programs(equation, sources) or []
    if equation.primitive.name == "scan":
        _, first = jaxprs.scan_parts(equation)
        found[0].inputs[first:] = [None if one is None else one.sliced() for one in found[0].inputs[first:]]
    return found


class _Walk:
    """Runs programs with layers replaced. A value is a pair: the array or `LayerWeight`, and its `Source` or None.

    Args:
        replace: replace(equation, layer, operands, state) returns a layer's result and its next state. Operands that
            are parameters have the values that the caller passed for them.
        layers: the parameters whose layers are replaced, and their uses.
    """

    def __init__(self, replace: Replace, layers: dict[str, Use]) -> None:
        self.replace, self.layers = replace, layers

    def run(self, program: Program, args: Sequence[Any], states: States) -> tuple[list[Any], States]:
        """The results of a program for its flat arguments, and the states after it."""
        states = dict(states)

        def step(_: int, equation: Any, pairs: list[Any]) -> list[tuple[Any, Any]]:
            operands, sources = [x for x, _ in pairs], [source for _, source in pairs]
            results, changed = self._equation(equation, operands, sources, states)
            states.update(changed)
            return list(zip(results, _results(equation, sources), strict=True))

        consts = [(x, None) for x in program.consts]
        pairs = list(zip(args, program.inputs, strict=True))
        found = jaxprs.evaluate(program.jaxpr, consts, pairs, step, lambda literal: (literal.val, None))
        outputs = [_floats(x, source, atom) for (x, source), atom in zip(found, program.jaxpr.outvars, strict=True)]
        return outputs, states

    def _equation(
        self, equation: Any, operands: list[Any], sources: list[Any], states: States
    ) -> tuple[Sequence[Any], States]:
        """An equation's results, and the states that it changes."""
        layer = layer_of(equation, sources)
        if layer is not None and self.layers.get(layer.source.path) == layer.source.use:
            path = layer.source.path
            result, state = self.replace(equation, layer, operands, states.get(path))
            return [result], {path: state}
        programs = _programs(equation, sources)
        inside = {path for program in programs for path in _find_layers(program)} & self.layers.keys()
        if inside:
            return self._inside(equation, programs, operands, sources, {path: states[path] for path in inside})
        # A quantized parameter passes through transpositions and casts unchanged: its source keeps the order of axes.
        name = equation.primitive.name
        if operands and isinstance(operands[0], LayerWeight) and (name == "transpose" or name in _CASTS):
            return [operands[0]], {}
        return bind(equation, list(map(_floats, operands, sources, equation.invars))), {}

    def _inside(
        self, equation: Any, programs: list[Program], operands: list[Any], sources: list[Any], states: States
    ) -> tuple[Sequence[Any], States]:
        """The results of an equation whose programs hold layers, and the states of these layers after it."""
        name = equation.primitive.name
        if name in jaxprs.CUSTOM:  # without its own rule, which would not see the layers
            return self.run(programs[0], operands, states)
        entering, along = sources, set()
        if name == "scan":
            entering = programs[0].inputs
            _, first = jaxprs.scan_parts(equation)
            # Stacked parameters have a state for each slice, which the scan takes and returns slice by slice.
            along = {source.path for source in entering[first:] if source is not None} & states.keys()
        elif name == "while":
            entering = [*programs[0].inputs[: parameters(equation).cond_nconsts], *programs[1].inputs]
        operands = [
            x if inner is not None else _floats(x, source, atom)  # the state of a loop holds numbers
            for x, source, inner, atom in zip(operands, sources, entering, equation.invars, strict=True)
        ]

        def run(which: int, operands: Any, kept: States, sliced: States | None) -> tuple[Any, States, States]:
            results, after = self.run(programs[which], operands, kept | (sliced or {}))
            return results, {path: after[path] for path in kept}, {path: after[path] for path in sliced or {}}

        kept = {path: state for path, state in states.items() if path not in along}
        results, kept, stacked = jaxprs.rebuild(equation, operands, run, kept, {path: states[path] for path in along})
        return results, kept | (stacked or {})


def _floats(value: Any, source: Any, atom: Any) -> Any:
    """A parameter for an equation that is not a layer: its numbers, with the axes and dtype of the variable."""
    if not isinstance(value, LayerWeight):
        return value
    numbers, order = value.dequantize(), source.use.order
    left = numbers.ndim - len(order)
    return numbers.transpose((*range(left), *(left + axis for axis in order))).astype(atom.aval.dtype)


def has_not_seen(settings: Any, own: LayerState) -> bool:
    """True if a layer's observer has no range yet."""
    if isinstance(settings, QConfigDynamic):
        return False
    seen: Any = getattr(own.input, "activation_post_process", own.input)
    return hasattr(seen, "min_val") and bool((seen.min_val > seen.max_val).any())


def converted(settings: Any, leaf: Any, own: LayerState) -> LayerWeight:
    """The quantized form of a parameter.

    Raises:
        TypeError: if an observer chooses no parameters.
        ValueError: if the weight has scales along another axis than its outputs.
    """
    weight = _weight(settings.weight, leaf, own)
    if isinstance(settings, QConfigDynamic):
        if (rounding := input_rounding(settings)) is None:
            in_integers = isinstance(weight, (QTensor, PackedTensor))
            rounding = ACTIVATIONS if in_integers else _PASSING
        return LayerWeight(weight, None, rounding, own.use, leaf.dtype.name)
    if isinstance(settings.activation, FormatRounding):
        return LayerWeight(weight, None, settings.activation, own.use, leaf.dtype.name)
    qparams = _stacked(partial(type(settings.activation).qparams, settings.activation), own.use)(own.input)
    if rounds_to_format(settings.activation):
        return LayerWeight(weight, qparams, settings.activation, own.use, leaf.dtype.name)
    return LayerWeight(weight, qparams, output_form(settings.activation), own.use, leaf.dtype.name)


_PASSING = FormatRounding(quantizer())


def _weight(description: Any, leaf: Any, own: LayerState) -> Any:
    use = own.use
    if isinstance(description, NoopObserver) and description.dtype == "float16":
        return halves(leaf)
    if isinstance(description, FormatRounding):
        if description.number is None:
            return leaf
        return _stacked(lambda weight: description.coded(_numbers(weight, use)), use)(leaf)
    observer: RangeObserver = range_observer(description)
    if observer.axis not in (None, 0):
        raise ValueError(f"weight has {description}; allowed is one scale, or ch_axis=0, for outputs")

    def quantized(weight: Any, state: Any) -> QTensor | PackedTensor:
        numbers = _numbers(weight, use)
        if state is None:
            qparams = observer.qparams(observer.update(observer.init(numbers.shape), numbers))
        else:
            qparams = description.qparams(state)
        q = quantize_affine(numbers, qparams, observer.form)
        if packs(q.form):
            return PackedTensor.of(q)
        axis = None if qparams.axis is None else use.order[0]
        values = jnp.transpose(q.values, inverse(use.order))
        return QTensor(values, QParams(qparams.scale, qparams.zero_point, axis), q.form)

    return _stacked(quantized, use)(leaf, own.weight)


def _numbers(weight: jax.Array, use: Use) -> jax.Array:
    """One weight in float32, its outputs first."""
    return jnp.transpose(weight, use.order).astype(jnp.float32)


def _stacked(function: Callable[..., Any], use: Use) -> Callable[..., Any]:
    """A function of one weight, for stacked ones."""
    for _ in range(use.stacked):
        function = jax.vmap(function)
    return function
