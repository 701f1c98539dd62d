"""What optimizers whose states may be codes share: their states, and the new parameters as optax's updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from qcore.arguments import check_flag, check_float
from qcore.reproducible.state_codes import FLOAT8, StateCodes, join_weight, split_weight
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import PyTree
from qjax._rounding.keys import Key, fold_in, key_words
from qjax.optim.low_precision import difference
from qjax.reproducible.functions import FUNCTIONS
from qjax.reproducible.operations import Names

Rate = float | jax.Array | Callable[[jax.Array], jax.Array]
_DTYPES = ("float32", "bfloat16", "float16")
_WEIGHT = 2  # the role of weights in keys, as in `low_precision`
_RANDOM_BITS = 16  # as many as a bfloat16 number has fewer than a float32 number


class CodedArray(NamedTuple):
    """An optimizer's state in codes, see `qjax.reproducible.StateCodes`.

    Attributes:
        codes: uint8 array of the parameter's shape; of one dimension for codes of 4 bits, two a byte.
        scale: float32 array of shape (blocks,).

    Example:
        >>> from qjax.optim import adamw_8bit
        >>> optimizer = adamw_8bit()
        >>> state = optimizer.init(jnp.ones(4096))
        >>> state.first.codes.shape, state.first.scale.shape
        ((4096,), (16,))
    """

    codes: jax.Array
    scale: jax.Array


class CodedFloat8(CodedArray):
    """A `CodedArray` whose codes are those of FP8, e4m3fn: states of `adam_8bit` have other codes of as many bits.

    Attributes:
        codes, scale: as of a `CodedArray`.

    Example:
        >>> from qjax.optim import adamw_fp8
        >>> type(adamw_fp8().init(jnp.ones(4096)).first).__name__
        'CodedFloat8'
    """

    __slots__ = ()


class Remainders(NamedTuple):
    """What states keep of 16-bit parameters, so that both together are numbers of more bits.

    Attributes:
        option: the argument that asks for it, as text.
        dtype_of: the dtype of what is kept, of the name of a parameter's dtype; None if nothing is kept.
        join: (parameter, what is kept) -> float32 array.
        split: (float32 array, parameter) -> the new parameter, and what is kept.
    """

    option: str
    dtype_of: Callable[[str], str | None]
    join: Callable[[Any, Any], jax.Array]
    split: Callable[[Any, Any], tuple[jax.Array, jax.Array]]


def low_halves(store_param_remainders: bool) -> Remainders | None:
    """The other half of the bits of bfloat16 parameters, if the flag is set."""
    check_flag("store_param_remainders", store_param_remainders)
    return _HALVES if store_param_remainders else None


def _join(p: jax.Array, remainder: jax.Array) -> jax.Array:
    return join_weight(Names, p.view(jnp.int16), remainder).view(jnp.float32)


def _split(weight: jax.Array, p: Any) -> tuple[jax.Array, jax.Array]:
    high, low = split_weight(Names, weight.view(jnp.int32))
    return high.view(jnp.bfloat16), low


_HALVES = Remainders(
    "store_param_remainders=True", lambda dtype: "int16" if dtype == "bfloat16" else None, _join, _split
)


class CodedTransformation(optax.GradientTransformationExtraArgs):
    """An optax transformation that can also make the new parameters itself.

    `optax.apply_updates` adds an update to a parameter, and a float32 sum does not reach every number: none leads from
    1 to -0.0, or to most numbers next to 0. `step` returns the law's parameters always; `update` finds the numbers
    that lead there if there are any. Under jit, blocks of sharded arrays are those of the whole array, with the bits of
    one device; within `jax.shard_map` they are those of the shard.

    Attributes:
        step: (parameters, gradients, state) -> (parameters, state).

    Example:
        >>> from qjax.optim import adamw_8bit
        >>> optimizer = adamw_8bit(0.5)
        >>> p = jnp.ones(1)
        >>> optimizer.step(p, jnp.ones(1), optimizer.init(p))[0].round(2)
        Array([0.5], dtype=float32)
    """

    step: Callable[[PyTree, PyTree, NamedTuple], tuple[PyTree, NamedTuple]]


def transformation(
    law: Callable[..., tuple[Any, Any]],
    codes_of: Callable[[Any], tuple[StateCodes | None, ...]],
    state_type: type[Any],
    learning_rate: Any,
    bf16_stochastic_round: bool,
    remainders: Remainders | None,
    key: Key,
) -> CodedTransformation:
    """An optimizer.

    Args:
        law: (parameter, gradient, states, count of steps with this one, rate) -> the parameter and the states; all
            floats are float32.
        codes_of: how the states of a parameter are stored, also of its shape and dtype alone.
        state_type: a named tuple of the count of steps, trees of states, and last a tree of remainders, or None.
        remainders: what states keep of 16-bit parameters, or None.
        learning_rate, bf16_stochastic_round, key: see `adam_8bit`.
    """
    check_flag("bf16_stochastic_round", bf16_stochastic_round)
    if remainders is not None and bf16_stochastic_round:
        raise ValueError(
            f"{remainders.option} with bf16_stochastic_round=True; allowed is one: remainders keep further bits"
        )
    rate = learning_rate if callable(learning_rate) else _number(learning_rate)
    if bf16_stochastic_round and key is None:
        raise ValueError("key=None; bf16_stochastic_round=True needs a key: an int from 0 to 2^64 - 1, or two words")
    words = None if key is None else key_words(key)
    count_of_states = len(codes_of(jax.ShapeDtypeStruct((0, 0), jnp.float32)))

    def init(params: Any) -> Any:
        leaves, tree = jax.tree.flatten(params)
        for p in leaves:
            if str(getattr(p, "dtype", None)) not in _DTYPES:
                came = f"an array of {p.dtype}" if hasattr(p, "dtype") else f"a {type(p).__name__}"
                raise TypeError(f"params has {came}; allowed are {', '.join(_DTYPES)}")
        states = [[_zeros(p, one) for one in codes_of(p)] for p in leaves]
        kept = [remainders and remainders.dtype_of(str(p.dtype)) for p in leaves]
        rest = [None if one is None else jnp.zeros(p.shape, one) for p, one in zip(leaves, kept, strict=True)]
        trees = _trees(tree, states, count_of_states)
        return state_type(jnp.zeros((), jnp.float32), *trees, remainder=kept_remainders(tree, rest))

    def kept_remainders(tree: Any, rest: list[Any]) -> Any:
        return None if remainders is None else tree.unflatten(rest)

    def step(params: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
        leaves, tree = jax.tree.flatten(params)
        if not isinstance(state, state_type):
            raise TypeError(
                f"state is a {type(state).__name__}; allowed is a {state_type.__name__}, as of init(params)"
            )
        before, *trees, kept = state
        for name, part in zip(state._fields[count_of_states + 1 :], (*trees[count_of_states:], kept), strict=True):
            if part is not None and (name != "remainder" or remainders is None):
                raise ValueError(f"state.{name} is of an optimizer with other options; allowed is None")
        rest: list[Any] = [None] * len(leaves) if remainders is None else _leaves("state.remainder", tree, kept)
        count = FUNCTIONS.count("state.step", before, 0) + 1
        past = before.astype(jnp.int32)
        now = jnp.asarray(rate(past) if callable(rate) else rate, jnp.float32)
        slopes = [_real(gradient) for gradient in _leaves("updates", tree, gradients)]
        named = zip(state._fields[1:], trees[:count_of_states], strict=False)
        others = [slopes, *(_leaves(f"state.{name}", tree, one) for name, one in named)]
        stepped, states = [], []
        for number, (p, gradient, *given) in enumerate(zip(leaves, *others, strict=True)):
            codes = codes_of(p)
            _check_types(state._fields[1:], given, codes)
            entered = [x.astype(jnp.float32) if one is None else x for x, one in zip(given, codes, strict=True)]
            split = remainders if rest[number] is not None else None
            own = split.join(jnp.asarray(p), rest[number]) if split else jnp.asarray(p, jnp.float32)
            weight, found = law(own, gradient.astype(jnp.float32), tuple(entered), count, now)
            if bf16_stochastic_round and p.dtype == jnp.bfloat16:
                noise = fold_in(fold_in(fold_in(words, past), _WEIGHT), number)
                weight = quantize(weight, "bfloat16", "stochastic", key=noise, random_bits=_RANDOM_BITS, overflow="inf")
            if split:
                weight, rest[number] = split.split(weight, p)
            stepped.append(weight.astype(p.dtype))
            states.append([_kept(x, p, one) for x, one in zip(found, codes, strict=True)])
        new = state_type(count, *_trees(tree, states, count_of_states), remainder=kept_remainders(tree, rest))
        return tree.unflatten(stepped), new

    def update(updates: Any, state: Any, params: Any = None, **_: Any) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("params=None; this optimizer needs the parameters: update(updates, state, params)")
        new, state = step(params, updates, state)
        return jax.tree.map(difference, params, new), state

    found = CodedTransformation(init, update)
    found.step = step
    return found


def _trees(tree: Any, states: list[list[Any]], count: int) -> list[Any]:
    """The trees of all first states, of all second states and so on."""
    return [tree.unflatten([each[place] for each in states]) for place in range(count)]


def _leaves(name: str, tree: Any, found: Any) -> list[Any]:
    """The arrays, or arrays in codes, of a tree that has the structure of the parameters."""
    try:
        return tree.flatten_up_to(found)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} has another structure than params, which is allowed: {error}") from None


def _real(gradient: Any) -> jax.Array:
    """A gradient as an array, whose numbers are real."""
    found = jnp.asarray(gradient)
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise TypeError(f"updates has an array of {found.dtype}; allowed are floats")
    return found


def _number(rate: Any) -> Any:
    if isinstance(rate, jax.Array) and rate.shape != ():
        raise ValueError(f"learning_rate has shape {rate.shape}; allowed is ()")
    return rate if isinstance(rate, jax.Array) else check_float("learning_rate", rate)


def check_known(**options: Any) -> None:
    """Raises for numbers that are not known when a program is traced; the law computes with them in float64."""
    for name, option in options.items():
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(option)):
            raise TypeError(
                f"{name} is traced; allowed is a number: name all but learning_rate in static_args of "
                "optax.inject_hyperparams"
            )


def _zeros(p: jax.Array, codes: StateCodes | None) -> Any:
    """A state before the first step: all codes and scales are 0, as in torchao; so codes stand for zeros."""
    if codes is None:
        return jnp.zeros_like(p)
    size, blocks = codes.counts(p.size)
    of_codes, of_scales = codes.dtypes
    shape = p.shape if codes.bits == 8 else (size,)
    return _type_of(codes)(jnp.zeros(shape, of_codes), jnp.zeros(blocks, of_scales))


def _kept(state: Any, p: jax.Array, codes: StateCodes | None) -> Any:
    return state.astype(p.dtype) if codes is None else _type_of(codes)(*state)


def _type_of(codes: StateCodes) -> type[CodedArray]:
    return CodedFloat8 if codes.kind == FLOAT8 else CodedArray


def _check_types(names: Sequence[str], states: Sequence[Any], codes: Sequence[StateCodes | None]) -> None:
    """Raises TypeError for states with codes of as many bits, and of another kind."""
    for name, state, one in zip(names, states, codes, strict=False):
        if one is not None and isinstance(state, CodedArray) and type(state) is not (allowed := _type_of(one)):
            raise TypeError(
                f"state.{name} has a {type(state).__name__}; allowed is a {allowed.__name__}: the codes of another "
                "optimizer stand for other numbers"
            )
