"""What fake quantization refuses."""

import pytest
import torch

from qtorch._affine import affine
from qtorch.quantization import fake_quantize_per_channel_affine as per_channel
from qtorch.quantization import fake_quantize_per_tensor_affine as per_tensor

X = torch.ones(2, 3)


ONES, ZEROS = torch.ones(3), torch.zeros(3, dtype=torch.int32)


WRONG = [
    (lambda: per_tensor([1.0], 1, 0, 0, 255), TypeError, "x is a list"),
    (lambda: per_tensor(X.int(), 1, 0, 0, 255), TypeError, "x has dtype int32; allowed are float32"),
    (lambda: per_tensor(X, -1.0, 0, 0, 255), ValueError, "scale=-1"),
    (lambda: per_tensor(X, torch.tensor(torch.inf), 0, 0, 255), ValueError, "scale=inf"),
    (lambda: per_tensor(X, "1", 0, 0, 255), TypeError, "scale='1' is a str"),
    (lambda: per_tensor(X, True, 0, 0, 255), TypeError, "scale=True is a bool"),
    (
        lambda: per_tensor(X, torch.ones((), dtype=torch.float64), 0, 0, 255),
        TypeError,
        "scale is float64; allowed is an array of float32",
    ),
    (lambda: per_tensor(X, ONES, 0, 0, 255), ValueError, r"scale has shape \(3,\); allowed is \(\)"),
    (
        lambda: per_tensor(X, 1.0, torch.tensor(2**40), 0, 255),
        ValueError,
        "zero_point=2147483647; allowed are integers from 0",
    ),
    (lambda: per_tensor(X, 1.0, 1.5, 0, 255), TypeError, r"zero_point=1\.5 is a float"),
    (
        lambda: per_tensor(X, 1.0, torch.tensor(1.0), 0, 255),
        TypeError,
        "zero_point is float32; allowed is an array of int32",
    ),
    (lambda: per_tensor(X, 1.0, 0, 0, 2.0), TypeError, r"quant_max=2\.0 is a float"),
    (lambda: per_tensor(X, 1.0, 0, 0, 2**17), ValueError, "allowed are 2 to 65536 integers"),
    (lambda: per_channel(X, ONES, ZEROS[:2], 1, 0, 255), ValueError, r"zero_point has shape \(2,\); allowed is \(3,\)"),
    (lambda: per_channel(X, ONES * 0, ZEROS, 1, 0, 255), ValueError, r"scale=0\.0"),
    (lambda: per_channel(X, ONES, ZEROS, None, 0, 255), TypeError, "axis=None"),
    (lambda: per_channel(X, 1.0, 0, 1, 0, 255), ValueError, r"scale has shape \(\); allowed is \(3,\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_constants_of_a_traced_program_are_checked():
    with pytest.raises(Exception, match="quant_max"):
        torch.compile(lambda x: per_tensor(x, 1.0, 0, 0, 2.0), fullgraph=True, backend="eager")(X)


def test_make_form_refuses_what_is_unhashable():
    with pytest.raises(TypeError, match="quant_min"):
        affine.make_form([], 3)
