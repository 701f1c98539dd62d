"""`Quantizer` against its definition in NumPy: values, gradients and keys; wrong arguments raise."""

import jax
import numpy as np
import pytest
import torch
from support import NO_GPU, assert_same_bits, to_torch
from torch_quantizer_support import FIXED, KEY, F, double, value_and_gradient

import qcore
import qtorch
from benchmarks.support.inputs import MODES, hard_inputs, random_bits
from qcore import FixedPoint
from qtorch.quant import Quantizer, quantizer


def less_one(grad):
    return grad - 1


def definition(x, grad, key, number, mode, backward_number, backward_mode, hooks=(), mask=False):
    """What laws.md says, on NumPy arrays: the value and the gradient."""
    y = x if number is None else qcore.quantize(x, number, mode, key=key)
    for hook in hooks:
        grad = hook(grad)
    if backward_number is not None:
        folded = jax.random.key_data(jax.random.fold_in(jax.random.key(key), 1))
        grad = qcore.quantize(grad, backward_number, backward_mode, key=tuple(int(word) for word in folded))
    if mask:
        free = qcore.quantize(x, FixedPoint(number.wl, number.fl, clamp=False), mode, key=key)
        high = 2.0 ** (number.wl - number.fl - 1) - 2.0**-number.fl
        low = -high if number.symmetric else -(2.0 ** (number.wl - number.fl - 1))
        grad = np.where((free > high) | (free < low), np.float32(0), grad)
    return y, grad


def hard(number, count=20_000):
    (x,) = hard_inputs(number, count)
    return x


@pytest.mark.parametrize("mode", MODES)
def test_the_definition_on_hard_inputs(mode):
    x, other = hard(FIXED), MODES[MODES.index(mode) - 3]
    grad = np.random.default_rng(1).permutation(hard(F, x.size))
    for number in (FIXED, FixedPoint(4, 2, symmetric=True)):
        q = Quantizer(number, F, mode, other, clamping_grad_zero=True, backward_hooks=[double, less_one])
        result = value_and_gradient(q, to_torch(x), to_torch(grad), KEY)
        with np.errstate(all="ignore"):
            expected = definition(x, grad, KEY, number, mode, F, other, [double, less_one], mask=True)
        assert_same_bits(result[0], expected[0], f"{number} {mode}")
        assert_same_bits(result[1], expected[1], f"{number} {mode}, gradient {other}")


@pytest.mark.parametrize("key", [0, 2**32 - 1])
@pytest.mark.parametrize(("number", "backward"), [(None, F), (F, None), (None, None), (F, FIXED)])
def test_either_number_may_be_none(number, backward, key):
    x, grad = hard(F), random_bits(20_000, np.float32, np.random.default_rng(2))
    q = Quantizer(number, backward)
    result = value_and_gradient(q, to_torch(x), to_torch(grad), key)
    expected = definition(x, grad, key, number, "stochastic", backward, "stochastic")
    assert_same_bits(result[0], expected[0])
    assert_same_bits(result[1], expected[1])


def test_what_was_clamped_is_judged_after_rounding():
    x = torch.tensor([1.75 + 0.1, 1.75 + 0.125, 1.75 + 0.2, -2.1, -2.125, -2.2, torch.inf, -torch.inf, torch.nan, 0.3])
    q = Quantizer(FIXED, None, "nearest", clamping_grad_zero=True)
    _, grad = value_and_gradient(q, x, torch.ones(10))
    assert grad.tolist() == [1, 0, 0, 1, 1, 0, 0, 0, 1, 1]  # both ties go to even: 2.0, beyond, and -2.0
    unsigned = Quantizer(FixedPoint(4, 2, signed=False), None, "nearest", clamping_grad_zero=True)
    _, grad = value_and_gradient(unsigned, torch.tensor([-0.1, -0.2, 3.8, 3.9]), torch.ones(4))
    assert grad.tolist() == [1, 0, 1, 0]
    for number in (FixedPoint(4, 2, clamp=False), FixedPoint(4, 2, wrap=True), None):
        _, grad = value_and_gradient(Quantizer(number, clamping_grad_zero=True), x[:7], torch.ones(7), KEY)
        assert grad.tolist() == [1] * 7
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        y, grad = value_and_gradient(q, x.to(dtype), torch.ones(10, dtype=dtype))
        assert (y.dtype, grad.dtype) == (dtype, dtype)
        assert grad.tolist() == [1, 0, 0, 1, 1, 0, 0, 0, 1, 1]


def test_hooks_run_with_and_without_a_backward_number():
    x, seen = torch.randn(5), []

    def keep(grad):
        seen.append(grad.clone())
        return grad * 3

    for number in (None, F):
        _, grad = value_and_gradient(Quantizer(None, number, backward_hooks=[keep, double]), x, torch.ones(5), KEY)
        assert grad.tolist() == [6] * 5
    assert [g.tolist() for g in seen] == [[1] * 5] * 2
    with pytest.raises(TypeError, match="backward_hooks returned a NoneType; allowed is a tensor"):
        value_and_gradient(Quantizer(backward_hooks=[lambda grad: None]), x, torch.ones(5))


