"""Weights, gradients, momentum and accumulators of any optax optimizer in low precision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import keystr

import qcore
from qcore import Number, Rounding
from qcore.arguments import check_choice, check_float, quoted
from qcore.formats.block import BlockScaled
from qcore.formats.number import check_target
from qcore.linalg.scaling import check_row, is_delayed, next_rows, round_each_delayed
from qjax._rounding.dispatch import decode, encode, quantize, quantize_rows, same_bits
from qjax._rounding.keys import Key, fold_in, key_words
from qjax._rounding.scopes import UNWATCHED, kind_scope, mark
from qjax.linalg.namespace import Float64
from qjax.optim.state import LowPrecisionState, StateInCodes, state_tensors
from qjax.quant.quantizer import QuantizeFunction

Quantizer = Number | str | Callable[[jax.Array], jax.Array] | None

_SMALL = 2**16  # arrays of so many elements are cheap to copy
_COLUMNS = 256
_ROLES = "gradient", "accumulator", "weight", "momentum"
_GRADIENT, _ACCUMULATOR, _WEIGHT, _MOMENTUM = range(4)  # roles, from which the keys follow


def low_precision(
    tx: optax.GradientTransformation,
    weight_quant: Quantizer = None,
    grad_quant: Quantizer = None,
    grad_scaling: float = 1.0,
    momentum_quant: Quantizer = None,
    acc_quant: Quantizer = None,
    key: Key = None,
    state_storage: str | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Rounds the inputs and results of any optax optimizer, as QPyTorch's `OptimLP` does.

    A step, with p the parameter, or its accumulator if acc_quant is given:

        g <- grad_quant(g * grad_scaling)
        p <- p + the optimizer's update for g, p and its state
        p <- acc_quant(p), the accumulator
        weight <- weight_quant(p)
        each of the optimizer's state tensors <- momentum_quant

    State tensors are the floating arrays in those parts of the optimizer's state that have the parameters' structure,
    as `optax.tree_utils.tree_map_params` finds them, or by the parameters' paths if that fails (`optax.lbfgs`, whose
    memories have an axis more) or in lists with an item for each parameter. For a state of floats without such parts
    (`optax.flatten`) `init` raises.

    Parameters of bfloat16 and float16 are stepped in float32 if weights, accumulators or momenta are rounded: gradients
    and accumulators are float32 then, as is the optimizer's state. The parameter is the rounded weight, rounded to
    nearest where its dtype does not hold it. So `weight_quant=qjax.quantizer("bfloat16")` is stochastic rounding of
    bfloat16 weights.

    Step s, s = 0, 1, ..., has the key k = fold_in(key, s); parameter j of the flattened tree uses
    fold_in(fold_in(k, role), j), where the role is 0 for its gradient, 1 for its accumulator, 2 for its weight and
    3 + i for its i-th state tensor, in the order of their names (`mu`, `nu`).

    A format with a delayed scale (`BlockScaled(history=)`) rounds an array with a scale that follows from the array in
    past steps, as for `quantizer`; the scale of the first step is 1. Each gradient, accumulator, weight and state
    tensor has its own scale, which each update advances; the state has them in `scaling`. Such arrays are float32.
    Devices have already reduced the gradients of an optimizer, so `reduce_amax` has no effect; in `shard_map`
    parameters must be whole.

    `optax.apply_updates` gives the quantized weights wherever any update does; `qjax.optim.apply_updates` always does.
    If the user has changed a parameter since the last step, its accumulator starts from the new number. Transformations
    after this one in an `optax.chain` would change the weights.

    Args:
        tx: the optimizer; its updates are added to the parameters.
        weight_quant, grad_quant, momentum_quant, acc_quant: a format or its text (to nearest); a `qjax.quantizer`,
            whose forward rounding is used; a function of an array that keeps shape and dtype; or None.
        grad_scaling: a factor for gradients, above 0; 1 changes nothing.
        key: for stochastic quantizers, see `qjax.quantize`.
        state_storage: "codes" keeps state tensors as integer codes of momentum_quant's format, which is not one of
            blocks; None keeps floats. The numbers of training are the same; only formats without -0.0 lose it.

    Returns:
        An optax transformation, whose `update` needs the parameters and passes further arguments on to tx; see
        `LowPrecisionState`.

    Raises:
        TypeError: if an argument has the wrong type; in `init`, if a parameter is complex.
        ValueError: if an argument is out of range, or a stochastic quantizer has no key; in `update`, if the state has
            not the delayed scales of the formats.

    Example:
        >>> from qjax import quantizer
        >>> rounded = quantizer("e5m2", forward_rounding="stochastic")
        >>> tx = low_precision(optax.sgd(0.1), weight_quant=rounded, acc_quant="bfloat16", key=0)
        >>> params = jnp.float32([1.0, 2.0])
        >>> state = tx.init(params)
        >>> updates, state = tx.update(jnp.float32([3.0, -4.0]), state, params)
        >>> optax.apply_updates(params, updates)
        Array([0.625, 2.5  ], dtype=float32)
    """
    if not isinstance(tx, optax.GradientTransformation):
        raise TypeError(f"tx={quoted(tx)} is a {type(tx).__name__}; allowed is an optax.GradientTransformation")
    given = {
        "grad_quant": grad_quant,
        "acc_quant": acc_quant,
        "weight_quant": weight_quant,
        "momentum_quant": momentum_quant,
    }
    roundings = [_check_quantizer(name, quantize, key) for name, quantize in given.items()]
    words = None if key is None else key_words(key).view(np.uint32)
    if state_storage is not None:
        _check_storage(state_storage, roundings[-1].number)
    checked = optax.with_extra_args_support(tx), _check_scaling(grad_scaling), words
    steps = _LowPrecision(*checked, *roundings, coded=state_storage is not None)
    return optax.GradientTransformationExtraArgs(steps.init, steps.update)  # type: ignore[arg-type]


