"""QTensor: the integers of qcore.affine, and the methods that torch's quantized tensors had."""

import copy
import operator

import numpy as np
import pytest
import torch
from affine_support import ties
from support import assert_same_bits

from qcore import affine as reference
from qcore.affine import INT8, INT32, UINT8, AffineInteger, MinMax, QParams
from qcore.affine.checkpoint import Quantized, load_file, save_file
from qtorch.quantization import (
    FakeQuantize,
    HistogramObserver,
    QTensor,
    dequantize,
    load,
    quantize_per_channel,
    quantize_per_tensor,
    save,
)

FORMS = [AffineInteger.of_width(width, signed) for width in range(2, 17) for signed in (True, False)]
NUMBERS = torch.tensor([[-0.5, 0.26, 1.0], [2.5, -9.0, 0.24]])
Q = quantize_per_tensor(NUMBERS, 0.5, 2, torch.quint8)
CHANNELS = quantize_per_channel(NUMBERS, torch.tensor([0.5, 0.25, 1]), torch.tensor([2, 3, 4]), 1, torch.qint8)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_integers_and_numbers(form):
    rng = np.random.default_rng(1)
    scale, zero_point = np.float32(2.0 ** rng.uniform(-8, 2)), form.qmax - 1
    x = ties(rng, scale, zero_point, form, 1000)
    q = quantize_per_tensor(torch.from_numpy(x), float(scale), zero_point, form)
    qparams = QParams.of(scale, zero_point)
    expected = reference.quantize_affine(x, qparams, form)
    assert str(q.values.dtype) == f"torch.{form.storage}"
    assert q.int_repr().to(torch.int32).tolist() == expected.tolist()
    assert_same_bits(dequantize(q), reference.dequantize(expected, qparams, form))
    assert (q.q_scale(), q.q_zero_point()) == (float(scale), zero_point)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_channels(axis):
    x = torch.randn(3, 4, 5)
    scales, zeros = torch.rand(x.shape[axis]) + 0.1, torch.arange(x.shape[axis])
    q = quantize_per_channel(x, scales, zeros, axis, torch.qint8)
    qparams = QParams.of(scales.numpy(), zeros.numpy(), axis)
    expected = reference.quantize_affine(x.numpy(), qparams, INT8)
    assert q.int_repr().tolist() == expected.tolist()
    assert_same_bits(q.dequantize(), reference.dequantize(expected, qparams, INT8))
    assert q.q_per_channel_scales().equal(scales)
    assert q.q_per_channel_zero_points().tolist() == zeros.tolist()
    assert (q.q_per_channel_axis(), q.qscheme()) == (axis, torch.per_channel_affine)
    assert torch.relu(q).dequantize().equal(q.dequantize().relu())


def test_what_is_known():
    assert Q.int_repr().tolist() == [[1, 3, 4], [7, 0, 2]]
    assert Q.dequantize().tolist() == [[-0.5, 0.5, 1], [2.5, -1, 0]]
    assert (Q.shape, Q.size(), Q.size(1), Q.dim(), Q.ndim, Q.numel(), len(Q)) == ((2, 3), (2, 3), 3, 2, 2, 6, 2)
    assert (Q.dtype, Q.qscheme(), Q.device.type) == (torch.quint8, torch.per_tensor_affine, "cpu")
    assert quantize_per_tensor(NUMBERS, 0.5, 0, torch.qint32).dtype is torch.qint32
    assert quantize_per_tensor(NUMBERS, 0.5, 0, AffineInteger(0, 15)).dtype == AffineInteger(0, 15)
    assert repr(Q).startswith("QTensor([[-0.5000,  0.5000,  1.0000],")
    assert repr(Q).endswith("size=(2, 3), dtype=torch.quint8, scale=0.5, zero_point=2)")
    assert repr(CHANNELS).endswith("dtype=torch.qint8, scale=[0.5, 0.25, 1.0], zero_point=[2, 3, 4], axis=1)")


VIEWS = {
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(3, 2),
    "flatten": lambda x: x.flatten(),
    "expand": lambda x: x.unsqueeze(0).expand(4, -1, -1),
    "permute": lambda x: x.permute(1, 0),
    "transpose": lambda x: x.transpose(0, 1).t(),
    "squeeze": lambda x: x[:1].squeeze(0),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
    "select": lambda x: x.select(1, 2),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "item": lambda x: x[0, 1],
    "slice": lambda x: x[:, ::2],
    "mask": lambda x: x[torch.tensor([False, True])],
    "list": lambda x: x[[1, 0, 1]],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    """The numbers that plain tensors have there; parameters for channels would not fit."""
    view = VIEWS[name]
    assert view(Q).dequantize().equal(view(Q.dequantize()))
    assert view(Q).qparams is Q.qparams
    with pytest.raises(ValueError, match="of a QTensor with axis=1; allowed is one without channels"):
        view(CHANNELS)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name):
    """Of numbers, whatever integers they are."""
    other = quantize_per_tensor(NUMBERS.flip(1), 0.25, 7, torch.qint8)
    for right, plain in (
        (other, other.dequantize()),
        (0.5, 0.5),
        (NUMBERS, NUMBERS),
        (CHANNELS, CHANNELS.dequantize()),
    ):
        expected = getattr(operator, name)(Q.dequantize(), plain)
        assert getattr(Q, name)(right).equal(expected)
        assert getattr(operator, name)(Q, right).equal(expected)
        assert getattr(torch, name)(Q, right).equal(expected)
    assert hash(Q) != hash(Q.clone())


