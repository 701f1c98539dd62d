"""A QTensor is an array: functions and methods that move, join and fill its integers, as they do floats."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import usually
from support import assert_same_bits

from qcore.affine import INT8, INT32, UINT8, AffineInteger
from qjax.quantization import QTensor, functional, quantize_per_channel, quantize_per_tensor

X = (np.random.default_rng(1).normal(size=(2, 4, 4, 6)) * 3).astype(np.float32)
MOVES = {
    "split": lambda f, x: f.split(x, [1, 3], 1),
    "chunk": lambda f, x: f.chunk(x, 3, 1),
    "unbind": lambda f, x: f.unbind(x, -1),
    "flip": lambda f, x: f.flip(x, (1, 3)),
    "repeat": lambda f, x: f.repeat(x, 2, 1),
    "tile": lambda f, x: f.tile(x, (2, 1)),
    "unflatten": lambda f, x: f.unflatten(x, -1, (2, -1)),
    "pixel_shuffle": lambda f, x: f.pixel_shuffle(x, 2),
    "channel_shuffle": lambda f, x: f.channel_shuffle(x, 2),
    "pad": lambda f, x: f.pad(x, ((0, 0), (1, 2), (0, 3), (1, 0))),
    "pad edge": lambda f, x: f.pad(x, 2, "edge"),
    "pad reflect": lambda f, x: f.pad(x, 1, "reflect"),
    "pad wrap": lambda f, x: f.pad(x, 1, "wrap"),
}
JOINS = {
    "concatenate": lambda x: functional.concatenate([x, x[:, ::-1]], 1),
    "stack": lambda x: functional.stack(functional.unbind(x, 1), -1),
}


def all_of(result):
    return result if isinstance(result, (tuple, list)) else (result,)


class Methods:
    """Methods in the place of functions."""

    def __getattr__(self, name):
        return lambda x, *arguments: getattr(x, name)(*arguments)


FORMS = usually((UINT8,), (UINT8, INT32, INT8, AffineInteger(0, 65535)))


@pytest.mark.parametrize("form", FORMS)
def test_functions_that_move_integers(form):
    """They commute with what the integers stand for; functions take floats, too."""
    q = quantize_per_tensor(jnp.asarray(X), 0.1, 0 if form == INT32 else 9, form)
    rooms = {"functions": functional, "methods": Methods()}

    def everything(q):
        found = {f"{name}, {room}": function(rooms[room], q) for name, function in MOVES.items() for room in rooms}
        return found | {name: function(q) for name, function in JOINS.items()}

    @jax.jit
    def of_numbers(x):
        return {name: function(functional, x) for name, function in MOVES.items()} | {
            name: function(x) for name, function in JOINS.items()
        }

    found, expected = jax.jit(everything)(q), of_numbers(q.dequantize())
    for name, parts in found.items():
        for actual, plain in zip(all_of(parts), all_of(expected[name.partition(",")[0]]), strict=True):
            assert isinstance(actual, QTensor)
            assert_same_bits(actual.dequantize(), plain, name)


def test_shuffles_are_torchs():
    """With channels first, and last."""
    first, last = torch.from_numpy(X), jnp.moveaxis(jnp.asarray(X), 1, -1)
    for own, theirs in (
        (functional.pixel_shuffle, torch.nn.functional.pixel_shuffle),
        (functional.channel_shuffle, torch.nn.functional.channel_shuffle),
    ):
        assert_same_bits(own(X, 2), theirs(first, 2).numpy())
        assert_same_bits(jnp.moveaxis(own(last, 2, channels_last=True), -1, 1), theirs(first, 2).numpy())


def test_fills():
    """Bounds and what is filled in are multiples of the scale here, so that floats give the same."""
    q = quantize_per_tensor(jnp.asarray(X), 0.5, 9, "quint8")
    numbers, mask = q.dequantize(), jnp.asarray(X > 0.5)
    calls = (
        lambda x: functional.masked_fill(x, mask, -0.5),
        lambda x: functional.pad(x, 1, constant_values=-0.5),
        lambda x: x.at[:, 1].set(-1.5),
        lambda x: x.at[jnp.array([1, 0]), 2].set(numbers[:, 0]),
        lambda x: x.at[0].set(x[1]),
    )
    everything = jax.jit(lambda x: [call(x) for call in calls])
    for of_integers, of_numbers in zip(everything(q), everything(numbers), strict=True):
        assert_same_bits(of_integers.dequantize() + 0.0, of_numbers + 0.0)
    narrow = quantize_per_tensor(jnp.asarray(X), 0.25, 0, "qint8")
    assert_same_bits(
        q.at[0].set(narrow[0]).dequantize()[0],
        quantize_per_tensor(narrow[0].dequantize(), 0.5, 9, "quint8").dequantize(),
    )


def test_joined_arrays_have_the_parameters_of_the_first():
    a, b = (quantize_per_tensor(jnp.asarray(X), scale, zero, "quint8") for scale, zero in ((0.03, 121), (0.05, 7)))
    with pytest.warns(UserWarning, match=r"arrays\[1\] has another scale .* FloatFunctional.cat gives the result"):
        actual = functional.concatenate([a, b])
    assert_same_bits(actual.values[2:], quantize_per_tensor(b.dequantize(), 0.03, 121, "quint8").values)
    assert_same_bits(jax.jit(lambda *x: functional.concatenate(x))(a, b).values, actual.values)


WRONG = {
    r"axis=1; allowed is one without channels": lambda q: functional.flip(
        quantize_per_channel(jnp.asarray(X), jnp.ones(4), jnp.zeros(4, jnp.int32), 1, "qint8")
    ),
    "mode='mean'; allowed are": lambda q: q.pad(1, "mean"),
    "sizes=\\(4, 2\\); allowed are sizes of 6 numbers": lambda q: q.unflatten(-1, (4, 2)),
    "groups=3; allowed are divisors of 4": lambda q: q.channel_shuffle(3),
    "upscale_factor\\^2=9 divides": lambda q: q.pixel_shuffle(3),
    "chunks=0; allowed is": lambda q: q.chunk(0),
    "mask has dtype uint8; allowed is bool": lambda q: q.masked_fill(q.values, 1.0),
    "a QTensor is where numbers are needed: insert a DeQuantStub before it": lambda q: q.cumsum(),
    "numbers are needed: insert a DeQuantStub before it, or call": lambda q: jnp.cumsum(q),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_calls(message):
    with pytest.raises((TypeError, ValueError), match=message):
        WRONG[message](quantize_per_tensor(jnp.asarray(X), 0.5, 9, "quint8"))


def test_attributes_that_are_not_there():
    q = quantize_per_tensor(jnp.asarray(X), 0.5, 9, "quint8")
    assert not hasattr(q, "cumsum")
    with pytest.raises(AttributeError, match="a QTensor has no attribute 'cumsumm'"):
        _ = q.cumsumm
