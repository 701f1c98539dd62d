"""`Quantizer` against its definition in NumPy, and under all that PyTorch does with modules."""

import copy
import io
import pickle
import threading

import jax
import numpy as np
import pytest
import torch
from support import assert_same_bits, to_torch
from torch.utils.checkpoint import checkpoint

import qcore
import qtorch
from benchmarks.inputs import MODES, hard_inputs, random_bits
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint
from qtorch.quant import Quantizer, quantizer

F = FloatingPoint(5, 2)
FIXED = FixedPoint(4, 2)
KEY = 0x9ABC_DEF0
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def double(grad):
    return grad * 2


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


def value_and_gradient(q, x, grad, key=None):
    x = x.clone().requires_grad_()
    y = q(x, key=key)
    y.backward(grad)
    return y.detach(), x.grad


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
    assert_same_bits(result[1], qtorch.quantize(grad, F, key=qcore.fold_in(key, 1)))


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


def loss_of(q, grad):
    return lambda x, key=KEY: (q(x, key=key) * grad).sum()


def test_functorch():
    x, grad = 2 * torch.randn(3, 20), torch.randn(20)
    q = Quantizer(FIXED, F, clamping_grad_zero=True, backward_hooks=[double])
    loss = loss_of(q, grad)
    keys = torch.tensor([[0, 1], [0, 2], [0, 3]])
    each = [torch.stack(rows) for rows in zip(*(value_and_gradient(q, row, grad, KEY) for row in x), strict=True)]
    assert_same_bits(torch.func.vmap(lambda row: q(row, key=KEY))(x), each[0])
    assert_same_bits(torch.func.vmap(torch.func.grad(loss))(x), each[1])
    assert_same_bits(torch.func.grad(lambda x: torch.func.vmap(loss)(x).sum())(x), each[1])
    by_key = torch.stack([value_and_gradient(q, row, grad, key)[1] for row, key in zip(x, keys, strict=True)])
    assert_same_bits(torch.func.vmap(torch.func.grad(loss))(x, keys), by_key)
    assert torch.func.vmap(q)(x).shape == x.shape  # draws one key for all
    second = torch.func.grad(lambda v: torch.func.grad(lambda u: (Quantizer(F, F)(u, key=KEY) ** 3).sum())(v).sum())
    assert second(torch.tensor([0.5])).item() == 3
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Quantizer(F, None, "nearest"))
    weights = dict(model.named_parameters())
    called = torch.func.functional_call(model, weights, torch.ones(2, 4))
    assert_same_bits(called, model(torch.ones(2, 4)))


CASES = {
    "nearest": Quantizer(F, F, "nearest", "nearest"),
    "backward only": Quantizer(None, F),
    "masked": Quantizer(FIXED, F, clamping_grad_zero=True, backward_hooks=[double]),
}