def test_gradients_of_gradients_see_the_identity():
    x, grad = torch.randn(6, requires_grad=True), torch.randn(6, requires_grad=True)
    q = Quantizer(FIXED, F, clamping_grad_zero=True, backward_hooks=[double])
    y = q(x * 3, key=KEY)
    (first,) = torch.autograd.grad(y, x, grad, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), grad)
    inside = first.detach().ne(0)
    assert second.tolist() == (inside * 6).tolist()
    cube = torch.tensor([0.5], requires_grad=True)
    (slope,) = torch.autograd.grad(Quantizer(F, F, "nearest", "nearest")(cube) ** 3, cube, create_graph=True)
    assert slope.item() == 0.75
    (curve,) = torch.autograd.grad(slope, cube)
    assert curve.item() == 3


def test_gradients_that_are_not_contiguous():
    q = Quantizer(FIXED, F, clamping_grad_zero=True)
    x = torch.randn(6, 4)
    for grad in (
        torch.randn(1, 4).expand(6, 4),
        torch.randn(4, 6).T,
        torch.randn(6, 8)[:, ::2],
        torch.ones(()).expand(6, 4),
    ):
        expected = value_and_gradient(q, x, grad.contiguous(), KEY)
        assert_same_bits(value_and_gradient(q, x, grad, KEY)[1], expected[1])
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    y, grad = value_and_gradient(q, image, torch.randn(2, 3, 4, 5), KEY)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert_same_bits(y, q(image.contiguous(), key=KEY))


def test_a_result_can_be_changed_in_place():
    for number in (None, FIXED):
        for masks in (False, True):
            x = torch.ones(4, requires_grad=True)
            y = Quantizer(number, None, "nearest", clamping_grad_zero=masks)(x * 1)
            y /= 2
            y.sum().backward()
            assert x.eq(1).all()
            assert x.grad.eq(0.5).all()


def test_one_key_is_drawn_per_forward_where_something_is_stochastic():
    x = torch.randn(8)
    for settings, draws in [
        ((F, F), 1),
        ((F, None), 1),
        ((None, F), 1),
        ((F, F, "nearest", "stochastic"), 1),
        ((F, F, "stochastic", "nearest"), 1),
        ((F, F, "nearest", "nearest"), 0),
        ((), 0),
        ((None, F, "stochastic", "nearest"), 0),
    ]:
        q = Quantizer(*settings)
        for tensor in (x, x.clone().requires_grad_()):
            for key in (None, KEY):
                torch.manual_seed(5)
                y = q(tensor, key=key)
                if tensor.requires_grad:
                    y.backward(torch.randn(8, generator=torch.Generator().manual_seed(1)))
                after = torch.rand(3)
                torch.manual_seed(5)
                if draws and key is None:
                    drawn = torch.empty(2, dtype=torch.int32).random_()
                    assert_same_bits(y, q(x, key=drawn))
                assert_same_bits(torch.rand(3), after, f"{settings} {key}")


def test_the_drawn_key_is_that_of_both_ways():
    x, grad = torch.randn(50), torch.randn(50)
    torch.manual_seed(2)
    result = value_and_gradient(Quantizer(FIXED, F), x, grad)
    torch.manual_seed(2)
    key = tuple(torch.empty(2, dtype=torch.int32).random_().tolist())
    expected = value_and_gradient(Quantizer(FIXED, F), x, grad, key)
    assert_same_bits(result[0], expected[0])
    assert_same_bits(result[1], expected[1])
    assert_same_bits(result[1], qtorch.quantize(grad, F, "stochastic", key=qcore.fold_in(key, 1)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])])
def test_keys(device):
    x, grad = torch.randn(50), torch.randn(50)
    q = Quantizer(FIXED, F, clamping_grad_zero=True)
    expected = value_and_gradient(q, x, grad, KEY)
    keys = [(0, KEY), torch.tensor([0, KEY]), torch.tensor([0, KEY], dtype=torch.uint32), np.int64(KEY)]
    for key in [*keys, torch.tensor([0, KEY]).to(device)]:
        result = value_and_gradient(q, x.to(device), grad.to(device), key)
        assert_same_bits(result[0], expected[0])
        assert_same_bits(result[1], expected[1])


def test_text():
    assert quantizer is Quantizer
    assert repr(Quantizer()) == "Quantizer()"
    assert repr(Quantizer(FIXED, F, "nearest", clamping_grad_zero=True, backward_hooks=[double])) == (
        "Quantizer(forward_number=FixedPoint (wl=4, fl=2), forward_rounding=nearest, "
        "backward_number=FloatingPoint (exponent=5, mantissa=2), backward_rounding=stochastic, "
        "clamping_grad_zero=True, backward_hooks=[double])"
    )


