"""Observers as modules: what they see goes through unchanged, and parameters follow from it.

The rules are those of `qcore.affine`; `docs/affine.md` has them.
"""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import (
    Counts,
    MinMax,
    MovingAverageMinMax,
    MovingAveragePerChannelMinMax,
    Noop,
    PerChannelMinMax,
    Recording,
)
from qcore.affine.parameters import EPS
from qcore.arguments import check_int
from qtorch.quantization.base import ObserverBase, RangeObserver
from qtorch.quantization.histogram import TensorHistogram
from qtorch.quantization.names import Names
from qtorch.quantization.tokens import integers, scheme


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

    def __init__(
        self,
        dtype: Any = torch.quint8,
        qscheme: Any = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        form = integers(dtype, quant_min, quant_max, reduce_range)
        super().__init__(MinMax(form, scheme(qscheme, False), eps), dtype, qscheme, reduce_range)


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

    def __init__(
        self,
        averaging_constant: float = 0.01,
        dtype: Any = torch.quint8,
        qscheme: Any = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        form = integers(dtype, quant_min, quant_max, reduce_range)
        rule = MovingAverageMinMax(form, scheme(qscheme, False), eps, averaging_constant)
        RangeObserver.__init__(self, rule, dtype, qscheme, reduce_range)
        self.averaging_constant = averaging_constant


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

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: Any = torch.quint8,
        qscheme: Any = torch.per_channel_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        check_int("ch_axis", ch_axis, 0)
        form = integers(dtype, quant_min, quant_max, reduce_range)
        rule = PerChannelMinMax(form, scheme(qscheme, True), eps, ch_axis)
        super().__init__(rule, dtype, qscheme, reduce_range)
        self.ch_axis = ch_axis


class MovingAveragePerChannelMinMaxObserver(PerChannelMinMaxObserver):
    """Moving averages of each channel's extremes; see `qcore.affine.MovingAveragePerChannelMinMax`.

    Args:
        averaging_constant: the share of the newest tensor, above 0 and at most 1.
        ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `PerChannelMinMaxObserver`.

    Raises:
        TypeError, ValueError: if an argument is not as above.
    """

    def __init__(
        self,
        averaging_constant: float = 0.01,
        ch_axis: int = 0,
        dtype: Any = torch.quint8,
        qscheme: Any = torch.per_channel_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        check_int("ch_axis", ch_axis, 0)
        form = integers(dtype, quant_min, quant_max, reduce_range)
        rule = MovingAveragePerChannelMinMax(
            form, scheme(qscheme, True), eps, axis=ch_axis, averaging_constant=averaging_constant
        )
        RangeObserver.__init__(self, rule, dtype, qscheme, reduce_range)
        self.ch_axis = ch_axis
        self.averaging_constant = averaging_constant


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

    _kind = Counts
    _small = False
    histogram: torch.Tensor

    def __init__(
        self,
        bins: int = 2048,
        upsample_rate: int = 16,
        dtype: Any = torch.quint8,
        qscheme: Any = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        form = integers(dtype, quant_min, quant_max, reduce_range)
        rule = TensorHistogram(form, scheme(qscheme, False), eps, bins, upsample_rate)
        super().__init__(rule, dtype, qscheme, reduce_range)
        self.bins = bins
        self.upsample_rate = upsample_rate


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

    rule = Recording()

    def __init__(self, dtype: Any = torch.quint8) -> None:
        super().__init__(dtype)
        self.tensor_val: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.tensor_val = list(self.rule.update(tuple(self.tensor_val), x.detach(), Names))
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises TypeError: there are none."""
        return self.rule.qparams((), Names)  # type: ignore[return-value]

    def get_tensor_value(self) -> list[torch.Tensor]:
        """The tensors seen so far."""
        return self.tensor_val


class NoopObserver(ObserverBase):
    """Remembers nothing: for what needs no range, say float16.

    Args:
        dtype: the type that values will be converted to.
    """

    rule = Noop()

    def __init__(self, dtype: Any = torch.float16) -> None:
        super().__init__(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises TypeError: there are none."""
        return self.rule.qparams((), Names)  # type: ignore[return-value]