@pytest.mark.parametrize(("name", "dynamic"), [("nearest", False), ("backward only", True), ("masked", True)])
def test_compiled_programs_have_the_same_bits(name, dynamic):
    q = CASES[name]
    torch._dynamo.reset()
    compiled = torch.compile(q, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    x, grad = 2 * torch.randn(41), torch.randn(41)
    for key in (torch.tensor([0, KEY]), None):
        results = []
        for program in (q, compiled):
            torch.manual_seed(1)
            results.append((*value_and_gradient(program, x, grad, key), torch.rand(1)))
        for eager, traced in zip(*results, strict=True):
            assert_same_bits(traced, eager, name)
    results = []
    for program in (q, compiled):
        torch.manual_seed(1)
        results.append((program(x), torch.rand(1)))
    for eager, traced in zip(*results, strict=True):
        assert_same_bits(traced, eager, f"{name} without gradients")


def test_compiled_programs_draw_a_key_for_each_quantizer_in_order():
    """Also where only gradients need it, and with gradients at all: torch's partitioner moves and merges operations."""
    quantizers = [Quantizer(F, F), Quantizer(F, F, "nearest"), Quantizer(None, F), Quantizer(F, None)]

    def program(x):
        return [q(x) for q in quantizers], qtorch.quantize(x, F)

    torch._dynamo.reset()
    results = []
    for run in (program, torch.compile(program, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(1)
        x = torch.linspace(-2, 2, 50, requires_grad=True)
        (*ys, _), last = run(x)
        sum((i + 0.3) * y for i, y in enumerate(ys)).sum().backward()
        results.append([*ys, last, x.grad, torch.rand(1)])
    for eager, traced in zip(*results, strict=True):
        assert_same_bits(traced, eager)
    assert bool((results[1][0] != results[1][-3]).any())


def test_inductor():
    """Which would draw other random numbers than eager programs do."""
    quantizer = Quantizer(FIXED, F, "nearest", clamping_grad_zero=True, backward_hooks=[double])

    def program(x):
        return quantizer(x * 2) * 1

    torch._dynamo.reset()
    x, results = 2 * torch.randn(30), []
    for run in (program, torch.compile(program, fullgraph=True)):
        torch.manual_seed(1)
        inputs = x.clone().requires_grad_()
        y = run(inputs)
        y.backward(x)
        results.append((y, inputs.grad, torch.rand(1)))
    for eager, traced in zip(*results, strict=True):
        assert_same_bits(traced, eager)


def test_export():
    for q in CASES.values():
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), q)
        x = torch.randn(3, 4)
        exported = torch.export.export(model, (x,)).module()
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        assert_same_bits(exported(x), expected)


def test_autocast_keeps_the_dtype():
    q = Quantizer(F, F)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(20, dtype=dtype, requires_grad=True)
            y = q(x, key=KEY)
            assert y.dtype is dtype
            assert_same_bits(y, q(x.detach(), key=KEY))
            y.backward(torch.randn(20).to(dtype))
            assert x.grad.dtype is dtype
        assert torch.nn.Sequential(torch.nn.Linear(4, 4), q)(torch.randn(2, 4)).dtype is torch.bfloat16


class Block(torch.nn.Module):
    """Rounds before and after what a checkpoint would recompute; the dropout sees any key drawn too many."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.before, self.after = Quantizer(F, F, "nearest"), Quantizer(FIXED, F)
        self.dropout = torch.nn.Dropout()
        self.seen = []

    def forward(self, x):
        y = self.after(self.dropout(self.layer(self.before(x))))
        if not torch.compiler.is_compiling():
            self.seen.append(y.detach().clone())
        return y * y


@pytest.mark.parametrize("how", ["plain", "reentrant", "compiled"])
def test_activation_checkpointing(how):
    torch.manual_seed(0)
    block, x = Block(), torch.randn(5, 8)
    reference = copy.deepcopy(block)
    torch._dynamo.reset()
    program = {
        "plain": lambda x: checkpoint(block, x, use_reentrant=False),
        "reentrant": lambda x: checkpoint(block, x, use_reentrant=True),
        "compiled": torch.compile(
            lambda x: checkpoint(block, x, use_reentrant=False), fullgraph=True, backend="aot_eager"
        ),
    }[how]
    grads = []
    for run, parameters in ((program, block), (reference, reference)):
        torch.manual_seed(7)
        inputs = x.clone().requires_grad_()
        y = run(inputs)
        y.sum().backward()
        grads.append([y.detach(), inputs.grad, *(p.grad for p in parameters.parameters())])
    for ours, theirs in zip(*grads, strict=True):
        assert_same_bits(ours, theirs)
    if how != "compiled":
        first, second = block.seen
        assert_same_bits(second, first)


def test_copies_pickles_and_files(tmp_path):
    x, grad = torch.randn(9), torch.randn(9)
    q = Quantizer(FIXED, F, "stochastic", "nearest", True, [double])
    buffer = io.BytesIO()
    torch.save(q, buffer)
    buffer.seek(0)
    twins = [copy.deepcopy(q), copy.copy(q), pickle.loads(pickle.dumps(q)), torch.load(buffer, weights_only=False)]
    for twin in twins:
        assert twin.quantization == q.quantization
        for ours, theirs in zip(
            value_and_gradient(twin, x, grad, KEY), value_and_gradient(q, x, grad, KEY), strict=True
        ):
            assert_same_bits(ours, theirs)
    assert q.state_dict() == {}


def test_two_threads_give_the_bits_of_one_after_the_other():
    quantizers = [Quantizer(FIXED, F, clamping_grad_zero=True), Quantizer(F, BlockFloatingPoint(8))]
    x, grad = torch.randn(3000), torch.randn(3000)

    def work(q, results):
        for key in range(40):
            results.append(value_and_gradient(q, x, grad, key))

    alone, together = ([], []), ([], [])
    for q, results in zip(quantizers, alone, strict=True):
        work(q, results)
    threads = [threading.Thread(target=work, args=pair) for pair in zip(quantizers, together, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for theirs, ours in zip(alone, together, strict=True):
        for expected, result in zip(theirs, ours, strict=True):
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
