"""What fake quantization refuses, in the same words in both packages."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import qjax.quantization as jaxq
import qtorch.quantization as torchq

X = np.ones((2, 3), np.float32)


BAD = {
    "zero_point=256; allowed are integers from 0 to 255": ("per_tensor", 1.0, 256, 0, 255),
    "scale=0.0; allowed are finite numbers above 0": ("per_tensor", 0.0, 0, 0, 255),
    "scale=nan; allowed are finite numbers above 0": ("per_tensor", np.nan, 0, 0, 255),
    "scale=inf; allowed are finite numbers above 0": ("per_tensor", np.inf, 0, 0, 255),
    "qmin=5; allowed is an int from -2147483648 to 0": ("per_tensor", 1.0, 5, 5, 255),
    r"scale has shape \(2,\); allowed is \(3,\) for axis=1": ("per_channel", [1.0, 1.0], [0, 0], 1, 0, 255),
    "axis=2; allowed is an int from 0 to 1": ("per_channel", [1.0, 1.0], [0, 0], 2, 0, 255),
    "zero_point=-1; allowed are integers from 0 to 255": ("per_channel", [1.0, 1.0], [0, -1], 0, 0, 255),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    granularity, scale, zero_point, *others = BAD[message]
    for package, x, make in ((torchq, torch.from_numpy(X), torch.from_numpy), (jaxq, jnp.asarray(X), jnp.asarray)):
        parameters = scale, zero_point
        if granularity == "per_channel":
            parameters = make(np.float32(scale)), make(np.int32(zero_point))
        with pytest.raises(ValueError, match=message):
            getattr(package, f"fake_quantize_{granularity}_affine")(x, *parameters, *others)
