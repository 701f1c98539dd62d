"""Blocks of any shape have the same bits everywhere: arrays, codes and scales, modules, optimizers, shards."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from covering import some, usually
from support import BACKENDS, DTYPES, OTHERS, assert_same_bits, by_numpy, key_for, to_torch

import qcore
import qjax
import qtorch
from benchmarks.support.inputs import BLOCKS, MODES, hard_inputs
from qcore import NAMED, NVFP4, BlockFloatingPoint, BlockScaled, Table
from qjax.optim import apply_updates, low_precision
from qtorch.optim import OptimLP

KEY = 0x1234_5678
E4M3 = "e4m3fn"


def cases(*all_cases, chosen=lambda *case: True):
    """Each that is chosen on OTHERS; all of them on all backends are heavy: test_bits.py has some JAX without jit."""
    for case in all_cases:
        if chosen(*case):
            yield pytest.param(*case, OTHERS, id="-".join(map(str, case)))
        yield pytest.param(*case, BACKENDS, id="-".join(map(str, (*case, "all"))), marks=pytest.mark.heavy)


SOME = [BLOCKS[i] for i in (0, 7, 11)]  # test_block_rules.py has all rules


@pytest.mark.parametrize(("number", "backends"), list(cases(*((n,) for n in BLOCKS), chosen=SOME.__contains__)))
def test_all_backends(number, backends):
    """Some in one mode; all in three in the heavy tests, and in all in benchmarks.consistency."""
    place = BLOCKS.index(number)
    modes = ("nearest", "stochastic", MODES[place % len(MODES)])
    for mode in modes[place % 3 :][:1] if backends is OTHERS else dict.fromkeys(modes):
        for x in hard_inputs(number, 9_000)[:: 7 if number.block_sizes(3) == (None,) * 3 else 1]:
            expected = by_numpy(x, number, mode, KEY)
            for name, backend in backends.items():
                assert_same_bits(backend(x, number, mode, KEY), expected, f"{name}: {number} {mode}")


NAMES, OTHER_DTYPES = ("mxfp8_e4m3", "mxint8", "nvfp4"), ("float16", "bfloat16", "float64")


def apart(name, dtype):
    """How far a dtype stands behind a format's own, in which it is rounded stochastically."""
    return (OTHER_DTYPES.index(dtype) - NAMES.index(name)) % 3


@pytest.mark.parametrize(
    ("name", "dtype", "backends"),
    list(cases(*product(NAMES, OTHER_DTYPES), chosen=lambda *case: case == ("mxint8", "bfloat16"))),
)
def test_other_dtypes(name, dtype, backends):
    """Each in stochastic in one dtype, and otherwise in nearest; most are heavy."""
    number = NAMED[name][0]
    mode = "nearest" if apart(name, dtype) else "stochastic"
    for x in hard_inputs(number, 9_000, DTYPES[dtype]):
        expected = by_numpy(x, number, mode, KEY)
        for backend in backends:
            assert_same_bits(backends[backend](x, number, mode, KEY), expected, f"{backend}: {number} {mode}")


LAYOUTS = [
    ((7, 96), {-1: 32}),
    ((7, 99), {-1: 32}),
    ((40, 6), {0: 16}),
    ((64, 96), {-1: 16, -2: 16}),
    ((9,), {0: 4}),
    ((5, 1, 7), {1: 1, ...: None}),
    ((4, 5, 6), {1: 1, ...: None}),
    ((4, 6, 4), {1: 3}),
    ((6, 5), {0: None}),
    ((4, 6, 8, 10), {1: 3, 3: 5}),
    ((4, 6, 8, 10), {0: 2, 2: 4}),
    ((3, 4), {...: 1}),
    ((), {...: None}),
    ((2, 3, 4), {...: 100}),
    ((130, 20), {-1: None}),
    ((50, 50), {...: 16}),
    ((3, 0), {-1: 2}),
    ((1, 1), {0: 1}),
]