class _Rounding(NamedTuple):
    """A quantizer: a format and a mode, or a function, or neither; and its argument's name."""

    name: str
    number: Number | None = None
    mode: Rounding = Rounding.NEAREST
    function: Callable[[jax.Array], jax.Array] | None = None

    @property
    def active(self) -> bool:
        return self.number is not None or self.function is not None

    def __call__(
        self, arrays: list[Any], keys: Any, sites: list[tuple[str, str]], rows: list[Any] | None
    ) -> tuple[list[Any], list[Any] | None]:
        """The arrays rounded, and the next rows of their delayed scales, if they have any.

        Args:
            arrays: the arrays of the parameters.
            keys: a row for each array.
            sites: the parameters' paths and the tensors' names.
            rows: see `LowPrecisionState.scaling`.
        """
        if self.number is None:
            return (arrays if self.function is None else [self._call(x) for x in arrays]), rows
        with jax.named_scope(UNWATCHED):
            if rows is None:
                rounded = quantize_arrays(arrays, self.number, self.mode, keys)
            else:
                self._check_float32(arrays, sites)
                rounded, rows = quantize_delayed(arrays, self.number, self.mode, keys, rows)  # type: ignore[arg-type]
        marked = [self._marked(x, y, path, role) for x, y, (path, role) in zip(arrays, rounded, sites, strict=True)]
        return marked, rows

    def _check_float32(self, arrays: list[Any], sites: list[tuple[str, str]]) -> None:
        for x, (path, role) in zip(arrays, sites, strict=True):
            if x.dtype != jnp.float32:
                raise TypeError(
                    f"{self.name}={self.number.text} has a delayed scale, and {role} of parameter {quoted(path)} is "  # type: ignore[union-attr]
                    f"{x.dtype}; allowed are float32, in which 16-bit parameters are stepped if weights, accumulators "
                    "or momenta are rounded, and formats without history"
                )

    def first_row(self) -> jax.Array:
        """The state of a delayed scale before the first step."""
        return jnp.zeros(1 + self.number.history, jnp.float32).at[0].set(1)  # type: ignore[union-attr]

    def _marked(self, x: Any, y: Any, path: str, role: str) -> Any:
        with kind_scope("state", role, path):
            return mark(x, y, self.number)  # type: ignore[union-attr]

    def _call(self, x: Any) -> Any:
        y = self.function(x)  # type: ignore[misc]
        if y.shape != x.shape or y.dtype != x.dtype:
            raise ValueError(
                f"{self.name} made {y.dtype}{list(y.shape)} of {x.dtype}{list(x.shape)}; allowed are functions that "
                "keep shape and dtype"
            )
        return y


