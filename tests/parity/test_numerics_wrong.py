"""What defined float32 functions refuse, in the same words in all packages, and what they make of other indices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import some
from support import assert_all_same_bits, assert_same_bits

import qcore.insight
import qcore.reproducible
import qjax
import qtorch

ROOMS = {
    "qcore": (qcore.reproducible, qcore.insight, np.asarray),
    "qtorch": (qtorch.reproducible, qtorch.insight, torch.from_numpy),
    "qjax": (qjax.reproducible, qjax.insight, jnp.asarray),
}
X, ROW, ONE, EMPTY = (
    np.ones((2, 3), np.float32),
    np.ones(3, np.float32),
    np.float32(1)[...],
    np.ones((2, 0), np.float32),
)
TARGET, NO_ROW = np.int32([0, 2]), np.ones((1, 3), np.float32)
ADAM = X, X, X, X, ONE, ONE
PARTS = "qtorch", "qjax"  # where narrow, attention and convolutions are

# (message, function, arguments, named arguments)
VALUES = [
    ("x has shape (2, 0); allowed is at least one number along axis 1", "cross_entropy", (EMPTY, TARGET)),
    ("x has shape (2, 0); allowed is at least one number along axis 1", "softmax", (EMPTY,)),
    ("x has shape (2, 0); allowed is at least one number along axis 1", "log_softmax", (EMPTY,)),
    ("x has shape (2, 0); allowed is at least one number along axis 1", "max", (EMPTY, -1)),
    ("x has shape (2, 0); allowed is at least one number along axis 1", "logsumexp", (EMPTY,)),
    ("weight has shape (0, 3); allowed is (rows, width), at least one row", "embedding", (TARGET, X[:0])),
    ("axis=5; allowed is an int from -2 to 1", "softmax", (X, 5)),
    ("axis=-3; allowed is an int from -2 to 1", "cross_entropy", (X, TARGET, -3)),
    ("axis=5; allowed is an int from -2 to 1", "chunk", (X, 1, 5)),
    ("gradient has shape (1, 3); allowed is (2, 3)", "sgd_step", (X, NO_ROW, None, ONE)),
    ("gradient has shape (2, 3); allowed is ()", "sgd_step", (ONE, X, None, ONE)),
    ("velocity has shape (3,); allowed is (2, 3)", "sgd_step", (X, X, ROW, ONE, 0.9)),
    ("rate has shape (3,); allowed is ()", "sgd_step", (X, X, None, ROW)),
    ("momentum=-0.9; allowed is a number >= 0", "sgd_step", (X, X, X, ONE, -0.9)),
    ("weight_decay=-1; allowed is a number >= 0", "sgd_step", (X, X, None, ONE, 0.0, False, -1)),
    ("nesterov=True with momentum=0.0; allowed is a momentum above 0", "sgd_step", (X, X, None, ONE, 0.0, True)),
    ("velocity is None with momentum=0.9; allowed is one with momentum above 0", "sgd_step", (X, X, None, ONE, 0.9)),
    ("velocity is given with momentum=0.0; allowed is one with momentum above 0", "sgd_step", (X, X, X, ONE)),
    ("gradient has shape (1, 3); allowed is (2, 3)", "adam_step", (X, NO_ROW, *ADAM[2:])),
    ("first has shape (1, 3); allowed is (2, 3)", "adam_step", (X, X, NO_ROW, *ADAM[3:])),
    ("second has shape (1, 3); allowed is (2, 3)", "adam_step", (X, X, X, NO_ROW, *ADAM[4:])),
    ("step has shape (3,); allowed is ()", "adam_step", (*ADAM[:4], ROW, ONE)),
    ("rate has shape (3,); allowed is ()", "adam_step", (*ADAM[:5], ROW)),
    ("betas=0.9; allowed are two numbers from 0 to below 1", "adam_step", (*ADAM, 0.9)),
    ("betas[1]=1; allowed is a number from 0 to below 1", "adam_step", (*ADAM, (0.9, 1))),
    ("betas[0]=nan; allowed is a number from 0 to below 1", "adam_step", (*ADAM, (np.nan, 0.9))),
    ("eps=-1.0; allowed is a number >= 0", "adam_step", (*ADAM, (0.9, 0.9), -1.0)),
    ("weight_decay=nan; allowed is a number >= 0", "adam_step", (*ADAM, (0.9, 0.9), 0.0, np.nan)),
    ("eps=-1.0; allowed is a number >= 0", "layer_norm", (X, None, None, -1, -1.0)),
    ("eps=nan; allowed is a number >= 0", "rms_norm", (X, None, -1, np.nan)),
    ("eps=-1.0; allowed is a number >= 0", "batch_norm", (X, None, None, -1.0)),
    ("eps=-1.0; allowed is a number >= 0", "normalize", (X, ROW, ROW, None, None, -1.0)),
    ("momentum=-0.1; allowed is a number from 0 to 1", "moving_average", (X, X, -0.1)),
    ("momentum=1.5; allowed is a number from 0 to 1", "moving_average", (X, X, 1.5)),
    ("old has shape (2, 3), new (2,); allowed are shapes that broadcast", "moving_average", (X, X[:, 0], 0.5)),
    ("max_norm=0.0; allowed is a number > 0", "clip_by_norm", ([X], 0.0)),
    ("max_norm=nan; allowed is a number > 0", "clip_by_norm", ([X], np.nan)),
    ("gradients has no array; allowed is at least one", "clip_by_norm", ([], 1.0)),
    ("correction=-1; allowed is an int >= 0", "var", (X, None, False, -1)),
    ("step has shape (3,); allowed is ()", "rate", (qcore.reproducible.Cosine(1.0, 10), ROW)),
    *(
        ("a has shape (2, 3), b (2,); allowed are shapes that broadcast", name, (X, X[:, 0]))
        for name in ("add", "subtract", "multiply", "divide", "pow")
    ),
]
TYPES = [
    ("axis='a' is a str; allowed is an int from -2 to 1", "softmax", (X, "a")),
    ("axis=(0,) is a tuple; allowed is an int from -2 to 1", "softmax", (X, (0,))),
    ("axis=True; allowed are ints, tuples of ints and None", "sum", (X, True)),
    ("p is a NoneType; allowed is ", "sgd_step", (None, X, None, ONE)),
    ("gradient is a NoneType; allowed is ", "sgd_step", (X, None, None, ONE)),
    ("momentum='a' is a str; allowed is a number >= 0", "sgd_step", (X, X, X, ONE, "a")),
    ("weight_decay=None is a NoneType; allowed is a number >= 0", "sgd_step", (X, X, None, ONE, 0.0, False, None)),
    ("betas[0]='a' is a str; allowed is a number from 0 to below 1", "adam_step", (*ADAM, ("a", 0.9))),
    ("eps='a' is a str; allowed is a number >= 0", "layer_norm", (X, None, None, -1, "a")),
    ("eps=True is a bool; allowed is a number >= 0", "batch_norm", (X, None, None, True)),
    ("mean is a NoneType; allowed is ", "normalize", (X, None, ROW)),
    ("variance is a NoneType; allowed is ", "normalize", (X, ROW, None)),
    ("momentum=[0.1] is a list; allowed is a number from 0 to 1", "moving_average", (X, X, [0.1])),
    ("max_norm='a' is a str; allowed is a number > 0", "clip_by_norm", ([X], "a")),
    ("gradients is a float; allowed is a sequence of float32 arrays", "clip_by_norm", (1.0, 1.0)),
    ("correction=1.5 is a float; allowed is an int >= 0", "var", (X, None, False, 1.5)),
    ("keepdims='no' is a str; allowed are True and False", "sum", (X, 0, "no")),
    ("keepdims=1 is a int; allowed are True and False", "max", (X, 0, 1)),
]
IMAGES = np.ones((1, 1, 3, 3), np.float32)
OF_TWO = [
    (ValueError, "axis=5; allowed is an int from -2 to 1", "narrow", (X, 5, 0, 1)),
    (TypeError, "x is a list; allowed is ", "conv2d", ([1.0], IMAGES)),
    (TypeError, "weight is a list; allowed is ", "conv2d", (IMAGES, [1.0])),
    (TypeError, "query is a list; allowed is ", "scaled_dot_product_attention", ([1.0], X, X)),
    (TypeError, "key is a NoneType; allowed is ", "scaled_dot_product_attention", (X, None, X)),
    (TypeError, "value is a", "scaled_dot_product_attention", (X, X, np.ones((2, 3), np.int32))),
]
WRONG = [(error, *one) for error, cases in ((ValueError, VALUES), (TypeError, TYPES)) for one in cases]


def _call(package, function, arguments):
    room, _, array = ROOMS[package]
    given = [
        [array(y) for y in x] if isinstance(x, list) and x and isinstance(x[0], np.ndarray) else x for x in arguments
    ]
    return getattr(room, function)(*[array(x) if isinstance(x, np.ndarray) else x for x in given])


@pytest.mark.parametrize("package", ROOMS)
@pytest.mark.parametrize(("error", "message", "function", "arguments"), WRONG)
def test_wrong_arguments(package, error, message, function, arguments):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        _call(package, function, arguments)


@pytest.mark.parametrize("package", PARTS)
@pytest.mark.parametrize(("error", "message", "function", "arguments"), OF_TWO)
def test_wrong_arguments_of_what_numpy_has_not(package, error, message, function, arguments):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        _call(package, function, arguments)


@pytest.mark.parametrize("case", [("add", (X, X[:, 0])), ("sgd_step", (X, NO_ROW, None, ONE)), ("softmax", (EMPTY,))])
def test_traced_arrays_are_refused_as_well(case):
    function, arguments = case
    with pytest.raises(ValueError, match="allowed"):
        jax.jit(lambda x: _call("qjax", function, (x, *arguments[1:])))(arguments[0])
    with pytest.raises(Exception, match="allowed"):
        torch.compile(lambda x: _call("qtorch", function, (x, *arguments[1:])))(torch.from_numpy(arguments[0]))


SCHEDULES = [
    (ValueError, "rate=-1.0; allowed is a number >= 0", "Cosine", (-1.0, 10)),
    (TypeError, "rate='a' is a str; allowed is a number >= 0", "Cosine", ("a", 10)),
    (ValueError, "last=nan; allowed is a number >= 0", "Cosine", (1.0, 10, 2, np.nan)),
    (ValueError, "rate=nan; allowed is a number >= 0", "Milestones", (np.nan, (10,))),
    (ValueError, "factor=-0.1; allowed is a number >= 0", "Milestones", (1.0, (10,), -0.1)),
    (TypeError, "milestones=10 is a int; allowed is a tuple of ints", "Milestones", (1.0, 10)),
    (TypeError, "milestones[0]=1.5 is a float; allowed is an int >= 0", "Milestones", (1.0, (1.5,))),
    (ValueError, "milestones[1]=-1; allowed is an int >= 0", "Milestones", (1.0, (1, -1))),
    (ValueError, "milestones=(20, 10); allowed is an ascending order", "Milestones", (1.0, (20, 10))),
]


@pytest.mark.parametrize(("error", "message", "kind", "arguments"), SCHEDULES)
def test_wrong_schedules(error, message, kind, arguments):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        getattr(qcore.reproducible, kind)(*arguments)


def test_numbers_of_a_schedule_may_be_numpys():
    """A float64 number of NumPy would make the rate one, and a list has no hash for programs."""
    schedule = qcore.reproducible.Milestones(np.float64(1), [2, 4], np.float64(0.5))
    for package in ROOMS:
        assert_same_bits(_call(package, "rate", (schedule, np.float32(3)[...])), np.float32(0.5))


OPTIMIZERS = [
    (ValueError, "{rate}=-0.1; allowed is a number >= 0", "sgd", {"{rate}": -0.1}),
    (TypeError, "{rate}='a' is a str; allowed is a number >= 0", "sgd", {"{rate}": "a"}),
    (TypeError, "{rate}=None is a NoneType; allowed is a number >= 0", "adamw", {"{rate}": None}),
    (ValueError, "momentum=nan; allowed is a number >= 0", "sgd", {"momentum": np.nan}),
    (TypeError, "nesterov='no' is a str; allowed are True and False", "sgd", {"momentum": 0.9, "nesterov": "no"}),
    (ValueError, "nesterov=True with momentum=0.0; allowed is a momentum above 0", "sgd", {"nesterov": True}),
    (ValueError, "weight_decay=-1.0; allowed is a number >= 0", "sgd", {"weight_decay": -1.0}),
    (ValueError, "betas=(0.9,); allowed are two numbers from 0 to below 1", "adam", {"betas": (0.9,)}),
    (ValueError, "betas[0]=1.0; allowed is a number from 0 to below 1", "adamw", {"betas": (1.0, 0.9)}),
    (ValueError, "eps=-1.0; allowed is a number >= 0", "adam", {"eps": -1.0}),
    (TypeError, "weight_decay='a' is a str; allowed is a number >= 0", "adamw", {"weight_decay": "a"}),
]


@pytest.mark.parametrize(("error", "message", "kind", "options"), OPTIMIZERS)
def test_optimizers_refuse_when_they_are_made(error, message, kind, options):
    of_torch = getattr(qtorch.reproducible, {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[kind])
    parameters = [torch.nn.Parameter(torch.ones(2))]
    for name, make in (("lr", lambda **o: of_torch(parameters, **o)), ("rate", getattr(qjax.reproducible, kind))):
        given = {key.format(rate=name): value for key, value in options.items()}
        with pytest.raises(error, match=f"^{re.escape(message.format(rate=name))}"):
            make(**given)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("shape", [(1,), (2, 3)])
def test_steps_keep_the_shapes_of_parameters(kind, shape):
    optimizer, p = getattr(qjax.reproducible, kind)(), jnp.ones(3)
    for step in (optimizer.step, jax.jit(optimizer.step)):
        with pytest.raises(ValueError, match=re.escape(f"gradient has shape {shape}; allowed is (3,)")):
            step(p, jnp.ones(shape), optimizer.init(p))
        with pytest.raises(ValueError, match=re.escape(f"rate has shape {shape}; allowed is ()")):
            step(p, p, optimizer.init(p), jnp.ones(shape))


def test_rates_may_be_traced():
    p = jnp.ones(2)
    made = jax.jit(lambda rate: qjax.reproducible.sgd(rate).step(p, p, None)[0])(0.25)
    assert_same_bits(made, np.float32([0.75, 0.75]))
    for lr in (torch.tensor(0.25), torch.tensor([0.25]), np.float32(0.25)):
        q = torch.nn.Parameter(torch.ones(2))
        q.grad = torch.ones(2)
        qtorch.reproducible.SGD([q], lr).step()
        assert_same_bits(q, np.float32([0.75, 0.75]))


def test_wrong_states_and_parameters():
    p = jnp.ones(2)
    with pytest.raises(TypeError, match="state is a NoneType; allowed is an AdamState"):
        qjax.reproducible.adam().step(p, p, None)
    with pytest.raises(TypeError, match="rate='a' is a str; allowed is a number >= 0"):
        qjax.reproducible.sgd().step(p, p, None, "a")
    clip = qtorch.reproducible.clip_grad_norm_
    with pytest.raises(TypeError, match=r"parameters is a float; allowed is an iterable of tensors"):
        clip(1.0, 1.0)
    with pytest.raises(TypeError, match=r"parameters\[0\] is a float; allowed is a torch.Tensor"):
        clip([1.0], 1.0)


@pytest.mark.parametrize("package", ROOMS)
def test_statistics_name_their_arguments(package):
    _, insight, array = ROOMS[package]
    x = array(ROW)
    for name, pair in (("x", ([1.0], x)), ("y", (x, [1.0]))):
        with pytest.raises(TypeError, match=f"^{name} is a list; allowed is "):
            insight.statistics_between(*pair, "e4m3fn")
    with pytest.raises(ValueError, match=r"^y is .*int32.* allowed is x's"):
        insight.statistics_between(x, array(np.int32([1, 2, 3])), "e4m3fn")


def _of_embedding(package, indices, compiled):
    """Rows, and the gradient of the table."""
    table = np.arange(6, dtype=np.float32).reshape(3, 2) + 1
    gradient = np.arange(2 * len(indices), dtype=np.float32).reshape(-1, 2) + 1
    if package == "qtorch":
        weight = torch.from_numpy(table).requires_grad_()
        function = qtorch.reproducible.embedding
        y = (torch.compile(function) if compiled else function)(torch.from_numpy(indices), weight)
        return y, torch.autograd.grad(y, weight, torch.from_numpy(gradient))[0]
    function = jax.jit(qjax.reproducible.embedding) if compiled else qjax.reproducible.embedding
    y, pullback = jax.vjp(lambda w: function(jnp.asarray(indices), w), jnp.asarray(table))
    return y, pullback(jnp.asarray(gradient))[0]


@some(*((i, 0) for i in range(4)), dtype=[np.int8, np.uint8, np.int32, np.int64], compiled=[False, True])
def test_what_is_no_row_is_nan_and_has_no_gradient(dtype, compiled):
    """Neither the last row, nor one from the end, nor a mask, which torch makes of uint8."""
    indices = np.array([1, 3, 0, 200 if dtype is np.uint8 else -1, 1], dtype)
    nan = [np.nan] * 2
    rows, gradient = np.float32([[3, 4], nan, [1, 2], nan, [3, 4]]), np.float32([[5, 6], [10, 12], [0, 0]])
    assert_same_bits(_call("qcore", "embedding", (indices, np.float32([[1, 2], [3, 4], [5, 6]]))), rows)
    for package in PARTS:
        assert_all_same_bits(_of_embedding(package, indices, compiled), [rows, gradient])


def test_targets_of_fewer_bits_than_classes_have():
    """int8 has no 200, which says nothing of a class that it has."""
    x, target = np.zeros((1, 200), np.float32), np.int8([1])
    xs = torch.from_numpy(x).requires_grad_()
    ours = torch.autograd.grad(qtorch.reproducible.cross_entropy(xs, torch.from_numpy(target)), xs)[0]
    theirs = jax.grad(lambda x: qjax.reproducible.cross_entropy(x, jnp.asarray(target)))(jnp.asarray(x))
    assert_same_bits(ours, theirs)
    assert ours[0, 1] == pytest.approx(-1 + 1 / 200)


@pytest.mark.parametrize("dtype", [np.int8, pytest.param(np.int32, marks=pytest.mark.heavy), np.int64])
def test_targets_that_are_no_class_have_a_nan_loss(dtype):
    """Off-by-one labels are never ignored; -100 is, in the loss and in its gradient."""
    x = np.float32([[0, 0], [1, 3], [2, 2], [5, 4]])
    for wrong in (2, -1, -99, 100):
        target = np.array([1, wrong, -100, 0], dtype)
        assert np.isnan(_call("qcore", "cross_entropy", (x, target)))
        for package in PARTS:
            loss, gradient = _of_cross_entropy(package, x, target)
            assert np.isnan(loss)
            assert (np.isnan(gradient).all(1) == [False, True, False, False]).all()
            assert np.allclose(gradient[0], np.float32([1, -1]) / 6)  # three targets count
            assert not gradient[2].any()
        assert np.isnan(qjax.insight.cross_entropy(jnp.asarray(x), jnp.asarray(target)))
    target = np.array([1, 0, -100, 0], dtype)
    expected = np.mean([np.log(2), 2 + np.log1p(np.exp(-2)), np.log1p(np.exp(-1))])
    assert np.allclose(_call("qcore", "cross_entropy", (x, target)), expected)
    assert np.allclose(qjax.insight.cross_entropy(jnp.asarray(x), jnp.asarray(target)), expected)
    for package in PARTS:
        loss, gradient = _of_cross_entropy(package, x, target)
        assert np.allclose(loss, expected)
        assert not gradient[2].any()
        assert np.allclose(gradient[0], np.float32([1, -1]) / 6)


def _of_cross_entropy(package, x, target):
    """The loss and its gradient."""
    if package == "qjax":
        function = jax.value_and_grad(lambda x: qjax.reproducible.cross_entropy(x, jnp.asarray(target)))
        return tuple(map(np.asarray, function(jnp.asarray(x))))
    x = torch.from_numpy(x).requires_grad_()
    loss = qtorch.reproducible.cross_entropy(x, torch.from_numpy(target))
    return loss.detach().numpy(), torch.autograd.grad(loss, x)[0].numpy()


def test_a_correction_above_the_count_divides_by_zero():
    for package in ROOMS:
        assert_same_bits(_call(package, "var", (np.float32([1, 2]), None, False, 3)), np.float32(np.inf))
        assert_same_bits(_call(package, "var", (EMPTY, 1)), np.float32([np.nan, np.nan]))
