"""`FakeQuantize`: simulates quantization in training, with parameters that follow from the observed tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qcore import Number
from qcore.affine import QParams
from qcore.affine.parameters import check_input
from qcore.arguments import check_flag, check_type
from qtorch._affine.affine import fake_quantize, with_gradient
from qtorch._affine.dtypes import FixedDtypes
from qtorch._affine.launch import observer_on_cpu
from qtorch._affine.namespace import Names
from qtorch._affine.observer import (
    Factory,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    ObserverBase,
    PerChannelMinMaxObserver,
    RangeObserver,
    RuleObserver,
    fit,
    shows_nothing,
    store,
)
from qtorch._affine.scaled import check_scaled, round_with_scale, scale_of_range
from qtorch._conversion import converted
from qtorch._rounding.paths.choice import check_device, is_plain_tensor
from qtorch._states import keeps_zero_point
from qtorch._torch_internals import has_forward_hooks, is_recomputed

# Observers whose update the kernel implements; a subclass may have another update
_OBSERVERS = {
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    PerChannelMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    RuleObserver,
}


class FakeQuantize(FixedDtypes):
    """Observes a tensor, then quantizes and dequantizes it by the observer's parameters, or rounds it to a format.

    Gradients are those of `fake_quantize_per_tensor_affine`, or of its sibling for channels. Observing and rounding can
    each be switched off by the methods below. The buffers of the switches only save them to state_dicts and load them:
    under `torch.compile` the switches are constants, and a change compiles the program again.

    The parameters are 1 and 0 until a number was observed; histograms ignore numbers that are not finite.

    With a format the scale is the largest magnitude of the range (of each channel, for observers of channels), divided
    by the format's largest number. Numbers are multiplied by float32(1 / scale), rounded to nearest with saturation,
    and multiplied by the scale. The range is chosen by a histogram, or goes from the least to the greatest number.
    Gradients pass straight through.

    Args:
        observer: a class of observers of ranges, or another function that makes one.
        quant_min, quant_max: a part of the range of the observer's dtype; None for all of it.
        number: a format instead of integers, as an object or as text; allowed are the element formats of `BlockScaled`
            with scale="float32".
        observer_kwargs: other arguments of the observer.

    Attributes:
        scale, zero_point: the parameters in use; 1 and 0 before any observation.
        activation_post_process: the observer.
        observes_in_eval: whether it observes in evaluation too, like torch's class; `prepare_qat` sets it to False.
            Then `eval()` freezes ranges from training; if there are none, evaluation calibrates.

    Example:
        >>> fake_quantize = FakeQuantize(quant_min=0, quant_max=3)
        >>> fake_quantize(torch.tensor([0.0, 0.7, 1.2, 3.0]))
        tensor([0., 1., 1., 3.])
        >>> fake_quantize.disable_observer()
        >>> fake_quantize(torch.tensor([9.0]))
        tensor([3.])
        >>> FakeQuantize(number="e4m3fn")(torch.tensor([1000.0, 1.0])).tolist()
        [1000.0, 0.9765625]
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    fake_quant_enabled: torch.Tensor
    observer_enabled: torch.Tensor

    def __init__(
        self,
        observer: Callable[..., ObserverBase] = MovingAverageMinMaxObserver,
        quant_min: int | None = None,
        quant_max: int | None = None,
        *,
        number: Number | str | None = None,
        **observer_kwargs: object,
    ) -> None:
        super().__init__()
        self.number = None if number is None else check_scaled(number)
        check_type("observer", observer, Callable, "a class of observers, or a function that makes one")
        ends = {"quant_min": quant_min, "quant_max": quant_max}
        made = observer(**{name: end for name, end in ends.items() if end is not None}, **observer_kwargs)
        if not isinstance(made, RangeObserver):
            raise TypeError(f"observer made a {type(made).__name__}; allowed are observers of ranges: MinMaxObserver")
        self.activation_post_process = made
        self.dtype, self.qscheme = made.dtype, made.qscheme
        self.quant_min, self.quant_max = made.quant_min, made.quant_max
        self.ch_axis = getattr(made, "ch_axis", -1)
        self.register_buffer("fake_quant_enabled", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("observer_enabled", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("scale", torch.tensor([1.0]))
        self.register_buffer("zero_point", torch.tensor([0], dtype=torch.int32))
        self._rounds = self._observes = self.observes_in_eval = True
        self._has_ranges = False  # when evaluation began

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Observes x, if observing is enabled, and rounds it, if rounding is enabled.

        Args:
            x: tensor of float32, float64, float16 or bfloat16.

        Raises:
            TypeError: if x has another type.
            ValueError: if x has another number of channels than earlier tensors.
        """
        plain = is_plain_tensor(x)
        # The switches are Python flags besides buffers, so that a call reads no value of a tensor.
        observes = self._observes and (self.training or self.observes_in_eval or not self._has_ranges)
        observes = observes and not is_recomputed()  # a checkpoint's second run of a batch that was observed
        if observes and plain and self._rounds and self.number is None and (run := self._in_one_pass(x)):
            return with_gradient(x, run)
        check_input(x, Names)
        if observes and x.numel() and not shows_nothing(x, self.scale):
            self.activation_post_process(x.detach())
            self._update_qparams()
        if not self._rounds or shows_nothing(x, self.scale):
            return x
        for name in ("scale", "zero_point"):
            check_device(name, getattr(self, name), x.device, "x")
        if self.number is not None:
            return round_with_scale(x, self.scale, self.number, max(self.ch_axis, 0))
        return fake_quantize(x, self._qparams(x.shape), self.activation_post_process.rule.form, plain)

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The observer's parameters, or the format's scale and 0."""
        observer = self.activation_post_process
        if self.number is None:
            return observer.calculate_qparams()
        low, high = observer.min_val.reshape(-1), observer.max_val.reshape(-1)
        if isinstance(observer, HistogramObserver):
            scale, zero_point = observer.calculate_qparams()
            low, high = ((end - zero_point).to(torch.float32) * scale for end in (self.quant_min, self.quant_max))
        found = scale_of_range(low, high, self.number)
        return found, torch.zeros_like(found, dtype=torch.int32)

    def expect(self, shape: torch.Size) -> None:
        """Gives the buffers the channels of tensors of a shape before one is observed: averages of models begin so."""
        observer = self.activation_post_process
        if isinstance(observer, RangeObserver) and observer.min_val.numel() == 0:
            for name, value in observer._state(shape)._asdict().items():
                store(observer, name, value)
            channels = observer.min_val.shape
            self._keep(self.scale.new_ones(channels), self.zero_point.new_zeros(channels))

    @property
    def _has_seen(self) -> bool:
        """Whether there are parameters: observed, or loaded."""
        if self.scale.is_meta:  # whose numbers nobody knows
            return False
        return bool(self.scale.ne(1).any() or self.zero_point.any()) or self.activation_post_process._has_seen

    def train(self, mode: bool = True) -> FakeQuantize:
        """`torch.nn.Module.train`; see `observes_in_eval`."""
        # Evaluation right after prepare_qat calibrates, since there are no ranges yet.
        if self.training and not mode:
            self._has_ranges = not self.scale.is_meta and self._has_seen
        return super().train(mode)

    def _in_one_pass(self, x: torch.Tensor) -> Any:
        """The function that observes and rounds a plain tensor by one kernel; None where no kernel does."""
        observer = self.activation_post_process
        if type(observer) not in _OBSERVERS or has_forward_hooks(observer) or x.numel() == 0 or not x.is_cpu:
            return None
        return observer_on_cpu(x, observer.rule, (observer.min_val, observer.max_val, self.scale, self.zero_point))

    def _update_qparams(self) -> None:
        """Copies the observer's parameters; they stay while a histogram has seen no finite number."""
        observer = self.activation_post_process
        if not isinstance(observer, HistogramObserver):
            self._keep(*self.calculate_qparams())
            return
        unseen = observer.min_val > observer.max_val
        if torch.compiler.is_dynamo_compiling():
            pairs = zip((self.scale, self.zero_point), self.calculate_qparams(), strict=True)
            self._keep(*(torch.where(unseen, old, new) for old, new in pairs))
        elif not unseen:
            self._keep(*self.calculate_qparams())

    def _keep(self, scale: torch.Tensor, zero_point: torch.Tensor) -> None:
        store(self, "scale", scale)
        store(self, "zero_point", zero_point)

    def _qparams(self, shape: torch.Size) -> QParams:
        """The parameters for a tensor of a shape; parameters of one channel hold for the whole tensor."""
        scale = converted(self.scale, torch.float32)  # a model's `half()` or `double()` changes it
        if scale.shape == (1,):
            return QParams(scale.reshape(()), self.zero_point.reshape(()))
        axis, channels = self.ch_axis, len(scale)
        if len(shape) <= axis or shape[axis] != channels:
            raise ValueError(f"x has shape {tuple(shape)}; allowed are {channels} channels along dimension {axis}")
        return QParams(scale, self.zero_point, axis)

    def enable_fake_quant(self, enabled: bool = True) -> None:
        """Switches rounding on, or off with enabled=False."""
        check_flag("enabled", enabled)
        self._rounds = enabled
        self.fake_quant_enabled.fill_(enabled)

    def disable_fake_quant(self) -> None:
        """Switches rounding off."""
        self.enable_fake_quant(False)

    def enable_observer(self, enabled: bool = True) -> None:
        """Switches observing on, or off with enabled=False."""
        check_flag("enabled", enabled)
        self._observes = enabled
        self.observer_enabled.fill_(enabled)

    def disable_observer(self) -> None:
        """Switches observing off."""
        self.enable_observer(False)

    def extra_repr(self) -> str:
        number = "" if self.number is None else f"number={self.number.text}, "
        return number + (
            f"fake_quant_enabled={self._rounds}, observer_enabled={self._observes}, quant_min={self.quant_min}, "
            f"quant_max={self.quant_max}, dtype={self.dtype}, qscheme={self.qscheme}, ch_axis={self.ch_axis}, "
            f"scale={self.scale}, zero_point={self.zero_point}"
        )

    @classmethod
    def with_args(cls, **settings: object) -> Factory:
        """A factory of these modules, with these arguments as defaults."""
        return Factory(cls, settings)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in ("scale", "zero_point", "fake_quant_enabled", "observer_enabled"):
            if (value := state_dict.get(prefix + name)) is not None:  # without a dimension in JAX
                state_dict[prefix + name] = value.reshape(-1)
        if not keeps_zero_point(self, state_dict, prefix, others[-1]):
            return
        if (scale := state_dict.get(prefix + "scale")) is not None:  # its size is the number of channels
            for name in ("scale", "zero_point"):
                fit(self, name, scale.shape)
        super()._load_from_state_dict(state_dict, prefix, *others)
        self._rounds, self._observes = bool(self.fake_quant_enabled), bool(self.observer_enabled)
        self._has_ranges = self._has_seen


def _for_apply(name: str) -> Callable[[torch.nn.Module], None]:
    """A method of `FakeQuantize` as a function for `model.apply`; other modules are not changed."""

    def switch(module: torch.nn.Module) -> None:
        check_type("module", module, torch.nn.Module, "a torch.nn.Module")
        if isinstance(module, FakeQuantize):
            getattr(module, name)()

    switch.__name__ = switch.__qualname__ = name
    switch.__doc__ = f"""`FakeQuantize.{name}` for `model.apply`, which leaves other modules alone.

    Args:
        module: any module, such as `model.apply` passes.

    Returns:
        Nothing; a `FakeQuantize` is changed in place.

    Example:
        >>> model = torch.nn.Sequential(FakeQuantize(), torch.nn.ReLU())
        >>> model.apply({name})[0].{name.partition("_")[2]}_enabled
        tensor([{int(name.startswith("enable"))}], dtype=torch.uint8)
    """
    return switch


enable_fake_quant = _for_apply("enable_fake_quant")
"""`FakeQuantize.enable_fake_quant` for `model.apply`."""
disable_fake_quant = _for_apply("disable_fake_quant")
"""`FakeQuantize.disable_fake_quant` for `model.apply`."""
enable_observer = _for_apply("enable_observer")
"""`FakeQuantize.enable_observer` for `model.apply`."""
disable_observer = _for_apply("disable_observer")
"""`FakeQuantize.disable_observer` for `model.apply`."""
