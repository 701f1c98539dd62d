"""The names of `torch.quantization.qconfig`, for programs that import them from there."""

from qtorch._affine.qconfig import QConfig as QConfig
from qtorch._affine.qconfig import QConfigDynamic as QConfigDynamic
from qtorch._affine.qconfig import default_activation_only_qconfig as default_activation_only_qconfig
from qtorch._affine.qconfig import default_debug_observer as default_debug_observer
from qtorch._affine.qconfig import default_debug_qconfig as default_debug_qconfig
from qtorch._affine.qconfig import default_dynamic_qconfig as default_dynamic_qconfig
from qtorch._affine.qconfig import default_fake_quant as default_fake_quant
from qtorch._affine.qconfig import default_histogram_fake_quant as default_histogram_fake_quant
from qtorch._affine.qconfig import default_histogram_observer as default_histogram_observer
from qtorch._affine.qconfig import default_observer as default_observer
from qtorch._affine.qconfig import default_per_channel_qconfig as default_per_channel_qconfig
from qtorch._affine.qconfig import default_per_channel_weight_fake_quant as default_per_channel_weight_fake_quant
from qtorch._affine.qconfig import default_per_channel_weight_observer as default_per_channel_weight_observer
from qtorch._affine.qconfig import default_qat_qconfig as default_qat_qconfig
from qtorch._affine.qconfig import default_qconfig as default_qconfig
from qtorch._affine.qconfig import default_weight_fake_quant as default_weight_fake_quant
from qtorch._affine.qconfig import default_weight_observer as default_weight_observer
from qtorch._affine.qconfig import default_weight_only_qconfig as default_weight_only_qconfig
from qtorch._affine.qconfig import float16_dynamic_qconfig as float16_dynamic_qconfig
from qtorch._affine.qconfig import get_default_qat_qconfig as get_default_qat_qconfig
from qtorch._affine.qconfig import get_default_qconfig as get_default_qconfig
from qtorch._affine.qconfig import get_observer_dict as get_observer_dict
from qtorch._affine.qconfig import per_channel_dynamic_qconfig as per_channel_dynamic_qconfig
