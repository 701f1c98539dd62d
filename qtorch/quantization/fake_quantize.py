"""The names of `torch.quantization.fake_quantize`, for programs that import them from there."""

from qtorch._affine.fake_quantize import FakeQuantize as FakeQuantize
from qtorch._affine.fake_quantize import disable_fake_quant as disable_fake_quant
from qtorch._affine.fake_quantize import disable_observer as disable_observer
from qtorch._affine.fake_quantize import enable_fake_quant as enable_fake_quant
from qtorch._affine.fake_quantize import enable_observer as enable_observer
