"""Operations on numbers and codes: the bits of NumPy in PyTorch and JAX, eager and compiled, with gradients."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from covering import usually

import qcore
from qcore import arithmetic as in_numpy
from qcore.arithmetic.choices import COMPARISONS, EXTREMA, PREDICATES
from qcore.arithmetic.elementary import SLOPES
from qcore.arithmetic.operations import OPERATIONS
from qjax import arithmetic as in_jax
from qtorch import arithmetic as in_torch
from qtorch.arithmetic import functions as qtorch_functions

MODES = [mode.value for mode in qcore.Rounding]
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0**-149, -(2.0**-140), 2.0**-126, 3.4028235e38, -3.4028235e38]


def inputs(rng, count=400):
    x = rng.integers(1, 1 << 24, count) * 2.0 ** rng.integers(-160, 104, count) * rng.choice([-1, 1], count)
    x[: len(EDGES)] = EDGES
    return rng.permutation(x.astype(np.float32))


def assert_same(operation, arrays, *arguments, **options):
    expected = getattr(in_numpy, operation)(*arrays, *arguments, **options)
    for found in (
        getattr(in_torch, operation)(*map(torch.from_numpy, arrays), *arguments, **options).numpy(),
        np.asarray(getattr(in_jax, operation)(*arrays, *arguments, **options)),
    ):
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes(), (operation, arguments)


TABLES = [name for name, operation in OPERATIONS.items() if operation.law is None]
CHOICES = [*EXTREMA, "negate", "abs", "copysign", "clamp", "next_up", "next_down"]
QUESTIONS = [*COMPARISONS, *PREDICATES, "classify"]
EXACT = [name for name in OPERATIONS if name not in TABLES + CHOICES]


@pytest.mark.parametrize("operation", usually(("fma", "divide"), EXACT))
def test_packages_agree(operation):
    rng, count = np.random.default_rng(0), OPERATIONS[operation].operands
    arrays = [inputs(rng) for _ in range(count)]
    assert_same(operation, arrays, "float32", "down")
    assert_same(operation, arrays, "e4m3fn", "stochastic", key=3, random_bits=7)
    codes = [rng.integers(0, 256, 200).astype(np.uint8) for _ in range(count)]
    assert_same(f"{operation}_codes", codes, "e4m3fn", None, "odd", overflow="saturate")


@pytest.mark.parametrize("name", usually(("clamp",), CHOICES))
def test_choices_agree(name):
    rng, count = np.random.default_rng(7), OPERATIONS[name].operands
    options = {} if name.startswith("next") else {"rounding": "up"}
    assert_same(name, [inputs(rng) for _ in range(count)], "e4m3fn", **options)
    assert_same(f"{name}_codes", [rng.integers(0, 256, 200).astype(np.uint8) for _ in range(count)], "e5m2")
    tensors = [torch.from_numpy(inputs(rng)).requires_grad_() for _ in range(count)]
    getattr(in_torch, name)(*tensors).nansum().backward()
    by_jax = jax.grad(lambda *x: jnp.nansum(getattr(in_jax, name)(*x)), tuple(range(count)))
    for one, other in zip(tensors, by_jax(*(x.detach().numpy() for x in tensors)), strict=True):
        assert one.grad.numpy().tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("name", usually(("total_order", "classify"), QUESTIONS))
def test_questions_agree(name):
    rng, count = np.random.default_rng(8), 2 if name in COMPARISONS else 1
    assert_same(name, [inputs(rng) for _ in range(count)])
    assert_same(f"{name}_codes", [rng.integers(0, 256, 200).astype(np.uint8) for _ in range(count)], "binary8p3se")


def test_wide_codes_agree():
    codes = [np.random.default_rng(1).integers(0, 1 << 16, 200).astype(np.uint16) for _ in range(2)]
    assert_same("divide_codes", codes, "float16", "binary8p3se")
    assert_same("divide_codes", [x.astype(np.uint8) for x in codes], "e5m2", "float16")
    assert_same("add_codes", codes, ("bfloat16", "float16"), "e5m2", "stochastic_c", key=1)


@pytest.mark.parametrize("name", usually(TABLES[::8], TABLES))
def test_tables_agree(name):
    rng, i = np.random.default_rng(4), TABLES.index(name)
    arrays = [inputs(rng, 64) for _ in range(OPERATIONS[name].operands)]
    assert_same(name, arrays, "e4m3fn", MODES[i % len(MODES)], operands="binary8p3se", key=1)
    codes = [rng.integers(0, 256, 64).astype(np.uint8) for _ in arrays]
    assert_same(f"{name}_codes", codes, "e5m2", "binary8p4se", MODES[-i % len(MODES)], key=1)


def test_numbers_of_16_bits_are_their_codes():
    x = np.random.default_rng(0).standard_normal(100).astype(ml_dtypes.bfloat16)
    expected = in_numpy.exp(x)
    assert (
        in_torch.exp(torch.from_numpy(x.astype(np.float32)).bfloat16()).float().numpy().tobytes()
        == expected.astype(np.float32).tobytes()
    )
    assert np.asarray(in_jax.exp(x)).tobytes() == expected.tobytes()


def test_gradients_of_tables():
    x = np.float32([0.5, 0.75, 0.25])
    for name in ("exp", "arctan"):
        t = torch.from_numpy(x).requires_grad_()
        getattr(in_torch, name)(t, "e4m3fn", operands="e4m3fn").sum().backward()
        by_jax = jax.grad(lambda y, name=name: getattr(in_jax, name)(y, "e4m3fn", operands="e4m3fn").sum())(x)
        assert t.grad.numpy().tobytes() == np.asarray(by_jax).tobytes()
        np.testing.assert_allclose(t.grad, SLOPES[name](x.astype(np.float64))[0], 1e-6)


@pytest.mark.heavy
def test_compiled_programs_agree():
    rng = np.random.default_rng(2)
    arrays, options = [inputs(rng) for _ in range(3)], {"key": 5}

    def both(room, x, y, z, codes):
        exact = room.fma(x, y, z, "e5m2", "stochastic", **options)
        return exact, room.add_codes(codes, codes, "e4m3fn"), room.exp(x, "e4m3fn", operands="e4m3fn")

    codes = np.arange(256, dtype=np.uint8)
    expected = both(in_numpy, *arrays, codes)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: both(in_torch, *given), fullgraph=True)
    by_torch = compiled(*map(torch.from_numpy, arrays), torch.from_numpy(codes))
    by_jax = jax.jit(lambda *given: both(in_jax, *given))(*arrays, codes)
    for found in (by_torch, by_jax):
        assert [np.asarray(one).tobytes() for one in found] == [one.tobytes() for one in expected]


def test_tables_of_programs_are_copies():
    """Inductor writes later results of a program to memory that it has read: the next call had another table."""
    x = torch.linspace(-3, 3, 256)
    expected = torch.from_numpy(in_numpy.exp(x.numpy(), "e4m3fn", operands="e4m3fn"))
    for which in ("numbers", "codes"):
        texts = ["exp", "e4m3fn", "nearest", "", "24", "e4m3fn"]
        torch.ops.qtorch.arithmetic_table(which, texts, torch.device("cpu")).zero_()
    assert torch.equal(in_torch.exp(x, "e4m3fn", operands="e4m3fn"), expected)
    codes = torch.arange(256, dtype=torch.uint8)
    assert in_torch.exp_codes(codes, "e4m3fn").tolist() == in_numpy.exp_codes(codes.numpy(), "e4m3fn").tolist()


@pytest.mark.parametrize("names", [EXACT[::3], pytest.param(EXACT, marks=pytest.mark.heavy)], ids=["some", "all"])
def test_gradients_are_those_of_real_functions(names):
    rng = np.random.default_rng(3)
    arrays = [np.abs(rng.standard_normal((4, 8))).astype(np.float32) + 0.5 for _ in range(3)]
    for name in names:
        used = arrays[: OPERATIONS[name].operands]
        tensors = [torch.from_numpy(x).requires_grad_() for x in used]
        by_torch = torch.autograd.grad(getattr(in_torch, name)(*tensors, "e4m3fn").sum(), tensors)
        by_jax = jax.grad(lambda *given, name=name: getattr(in_jax, name)(*given, "e4m3fn").sum(), [*range(len(used))])
        real = [x.double().detach().requires_grad_() for x in tensors]
        expected = torch.autograd.grad(REAL[name](*real).sum(), real)
        for one, other, exact in zip(by_torch, by_jax(*used), expected, strict=True):
            assert one.numpy().tobytes() == np.asarray(other).tobytes(), name
            np.testing.assert_allclose(one, exact, 2e-7)


REAL = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "fma": lambda x, y, z: x * y + z,
    "faa": lambda x, y, z: x + y + z,
    "reciprocal": lambda x: 1 / x,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
}


def test_broadcasting_and_dtypes():
    x = torch.ones(3, 1, dtype=torch.bfloat16, requires_grad=True)
    y = torch.ones(4, dtype=torch.bfloat16)
    found = in_torch.add(x, y, "e4m3fn")
    assert (found.shape, found.dtype) == ((3, 4), torch.bfloat16)
    found.sum().backward()
    assert x.grad.tolist() == [[4.0]] * 3
    assert in_torch.add(x, y.half()).dtype == torch.float32
    assert in_jax.add(jnp.ones((3, 1), jnp.bfloat16), jnp.ones(4, jnp.bfloat16)).dtype == jnp.bfloat16
    batched = torch.func.vmap(lambda row: in_torch.sqrt(row, "e5m2"))(torch.arange(6.0).reshape(2, 3))
    assert torch.equal(batched, in_torch.sqrt(torch.arange(6.0).reshape(2, 3), "e5m2"))


def test_every_nan_of_bfloat16_is_the_same():
    """Of torch's own conversions vectors and what is left of them have other NaN."""
    x, bits = torch.full((17,), torch.nan, dtype=torch.bfloat16), [0x7FC0] * 17
    for found in (in_torch.add(x, x), in_torch.exp(x), in_torch.negate(x, "e5m2")):
        assert found.view(torch.int16).tolist() == bits
    x.requires_grad_()
    in_torch.reciprocal(x, "e5m2").backward(torch.ones_like(x))
    assert x.grad.view(torch.int16).tolist() == bits


