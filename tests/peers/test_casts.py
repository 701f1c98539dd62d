"""The casts that PyTorch, JAX and NumPy have themselves, and JAX's `reduce_precision`."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from peer_support import compare, inside, numbers_of, patterns, points, same_numbers, widened
from support import bits

import qcore
from qcore import BinaryFloat

# format: (torch's dtype, the policy for numbers beyond the range that is torch's; None is the format's own)
TORCH = {
    "e4m3fn": (torch.float8_e4m3fn, "saturate"),
    "e4m3fnuz": (torch.float8_e4m3fnuz, None),
    "e5m2": (torch.float8_e5m2, None),
    "e5m2fnuz": (torch.float8_e5m2fnuz, None),
    "e8m0fnu": (torch.float8_e8m0fnu, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
}
JAX = {
    "e3m4": jnp.float8_e3m4,
    "e4m3": jnp.float8_e4m3,
    "e4m3fn": jnp.float8_e4m3fn,
    "e4m3fnuz": jnp.float8_e4m3fnuz,
    "e4m3b11fnuz": jnp.float8_e4m3b11fnuz,
    "e5m2": jnp.float8_e5m2,
    "e5m2fnuz": jnp.float8_e5m2fnuz,
    "e8m0fnu": jnp.float8_e8m0fnu,
    "e2m1fn": jnp.float4_e2m1fn,
    "bfloat16": jnp.bfloat16,
    "float16": jnp.float16,
}
PROCESSOR = ("bfloat16", "float16")  # whose NaNs depend on the processor, and on an element's place in its vectors

# Known differences among `points`.
TORCH_NUMBERS = {"e8m0fnu": {"zero": 8, "negative": 1712, "subnormal": 2}}
TORCH_CODES = TORCH_NUMBERS | {"e5m2": {"nan": 10}}
JAX_NUMBERS = {"e8m0fnu": {"subnormal": 2}, "e2m1fn": {"nan": 10}}


def e8m0_subnormal(x):
    """Subnormals of float32 above 2^-127 become 2^-126, though up to 1.5 * 2^-127 2^-127 is nearer."""
    return (x > 2.0**-127) & (x < 1.5 * 2.0**-127)


def torch_known(name, x):
    if name != "e8m0fnu":
        return {}
    return {
        "subnormal": e8m0_subnormal(x),
        "zero": x == 0,  # torch makes it 2^-127; the format has none, so here it is NaN
        # torch ignores the sign; here a negative number is NaN, as it is in torch where it overflows
        "negative": (x < 0) & (x > -1.5 * 2.0**127),
    }


def torch_known_codes(name, x):
    """torch's NaN in e5m2 has all bits set, ours and ml_dtypes' the first bit of the mantissa."""
    return torch_known(name, x) | ({"nan": np.isnan(x)} if name == "e5m2" else {})


def jax_known(name, x):
    """XLA rounds e8m0 as ml_dtypes does, and makes a NaN -0 in e2m1, which has none; we keep it, and encode it as 0."""
    return {
        "e8m0fnu": {"subnormal": e8m0_subnormal(x)},
        "e2m1fn": {"nan": np.isnan(x)},
    }.get(name, {})


def compared(x, name, numbers, codes, known, known_codes, overflow=None):
    """How often a peer's numbers, and codes, differ for each reason."""
    same = same_numbers(qcore.quantize(x, name, "nearest", overflow=overflow), numbers)
    same_codes = qcore.encode(x, name, overflow=overflow) == codes
    if name in PROCESSOR:
        same_codes |= np.isnan(x)
    return compare(x, same, known(name, x), name), compare(x, same_codes, known_codes(name, x), f"{name}, codes")


def torch_compared(x, name, step=1):
    dtype, overflow = TORCH[name]
    cast = torch.from_numpy(np.repeat(x, step))[::step].to(dtype)
    codes = cast.view(torch.uint8 if cast.element_size() == 1 else torch.uint16).numpy()
    return compared(x, name, cast.float().numpy(), codes, torch_known, torch_known_codes, overflow)


@pytest.mark.parametrize("step", [1, 2], ids=["vectors", "strided"])
@pytest.mark.parametrize("name", TORCH)
def test_torch_points(name, step):
    numbers, codes = torch_compared(points(numbers_of(name)), name, step)
    assert numbers == TORCH_NUMBERS.get(name, {})
    assert codes == TORCH_CODES.get(name, {})


@pytest.mark.parametrize("name", TORCH)
def test_torch_random(name):
    torch_compared(patterns(), name)
    torch_compared(inside(numbers_of(name)), name)


def jax_compared(x, name, jitted):
    def casts(x):
        return x.astype(JAX[name]), x.astype(JAX[name]).astype(jnp.float32)

    narrow, numbers = (jax.jit(casts) if jitted else casts)(jnp.asarray(x))
    return compared(x, name, np.asarray(numbers), bits(narrow), jax_known, jax_known)


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", JAX)
def test_jax_points(name, jitted):
    numbers, codes = jax_compared(points(numbers_of(name)), name, jitted)
    assert numbers == codes == JAX_NUMBERS.get(name, {})


@pytest.mark.parametrize("name", JAX)
def test_jax_random(name):
    jax_compared(patterns(), name, jitted=True)
    jax_compared(inside(numbers_of(name)), name, jitted=True)


# (exp, man): how many of `points` become zero
PRECISIONS = {(2, 1): 22, (3, 4): 190, (4, 3): 94, (5, 2): 46, (5, 10): 12286, (6, 9): 6142, (8, 1): 0, (8, 7): 0}


@pytest.mark.parametrize(("exp", "man"), PRECISIONS, ids=str)
def test_jax_reduce_precision(exp, man):
    """`reduce_precision` makes zeros of what is, rounded to man bits, below the smallest normal number; not where
    float32 itself has that one as its own."""
    number = BinaryFloat(exp, man)
    numbers = qcore.decode(np.arange(2**number.bits), number)
    reduce = jax.jit(lambda x: jax.lax.reduce_precision(x, exp, man))
    counts = []
    for x in (points(numbers), patterns(), inside(numbers)):
        same = same_numbers(qcore.quantize(x, number, "nearest"), np.asarray(reduce(jnp.asarray(x))))
        normal, m = 2.0 ** (2 - 2 ** (exp - 1)), np.abs(widened(x))
        below = (m > normal * 2.0 ** -(man + 1)) & (m < normal * (1 - 2.0 ** -(man + 2))) & (exp < 8)
        counts.append(compare(x, same, {"below": below}, number))
    assert counts[0]["below"] == PRECISIONS[exp, man]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_float16(dtype):
    for x in (points(numbers_of("float16"), dtype), patterns(10**6, dtype), inside(numbers_of("float16"), dtype=dtype)):
        with np.errstate(all="ignore"):
            cast = x.astype(np.float16)
            compared(x, "float16", cast.astype(dtype), bits(cast), lambda *_: {}, lambda *_: {})


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", [name for name in TORCH if name not in ("e8m0fnu", "bfloat16", "float16")])
def test_torch_on_all_half_inputs(name, dtype):
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    tensor = torch.from_numpy(bits(x)).view(torch.float16 if dtype is np.float16 else torch.bfloat16)
    target, overflow = TORCH[name]
    same = same_numbers(qcore.quantize(x, name, "nearest", overflow=overflow), to_numpy(tensor.to(target), dtype))
    compare(x, same, message=name)


def to_numpy(tensor, dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        return tensor.float().numpy().astype(dtype)
