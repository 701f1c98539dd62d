"""QTensor: NumPy's bits, a pytree under JAX's transformations and shardings; checkpoints."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from affine_support import ties
from covering import usually
from jax.sharding import NamedSharding, PartitionSpec
from support import DTYPES, assert_same_bits

import qcore.affine as reference
import qjax.quantization as quantization
from qcore.affine import INT8, INT32, UINT8, AffineInteger, QParams, checkpoint
from qjax.quantization import (
    QTensor,
    quantize_affine,
    quantize_per_channel,
    quantize_per_tensor,
    save,
)

FORMS = [AffineInteger.of_width(bits, signed) for bits in (2, 4, 8, 13, 16) for signed in (True, False)] + [INT32]
RNG = np.random.default_rng(1)
X = (RNG.normal(size=(4, 5, 6)) * 9).astype(np.float32)
SCALES, ZEROS = np.float32(2.0 ** RNG.uniform(-3, 0, 5)), RNG.integers(-128, 128, 5).astype(np.int32)


@pytest.mark.parametrize("form", usually([*FORMS[::6], *FORMS[3::6], INT32], FORMS))
def test_integers_and_numbers(form):
    """Eager, and in a program whose addition XLA would contract with the product."""
    rng = np.random.default_rng(2)
    for zero_point in {form.middle, 0 if form == INT32 else form.qmax - 1}:
        scale = float(np.float32(2.0 ** rng.uniform(-8, 2)))
        narrow = form if form != INT32 else AffineInteger.of_width(16)
        x = ties(rng, scale, zero_point, narrow, 2000)
        qparams, c = QParams.of(scale, zero_point), rng.normal(size=2010).astype(np.float32) * np.float32(scale)
        expected = reference.quantize_affine(x, qparams, form)
        numbers = reference.dequantize(expected, qparams, form)
        q = quantize_per_tensor(jnp.asarray(x), scale, zero_point, form)
        assert q.int_repr().dtype == form.storage
        assert_same_bits(q.int_repr(), expected)
        assert_same_bits(q.dequantize(), numbers)
        program = jax.jit(
            lambda x, c, q=qparams, f=form: quantize_per_tensor(x, q.scale, q.zero_point, f).dequantize() + c
        )
        assert_same_bits(program(x, c), numbers + c)
        assert_same_bits(jax.jit(lambda q, c: q.dequantize() + c)(q, c), numbers + c)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype):
    x = X.astype(DTYPES[dtype])
    with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion("strict"):
        q = quantize_per_channel(jnp.asarray(x), SCALES, ZEROS, 1, "qint8")
    assert_same_bits(q.int_repr(), reference.quantize_affine(x, QParams(SCALES, ZEROS, 1), INT8))
    assert q.dequantize().dtype == jnp.float32


def test_accessors():
    q = quantize_per_tensor(jnp.asarray(X), 0.25, 3, "quint8")
    assert (q.shape, q.ndim, q.qscheme(), q.form) == (X.shape, 3, "per_tensor_affine", UINT8)
    assert_same_bits(q.q_scale(), np.float32(0.25))
    assert_same_bits(quantization.q_zero_point(q), np.int32(3))
    own = quantize_per_channel(jnp.asarray(X), SCALES.tolist(), ZEROS.tolist(), 1, "qint8")
    assert own.qscheme() == "per_channel_affine"
    assert_same_bits(quantization.q_per_channel_scales(own), SCALES)
    assert_same_bits(own.q_per_channel_zero_points(), ZEROS)
    assert quantization.q_per_channel_axis(own) == 1
    assert_same_bits(quantization.dequantize(own), own.dequantize())
    assert_same_bits(quantization.int_repr(own), own.values)
    assert all(isinstance(leaf, jax.Array) for q in (q, own) for leaf in jax.tree.leaves(q))
    for call in (own.q_scale, own.q_zero_point):
        with pytest.raises(ValueError, match="of a QTensor with axis=1; allowed is one without channels"):
            call()
    for call in (q.q_per_channel_scales, q.q_per_channel_zero_points, q.q_per_channel_axis):
        with pytest.raises(ValueError, match="of a QTensor without an axis; allowed is one with channels"):
            call()


SELECTIONS = {
    "min": (lambda q: q.min(), lambda x: x.min()),
    "max": (lambda q: q.max(1, keepdims=True), lambda x: x.max(1, keepdims=True)),
    "min of two": (lambda q: q.min((0, 2)), lambda x: x.min((0, 2))),
    "sort": (lambda q: q.sort(), lambda x: np.sort(x)),
    "sort down": (lambda q: q.sort(0, descending=True), lambda x: np.sort(x, 0)[::-1]),
    "topk": (lambda q: q.topk(2)[0], lambda x: np.sort(x)[..., :-3:-1]),
    "least": (lambda q: q.topk(2, 1, largest=False)[0], lambda x: np.sort(x, 1)[:, :2]),
    "reshape": (lambda q: q.reshape(2, -1), lambda x: x.reshape(2, -1)),
    "flatten": (lambda q: q.flatten(), lambda x: x.ravel()),
    "ravel": (lambda q: q.ravel(), lambda x: x.ravel()),
    "transpose": (lambda q: q.transpose(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    "swapaxes": (lambda q: q.swapaxes(0, 1), lambda x: x.swapaxes(0, 1)),
    "squeeze": (lambda q: q[:1].squeeze(0), lambda x: x[0]),
    "slices": (lambda q: q[:, ::2, -1], lambda x: x[:, ::2, -1]),
    "indices": (lambda q: q[jnp.array([1, 0])], lambda x: x[[1, 0]]),
    "rows": (lambda q: list(q)[2], lambda x: x[2]),
}


@pytest.mark.parametrize("form", usually([INT32], [UINT8, INT8, AffineInteger.of_width(16, signed=False), INT32]))
def test_selections(form):
    """The numbers that plain arrays have there, in one program; parameters for channels would not fit."""
    q = quantize_per_tensor(jnp.asarray(X), 0.25, 0 if form == INT32 else 9, form)
    numbers = np.asarray(q.dequantize())
    found = jax.jit(lambda q: {name: own(q) for name, (own, _) in SELECTIONS.items()})(q)
    for name, (_, plain) in SELECTIONS.items():
        assert found[name].values.dtype == form.storage
        assert_same_bits(found[name].dequantize(), plain(numbers), name)
    _, places = q.topk(2, 1, largest=False)
    assert_same_bits(np.take_along_axis(numbers, np.asarray(places), 1), np.sort(numbers, 1)[:, :2])


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_among_channels(name):
    with pytest.raises(ValueError, match="of a QTensor with axis=1; allowed is one without channels"):
        SELECTIONS[name][0](quantize_per_channel(jnp.asarray(X), SCALES, ZEROS, 1, "qint8"))


def test_comparisons():
    """Of numbers, whatever integers they are."""
    q = quantize_per_tensor(jnp.asarray(X), 0.25, 9, "quint8")
    own = quantize_per_channel(jnp.asarray(X[::-1]), SCALES, ZEROS, 1, "qint8")
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        for right, plain in ((own, own.dequantize()), (0.5, 0.5), (jnp.asarray(X), jnp.asarray(X))):
            expected = getattr(operator, name)(q.dequantize(), plain)
            assert_same_bits(getattr(operator, name)(q, right), expected)
            assert_same_bits(getattr(q, name)(right), expected)
    assert hash(q) != hash(q.copy())


NARROW = AffineInteger(0, 127)


def test_means_relu_and_copies():
    """Means are of the integers, exact for sums beyond 2^31, and rounded to even."""
    q = quantize_per_tensor(jnp.float32([[1, 2, 4, 5], [0, 1, 2, 3]]), 1.0, 3, "quint8")
    assert (int(q.mean().values), q.mean(1).values.tolist()) == (5, [6, 4])
    assert q.mean((0,), keepdims=True).values.tolist() == [[4, 4, 6, 7]]
    wide = QTensor(jnp.full(2**18 + 1, 2**14 - 1, jnp.int16), QParams.of(1.0, 0), AffineInteger.of_width(16))
    assert jax.jit(lambda q: q.mean())(wide).values == 2**14 - 1
    for own in (q, quantize_per_channel(jnp.asarray(X), SCALES, ZEROS, 1, "qint8")):
        assert_same_bits(jax.jit(lambda q: q.relu())(own).dequantize(), np.maximum(own.dequantize(), 0))
        assert own.equal(own.copy())
        assert jax.jit(lambda a, b: a.equal(b))(own, own.copy())
    scaled, narrow = (QTensor(q.values, QParams.of(scale, 3), form) for scale, form in ((2.0, UINT8), (1.0, NARROW)))
    for other in (q[:, ::-1], q[:1], own, q.values, scaled, narrow):
        assert not q.equal(other)
    assert len(q) == 2


def test_transformations():
    expected = reference.quantize_affine(X, QParams(SCALES, ZEROS, 1), INT8)
    numbers = reference.dequantize(expected, QParams(SCALES, ZEROS, 1), INT8)
    make = jax.jit(lambda x, s, z: quantize_per_channel(x, s, z, 1, "qint8"))
    q = make(X, SCALES, ZEROS)
    assert isinstance(q, QTensor)
    assert_same_bits(q.int_repr(), expected)
    rows = jax.vmap(lambda x: quantize_per_channel(x, SCALES, ZEROS, 0, "qint8"))(X)
    assert_same_bits(rows.values, expected)
    assert_same_bits(jax.vmap(lambda q: q.dequantize())(rows), numbers)
    _, scanned = jax.lax.scan(lambda carry, q: (carry, q.dequantize()), 0, rows)
    assert_same_bits(scanned, numbers)
    carried, _ = jax.lax.scan(
        lambda q, x: (quantize_per_tensor(x, q.q_scale(), q.q_zero_point(), "qint8"), None),
        quantize_per_tensor(jnp.asarray(X[0]), 0.5, 1, "qint8"),
        X,
    )
    assert_same_bits(carried.values, reference.quantize_affine(X[-1], QParams.of(0.5, 1), INT8))
    halves = jax.tree.map(lambda leaf: leaf[:2], rows)
    assert_same_bits(jax.vmap(QTensor.dequantize)(halves), numbers[:2])


def test_shardings():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = (RNG.normal(size=(16, 24)) * 40).astype(np.float32)
    spread, whole = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())
    q = quantize_per_tensor(jax.device_put(x, spread), 0.5, 3, "qint8")
    expected = reference.quantize_affine(x, QParams.of(0.5, 3), INT8)
    assert_same_bits(q.values, expected)
    assert q.values.sharding.is_equivalent_to(spread, 2)
    own = quantize_per_tensor(jnp.asarray(x), 0.5, 3, "qint8")
    moved = jax.device_put(own, jax.tree.map(lambda leaf: spread if leaf.ndim else whole, own))
    assert moved.values.sharding.is_equivalent_to(spread, 2)
    assert_same_bits(moved.dequantize(), reference.dequantize(expected, QParams.of(0.5, 3), INT8))


Q = quantize_per_tensor(jnp.ones(3), 0.5, 0, "qint8")
BAD = {
    "x has dtype float64; allowed only after": lambda: quantize_per_tensor(np.ones(3), 0.5, 0, "qint8"),
    "x has dtype int32": lambda: quantize_per_tensor(jnp.arange(3), 0.5, 0, "qint8"),
    "dtype='int9'; allowed are": lambda: quantize_per_tensor(jnp.ones(3), 0.5, 0, "int9"),
    "dtype=<class 'jax.numpy.int8'>; allowed are": lambda: quantize_per_tensor(jnp.ones(3), 0.5, 0, jnp.int8),
    "zero_point=128; allowed are integers from -128 to 127": lambda: quantize_per_tensor(
        jnp.ones(3), 0.5, 128, "qint8"
    ),
    "scale=-1.0; allowed": lambda: quantize_per_tensor(jnp.ones(3), -1, 0, "qint8"),
    r"scale has shape \(2,\); allowed is \(3,\)": lambda: quantize_per_channel(jnp.ones(3), [1, 1], [0, 0], 0, "qint8"),
    "qparams is a tuple": lambda: quantize_affine(jnp.ones(3), (1, 0), "qint8"),
    r"scale has shape \(3,\); allowed is \(\)": lambda: QTensor(
        Q.values, QParams.of([1] * 3, [0] * 3), INT8
    ).dequantize(),
    "values has dtype int8; allowed is uint8": lambda: QTensor(Q.values, Q.qparams, UINT8).dequantize(),
    "entry 'x' is a list; allowed are arrays": lambda: save("unused", {"x": [1.0]}),
    "there are two arrays named 'x.scale'": lambda: save("unused", {"x": Q, "x.scale": jnp.ones(3)}),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()


def test_missing_parts():
    arrays, metadata = checkpoint.flatten({"x": checkpoint.Quantized(*[np.int8(1)] * 3, None, INT8)})
    del arrays["x.scale"]
    with pytest.raises(ValueError, match=r"no array named 'x\.scale'; there are x\.int_repr, x\.zero_point"):
        checkpoint.unflatten(arrays, metadata)
    assert checkpoint.unflatten({"x": np.float32(1)}, None) == {"x": 1}
