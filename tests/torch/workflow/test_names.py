"""Every name of torch's first quantization library is there, with its arguments in their order and its defaults."""

import ast
import inspect
from importlib import import_module

import pytest
import torch

from qtorch import quantization

CONV = "in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1"
NORM = "weight, bias, scale, zero_point, eps=1e-05"
RANGE = "dtype=torch.quint8, qscheme=torch.per_tensor_affine, reduce_range=False"
CHANNELS = "ch_axis=0, dtype=torch.quint8, qscheme=torch.per_channel_affine, reduce_range=False"
CONV_FUNCTION = (
    "input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, padding_mode='zeros', scale=1.0, "
    "zero_point=0, dtype=torch.quint8"
)
INSTANCE = f"num_features, {NORM}, momentum=0.1, affine=False, track_running_stats=False"
RECURRENT = "input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False"

FUSED = (
    "ConvBn1d ConvBn2d ConvBnReLU1d ConvBnReLU2d ConvReLU1d ConvReLU2d ConvReLU3d LinearReLU BNReLU2d BNReLU3d"
).split()
NAMES = {
    "qtorch.quantization": {
        "quantize": "model, run_fn, run_args, mapping=None, inplace=False",
        "quantize_dynamic": "model, qconfig_spec=None, dtype=torch.qint8, mapping=None, inplace=False",
        "quantize_qat": "model, run_fn, run_args, inplace=False",
        "prepare": "model, inplace=False, allow_list=None, observer_non_leaf_module_list=None",
        "prepare_qat": "model, mapping=None, inplace=False",
        "convert": "module, mapping=None, inplace=False, remove_qconfig=True",
        "QConfig": "activation, weight",
        "QConfigDynamic": "activation=torch.nn.Identity, weight=torch.nn.Identity",
        "fuse_modules": "model, modules_to_fuse, inplace=False, fuser_func=None",
        "fuse_modules_qat": "model, modules_to_fuse, inplace=False, fuser_func=None",
        "QuantStub": "qconfig=None",
        "DeQuantStub": "qconfig=None",
        "QuantWrapper": "module",
        "add_quant_dequant": "module",
        "add_observer_": "module, non_leaf_module_list=None, device=None",
        "swap_module": "mod, mapping",
        "propagate_qconfig_": "module, qconfig_dict=None, white_list=None",
        "get_observer_dict": "mod, target_dict, prefix=''",
        "default_eval_fn": "model, calib_data",
        "ObserverBase": "dtype",
        "MinMaxObserver": RANGE,
        "MovingAverageMinMaxObserver": f"averaging_constant=0.01, {RANGE}",
        "PerChannelMinMaxObserver": CHANNELS,
        "MovingAveragePerChannelMinMaxObserver": f"averaging_constant=0.01, {CHANNELS}",
        "HistogramObserver": f"bins=2048, upsample_rate=16, {RANGE}",
        "RecordingObserver": "dtype=torch.quint8",
        "NoopObserver": "dtype=torch.float16",
        "FakeQuantize": "observer=quantization.MovingAverageMinMaxObserver, quant_min=None, quant_max=None",
        "get_default_qconfig": "backend='x86'",
        "get_default_qat_qconfig": "backend='x86'",
    },
    "qtorch.nn.intrinsic": dict.fromkeys(FUSED, ""),
    "qtorch.nn.intrinsic.qat": {
        **dict.fromkeys(
            ("ConvBn2d", "ConvBnReLU2d"),
            f"{CONV}, bias=None, padding_mode='zeros', eps=1e-05, momentum=0.1, freeze_bn=False, qconfig=None",
        ),
        "ConvReLU2d": f"{CONV}, bias=True, padding_mode='zeros', qconfig=None",
        "LinearReLU": "in_features, out_features, bias=True, qconfig=None",
        "freeze_bn_stats": "mod",
        "update_bn_stats": "mod",
    },
    "qtorch.nn.intrinsic.quantized": {
        **dict.fromkeys(("ConvReLU1d", "ConvReLU2d", "ConvReLU3d"), f"{CONV}, bias=True, padding_mode='zeros'"),
        "LinearReLU": "in_features, out_features, bias=True, dtype=torch.qint8",
    },
    "qtorch.nn.qat": {
        "Linear": "in_features, out_features, bias=True, qconfig=None",
        "Conv2d": f"{CONV}, bias=True, padding_mode='zeros', qconfig=None",
    },
    "qtorch.nn.quantized": {
        "Linear": "in_features, out_features, bias_=True, dtype=torch.qint8",
        **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d"), f"{CONV}, bias=True, padding_mode='zeros'"),
        "ReLU": "inplace=False",
        "ReLU6": "inplace=False",
        "MaxPool2d": "kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False",
        "ELU": "scale, zero_point, alpha=1.0",
        "Hardswish": "scale, zero_point",
        **dict.fromkeys(("BatchNorm2d", "BatchNorm3d"), "num_features, eps=1e-05, momentum=0.1"),
        "LayerNorm": f"normalized_shape, {NORM}, elementwise_affine=True",
        "GroupNorm": f"num_groups, num_channels, {NORM}, affine=True",
        **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), INSTANCE),
        "Quantize": "scale, zero_point, dtype=torch.quint8",
        "DeQuantize": "",
        "FloatFunctional": "",
        "QFunctional": "",
        "FXFloatFunctional": "",
        "Embedding": "num_embeddings, embedding_dim",
    },
    "qtorch.nn.quantized.functional": {
        "relu": "input, inplace=False",
        "linear": "input, weight, bias=None, scale=None, zero_point=None",
        **dict.fromkeys(("conv1d", "conv2d", "conv3d"), CONV_FUNCTION),
        "max_pool2d": "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False",
        "adaptive_avg_pool2d": "input, output_size",
        **dict.fromkeys(
            ("avg_pool2d", "avg_pool3d"),
            "input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, "
            "divisor_override=None",
        ),
        **dict.fromkeys(
            ("interpolate", "upsample"), "input, size=None, scale_factor=None, mode='nearest', align_corners=None"
        ),
        **dict.fromkeys(("upsample_bilinear", "upsample_nearest"), "input, size=None, scale_factor=None"),
        "elu": "input, scale, zero_point, alpha=1.0",
        "hardswish": "input, scale, zero_point",
        "hardsigmoid": "input, inplace=False",
        "hardtanh": "input, min_val=-1.0, max_val=1.0, inplace=False",
        "leaky_relu": "input, negative_slope=0.01, inplace=False, scale=None, zero_point=None",
        "celu": "input, scale, zero_point, alpha=1.0",
        "clamp": "input, min_, max_",
        "threshold": "input, threshold, value",
        "max_pool1d": "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False",
        "adaptive_avg_pool3d": "input, output_size",
    },
    "qtorch.nn.quantized.dynamic": {
        "Linear": "in_features, out_features, bias_=True, dtype=torch.qint8",
        "LSTM": RECURRENT,
        "GRU": RECURRENT,
        "LSTMCell": "input_size, hidden_size, bias=True",
        "GRUCell": "input_size, hidden_size, bias=True",
        "RNNCell": "input_size, hidden_size, bias=True",
    },
}
CASES = [(room, name, arguments) for room, names in NAMES.items() for name, arguments in names.items()]