def test_gradients_of_16_bits_are_rounded_once():
    rng = np.random.default_rng(0)
    x, y, gradient = (rng.standard_normal(60_000).astype(np.float16) for _ in range(3))
    exact = -gradient.astype(float) * x.astype(float) / y.astype(float) ** 2
    tensors = [torch.from_numpy(one).requires_grad_() for one in (x, y)]
    in_torch.divide(*tensors).backward(torch.from_numpy(gradient))
    with np.errstate(over="ignore"):
        once, twice = exact.astype(np.float16), exact.astype(np.float32).astype(np.float16)
    assert tensors[1].grad.numpy().tobytes() == once.tobytes() != twice.tobytes()


def test_second_derivatives_that_are_not_there_raise():
    x = torch.tensor([0.5], requires_grad=True)
    (slope,) = torch.autograd.grad((in_torch.exp(x, operands="e4m3fn") * x).sum(), x, create_graph=True)
    with pytest.raises(TypeError, match="x of exp is differentiated twice"):
        slope.sum().backward()
    with pytest.raises(TypeError, match="x of multiply is differentiated twice"):
        jax.grad(jax.grad(lambda y: in_jax.multiply(y, y)))(jnp.float32(2.0))


def test_wrong_arguments():
    with pytest.raises(TypeError, match="x is an array of float64; allowed is a jax"):
        in_jax.sqrt(np.ones(1))
    for room, allowed in ((in_torch, "a torch.Tensor"), (in_jax, "a jax.Array or NumPy array")):
        with pytest.raises(TypeError, match=f"x is a float; allowed is {allowed}"):
            room.sqrt(1.0)
    with pytest.raises(ValueError, match="needs a key"):
        in_jax.sqrt(jnp.ones(3), "e5m2", "stochastic")


