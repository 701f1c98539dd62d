"""Pure functions for any pytree of parameters: which layers, with which numbers, under which transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from covering import usually
from jax.sharding import NamedSharding, PartitionSpec
from support import assert_same_bits

import qcore.affine as reference
from qcore.affine import AffineInteger
from qjax.quantization import (
    FakeQuantize,
    LayerWeight,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigDynamic,
    QTensor,
    convert_fn,
    convert_params,
    default_dynamic_qconfig,
    default_qconfig,
    get_default_qat_qconfig,
    prepare_fn,
)

RNG = np.random.default_rng(0)


def numbers(*shape, scale=0.3):
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32) * np.float32(scale))


PARAMS = {
    "conv": numbers(3, 3, 1, 4),
    "layers": numbers(3, 8, 8),
    "into": numbers(4, 8),
    "rows": numbers(8, 8),
    "out": numbers(5, 8),
    "bias": numbers(5),
}
IMAGES = numbers(16, 5, 4, 1, scale=1)
NAMES = ["conv", "into", "layers", "out", "rows"]


def model(params, x):
    """Layers under scan, over stacked parameters and over steps, in checkpoint, cond and a custom derivative."""
    layout = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, params["conv"], (2, 1), "SAME", dimension_numbers=layout)
    x = jax.nn.relu(x).mean((1, 2)) @ params["into"].astype(jnp.float32)
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["layers"])
    x, _ = jax.lax.scan(lambda x, _: (x + jnp.tanh(jax.vmap(lambda x: params["rows"] @ x)(x)), None), x, None, length=2)
    x = jax.lax.cond(
        x.sum() < jnp.inf, lambda x: jax.checkpoint(lambda x: x @ params["out"].T)(x), lambda x: x[:, :5], x
    )
    return x + params["bias"] + 0 * params["rows"].sum()


@pytest.fixture(scope="module")
def floats():
    return jax.jit(model)(PARAMS, IMAGES)


@pytest.fixture(scope="module")
def observed(floats):
    init, apply = prepare_fn(model, default_qconfig)
    state = init(PARAMS, IMAGES)
    assert sorted(state) == NAMES
    y, state = jax.jit(apply)(PARAMS, state, IMAGES)
    np.testing.assert_allclose(y, floats, rtol=1e-5, atol=1e-6)
    return state


@pytest.fixture(scope="module")
def converted(observed):
    return convert_params(PARAMS, observed, default_qconfig)


@pytest.fixture(scope="module")
def serve():
    return jax.jit(convert_fn(model))


@pytest.mark.heavy
def test_whole_models(observed, converted, serve, floats):
    result = serve(converted, IMAGES)
    assert 0 < np.abs(result - floats).max() < 0.1
    assert observed["layers"].input.min_val.shape == converted["layers"].weight.qparams.scale.shape == (3,)
    for name in NAMES:
        assert converted[name].weight.values.dtype == jnp.int8
        assert converted[name].shape == PARAMS[name].shape
    assert converted["bias"] is PARAMS["bias"]


@pytest.mark.heavy
def test_eager_models(converted, serve):
    assert_same_bits(np.asarray(convert_fn(model)(converted, IMAGES)), np.asarray(serve(converted, IMAGES)))


def by_law(x, w, observer, weight_observer, dynamic=False):
    """The layer x @ w in NumPy, from the law's parameters and integers in 64 bits."""
    weights = weight_observer.rule.update(weight_observer.rule.init(w.T.shape), w.T)
    w_params = weight_observer.rule.qparams(weights)
    qw = reference.quantize_affine(w.T, w_params, weight_observer.form).astype(np.int64)
    if dynamic:
        form = AffineInteger(0, 127)
        params = reference.choose_qparams_dynamic(x.min(), x.max(), form)
        q = np.rint(x * (np.float32(1) / params.scale)) + params.zero_point  # the range has no ties here
    else:
        form = observer.form._unreduced(AffineInteger(0, 255)) if observer.reduce_range else observer.form
        params = observer.rule.qparams(observer.rule.update(observer.rule.init(), x))
        q = reference.quantize_affine(x, params, form)
    shift = np.asarray(w_params.zero_point, np.int64).reshape(-1, *[1] * (np.ndim(w_params.zero_point)))
    sums = (q.astype(np.int64) - params.zero_point) @ (qw - shift).T
    return sums.astype(np.float32) * (params.scale * np.asarray(w_params.scale))


