"""Observers as modules: what they see goes through unchanged, and parameters follow from it.

The rules are those of `qcore.affine`; `docs/affine.md` has them.
"""

from __future__ import annotations

from typing import Any

import torch

from qcore import affine
from qcore.arguments import check_int, check_type
from qtorch._affine.namespace import Names
from qtorch._affine.observers.base import ObserverBase, RangeObserver
from qtorch._affine.observers.histogram import TensorHistogram
from qtorch._affine.tensor import QTensor


class MinMaxObserver(RangeObserver):
    """The least and the greatest element of all tensors seen; see `qcore.affine.MinMax`.

    Args:
        dtype: of the integers: torch.quint8, qint8, qint32, a plain integer type, or an `AffineInteger`.
        qscheme: torch.per_tensor_affine or torch.per_tensor_symmetric, or "affine" or "symmetric".
        reduce_range: whether both ends of the range are halved, so that sums of products fit into 16 bits.
        quant_min, quant_max: a part of dtype's range.
        eps: the smallest scale.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> observer = MinMaxObserver()
        >>> x = observer(torch.tensor([-1.0, 0.5, 3.0]))
        >>> observer.calculate_qparams()
        (tensor([0.0157]), tensor([64], dtype=torch.int32))
    """

    _rule_class = affine.MinMax


class MovingAverageMinMaxObserver(MinMaxObserver):
    """Moving averages of the least and the greatest element of each tensor; see `qcore.affine.MovingAverageMinMax`.

    Args:
        averaging_constant: the share of the newest tensor, above 0 and at most 1.
        dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> observer = MovingAverageMinMaxObserver(averaging_constant=0.5)
        >>> for x in (torch.tensor([0.0, 1.0]), torch.tensor([0.0, 3.0])):
        ...     x = observer(x)
        >>> observer.max_val
        tensor(2.)
    """

    _rule_class = affine.MovingAverageMinMax

    def __init__(self, averaging_constant: float = 0.01, *others: Any, **settings: Any) -> None:
        super().__init__(*others, **settings)
        self._set(averaging_constant=averaging_constant)


MovingAverageObserver = MovingAverageMinMaxObserver


class PerChannelMinMaxObserver(RangeObserver):
    """The least and the greatest element of each channel; see `qcore.affine.PerChannelMinMax`.

    Args:
        ch_axis: the dimension of the tensors along which the channels lie.
        dtype, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.
        qscheme: torch.per_channel_affine or torch.per_channel_symmetric, or "affine" or "symmetric".

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> observer = PerChannelMinMaxObserver(dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
        >>> x = observer(torch.tensor([[-1.0, 0.5], [2.0, 5.1]]))
        >>> observer.calculate_qparams()
        (tensor([0.0078, 0.0400]), tensor([0, 0], dtype=torch.int32))
    """

    _rule_class = affine.PerChannelMinMax

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: Any = torch.quint8,
        qscheme: Any = torch.per_channel_affine,
        *others: Any,
        **settings: Any,
    ) -> None:
        check_int("ch_axis", ch_axis, 0, 63)
        super().__init__(dtype, qscheme, *others, **settings)
        self._set(ch_axis=ch_axis)


class MovingAveragePerChannelMinMaxObserver(PerChannelMinMaxObserver):
    """Moving averages of each channel's extremes; see `qcore.affine.MovingAveragePerChannelMinMax`.

    Args:
        averaging_constant: the share of the newest tensor, above 0 and at most 1.
        ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `PerChannelMinMaxObserver`.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> observer = MovingAveragePerChannelMinMaxObserver(averaging_constant=0.5)
        >>> for x in (torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([[0.0, 3.0], [0.0, 4.0]])):
        ...     x = observer(x)
        >>> observer.max_val
        tensor([2., 3.])
    """

    _rule_class = affine.MovingAveragePerChannelMinMax

    def __init__(self, averaging_constant: float = 0.01, *others: Any, **settings: Any) -> None:
        super().__init__(*others, **settings)
        self._set(averaging_constant=averaging_constant)


class HistogramObserver(RangeObserver):
    """Counts in equal bins, and parameters for the part of the range that loses least; see `qcore.affine.Histogram`.

    Args:
        bins: how many.
        upsample_rate: into how many parts a bin is cut when the range grows; torch's was 128 once and is 16 now.
        dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> observer = HistogramObserver(bins=4)
        >>> x = observer(torch.tensor([0.0, 1, 1, 4]))
        >>> observer.histogram
        tensor([1., 2., 0., 1.])
    """

    _rule_class = TensorHistogram
    _state_class = affine.Counts
    _steps_by_numpy = False
    histogram: torch.Tensor

    def __init__(self, bins: int = 2048, upsample_rate: int = 16, *others: Any, **settings: Any) -> None:
        super().__init__(*others, **settings)
        self._set(bins=bins, upsample_rate=upsample_rate)


class RuleObserver(RangeObserver):
    """Any observer of extremes of `qcore.affine`, as a module.

    Args:
        rule: such as `qcore.affine.MinMax(INT8, "symmetric")`.

    Raises:
        TypeError: if rule is no such observer.

    Example:
        >>> x = RuleObserver(affine.MinMax())(torch.tensor([-1.0, 0.5, 3.0]))
    """

    _rule_class = affine.MinMax

    def __init__(self, rule: affine.MinMax) -> None:
        check_type("rule", rule, affine.MinMax, "an observer of extremes of qcore.affine, such as MinMax()")
        super().__init__(rule.form, rule.scheme, eps=rule.eps)
        self.rule = rule
        self.reset_min_max_vals()


class RecordingObserver(ObserverBase):
    """Keeps a copy of every tensor; for debugging.

    Args:
        dtype: the type that values will be quantized to.

    Example:
        >>> observer = RecordingObserver()
        >>> x = observer(torch.tensor([1.0, 2.0]))
        >>> observer.get_tensor_value()
        [tensor([1., 2.])]
    """

    rule = affine.Recording()

    def __init__(self, dtype: Any = torch.quint8) -> None:
        super().__init__(dtype)
        self.tensor_val: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check_type("x", x, (torch.Tensor, QTensor), "a torch.Tensor")
        self.tensor_val = list(self.rule.update(tuple(self.tensor_val), x.detach(), Names))
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises TypeError: there are none."""
        return self.rule.qparams((), Names)  # type: ignore[return-value]

    def get_tensor_value(self) -> list[torch.Tensor]:
        """The tensors seen so far."""
        return self.tensor_val


class NoopObserver(ObserverBase):
    """Remembers nothing: for tensors that need no range, say in float16.

    Args:
        dtype: the type that values will be converted to.

    Example:
        >>> observer = NoopObserver()
        >>> observer(torch.tensor([1.0])), observer.dtype
        (tensor([1.]), torch.float16)
    """

    rule = affine.Noop()

    def __init__(self, dtype: Any = torch.float16) -> None:
        super().__init__(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises TypeError: there are none."""
        return self.rule.qparams((), Names)  # type: ignore[return-value]
