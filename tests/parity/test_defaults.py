"""What a call without a rounding does: `quantize` rounds to nearest, QPyTorch's names stochastically."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qcore
import qjax
import qtorch
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint


@pytest.mark.parametrize("package", [qcore, qtorch, qjax], ids=lambda package: package.__name__)
@pytest.mark.parametrize("number", ["e5m2", FloatingPoint(5, 2), FixedPoint(8, 4), "posit8", "mxfp4", "nvfp4"], ids=str)
def test_rounds_to_nearest_unless_asked_otherwise(package, number):
    """As casts do; a key changes nothing then. QPyTorch's names keep its own default, stochastic."""
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    make = {qcore: np.asarray, qtorch: torch.from_numpy, qjax: jnp.asarray}[package]
    expected = qcore.quantize(x, number, "nearest")
    assert_same_bits(package.quantize(make(x), number), expected)
    assert_same_bits(package.quantize(make(x), number, key=7), expected)


@pytest.mark.parametrize("package", [qtorch, qjax], ids=lambda package: package.__name__)
def test_qpytorch_names_round_stochastically_unless_asked_otherwise(package):
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    y = {qtorch: torch.from_numpy, qjax: jnp.asarray}[package](x)
    for result, number in (
        (package.float_quantize(y, 5, 2, key=7), FloatingPoint(5, 2)),
        (package.fixed_point_quantize(y, 8, 4, key=7), FixedPoint(8, 4)),
        (package.block_quantize(y, 8, 0, key=7), BlockFloatingPoint(8, 0)),
        (package.quantizer("e5m2")(y, 7), "e5m2"),
    ):
        assert_same_bits(result, qcore.quantize(x, number, "stochastic", key=7))
