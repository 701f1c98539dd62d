"""FakeQuantize in training: one kernel observes and rounds, with the bits of both steps by themselves."""

from functools import partial

import pytest
import torch
from covering import some
from support import assert_same_bits

import qtorch._affine.fake_quantize as room
from qcore import affine
from qcore.affine import AffineInteger
from qtorch.quantization import (
    FakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
    RuleObserver,
)

OBSERVERS = [MinMaxObserver, MovingAverageMinMaxObserver, PerChannelMinMaxObserver]
OBSERVERS += [MovingAveragePerChannelMinMaxObserver]
FORMS = [AffineInteger.of_width(3), AffineInteger(0, 127), AffineInteger(-7, 1000), AffineInteger.of_width(32)]


@pytest.fixture
def passes(monkeypatch):
    """How many tensors went through the kernel; with `passes[:] = [None]` none can."""
    found, launch = [], room.observer_on_cpu

    def counted(*arguments):
        run = None if found == [None] else launch(*arguments)
        found.append(run is not None) if found != [None] else None
        return run

    monkeypatch.setattr(room, "observer_on_cpu", counted)
    return found


def tensors():
    """What a step may meet: other sizes, strides and memory formats, one-signed data, zeros, an infinity at last."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, 5, 3, generator=generator)
    found = [x, 100 * x - 3, x.contiguous(memory_format=torch.channels_last), x.transpose(0, 2)[:4], -x.abs(), 0 * x]
    found += [torch.randn(4, 6, 500, 3, generator=generator), x.abs()]
    infinite = x.clone()
    infinite[1, 2, 3, 1] = -torch.inf
    return [*found, infinite]


def trained(module, xs):
    """What a module returns, gradients, and the buffers after each step."""
    for x in xs:
        leaf = x.detach().clone().requires_grad_()
        y = module(leaf)
        y.backward(torch.full_like(y, 1.5))
        assert y.stride() == leaf.stride()
        observer = module.activation_post_process
        yield from (y, leaf.grad, module.scale, module.zero_point, observer.min_val, observer.max_val)
        assert module.scale.shape == module.zero_point.shape


@some(*((i // 2 % 2, i) for i in range(4)), scheme=["symmetric", "affine"], observer=OBSERVERS)
def test_the_bits_of_both_steps(passes, observer, scheme):
    xs = tensors()
    channels = {"ch_axis": 1} if "Channel" in observer.__name__ else {}
    for form in FORMS:
        if scheme == "affine" and form == affine.INT32:
            continue
        make = partial(FakeQuantize, observer, dtype=form, qscheme=scheme, **channels)
        passes.clear()
        found = [one.clone() for one in trained(make(), xs)]
        assert sum(passes) == len(xs) - bool(channels)  # before the first one, nobody knows how many channels there are
        passes[:] = [None]
        for index, (own, expected) in enumerate(zip(found, trained(make(), xs), strict=True)):
            assert_same_bits(own.contiguous(), expected.contiguous(), f"{form} {index}")


@pytest.mark.parametrize("axis", [0, 3])
def test_channels_along_other_axes(passes, axis):
    xs = [torch.randn(4, 6, 5, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    make = partial(FakeQuantize, MovingAveragePerChannelMinMaxObserver, ch_axis=axis)
    found = [one.clone() for one in trained(make(), xs)]
    assert passes == [False, True, True]
    passes[:] = [None]
    for own, expected in zip(found, trained(make(), xs), strict=True):
        assert_same_bits(own, expected)


def test_observers_of_users_are_called(passes):
    """By a rule of theirs, a subclass with a rule of its own, or a hook; other types and switches take two steps."""

    class Doubled(MinMaxObserver):
        def forward(self, x):
            return super().forward(2 * x)

    x = torch.linspace(-1, 1, 64)
    module = FakeQuantize(Doubled)
    module(x)
    assert module.activation_post_process.max_val == 2
    heard = []
    module = FakeQuantize()
    module(x)
    module.activation_post_process.register_forward_hook(lambda *_: heard.append(1))
    module(x)
    assert heard == [1]
    assert passes == [True]
    passes.clear()
    for module, y in (
        (FakeQuantize(HistogramObserver), x),
        (FakeQuantize(), x.to(torch.bfloat16)),
        (FakeQuantize(), x.double()),
        (FakeQuantize(), x[:0]),
    ):
        module(y)
    module.disable_fake_quant()
    assert module(x) is x
    module.enable_fake_quant()
    module.disable_observer()
    module(x)
    assert not any(passes)
    FakeQuantize(partial(RuleObserver, affine.MovingAverageMinMax(averaging_constant=0.5)))(x)
    assert passes[-1]


def test_other_channels_are_an_error():
    module = FakeQuantize(MovingAveragePerChannelMinMaxObserver)
    for _ in range(2):
        module(torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"x has channels of shape \(2,\) for axis=0; allowed is \(3,\)"):
        module(torch.ones(2, 2))
    with pytest.raises(ValueError, match="axis=0 for an array without dimensions"):
        module(torch.ones(()))
