"""Observers in models: modules that observe the arrays that pass, with their states in variables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.errors import TraceContextError
from jax.core import Tracer

from qcore.affine import Counts, Extremes, QParams
from qcore.affine.histogram import saved_by_cutting
from qcore.arguments import check_type
from qjax._models import running_layer, unnamed
from qjax.nnx.functional import relu
from qjax.quantization import FakeQuantize, FakeQuantizeState, MinMaxObserver, QConfig, disable_observer
from qjax.quantization.observer import State
from qjax.quantization.qconfig import Description
from qjax.quantization.rounding import FormatRounding

OBSERVER = "activation_post_process"  # the attribute of layers
IN_A_TRANSFORMATION = (
    "ranges are observed within jax.vmap, jax.jit, jax.lax.scan or nnx.vmap, which keep no state of a module; allowed "
    "are nnx.jit and nnx.scan, or settings that observe nothing: a QConfigDynamic, and None as activation"
)


class Ran:
    """Notes that traced code leaves: one object for all copies of a module, so that a change causes no new trace.

    Attributes:
        calls: the number of calls of an observer, traced or not.
        first, last: the positions of its first and last call among the calls of all observers.
        scalars: True if `add_scalar` or `mul_scalar` of a FloatFunctional ran.
    """

    _places = itertools.count(1)
    calls = first = last = 0
    scalars = False

    def count(self) -> None:
        """Notes one more call."""
        self.calls, self.last = self.calls + 1, next(self._places)
        self.first = self.first or self.last


class ObserverState(nnx.Variable):
    """The state of an observer or of a `FakeQuantize`: a pytree that `nnx.jit` carries.

    Example:
        >>> from qjax.quantization import MinMaxObserver
        >>> list(nnx.state(Observer(MinMaxObserver()), ObserverState))
        ['state']
    """


class Observer(nnx.Module):
    """An observer or `FakeQuantize` of `qjax.quantization`, or a rounding to a format, with its state.

    Args:
        description: the observer, `FakeQuantize` or rounding.
        shape: the shape of the arrays to observe; per-channel observers need it.

    Attributes:
        state: the state, in a variable.
        deterministic: True in evaluation (`model.eval()` sets it). Fake quantization then keeps its ranges from
            training; without ranges, evaluation calibrates.

    Example:
        >>> from qjax.quantization import MinMaxObserver
        >>> observer = Observer(MinMaxObserver())
        >>> observer(jnp.float32([-1, 3]))
        Array([-1.,  3.], dtype=float32)
        >>> observer.qparams().zero_point
        Array(64, dtype=int32)
    """

    def __init__(self, description: Description, shape: tuple[int, ...] = ()) -> None:
        if not hasattr(description, "init"):
            kind = type(description).__name__
            raise TypeError(f"description is a {kind}; allowed are an observer, a FakeQuantize and a format's rounding")
        self.description: Any = description
        self._evaluates, self._has_ranges = False, False
        self.state = ObserverState(description.init(shape))
        self.ran = Ran()

    @property
    def deterministic(self) -> bool:
        return self._evaluates

    @deterministic.setter
    def deterministic(self, value: bool) -> None:
        if value and not self._evaluates:
            self._has_ranges = self._has_seen
        self._evaluates = value

    @property
    def _has_seen(self) -> bool:
        """True if fake quantization has parameters to round with; traced states count as having them."""
        if not self._rounds:
            return False
        state = self.state.get_value()
        if isinstance(state.scale, Tracer):
            return True
        seen = state.activation_post_process
        touched = (state.scale != 1).any() | (state.zero_point != 0).any()
        return bool(touched | (seen.min_val <= seen.max_val).all())

    @property
    def _rounds(self) -> bool:
        """True if it fake-quantizes."""
        return isinstance(self.description, FakeQuantize)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x, rounded or unchanged; the observation updates the state."""
        self.ran.count()
        state = self.state.get_value()
        if isinstance(self.description, FormatRounding):
            return self.description.apply(state, x)[0]
        if self._rounds:
            if self.deterministic and self._has_ranges:
                return self.description.apply(disable_observer(state), x)[0]
            y, state = self.description.apply(state, x)
        else:
            y, state = x, self.description.update(state, x)
        self._keep(state)
        return y

    def _keep(self, state: Any) -> None:
        """Writes the state, or names what lets none out."""
        try:
            self.state.set_value(state)
        except TraceContextError:
            raise ValueError(f"{running_layer()}{IN_A_TRANSFORMATION}") from None

    def saves(self) -> float:
        """By which share a histogram's parameters have less error than those of the whole range; 0 without data."""
        state, levels = self.state.get_value(), self.description.rule.form._levels
        return 0.0 if state.min_val > state.max_val else saved_by_cutting(Counts(*map(np.asarray, state)), levels)

    def without_counts(self) -> Observer:
        """In the place of an observer with a histogram, one that has seen the same range and cuts nothing off."""
        rule, state = self.description.rule, self.state.get_value()
        made = Observer(MinMaxObserver(rule.form, rule.scheme, eps=rule.eps))
        made.load(Extremes(state.min_val, state.max_val))
        made.ran = self.ran
        return made

    def load(self, state: State | FakeQuantizeState) -> None:
        """Takes over a state, for example from a file, with its ranges."""
        self.state.set_value(state)
        self._has_ranges = self._has_seen

    def set_view(self, deterministic: bool | None = None) -> None:
        """Evaluation or training, as `nnx.view` asks.

        Args:
            deterministic: True for evaluation; None changes nothing.
        """
        if deterministic is not None:
            self.deterministic = deterministic

    def qparams(self) -> QParams:
        """The parameters that follow from the observed arrays.

        Raises:
            ValueError: if no array was observed.
            TypeError: if the observer chooses no parameters.
        """
        if isinstance(self.description, FormatRounding):
            raise TypeError("it rounds to a format, which has no parameters")
        state = self.state.get_value()
        if self._rounds and not self._has_seen:
            raise ValueError("it has seen nothing")
        return self.description.qparams(state)


