"""The same codes everywhere, numbers of torch's and JAX's own types, and packed bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import some
from support import DTYPES, assert_same_bits, key_for, to_torch

import qcore
import qjax
import qtorch
from benchmarks.support.inputs import FORMATS, MORE, hard_inputs
from qcore import NAMED, BlockFloatingPoint, BlockScaled, FixedPoint, FloatingPoint
from qcore.formats.block import BlockNumber

CODED = [n for n in FORMATS + MORE if not isinstance(n, BlockNumber) and getattr(n, "clamp", True)]
SOME = [
    (FloatingPoint(5, 2), "nearest"),
    (NAMED["e4m3fn"][0], "stochastic"),
    (NAMED["e8m0fnu"][0], "nearest"),
    (NAMED["tf32"][0], "nearest"),
    (FixedPoint(12, 4), "nearest"),
    (NAMED["posit16"][0], "nearest"),
]


def by_torch_operations(x, number, mode, key):
    with torch.device("cpu"), Ordinary():
        return qtorch.encode(to_torch(x), number, mode, key=key)


class Ordinary(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that changes nothing; under any mode rounding runs operation by operation."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["some", "all"])
@pytest.mark.parametrize("number", CODED, ids=str)
def test_operations_and_jax(number, everywhere):
    """JAX takes one format of eight, the FORMATS among them in stochastic, too; the heavy test takes all."""
    (x,) = hard_inputs(number, 6_000)
    place = CODED.index(number)
    in_jax = everywhere or place % 8 == 0
    for mode in ("nearest", "stochastic"):
        key = key_for(mode, 9)
        expected = qcore.encode(x, number, mode, key=key)
        assert_same_bits(by_torch_operations(x, number, mode, key), expected, f"torch {mode}")
        if in_jax and (everywhere or mode == "nearest" or number in FORMATS):
            assert_same_bits(qjax.encode(jnp.asarray(x), number, mode, key=key), expected, f"jax {mode}")
    try:
        decoded = qcore.decode(expected, number)
    except ValueError:  # numbers that float32 has not
        with pytest.raises(ValueError, match="dtype=float32"):
            qtorch.decode(torch.from_numpy(expected), number)
        with pytest.raises(ValueError, match="dtype=float32"):
            qjax.decode(jnp.asarray(expected), number)
        return
    assert_same_bits(qtorch.decode(torch.from_numpy(expected), number), decoded)
    if in_jax:
        assert_same_bits(qjax.decode(jnp.asarray(expected), number), decoded)


@pytest.mark.parametrize(("number", "mode"), SOME, ids=str)
def test_kernels(number, mode):
    (x,) = hard_inputs(number, 50_000)
    x, key = x.reshape(100, 500), key_for(mode, 9)
    expected = qcore.encode(x, number, mode, key=key)
    assert_same_bits(qtorch.encode(to_torch(x), number, mode, key=key), expected)
    assert_same_bits(qtorch.encode(to_torch(x.T), number, mode, key=key), qcore.encode(x.T, number, mode, key=key))
    assert qtorch.encode(torch.ones(0, 3), number, mode, key=key).dtype == getattr(torch, expected.dtype.name)
    assert qjax.encode(jnp.ones((0, 3)), number, mode, key=key).dtype == expected.dtype


@pytest.mark.parametrize(
    ("number", "mode"),
    [SOME[0], SOME[5], *(pytest.param(*some, marks=pytest.mark.heavy) for some in SOME[2:5])],
    ids=str,
)
def test_compiled_programs(number, mode):
    (x,) = hard_inputs(number, 50_000)

    @torch.compile(fullgraph=True)
    def program(x):
        codes = qtorch.encode(x, number, mode)
        return codes, qtorch.decode(codes, number)

    torch._dynamo.reset()
    expected = qcore.encode(x, number, mode)
    codes, values = program(to_torch(x))
    assert_same_bits(codes, expected)
    assert_same_bits(values, qcore.decode(expected, number))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes(dtype):
    codes = np.arange(256, dtype=np.uint8)
    wide = dtype == "float64"
    expected = qcore.decode(codes, "e4m3fn", np.float64 if wide else np.float32)
    actual = qtorch.decode(torch.from_numpy(codes), "e4m3fn", getattr(torch, dtype))
    assert_same_bits(actual.to(torch.float64 if wide else torch.float32)[:127], expected[:127])
    with jax.enable_x64(wide):
        actual = qjax.decode(jnp.asarray(codes), "e4m3fn", dtype)
        assert actual.dtype == dtype
        assert_same_bits(actual.astype(expected.dtype)[:127], expected[:127])
    (x,) = hard_inputs(NAMED["e4m3fn"][0], 70_000, DTYPES[dtype])  # more than a kernel on one thread takes
    expected = qcore.encode(x, "e4m3fn")
    assert_same_bits(qtorch.encode(to_torch(x), "e4m3fn"), expected)
    with jax.enable_x64(wide):
        assert_same_bits(qjax.encode(jnp.asarray(x), "e4m3fn"), expected)


def test_float64_in_jax_needs_x64():
    with pytest.raises(TypeError, match="jax_enable_x64"):
        qjax.decode(jnp.zeros(3, jnp.uint8), "e4m3fn", np.float64)


@pytest.mark.parametrize("name", ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu", "float16", "bfloat16"])
def test_torch_types_without_a_copy(name):
    x = torch.randn(1000).abs() if name == "e8m0fnu" else torch.randn(1000)
    codes = qtorch.encode(x, name)
    theirs = codes.view(getattr(torch, name if "float" in name else f"float8_{name}"))
    assert theirs.data_ptr() == codes.data_ptr()
    assert_same_bits(theirs.float(), qtorch.quantize(x, name, "nearest"))
    assert_same_bits(qtorch.decode(theirs.view(codes.dtype), name), theirs.float())


def test_jax_float4():
    x = jnp.linspace(-7, 7, 64, dtype=jnp.float32)
    pairs = jax.lax.bitcast_convert_type(qjax.pack(qjax.encode(x, "e2m1fn"), 4), jnp.float4_e2m1fn)
    assert pairs.shape == (32, 2)
    assert_same_bits(
        np.asarray(pairs.reshape(-1).astype(jnp.float32)), qcore.quantize(np.asarray(x), "e2m1fn", "nearest")
    )


def test_torch_float4():
    packed = qtorch.pack(qtorch.encode(torch.randn(4, 6), "e2m1fn"), 4)
    theirs = packed.view(torch.float4_e2m1fn_x2)
    assert theirs.shape == (4, 3)
    assert theirs.data_ptr() == packed.data_ptr()


@pytest.mark.parametrize("name", ["e4m3", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2", "e5m2fnuz", "e3m4", "e8m0fnu"])
def test_jax_types(name):
    x = jnp.asarray(np.abs(np.random.default_rng(0).standard_normal(1000, np.float32)))
    theirs = qjax.encode(x, name).view(getattr(jnp, f"float8_{name}"))
    assert_same_bits(theirs.astype(jnp.float32), qjax.quantize(x, name, "nearest"))
    assert_same_bits(qjax.decode(theirs.view(jnp.uint8), name), theirs.astype(jnp.float32))


WIDTHS, INTEGERS = [1, 3, 4, 6, 8, 12, 19, 32], ["uint8", "uint32", "int8", "uint16", "int16", "int64", "uint64"]


@some(
    *((i, j) for i in range(8) for j in range(7) if j > 1 or WIDTHS[i] in ((3, 8, 12), (4, 8, 19))[j]),
    width=WIDTHS,
    dtype=INTEGERS,
)
def test_packing(width, dtype):
    info = np.iinfo(dtype)
    codes = np.random.default_rng(width).integers(info.min, info.max, (3, 5, 13), dtype, endpoint=True)
    packed = qcore.pack(codes, width)
    assert_same_bits(qtorch.pack(torch.from_numpy(codes), width), packed)
    if (width + len(dtype)) % 2:  # one program of JAX for each width and size of codes, by turns
        assert_same_bits(qjax.pack(codes, width), packed)
    if dtype == "uint32":
        expected = qcore.unpack(packed, width, 13)
        found = qtorch.unpack(torch.from_numpy(packed), width, 13)
        assert_same_bits(found, expected)
        assert found.is_contiguous()
        assert_same_bits(jax.jit(lambda c: qjax.pack(c, width))(jnp.asarray(codes)), packed)
        assert_same_bits(jax.jit(lambda p: qjax.unpack(p, width, 13))(jnp.asarray(packed)), expected)


def test_packing_in_programs_of_torch():
    """uint16 codes of more than 16 bits have zeros above, in compiled programs too."""
    torch._dynamo.reset()
    codes = torch.from_numpy(np.array([[40000, 3, 65535, 1, 0, 32768, 7]], np.uint16))

    def run(x, width):
        packed = qtorch.pack(x, width)
        return packed, qtorch.unpack(packed, width, 7)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False)
    for width in (3, 8, 12, 20):
        packed, again = compiled(codes, width)
        expected = qcore.pack(codes.numpy(), width)
        assert_same_bits(packed, expected)
        assert_same_bits(again, qcore.unpack(expected, width, 7))


@pytest.mark.parametrize("function", [qtorch.pack, lambda x, bits: qtorch.unpack(x, bits, 3)])
def test_codes_of_eight_bits_are_a_copy(function):
    given = torch.tensor([1, 2, 3], dtype=torch.uint8)
    function(given, 8).zero_()
    assert given.tolist() == [1, 2, 3]


def test_stored_codes_with_a_highest_bit_are_no_negative_numbers():
    """uint16 codes of a wider format; under vmap no kernel reads them."""
    codes = np.arange(0, 65536, 7, dtype=np.uint16)
    for number in ("float(5,14)", "fixed(20,10)"):
        decoded = torch.func.vmap(lambda x, number=number: qtorch.decode(x, number))(torch.from_numpy(codes)[None])
        assert_same_bits(decoded[0], qcore.decode(codes, number))
        assert_same_bits(qjax.decode(codes, number), qcore.decode(codes, number))


@pytest.mark.parametrize("package", [qtorch, qjax])
def test_bad_input(package):
    make = torch.from_numpy if package is qtorch else jnp.asarray
    for call, error, word in [
        (lambda: package.encode(1.0, "e5m2"), TypeError, "x is a float"),
        (lambda: package.encode(make(np.ones(3, np.float32)), BlockFloatingPoint(8)), ValueError, "no codes"),
        (lambda: package.decode(make(np.ones(3, np.float32)), "e5m2"), TypeError, "codes is a"),
        (lambda: package.decode(make(np.ones(3, np.uint8)), "e5m3"), ValueError, "number='e5m3'"),
        (lambda: package.decode(make(np.ones(3, np.uint8)), "e5m2", make), TypeError, "dtype"),
        (lambda: package.pack([1], 4), TypeError, "codes is a list"),
        (lambda: package.pack(make(np.ones(3, np.uint8)), 0), ValueError, "bits=0"),
        (lambda: package.unpack(make(np.ones(3, np.uint8)), 4, 7), ValueError, "packed has shape"),
    ]:
        with pytest.raises(error, match=word):
            call()


LOOKED_UP = [  # a format, a shape with four times as many elements as pairs of a scale and a code, and a dtype
    ("mxfp4", (33, 512), "float32"),
    pytest.param("nvfp4", (17, 1000), "float32", marks=pytest.mark.heavy),
    ("nf4(block=64)", (5, 320), "float32"),
    (BlockScaled("e3m2fn", {...: None}, scale="float32"), (7, 41), "float16"),
    (BlockScaled("e2m1fn", {0: 64}, scale="float32"), (128, 9), "bfloat16"),
    pytest.param("mxfp4", (3, 64, 130), "bfloat16", marks=pytest.mark.heavy),
    pytest.param("mxfp6_e2m3", (520, 128), "float32", marks=pytest.mark.heavy),
    pytest.param("mxfp8_e4m3", (260, 1024), "float32", marks=pytest.mark.heavy),
    pytest.param(BlockScaled("int5", {-1: 160}, scale="float32"), (6, 640), "float32", marks=pytest.mark.heavy),
    pytest.param(BlockScaled("e2m1fn", {"flat": 64}, scale="float32"), (40, 40), "float32", marks=pytest.mark.heavy),
    pytest.param(
        BlockScaled("e4m3fn", {...: None}, scale="e4m3fn", tensor_scale="float32"),
        (33, 32),
        "float32",
        marks=pytest.mark.heavy,
    ),
]


@pytest.mark.parametrize(("number", "shape", "dtype"), LOOKED_UP, ids=str)
def test_decode_by_tables(number, shape, dtype):
    """JAX computes each pair of a scale and a code once; codes are packed, and all codes of scales occur."""
    rng = np.random.default_rng(0)
    number = qcore.parse(number) if isinstance(number, str) else number
    codes = rng.integers(0, 1 << number.bits, shape).astype(np.uint8)
    _, scales = qcore.encode(rng.normal(size=shape).astype(np.float32), number)
    first, *rest = scales if isinstance(scales, tuple) else (scales,)
    if first.dtype == np.uint8:
        first = np.arange(first.size).astype(np.uint8).reshape(first.shape)
    scales = (first, *rest) if rest else first
    expected = qcore.decode(codes, number, dtype, scales=scales)
    packed = jnp.asarray(qcore.pack(codes, number.bits))
    given = jax.tree.map(jnp.asarray, scales)

    @jax.jit
    def found(packed, scales):
        return qjax.decode(qjax.unpack(packed, number.bits, shape[-1]), number, dtype, scales=scales)

    assert "gather" in str(jax.make_jaxpr(found)(packed, given))
    assert_same_bits(found(packed, given), expected)
