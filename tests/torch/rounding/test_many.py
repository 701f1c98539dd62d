"""Operations on many tensors have the bits of one call for each, write in place, and let autograd know."""

import pytest
import torch
from support import NO_GPU, assert_all_same_bits, assert_same_bits

import qtorch
import qtorch._rounding.many
from qcore import BlockFloatingPoint, FloatingPoint, Rounding
from qtorch._rounding.many import copy_each, follow_each, round_each, scale_each

F = FloatingPoint(5, 2)
NAN = float("nan")


def tensors_of_all_kinds():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    found = [normal(4, 3, 3, 3), normal(1), torch.empty(0, 3), torch.tensor([-0.0, NAN, 1e-45]), normal(300, 300)]
    found += [normal(6, 4).T, normal(2, 3, 4, 5).to(memory_format=torch.channels_last), normal(9, 9)[::2, 1:5]]
    found += [normal(70).double(), normal(7, 2).double(), normal(8).bfloat16(), normal(7, 2).half()]
    return [*found, torch.nn.Parameter(normal(5))]


@pytest.fixture(params=["one by one", "joined"])
def _arrangement(request, monkeypatch):
    """Small tensors on GPUs are joined; here those on the CPU are."""
    if request.param == "joined":
        monkeypatch.setattr(qtorch._rounding.many, "JOINED", {"cpu"})


def keys_for(mode, tensors):
    return torch.arange(2 * len(tensors), dtype=torch.int32).view(-1, 2) - 7 if mode == "stochastic" else None


@pytest.mark.usefixtures("_arrangement")
@pytest.mark.parametrize("place", ["onto others", "in place"])
@pytest.mark.parametrize("mode", ["nearest", pytest.param("toward_zero", marks=pytest.mark.heavy), "stochastic"])
@pytest.mark.parametrize("number", [F, BlockFloatingPoint(4)], ids=str)
def test_the_bits_of_one_call_each(number, mode, place):
    sources = tensors_of_all_kinds()
    keys = keys_for(mode, sources)
    expected = [
        qtorch.quantize(x, number, mode, key=None if keys is None else keys[i]).detach() for i, x in enumerate(sources)
    ]
    before = [x.detach().clone() for x in sources]
    targets = sources if place == "in place" else [torch.full_like(x, NAN) for x in sources]
    versions = [(x._version, x.data_ptr(), x.stride()) for x in targets]
    round_each(targets, sources, number, Rounding(mode), keys)
    assert_all_same_bits(targets, expected)
    assert not any(x.grad_fn for x in targets)
    for x, (version, address, stride) in zip(targets, versions, strict=True):
        assert (x._version > version, x.data_ptr(), x.stride()) == (True, address, stride)
    if place == "onto others":
        assert_all_same_bits(sources, before)


def test_none_at_all():
    round_each([], [], F, Rounding.NEAREST)
    round_each([], [], F, Rounding.STOCHASTIC, torch.empty((0, 2), dtype=torch.int32))
    follow_each([], [], [])
    copy_each([], [])
    scale_each([], 2.0)


def test_what_cannot_be_rounded_is_refused():
    x = torch.ones(2, dtype=torch.int32)
    with pytest.raises(TypeError, match="int32"):
        round_each([x], [x], F, Rounding.NEAREST)


@pytest.mark.usefixtures("_arrangement")
def test_changed_elements_are_followed():
    sources = tensors_of_all_kinds()
    values, written = [x.detach() + 1 for x in sources], [x.detach().clone() for x in sources]
    values[4], written[4] = values[4].T.contiguous().T, written[4].T.contiguous().T  # other strides than the weight's
    expected = [x.clone() for x in values]
    follow_each(values, sources, written)
    assert_all_same_bits(values, expected)
    for weight, value in zip(sources, expected, strict=True):
        changed = torch.arange(weight.numel()).view(weight.shape) % 3 == 1
        weight.data[changed] = -7.0
        value[changed] = -7.0
    follow_each(values, sources, written)
    assert_all_same_bits(values, expected)
    assert_all_same_bits(written, sources)


@pytest.mark.usefixtures("_arrangement")
def test_zeros_differ_by_sign_and_a_nan_is_itself():
    weight, last, value = torch.tensor([0.0, -0.0, NAN, -NAN]), torch.tensor([-0.0, -0.0, NAN, NAN]), torch.ones(4)
    follow_each([value], [weight], [last])
    assert_same_bits(value, torch.tensor([0.0, 1.0, 1.0, -NAN]))
    assert_same_bits(last, weight)


def test_copies_and_products():
    sources = tensors_of_all_kinds()
    targets = [torch.zeros_like(x) for x in sources]
    copy_each(targets, sources)
    assert_all_same_bits(targets, sources)
    scale_each([*targets, targets[0]], 0.375)  # one of them twice
    assert_all_same_bits(targets, [x.detach() * 0.375 for x in sources])


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_gpus_have_the_bits_of_the_cpu(mode):
    sources = tensors_of_all_kinds()
    on_gpu = [x.detach().cuda() for x in sources]
    for tensors in (sources, on_gpu):
        round_each(tensors, tensors, F, Rounding(mode), keys_for(mode, sources))
    assert_all_same_bits(on_gpu, sources)
    values, written = [x + 1 for x in on_gpu], [x.clone() for x in on_gpu]
    for x in on_gpu:
        x[x == 0] = 3.0
    expected = [torch.where(x == last, value, x) for x, value, last in zip(on_gpu, values, written, strict=True)]
    expected = [torch.where(x.isnan(), value, y) for x, value, y in zip(on_gpu, values, expected, strict=True)]
    follow_each(values, on_gpu, written)
    assert_all_same_bits(values, expected)
    assert_all_same_bits(written, on_gpu)