@pytest.mark.parametrize("form", [UINT8, INT8, AffineInteger.of_width(16, signed=False), INT32], ids=str)
def test_selections(form):
    x = torch.randn(4, 5)
    q = quantize_per_tensor(x, 0.1, 0 if form == INT32 else 9, form)
    numbers = q.dequantize()
    assert (q.max().dequantize(), q.min().dequantize()) == (numbers.max(), numbers.min())
    for dim, found, expected in (
        (1, [x.unsqueeze(1) for x in q.max(1)], numbers.amax(1, True)),
        (0, torch.min(q, 0, True), numbers.amin(0, True)),
        (1, q.sort(), numbers.sort().values),
        (0, q.sort(0, descending=True), numbers.sort(0, descending=True).values),
        (1, torch.topk(q, 2), numbers.topk(2).values),
        (0, q.topk(2, 0, largest=False), numbers.topk(2, 0, largest=False).values),
    ):
        assert found[0].dequantize().equal(expected)
        assert found[0].values.dtype is q.values.dtype
        assert numbers.gather(dim, found[1]).equal(expected)


def test_means():
    """Of the integers, rounded to even; torch's own, of numbers, is within one step."""
    q = quantize_per_tensor(torch.tensor([[1.0, 2, 4, 5], [0, 1, 2, 3]]), 1.0, 3, torch.quint8)
    assert q.mean().int_repr().tolist() == 5
    assert q.mean(1).int_repr().tolist() == [6, 4]
    assert torch.mean(q, 0, True).int_repr().tolist() == [[4, 4, 6, 7]]


def test_relu():
    q = Q.clone()
    assert torch.relu(q).dequantize().equal(q.dequantize().relu())
    assert q.relu_() is q
    assert q.int_repr().tolist() == [[2, 3, 4], [7, 2, 2]]


def test_copies():
    q, twin = Q.clone(), copy.deepcopy(Q)
    assert torch.equal(q, twin)
    assert q.copy_(torch.full((3,), 0.74)) is q
    assert q.int_repr().tolist() == [[3, 3, 3], [3, 3, 3]]
    assert not q.equal(twin)
    q[0].copy_(twin[1])
    q[1] = quantize_per_tensor(torch.tensor([1.0, 2, 3]), 0.25, 0, torch.qint8)
    assert q.dequantize().tolist() == [[2.5, -1, 0], [1, 2, 3]]
    assert Q.equal(twin)
    assert not Q.equal(quantize_per_tensor(NUMBERS, 0.5, 3, torch.quint8))
    assert not Q.equal(Q.int_repr())
    assert not Q.equal(CHANNELS)
    assert q.to("cpu").equal(q.contiguous())
    assert q.detach() is q
    assert q.resize_(3).shape == (3,)


@pytest.mark.parametrize(
    "q", [Q, CHANNELS, quantize_per_tensor(NUMBERS, 0.5, 2, AffineInteger(0, 15))], ids=["q", "c", "4"]
)
def test_saving(q, tmp_path):
    """With torch's own functions, without code from the file."""
    torch.save({"q": q}, tmp_path / "q.pt")
    loaded = torch.load(tmp_path / "q.pt", weights_only=True)["q"]
    assert loaded.equal(q)
    assert loaded.form == q.form


def test_checkpoints_that_other_packages_read(tmp_path):
    """Of JAX and NumPy alike: `qcore.affine.checkpoint` is the layout of both."""
    module, observer = FakeQuantize(), HistogramObserver()
    for seen in (module, observer):
        seen(NUMBERS)
    states = {
        f"{name}.{key}": value
        for name, seen in (("f", module), ("h", observer))
        for key, value in seen.state_dict().items()
    }
    save(tmp_path / "a.safetensors", {"w": CHANNELS, "half": NUMBERS.bfloat16().t(), **states})
    found = load(tmp_path / "a.safetensors")
    assert found["w"].equal(CHANNELS)
    assert found["half"].equal(NUMBERS.bfloat16().t())
    twin = FakeQuantize()
    twin.load_state_dict({key.removeprefix("f."): value for key, value in found.items() if key.startswith("f.")})
    assert torch.equal(twin(NUMBERS), module(NUMBERS))
    plain = load_file(tmp_path / "a.safetensors")["w"]
    assert_same_bits(plain.scale, CHANNELS.q_per_channel_scales())
    assert (plain.axis, plain.form, plain.int_repr.tolist()) == (1, INT8, CHANNELS.int_repr().tolist())


