"""Products in JAX: transformations, shardings, flax's layers, and arguments that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import some, usually
from flax import nnx
from flax_support import layer_of, run
from jax.sharding import NamedSharding, PartitionSpec
from products_support import ACCUMULATORS
from support import assert_same_bits

import qjax.nnx
import qtorch
from qcore import Accumulator
from qjax import linalg

HALF = Accumulator("float(6,9)", chunk=2, rounding="stochastic")
RNG = np.random.default_rng(0)
A, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((16, 64), (64, 8)))


@pytest.mark.parametrize(
    "name",
    usually(("stochastic chunks",), ("exact", "stochastic chunks", "two levels", "sequential", "float64", "aligned")),
)
def test_vmap_and_scan_are_loops(name):
    examples = jnp.asarray(A[:, :12].reshape(4, 4, 12))

    @jax.jit
    def call(a):
        return linalg.matmul(a, B[:12], accumulator=ACCUMULATORS[name], operands=("e5m2", "e4m3fn"), key=5)

    expected = jnp.stack([call(a) for a in examples])
    assert_same_bits(jax.jit(jax.vmap(call))(examples), expected)
    assert_same_bits(jax.lax.scan(lambda carry, a: (carry, call(a)), 0, examples)[1], expected)


SPECS = [("x", None, None, None), (None, "x", "x", None), (None, None, None, "x")]


@some((1, 1), (1, 2), accumulator=[None, Accumulator("float(6,9)", chunk=1), HALF], specs=SPECS)
def test_shardings_do_not_matter(accumulator, specs):
    """Of rows, of the contraction, and of columns: the bits of the whole."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    a, b = (
        jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec))) for x, spec in ((A, specs[:2]), (B, specs[2:]))
    )

    def call(a, b):
        return linalg.matmul(a, b, accumulator=accumulator, operands=("e4m3fn", "e4m3fn"), key=5)

    assert_same_bits(jax.jit(call)(a, b), call(A, B))


CONV_SPECS = {  # of the input (batch, channels, ...), the weight (outputs, channels, ...), and the result's gradient
    "examples": (("x",), (), ("x",)),
    "channels": ((None, "x"), (None, "x"), ()),
    "outputs": ((), ("x",), (None, "x")),
    "rows": ((None, None, "x"), (), (None, None, "x")),
}


