"""Adam and AdamW whose moments are codes of 8 or 4 bits, as optax transformations."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from qcore.arguments import check_flag, check_int
from qcore.reproducible.optimizers import adam_options
from qcore.reproducible.state_codes import StateCodes, adam_codes
from qjax._rounding.inputs import PyTree
from qjax._rounding.keys import Key
from qjax.optim.coded import CodedTransformation, Rate, Remainders, check_known, low_halves, transformation
from qjax.reproducible.functions import FUNCTIONS


class CodedAdamState(NamedTuple):
    """The state of Adam with codes.

    Attributes:
        step: the number of steps so far, float32 without dimensions.
        first, second: trees like the parameters, of `CodedArray` or of arrays of the parameter's dtype.
        largest: the same for amsgrad, else None.
        remainder: the low bits of bfloat16 parameters, int16 arrays and None, or None.

    Example:
        >>> import jax.numpy as jnp
        >>> adamw_8bit().init(jnp.ones(3)).first  # too few numbers for codes
        Array([0., 0., 0.], dtype=float32)
    """

    step: jax.Array
    first: PyTree
    second: PyTree
    largest: PyTree = None
    remainder: PyTree = None


def adam_transformation(
    storage: str,
    decoupled: bool,
    learning_rate: Rate,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    amsgrad: bool,
    block_size: int,
    bf16_stochastic_round: bool,
    remainders: Remainders | None,
    key: Key,
    order: str = "torchao",
) -> CodedTransformation:
    """Adam with codes; arguments are those of `adam_8bit`, of `ADAM_KINDS` and of `adam_step_with_codes`."""
    check_known(betas=betas, eps=eps, weight_decay=weight_decay, block_size=block_size)
    options: dict[str, Any] = adam_options(betas, eps, weight_decay) | {"decoupled": decoupled, "order": order}
    check_flag("amsgrad", amsgrad)
    check_int("block_size", block_size, 1)
    adam_codes(storage, block_size, 0, False)  # raises for a block of the wrong size

    def codes_of(p: Any) -> tuple[StateCodes | None, ...]:
        return adam_codes(storage, block_size, p.size, amsgrad)

    def law(p: Any, gradient: Any, states: Any, count: Any, rate: Any) -> tuple[Any, Any]:
        return FUNCTIONS.adam_step_with_codes(p, gradient, states, count, rate, codes_of(p), **options)

    return transformation(law, codes_of, CodedAdamState, learning_rate, bf16_stochastic_round, remainders, key)


def adam_8bit(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    *,
    block_size: int = 256,
    bf16_stochastic_round: bool = False,
    store_param_remainders: bool = False,
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
        store_param_remainders: True to keep the other 16 bits of bfloat16 parameters in the state, as int16 arrays: a
            step reads and writes float32 numbers, of which the parameters are roundings. Use `step`.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, two 32-bit words, or a typed key of JAX.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: if an argument is out of range, or a parameter has another dtype than float32, bfloat16
            and float16.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> optimizer = adam_8bit(0.5)
        >>> p = jnp.ones(4096)
        >>> state = optimizer.init(p)
        >>> updates, state = optimizer.update(jnp.ones(4096), state, p)
        >>> optax.apply_updates(p, updates)[0].round(3), state.first.codes.dtype
        (Array(0.5, dtype=float32), dtype('uint8'))
    """
    return adam_transformation(
        "8bit",
        False,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        low_halves(store_param_remainders),
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
    store_param_remainders: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adam_8bit` with codes of 4 bits, two a byte, in blocks of 128.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size: as for `adam_8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> import jax.numpy as jnp
        >>> adam_4bit().init(jnp.ones(4096)).first.codes.shape
        (2048,)
    """
    return adam_transformation(
        "4bit",
        False,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        low_halves(store_param_remainders),
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
    store_param_remainders: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adam_8bit` whose codes are numbers of e4m3fn, for both moments.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size: as for `adam_8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> import jax.numpy as jnp
        >>> adam_fp8().init(jnp.ones(4096)).first.codes.shape
        (4096,)
    """
    return adam_transformation(
        "Fp8",
        False,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        low_halves(store_param_remainders),
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
    store_param_remainders: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adam_8bit` whose weight decay is decoupled: a parameter loses the rate times weight_decay times itself.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size: as for `adam_8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> import jax.numpy as jnp
        >>> adamw_8bit().init(jnp.ones(4096)).first.codes.shape
        (4096,)
    """
    return adam_transformation(
        "8bit",
        True,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        low_halves(store_param_remainders),
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
    store_param_remainders: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adamw_8bit` with codes of 4 bits, two a byte, in blocks of 128.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size: as for `adam_8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> import jax.numpy as jnp
        >>> adamw_4bit().init(jnp.ones(4096)).first.codes.shape
        (2048,)
    """
    return adam_transformation(
        "4bit",
        True,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        low_halves(store_param_remainders),
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
    store_param_remainders: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`adamw_8bit` whose codes are numbers of e4m3fn, for both moments.

    Args:
        learning_rate, betas, eps, weight_decay, amsgrad, block_size: as for `adam_8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adam_8bit`.

    Example:
        >>> import jax.numpy as jnp
        >>> adamw_fp8().init(jnp.ones(4096)).first.codes.shape
        (4096,)
    """
    return adam_transformation(
        "Fp8",
        True,
        learning_rate,
        betas,
        eps,
        weight_decay,
        amsgrad,
        block_size,
        bf16_stochastic_round,
        low_halves(store_param_remainders),
        key,
    )


# The names of the classes in `qtorch.optim`.
Adam8bit = adam_8bit
Adam4bit = adam_4bit
AdamFp8 = adam_fp8
AdamW8bit = adamw_8bit
AdamW4bit = adamw_4bit
AdamWFp8 = adamw_fp8
