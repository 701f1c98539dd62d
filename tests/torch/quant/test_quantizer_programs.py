"""`Quantizer` under all that PyTorch does with modules: functorch, compilers, autocast, checkpoints, files, threads."""

import copy
import io
import pickle
import threading

import pytest
import torch
from support import assert_same_bits
from torch.utils.checkpoint import checkpoint
from torch_quantizer_support import FIXED, KEY, F, double, value_and_gradient

import qtorch
from qcore import BlockFloatingPoint
from qtorch.quant import Quantizer


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
    for randomness in ("same", "different"):  # without a key; "error" raises, as torch's random functions do
        assert torch.func.vmap(q, randomness=randomness)(x).shape == x.shape
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


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [("nearest", False), *(pytest.param(name, True, marks=pytest.mark.heavy) for name in ("backward only", "masked"))],
)
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
        return [q(x) for q in quantizers], qtorch.quantize(x, F, "stochastic")

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


@pytest.mark.heavy
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


@pytest.mark.parametrize("arguments", [("stochastic", "nearest", True, [double]), ("nearest", "nearest")])
def test_copies_pickles_and_files(arguments):
    x, grad = torch.randn(9), torch.randn(9)
    q = Quantizer(FIXED, F, *arguments)
    value_and_gradient(q, x, grad, KEY if "stochastic" in arguments else None)  # what it remembers is not copied
    buffer = io.BytesIO()
    torch.save(q, buffer)
    buffer.seek(0)
    twins = [copy.deepcopy(q), copy.copy(q), pickle.loads(pickle.dumps(q)), torch.load(buffer, weights_only=False)]
    for twin in twins:
        assert twin.quantization == q.quantization
        key = KEY if twin.quantization.stochastic else None
        for ours, theirs in zip(
            value_and_gradient(twin, x, grad, key), value_and_gradient(q, x, grad, key), strict=True
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
