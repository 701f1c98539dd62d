"""Tables in all packages: kernels, operations, compiled programs, and transformations of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle_tables
import pytest
import torch
from covering import some
from support import DTYPES, assert_same_bits, by_torch, by_torch_operations, key_for, to_torch

import qcore
import qjax
import qtorch
from benchmarks.support.inputs import hard_inputs
from qcore import BlockScaled, Table

RNG = np.random.default_rng(1)
SHORT = Table([-1, 5, 0.25, 5], [-0.5, 3])
LONG = Table(RNG.standard_normal(300))


@some(
    (0, 0, 0),
    (0, 1, 1),
    (0, 2, 2),
    (0, 0, 3),
    (1, 1, 2),
    name=["short", "long"],
    mode=["nearest", "odd", "stochastic"],
    dtype=[*DTYPES.values()],
)
def test_all_packages(name, mode, dtype):
    table = {"short": SHORT, "long": LONG}[name]
    (x,) = hard_inputs(table, 4000, dtype)
    expected = qcore.quantize(x, table, mode, key=3)
    assert_same_bits(by_torch(x, table, mode, 3), expected)
    assert_same_bits(by_torch_operations(x, table, mode, 3), expected)
    codes = qcore.encode(x, table, mode, key=3)
    assert_same_bits(qtorch.encode(to_torch(x), table, mode, key=key_for(mode, 3)), codes)
    with jax.enable_x64(True):
        assert_same_bits(np.asarray(qjax.quantize(x, table, mode, key=key_for(mode, 3))), expected)
        assert_same_bits(np.asarray(qjax.encode(x, table, mode, key=key_for(mode, 3))), codes)
    if dtype in (np.float32, np.float64) and table is SHORT:
        numbers = qcore.decode(codes, table, dtype)
        assert_same_bits(qtorch.decode(torch.from_numpy(codes), table, to_torch(x).dtype).numpy(), numbers)
        with jax.enable_x64(True):
            assert_same_bits(np.asarray(qjax.decode(codes, table, dtype)), numbers)


@pytest.mark.heavy
@pytest.mark.parametrize("table", [SHORT, LONG], ids=["short", "long"])
def test_compiled_programs(table):
    """Inductor makes a loop of a short table; the kernel stays for a long one."""
    torch._dynamo.reset()
    x = torch.randn(999, requires_grad=True)

    def program(x):
        return qtorch.quantize(x * 1.5, table).relu()

    found = torch.compile(program, fullgraph=True)(x)
    assert_same_bits(found.detach().numpy(), program(x).detach().numpy())
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert_same_bits(gradient.numpy(), torch.autograd.grad(program(x).sum(), x)[0].numpy())

    def codes(x):
        return qtorch.decode(qtorch.encode(x, table, "stochastic", key=4), table, torch.float64)

    assert_same_bits(torch.compile(codes, backend="aot_eager", fullgraph=True)(x.detach()).numpy(), codes(x).numpy())


@pytest.mark.parametrize("table", [SHORT, LONG], ids=["short", "long"])
def test_transformations_of_jax(table):
    x = jnp.asarray(RNG.standard_normal((3, 50)), jnp.float32)
    expected = qcore.quantize(np.asarray(x), table)
    assert_same_bits(np.asarray(jax.jit(jax.vmap(lambda row: qjax.quantize(row, table)))(x)), expected)
    gradient = jax.grad(lambda x: (2 * qjax.quantize(x, table)).sum())(x)
    assert_same_bits(np.asarray(gradient), np.full((3, 50), 2, np.float32))


def test_long_tables_have_short_scopes():
    """A watch of JAX finds the format by the name in a scope, which each operation of a program repeats."""
    seen = qjax.insight.watch(lambda x: qjax.quantize(x, LONG))
    traced = str(jax.jit(lambda x: qjax.quantize(x, LONG)).lower(jnp.ones(8)).as_text(debug_info=True))
    assert LONG.text[:200] not in traced
    _, record = seen(jnp.ones(8, jnp.float32))
    assert LONG.text in {one.number for one in record.values()}


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("magnitudes", [[0.25, 1, 4], [0, 0.25, 1, 4]], ids=["without zero", "with zero"])
def test_the_function_of_qpytorchs_extension(magnitudes, rounding):
    """The first least error of magnitudes, as qtorch-plus' kernels find it, and 0 for 0."""
    table, scale = torch.tensor(magnitudes, dtype=torch.float32), 2.0
    x = torch.tensor([0.0, -0.0, 1e-30, -0.0625, -0.3125, 0.3125, 9.0, -1.25, 1.0, *torch.randn(100).tolist()])
    found = qtorch.quant.configurable_table_quantize(x, table, scale, rounding, key=1)
    if rounding == "stochastic":
        assert set((found.abs() * scale).tolist()) <= {0.0, *magnitudes}
        return
    errors = (table - (x * scale).abs()[:, None]).abs()
    nearest = table[errors.argmin(1)]  # the first
    expected = torch.where(x == 0, 0, nearest.copysign(x)) / scale
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_wrong_magnitudes():
    for magnitudes in ([-1.0, 1.0], [0.0]):
        with pytest.raises(ValueError, match="table_lookup"):
            qtorch.quant.configurable_table_quantize(torch.ones(2), torch.tensor(magnitudes))