class Observed(nnx.Module):
    """A layer and the observer of its results.

    Args:
        module: the layer.
        qconfig: the observer's and the weight's settings.

    Attributes:
        activation_post_process: the observer.
        bounds: the bounds to which a later layer clamps the results; they are clamped before they are observed. None
            for no bound.

    Example:
        >>> from qjax.quantization import default_qconfig
        >>> layer = Observed(jax.numpy.negative, default_qconfig)
        >>> layer(jnp.float32([-1, 3]))
        Array([ 1., -3.], dtype=float32)
        >>> layer.activation_post_process.state.get_value().max_val
        Array(1., dtype=float32)
    """

    def __init__(self, module: nnx.Module, qconfig: QConfig) -> None:
        if not (isinstance(module, nnx.Module) or callable(module)):
            raise TypeError(f"module is a {type(module).__name__}; allowed are a flax.nnx.Module and a function")
        check_type("qconfig", qconfig, QConfig, "a QConfig")
        self.module, self.qconfig = module, qconfig
        self.activation_post_process = Observer(qconfig.activation)
        self.bounds: tuple[float | None, float | None] = (None, None)

    def __getattr__(self, name: str) -> Any:
        """A setting of the layer, for code that reads `conv.strides`; flax writes modes to all that have them."""
        if name.startswith("_") or name in ("module", "qconfig", "deterministic", "use_running_average"):
            raise AttributeError(name)
        return getattr(self.module, name)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        module: Any = self.module
        return self.observed(module(*arguments, **settings))

    def observed(self, y: jax.Array) -> jax.Array:
        """A result after the clamp and the observer."""
        return self.activation_post_process(y if self.bounds == (None, None) else jnp.clip(y, *self.bounds))


unnamed(Observed, "module")


class FloatFunctional(nnx.Module):
    """Operations of floats with observed results; `convert` replaces it by a `quantized.QFunctional`.

    Use a separate one for each operation in a model. Before `prepare` there is no observer.

    Attributes:
        activation_post_process: the observer of the results of all methods except `add_scalar` and `mul_scalar`, or
            None.

    Example:
        >>> FloatFunctional().add_relu(jnp.float32([1]), jnp.float32([-3]))
        Array([0.], dtype=float32)
    """

    def __init__(self) -> None:
        self.activation_post_process: Any = nnx.data(None)
        self.qconfig: Any = None
        self.ran = Ran()

    def add(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """x + y."""
        return self._observed(x + y)

    def add_relu(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """max(x + y, 0)."""
        return self._observed(relu(x + y))

    def mul(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """x * y."""
        return self._observed(x * y)

    def mul_relu(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """max(x * y, 0)."""
        return self._observed(relu(x * y))

    def matmul(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The product of matrices, or of stacks of them."""
        return self._observed(jnp.matmul(x, y))

    def einsum(self, equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
        """The contraction that an equation describes."""
        return self._observed(jnp.einsum(equation, x, y))

    def cat(self, x: Sequence[jax.Array], axis: int = 0) -> jax.Array:
        """The arrays one after the other."""
        return self._observed(jnp.concatenate(list(x), axis))

    def add_scalar(self, x: jax.Array, y: float) -> jax.Array:
        """x + y for a number y; not observed, since in integers only the zero point changes."""
        self.ran.scalars = True
        return x + y

    def mul_scalar(self, x: jax.Array, y: float) -> jax.Array:
        """x * y for a number y; not observed, since in integers only the scale changes."""
        self.ran.scalars = True
        return x * y

    def _observed(self, x: jax.Array) -> jax.Array:
        return x if self.activation_post_process is None else self.activation_post_process(x)