class _LowPrecision(NamedTuple):
    """The two functions of `low_precision`, with its checked arguments."""

    tx: optax.GradientTransformationExtraArgs
    scaling: float
    key: Any
    gradient: _Rounding
    accumulator: _Rounding
    weight: _Rounding
    momentum: _Rounding
    coded: bool  # state tensors are codes between steps

    def init(self, params: Any) -> LowPrecisionState:
        _check_real(params)
        key = None if self.key is None else jnp.array(self.key)
        weights, written, stepped = _copy(params), _copy(params), jax.tree.map(self._widened, _copy(params))
        accumulators = _copy(stepped) if self.accumulator.active else None
        inner = self.tx.init(stepped)
        if self.momentum.active:
            state_tensors(self.tx, inner, params)  # raises if they cannot be found
        scaling = {role: self._first_rows(role, inner, params) for role in self._delayed()} or None
        inner = self._encoded(inner, params)
        return LowPrecisionState(jnp.zeros((), jnp.int32), key, weights, written, accumulators, inner, scaling)

    def _encoded(self, inner: Any, params: Any) -> Any:
        """The inner state with codes in the places of state tensors, if it is kept in codes."""
        if not self.coded:
            return inner
        leaves, tree = jax.tree.flatten(inner)
        for tensor in state_tensors(self.tx, inner, params):
            if leaves[tensor.leaf].dtype == jnp.float32:
                leaves[tensor.leaf] = StateInCodes(encode(leaves[tensor.leaf], self.momentum.number))  # type: ignore[arg-type]
        return tree.unflatten(leaves)

    def _decoded(self, inner: Any) -> Any:
        """The inverse of `_encoded`."""

        def decoded(x: Any) -> Any:
            return _decode_unfused(x.codes, self.momentum.number) if isinstance(x, StateInCodes) else x  # type: ignore[arg-type]

        return jax.tree.map(decoded, inner, is_leaf=lambda x: isinstance(x, StateInCodes))

    def _delayed(self) -> list[str]:
        """The roles with delayed scales."""
        return [role for role in _ROLES if is_delayed(getattr(self, role).number)]

    def _first_rows(self, role: str, inner: Any, params: Any) -> Any:
        """The rows of a role's tensors before the first step, see `LowPrecisionState.scaling`."""
        one: _Rounding = getattr(self, role)
        if role != "momentum":
            return jax.tree.map(lambda _: one.first_row(), params)
        leaves, tree = jax.tree.flatten(inner)
        owned = {tensor.leaf for tensor in state_tensors(self.tx, inner, params)}
        return tree.unflatten([one.first_row() if leaf in owned else None for leaf in range(len(leaves))])

    def _rows(self, state: LowPrecisionState, params: Any) -> dict[str, list[Any] | None]:
        """The rows of each role's tensors, in the order of the leaves; None where scales are not delayed."""
        delayed, scaling = self._delayed(), state.scaling
        given = sorted(scaling) if isinstance(scaling, dict) else None if scaling is None else type(scaling).__name__
        if given != (sorted(delayed) or None):
            raise ValueError(
                f"state.scaling has {quoted(given)}; allowed is {delayed or None}, by formats' history, as from init"
            )
        rows: dict[str, list[Any] | None] = dict.fromkeys(_ROLES)
        for role in delayed:
            tree = cast("dict[str, Any]", scaling)[role]
            expected = jax.eval_shape(lambda role=role: self._first_rows(role, state.inner, params))
            if jax.tree.structure(tree) != jax.tree.structure(expected):
                raise ValueError(
                    f"state.scaling[{quoted(role)}] is another tree; allowed is that of init, an array for each tensor"
                )
            for path, row in jax.tree_util.tree_flatten_with_path(tree)[0]:
                check_row(f"state.scaling[{quoted(role)}]{keystr(path)}", row, getattr(self, role).number.history)
            rows[role] = jax.tree.leaves(tree)
        return rows

    def update(
        self, updates: Any, state: LowPrecisionState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, LowPrecisionState]:
        if params is None:
            raise ValueError("params=None; low_precision needs the parameters: update(updates, state, params)")
        params, updates = jax.tree.map(jnp.asarray, (params, updates))
        paths = _paths(params)
        leaves, tree = jax.tree.flatten(params)
        key = None if state.key is None else fold_in(state.key, state.step)
        numbers = np.arange(len(leaves), dtype=np.int32)
        rows = self._rows(state, params)

        grads = [_scaled(self._widened(grad), self.scaling) for grad in tree.flatten_up_to(updates)]
        sites = [(path, "gradient") for path in paths]
        grads, of_grads = self.gradient(grads, _keys(key, _GRADIENT, numbers), sites, rows["gradient"])
        grads = tree.unflatten(grads)
        starts = jax.tree.map(self._start, params, *_last(state))
        steps, inner = self.tx.update(grads, self._decoded(state.inner), starts, **extra_args)
        sums = optax.apply_updates(starts, jax.tree.map(prevent_fma, steps))
        sites = [(path, "accumulator") for path in paths]
        keys = _keys(key, _ACCUMULATOR, numbers)
        kept, of_kept = self.accumulator(jax.tree.leaves(sums), keys, sites, rows["accumulator"])
        sites = [(path, "weight") for path in paths]
        weights, of_weights = self.weight(kept, _keys(key, _WEIGHT, numbers), sites, rows["weight"])
        inner, of_momenta = self._round_momentum(inner, params, key, rows["momentum"])
        inner = self._encoded(inner, params)

        accumulators = _copy(tree.unflatten(kept)) if self.accumulator.active else None
        weights = tree.unflatten([weight.astype(p.dtype) for weight, p in zip(weights, leaves, strict=True)])
        changes = jax.tree.map(difference, params, weights)
        written = optax.apply_updates(params, changes)
        scaling = state.scaling
        if scaling is not None:
            advanced: dict[str, Any] = dict(zip(_ROLES, (of_grads, of_kept, of_weights, of_momenta), strict=True))
            scaling = {role: jax.tree.structure(tree).unflatten(advanced[role]) for role, tree in scaling.items()}
        return changes, LowPrecisionState(state.step + 1, state.key, weights, written, accumulators, inner, scaling)

    def _widened(self, x: jax.Array) -> jax.Array:
        """x in float32 if it has 16 bits and weights, accumulators or momenta are rounded; else x itself."""
        rounds = self.weight.active or self.momentum.active or self.accumulator.active
        return x.astype(jnp.float32) if rounds and x.dtype in (jnp.bfloat16, jnp.float16) else x

    def _start(self, param: jax.Array, weight: jax.Array, written: jax.Array, kept: jax.Array) -> jax.Array:
        """The numbers that a step starts from: the accumulator, or the parameter where it was changed from outside."""
        unchanged = same_bits(param, weight) | same_bits(param, written)
        return jnp.where(unchanged, self._widened(kept), self._widened(param))

    def _round_momentum(self, inner: Any, params: Any, key: Any, rows: Any) -> tuple[Any, Any]:
        if not self.momentum.active:
            return inner, rows
        leaves, tree = jax.tree.flatten(inner)
        tensors = sorted(state_tensors(self.tx, inner, params))  # as the leaves, and rows, are
        roles = np.array([_MOMENTUM + tensor.index for tensor in tensors], np.int32)
        keys = _keys(key, roles, np.array([tensor.parameter for tensor in tensors], np.int32))
        paths = _paths(params)
        sites = [(paths[tensor.parameter], tensor.name) for tensor in tensors]
        rounded, rows = self.momentum([leaves[tensor.leaf] for tensor in tensors], keys, sites, rows)
        for tensor, leaf in zip(tensors, rounded, strict=True):
            leaves[tensor.leaf] = leaf
        return tree.unflatten(leaves), rows


