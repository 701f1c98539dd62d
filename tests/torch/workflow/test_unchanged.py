"""A call that fails leaves the model that was passed in as it was; other types and places change no bit of a result."""

import copy
import operator

import pytest
import torch
from support import assert_same_bits
from torch import nn
from workflow_support import ROWS, Residual, digits, with_qconfig

from qtorch.quantization import (
    MinMaxObserver,
    QConfig,
    QConfigDynamic,
    QuantWrapper,
    convert,
    default_qat_qconfig,
    default_qconfig,
    fuse_modules,
    get_default_static_quant_module_mappings,
    prepare,
    prepare_qat,
    quantize,
    quantize_dynamic,
    quantize_qat,
)

IMAGES = digits()[0][:16]
SETTINGS = {"default": default_qconfig, "qat": default_qat_qconfig}


def everything(model):
    """Modules by name, with their attributes and hooks, and the bytes of all tensors."""
    about = [
        (name, id(module), type(module), module.training, sorted(vars(module)), list(module._modules))
        + tuple(list(hooks.values()) for hooks in (module._forward_hooks, module._forward_pre_hooks))
        for name, module in model.named_modules()
    ]
    settings = [getattr(module, "qconfig", None) for module in model.modules()]
    tensors = {name: (id(x), x.clone()) for name, x in [*model.named_parameters(), *model.named_buffers()]}
    return about, settings, tensors


def check_same(model, before):
    about, settings, tensors = everything(model)
    assert about == before[0]
    assert settings == before[1]
    assert tensors.keys() == before[2].keys()
    for name, (key, x) in tensors.items():
        assert key == before[2][name][0], name
        assert_same_bits(x, before[2][name][1])


def fails(*arguments):
    raise RuntimeError("as it was told")


class Fails:
    """What a mapping has for the last layer, after the others were converted."""

    from_float = staticmethod(fails)


def residual(training=False, qconfig="default", last=None):
    """With settings of the last layer, after the others, that are another."""
    model = with_qconfig(Residual().train(training), SETTINGS[qconfig])
    if last is not None:
        model.fc.qconfig = last
    return model


def observed():
    model = prepare(residual())
    model(IMAGES)
    return model


def trainable(last=None):
    return fuse_modules(residual(True, "qat", last), ROWS)


def part(model):
    """The first part of it is trained or calibrated, and then something is wrong."""
    model(IMAGES)
    with torch.no_grad():
        model.conv1.weight.mul_(2)
    fails()


