"""A QTensor is an array: torch's functions and methods move, join, clip and fill its integers, or say what to do."""

import itertools
import warnings

import pytest
import torch
from support import assert_same_bits
from torch import nn
from torch.nn import functional as F

from qcore.affine import INT8, INT32, UINT8, AffineInteger
from qtorch.quantization import QTensor, QuantStub, quantize_model, quantize_per_channel, quantize_per_tensor

FORMS = [UINT8, INT8, AffineInteger.of_width(16, signed=False), INT32]
X = (torch.randn(2, 4, 4, 6, generator=torch.Generator().manual_seed(1)) * 3).contiguous()
MASK = X[0] > 0.5

# What torch does to floats, it does to integers: as a function, as a method, or as a module.
MOVES = {
    "chunk": lambda x: torch.chunk(x, 3, 1),
    "chunk()": lambda x: x.chunk(2, -1),
    "split": lambda x: torch.split(x, [1, 3], dim=1),
    "split()": lambda x: x.split(2, 1),
    "tensor_split": lambda x: x.tensor_split(3),
    "unbind": lambda x: torch.unbind(x, 1) + x.unbind(),
    "flip": lambda x: torch.flip(x, (1, 3)),
    "flip()": lambda x: x.flip(1).fliplr(),
    "roll": lambda x: x.roll(1, 2).rot90(),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "tile": lambda x: torch.tile(x, (2,)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "unflatten": lambda x: torch.unflatten(x, 1, (2, -1)),
    "Unflatten": nn.Unflatten(3, (2, 3)),
    "movedim": lambda x: torch.movedim(x, 1, -1).swapaxes(0, 1).mT,
    "gather": lambda x: x.gather(1, torch.zeros(2, 1, 4, 6, dtype=torch.int64)),
    "index_select": lambda x: torch.index_select(x, 1, torch.tensor([3, 0])),
    "masked_select": lambda x: x.masked_select(MASK),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "PixelUnshuffle": nn.PixelUnshuffle(2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "ChannelShuffle": nn.ChannelShuffle(4),
    "einsum": lambda x: torch.einsum("nchw -> hwnc", x),
    "cat": lambda x: torch.cat([x, x.flip(0), x[:, :1]], dim=1),
    "stack": lambda x: torch.stack(x.unbind(1), -1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3)),
    "pad, cropped": lambda x: F.pad(x, (1, -2, -1, -1)),
    "ReflectionPad2d": nn.ReflectionPad2d((1, 2, 3, 0)),
    "ReplicationPad2d": nn.ReplicationPad2d((1, 2, 0, 5)),
    "CircularPad2d": nn.CircularPad2d((1, 6, 4, 0)),
    "ZeroPad2d": nn.ZeroPad2d(1),
    "contiguous": lambda x: x.contiguous(memory_format=torch.channels_last),
    "to": lambda x: x.to(memory_format=torch.channels_last),
    "clone": lambda x: x.clone(memory_format=torch.channels_last),
    "as another": lambda x: x.reshape_as(x.flatten()).view_as(x)[:1].expand_as(x),
}


def all_of(result):
    return result if isinstance(result, (tuple, list)) else (result,)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_functions_that_move_integers(form):
    """They commute with what the integers stand for, and strides are those of floats."""
    q = quantize_per_tensor(X, 0.1, 0 if form == INT32 else 9, form)
    numbers = q.dequantize()
    for name, function in MOVES.items():
        for actual, expected in zip(all_of(function(q)), all_of(function(numbers)), strict=True):
            assert actual.qparams is q.qparams or name in ("clone", "to"), name
            assert_same_bits(actual.dequantize(), expected, name)
            assert name not in ("contiguous", "to", "clone") or actual.stride() == expected.stride(), name


def test_they_need_one_scale_for_all():
    q = quantize_per_channel(X, torch.ones(4), torch.zeros(4, dtype=torch.int32), 1, torch.qint8)
    for name in ("chunk", "flip", "channel_shuffle", "pad", "cat", "masked_select"):
        with pytest.raises(ValueError, match="axis=1; allowed is"):
            MOVES[name](q)


def test_parts_share_memory_as_those_of_floats():
    q = quantize_per_tensor(X, 0.1, 9, torch.quint8)
    q.chunk(2, 1)[1].unbind(0)[0].copy_(torch.zeros(2, 4, 6))
    assert not q.dequantize()[0, 2:].any()
    assert q.is_contiguous()
    assert not q.flip(0).is_contiguous(memory_format=torch.channels_last)


def of_torch(q):
    """torch's own quantized tensor, which warns that it is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(q.dequantize(), q.q_scale(), q.q_zero_point(), torch.quint8)


FILLS = {
    "masked_fill": lambda x: torch.masked_fill(x, MASK, -0.5),
    "masked_fill()": lambda x: x.masked_fill(MASK, float("inf")).clamp(max=4.5),
    "masked_fill_": lambda x: x.clone().masked_fill_(MASK, 1.0),
    "threshold_": lambda x: F.threshold_(x.clone(), 0.5, -1.0),
    "pad": lambda x: F.pad(x, (1, 1), value=-0.5),
    "ConstantPad1d": nn.ConstantPad1d(2, 1.5),
    "clamp": lambda x: torch.clamp(x, -0.5, 1.0),
    "clamp()": lambda x: x.clamp(min=-1.0),
    "clip_": lambda x: x.clone().clip_(-0.5, 1.0),
    "clamp_max": lambda x: torch.clamp_max(x, 1.0).clamp_min(-0.5),
    "Hardtanh": nn.Hardtanh(-0.5, 1.0),
}


@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_numbers_that_integers_stand_for(form):
    """Bounds and what is filled in are multiples of the scale here, so that floats give the same."""
    q = quantize_per_tensor(X, 0.5, 9, form)
    for name, function in FILLS.items():
        expected = function(q.dequantize())
        assert_same_bits(function(q).dequantize() + 0.0, expected + 0.0, name)


def test_index_assignment():
    """Of views, masks and lists; it was lost where the index makes a copy."""
    for index, source in (
        (0, torch.ones(4, 4, 6)),
        ((slice(None), 1), -1.5),
        (X > 0, 2.5),
        ([1, 0], quantize_per_tensor(X, 0.25, 0, torch.qint8)),
        ((..., torch.tensor([0, 2])), torch.zeros(2)),
    ):
        for form in FORMS:
            q = quantize_per_tensor(X, 0.5, 0 if form == INT32 else 9, form)
            expected = q.dequantize().clone()
            expected[index] = source.dequantize() if isinstance(source, QTensor) else source
            expected = quantize_per_tensor(expected, 0.5, 0 if form == INT32 else 9, form).dequantize()
            q[index] = source
            assert_same_bits(q.dequantize(), expected)
    with pytest.raises(TypeError, match="source='1' is a str; allowed is a number"):
        q[0] = "1"


def test_joined_tensors_have_the_parameters_of_the_first():
    """As torch's kernels have it, whose integers are at most one step away; integers of the first stay."""
    a, b = (quantize_per_tensor(X, scale, zero, torch.quint8) for scale, zero in ((0.03, 121), (0.05, 7)))
    for name, function in {"cat": lambda *x: torch.cat(x, 1), "stack": lambda *x: torch.stack(x, 1)}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warning, once in a process
            theirs = function(*map(of_torch, (a, b)))
        with pytest.warns(UserWarning, match=r"arrays\[1\] has another scale .* FloatFunctional.cat gives the result"):
            actual = function(a, b)
        assert actual.qparams is a.qparams
        steps = actual.int_repr().int() - theirs.int_repr().int()
        assert steps.abs().max() <= 1, name
        assert_same_bits(
            actual.int_repr(), function(a, quantize_per_tensor(b.dequantize(), 0.03, 121, torch.quint8)).int_repr()
        )
    wide = quantize_per_tensor(torch.tensor([1e9]), 0.37, 0, torch.qint32)
    assert torch.cat([wide, wide.clone()]).int_repr().unique().numel() == 1


@pytest.mark.parametrize(
    "function", [F.leaky_relu, nn.LeakyReLU(0.2, inplace=True), lambda x: torch.clamp(x, -1.0, 0.7)]
)
def test_as_torchs_kernels(function):
    """The parameters of the result are the input's; integers are at most one step away."""
    q = quantize_per_tensor(X, 0.03, 121, torch.quint8)
    theirs, actual = function(of_torch(q)), function(q.clone())
    assert (actual.q_scale(), actual.q_zero_point()) == (theirs.q_scale(), theirs.q_zero_point())
    assert (actual.int_repr().int() - theirs.int_repr().int()).abs().max() <= 1


def test_softmax():
    """With the parameters of numbers from 0 to 1, near the softmax of floats."""
    q = quantize_per_tensor(X, 0.03, 121, torch.quint8)
    expected = q.dequantize().softmax(1)
    for actual in (q.softmax(1), torch.softmax(q, 1), F.softmax(q, dim=1), nn.Softmax(-3)(q)):
        assert (actual.q_scale(), actual.q_zero_point()) == (1 / 256, 0)
        assert (actual.dequantize() - expected).abs().max() < 0.501 / 256
    for wrong in (lambda: F.softmax(q, 1, dtype=torch.float64), lambda: q.softmax(7)):
        with pytest.raises(ValueError, match="allowed is"):
            wrong()


class Asks(nn.Module):
    """Calls a function of quantized tensors."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


SENTENCE = r"{} of a QTensor; allowed are its methods, the methods of FloatFunctional in the place of x \+ y, x \* y"
MISSING = {
    "erf": (torch.erf, lambda x: x.erf()),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), lambda x: x.logsumexp(1)),
    "cumsum": (lambda x: torch.cumsum(x, 0), lambda x: x.cumsum(0)),
    "gelu": (F.gelu, nn.GELU()),
    "einsum": (lambda x: torch.einsum("nchw,nchw->nc", x, x), lambda x: torch.einsum("nchw->nc", x)),
    "linear": (nn.Linear(6, 1), lambda x: F.linear(x, torch.ones(1, 6))),
    r"\+": (lambda x: x + x, lambda x: 1.0 + x),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_not_there_says_so_with_the_name_of_the_layer(name):
    """The same sentence as a function and as a method."""
    q = quantize_per_tensor(X, 0.03, 121, torch.quint8)
    for function in MISSING[name]:
        model = nn.Sequential(nn.Identity(), nn.Sequential(Asks(function)))
        with pytest.raises(TypeError, match=rf"^layer '1\.0[^']*': {SENTENCE.format(name)}"):
            model(q)
        if not isinstance(function, nn.Module):
            with pytest.raises(TypeError, match=f"^{SENTENCE.format(name)}"):
                function(q)


def test_attributes_that_are_not_there():
    q = quantize_per_tensor(X, 0.03, 121, torch.quint8)
    assert not hasattr(q, "erf")
    with pytest.raises(AttributeError, match="a QTensor has no attribute 'erff'"):
        _ = q.erff
    assert QuantStub()(q) is q


@pytest.mark.heavy
def test_in_programs():
    def program(q):
        a, b = q.chunk(2, 1)
        joined = torch.cat([F.pad(a.flip(1), (1, 0)), F.pad(b, (0, 1), value=1.0)], 1)
        return F.channel_shuffle(joined, 2).masked_fill(joined.values > 100, 0.5).softmax(1).int_repr()

    q = quantize_per_tensor(X, 0.03, 121, torch.quint8)
    torch.compiler.reset()
    assert_same_bits(torch.compile(program, backend="aot_eager", fullgraph=True)(q), program(q))


@pytest.mark.parametrize("size", [0, 1, 3])
def test_margins_are_torchs(size):
    """Those below 0 take numbers away, but no more than there are."""
    x = torch.arange(2.0 * size).reshape(2, size)
    q = quantize_per_tensor(x, 1.0, 3, torch.quint8)
    for margins in itertools.product(range(-4, 3), repeat=2):
        try:
            expected = F.pad(x, margins)
        except RuntimeError:
            with pytest.raises(ValueError, match="pad takes"):
                F.pad(q, margins)
        else:
            assert_same_bits(F.pad(q, margins).dequantize(), expected)


@torch.library.custom_op("qtorch_tests::relu", mutates_args=())
def own_relu(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_programs_operator_is_not_torchs_function_of_its_name():
    """Neither of quantized tensors, nor where quantize_model asks to which bounds a function clamps."""
    with pytest.raises(TypeError, match="qtorch_tests::relu of a QTensor; allowed are its methods"):
        torch.ops.qtorch_tests.relu(quantize_per_tensor(X, 0.1, 120, torch.quint8))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            return torch.ops.qtorch_tests.relu(self.fc(x))

    torch.manual_seed(0)
    model, x = Model().eval(), X.reshape(-1, 6)
    y, found = model(x), quantize_model(model, calibrate=[x])(x)
    assert y.min() < -1
    assert (found - y).abs().max() < (y.max() - y.min()) / 50
