"""qjax.quantizer: values and gradients against their definition in NumPy, under JAX's transformations; nnx's module."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import some
from flax import nnx
from support import DTYPES, assert_same_bits

import qcore
import qjax
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Quantization
from qjax.nnx import Quantizer

F8, F16, FIXED = FloatingPoint(5, 2), FloatingPoint(6, 9), FixedPoint(4, 2)
HARD = np.float32(
    [0, -0.0, 1e-45, -1e-40, 0.125, -0.125, 0.375, 1.75, 1.76, 1.87, 1.875, -2, -2.1, -2.125, -2.25, 1e30, -1e30]
    + [np.inf, -np.inf, np.nan]
)
RANDOM = np.random.default_rng(0).standard_normal((2, 100)).astype(np.float32)
X = np.stack([np.concatenate([HARD, RANDOM[0] * 2]), np.concatenate([HARD[::-1], RANDOM[1]])])
G = np.stack([np.concatenate([HARD[::-1], RANDOM[1]]), np.concatenate([HARD, RANDOM[0] * 3])])
KEY = 2**32 + 7  # a word of each kind


def negate(grad):
    return -grad


def invert_bits(grad):
    return (grad.view(jnp.int32) ^ 0x00555555).view(jnp.float32)


def words(key):
    return tuple(map(int, np.asarray(jax.random.key_data(key))))


def value(f, x, key):
    return x if f.forward_number is None else qcore.quantize(x, f.forward_number, f.forward_rounding, key=key)


def gradient(f, x, grad, key):
    """The definition, in NumPy."""
    for hook in f.backward_hooks:
        grad = np.asarray(hook(jnp.asarray(grad)))
    if f.backward_number is not None:
        grad = qcore.quantize(grad, f.backward_number, f.backward_rounding, key=qcore.fold_in(key, 1))
    number = f.forward_number
    if f.clamping_grad_zero and number is not None and number.clamp:
        largest = 2.0 ** (number.wl - number.fl - 1) - 2.0**-number.fl
        smallest = -largest if number.symmetric else -(2.0 ** (number.wl - number.fl - 1))
        rounded = qcore.quantize(x, replace(number, clamp=False), f.forward_rounding, key=key)
        grad = np.where((rounded > largest) | (rounded < smallest), grad.dtype.type(0), grad)
    return grad


def pull(f, x, grad, key):
    y, back = jax.vjp(lambda x: f(x, key=key), x)
    return y, back(grad)[0]


QUANTIZERS = {
    "float": qjax.quantizer(F8, F16),
    "names": qjax.quantizer("e4m3fn", "e5m2", "nearest", "toward_zero"),
    "forward": qjax.quantizer(F8),
    "backward": qjax.quantizer(None, F8),
    "nearest forward": qjax.quantizer(F8, F8, "nearest"),
    "nearest backward": qjax.quantizer(F8, F8, backward_rounding="nearest"),
    "nothing": qjax.quantizer(),
    "hooks": qjax.quantizer(F8, F8, "nearest", "stochastic", False, [negate, invert_bits]),
    "hooks alone": qjax.quantizer(backward_hooks=(invert_bits, negate)),
    "block": qjax.quantizer(BlockFloatingPoint(4, 0), BlockFloatingPoint(4)),
    "mask": qjax.quantizer(FIXED, F8, clamping_grad_zero=True),
    "mask nearest": qjax.quantizer(FIXED, F8, "nearest", "nearest", True, [negate]),
    "mask alone": qjax.quantizer(FixedPoint(4, 2, symmetric=True), None, clamping_grad_zero=True),
    "no mask": qjax.quantizer(FixedPoint(4, 2, clamp=False), F8, clamping_grad_zero=True),
    "mask of nothing": qjax.quantizer(None, F8, clamping_grad_zero=True),
}


@some(*((place, place % 2) for place in range(len(QUANTIZERS))), name=[*QUANTIZERS], jitted=[False, True])
def test_values_and_gradients_are_the_definition(name, jitted):
    f = QUANTIZERS[name]
    y, grad = (jax.jit(pull, static_argnums=(0, 3)) if jitted else pull)(f, jnp.asarray(X), jnp.asarray(G), KEY)
    assert_same_bits(y, value(f, X, KEY), "value")
    assert_same_bits(grad, gradient(f, X, G, KEY), "gradient")


@some((0, 0), (1, 1), (0, 2), (1, 3), promotion=["standard", "strict"], dtype=[*DTYPES])
def test_dtypes(dtype, promotion):
    f = QUANTIZERS["mask"]
    with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion(promotion), np.errstate(all="ignore"):
        x, grad = X.astype(DTYPES[dtype]), G.astype(DTYPES[dtype])
        y, pulled = pull(f, jnp.asarray(x), jnp.asarray(grad), KEY)
        assert_same_bits(y, value(f, x, KEY))
        assert_same_bits(pulled, gradient(f, x, grad, KEY))


@pytest.mark.parametrize("x64", [False, True])
def test_keys_of_all_kinds(x64):
    f = QUANTIZERS["float"]
    expected = value(f, X, 7), gradient(f, X, G, 7)
    with jax.enable_x64(x64):
        x, grad = jnp.asarray(X), jnp.asarray(G)
        for key in (7, (0, 7), np.uint32([0, 7]), jnp.uint32(jnp.array([0, 7])), jax.random.key(7)):
            for actual, right in zip(pull(f, x, grad, key), expected, strict=True):
                assert_same_bits(actual, right, str(key))
        traced = jax.jit(pull, static_argnums=0)
        for key in (jax.random.PRNGKey(7), jax.random.key(7)):
            for actual, right in zip(traced(f, x, grad, key), expected, strict=True):
                assert_same_bits(actual, right, str(key))


def test_keys_have_no_gradient():
    key = jax.random.PRNGKey(7)
    _, back = jax.vjp(QUANTIZERS["mask"], jnp.asarray(X), key)
    assert back(jnp.asarray(G))[1].dtype == jax.dtypes.float0
    grad = jax.grad(lambda key: QUANTIZERS["mask"](jnp.asarray(X), key).sum(), allow_int=True)(key)
    assert grad.dtype == jax.dtypes.float0


@pytest.mark.parametrize("name", ["float", "mask", "block", "hooks"])
def test_vmap_repeats_the_words_of_one_key_and_takes_a_key_an_example(name):
    f = replace(QUANTIZERS[name], backward_number=F16)
    if name == "block":
        f = replace(f, forward_number=BlockFloatingPoint(4))
    keys = jax.random.split(jax.random.key(1), len(X))
    for axes, key, each in ((None, jax.random.key(7), [7] * len(X)), (0, keys, [words(key) for key in keys])):
        y, grad = jax.vmap(lambda x, g, key: pull(f, x, g, key), in_axes=(0, 0, axes))(X, G, key)
        assert_same_bits(y, np.stack([value(f, x, key) for x, key in zip(X, each, strict=True)]))
        assert_same_bits(grad, np.stack([gradient(f, x, g, key) for x, g, key in zip(X, G, each, strict=True)]))


def test_scan_and_remat():
    f = QUANTIZERS["mask"]
    keys = jax.random.split(jax.random.key(3), 3)

    def looped(x, layer):
        for key in keys:
            x = layer(x, key)
        return x

    def scanned(x, layer):
        return jax.lax.scan(lambda x, key: (layer(x, key), None), x, keys)[0]

    x, expected = X, G
    seen = []
    for key in keys:
        seen.append(x)
        x = value(f, x, words(key))
    for x_then, key in zip(seen[::-1], keys[::-1], strict=True):
        expected = gradient(f, x_then, expected, words(key))
    for run in (looped, scanned):
        for layer in (f, jax.checkpoint(f)):
            y, back = jax.vjp(lambda x, run=run, layer=layer: run(x, layer), jnp.asarray(X))
            assert_same_bits(y, x)
            assert_same_bits(back(jnp.asarray(G))[0], expected)


def test_sharded_arrays():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a", "b"))
    x, grad = (jax.device_put(array, sharding) for array in (X, G))
    f = QUANTIZERS["mask"]
    for pulled in (pull, jax.jit(pull, static_argnums=(0, 3))):
        y, back = pulled(f, x, grad, KEY)
        assert y.sharding.is_equivalent_to(sharding, 2)
        assert back.sharding.is_equivalent_to(sharding, 2)
        assert_same_bits(y, value(f, X, KEY))
        assert_same_bits(back, gradient(f, X, G, KEY))


def test_second_derivatives_go_the_same_way():
    f = qjax.quantizer(FixedPoint(5, 2), FloatingPoint(5, 1), "nearest", "nearest", True, [negate])
    x, v = jnp.float32([0.3, 1.3, 2.2, 9.0]), jnp.float32([1, -1.25, 3, 1])
    y, inside = np.float32([0.25, 1.25, 2.25, 3.75]), np.array([True, True, True, False])

    def back(grad):
        return np.where(inside, qcore.quantize(-grad, FloatingPoint(5, 1), "nearest"), np.float32(0))

    first = jax.grad(lambda x: (f(x) ** 3).sum())
    assert_same_bits(first(x), back(3 * y**2))
    second = jax.grad(lambda x: (first(x) * v).sum())
    assert_same_bits(second(x), back(6 * y * np.where(inside, -np.asarray(v), 0)))


def test_functions_are_values():
    f = qjax.quantizer(FIXED, "e5m2", "nearest", clamping_grad_zero=True, backward_hooks=[negate])
    same = qjax.quant.quantizer(FIXED, qcore.NAMED["e5m2"][0], qcore.Rounding.NEAREST, "stochastic", True, (negate,))
    assert f == same
    assert hash(f) == hash(same)
    assert f != replace(f, backward_rounding="nearest")
    assert isinstance(f, Quantization)
    again = pickle.loads(pickle.dumps(f))
    assert again == f
    assert_same_bits(again(jnp.asarray(X), 3), value(f, X, 3))
    assert "FixedPoint(wl=4, fl=2)" in repr(f)


def test_wrong_arguments():
    x = jnp.asarray(X)
    for f, arguments, error, message in [
        (QUANTIZERS["float"], (x,), ValueError, "key"),
        (QUANTIZERS["nearest forward"], (x,), ValueError, "key"),
        (QUANTIZERS["nearest backward"], (x,), ValueError, "key"),
        (QUANTIZERS["float"], (x, -1), ValueError, "key=-1"),
        (QUANTIZERS["mask nearest"], (x, "seed"), TypeError, "key='seed'"),
        (QUANTIZERS["float"], (x, jax.random.key(1, impl="rbg")), ValueError, "rbg"),
        (QUANTIZERS["nothing"], (X.tolist(),), TypeError, "list"),
        (QUANTIZERS["nothing"], (jnp.arange(3),), TypeError, "int32"),
    ]:
        with pytest.raises(error, match=message):
            f(*arguments)
    for arguments, error, message in [
        ({"forward_number": (5, 2)}, TypeError, "forward_number"),
        ({"backward_number": "e5m2x"}, ValueError, "backward_number"),
        ({"backward_rounding": "neerest"}, ValueError, "backward_rounding"),
        ({"forward_number": F8, "clamping_grad_zero": True}, ValueError, "clamping_grad_zero"),
        ({"backward_hooks": negate}, TypeError, "backward_hooks"),
    ]:
        with pytest.raises(error, match=message):
            qjax.quantizer(**arguments)
        with pytest.raises(error, match=message):
            Quantizer(**arguments)


class Model(nnx.Module):
    def __init__(self, rngs):
        self.weight = nnx.Param(jnp.asarray(X))
        self.quantizer = Quantizer(FIXED, F8, clamping_grad_zero=True, rngs=rngs)

    def __call__(self, scale):
        return (self.quantizer(self.weight[...]) * scale).sum()


def test_nnx_modules_draw_a_key_a_call():
    keys = nnx.Rngs(quantize=5).quantize.fork()
    model = Model(nnx.Rngs(quantize=5))
    f = model.quantizer.function
    for grad_of in (nnx.grad, lambda function: nnx.jit(nnx.grad(function))):
        key = words(keys())
        grad = grad_of(lambda model, scale: model(scale))(model, jnp.asarray(G))
        assert_same_bits(grad["weight"][...], gradient(f, X, G, key))
    for call in (lambda q, x: q(x), nnx.jit(lambda q, x: q(x))):
        assert_same_bits(call(model.quantizer, jnp.asarray(X)), value(f, X, words(keys())))
    copy = nnx.merge(*nnx.split(model)).quantizer
    assert_same_bits(copy(jnp.asarray(X), KEY), value(f, X, KEY))
    assert_same_bits(copy(jnp.asarray(X)), value(f, X, words(keys())))


def test_nnx_modules_without_rngs():
    nearest = Quantizer(F8, F8, "nearest", "nearest", rngs=nnx.Rngs(0))
    assert_same_bits(nearest(jnp.asarray(X)), qcore.quantize(X, F8, "nearest"))
    assert not jax.tree.leaves(nnx.state(nearest))
    stochastic = Quantizer(F8)
    with pytest.raises(ValueError, match="key"):
        stochastic(jnp.asarray(X))
    assert_same_bits(stochastic(jnp.asarray(X), 3), qcore.quantize(X, F8, "stochastic", key=3))
    with pytest.raises(TypeError, match="rngs=3"):
        Quantizer(F8, rngs=3)
