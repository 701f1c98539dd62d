"""The names of `torch.quantization.observer`, for programs that import them from there."""

from qtorch._affine.observer import HistogramObserver as HistogramObserver
from qtorch._affine.observer import MinMaxObserver as MinMaxObserver
from qtorch._affine.observer import MovingAverageMinMaxObserver as MovingAverageMinMaxObserver
from qtorch._affine.observer import MovingAverageObserver as MovingAverageObserver
from qtorch._affine.observer import (
    MovingAveragePerChannelMinMaxObserver as MovingAveragePerChannelMinMaxObserver,
)
from qtorch._affine.observer import NoopObserver as NoopObserver
from qtorch._affine.observer import ObserverBase as ObserverBase
from qtorch._affine.observer import PerChannelMinMaxObserver as PerChannelMinMaxObserver
from qtorch._affine.observer import RecordingObserver as RecordingObserver
from qtorch._affine.observer import RuleObserver as RuleObserver
from qtorch._affine.qconfig import default_debug_observer as default_debug_observer
from qtorch._affine.qconfig import default_histogram_observer as default_histogram_observer
from qtorch._affine.qconfig import default_observer as default_observer
from qtorch._affine.qconfig import default_per_channel_weight_observer as default_per_channel_weight_observer
from qtorch._affine.qconfig import default_weight_observer as default_weight_observer