def _check_storage(state_storage: Any, number: Number | None) -> None:
    check_choice("state_storage", state_storage, ["codes"])
    if number is None:
        raise ValueError("state_storage='codes' without a format in momentum_quant; allowed is a format with codes")
    found = qcore.encode(np.zeros(1, np.float32), number)  # raises for a format without codes
    if not isinstance(found, np.ndarray):
        raise ValueError(f"state_storage='codes' with {number.text}; allowed are formats without blocks")
    qcore.decode(found, number, np.float32)  # raises for numbers that float32 does not have


def _check_real(params: Any) -> None:
    """Raises for complex parameters, which no format rounds."""
    for path, x in zip(_paths(params), jax.tree.leaves(params), strict=True):
        if jnp.iscomplexobj(x):
            raise TypeError(
                f"params has {quoted(path)} of {x.dtype}; allowed are real arrays, such as the parts x.real and x.imag"
            )


def _paths(params: Any) -> list[str]:
    """The dotted paths of the parameters in their tree."""
    return [keystr(path, simple=True, separator=".") for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]


def _keys(key: Any, roles: Any, parameters: np.ndarray) -> Any:
    return None if key is None else fold_in(fold_in(key, roles), parameters)


def _scaled(grad: jax.Array, scaling: float) -> jax.Array:
    return grad if scaling == 1 else prevent_fma(grad * scaling)  # XLA would flush subnormal gradients


