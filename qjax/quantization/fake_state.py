"""FakeQuantize: an observer and the fake quantization that it chooses parameters for, as pure functions of a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qcore import Number
from qcore.affine import Counts, Extremes, QParams
from qcore.arguments import check_flag, check_type, quoted
from qjax._rounding.inputs import ArrayLike, PyTree, Tree, as_array
from qjax.quantization.affine import Form, fake_quantize
from qjax.quantization.observer import HistogramObserver, MovingAverageMinMaxObserver, RangeObserver, WithArgs
from qjax.quantization.scaled import check_scaled, round_with_scale, scale_of_range


class FakeQuantizeState(NamedTuple):
    """The parameters in use, the switches, and the observer's state; its fields have the names that torch gives them.

    Attributes:
        scale, zero_point: float32 and int32 of shape (), or (channels,); 1 and 0 before any array was seen.
        fake_quant_enabled, observer_enabled: bool of shape (), which may be traced.
        activation_post_process: the observer's state.

    Example:
        >>> state = FakeQuantize().init()
        >>> state.scale, state.observer_enabled
        (Array(1., dtype=float32), Array(True, dtype=bool))
    """

    scale: jax.Array
    zero_point: jax.Array
    fake_quant_enabled: jax.Array
    observer_enabled: jax.Array
    activation_post_process: Extremes | Counts


@dataclass(frozen=True, init=False)
class FakeQuantize:
    """Observes arrays, chooses parameters, and quantizes and dequantizes with them, as a quantized network will.

    With a format, the scale is the larger end of the range divided by the format's largest number. Numbers are
    multiplied with float32(1 / scale), rounded to nearest with saturation, and multiplied with the scale. A histogram
    chooses the range, otherwise it is given by the extremes. Gradients pass straight through.

    `FakeQuantize.with_args(**arguments)` makes an instance; the method of an instance makes a copy whose observer has
    these arguments.

    Args:
        observer: an observer of ranges, or its class; fake quantization uses the observer's integers.
        number: a format in the place of integers, as an object or as text.
        observer_kwargs: arguments of the observer, for example quant_min, quant_max, dtype and qscheme.

    Example:
        >>> module = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=15)
        >>> state = module.init()
        >>> y, state = module.apply(state, jnp.float32([-1, 0.1, 0.3, 2]))
        >>> y
        Array([-1. ,  0. ,  0.4,  2. ], dtype=float32)
        >>> y, state = module.apply(disable_observer(state), jnp.float32([3]))
        >>> y
        Array([2.], dtype=float32)
    """

    observer: RangeObserver
    number: Number | None = None

    with_args = WithArgs(lambda self, **arguments: FakeQuantize(self.observer, **{"number": self.number} | arguments))

    def __init__(
        self,
        observer: RangeObserver | type[RangeObserver] = MovingAverageMinMaxObserver,
        *,
        number: Number | str | None = None,
        **observer_kwargs: Form | float | None,
    ) -> None:
        kind = observer if isinstance(observer, type) else type(observer)
        if not issubclass(kind, RangeObserver):
            raise TypeError(f"observer={quoted(observer)}; allowed are observers of ranges, such as MinMaxObserver")
        object.__setattr__(self, "observer", observer.with_args(**observer_kwargs))
        object.__setattr__(self, "number", None if number is None else check_scaled(number))

    def init(self, shape: tuple[int, ...] = ()) -> FakeQuantizeState:
        """The state before any array was seen, with both switches on.

        Args:
            shape: the shape of the arrays to observe; per-channel observers need it, at least up to the channels.
        """
        observed: Any = self.observer.init(shape)
        one = jnp.ones_like(observed.min_val)
        on = jnp.bool_(True)
        return FakeQuantizeState(one, jnp.zeros_like(one, jnp.int32), on, on, observed)

    def apply(self, state: FakeQuantizeState, x: ArrayLike) -> tuple[jax.Array, FakeQuantizeState]:
        """Observes x if the state's observer is on, then quantizes and dequantizes x if fake quantization is on.

        The gradient with respect to x is that of `fake_quantize` with the parameters held fixed.

        Args:
            state: the state so far.
            x: JAX or NumPy array of float32, float16, bfloat16 or, where x64 is enabled, float64.

        Returns:
            An array of x's shape and dtype, and the next state. Parameters do not change until a number was observed.

        Raises:
            TypeError: if x is not an array of one of these dtypes.
            ValueError: if the numbers of channels of x and of the state differ.
        """
        x = as_array(x)
        return _apply(self.observer, self.number, state, x)

    def qparams(self, state: FakeQuantizeState) -> QParams:
        """The parameters in use."""
        return QParams(state.scale, state.zero_point, self.observer.axis)


@partial(jax.jit, static_argnums=(0, 1))
def _apply(
    observer: RangeObserver, number: Number | None, state: FakeQuantizeState, x: jax.Array
) -> tuple[jax.Array, FakeQuantizeState]:
    observe = partial(_observed, observer, number)
    state = jax.lax.cond(state.observer_enabled, observe, lambda state, _: state, state, x)
    if number is None:
        y: Any = fake_quantize(x, QParams(state.scale, state.zero_point, observer.axis), observer.form)
    else:
        y = round_with_scale(x, state.scale, number, observer.axis or 0)
    return jnp.where(state.fake_quant_enabled, y, x), state


def _format_qparams(observer: RangeObserver, number: Number, observed: Any) -> QParams:
    """A format's scale for what was observed."""
    low, high = observed.min_val, observed.max_val
    if isinstance(observer, HistogramObserver):
        chosen, form = observer.qparams(observed), observer.form
        low, high = ((end - chosen.zero_point).astype(jnp.float32) * chosen.scale for end in (form.qmin, form.qmax))
    scale = scale_of_range(low, high, number)
    return QParams(scale, jnp.zeros_like(scale, jnp.int32), observer.axis)