@pytest.mark.parametrize(
    ("shape", "block", "backends"),
    list(cases(*LAYOUTS, chosen=lambda *one: LAYOUTS.index(one) not in (3, 4, 6, 10, 14, 15))),
)
def test_shapes(shape, block, backends):
    """Every layout of kernels, and what has none: strided, ragged, and of more dimensions; every second under jit."""
    x = np.asarray(np.random.default_rng(0).standard_normal(shape) ** 5, np.float32)
    number = BlockScaled(E4M3, block, "even")
    jitted = backends is BACKENDS or LAYOUTS.index((shape, block)) % 2 == 0
    for mode in ("nearest", "stochastic"):
        expected = by_numpy(x, number, mode, KEY)
        for name in backends if mode == "nearest" and jitted else backends.keys() - {"jax jit"}:
            assert_same_bits(backends[name](x, number, mode, KEY), expected, f"{name} {mode}")
    if x.ndim == 2 and x.size:
        turned = to_torch(np.ascontiguousarray(x.T)).T
        for mode in ("nearest", "stochastic"):
            y = qtorch.quantize(turned, number, mode, key=key_for(mode, KEY))
            assert y.stride() == turned.stride()
            assert_same_bits(y, by_numpy(x, number, mode, KEY))


@pytest.mark.parametrize("name", usually(("mxint8", "nvfp4"), ("mxfp8_e5m2", "mxfp6_e2m3", "mxfp4", "mxint8", "nvfp4")))
def test_codes_and_scales(name):
    (x,) = hard_inputs(NAMED[name][0], 5_000)
    for mode in ("nearest", "stochastic") if name == "mxfp4" else ("nearest",):
        key = key_for(mode, 3)
        codes, scales = qcore.encode(x, name, mode, key=key)
        decoded = qcore.decode(codes, name, scales=scales)
        for package, make in ((qtorch, torch.from_numpy), (qjax, jnp.asarray)):
            found, found_scales = package.encode(make(x), name, mode, key=key)
            assert_same_bits(found, codes)
            pairs = [(found_scales, scales)] if name != "nvfp4" else zip(found_scales, scales, strict=True)
            for actual, expected in pairs:
                assert_same_bits(actual.reshape(-1), expected.reshape(-1))
                assert tuple(actual.shape) == expected.shape
            assert_same_bits(package.decode(found, name, scales=found_scales), decoded)
            assert package.encode(make(np.ones((0, 4), np.float32)), name)[0].shape == (0, 4)
    bits = NAMED[name][0].bits
    packed = qcore.pack(codes, bits)
    assert packed.shape[-1] == -(-codes.shape[-1] * bits // 8)
    assert_same_bits(qtorch.unpack(qtorch.pack(torch.from_numpy(codes), bits), bits, codes.shape[-1]), codes)
    assert_same_bits(qjax.pack(jnp.asarray(codes), bits), packed)


@some((0, 1), (1, 0), number=[BlockScaled(E4M3, {...: None}), NVFP4()], mode=["nearest", "stochastic"])
def test_later_calls_leave_scales_alone(number, mode):
    key = key_for(mode, 3)
    xs = [scale * np.ones((2, 32), np.float32) for scale in (1, 50)]
    found = [qtorch.encode(torch.from_numpy(x), number, mode, key=key)[1] for x in xs]
    for x, scales in zip(xs, found, strict=True):
        expected = qcore.encode(x, number, mode, key=key)[1]
        for actual, right in zip(*((s if isinstance(s, tuple) else (s,)) for s in (scales, expected)), strict=True):
            assert_same_bits(actual.reshape(-1), np.asarray(right).reshape(-1))


def test_scales_are_torch_and_jax_types():
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    _, scales = qtorch.encode(torch.from_numpy(x), "mxfp8_e4m3")
    powers = scales.view(torch.float8_e8m0fnu).float()
    assert_same_bits(powers, qcore.decode(scales.numpy(), "e8m0fnu"))
    _, scales = qjax.encode(jnp.asarray(x), "mxfp8_e4m3")
    assert_same_bits(scales.view(jnp.float8_e8m0fnu).astype(jnp.float32), powers)


@pytest.mark.parametrize(
    ("number", "dynamic"),
    [
        pytest.param(NAMED["mxfp4"][0], False, marks=pytest.mark.heavy),
        (BlockFloatingPoint(8, 1), True),
        pytest.param(NAMED["mxfp8_e4m3"][0], True, marks=pytest.mark.heavy),
        pytest.param(NVFP4(), False, marks=pytest.mark.heavy),
    ],
    ids=str,
)
def test_compiled_programs(number, dynamic):
    torch._dynamo.reset()
    program = torch.compile(lambda x: qtorch.quantize(x * 2, number, "nearest"), fullgraph=True, dynamic=dynamic)
    for rows in (6, 11) if dynamic else (6,):
        x = np.random.default_rng(rows).standard_normal((rows, 80)).astype(np.float32)
        assert_same_bits(program(to_torch(x)), by_numpy(x * 2, number, "nearest", None))


def test_compiled_programs_go_on_with_parts_of_blocks():
    """Of which Inductor would leave out the last."""
    torch._dynamo.reset()

    def program(x):
        codes, scales = qtorch.encode(x[:, :80], "mxfp4")
        return (
            -qtorch.quantize(x[:, :80], "mxfp4", "nearest"),
            -qtorch.decode(codes, "mxfp4", scales=scales),
            -qtorch.quantize(x, "mxfp4", "nearest")[:, :80],
        )

    x = np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    rounded, decoded, part = torch.compile(program, fullgraph=True, dynamic=False)(to_torch(x))
    for result in (rounded, decoded):
        assert_same_bits(result, -by_numpy(x[:, :80], "mxfp4", "nearest", None))
    assert_same_bits(part, -by_numpy(x, "mxfp4", "nearest", None)[:, :80])


@pytest.mark.parametrize(
    "numbers",
    [
        (BlockScaled(E4M3, {-1: 32}), BlockScaled("int8", {0: 16, ...: None}, "ceil")),
        (NVFP4(), NVFP4({0: 16})),
    ],
    ids=["scaled", "nvfp4"],
)
@pytest.mark.heavy  # blocks of the test above, and one of another size
def test_compiled_programs_take_other_blocks(numbers):
    """Whose sizes dynamic shapes would turn into symbols."""
    torch._dynamo.reset()
    x = np.random.default_rng(0).standard_normal((48, 80)).astype(np.float32)
    settings = {"fullgraph": True, "dynamic": True, "backend": "aot_eager"}
    program = torch.compile(lambda x, number: qtorch.quantize(x * 1, number, "nearest"), **settings)
    codes = torch.compile(lambda x: qtorch.encode(x * 1, "mxfp4"), **settings)
    values = torch.compile(lambda codes, scales: qtorch.decode(codes, "mxfp4", scales=scales), **settings)
    for number in numbers:
        assert_same_bits(program(to_torch(x), number), by_numpy(x, number, "nearest", None))
    assert_same_bits(values(*codes(to_torch(x))), by_numpy(x, "mxfp4", "nearest", None))


@pytest.mark.heavy
def test_sharded_over_8_devices():
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = np.random.default_rng(1).standard_normal((32, 128)).astype(np.float32)
    specs = ("a", "b"), (None, "b"), ("b", None), (None, ("a", "b")), ("a", "b")
    numbers = (NAMED["mxfp8_e4m3"][0], BlockScaled("e2m1fn", {0: 16, 1: 16}), NVFP4({0: 20}))
    numbers += BlockScaled("nf4", {"flat": 64}, "absmax", "float32"), Table(np.linspace(-2, 2, 40).tolist())
    for spec, number in zip(specs, numbers, strict=True):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        y = qjax.quantize(jax.device_put(x, sharding), number, "stochastic", key=7)
        assert_same_bits(y, by_numpy(x, number, "stochastic", 7))


@pytest.mark.parametrize("text", usually(("nvfp4",), ("mxfp8_e4m3", "nvfp4", "mx9", "nf4(block=40)")))
def test_explicit_shards_that_cut_blocks(text):
    """12 columns on each device, of blocks of 32 and 16."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = np.random.default_rng(1).standard_normal((4, 96)).astype(np.float32)
    codes, scales = qcore.encode(x, text)
    with jax.set_mesh(mesh):
        y = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "a")))
        rounded = qjax.quantize(y, text, "stochastic", key=7)
        assert rounded.sharding == y.sharding
        assert_same_bits(rounded, by_numpy(x, text, "stochastic", 7))
        found, of_blocks = qjax.encode(y, text)
        np.testing.assert_array_equal(found, codes)
        jax.tree.map(np.testing.assert_array_equal, of_blocks, scales)
        assert_same_bits(qjax.decode(found, text, scales=of_blocks), qcore.decode(codes, text, scales=scales))


@pytest.mark.parametrize("text", [pytest.param("mxfp8_e4m3", marks=pytest.mark.heavy), "nvfp4"])
def test_transformations(text):
    x = np.random.default_rng(1).standard_normal((3, 4, 40)).astype(np.float32)
    rows = np.stack([by_numpy(row, NAMED[text][0], "stochastic", 4) for row in x])
    assert_same_bits(jax.vmap(lambda row: qjax.quantize(row, text, "stochastic", key=4))(x), rows)
    by_rows = torch.func.vmap(lambda row: qtorch.quantize(row, text, "stochastic", key=4))
    assert_same_bits(by_rows(to_torch(x)), rows)
    grad = jax.grad(lambda x: (qjax.quantize(x, text, "nearest") * 3).sum())(jnp.asarray(x))
    assert (grad == 3).all()
    leaf = to_torch(x).requires_grad_()
    (qtorch.quantize(leaf, text, "nearest") * 3).sum().backward()
    assert leaf.grad.eq(3).all()


def test_quantizers_along_axes_of_their_own():
    """Values along their last axis, gradients along their first."""
    x, g = np.random.default_rng(1).standard_normal((2, 40, 64)).astype(np.float32)
    settings = (NAMED["mxfp8_e4m3"][0], BlockScaled("e5m2", {0: 32}), "nearest", "stochastic")
    expected = by_numpy(x, settings[0], "nearest", None), by_numpy(g, settings[1], "stochastic", qcore.fold_in(5, 1))
    leaf = to_torch(x).requires_grad_()
    y = qtorch.quantizer(*settings)(leaf, key=5)
    y.backward(to_torch(g))
    assert_same_bits(y, expected[0])
    assert_same_bits(leaf.grad, expected[1])
    y, pull = jax.vjp(lambda x: qjax.quantizer(*settings)(x, key=5), jnp.asarray(x))
    assert_same_bits(y, expected[0])
    assert_same_bits(pull(jnp.asarray(g))[0], expected[1])


@pytest.mark.heavy
def test_optimizers():
    """Weights of several shapes, grouped or not, with the same keys."""
    rng = np.random.default_rng(0)
    shapes = ((40, 70), (70,), (70,))
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    grads = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    number, wide = NAMED["mxfp8_e4m3"][0], BlockScaled("bfloat16", {-1: None})
    params = [torch.nn.Parameter(torch.from_numpy(weight.copy())) for weight in weights]
    quantizers = {"weight_quant": (number,), "grad_quant": (BlockScaled("e5m2", {-1: 16}),), "acc_quant": (wide,)}
    inner = torch.optim.SGD(params, lr=0.5)
    optimizer = OptimLP(inner, **{name: qtorch.quantizer(*told) for name, told in quantizers.items()}, key=3)
    transformation = low_precision(
        optax.sgd(0.5), **{name: qjax.quantizer(*told) for name, told in quantizers.items()}, key=3
    )
    arrays = [jnp.asarray(weight) for weight in weights]
    state = transformation.init(arrays)

    @jax.jit
    def step(arrays, grads, state):
        updates, state = transformation.update(grads, state, arrays)
        return apply_updates(arrays, updates, state), state

    for _ in range(2):
        for p, grad in zip(params, grads, strict=True):
            p.grad = torch.from_numpy(grad.copy())
        optimizer.step()
        arrays, state = step(arrays, [jnp.asarray(grad) for grad in grads], state)
        for p, array in zip(params, arrays, strict=True):
            assert_same_bits(p.detach(), array)