def test_qpytorch_calls():
    x = torch.randn(7)
    by_position = quantizer(FIXED, F, "nearest", "nearest", True, [double])
    by_name = quantizer(
        forward_number=FIXED,
        backward_number=F,
        forward_rounding="nearest",
        backward_rounding="nearest",
        clamping_grad_zero=True,
        backward_hooks=iter([double]),
    )
    assert by_position.quantization == by_name.quantization
    assert_same_bits(by_position(x), qtorch.quantize(x, FIXED, "nearest"))
    assert quantizer("int4", "e5m2").quantization.forward_number == FixedPoint(4, 0)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("hooks", [[], [double]])
def test_gradients_without_random_words(mask, hooks):
    """Which are rounded at once where nothing else is done with them."""
    x, grad = hard(FIXED), np.random.default_rng(1).permutation(hard(F, hard(FIXED).size))
    q = Quantizer(FIXED, F, "nearest", "up", mask, hooks)
    result = value_and_gradient(q, to_torch(x), to_torch(grad))
    with np.errstate(all="ignore"):
        expected = definition(x, grad, KEY, FIXED, "nearest", F, "up", hooks, mask)
    assert_same_bits(result[0], expected[0])
    assert_same_bits(result[1], expected[1])


def test_gradients_that_no_kernel_may_read():
    """Its memory has the opposites of its elements."""
    grad = torch._neg_view(torch.randn(9))
    assert grad.is_contiguous()
    _, back = value_and_gradient(Quantizer(F, F, "nearest", "nearest"), torch.randn(9), grad)
    assert_same_bits(back, qtorch.quantize(grad.resolve_neg().clone(), F, "nearest"))


def test_numbers_that_do_not_fit_gradients_do_not_matter_without_any():
    """Nor does what can have no gradient, where nothing is done with values."""
    x = torch.randn(4, dtype=torch.half)
    q = Quantizer(F, FixedPoint(8, 26), "nearest", "nearest")
    assert_same_bits(q(x), qtorch.quantize(x, F, "nearest"))
    with pytest.raises(ValueError, match="26"):
        value_and_gradient(q, x, x)
    integers = torch.arange(3)
    assert torch.equal(Quantizer(None, F, "nearest", "nearest")(integers), integers)


def test_dtypes_and_numbers_may_change():
    x, grad = torch.randn(64), torch.randn(64)
    q = Quantizer(FIXED, F, "nearest", "nearest")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        y, back = value_and_gradient(q, x.to(dtype), grad.to(dtype), None)
        assert_same_bits(y, qtorch.quantize(x.to(dtype), FIXED, "nearest"))
        assert_same_bits(back, qtorch.quantize(grad.to(dtype), F, "nearest"))
    node = q(x.clone().requires_grad_()).grad_fn  # torch gives it gradients of x's dtype, others may not
    with torch.no_grad():
        assert_same_bits(node.apply(grad.double())[0], qtorch.quantize(grad.double(), F, "nearest"))
    q.quantization = Quantizer(F, FIXED, "toward_zero", "up").quantization
    y, back = value_and_gradient(q, x, grad, None)
    assert_same_bits(y, qtorch.quantize(x, F, "toward_zero"))
    assert_same_bits(back, qtorch.quantize(grad, FIXED, "up"))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Quantizer(8), TypeError, ["forward_number", "8", "Number"]),
        (lambda: Quantizer(None, "e9"), ValueError, ["backward_number", "e9", "int8"]),
        (lambda: Quantizer(F, F, "near"), ValueError, ["forward_rounding", "near", "nearest"]),
        (lambda: Quantizer(F, F, "nearest", 3), TypeError, ["backward_rounding", "3", "nearest"]),
        (lambda: Quantizer(F, clamping_grad_zero=True), ValueError, ["clamping_grad_zero", "FixedPoint and None"]),
        (lambda: Quantizer(FIXED, clamping_grad_zero=1), TypeError, ["clamping_grad_zero", "1", "True and False"]),
        (lambda: Quantizer(backward_hooks=3), TypeError, ["backward_hooks", "3", "list"]),
        (lambda: Quantizer(backward_hooks=[3]), TypeError, ["backward_hooks", "int", "functions"]),
        (lambda: Quantizer()([1.0]), TypeError, ["x", "list", "torch.Tensor"]),
        (lambda: Quantizer(F)(torch.ones(2, dtype=torch.int32)), TypeError, ["x", "int32", "float32"]),
        (lambda: Quantizer(F)(torch.ones(2), key=-1), ValueError, ["key", "-1", "int from 0"]),
        (lambda: Quantizer()(torch.ones(2), key="k"), TypeError, ["key", "'k'", "int from 0"]),
        (lambda: Quantizer(F, F, "nearest")(torch.ones(2), key=-1), ValueError, ["key", "-1", "int from 0"]),
        (lambda: Quantizer(F, F, "nearest", "nearest")(torch.ones(2), key=-1), ValueError, ["key", "-1", "int from 0"]),
    ],
)
def test_wrong_arguments(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
