"""Functions of JAX as ONNX: primitives, loops, and roundings to formats, in onnxruntime."""

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
import torch
from covering import usually
from flax import nnx
from flax_support import layer_of
from jax_export_support import check

import qjax
from qcore import Accumulator
from qjax.export import to_onnx

NOISE = np.random.default_rng(0)
X = NOISE.normal(size=(3, 5, 4)).astype(np.float32)
IMAGES = NOISE.normal(size=(2, 8, 8, 4)).astype(np.float32)
SPECIAL = np.float32([0.0, -0.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan, 448, 464, 465, 61440, 65504, 65520, 3.39e38])
EDGES = np.concatenate([SPECIAL, np.float32([2.5, -2.5, 0.75, 5, 6, 7, 2**-10, 2**-17, 1.5 * 2**-25, -128.5])])
WIDE = np.exp(6 * NOISE.normal(size=1000)) * NOISE.choice([-1, 1], 1000)
NUMBERS = np.concatenate([EDGES, WIDE.astype(np.float32)])

EXACT = {  # what moves numbers, counts or compares them
    "moved": lambda x: (x[:, ::-1], x[1], x[:, [2, 0]], jnp.roll(x, 1, 0), jnp.tile(x, 2), jnp.split(x, 5, 1)[2]),
    "joined": lambda x: (jnp.concatenate([x, x], 1), jnp.stack([x, x], 1), jnp.pad(x, ((1, 2), (0, 1), (2, 0)))),
    "chosen": lambda x: (jnp.where(x > 0, x, 0), jnp.clip(x, -1, 1), nnx.relu(x), jnp.tril(x[0]), jnp.maximum(x, -x)),
    "rounded": lambda x: (jnp.round(3 * x), jnp.floor(x), jnp.ceil(x), jnp.sign(x), jnp.int32(9 * x)),
    "sorted": lambda x: (jnp.sort(x), jnp.argsort(x, 1), jnp.argmax(x, 1), jax.lax.top_k(x, 2), jnp.max(x), x.min(0)),
    "integers": lambda x: (jnp.int32(9 * x) // 4, jnp.int32(9 * x) % 4, jnp.int32(9 * x) & 6, jnp.cumsum(jnp.int32(x))),
    "scan": lambda x: jax.lax.scan(lambda c, a: (c + 2 * a, c), jnp.zeros(4), x[0], reverse=True),
    "loop": lambda x: jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
    "counted": lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c + x[i % 3], x[0]),
    "branch": lambda x: jax.lax.switch(jnp.int32(x.sum() > 0), [lambda a: a + 1, lambda a: 2 * a, lambda a: a], x),
    "nan": lambda x: (jnp.max(x.at[0, 1].set(jnp.nan), 2), jnp.min(x.at[1, 1, 3].set(jnp.nan), 2)),
}
NEAR = {  # sums of floats have another order, and functions other last bits
    "functions": lambda x: (jnp.exp(x), jnp.tanh(x), jnp.log1p(x**2), jnp.expm1(x), jax.lax.rsqrt(x**2), 1 / x, x**3),
    "smooth": lambda x: (nnx.gelu(x), nnx.gelu(x, approximate=False), nnx.silu(x), nnx.softplus(x), nnx.softmax(x)),
    "sums": lambda x: (x.sum((0, 1)), x.mean(), jnp.std(x, 0), jnp.einsum("ijk,ilk->ijl", x, x), jnp.cumsum(x, 1)),
}


@pytest.mark.parametrize("name", EXACT)
def test_primitives(name, tmp_path):
    check(EXACT[name], (X,), tmp_path)


@pytest.mark.parametrize("name", NEAR)
def test_functions_of_floats(name, tmp_path):
    check(NEAR[name], (X,), tmp_path, near=1e-5)


def test_indices(tmp_path):
    """Gathers and scatters at computed places, also outside."""

    def function(i, x):
        rows = jnp.take(x, i, axis=1), x[:, i], x[i[0], i[1]], x[i[0, 0]], jnp.take_along_axis(x, i[:, :, None] % 5, 1)
        return (
            rows,
            x.at[i[0]].set(7.0),
            jax.lax.dynamic_update_slice(x, x[:1], (i[2, 0], 0, 0)),
        )

    check(function, (np.int32([[1, 2], [-1, 9], [2, 0]]), X), tmp_path)


def test_sums_at_indices(tmp_path):
    """Computed places, two of them the same."""
    i = np.int32([-1, 9, 0, 0])
    check(lambda i, x: x.at[:, i].add(1.0), (i, X), tmp_path)


OF_IMAGES = {
    "groups": lambda: layer_of(nnx.Conv, 4, 6, (3, 3), feature_group_count=2),
    "steps": lambda: layer_of(nnx.Conv, 4, 4, (3, 3), strides=2, kernel_dilation=2, padding="VALID"),
    "transposed": lambda: layer_of(nnx.ConvTranspose, 4, 3, (3, 3), strides=(2, 2)),
    "max pool": lambda: lambda x: nnx.max_pool(x, (3, 3), (2, 2), "SAME"),
    "average pool": lambda: lambda x: nnx.avg_pool(x, (2, 2), (2, 2)),
}


