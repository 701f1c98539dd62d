"""`repr` of formats and settings is a call: evaluated with the public names of the packages, it gives the same."""

import math

import pytest
import torch
from cli_support import OTHERS

import qcore
import qjax
import qtorch
from benchmarks.support.inputs import FORMATS, MORE
from qcore import RECIPES, Accumulator, Entry, Hadamard, Operand, Product, Quantization, Rounding, Rule, Scale, parse
from qcore.affine import Histogram, MinMax, MovingAveragePerChannelMinMax, Noop
from qcore.insight import Point, Site
from qcore.linalg.designs import DESIGNS

BLOCKS = (
    "nf4(block=64)",
    "nf4(block=64,nested=256)",
    "gguf(q4_0)",
    "mx9",
    "scaled(p3109(6,3),{-2:16,-1:16},rule=rceil)",
    "scaled(fixed(5,2),{0:1,...:None})",
    "scaled(e4m3fn,{...:None},scale=float32,history=3,margin=1,reduce_amax=False)",
    "scaled(e2m1fn,{-1:16},scale=e4m3fn)",
    "nvfp4({-2:16,-1:16})",
    "nvfp4(law=torchao_0_16)",
    "nvfp4(four_over_six=mae,scale_max=448)",
    "table([0,-1,2],thresholds=[-0.5,1])",
    "affine(-8,7)",
)
OPERAND = Operand("e4m3fn", "stochastic", Scale(1, 128), Hadamard(3), matrix=True)
ACCUMULATORS = (
    Accumulator(),
    Accumulator("float(6,9)", 64, "stochastic", inner=Accumulator("e5m2", 1), random_bits=8),
    Accumulator("float16", 4, fraction_bits=23, output="toward_zero"),
    *(Accumulator.of(name) for name in [*DESIGNS][:3]),
    Accumulator(chunk=64, inner=Accumulator.of("hopper.wgmma.e4m3")),
    Accumulator.of("cdna3.mfma.fp8").own,
)
VALUES = (
    *(number for number in FORMATS + MORE if len(str(number)) < 200),
    *map(parse, (*qcore.NAMED, *OTHERS, *BLOCKS)),
    *Rounding,
    *RECIPES.values(),
    *ACCUMULATORS,
    Product(OPERAND, OPERAND, Accumulator(chunk=128)),
    Product("e5m2", None, Accumulator.of("hopper.wgmma.e4m3_e5m2")),
    Entry("head"),
    Entry("*", "linear", Product("int8", "int8"), first=1, last=2),
    Quantization("fixed(8,4)", "e5m2", "nearest", clamping_grad_zero=True),
    Rule("features.*", "conv", Quantization("e5m2"), "int8", overflow="wrap"),
    MinMax(),
    Histogram(bins=512),
    MovingAveragePerChannelMinMax(axis=1),
    Noop(),
    Site("conv1", "operand", "weight"),
    Point(6.0, 0.25, {"0": "e4m3fn"}),
)


def names_of(*packages):
    found = {name: getattr(package, name) for package in packages for name in package.__all__}
    return found | {"inf": math.inf, "nan": math.nan}


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}-{value!s:.60}")
def test_values(value):
    again = eval(repr(value), names_of(qcore.insight, qcore.affine, qcore))
    assert again == value
    assert type(again) is type(value)
    assert repr(again) == repr(value)  # which tells zeros apart


def test_settings_of_torch():
    q = qtorch.quantization
    observer = q.MovingAverageMinMaxObserver.with_args(dtype=torch.qint8, averaging_constant=0.5)
    fake = q.FakeQuantize.with_args(observer=q.MinMaxObserver, quant_max=15, quant_min=0)
    for value in (
        q.default_qconfig,
        q.QConfig(observer, q.default_per_channel_weight_observer),
        q.QConfig(fake, None),
        q.QConfig("e4m3fn", "mxfp8_e4m3"),
        q.QConfig("posit8", "fixed(8,6)"),
        q.QConfigDynamic(weight=q.PerChannelMinMaxObserver),
    ):
        assert eval(repr(value), names_of(qtorch, q) | {"torch": torch}) == value
    assert repr(q.QConfig("e5m2", None)).endswith(", overflow='inf'), weight=None)")


def test_settings_of_jax():
    q = qjax.quantization
    for value in (
        qjax.quantizer("e4m3fn", "float(5,2)", "nearest"),
        q.default_qconfig,
        q.default_fake_quant,
        q.QConfig(q.FakeQuantize(q.MinMaxObserver, number="e5m2"), q.default_per_channel_weight_observer),
        q.QConfig("e4m3fn", None),
        q.QConfig("posit8", "mxfp8_e4m3"),
        q.QConfigDynamic("int4", "e5m2"),
        q.QConfigDynamic(q.PerChannelMinMaxObserver.with_args(dtype="qint8")),
    ):
        assert eval(repr(value), names_of(qjax, q)) == value
