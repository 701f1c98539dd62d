"""What the arithmetic of quantized arrays refuses, in the same words in all packages."""

import inspect

import numpy as np
import pytest
from functional_support import in_jax, in_torch, params_in_jax, params_in_torch

from qcore.affine import INT32, UINT8, QArray, QParams
from qcore.affine import functional as law

NAN, INF = float("nan"), float("inf")
PACKAGES = {
    "qcore": (lambda q: q, lambda qparams: qparams),
    "qtorch": (in_torch, params_in_torch),
    "qjax": (in_jax, params_in_jax),
}
Q = QArray(np.arange(48, dtype=np.uint8).reshape(2, 4, 6), QParams.of(0.5, 3), UINT8)
WIDE = QArray(np.arange(4, dtype=np.int32), QParams.of(0.5, 0), INT32)


def batch_norm(q, o, mean, variance, relu=False):
    return law.batch_norm(q, None, None, mean, variance, 1e-5, o, relu=relu)


BAD = [
    (lambda q, o: law.elu(q, o, alpha=NAN), ValueError, "alpha=nan; allowed is a finite number"),
    (lambda q, o: law.elu(q, o, alpha="1"), TypeError, "alpha='1' is a str; allowed is a finite number"),
    (lambda q, o: law.celu(q, o, alpha=0), ValueError, "alpha=0; allowed is a finite number but 0"),
    (lambda q, o: law.celu(q, o, alpha=INF), ValueError, "alpha=inf; allowed is a finite number but 0"),
    (lambda q, o: law.leaky_relu(q, o, slope=-INF), ValueError, "slope=-inf; allowed is a finite number"),
    (lambda q, o: law.clamp(q, NAN), ValueError, "low=nan; allowed is a number or None"),
    (lambda q, o: law.clamp(q, 0, "6"), TypeError, "high='6' is a str; allowed is a number or None"),
    (lambda q, o: law.clamp(q.dequantize(), 0), TypeError, "input is a .*; allowed is a QTensor"),
    (lambda q, o: law.tanh(q.dequantize()), TypeError, "input is a .*; allowed is a QTensor"),
    (lambda q, o: law.mul_scalar(None, 2), TypeError, "input is a NoneType; allowed is a QTensor"),
    (lambda q, o: law.add(q, q, 3), TypeError, "output is a int; allowed is a QParams"),
    (lambda q, o: law.hardswish(q, None), TypeError, "output is a NoneType; allowed is a QParams"),
    (lambda q, o: law.add(q, q, o, relu="no"), TypeError, "relu='no' is a str; allowed are True and False"),
    (lambda q, o: law.mul(q, q, o, relu=2), TypeError, "relu=2 is a int; allowed are True and False"),
    (lambda q, o: batch_norm(q, o, None, None), TypeError, "mean is NoneType; allowed is an array of float32"),
    (lambda q, o: law.mean(q, (1,), "no"), TypeError, "keepdims='no' is a str; allowed are True and False"),
    (lambda q, o: law.mean(q, 1), TypeError, "axes is a int; allowed is a tuple of dimensions"),
    (lambda q, o: law.mean(q, (1, -2)), ValueError, r"axes=\(1, -2\); allowed are dimensions that differ"),
    (lambda q, o: law.max_pool(q, 4, 2), ValueError, "dimensions=4; allowed is an int from 1 to 3"),
    (lambda q, o: law.avg_pool(q, 0, 2), ValueError, "dimensions=0; allowed is an int from 1 to 3"),
    (lambda q, o: law.adaptive_avg_pool(q, 2, "1"), TypeError, "dimensions='1' is a str; allowed is an int from 1"),
    (lambda q, o: law.sigmoid(q, form=INT32), ValueError, "form has integers of 32 bits; allowed are up to 16"),
]


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_wrong_arguments(package, call, error, message):
    array, parameters = PACKAGES[package]
    with pytest.raises(error, match=f"^{message}"):
        call(array(Q), parameters(QParams.of(0.25, 9)))


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("function", [law.hardsigmoid, law.sigmoid])
def test_wide_integers_have_no_parameters_of_the_unit(package, function):
    with pytest.raises(ValueError, match=r"^input has integers of 32 bits; allowed are up to 16"):
        function(PACKAGES[package][0](WIDE))


def test_flag_of_batch_norm():
    ones = np.ones(4, np.float32)
    with pytest.raises(TypeError, match="relu='no' is a str"):
        batch_norm(Q, QParams.of(0.25, 9), ones, ones, "no")


@pytest.mark.parametrize("package", PACKAGES)
def test_bounds_that_are_infinite_or_cross(package):
    q = PACKAGES[package][0](Q)
    np.testing.assert_array_equal(np.asarray(law.clamp(q, -INF, INF).values), Q.values)
    assert (np.asarray(law.clamp(q, 3, np.float32(1)).values) == 5).all()


# What functions need beside their first argument to get as far as checking it.
REST = {"dimensions": 1, "kernel_size": 1, "output_size": 1, "axes": (0,), "axis": 0, "groups": 1, "number": 1.0}
REST |= {"normalized_shape": 6, "weight": None, "bias": None, "eps": 1e-5, "mask": np.array(True), "signed": False}
REST |= {"mean": np.ones(4, np.float32), "variance": np.ones(4, np.float32), "threshold": 0.0, "value": 0.0, "size": 1}


@pytest.mark.parametrize("name", sorted(set(law.__all__) - {"einsum"}))
def test_messages_have_the_name_of_the_parameter(name):
    function = getattr(law, name)
    first, *others = inspect.signature(function).parameters
    known = REST | {"b": Q, "output": QParams.of(0.5, 3), "form": UINT8}
    with pytest.raises(TypeError, match=f"^{first} is a int; allowed is a "):
        function(**{first: 3}, **{other: known[other] for other in others if other in known})
