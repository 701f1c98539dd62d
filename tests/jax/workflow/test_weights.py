"""Weights of functions in few bits: their bytes in memory and on disk, and what is computed with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import assert_same_bits

import qcore
import qjax
from qcore.affine import AffineInteger
from qjax.quantization import (
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigDynamic,
    convert_fn,
    convert_params,
    float16_dynamic_qconfig,
    prepare_fn,
)

RNG = np.random.default_rng(0)
PARAMS = {
    "stack": jnp.asarray(RNG.normal(size=(3, 64, 64)) / 8, jnp.float32),
    "out": jnp.asarray(RNG.normal(size=(65, 64))),
}
X = jnp.asarray(RNG.normal(size=(4, 64)), jnp.float32)
COUNT = 3 * 64 * 64 + 65 * 64


def model(params, x):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["stack"])
    return x @ params["out"].T


def width(bits, axis=False):
    kind = PerChannelMinMaxObserver if axis else MinMaxObserver
    return kind(dtype=AffineInteger.of_width(bits), qscheme=f"per_{'channel' if axis else 'tensor'}_symmetric")


def made(settings):
    """Parameters in few bits, what the prepared function returns, and the converted one."""
    init, apply = prepare_fn(model, settings)
    y, state = jax.jit(apply)(PARAMS, init(PARAMS, X), X)
    params = convert_params(PARAMS, state, settings)
    return params, y, jax.jit(convert_fn(model))(params, X)


# Settings, bytes of the numbers, at most so many bytes beside them
CASES = {
    "int4": (QConfig(MinMaxObserver(), width(4)), COUNT / 2, 64),
    "int3, channels": (QConfigDynamic(width(3, True)), COUNT / 2, 8 * (3 * 64 + 65)),
    "int8": (QConfigDynamic(width(8)), COUNT, 64),
    "float16": (float16_dynamic_qconfig, 2 * COUNT, 0),
    "mxfp4": (QConfig("e4m3fn", "mxfp4"), COUNT / 2, COUNT / 32 + 64),
    "6 bits": (QConfigDynamic("e3m2fn"), COUNT * 6 / 8, 64),
    "floats": (QConfig("e5m2", None), 4 * COUNT, 64),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case == "int4" else pytest.mark.heavy) for case in CASES]
)
def test_bytes_in_memory_and_on_disk(case, tmp_path):
    settings, count, more = CASES[case]
    params, simulated, y = made(settings)
    assert count <= sum(leaf.nbytes for leaf in jax.tree.leaves(params)) <= count + more
    leaves, structure = jax.tree.flatten(params)
    names = [str(number) for number in range(len(leaves))]
    save_file(dict(zip(names, map(np.asarray, leaves), strict=True)), tmp_path / "weights.safetensors")
    assert (tmp_path / "weights.safetensors").stat().st_size <= count + more + 1200
    loaded = load_file(tmp_path / "weights.safetensors")
    again = jax.tree.unflatten(structure, [jnp.asarray(loaded[name]) for name in names])
    assert_same_bits(np.asarray(jax.jit(convert_fn(model))(again, X)), np.asarray(y))
    assert {name: params[name].shape for name in PARAMS} == {name: array.shape for name, array in PARAMS.items()}
    if case in ("mxfp4", "floats"):
        assert_same_bits(np.asarray(y), np.asarray(simulated))
    assert 0 <= np.abs(y - model(PARAMS, X)).max() < 9


@pytest.mark.heavy
def test_packed_integers_compute_as_unpacked_ones():
    """A weight with few integers has the same results in 4 bits, two in a byte, as in 8 bits."""
    w = jnp.asarray(RNG.integers(-7, 8, size=(3, 3, 4, 6)), jnp.float32).at[0, 0, 0].set(7.0)

    def conv(params, x):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, params["w"], (1, 1), "SAME", dimension_numbers=layout)

    x, results = jnp.asarray(RNG.normal(size=(2, 5, 5, 4)), jnp.float32), []
    for bits in (4, 8):
        form = AffineInteger(-7, 7) if bits == 4 else AffineInteger(-7, 7 + 9)
        weight = MinMaxObserver(dtype=form, qscheme="per_tensor_symmetric", eps=1.0)
        init, _ = prepare_fn(conv, QConfigDynamic(weight))
        params = convert_params({"w": w}, init({"w": w}, x), QConfigDynamic(weight))
        assert_same_bits(np.asarray(params["w"].dequantize()), np.asarray(w) + 0.0)
        results.append(np.asarray(jax.jit(convert_fn(conv))(params, x)))
    assert_same_bits(*results)


def test_rounded_operands():
    """What goes in is rounded to its format, and weights in torch's layout to theirs, in blocks along the inputs.

    One operand is a multiple of the identity, so that sums have one term. Other sums have no defined bits: a compiled
    program folds the transpose into the product, and adds in another order than the eager product with an array w.T.
    """

    def product(params, x):
        return x @ params["w"].T

    settings, dynamic = QConfig("e4m3fn", "mxfp4"), QConfigDynamic("mxfp4", "e4m3fn")
    scale = np.float32(np.float64(np.abs(X).max()) / 448)
    rounded = np.asarray(qjax.quantize(X * (np.float32(1) / scale), "e4m3fn") * scale)
    weight = np.asarray(qjax.quantize(PARAMS["out"], "mxfp4"))
    eye = jnp.eye(64)
    for w, x, expected in ((eye, X, rounded), (PARAMS["out"], 3.5 * eye, 3.5 * weight.T)):  # 3.5 = 448 / 2**7
        init, apply = prepare_fn(product, settings)
        y, state = jax.jit(apply)({"w": w}, init({"w": w}, x), x)
        assert_same_bits(np.asarray(y) + 0, expected + 0)
        params = convert_params({"w": w}, prepare_fn(product, dynamic)[0]({"w": w}, x), dynamic)
        by_own_scale = qcore.quantize(np.asarray(x), "scaled(e4m3fn,{...:None},scale=float32)")
        assert_same_bits(
            np.asarray(jax.jit(convert_fn(product))(params, x)) + 0,
            by_own_scale @ np.asarray(qjax.quantize(w, "mxfp4")).T + 0,
        )
    codes = convert_params({"w": w}, state, settings)["w"]
    assert_same_bits(np.asarray(codes.dequantize()), weight)