# bitsandbytes' law: blocks of 64, r the largest magnitude, x * (1 / r) in float32, and numbers times r.


@pytest.mark.parametrize("name", ["nf4", "fp4_bnb"])
def test_blocks_have_the_law_of_bitsandbytes(name):
    number = BlockScaled(name, {-1: 64}, "absmax", "float32")
    assert number == qcore.parse(f"scaled({name},{{-1:64}},rule=absmax,scale=float32)")
    x = (RNG.standard_normal((40, 128)) * np.exp2(RNG.integers(-60, 60, (40, 1)))).astype(np.float32)
    x[0, :64] = 0
    blocks = x.reshape(-1, 64)
    largest = np.abs(blocks).max(1, keepdims=True)
    scale = np.where(largest > 0, largest, np.float32(1))
    table = qcore.parse(name)
    _, codes = oracle_tables.quantize(
        (blocks * (1 / scale)).ravel(), table.values, table.thresholds, "even", None, "nearest"
    )
    expected = np.float32(table.values)[codes].reshape(blocks.shape) * scale
    found, scales = qcore.encode(x, number)
    np.testing.assert_array_equal(found, codes.reshape(x.shape))
    assert_same_bits(scales, scale.reshape(40, 2))
    np.testing.assert_array_equal(qcore.quantize(x, number), expected.reshape(x.shape))
    np.testing.assert_array_equal(qcore.decode(found, number, scales=scales), expected.reshape(x.shape))


BLOCKS = {
    "nf4": BlockScaled("nf4", {-1: 16}, "absmax", "float32"),
    "long": BlockScaled(Table(np.float32(LONG.values)), {-1: 16}, scale="float32"),
    "short": BlockScaled(Table(np.float32(SHORT.values)), {-1: 16}, scale="e4m3fn", tensor_scale="float32"),
}


@some((0, 0), name=[*BLOCKS], mode=["nearest", "stochastic"])
def test_blocks_in_all_packages(name, mode):
    number = BLOCKS[name]
    x = RNG.standard_normal((5, 41)).astype(np.float32)
    x[1], x[2, 3], x[3, 20] = 0, np.nan, np.inf
    expected = qcore.quantize(x, number, mode, key=3)
    assert_same_bits(by_torch(x, number, mode, 3), expected)
    assert_same_bits(by_torch_operations(x, number, mode, 3), expected)
    assert_same_bits(qjax.quantize(x, number, mode, key=key_for(mode, 3)), expected)
    codes, scales = qcore.encode(x, number, mode, key=3)
    found, others = qtorch.encode(torch.from_numpy(x), number, mode, key=key_for(mode, 3))
    assert_same_bits(found, codes)
    numbers = qcore.decode(codes, number, scales=scales)
    assert_same_bits(qtorch.decode(found, number, scales=others), numbers)
    same = np.isfinite(expected) & (expected != 0)
    assert_same_bits(numbers[same], expected[same])


def test_blocks_of_tables_need_float_scales():
    with pytest.raises(ValueError, match="scale='e8m0' with element="):
        BlockScaled("nf4", {-1: 64})