def _observed(
    observer: RangeObserver, number: Number | None, state: FakeQuantizeState, x: jax.Array
) -> FakeQuantizeState:
    observed: Any = observer.update(state.activation_post_process, x)
    qparams = observer.qparams(observed) if number is None else _format_qparams(observer, number, observed)
    empty = observed.min_val > observed.max_val
    return state._replace(
        scale=jnp.where(empty, state.scale, qparams.scale),
        zero_point=jnp.where(empty, state.zero_point, qparams.zero_point),
        activation_post_process=observed,
    )


def _switch(name: str, field: str, what: str) -> Callable[..., Any]:
    """The function that switches a field of all states in a pytree on, or off by its name."""

    def enable(states: Tree, enabled: bool | jax.Array = True) -> Tree:
        return _switched(states, field, enabled)

    def disable(states: Tree) -> Tree:
        return _switched(states, field, False)

    function, is_on = (enable, True) if name.startswith("enable") else (disable, False)
    function.__doc__ = f"""A pytree of states with all {what}.

    Args:
        states: a pytree; leaves that are not a `FakeQuantizeState` stay as they are.{_ENABLED * is_on}

    Returns:
        A pytree of the same structure.

    Raises:
        ValueError: if {"enabled has a dimension, or " * is_on}a dictionary in states has keys without an order, say an
            int and a str.

    Example:
        >>> {name}([FakeQuantize().init()])[0].{field}
        Array({is_on}, dtype=bool)
    """
    function.__name__ = function.__qualname__ = name
    return function


_ENABLED = """
        enabled: a bool, or a traced one."""
enable_fake_quant = _switch(
    "enable_fake_quant", "fake_quant_enabled", "fake quantization switched on, or off if `enabled` is False"
)
disable_fake_quant = _switch(
    "disable_fake_quant", "fake_quant_enabled", "fake quantization switched off: arrays pass unchanged"
)
enable_observer = _switch("enable_observer", "observer_enabled", "observers switched on, or off if `enabled` is False")
disable_observer = _switch("disable_observer", "observer_enabled", "observers switched off: parameters do not change")


def get_observer_dict(states: PyTree, prefix: str = "") -> dict[str, Extremes | Counts]:
    """The states of all observers in a pytree, by their paths.

    Args:
        states: a pytree of observers' states and of `FakeQuantizeState`.
        prefix: the tree's own name, which precedes all names.

    Returns:
        States of observers of ranges by name, "path.activation_post_process" where they belong to a
        `FakeQuantizeState`, as `save` takes them and `qtorch.quantization.get_observer_dict` names them.

    Raises:
        ValueError: if a dictionary in states has keys without an order, say an int and a str.

    Example:
        >>> module = FakeQuantize()
        >>> list(get_observer_dict({"layers": [module.init(), module.observer.init()]}, "net"))
        ['net.layers.0.activation_post_process', 'net.layers.1']
    """
    check_type("prefix", prefix, str, "a str")
    found, _ = jax.tree_util.tree_flatten_with_path(states, is_leaf=lambda node: isinstance(node, (Extremes, Counts)))
    return {
        ".".join(filter(None, (prefix, jax.tree_util.keystr(path, simple=True, separator=".")))): state
        for path, state in found
        if isinstance(state, (Extremes, Counts))
    }


def _switched(states: Any, name: str, enabled: Any) -> Any:
    if getattr(enabled, "dtype", None) != jnp.bool_:
        check_flag("enabled", enabled)

    def switch(state: Any) -> Any:
        if not isinstance(state, FakeQuantizeState):
            return state
        return state._replace(**{name: jnp.full_like(getattr(state, name), enabled)})

    return jax.tree.map(switch, states, is_leaf=lambda leaf: isinstance(leaf, FakeQuantizeState))