def test_checkpoints_of_other_packages(tmp_path):
    """States without eps, and with parameters of no dimension."""
    weight = Quantized(np.int8([[1, -2]]), np.float32(0.5), np.int32(1), None, INT8)
    state = MinMax().update(MinMax().init(), np.float32([-1, 3]))
    switches = dict.fromkeys(("f.fake_quant_enabled", "f.observer_enabled"), np.array(True))
    arrays = {"f.scale": np.float32(0.5), "f.zero_point": np.int32(2)} | switches
    save_file(tmp_path / "b.safetensors", {"w": weight, "f.activation_post_process": state, **arrays})
    found = load(tmp_path / "b.safetensors")
    assert found["w"].dequantize().tolist() == [[0, -1.5]]
    module = FakeQuantize()
    module.load_state_dict({key.removeprefix("f."): value for key, value in found.items() if key.startswith("f.")})
    module.disable_observer()
    assert module(torch.tensor([0.7, -9])).tolist() == [0.5, -1]
    assert module.activation_post_process.max_val == 3


THREE = torch.ones(3), torch.zeros(3, dtype=torch.int32)
WRONG = [
    (lambda: quantize_per_tensor(NUMBERS, 0.5, 2, torch.float32), TypeError, r"dtype=torch\.float32; allowed are"),
    (lambda: quantize_per_tensor(NUMBERS, 0.5, 256, torch.quint8), ValueError, "zero_point=256"),
    (
        lambda: quantize_per_tensor(NUMBERS, 0.5, 1, torch.qint32),
        ValueError,
        "zero_point=1; allowed are integers from 0 to 0",
    ),
    (lambda: quantize_per_tensor(NUMBERS, 0.0, 2, torch.quint8), ValueError, r"scale=0\.0"),
    (lambda: quantize_per_tensor(NUMBERS.int(), 1.0, 2, torch.quint8), TypeError, "x has dtype int32"),
    (
        lambda: quantize_per_channel(NUMBERS, torch.ones(3), torch.zeros(3).int(), 0, torch.qint8),
        ValueError,
        r"allowed is \(2,\)",
    ),
    (
        lambda: quantize_per_channel(NUMBERS, *THREE, None, torch.qint8),
        TypeError,
        "axis=None",
    ),
    (
        lambda: QTensor(NUMBERS, Q.qparams, UINT8),
        TypeError,
        r"values has dtype torch\.float32",
    ),
    (lambda: QTensor([1], Q.qparams, UINT8), TypeError, "values is a list; allowed is an array of integers"),
    (lambda: CHANNELS.q_scale(), ValueError, "q_scale of a QTensor with axis=1"),
    (lambda: CHANNELS.max(), ValueError, "max of a QTensor with axis=1"),
    (lambda: CHANNELS.resize_(2), ValueError, "resize_ of a QTensor with axis=1"),
    (lambda: Q.q_per_channel_axis(), ValueError, "q_per_channel_axis of a QTensor without an axis"),
    (lambda: Q.clone().copy_(3.0), TypeError, "source is a float; allowed is a QTensor or a torch.Tensor"),
    (lambda: torch.erf(Q), TypeError, "erf of a QTensor"),
    (lambda: quantize_per_tensor(3, 0.5, 2, torch.quint8), TypeError, "x is a int; allowed is a torch.Tensor"),
    (lambda: quantize_per_channel([1.0], *THREE, 0, torch.qint8), TypeError, "x is a list; allowed is a torch.Tensor"),
    (lambda: dequantize(3), TypeError, "q is a int; allowed is a QTensor"),
    (lambda: save("a.safetensors", 3), TypeError, "entries is a int; allowed is a dict"),
    (lambda: save("a.safetensors", {3: NUMBERS}), TypeError, "the name 3 of entries is a int; allowed is a str"),
    (lambda: save(None, {"w": NUMBERS}), TypeError, "path is a NoneType; allowed is a str or os.PathLike"),
    (lambda: load(3), TypeError, "path is a int; allowed is a str or os.PathLike"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda q: q + q,
        lambda q: 2.0 * q,
        lambda q: q.dequantize() * q,
        lambda q: torch.nn.functional.gelu(q),
        lambda q: torch.nn.Linear(3, 1)(q),
    ],
)
def test_what_has_no_integers_says_what_to_insert(call):
    q = quantize_per_tensor(torch.ones(3), 0.5, 2, torch.quint8)
    with pytest.raises(TypeError, match=r"of a QTensor; allowed are .* FloatFunctional .* insert a DeQuantStub"):
        call(q)
