"""FloatFunctional and its successor; where floats become integers and floats again."""

import pytest
import torch
from support import assert_same_bits

from qcore.affine import AffineInteger, functional
from qtorch.nn import quantized
from qtorch.quantization import FakeQuantize, MinMaxObserver, default_observer, quantize_per_tensor

X, Y = torch.randn(2, 4, 10, generator=torch.Generator().manual_seed(1))
OBSERVED = {
    "add": (X, Y),
    "add_relu": (X, Y),
    "mul": (X, Y),
    "mul_relu": (X, Y),
    "cat": ([X, Y], 1),
}
NUMBERS = {"add_scalar": (X, 0.7), "mul_scalar": (X, -0.7)}


def quantized_arguments(arguments):
    def one(x):
        return quantize_per_tensor(x, 0.03, 128, torch.quint8) if isinstance(x, torch.Tensor) else x

    return tuple([one(x) for x in argument] if isinstance(argument, list) else one(argument) for argument in arguments)


@pytest.mark.parametrize("method", [*OBSERVED, *NUMBERS])
def test_methods(method):
    arguments = (OBSERVED | NUMBERS)[method]
    module = quantized.FloatFunctional()
    expected = getattr(quantized.FXFloatFunctional(), method)(*arguments)
    assert_same_bits(getattr(module, method)(*arguments), expected)
    observer = module.activation_post_process = MinMaxObserver()
    assert_same_bits(getattr(module, method)(*arguments), expected)
    assert (observer.min_val.item() == expected.min().item()) == (method in OBSERVED)
    observer(expected)
    own = quantized.QFunctional.from_float(module)
    result = getattr(own, method)(*quantized_arguments(arguments))
    assert (result.dequantize() - expected).abs().max() < 2.1 * max(result.q_scale(), 0.03)
    if method in OBSERVED:
        assert_same_bits(result.qparams.scale, own.scale)


def test_parameters_are_the_observers():
    module = quantized.FloatFunctional()
    module.activation_post_process = FakeQuantize(quant_min=0, quant_max=15)
    module.add(X, Y)
    own = quantized.QFunctional.from_float(module)
    assert own.form == AffineInteger(0, 15)
    arguments = quantized_arguments((X, Y))
    assert own.add(*arguments).equal(functional.add(*arguments, own.output, own.form))


def test_stubs():
    """Quantize takes what an observed stub saw; DeQuantize gives the numbers."""
    stub = torch.nn.Identity()
    stub.activation_post_process = default_observer()
    stub.activation_post_process(X)
    own = quantized.Quantize.from_float(stub)
    scale, zero_point = stub.activation_post_process.calculate_qparams()
    assert own(X).equal(quantize_per_tensor(X, scale, zero_point, torch.quint8))
    assert own(X.bfloat16()).dtype is torch.quint8
    assert_same_bits(quantized.DeQuantize.from_float(stub)(own(X)), own(X).dequantize())
    other = quantized.Quantize(1.0, 0)
    other.load_state_dict(own.state_dict())
    other.load_state_dict({name: value.reshape(1) for name, value in own.state_dict().items()})  # torch's shapes
    assert other(X).equal(own(X))


WRONG = {
    "QFunctional: operand 1 is a Tensor; allowed is a QTensor": lambda: quantized.QFunctional().add(
        *quantized_arguments((X,)), Y
    ),
    "operand 0 is a Tensor": lambda: quantized.QFunctional().cat([X]),
    "FloatFunctional has no forward": lambda: quantized.FloatFunctional()(X),
    "QFunctional has no forward": lambda: quantized.QFunctional()(X),
    "FloatFunctional has as activation_post_process Identity": lambda: quantized.QFunctional.from_float(
        quantized.FloatFunctional()
    ),
    "DeQuantize: x is a Tensor; allowed is a QTensor": lambda: quantized.DeQuantize()(X),
    "Quantize: x is a QTensor; allowed is a tensor of floats": lambda: quantized.Quantize(1.0, 0)(
        *quantized_arguments((X,))
    ),
    "number=nan; allowed are finite": lambda: quantized.QFunctional().add_scalar(
        *quantized_arguments((X,)), float("nan")
    ),
    "number='2' is a str": lambda: quantized.QFunctional().mul_scalar(*quantized_arguments((X,)), "2"),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        WRONG[message]()