@pytest.mark.parametrize(("room", "name", "arguments"), CASES, ids=lambda value: value[:30] or "-")
def test_names_and_arguments(room, name, arguments):
    found = getattr(import_module(room), name)
    own = list(inspect.signature(found).parameters.values())
    wanted = ast.parse(f"def f({arguments}): ...").body[0].args  # ty: ignore
    names = [one.arg for one in wanted.args]
    assert [one.name for one in own][: len(names)] == names
    assert all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in own[: len(names)])
    defaults = {
        one.arg: eval(ast.unparse(value), {"torch": torch, "quantization": quantization})
        for one, value in zip(wanted.args[len(names) - len(wanted.defaults) :], wanted.defaults, strict=True)
    }
    for one in own:
        if one.name in defaults:
            assert one.default == defaults[one.name], one.name


@pytest.mark.parametrize("name", [name for name in NAMES["qtorch.quantization"] if name.endswith("Observer")])
def test_observers_take_arguments_by_place_and_by_name(name):
    kind, arguments = getattr(quantization, name), NAMES["qtorch.quantization"][name]
    if name == "HistogramObserver":
        arguments = arguments.replace("upsample_rate=16", "upsample_rate=128").replace("2048", "64")
    call = lambda text: eval(f"kind({text})", {"torch": torch, "kind": kind})  # noqa: E731
    by_name = call(arguments.replace("False", "True"))
    by_place = call(", ".join(part.split("=")[1] for part in arguments.replace("False", "True").split(", ")))
    names = [part.split("=")[0] for part in arguments.split(", ")]
    assert [getattr(by_name, one) for one in names] == [getattr(by_place, one) for one in names]


@pytest.mark.parametrize(
    "name",
    (
        "default_observer default_weight_observer default_qconfig default_qat_qconfig default_per_channel_qconfig "
        "default_debug_qconfig default_dynamic_qconfig per_channel_dynamic_qconfig float16_dynamic_qconfig "
        "default_weight_only_qconfig default_activation_only_qconfig default_fake_quant default_weight_fake_quant "
        "default_per_channel_weight_fake_quant default_histogram_observer default_histogram_fake_quant "
        "default_per_channel_weight_observer Observer MovingAverageObserver disable_fake_quant enable_fake_quant "
        "disable_observer enable_observer quantize_per_tensor quantize_per_channel fuse_known_modules"
    ).split(),
)
def test_constants_and_other_names(name):
    assert getattr(quantization, name) is not None
    assert name in quantization.__all__


METHODS = (
    "view as_strided expand flatten select __getitem__ copy_ clone dequantize equal int_repr max mean min "
    "q_scale q_zero_point q_per_channel_scales q_per_channel_zero_points q_per_channel_axis resize_ sort topk "
    "relu relu_"
).split()


def test_methods_of_quantized_tensors():
    assert [name for name in METHODS if not hasattr(quantization.QTensor, name)] == []
