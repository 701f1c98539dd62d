"""Adam and AdamW whose moments are codes of 8 or 4 bits, as optax transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qcore.arguments import check_flag, check_float, check_int
from qcore.reproducible.optimizers import adam_options
from qcore.reproducible.state_codes import StateCodes, adam_codes
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import PyTree
from qjax._rounding.keys import Key, fold_in, key_words
from qjax.optim.low_precision import difference
from qjax.reproducible.functions import FUNCTIONS

_DTYPES = ("float32", "bfloat16", "float16")
Rate = float | jax.Array | Callable[[jax.Array], jax.Array]
_WEIGHT = 2  # the role of weights in keys, as in `low_precision`
_RANDOM_BITS = 16  # as many as a bfloat16 number has fewer than a float32 number


class CodedArray(NamedTuple):
    """An optimizer's state in codes, see `qjax.reproducible.StateCodes`.

    Attributes:
        codes: uint8 array of the parameter's shape; of one dimension for codes of 4 bits, two a byte.
        scale: float32 array of shape (blocks,).

    Example:
        >>> state = adamw_8bit().init(jnp.ones(4096))
        >>> state.first.codes.shape, state.first.scale.shape
        ((4096,), (16,))
    """

    codes: jax.Array
    scale: jax.Array


class CodedAdamState(NamedTuple):
    """The state of Adam with codes.

    Attributes:
        step: the number of steps so far, float32 without dimensions.
        first, second: trees like the parameters, of `CodedArray` or of arrays of the parameter's dtype.
        largest: the same for amsgrad, else None.

    Example:
        >>> adamw_8bit().init(jnp.ones(3)).first  # too few numbers for codes
        Array([0., 0., 0.], dtype=float32)
    """

    step: jax.Array
    first: PyTree
    second: PyTree
    largest: PyTree = None


class CodedTransformation(optax.GradientTransformationExtraArgs):
    """An optax transformation that can also make the new parameters itself.

    `optax.apply_updates` adds an update to a parameter, and a float32 sum does not reach every number: none leads from
    1 to -0.0, or to most numbers next to 0. `step` returns the law's parameters always; `update` finds the numbers
    that lead there if there are any.

    Attributes:
        step: (parameters, gradients, state) -> (parameters, state).

    Example:
        >>> optimizer = adamw_8bit(0.5)
        >>> p = jnp.ones(1)
        >>> optimizer.step(p, jnp.ones(1), optimizer.init(p))[0].round(3)
        Array([0.495], dtype=float32)
    """

    step: Callable[[PyTree, PyTree, CodedAdamState], tuple[PyTree, CodedAdamState]]


def _transformation(
    storage: str,
    decoupled: bool,
    learning_rate: Any,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    amsgrad: bool,
    block_size: int,
    bf16_stochastic_round: bool,
    key: Key,
) -> CodedTransformation:
    options: dict[str, Any] = adam_options(betas, eps, weight_decay) | {"decoupled": decoupled}
    check_flag("amsgrad", amsgrad)
    check_flag("bf16_stochastic_round", bf16_stochastic_round)
    check_int("block_size", block_size, 1)
    adam_codes(storage, block_size, 0, False)  # raises for a block of the wrong size
    rate = learning_rate if callable(learning_rate) else _number(learning_rate)
    if bf16_stochastic_round and key is None:
        raise ValueError("key=None; bf16_stochastic_round=True needs a key: an int from 0 to 2^64 - 1, or two words")
    words = None if key is None else key_words(key)

    def codes_of(p: Any) -> tuple[StateCodes | None, ...]:
        return adam_codes(storage, block_size, p.size, amsgrad)

    def init(params: Any) -> CodedAdamState:
        leaves, tree = jax.tree.flatten(params)
        for p in leaves:
            if str(p.dtype) not in _DTYPES:
                raise TypeError(f"params has an array of {p.dtype}; allowed are {', '.join(_DTYPES)}")
        states = [[_zeros(p, one) for one in codes_of(p)] for p in leaves]
        trees = [tree.unflatten(list(each)) for each in zip(*states, strict=True)] or [tree.unflatten([])] * 2
        return CodedAdamState(jnp.zeros((), jnp.float32), *trees)

    def moved(params: Any, gradients: Any, state: CodedAdamState) -> tuple[Any, CodedAdamState]:
        leaves, tree = jax.tree.flatten(params)
        count = FUNCTIONS.count("state.step", state.step, 0) + 1
        now = jnp.asarray(rate(state.step.astype(jnp.int32)) if callable(rate) else rate, jnp.float32)
        trees = state[1:] if amsgrad else state[1:3]
        others = [tree.flatten_up_to(one) for one in (gradients, *trees)]
        stepped, states = [], []
        for number, (p, gradient, *given) in enumerate(zip(leaves, *others, strict=True)):
            codes = codes_of(p)
            entered = [x.astype(jnp.float32) if one is None else x for x, one in zip(given, codes, strict=True)]
            weight, found = FUNCTIONS.adam_step_with_codes(
                jnp.asarray(p, jnp.float32),
                jnp.asarray(gradient, jnp.float32),
                tuple(entered),
                count,
                now,
                codes,
                **options,
            )
            if bf16_stochastic_round and p.dtype == jnp.bfloat16:
                own = fold_in(fold_in(fold_in(words, state.step.astype(jnp.int32)), _WEIGHT), number)
                weight = quantize(weight, "bfloat16", "stochastic", key=own, random_bits=_RANDOM_BITS, overflow="inf")
            stepped.append(weight.astype(p.dtype))
            states.append([_kept(x, p, one) for x, one in zip(found, codes, strict=True)])
        new = [tree.unflatten(list(each)) for each in zip(*states, strict=True)] or trees
        return tree.unflatten(stepped), CodedAdamState(count, *new)

    def update(updates: Any, state: Any, params: Any = None, **_: Any) -> tuple[Any, CodedAdamState]:
        if params is None:
            raise ValueError("params=None; this optimizer needs the parameters: update(updates, state, params)")
        new, state = moved(params, updates, state)
        return jax.tree.map(difference, params, new), state

    found = CodedTransformation(init, update)
    found.step = moved
    return found


def _number(rate: Any) -> Any:
    return rate if isinstance(rate, jax.Array) else check_float("learning_rate", rate)


def _zeros(p: jax.Array, codes: StateCodes | None) -> Any:
    """A state before the first step: all codes and scales are 0, as in torchao; so codes stand for zeros."""
    if codes is None:
        return jnp.zeros_like(p)
    size, blocks = codes.counts(p.size)
    return CodedArray(jnp.zeros(p.shape if codes.bits == 8 else (size,), jnp.uint8), jnp.zeros(blocks, jnp.float32))


def _kept(state: Any, p: jax.Array, codes: StateCodes | None) -> Any:
    return state.astype(p.dtype) if codes is None else CodedArray(*state)


def adam_8bit(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    *,
    block_size: int = 256,
    bf16_stochastic_round: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """Adam whose moments are codes of 8 bits, with torchao's law: `qjax.reproducible.adam_step_with_codes`.

    The moments of a parameter with at least 4,096 numbers, whose count `block_size` divides, are codes with a float32
    scale for each block, see `qjax.reproducible.StateCodes`. Those of other parameters are arrays of the parameter's
    dtype. The bits are those of `qtorch.optim.Adam8bit`.

    Args:
        learning_rate: at least 0; a number, an array without dimensions, or a function of the number of steps so far.
        betas: the moments' factors, at least 0 and below 1.
        eps: added to the root of the second moment, at least 0.
        weight_decay: times the parameter is added to its gradient, at least 0.
        amsgrad: True to divide by the root of the largest second moment so far, a third state.
        block_size: the count of neighbouring numbers of a parameter that share a scale.
        bf16_stochastic_round: True to round bfloat16 parameters stochastically, with 16 random bits.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, two 32-bit words, or a typed key of JAX.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: if an argument is out of range, or a parameter has another dtype than float32, bfloat16
            and float16.

    Example:
        >>> optimizer = adam_8bit(0.5)
        >>> p = jnp.ones(4096)
        >>> state = optimizer.init(p)
        >>> updates, state = optimizer.update(jnp.ones(4096), state, p)
        >>> optax.apply_updates(p, updates)[0].round(3), state.first.codes.dtype
        (Array(0.5, dtype=float32), dtype('uint8'))
    """
    return _transformation(
        "8bit",
        False,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        key,
    )


def adam_4bit(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    *,
    block_size: int = 128,
    bf16_stochastic_round: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adam_8bit` with codes of 4 bits, two a byte, in blocks of 128.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size, bf16_stochastic_round, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> adam_4bit().init(jnp.ones(4096)).first.codes.shape
        (2048,)
    """
    return _transformation(
        "4bit",
        False,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        key,
    )