def _last(state: LowPrecisionState) -> tuple[Any, Any, Any]:
    """Three sets of parameters: exact after the last step, as optax's function wrote them, and to continue from."""
    kept = state.weights if state.accumulators is None else state.accumulators
    return state.weights, state.written, kept


def _copy(params: Any) -> Any:
    return jax.tree.map(jnp.array, params)  # a program that donates its state may hold no buffer twice


def _check_quantizer(name: str, quantize: Any, key: Any) -> _Rounding:
    if quantize is None:
        return _Rounding(name)
    if isinstance(quantize, (Number, str)):
        return _Rounding(name, check_target(quantize, name))
    if isinstance(quantize, QuantizeFunction):
        if quantize.forward_number is None:
            return _Rounding(name, function=lambda x: x)  # not None: accumulators in full precision
        rounding = _Rounding(name, quantize.forward_number, quantize.forward_rounding)
        if rounding.mode.stochastic and key is None:
            raise ValueError(f"key=None; {name} is stochastic and needs a key: an int from 0 to 2^64 - 1, or two words")
        return rounding
    if callable(quantize):
        return _Rounding(name, function=quantize)  # type: ignore[arg-type]
    raise TypeError(
        f"{name}={quoted(quantize)} is a {type(quantize).__name__}; "
        "allowed are a Number or its name, a qjax.quantizer, a "
        "function of an array, and None"
    )


def _check_scaling(scaling: Any) -> float:
    return check_float("grad_scaling", scaling, "a number above 0", lambda factor: 0 < factor < float("inf"))


def quantize_arrays(arrays: list[Any], number: Number, mode: Rounding, keys: Any) -> list[Any]:
    """`[quantize(x, number, mode, key=key) for x, key in zip(arrays, keys)]`, with one call for all small arrays.

    XLA takes far longer to compile a rounding than to run it. `keys` is a uint32 array of shape (len(arrays), 2). A
    number without dimensions is a block.
    """
    shapes = [x.shape for x in arrays]
    arrays = [x if x.ndim else x.reshape(1) for x in arrays]
    groups = defaultdict(list)
    for index, x in enumerate(arrays):
        blocks = x.shape if number.axes(x.ndim) else None
        groups[(x.dtype, blocks) if 0 < x.size <= _SMALL else index].append(index)
    results = list(arrays)
    for indices in groups.values():
        own = None if keys is None else keys[np.array(indices)]
        rounded = _quantize_group([arrays[index] for index in indices], number, mode, own)
        for index, result in zip(indices, rounded, strict=True):
            results[index] = result.reshape(shapes[index])
    return results