WRONG_ROWS = [*ROWS, ["pool", "fc"]]
CALLS = {
    "prepare": (lambda: residual(last=QConfig(fails, fails)), prepare),
    "prepare_qat": (lambda: trainable(QConfig(default_qat_qconfig.activation, fails)), prepare_qat),
    "convert, not prepared": (residual, convert),
    "convert, nothing seen": (lambda: prepare(residual()), convert),
    "convert": (observed, convert, {**get_default_static_quant_module_mappings(), nn.Linear: Fails}),
    "fuse_modules": (residual, fuse_modules, WRONG_ROWS),
    "fuse_modules in training": (lambda: residual(True), fuse_modules, WRONG_ROWS),
    "quantize": (residual, quantize, part, []),
    "quantize_qat": (trainable, quantize_qat, part, []),
    "quantize_dynamic, no such layer": (residual, quantize_dynamic, {"fc", "pool"}),
    "quantize_dynamic": (residual, quantize_dynamic, {"fc": QConfigDynamic(weight=fails)}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_failed_call_changes_nothing(name):
    make, call, *arguments = CALLS[name]
    model = make()
    before = everything(model)
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        call(model, *arguments)
    check_same(model, before)


@pytest.mark.parametrize("training", [False, True])
def test_calls_that_succeed_change_nothing_either(training):
    """Unless they are told to by inplace=True."""
    model = residual(training, "qat" if training else "default")
    before = everything(model)
    fused = fuse_modules(model, ROWS)
    between = everything(fused)
    prepared = (prepare_qat if training else prepare)(fused)
    prepared(IMAGES)
    last = everything(prepared)
    convert(prepared)
    quantize_dynamic(model)
    for one, state in ((model, before), (fused, between), (prepared, last)):
        check_same(one, state)


def converted():
    model = fuse_modules(residual(), ROWS)
    prepared = prepare(model)
    prepared(IMAGES)
    return convert(prepared)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types_leave_integers_and_scales_alone(dtype):
    """Biases and results have the type, as those of float layers. Images of 4 bits are the same in all types."""
    model, recurrent = converted(), quantize_dynamic(nn.GRU(8, 4))
    moved = copy.deepcopy(model).to(dtype)
    for name, value in model.named_buffers():
        if name.endswith("bias"):
            value.copy_(value.to(dtype))
    expected, states = model(IMAGES).to(dtype), recurrent(IMAGES[:, 0])
    for images in (IMAGES, IMAGES.to(dtype)):
        assert_same_bits(moved(images), expected)
    assert_same_bits(copy.deepcopy(recurrent).to(dtype)(IMAGES[:, 0])[0], states[0])
    for one, other in zip(model.state_dict().values(), moved.state_dict().values(), strict=True):
        assert_same_bits(one, other)


def test_observed_models_in_other_types():
    observed = prepare(fuse_modules(residual(), ROWS)).to(torch.float64)
    observed(IMAGES.double())
    result = convert(observed)
    floats = {name: x.dtype for name, x in result.named_buffers() if x.is_floating_point()}
    assert {dtype for name, dtype in floats.items() if not name.endswith("bias")} == {torch.float32}
    assert {x.dtype for x in result.state_dict().values() if x.is_floating_point()} == {torch.float32}
    assert result(IMAGES).isfinite().all()


def test_on_the_meta_device():
    """Where tensors have shapes and no values, as loaders of large models use it."""
    model = converted()
    empty = copy.deepcopy(model).to("meta")
    assert empty(IMAGES.to("meta")).shape == (16, 10)
    loaded = empty.to_empty(device="cpu")
    loaded.load_state_dict(model.state_dict())
    assert_same_bits(loaded(IMAGES), model(IMAGES))


class Sums(nn.Module):
    """Layers whose results a function joins."""

    def __init__(self, join):
        super().__init__()
        self.first, self.second, self.join = nn.Linear(8, 8), nn.Linear(8, 8), join

    def forward(self, x):
        return self.join(self.first(x), self.second(x))


JOINED = {
    "+": lambda x, y: x + y,
    "+=": operator.iadd,
    "a number +": lambda x, y: 1.0 + x,
    "a tensor +": lambda x, y: torch.ones(8) + x,
    "*": lambda x, y: x * y,
    "-": lambda x, y: x - y,
    "minus": lambda x, y: -x,
    "/": lambda x, y: x / 2,
    "@": lambda x, y: x @ y,
    "add": lambda x, y: torch.add(x, y),
    "logsumexp": lambda x, y: torch.logsumexp(x, -1),
}


@pytest.mark.parametrize("name", JOINED)
def test_arithmetic_outside_of_layers_says_what_to_insert(name):
    model = with_qconfig(QuantWrapper(Sums(JOINED[name])), default_qconfig)
    x = torch.linspace(-1, 1, 64).reshape(8, 8)
    prepared = prepare(model.eval())
    prepared(x)
    with pytest.raises(TypeError, match="of a QTensor; allowed are its methods, the methods of FloatFunctional in the"):
        convert(prepared)(x)


@pytest.mark.parametrize("ends", [{"quant_max": 100}, {"quant_min": 0}])
def test_one_end_of_a_range_alone(ends):
    with pytest.raises(ValueError, match=r"quant_min=.* and quant_max=.*; allowed are both or neither"):
        MinMaxObserver(**ends)
