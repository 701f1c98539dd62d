"""Forward-mode derivatives in PyTorch: tangents pass straight through rounding, bit for bit, and masks hold."""

import numpy as np
import pytest
import torch
from support import assert_same_bits, to_torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import qcore
import qtorch
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint
from qtorch import arithmetic, linalg, reproducible
from qtorch.engines import attention
from qtorch.quantization import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine

X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32) * 3
HARD = [0, -0.0, 1e-45, -1e-40, np.inf, -np.inf, np.nan, 3e38, 1]
T = np.concatenate([np.float32(HARD), np.random.default_rng(1).standard_normal(55).astype(np.float32)]).reshape(4, 16)
NUMBERS = [FloatingPoint(5, 2), FixedPoint(4, 2), BlockFloatingPoint(4, 0), "mxfp4", "nvfp4", "posit8"]
MODES = [("nearest", None), ("stochastic", 7)]
FIXED = FixedPoint(4, 2)
INSIDE = (np.round(X * 4) >= -8) & (np.round(X * 4) <= 7)  # where rounding to nearest does not clamp


def per_tensor(x):
    return fake_quantize_per_tensor_affine(x, 0.25, 0, -8, 7)


def per_channel(x):
    return fake_quantize_per_channel_affine(x, torch.full((16,), 0.25), torch.zeros(16, dtype=torch.int32), 1, -8, 7)


def by_func(f, x, t):
    return jvp(f, (x,), (t,))


def by_dual_numbers(f, x, t):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, t)))


def by_dual_numbers_without_gradients(f, x, t):
    with torch.no_grad():
        return by_dual_numbers(f, x, t)


def by_func_without_gradients(f, x, t):
    with torch.no_grad():
        return by_func(f, x, t)


PUSHES = [by_func, by_dual_numbers, by_dual_numbers_without_gradients, by_func_without_gradients]
each_push = pytest.mark.parametrize("push", PUSHES, ids=lambda push: push.__name__)


@each_push
@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize(("mode", "key"), MODES)
def test_tangents_pass_as_they_are(number, mode, key, push):
    y, tangent = push(lambda x: qtorch.quantize(x, number, mode, key=key), to_torch(X), to_torch(T))
    assert_same_bits(y, qcore.quantize(X, number, mode, key=key))
    assert_same_bits(tangent, T)


@each_push
def test_tangents_of_a_leaf_that_requires_gradients(push):
    x = to_torch(X).requires_grad_()
    y, tangent = push(lambda x: qtorch.quantize(x, "e5m2"), x, to_torch(T))
    assert_same_bits(y.detach(), qcore.quantize(X, "e5m2"))
    assert_same_bits(tangent, T)


def test_no_tangent_where_none_came_in():
    with forward_ad.dual_level():
        y = qtorch.quantize(to_torch(X), "e5m2")
        assert_same_bits(y, qcore.quantize(X, "e5m2"))
        assert forward_ad.unpack_dual(y).tangent is None


def test_results_in_place_leave_the_incoming_tangent():
    t = to_torch(T)
    for f in (lambda x: qtorch.quantize(x, "e5m2"), qtorch.quantizer("e5m2", None, "nearest"), per_tensor):
        with forward_ad.dual_level():
            f(forward_ad.make_dual(to_torch(X), t)).mul_(2)
        assert_same_bits(t, T)


@pytest.mark.parametrize("rounded", [lambda x: qtorch.quantize(x, "e5m2"), qtorch.quantizer("e5m2", None, "nearest")])
def test_jacobians_and_hessians(rounded):
    x, one = to_torch(X[0]), torch.eye(16)
    for jacobian in (jacfwd, jacrev):
        assert_same_bits(jacobian(rounded)(x), one)
    for second in (hessian, lambda g: jacrev(jacrev(g)), lambda g: jacfwd(jacfwd(g)), lambda g: jacrev(jacfwd(g))):
        assert_same_bits(second(lambda x: (rounded(x) ** 2).sum())(x), 2 * one)


def test_vmap_around_and_inside():
    x, t = to_torch(X), to_torch(T)
    expected = np.stack([qcore.quantize(row, "e5m2", "stochastic", key=7) for row in X])

    def f(x):
        return qtorch.quantize(x, "e5m2", "stochastic", key=7)

    for y, tangent in (vmap(lambda x, t: jvp(f, (x,), (t,)))(x, t), jvp(vmap(f), (x,), (t,))):
        assert_same_bits(y, expected)
        assert_same_bits(tangent, T)


@pytest.mark.parametrize("transform", [lambda push: push, vmap], ids=["alone", "vmap"])
def test_quantizers_mask_tangents(transform):
    f = qtorch.quantizer(FIXED, None, "nearest", clamping_grad_zero=True)
    expected = np.where(INSIDE, T, np.float32(0))
    assert INSIDE.any()
    assert not INSIDE.all()
    y, tangent = transform(lambda x, t: jvp(f, (x,), (t,)))(to_torch(X), to_torch(T))
    assert_same_bits(y, qcore.quantize(X, FIXED))
    assert_same_bits(tangent, expected)
    (pulled,) = transform(lambda x, t: vjp(f, x)[1](t))(to_torch(X), to_torch(T))
    assert_same_bits(pulled, expected)
    for push in PUSHES:
        y, tangent = push(f, to_torch(X), to_torch(T))
        assert_same_bits(y, qcore.quantize(X, FIXED))
        assert_same_bits(tangent, expected)