@pytest.mark.parametrize("name", usually(("groups", "max pool"), OF_IMAGES))
def test_images(name, tmp_path):
    check(OF_IMAGES[name](), (IMAGES,), tmp_path, near=1e-5)


FORMATS = "e4m3fn", "e5m2", "bfloat16", "float16", "e2m1fn", "e4m3fn:saturate", "fixed(8,4)", "int4", "posit(8,1)"


@pytest.mark.parametrize("mode", usually(("nearest",), ["nearest", "down", "up", "toward_zero"]))
def test_roundings(mode, tmp_path):
    """All numbers, infinities, zeros of both signs and subnormal numbers; a NaN is any NaN."""

    def function(x):
        return [qjax.quantize(x, number, mode) for number in FORMATS]

    check(function, (NUMBERS,), tmp_path, nan=True)


def refused(fn, args, folder):
    with pytest.raises(ValueError, match=";") as error:
        to_onnx(fn, args, folder / "model.onnx")
    assert not list(folder.iterdir())
    return str(error.value)


KEY, HALF = jax.random.key(0), Accumulator("float(5,10)")
REFUSED = {
    "a word": (lambda x: qjax.quantize(x, "e5m2", "stochastic", key=7), "rounding to 'e5m2' by 'stochastic'"),
    "a key": (lambda x: qjax.quantize(x, "e5m2", "stochastic", key=KEY), "random numbers are not reproduced in ONNX"),
    "codes": (lambda x: qjax.encode(x, "e5m2"), "the codes of computed numbers have no form in ONNX"),
    "bits": (lambda x: x.astype(jnp.bfloat16).view(jnp.uint16), "the bits of a number have no form in ONNX"),
    "blocks": (lambda x: qjax.quantize(x, "mxfp4"), "rounding to 'mxfp4' by 'nearest'"),
    "a primitive": (lambda x: jnp.linalg.inv(x), "lu has no form in ONNX"),
    "an accumulator": (lambda x: qjax.linalg.matmul(x, x, accumulator=HALF), "a product with an accumulator"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnx_cannot_say(name, tmp_path):
    fn, expected = REFUSED[name]
    message = refused(fn, (np.ones((4, 4), np.float32),), tmp_path)
    assert message.startswith(expected)
    assert "test_functions.py" in message or "qjax" in message  # where it is computed


def test_the_layer_is_named(tmp_path):
    model = nnx.Sequential(layer_of(nnx.Linear, 4, 4), nnx.Sequential(nnx.Dropout(0.5, rngs=nnx.Rngs(0))))
    assert refused(model, (X,), tmp_path).startswith("layer '1.0': random numbers are not reproduced in ONNX")
    model.eval()
    check(model, (X,), tmp_path, near=1e-5)


def test_wrong_arguments(tmp_path):
    path = tmp_path / "model.onnx"
    with pytest.raises(TypeError, match="fn is a int; allowed are functions"):
        to_onnx(1, (X,), path)
    with pytest.raises(TypeError, match="fn is a Linear, a module of torch; allowed are functions of JAX"):
        to_onnx(torch.nn.Linear(2, 2), (X,), path)
    with pytest.raises(TypeError, match="args is a ndarray; allowed is a tuple"):
        to_onnx(jnp.tanh, X, path)
    with pytest.raises(TypeError, match="args do not fit fn: "):
        to_onnx(lambda x: x, (X, X), path)
    with pytest.raises(TypeError, match="args: x is a float; allowed are arrays"):
        to_onnx(lambda x: x, (1.5,), path)
    with pytest.raises(ValueError, match="args: x is a random key"):
        to_onnx(lambda x: x, (KEY,), path)


def test_arguments_have_names(tmp_path):
    def fn(first, scale=2.0, *, last):
        return first @ jnp.asarray(IMAGES[0, 0, :4]) * scale + last

    inputs = {"first": X[0], "last": X[1]}
    for place, (args, kwargs) in enumerate([((), inputs), ((X[0],), {"last": X[1]})]):
        to_onnx(fn, args, tmp_path / f"{place}.onnx", kwargs=kwargs)
        (found,) = onnxruntime.InferenceSession(tmp_path / f"{place}.onnx").run(None, inputs)
        np.testing.assert_allclose(found, fn(**inputs), 1e-5, 1e-5)
    for wrong in ([X], {1: X}):
        with pytest.raises(TypeError, match=r"^kwargs"):
            to_onnx(fn, (), tmp_path / "model.onnx", kwargs=wrong)
    with pytest.raises(TypeError, match=r"args do not fit fn: missing a required .*'last'"):
        to_onnx(fn, (X[0],), tmp_path / "model.onnx")


def test_keys_that_nothing_uses_are_left_out(tmp_path):
    def fn(x):
        key, _ = jax.random.split(jax.random.key(0))
        return (x + 0 * jax.random.normal(key, x.shape), 2 * x)[1]

    made = check(fn, (X,), tmp_path)
    assert [node.op_type for node in made.graph.node] == ["Mul", "Identity"]
    with pytest.raises(ValueError, match="random numbers are not reproduced in ONNX"):
        to_onnx(lambda x: x + jax.random.normal(jax.random.key(0), x.shape), (X,), tmp_path / "model.onnx")
