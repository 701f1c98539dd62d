"""Muon with Newton-Schulz iterations in any format, and with momentum in codes of 8 bits, as optax transformations."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qcore import Number
from qcore.linalg import Accumulator
from qcore.reproducible.muon import iterations, rate_scale
from qcore.reproducible.state_codes import LEAST_SIZE, StateCodes
from qjax._rounding.inputs import PyTree
from qjax._rounding.keys import Key
from qjax.optim.coded import CodedTransformation, Rate, check_known, low_halves, transformation
from qjax.reproducible.functions import FUNCTIONS

Format = Number | str | None
_BLOCK = 256


class MuonState(NamedTuple):
    """The state of Muon.

    Attributes:
        step: the number of steps so far, float32 without dimensions.
        momentum: a tree like the parameters, of arrays of the parameter's dtype or of `CodedArray`.
        remainder: the low bits of bfloat16 parameters, int16 arrays and None, or None.

    Example:
        >>> import jax.numpy as jnp
        >>> muon().init(jnp.ones((1, 2))).momentum
        Array([[0., 0.]], dtype=float32)
    """

    step: jax.Array
    momentum: PyTree
    remainder: PyTree = None


def _transformation(
    block: int | None,
    learning_rate: Rate,
    options: dict[str, Any],
    bf16_stochastic_round: bool,
    store_param_remainders: bool,
    key: Key,
) -> CodedTransformation:
    check_known(**options)
    iterations(options["coefficients"], options["steps"])
    rate_scale(options["adjust"], 1, 1)
    operands = options["operands"]
    options = options | {"operands": None if operands is None else (operands, operands)}

    def codes_of(p: Any) -> tuple[StateCodes | None, ...]:
        if len(p.shape) != 2:
            raise ValueError(f"params has an array of shape {tuple(p.shape)}; allowed are two dimensions")
        coded = block is not None and p.size >= LEAST_SIZE and p.size % block == 0
        return (StateCodes("dynamic", block) if coded else None,)  # type: ignore[arg-type]

    def law(p: Any, gradient: Any, states: Any, count: Any, rate: Any) -> tuple[Any, Any]:
        weight, state = FUNCTIONS.muon_step(p, gradient, states[0], rate, codes=codes_of(p)[0], **options)
        return weight, (state,)

    # Everything else is checked by a step of one number.
    one = jnp.zeros((1, 1))
    jax.eval_shape(lambda: law(one, one, (one,), None, jnp.float32(0)))
    remainders = low_halves(store_param_remainders)
    return transformation(law, codes_of, MuonState, learning_rate, bf16_stochastic_round, remainders, key)


def muon(
    learning_rate: Rate = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_coefficients: str | tuple[float, float, float] = "simple",
    eps: float = 1e-7,
    ns_steps: int | None = None,
    adjust_lr_fn: str | None = None,
    *,
    storage: Format = "bfloat16",
    operands: Format = None,
    accumulator: Accumulator | str | None = None,
    bf16_stochastic_round: bool = False,
    store_param_remainders: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """Muon in the order of `torch.optim.Muon`, by `qjax.reproducible.muon_step`; only for matrices.

    The bits are those of `qtorch.optim.Muon`. Other parameters need another optimizer, as by `optax.partition`.

    Args:
        learning_rate: at least 0; a number, an array without dimensions, or a function of the number of steps so far.
        weight_decay: the factor of the weight's decay, at least 0.
        momentum: the momentum's factor, at least 0 and below 1.
        nesterov: True for Nesterov's momentum.
        ns_coefficients: three numbers, or the name of a set, see `qjax.reproducible.orthogonalize`.
        eps: the least norm that a matrix is divided by.
        ns_steps: the number of iterations; None is that of the coefficients, 5 for three numbers.
        adjust_lr_fn: how the rate follows from the shape: "original", which is None too, or "match_rms_adamw".
        storage: the format of the iterations' matrices; None is float32.
        operands: the format of the operands of all products, None for their own; block formats lie along sums.
        accumulator: how products are summed, as for `qjax.linalg.matmul`: a name such as "hopper.wgmma.bf16", or an
            `Accumulator`.
        bf16_stochastic_round, store_param_remainders, key: as for `adam_8bit`.

    Returns:
        A `CodedTransformation`, whose state is a `MuonState`.

    Raises:
        TypeError, ValueError: if an argument is out of range, or a parameter has another dtype or shape.

    Example:
        >>> import jax.numpy as jnp
        >>> optimizer = muon(0.5, ns_coefficients="deepseek_v4", operands="e4m3fn")
        >>> p = jnp.zeros((2, 2))
        >>> gradient = jnp.array([[0.0, 2.0], [2.0, 0.0]])
        >>> optimizer.step(p, gradient, optimizer.init(p))[0]
        Array([[ 0. , -0.5],
               [-0.5,  0. ]], dtype=float32)
    """
    return _transformation(
        None,
        learning_rate,
        {
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "coefficients": ns_coefficients,
            "eps": eps,
            "steps": ns_steps,
            "adjust": adjust_lr_fn,
            "storage": storage,
            "operands": operands,
            "accumulator": accumulator,
        },
        bf16_stochastic_round,
        store_param_remainders,
        key,
    )


def muon_8bit(
    learning_rate: Rate = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_coefficients: str | tuple[float, float, float] = "simple",
    eps: float = 1e-7,
    ns_steps: int | None = None,
    adjust_lr_fn: str | None = None,
    *,
    storage: Format = "bfloat16",
    operands: Format = None,
    accumulator: Accumulator | str | None = None,
    bf16_stochastic_round: bool = False,
    store_param_remainders: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """`muon` whose momentum is codes of 8 bits, in blocks of 256.

    As for `adam_8bit`, matrices with at least 4,096 numbers, whose count 256 divides, have codes, of the map "dynamic".

    Args:
        learning_rate, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn: as for `muon`.
        storage, operands, accumulator, bf16_stochastic_round, store_param_remainders, key: as for `muon`.

    Returns:
        A `CodedTransformation`, whose state is a `MuonState`.

    Raises:
        TypeError, ValueError: as for `muon`.

    Example:
        >>> import jax.numpy as jnp
        >>> muon_8bit().init(jnp.ones((64, 64))).momentum.codes.dtype
        dtype('uint8')
    """
    return _transformation(
        _BLOCK,
        learning_rate,
        {
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "coefficients": ns_coefficients,
            "eps": eps,
            "steps": ns_steps,
            "adjust": adjust_lr_fn,
            "storage": storage,
            "operands": operands,
            "accumulator": accumulator,
        },
        bf16_stochastic_round,
        store_param_remainders,
        key,
    )


# The names of the classes in `qtorch.optim`.
Muon = muon
Muon8bit = muon_8bit