@partial(jax.jit, static_argnums=(1, 2))
def quantize_delayed(
    arrays: list[Any], number: BlockScaled, mode: Rounding, keys: Any, rows: list[Any]
) -> tuple[list[Any], list[Any]]:
    """float32 arrays rounded with the delayed scales of their rows, and the next rows; see `quantize_arrays`."""

    def round_elements(scaled: list[Any], element: Number) -> list[Any]:
        with jax.enable_x64(False):
            return quantize_arrays(scaled, element, mode, keys)

    with jax.enable_x64(True):
        rounded = round_each_delayed(Float64, arrays, number, [row[0] for row in rows], round_elements)
        return rounded, next_rows(Float64, rows, tuple(arrays), (number,) * len(arrays))


def _quantize_group(arrays: list[Any], number: Number, mode: Rounding, keys: Any) -> list[Any]:
    if len(arrays) == 1:
        return [quantize(arrays[0], number, mode, key=None if keys is None else keys[0])]
    if number.axes(arrays[0].ndim):  # blocks lie within each array; all arrays have one shape
        return list(_quantize_unfused(number, mode, jnp.stack(arrays), keys, np.zeros(len(arrays), np.int32)))
    parts = [jnp.pad(x.reshape(-1), (0, -x.size % _COLUMNS)).reshape(-1, _COLUMNS) for x in arrays]
    counts = np.array([len(part) for part in parts])
    starts = np.concatenate([np.arange(count, dtype=np.int32) * _COLUMNS for count in counts])
    keys = None if keys is None else jnp.repeat(keys, counts, axis=0, total_repeat_length=len(starts))
    rounded = _quantize_unfused(number, mode, jnp.concatenate(parts), keys, starts)
    parts = jnp.split(rounded, np.cumsum(counts)[:-1])
    return [part.reshape(-1)[: x.size].reshape(x.shape) for part, x in zip(parts, arrays, strict=True)]


@partial(jax.jit, static_argnums=(0, 1))
def _quantize_unfused(number: Number, mode: Rounding, rows: jax.Array, keys: Any, starts: Any) -> jax.Array:
    """`quantize_rows` inside a conditional, across which XLA does not fuse.

    Otherwise XLA would repeat the whole rounding in each kernel that uses one of the rows.
    """
    first = rows.reshape(-1)[0]
    always = (first == first) | (first != first)
    return jax.lax.cond(always, lambda: quantize_rows(rows, number, mode, keys, starts), lambda: rows)


def _decode_unfused(codes: jax.Array, number: Number) -> jax.Array:
    """The numbers of codes inside a conditional, as in `_quantize_unfused`.

    Otherwise XLA would compile the optimizer's own operations into other kernels than without codes, with other bits.
    """
    if not codes.size:
        return decode(codes, number)
    known = codes.reshape(-1)[0].astype(jnp.float32)
    always = (known == known) | (known != known)
    return jax.lax.cond(always, lambda: decode(codes, number), lambda: codes.astype(jnp.float32))


def prevent_fma(x: jax.Array) -> jax.Array:
    """x itself; XLA then does not contract the product that gives x and a sum that uses x to one FMA."""
    return jnp.where(x == x, x, jnp.full_like(x, jnp.nan))


def difference(p: jax.Array, q: jax.Array) -> jax.Array:
    """The d nearest to q - p such that p + d has the bits of q; where no float d does, q - p rounded.

    All sums within half a step of q are rounded to q. So if any float d leads to q, the one nearest to q - p does; only
    where q is a power of two, whose steps toward zero are half as long, it may be the next one away from zero. (If d
    and q have different signs, d is shorter than p, both are multiples of d's step, and d is exact or none is.) No d
    leads to q where q's steps are finer than those of q - p (p = 1, q = 1e-9); to -0.0 from another number; from
    infinity to a number; nor, where XLA flushes subnormal numbers, to or from these.
    """
    nearest = q - p
    beyond = (nearest.view(f"int{8 * p.dtype.itemsize}") + 1).view(p.dtype)
    d = jnp.where(same_bits(p + beyond, q) & ~same_bits(p + nearest, q), beyond, nearest)
    return jnp.where(same_bits(p, q), jnp.full_like(p, -0.0), d)  # adding -0.0 changes nothing, not even -0.0