def adam_fp8(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    *,
    block_size: int = 256,
    bf16_stochastic_round: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adam_8bit` whose codes are numbers of e4m3fn, for both moments.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size, bf16_stochastic_round, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> adam_fp8().init(jnp.ones(4096)).first.codes.shape
        (4096,)
    """
    return _transformation(
        "Fp8",
        False,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        key,
    )


def adamw_8bit(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    amsgrad: bool = False,
    *,
    block_size: int = 256,
    bf16_stochastic_round: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adam_8bit` whose weight decay is decoupled: a parameter loses the rate times weight_decay times itself.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size, bf16_stochastic_round, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> adamw_8bit().init(jnp.ones(4096)).first.codes.shape
        (4096,)
    """
    return _transformation(
        "8bit",
        True,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        key,
    )


def adamw_4bit(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    amsgrad: bool = False,
    *,
    block_size: int = 128,
    bf16_stochastic_round: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adamw_8bit` with codes of 4 bits, two a byte, in blocks of 128.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size, bf16_stochastic_round, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> adamw_4bit().init(jnp.ones(4096)).first.codes.shape
        (2048,)
    """
    return _transformation(
        "4bit",
        True,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        key,
    )


def adamw_fp8(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    amsgrad: bool = False,
    *,
    block_size: int = 256,
    bf16_stochastic_round: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adamw_8bit` whose codes are numbers of e4m3fn, for both moments.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size, bf16_stochastic_round, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> adamw_fp8().init(jnp.ones(4096)).first.codes.shape
        (4096,)
    """
    return _transformation(
        "Fp8",
        True,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        key,
    )


# The names of the classes in `qtorch.optim`.
Adam8bit = adam_8bit
Adam4bit = adam_4bit
AdamFp8 = adam_fp8
AdamW8bit = adamw_8bit
AdamW4bit = adamw_4bit
AdamWFp8 = adamw_fp8