@each_push
def test_stochastic_quantizers(push):
    y, tangent = push(lambda x: qtorch.quantizer("e5m2")(x, key=7), to_torch(X), to_torch(T))
    assert_same_bits(y, qcore.quantize(X, "e5m2", "stochastic", key=7))
    assert_same_bits(tangent, T)


@each_push
@pytest.mark.parametrize("options", [{"backward_number": "e5m2"}, {"backward_hooks": [lambda grad: grad]}])
def test_quantizers_that_change_gradients_have_no_tangents(options, push):
    f = qtorch.quantizer("e5m2", forward_rounding="nearest", **options)
    with pytest.raises(NotImplementedError, match="backward_number or backward_hooks has no forward-mode derivative"):
        push(f, to_torch(X), to_torch(T))


def test_gradients_that_are_rounded_have_tangents():
    """Rounding is the identity for their derivatives."""
    f = qtorch.quantizer(None, "e5m2", backward_rounding="nearest")
    _, pull = vjp(f, to_torch(X))
    pulled, tangent = jvp(lambda g: pull(g)[0], (to_torch(X),), (to_torch(T),))
    assert_same_bits(pulled, qcore.quantize(X, "e5m2"))
    assert_same_bits(tangent, T)


@each_push
@pytest.mark.parametrize("f", [per_tensor, per_channel])
def test_fake_quantization(f, push):
    expected = np.where(INSIDE, T, np.float32(0))
    x = to_torch(X).requires_grad_()
    f(x).backward(to_torch(T))
    assert_same_bits(x.grad, expected)
    y, tangent = push(f, to_torch(X), to_torch(T))
    assert_same_bits(y, f(to_torch(X)))
    assert_same_bits(tangent, expected)
    by_rows = vmap(lambda x, t: jvp(per_tensor, (x,), (t,)))
    assert_same_bits(by_rows(to_torch(X), to_torch(T))[1], expected)


@pytest.mark.filterwarnings("ignore:Dynamo")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: qtorch.quantize(x, "e5m2"),
        pytest.param(qtorch.quantizer(FIXED, None, "nearest"), marks=pytest.mark.heavy),
        per_tensor,
    ],
)
def test_compiled_programs_leave_tangents_to_eager_ones(f):
    """Where they would trace integers, whose tangents are 0."""

    def push(x, t):
        return jvp(f, (x,), (t,))

    x, t = to_torch(X), to_torch(T)
    try:
        assert_same_bits(torch.compile(push, backend="eager")(x, t)[1], push(x, t)[1])
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="in eager programs only"):
            torch.compile(push, backend="eager", fullgraph=True)(x, t)
    finally:
        torch._dynamo.reset()


PRODUCT = torch.from_numpy(X[:, :4].copy())
BY_FUNC = {
    "quantize": lambda x: (qtorch.quantize(x, "e5m2") * x).sum(),
    "fake_quantize": lambda x: per_tensor(x).sum(),
    "product": lambda x: linalg.matmul(PRODUCT, x, operands=("e4m3fn", "e4m3fn")).sum(),
    "attention": lambda x: attention(x[None, None], x[None, None], x[None, None], "hf.eager").sum(),
    "operation": lambda x: arithmetic.add(x, x, "e5m2").sum(),
    "reproducible": lambda x: reproducible.sum(reproducible.relu(x)),
}


@pytest.mark.filterwarnings("ignore:Dynamo", "ignore:The .grad attribute")
@pytest.mark.parametrize("name", BY_FUNC)
def test_compiled_programs_leave_gradients_of_functions_to_eager_ones(name):
    """Dynamo traced gradients of 0: tensors under torch.func do not require gradients there."""
    f, x, y = BY_FUNC[name], to_torch(X), to_torch(X).requires_grad_()
    compiled, whole = (torch.compile(lambda x: grad(f)(x), fullgraph=one) for one in (False, True))
    try:
        f(y).backward()
        if name == "reproducible":
            for g in compiled, grad(f):
                with pytest.raises(NotImplementedError, match=r"have no derivatives by torch\.func"):
                    g(x)
        else:
            assert_same_bits(compiled(x), y.grad)
            assert_same_bits(grad(torch.compile(f, backend="eager"))(x), y.grad)
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="in eager programs only"):
            whole(x)
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize("push", [by_func, by_dual_numbers])
def test_functions_with_defined_bits_refuse_tangents(push):
    """Their sums would drop them."""
    for f in reproducible.sum, reproducible.relu, lambda x: reproducible.matmul(PRODUCT, x):
        with pytest.raises(NotImplementedError, match="no forward-mode ones"):
            push(f, to_torch(X), to_torch(T))
    with forward_ad.dual_level():
        assert_same_bits(reproducible.sum(to_torch(X)), to_torch(X).double().sum().float())
