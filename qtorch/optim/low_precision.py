"""`OptimLP`: any optimizer of torch, with weights, gradients, momenta and accumulators of low precision."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial, wraps
from numbers import Real
from textwrap import indent
from typing import Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from qcore import Number
from qcore.arguments import check_float, check_seed, check_type, quoted
from qcore.random.threefry import fold_words
from qtorch._rounding.keys import Key, draw, key_tensor
from qtorch.optim.quantizers import (
    Function,
    Quantizers,
    Rows,
    Scalings,
    check_quantizer,
    check_saved,
    delayed_numbers,
    describe,
    is_entry,
    is_stochastic,
    load_rows,
)
from qtorch.optim.step import Loss, Observer, Step
from qtorch.optim.storage import decode_states, encode_states, has_codes, stored_number
from qtorch.optim.trained import ENTRIES, NARROW, Masters, Pair, Trained
from qtorch.quant import Quantizer

QUANTIZERS = ("weight_quant", "grad_quant", "momentum_quant", "acc_quant")

_OF_METHODS = 0xFFFFFFFF  # is folded into the key of a step, for methods of the inner optimizer
_STEPS, _KEY = "low_precision_steps", "low_precision_key"  # entries of param groups

Hook = Callable[..., Any]
QuantizerLike = Function | Quantizer | Number | str | None
Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., Any])


def _run_eagerly(function: Method) -> Method:
    """Makes programs for `torch.compile` call a function, not trace it: compilers contract and reorder sums."""
    return torch.compiler.disable(function)  # type: ignore[return-value]


class Hooks(OrderedDict[int, Hook]):
    """Hooks of one kind, in the order in which they are called."""

    def add(self, hook: Hook, prepend: bool) -> RemovableHandle:
        """Adds a hook after all other hooks, or before them; the handle removes it."""
        handle = RemovableHandle(self)
        self[handle.id] = hook
        if prepend:
            self.move_to_end(handle.id, last=False)
        return handle

    def apply(self, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        """The state after all hooks, each of which may return another one."""
        for hook in self.values():
            state = hook(optimizer, state) or state
        return state

    def call(self, optimizer: Any) -> None:
        for hook in self.values():
            hook(optimizer)


class StateHooks:
    """`torch.optim.Optimizer`'s four methods that register functions to call when state is saved or loaded."""

    _before_saving: Hooks
    _after_saving: Hooks
    _before_loading: Hooks
    _after_loading: Hooks

    def _forget_hooks(self) -> None:
        self._before_saving, self._after_saving = Hooks(), Hooks()
        self._before_loading, self._after_loading = Hooks(), Hooks()

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        return self._before_saving.add(hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        return self._after_saving.add(hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        return self._before_loading.add(hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        return self._after_loading.add(hook, prepend)


class OptimLP(StateHooks, torch.optim.Optimizer):
    """Steps another optimizer in low precision.

    A step, for each parameter that requires a gradient and has one (other parameters do not change):

    1. gradient <- grad_quant(gradient * grad_scaling), in `p.grad` itself, so that it can be read afterwards;
    2. weight <- accumulator, if there is `acc_quant`;
    3. the inner optimizer's step;
    4. accumulator <- acc_quant(weight);
    5. weight <- weight_quant(accumulator), or of the weight if there is no accumulator;
    6. each floating tensor in the inner optimizer's state <- momentum_quant.

    Momenta are tensors of the state, and tensors in lists, tuples and dictionaries there (Shampoo's factors, LBFGS's
    history), but not scalars (steps and schedules).

    Other methods and attributes of the inner optimizer are this one's as well (`train` and `eval` of schedule-free
    optimizers). A method sees what the inner step sees, accumulators in the places of weights. The weights that it
    changes are rounded behind it as in a step, with the key fold_in(k, 2^32 - 1) in the place of k.

    Parameters of bfloat16 and float16 are stepped in float32 if weights, accumulators or momenta are rounded. Gradient,
    accumulator and the inner optimizer's state are float32 then; `p.grad` gets the rounded gradient and p the rounded
    weight, both rounded to nearest if their dtype does not hold them. So `weight_quant=quantizer("bfloat16")` is
    stochastic rounding of bfloat16 weights. The bits are equal to those of float32 parameters that start from the same
    numbers, as long as each weight is a number of the parameter's dtype.

    An accumulator starts as a copy of its weight. If the bits of a weight differ from those of the last step, other
    code has loaded or changed it; this element of the accumulator then becomes the weight.

    A closure reads the low-precision weights. If the inner optimizer evaluates it again (LBFGS), the later evaluations
    read this optimizer's own unrounded points; the gradients of all evaluations are rounded with the same keys.

    Parameters, gradients and momenta are written in place. Between steps, `state` has the accumulators and the numbers
    last written to weights (`low_precision_accumulator`, `low_precision_weight`), and `param_groups` the number of
    steps and the key.

    A format with a delayed scale (`BlockScaled(history=)`) rounds a tensor with a scale that follows from the tensor in
    past steps, as for `Quantizer`; the scale of the first step is 1. Each parameter's gradient, accumulator, weight and
    momenta have their own scales, which a step advances once, after all evaluations of a closure. They are float32
    tensors in `state`, of the scale and the past largest magnitudes: `low_precision_scaling_of_weight` and so on, and
    for momenta `low_precision_scaling_of_state_exp_avg` and so on. A `Quantizer`'s own buffer is neither read nor
    changed. Processes have already reduced the gradients of an optimizer, so `reduce_amax` has no effect. Tensors with
    delayed scales must be float32, and must not be sharded.

    A step with learning rates and gradients of 0 only makes the state, as torch.distributed.checkpoint needs it:
    weights do not change, and the step is not counted.

    Keys: step number s (0, 1, ...) has the key k = fold_in(key, s). The role r of parameter number j is rounded with
    fold_in(fold_in(k, r), j). The roles of gradient, accumulator and weight are 0, 1 and 2; the parameter's momenta,
    sorted by name ("GG.0" before "GG.1"), have the roles from 3 on. All parameters are numbered in the order of the
    param groups.

    Args:
        optim: the inner optimizer, any of torch.optim.
        weight_quant: the rounding of weights: a function of a tensor that returns the rounded tensor; a `Quantizer`; or
            a `Number` or its name, which rounds to nearest. None does not round.
        grad_scaling: a factor of all gradients; the inverse of a loss scale.
        grad_quant: the rounding of gradients.
        momentum_quant: the rounding of the inner optimizer's state.
        acc_quant: the rounding of accumulators; None is without accumulators.
        key: for stochastic quantizers: an int from 0 to 2^64 - 1, two 32-bit words, or an integer tensor of two words.
            None draws k from torch's default generator, once a step. Functions do not get a key.
        state_storage: "codes" keeps the inner optimizer's state as codes of momentum_quant's format between steps, and
            decodes it in a step; None keeps floats. The numbers of training are the same; only formats without -0.0
            lose it. Codes are float32 tensors of a parameter's state that codes give back; others, and tensors in lists
            there, stay floats.

    Attributes:
        optim: the inner optimizer.
        steps: the number of steps so far.
        observer: None, or a function that is called after each rounding to a format, with the parameter, the name of
            the tensor ("gradient", "accumulator", "weight", or its name in the state), the tensor before and after, and
            the format; `qtorch.insight.watch` sets it.

    Raises:
        TypeError: if an argument has the wrong type, or a parameter is complex; in a step, if a tensor with a delayed
            scale is not float32, or is sharded.
        ValueError: if a name is unknown or a key out of range.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> inner = torch.optim.SGD([weight], lr=0.1)
        >>> optimizer = OptimLP(inner, weight_quant="e5m2", acc_quant="bfloat16")
        >>> weight.pow(2).sum().backward()
        >>> optimizer.step()
        >>> weight.data, optimizer.weight_acc[weight]
        (tensor([ 0.7500, -1.5000]), tensor([ 0.8008, -1.6016]))
    """

    observer: Observer | None = None
    state_storage: str | None = None  # of optimizers pickled before there was the argument

    def __init__(
        self,
        optim: torch.optim.Optimizer,
        weight_quant: QuantizerLike = None,
        grad_scaling: float = 1.0,
        grad_quant: QuantizerLike = None,
        momentum_quant: QuantizerLike = None,
        acc_quant: QuantizerLike = None,
        key: Key = None,
        state_storage: str | None = None,
    ) -> None:
        if not isinstance(optim, torch.optim.Optimizer):
            raise TypeError(f"optim={quoted(optim)} is a {type(optim).__name__}; allowed is a torch.optim.Optimizer")
        if not isinstance(grad_scaling, Real) or isinstance(grad_scaling, bool):
            raise TypeError(
                f"grad_scaling={quoted(grad_scaling)} is a {type(grad_scaling).__name__}; allowed is a number"
            )
        self.optim = optim
        self.weight_quant, self.grad_quant = weight_quant, grad_quant
        self.momentum_quant, self.acc_quant = momentum_quant, acc_quant
        self.grad_scaling = check_float("grad_scaling", grad_scaling, "a number", lambda _: True)
        self.key: tuple[int, int] | None = None if key is None else _words(key)
        self.steps = 0
        self.state_storage = state_storage
        stored_number(state_storage, self._quantizers()["momentum_quant"])  # raise where one is wrong
        self._check_real(optim.param_groups)
        self._forget_hooks()
        # Hooks of steps, as an unpickled optimizer gets them, and no groups: these are the inner one's.
        super().__setstate__({})
        self._masters: Masters | None = None  # of the step that is being taken
        self._trained = Trained(self.param_groups, self.state, acc_quant is not None)

    # These stay the inner optimizer's when it loads others, and schedulers of either see both. Accumulators, number of
    # steps and key are in them too, where torch.distributed.checkpoint saves them.

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        key = None if self.key is None else self.key[0] << 32 | self.key[1]
        for group in self.optim.param_groups:
            group[_STEPS], group[_KEY] = self.steps, key
        return self.optim.param_groups

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:  # type: ignore[override]
        return self.optim.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optim.defaults

    @property
    def weight_acc(self) -> dict[torch.Tensor, torch.Tensor]:
        """The accumulators of the trained parameters, by parameter; empty without `acc_quant`."""
        trained = self._current()
        trained.follow_weights()
        return dict(zip(trained.parameters, trained.accumulators, strict=False))  # if there are any

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optim.add_param_group(param_group)
        try:
            self._check_real(self.optim.param_groups)
        except TypeError:
            del self.optim.param_groups[-1]
            raise

    def __getattr__(self, name: str) -> Any:
        """Attributes that only the inner optimizer has; see the class."""
        if name.startswith("_") or "optim" not in vars(self):  # private ones, and those of a copy that is being made
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")
        found = getattr(self.optim, name)
        return wraps(found)(partial(self._call, found)) if callable(found) else found

    @_run_eagerly
    def _call(self, method: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """The result of a method of the inner optimizer, behind which weights are rounded."""
        quantizers, trained = self._quantizers(), self._current()
        key = self._step_key() if any(map(is_stochastic, quantizers.values())) else None
        numbers = delayed_numbers(quantizers)
        number = stored_number(self.state_storage, quantizers["momentum_quant"])
        self._masters = self._new_masters()
        decode_states(self.state.items())
        try:
            rows = Scalings(numbers, trained) if numbers else None
            words = None if key is None else fold_words(*key, _OF_METHODS)
            one = Step(trained, quantizers, self.grad_scaling, words, self.observer, self._masters, rows)
            return one.call(self.optim, partial(method, *args, **options))
        finally:
            self._masters = None
            if number is not None:
                encode_states(self.state.items(), number)

    def _check_real(self, groups: list[dict[str, Any]]) -> None:
        """Raises for complex parameters, which no format rounds."""
        parameters = [p for group in groups for p in group["params"]]
        for number, p in enumerate(parameters):
            if p.is_complex() and any(getattr(self, name) is not None for name in QUANTIZERS):
                raise TypeError(
                    f"optim has parameter {number} of {p.dtype}; allowed are real ones, such as the result of "
                    "torch.view_as_real(p)"
                )

    @_run_eagerly
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """Takes a step; see the class. Programs for `torch.compile` call it as eager programs do, with the same bits.

        Args:
            closure: evaluates the model, computes gradients and returns the loss; needed by some optimizers.

        Returns:
            The result of the inner optimizer's step: the loss if there is a closure.
        """
        quantizers, trained = self._quantizers(), self._current()
        numbers = delayed_numbers(quantizers)
        number = stored_number(self.state_storage, quantizers["momentum_quant"])
        only_initializes = closure is None and self._only_initializes()
        if only_initializes:
            quantizers = dict.fromkeys(quantizers)
        key = self._step_key() if any(map(is_stochastic, quantizers.values())) else None
        self._masters = self._new_masters()
        decode_states(self.state.items())
        try:
            rows = Scalings(numbers, trained) if numbers else None
            one = Step(trained, quantizers, self.grad_scaling, key, self.observer, self._masters, rows)
            loss = one.run(self.optim, closure)
        finally:
            self._masters = None
            if number is not None:
                encode_states(self.state.items(), number)
        self.steps += not only_initializes
        return loss

    def _new_masters(self) -> Masters | None:
        """For 16-bit parameters, if their weights, momenta or accumulators are rounded."""
        rounds = any(getattr(self, name) is not None for name in QUANTIZERS if name != "grad_quant")
        return Masters(self.optim) if rounds and any(p.dtype in NARROW for p in self._trained.parameters) else None

    def _only_initializes(self) -> bool:
        """True for the step by which torch.distributed.checkpoint makes state: learning rates and gradients are 0."""
        rates = [group.get("lr") for group in self.optim.param_groups]
        if not all(isinstance(rate, float | int | torch.Tensor) and rate == 0 for rate in rates):
            return False
        return not any(p.grad is not None and p.grad.count_nonzero() for p in self._trained.parameters)

    def _quantizers(self) -> Quantizers:
        return {name: check_quantizer(name, getattr(self, name)) for name in QUANTIZERS}

    def _step_key(self) -> tuple[int, int]:
        return _words(draw()) if self.key is None else fold_words(*self.key, self.steps)

    def _current(self) -> Trained:
        if self._masters is None and not self._trained.is_current(self.param_groups):
            self._trained = Trained(self.param_groups, self.state, self.acc_quant is not None, self._trained)
        return self._trained

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state dict, with accumulators and scales in `state`, steps and key in `param_groups`.

        Loaded into a fresh optimizer next to the model's own state, it continues with the same bits (where no key was
        given, once torch's generator is restored too). It can be loaded by `torch.load(..., weights_only=True)`, and
        torch.distributed.checkpoint keeps all of it. As in torch, it refers to the optimizer's memory.
        """
        self._before_saving.call(self)
        groups = self.param_groups  # with steps and key
        assert groups is self.optim.param_groups
        return self._after_saving.apply(self, self.optim.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` returned, before or after the model's state; the key is loaded as well.

        Args:
            state_dict: the state of an `OptimLP` with the same kind of inner optimizer, and with accumulators and
                delayed scales if this one has them, otherwise without. Load the state of a plain optimizer into
                `optim`.

        Raises:
            TypeError: if it is not a dictionary.
            ValueError: if it is the state of another optimizer.
        """
        check_type("state_dict", state_dict, dict, "a dict")
        steps, key, pairs, rows, inner = _split(self._before_loading.apply(self, state_dict.copy()))
        trained = self._current()
        trained.check(pairs, steps)
        inner["state"] = {name: dict(entry) for name, entry in inner["state"].items()}
        decode_states((torch.empty(0), entry) for entry in inner["state"].values())
        states = dict(enumerate(map(inner["state"].get, _names(inner))))
        states = {number: entries for number, entries in states.items() if entries}
        check_saved(delayed_numbers(self._quantizers()), trained, rows, states, steps)
        masters = self._new_masters()
        try:
            if masters is not None:  # torch casts loaded state to the dtypes of the parameters
                masters.put_in(trained.parameters)
            self.optim.load_state_dict(inner)
        finally:
            if masters is not None:
                masters.take_out()
        self.steps, self.key = steps, key
        trained.load(pairs, self.state)
        load_rows(trained, rows, self.state)
        if (number := stored_number(self.state_storage, self._quantizers()["momentum_quant"])) is not None:
            encode_states(self.state.items(), number)
        self._after_loading.call(self)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: getattr(self, name)
            for name in ("optim", "grad_scaling", *QUANTIZERS, "steps", "key", "state_storage")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._forget_hooks()
        self._masters = None
        super().__setstate__(state)
        self._trained = Trained(self.param_groups, self.state, self.acc_quant is not None)

    def __repr__(self) -> str:
        given = {name: getattr(self, name) for name in QUANTIZERS}
        lines = [f"{name}: {describe(quantizer)}" for name, quantizer in given.items() if quantizer is not None]
        lines += [] if self.state_storage is None else [f"state_storage: {self._said_storage()}"]
        lines += [f"grad_scaling: {self.grad_scaling}", f"key: {self.key}", repr(self.optim)]
        return f"{type(self).__name__} (\n{indent(chr(10).join(lines), '    ')}\n)"

    def _said_storage(self) -> str:
        """Which parameters have states in codes."""
        parameters = [p for group in self.optim.param_groups for p in group["params"]]
        coded = [number for number, p in enumerate(parameters) if has_codes(self.state.get(p) or {})]
        return f"{self.state_storage}, of parameters {', '.join(map(str, coded)) or 'none yet'} of {len(parameters)}"


def _words(key: Key) -> tuple[int, int]:
    """A key's two unsigned words."""
    word0, word1 = key_tensor(key).tolist()
    return word0 & 0xFFFFFFFF, word1 & 0xFFFFFFFF


def _names(state: dict[str, Any]) -> list[Any]:
    """The keys of the parameters' entries in a state, in the parameters' order: numbers, or names."""
    return [name for group in state["param_groups"] for name in group["params"]]


def _split(
    state: dict[str, Any],
) -> tuple[int, tuple[int, int] | None, dict[int, Pair], dict[int, Rows], dict[str, Any]]:
    """Number of steps and key; pairs of accumulators, and rows of delayed scales, by parameters' numbers; the rest."""
    groups = state.get("param_groups", [])
    if "low_precision" in state:  # as it was until accumulators got into `state`
        extra = state.pop("low_precision")
        return extra["steps"], extra["key"], extra["accumulators"] or {}, {}, state
    if not groups or any(_STEPS not in group for group in groups):
        raise ValueError(
            f"state_dict has the entries {', '.join(state)}; allowed is what OptimLP.state_dict returned, with "
            f"{_STEPS} in its param_groups (a plain optimizer's can be loaded into `optim`)"
        )
    entries = {name: dict(entry) for name, entry in state["state"].items()}
    pairs, rows = {}, {}
    for number, name in enumerate(_names(state)):
        own = entries.get(name, {})
        if found := {entry: own.pop(entry) for entry in list(filter(is_entry, own))}:
            rows[number] = found
        if ENTRIES[0] in entries.get(name, {}):
            pairs[number] = tuple(entries[name].pop(entry) for entry in ENTRIES)
    inner = state | {"state": {name: entry for name, entry in entries.items() if entry}}
    return groups[0][_STEPS], None if groups[0][_KEY] is None else check_seed(groups[0][_KEY]), pairs, rows, inner