CASES = {
    "default": default_qconfig,
    "channels": QConfig(
        MinMaxObserver(), PerChannelMinMaxObserver(dtype=AffineInteger.of_width(4), qscheme="per_channel_symmetric")
    ),
    "12 bits": QConfig(
        MinMaxObserver(dtype=AffineInteger.of_width(12, False)),
        MinMaxObserver(dtype=AffineInteger.of_width(12), qscheme="per_tensor_symmetric"),
    ),
    "affine weights": QConfig(MinMaxObserver(dtype="qint8"), MinMaxObserver(dtype="qint8")),
    "dynamic": default_dynamic_qconfig,
}


@pytest.mark.parametrize("case", usually(("channels", "dynamic"), CASES))
def test_a_layer_has_the_bits_of_the_law(case):
    settings = CASES[case]
    x, w = np.asarray(numbers(64, 33, scale=1)), np.asarray(numbers(33, 17))
    layer = {"x @ w": lambda params, x: x @ params["w"], "w @ x": lambda params, x: (params["w"].T @ x.T).T}
    dynamic = isinstance(settings, QConfigDynamic)
    expected = by_law(x, w, None if dynamic else settings.activation, settings.weight, dynamic)
    for function in layer.values():
        init, apply = prepare_fn(function, settings)
        state = jax.jit(apply)({"w": w}, init({"w": w}, x), x)[1]
        params = convert_params({"w": jnp.asarray(w)}, state, settings)
        assert_same_bits(np.asarray(jax.jit(convert_fn(function))(params, x)), expected)