def test_kernels_look_up_what_operations_do(monkeypatch):
    """Codes of any integers with higher bits, of one to three operands, with gaps and steps in memory."""
    rng, taken = np.random.default_rng(6), []

    def calls():
        codes = [
            torch.from_numpy(rng.integers(-99, 99, (3, 50)).astype(dtype)) for dtype in ("int64", "uint8", "int16")
        ]
        yield in_torch.add_codes(codes[0], codes[1][:, ::2][:, :1], ("e3m2", "e4m3fn"), "float16")
        yield in_torch.fma_codes(*(x.t() for x in codes), "e2m1fn")
        yield in_torch.exp_codes(codes[1], "e5m2", "float32")
        x = torch.from_numpy(rng.standard_normal(60000).astype(np.float32))
        yield in_torch.tanh(x.bfloat16()[1:])
        yield torch.func.vmap(in_torch.tanh)(x.half().reshape(2, -1))

    kernel = qtorch_functions.gather
    monkeypatch.setattr(qtorch_functions, "gather", lambda *given: taken.append(kernel(*given)) or taken[-1])
    found, rng = [*calls()], np.random.default_rng(6)
    assert len(taken) == 4
    assert all(x is not None for x in taken)
    monkeypatch.setattr(qtorch_functions, "gather", lambda *given: None)
    for one, other in zip(found, calls(), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def test_the_text_of_a_new_format_in_a_compiled_program():
    """It is written while the program is traced."""
    x = torch.tensor([0.3])
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: in_torch.add(x, x, "fixed(9,3)"), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), in_torch.add(x, x, qcore.FixedPoint(9, 3)))