@pytest.mark.heavy
@pytest.mark.parametrize("specs", CONV_SPECS)
def test_shardings_of_convolutions_do_not_matter(specs):
    """Exact ones and their gradients, on four devices: of what is summed over, and of what is not."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 4, 8, 6), (8, 4, 3, 3), (4, 8, 8, 6))]
    placed = [
        jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
        for x, spec in zip(arrays, CONV_SPECS[specs], strict=True)
    ]
    low = "product(e4m3fn,e4m3fn)"
    options = {"padding": 1, "operands": ("e4m3fn", "e4m3fn"), "grad_input": low, "grad_weight": low}

    @jax.jit
    def call(x, weight, gradient):
        y, pull = jax.vjp(lambda x, weight: linalg.conv2d(x, weight, **options), x, weight)
        return y, *pull(gradient)

    for found, expected in zip(call(*placed), call(*arrays), strict=True):
        assert_same_bits(found, expected)


def test_the_flag_stays():
    assert linalg.matmul(A, B).dtype == jnp.float32
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("padding", usually((1,), (0, 1, "VALID")))
def test_flax_layers_have_torchs_bits(padding):
    options = {"operands": ("e4m3fn", "e5m2"), "accumulator": Accumulator("float(6,9)", chunk=4)}
    settings = {"strides": 2, "padding": padding, "feature_group_count": 2}
    layer = layer_of(qjax.nnx.Conv, 4, 6, (3, 2), **settings, **options)
    x = RNG.standard_normal((2, 7, 6, 4)).astype(np.float32)
    weight = torch.from_numpy(np.moveaxis(np.asarray(layer.kernel[...]), (-1, -2), (0, 1)).copy())
    bias = torch.from_numpy(np.asarray(layer.bias[...]).copy())
    images = torch.from_numpy(np.moveaxis(x, -1, 1).copy())
    size = 0 if padding == "VALID" else padding
    expected = qtorch.linalg.conv2d(images, weight, bias, 2, size, groups=2, **options)
    assert_same_bits(run(layer, x), expected.permute(0, 2, 3, 1))
    dense = layer_of(qjax.nnx.Linear, 64, 3, **options)
    weight, bias = (torch.tensor(np.asarray(one[...]).T) for one in (dense.kernel, dense.bias))
    assert_same_bits(run(dense, A), qtorch.linalg.linear(torch.from_numpy(A), weight, bias, **options))


@pytest.mark.heavy
@pytest.mark.parametrize("causal", [True, False])
def test_flax_attention_has_torchs_bits(causal):
    low = {"operands": ("e4m3fn", "e5m2"), "accumulator": Accumulator("float(6,9)", chunk=4)}
    options = {"linear": low, "scores": low, "output": {"operands": ("e4m3fn", "e4m3fn"), "grad_a": "product(e5m2)"}}
    layer = layer_of(qjax.nnx.MultiheadAttention, 2, 8, **options)
    theirs = qtorch.linalg.MultiheadAttention(8, 2, **options)
    inward, weights = (layer.query, layer.key, layer.value), lambda one: torch.from_numpy(np.array(one.kernel[...].T))
    biases = RNG.standard_normal(24).astype(np.float32)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([weights(one) for one in inward]))
        theirs.out_proj.weight.copy_(weights(layer.out))
        theirs.in_proj_bias.copy_(torch.from_numpy(biases))
    for one, bias in zip(inward, biases.reshape(3, 8), strict=True):
        one.bias[...] = jnp.asarray(bias)
    x, others = (RNG.standard_normal((2, length, 8)).astype(np.float32) for length in (5, 3 + 2 * causal))
    tensors = [torch.from_numpy(one).requires_grad_() for one in (x, others)]
    allowed = RNG.random((5, 3)) < 0.5
    allowed[:, 0] = True
    masks = ({"is_causal": True},) * 2 if causal else ({"attn_mask": torch.from_numpy(~allowed)}, {"mask": allowed})
    expected = theirs(tensors[0], tensors[1], tensors[1], **masks[0])[0]
    gradients = torch.autograd.grad(expected, tensors, torch.ones_like(expected))

    @nnx.jit
    def call(layer, *arrays):
        y, pull = jax.vjp(lambda x, others: layer(x, others, **masks[1]), *arrays)
        return y, *pull(jnp.ones_like(y))

    y, of_x, of_others = call(layer, x, others)
    for found, one in zip((y, of_x), (expected, gradients[0]), strict=True):
        assert_same_bits(found, one)
    assert of_others.shape == others.shape  # a sum of two gradients, of which frameworks choose the order


def test_flax_attention_refuses_what_torchs_does():
    for options, message in (
        ({"num_heads": 3}, "num_heads=3"),
        ({"scores": {"grad_input": None}}, "grad_input is given"),
        ({"linear": {"operands": 3}}, "operands=3"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            qjax.nnx.MultiheadAttention(**{"num_heads": 2, "in_features": 8, "rngs": nnx.Rngs(0)} | options)


@pytest.mark.heavy  # test_states.py has the states of functions, and the example of `Scaling` those of layers
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_flax_layers_have_delayed_scales_as_state(kind):
    kept = "operand(binary(4,3,specials=fn,overflow=saturate),scale=scale(history=2))"
    options = {"operands": (kept, kept), "grad_weight": f"product(None,{kept})", "rngs": nnx.Rngs(0)}
    if kind == "linear":
        layer, x = qjax.nnx.Linear(3, 2, use_bias=False, **options), A[:, :3]
        weight = layer.kernel[...].T
        call = lambda w, state: linalg.linear(x, w, **said, scaling=state).sum()  # noqa: E731
    else:
        layer, x = qjax.nnx.Conv(3, 2, (2,), padding=0, use_bias=False, **options), A[None, :, :3]
        weight = jnp.moveaxis(layer.kernel[...], (-1, -2), (0, 1))
        call = lambda w, state: linalg.conv1d(x.mT, w, **said, scaling=state).sum()  # noqa: E731
    said = {"operands": (kept, kept), "grad_weight": options["grad_weight"]}
    wrt = nnx.DiffState(0, (nnx.Param, qjax.nnx.Scaling))
    step = nnx.jit(nnx.grad(lambda layer: layer(x).sum(), argnums=wrt))
    state, step_by_hand = linalg.first_scaling(2), jax.jit(jax.grad(call, (0, 1)))
    for _ in range(2):
        found = step(layer)
        nnx.update(layer, nnx.filter_state(found, qjax.nnx.Scaling))
        _, state = step_by_hand(weight, state)
        assert_same_bits(layer.scaling[...], state)
    assert state[0, 0] != 1
    assert state[0, 1] == state[0, 2] == np.abs(x).max()


@pytest.mark.heavy
def test_uses_of_one_state_are_one_step():
    """The state after several uses has the largest magnitude of all; in torch they are those of a backward pass."""
    kept = "operand(binary(4,3,specials=fn,overflow=saturate),scale=scale(history=3))"
    said = {"operands": (kept, kept), "grad_input": f"product({kept},{kept})", "grad_weight": f"product({kept},{kept})"}
    factors = np.float32([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0], [100.0, 1e-3, np.inf], [1.0, 2.0, np.nan], [0.5, 0.1, 0.0]])
    x, weight = np.array(A[:, :4]), np.array(A[:2, 4:8])
    layer = qjax.nnx.Linear(4, 2, use_bias=False, rngs=nnx.Rngs(0), **said)
    layer.kernel[...] = jnp.asarray(weight.T)

    def loss(weight, state, each):
        states = linalg.share_scaling(state, 4)  # of which one is not used
        uses = zip(each, states[1:], strict=True)
        return sum(jnp.square(linalg.linear(factor * x, weight, **said, scaling=one)).sum() for factor, one in uses)

    def loss_of_layer(layer, each):
        return sum(nnx.remat(lambda layer, x: jnp.square(layer(x)).sum())(layer, factor * x) for factor in each)

    step = jax.jit(jax.value_and_grad(loss, (0, 1)))
    step_of_layer = nnx.jit(nnx.grad(loss_of_layer, argnums=nnx.DiffState(0, (nnx.Param, qjax.nnx.Scaling))))
    state, scaling = linalg.first_scaling(3), qtorch.linalg.first_scaling(3)
    trained = torch.from_numpy(weight).requires_grad_()
    for each in factors:
        before = state
        _, (_, state) = step(weight, state, each)
        tensors = [torch.from_numpy(factor * x) for factor in each]
        torch_loss = sum(qtorch.linalg.linear(one, trained, **said, scaling=scaling).square().sum() for one in tensors)
        torch_loss.backward()
        assert_same_bits(scaling, state)
        found = step_of_layer(layer, each)
        assert_same_bits(layer.scaling[...], before)
        nnx.update(layer, nnx.filter_state(found, qjax.nnx.Scaling))
        assert_same_bits(layer.scaling[...], state)
    unused = jax.grad(lambda state: linalg.share_scaling(state, 2)[0].sum() * 0)(state)
    assert_same_bits(unused, state)


@pytest.mark.heavy
@pytest.mark.parametrize("same", [True, False])
def test_devices_that_share_a_state_have_the_largest_magnitudes_of_all(same):
    """Without reduce_amax each device has its own state, or it raises."""
    kept = f"operand(e4m3fn,scale=scale(history=3{'' if same else ',reduce_amax=False'}))"
    said = {"operands": (kept, kept), "grad_input": f"product({kept},{kept})", "grad_weight": f"product({kept},{kept})"}
    rows, everywhere = PartitionSpec("i"), PartitionSpec()
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    x, weight, state = A[:4, :4], A[:2, 4:8], linalg.first_scaling(3)
    step = jax.jit(jax.grad(lambda weight, state, x: linalg.linear(x, weight, **said, scaling=state).sum(), (0, 1)))

    def shard(**specs):
        return jax.jit(jax.shard_map(step, mesh=mesh, **specs))

    if same:
        of_weight, found = shard(in_specs=(everywhere, everywhere, rows), out_specs=everywhere)(weight, state, x)
        expected_weight, expected = step(weight, state, x)
        assert_same_bits(found, expected)
        np.testing.assert_allclose(of_weight, expected_weight, rtol=1e-6)
        found = step(weight, state, jax.device_put(x, NamedSharding(mesh, rows)))[1]
        assert_same_bits(found, expected)
        return
    specs = {"in_specs": (everywhere, rows, rows), "out_specs": (everywhere, rows)}
    found = shard(**specs)(weight, jnp.concatenate([state, state]), x)[1]
    for i in range(2):
        assert_same_bits(found[3 * i : 3 * i + 3], step(weight, state, x[2 * i : 2 * i + 2])[1])
    with pytest.raises(ValueError, match="scaling is the same along the axes 'i' of a mesh, with reduce_amax=False"):
        shard(in_specs=(everywhere, everywhere, rows), out_specs=everywhere)(weight, state, x)


@pytest.mark.parametrize(("state", "uses"), [(np.zeros((2, 3), np.float32), 2), ("no", 2), (np.zeros((3, 2)), 2)])
def test_what_is_no_state_is_not_shared(state, uses):
    with pytest.raises(ValueError, match=r"allowed is float32 of shape \(3, 1 \+ history\)"):
        linalg.share_scaling(state, uses)


@pytest.mark.heavy
def test_flax_attention_draws_keys():
    layer = layer_of(qjax.nnx.MultiheadAttention, 2, 8, scores={"accumulator": HALF})
    assert not np.array_equal(run(layer, A[:, :8]), run(layer, A[:, :8]))


def test_flax_layers_draw_keys():
    layer = layer_of(qjax.nnx.Linear, 64, 3, accumulator=HALF)
    assert not np.array_equal(layer(A), layer(A))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="key=None"):
        linalg.matmul(A, B, accumulator=HALF)
    with pytest.raises(ValueError, match="a has shape"):
        linalg.matmul(A, A)
    with pytest.raises(TypeError, match="a has dtype"):
        linalg.matmul(A.astype(np.float16), B)
    with pytest.raises(TypeError, match="grad_a="):
        linalg.matmul(A, B, grad_a=3)
    with pytest.raises(TypeError, match="operands="):
        linalg.linear(A, B.T, operands="e4m3fn")
    with pytest.raises(ValueError, match="padding='SAME'"):
        qjax.nnx.Conv(1, 1, (3, 3), rngs=nnx.Rngs(0))(jnp.ones((1, 4, 4, 1)))