@pytest.mark.parametrize("groups", usually((2,), (1, 2)))
def test_convolutions_are_those_of_their_integers(groups):
    """Against XLA's convolution of the dequantized operands, whose sums are exact here."""
    x, w = numbers(2, 4, 9, 8, scale=1), numbers(6, 4 // groups, 3, 2)

    def function(params, x):
        settings = {"rhs_dilation": (1, 2), "feature_group_count": groups}
        return jax.lax.conv_general_dilated(x, params["w"], (2, 1), ((1, 0), (2, 1)), **settings)

    power = MinMaxObserver(dtype=AffineInteger.of_width(5), qscheme="per_tensor_symmetric", eps=2.0**-4)
    settings = QConfig(power, power)
    x, w = (np.asarray(one) / np.abs(one).max() * np.float32(0.9) for one in (x, w))  # all scales are eps
    init, apply = prepare_fn(function, settings)
    params = convert_params({"w": w}, jax.jit(apply)({"w": w}, init({"w": w}, x), x)[1], settings)
    rounded = np.rint(x * 16) / 16
    expected = function({"w": params["w"].dequantize()}, rounded)
    assert_same_bits(np.asarray(jax.jit(convert_fn(function))(params, x)) + 0.0, np.asarray(expected) + 0.0)


@pytest.mark.heavy
def test_transformations(observed, converted, serve):
    expected = serve(converted, IMAGES)
    mapped = jax.jit(jax.vmap(lambda params, x: convert_fn(model)(params, x), (None, 0)))(converted, IMAGES[:, None])
    assert_same_bits(np.asarray(mapped[:, 0]), np.asarray(expected))
    sharding = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
    init, apply = prepare_fn(model, default_qconfig)
    shards = jax.device_put(IMAGES, sharding)
    assert_same_bits(np.asarray(serve(converted, shards)), np.asarray(expected))
    _, state = jax.jit(apply)(PARAMS, init(PARAMS, IMAGES), shards)
    for name in ("conv", "into"):  # what comes before any sum that shards may add in another order
        assert_same_bits(np.asarray(state[name].input.max_val), np.asarray(observed[name].input.max_val))

    batches = IMAGES.reshape(4, 4, *IMAGES.shape[1:])
    seen, _ = jax.jit(
        lambda params, batches: jax.lax.scan(
            lambda state, x: apply(params, state, x)[::-1], init(params, batches[0]), batches
        )
    )(PARAMS, batches)
    assert_same_bits(np.asarray(seen["conv"].input.min_val), np.asarray(observed["conv"].input.min_val))


@pytest.mark.heavy
def test_training():
    settings = get_default_qat_qconfig("qnnpack")
    init, apply = prepare_fn(model, settings)
    labels = RNG.integers(0, 5, len(IMAGES))
    optimizer = optax.adam(0.02)

    @jax.jit
    def step(carry, _):
        params, state, inner = carry

        def loss(params):
            y, after = apply(params, state, IMAGES)
            return optax.softmax_cross_entropy_with_integer_labels(y, labels).mean(), after

        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, inner = optimizer.update(gradients, inner, params)
        return (optax.apply_updates(params, updates), state, inner), value

    first = PARAMS, init(PARAMS, IMAGES), optimizer.init(PARAMS)
    (params, state, _), losses = jax.lax.scan(step, first, None, length=60)
    assert losses[-1] < 0.5 * losses[0]
    served = convert_fn(model)(convert_params(params, state, settings), IMAGES)
    simulated = apply(params, state, IMAGES)[0]
    assert (served.argmax(-1) == simulated.argmax(-1)).mean() > 0.9
    weight = convert_params(params, state, settings)["into"].weight
    assert_same_bits(np.asarray(weight.qparams.scale), np.asarray(state["into"].weight.scale))


@pytest.mark.heavy
def test_modules_of_equinox():
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(4, 3, 8, 2, key=jax.random.key(0))

    def apply_fn(mlp, x):
        return jax.vmap(mlp)(x)

    rules = {"layers.0.*": None, "*": default_qconfig}
    init, apply = prepare_fn(apply_fn, rules)
    x = numbers(32, 4, scale=1)
    _, state = eqx.filter_jit(apply)(mlp, init(mlp, x), x)
    assert sorted(state) == ["layers.1.weight", "layers.2.weight"]
    params = convert_params(mlp, state, rules)
    assert isinstance(params.layers[1].weight, LayerWeight)
    assert params.layers[0].weight is mlp.layers[0].weight
    assert isinstance(params.layers[2].weight.weight, QTensor)
    np.testing.assert_allclose(eqx.filter_jit(convert_fn(apply_fn))(params, x), apply_fn(mlp, x), atol=0.05)


def repeated(params, x):
    x = (x @ params["w"]) @ params["w"]
    return x + x @ params["w"].T + jax.lax.cond(x.sum() > 0, *2 * [lambda x: x @ params["once"]], x)


def test_parameters_of_several_layers_are_named():
    """And not those that each branch has; layers that quantize by what comes in share nothing."""
    params = {"w": jnp.eye(2), "once": jnp.eye(2)}
    message = "the parameter 'w' is that of 3 layers; 2 share one observer, .*; 1 take it along other axes, and stay in"
    with pytest.warns(UserWarning, match=message) as warned:
        state = prepare_fn(repeated, default_qconfig)[0](params, X)
    assert len(warned) == 1
    rules = {"w": default_dynamic_qconfig, "*": default_qconfig}
    assert prepare_fn(repeated, rules)[0](params, X).keys() == state.keys() == params.keys()


@pytest.mark.heavy
def test_not_a_number_is_not_swallowed():
    params = {"w": numbers(3, 2)}
    init, _ = prepare_fn(lambda params, x: x @ params["w"], default_dynamic_qconfig)
    made = convert_params(params, init(params, jnp.ones((2, 3))), default_dynamic_qconfig)
    served = jax.jit(convert_fn(lambda params, x: x @ params["w"]))
    assert np.isnan(served(made, jnp.float32([[1, 2, 3], [1, np.nan, 2]]))).all()


def product(params, x):
    return x @ params["w"]


ONE, X = {"w": jnp.asarray(np.eye(2, dtype=np.float32))}, jnp.ones((1, 2))


def in_shard_map(params, x):
    mesh = jax.make_mesh((1,), ("data",))
    spec = PartitionSpec()
    return jax.shard_map(lambda w, x: x @ w, mesh=mesh, in_specs=(spec, spec), out_specs=spec)(params["w"], x)


BAD = {
    "apply_fn is a int; allowed is a function": lambda: prepare_fn(3, default_qconfig),
    "params has no LayerWeight": lambda: convert_fn(product)(ONE, X),
    r"rules has for '\*' a int": lambda: prepare_fn(product, 3),
    "rules has the key 3": lambda: prepare_fn(product, {3: default_qconfig}),
    "a QConfig of which one is FakeQuantize; allowed are both, and formats": lambda: prepare_fn(
        product, QConfig(FakeQuantize(), MinMaxObserver())
    ),
    "the pattern 'v' applies to no layer; there are w": lambda: prepare_fn(product, {"v": None, "*": default_qconfig})[
        0
    ](ONE, X),
    r"the pattern 'w' applies to no layer": lambda: prepare_fn(product, {"*": default_qconfig, "w": None})[0](ONE, X),
    "no layer has settings; there are w": lambda: prepare_fn(product, {"*": None})[0](ONE, X),
    "there are none": lambda: prepare_fn(lambda params, x: x, default_qconfig)[0](ONE, X),
    "layers w have seen nothing; run apply": lambda: convert_params(
        ONE, prepare_fn(product, default_qconfig)[0](ONE, X), default_qconfig
    ),
    "state has w, which params has not": lambda: convert_params(
        {"v": jnp.eye(2)}, prepare_fn(product, default_dynamic_qconfig)[0](ONE, X), default_dynamic_qconfig
    ),
    "shard_map holds layers, of w": lambda: prepare_fn(in_shard_map, default_qconfig)[0](ONE, X),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()
