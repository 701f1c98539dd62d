"""What tests of all packages share: bits, trees, the equations of a program, backends, and the oracle's specs."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from jax.extend.core import jaxprs_in_params

import qcore
import qjax
import qtorch
from qcore import BinaryFloat, BlockFloatingPoint, BlockScaled, FixedPoint, FloatingPoint, Posit, Table
from qcore.random.threefry import Noise
from qtorch._rounding.keys import key_tensor, window_tensor
from qtorch._rounding.paths.choice import by_operations
from qtorch._rounding.plan import plan_for

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}


def bits(x):
    """The bit patterns of a NumPy array, JAX array or tensor as unsigned integers."""
    if isinstance(x, torch.Tensor):
        signed = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[x.element_size()]
        x = x.detach().cpu().contiguous().view(signed).numpy()
    x = np.ascontiguousarray(np.asarray(x))
    return x.view(f"u{x.dtype.itemsize}")


def assert_same_bits(actual, expected, message=""):
    actual, expected = bits(actual), bits(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    differing = np.argwhere(actual != expected)
    where = tuple(differing[0]) if len(differing) else None
    assert not len(differing), (
        f"{message}: {len(differing)} of {actual.size} differ, the first at {where}: "
        f"{actual[where]:#x} instead of {expected[where]:#x}"
    )


def assert_all_same_bits(actual, expected):
    for i, (x, y) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(x, y, f"tensor {i}")


def assert_same_trees(actual, expected):
    """Two pytrees of one structure, with the same bits in their leaves, of which there are some."""
    actual, expected = (jax.tree_util.tree_flatten_with_path(x) for x in (actual, expected))
    assert actual[1] == expected[1]
    assert actual[0]
    for (path, x), (_, y) in zip(actual[0], expected[0], strict=True):
        assert_same_bits(x, y, jax.tree_util.keystr(path))


def equations(jaxpr, scope=""):
    """All equations of a jaxpr and of those inside, with their name scopes."""
    for equation in jaxpr.eqns:
        name = f"{scope}/{equation.source_info.name_stack}"
        yield name, equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner, name)


def to_torch(x):
    """A tensor with the bits of a NumPy array (torch cannot read ml_dtypes)."""
    if x.dtype.itemsize >= 4:
        return torch.from_numpy(np.ascontiguousarray(x)).clone()
    dtype = torch.float16 if x.dtype == np.float16 else torch.bfloat16
    return torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).view(dtype).clone()


def _sizes(block, ndim):
    """The sizes of a block along the axes of an array."""
    sizes = [dict(block).get(..., 1)] * ndim
    for axis, size in block:
        if axis is not ...:
            sizes[axis] = size
    return tuple(sizes)


def spec(number, ndim=3):
    """The oracle's own description of a format, of blocks for arrays of so many dimensions."""
    if isinstance(number, FixedPoint):
        return "fixed", number.wl, number.fl, number.clamp, number.symmetric, number.signed, number.wrap
    if isinstance(number, FloatingPoint):
        return "float", number.exp, number.man, number.bias, number.subnormals
    if isinstance(number, BinaryFloat):
        layout = (number.exp, number.man, number.bias, number.specials, number.subnormals)
        return "binary", *layout, number.signed, number.overflow
    if isinstance(number, Posit):
        return "posit", number.bits, number.es
    if isinstance(number, Table):
        return "table", number.values, number.thresholds, number.ties, number.beyond
    if isinstance(number, BlockScaled):
        sizes, parts = _sizes(number.block, ndim), _sizes(number.sub_block or number.block, ndim)
        return "scaled", spec(number.element), parts, number.rule, sizes if number.sub_block else None
    assert isinstance(number, BlockFloatingPoint)
    return "block", number.wl, number.dim


def words(key, shape):
    """The random words of laws.md, from their independent source; few sizes, so that XLA compiles few programs."""
    size = math.prod(shape)
    return _words(key, 1 << max(size - 1, 2**15 - 1).bit_length())[:size].reshape(shape)


@cache
def _words(key, count):
    return np.asarray(jax.random.bits(jax.random.key(key), count, "uint32"))


def key_for(mode, key):
    return key if mode.startswith("stochastic") else None


def by_numpy(x, number, mode, key, **options):
    return qcore.quantize(x, number, mode, key=key_for(mode, key), **options)


def by_torch(x, number, mode, key, **options):
    return qtorch.quantize(to_torch(x), number, mode, key=key_for(mode, key), **options)


def by_torch_operations(x, number, mode, key, random_bits=24, start=0):
    x = to_torch(x)
    noise = Noise(key_tensor(key), window_tensor(random_bits, start, x.device)) if key_for(mode, 1) else None
    return by_operations(x, plan_for(number, mode, x.dtype, None, False), noise)


def by_jax(x, number, mode, key, **options):
    with jax.enable_x64(x.dtype == np.float64):
        return qjax.quantize(jnp.asarray(x), number, mode, key=key_for(mode, key), **options)


def by_jax_operations(x, number, mode, key, **options):
    with jax.disable_jit():
        return by_jax(x, number, mode, key, **options)


BACKENDS = {
    "torch kernel": by_torch,
    "torch ops": by_torch_operations,
    "jax jit": by_jax,
    "jax eager": by_jax_operations,
}
# But JAX without jit, which compiles every operation for every shape.
OTHERS = {name: backend for name, backend in BACKENDS.items() if name != "jax eager"}
