"""Laws in recorded kernels: the bits of the laws operation by operation, for all layouts of tensors."""

import numpy as np
import pytest
import torch
from kernels_support import libraries
from numerics_support import CASES, by_numpy, by_torch, numbers
from support import assert_all_same_bits, assert_same_bits
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

import qcore.reproducible
from qcore import Accumulator, BlockScaled, Operand, Product, Scale
from qcore.linalg.geometry import FORWARD, GRAD_B
from qcore.reproducible import operations
from qcore.reproducible.differentiable import without_gradients
from qtorch import linalg, reproducible
from qtorch.linalg.native import product_steps
from qtorch.linalg.operator import observed_by
from qtorch.reproducible import functions, optimizers
from qtorch.reproducible.fused import plan
from qtorch.reproducible.fused.plan import replace

RNG = np.random.default_rng(27)
LAWS = ("gelu_tanh", "divide of special numbers", "var", "softmax", "cross_entropy", "batch_norm", "layer_norm")


@pytest.fixture
def by_operations(monkeypatch):
    """No kernels."""
    monkeypatch.setattr(functions, "plan_for", lambda *arguments: None)


@pytest.mark.parametrize("name", LAWS)
def test_laws_without_kernels(name, by_operations):
    function, arrays = next(case[1:] for case in CASES if case[0] == name)
    assert_all_same_bits(by_torch(function, arrays), by_numpy(function, arrays))


def test_without_a_compiler(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    function, arrays = next(case[1:] for case in CASES if case[0] == "softmax")
    with pytest.warns(RuntimeWarning, match="CC"):
        assert_all_same_bits(by_torch(function, arrays), by_numpy(function, arrays))
    assert not libraries(tmp_path)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::2, 1:],
        lambda x: x[:, :1].expand(-1, 9),
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: x.reshape(2, 3, 4, 3).to(memory_format=torch.channels_last),
    ],
    ids=["transposed", "strided", "expanded", "one number", "empty", "channels last"],
)
def test_layouts(view):
    x = view(torch.from_numpy(numbers(RNG, 8, 9)))
    y = torch.from_numpy(np.array(numbers(RNG, *x.shape[-1:])))
    functions = (lambda x: reproducible.multiply(x, y)), reproducible.gelu, reproducible.sum
    arrays = (lambda a: qcore.reproducible.multiply(a, y.numpy())), qcore.reproducible.gelu, qcore.reproducible.sum
    assert_all_same_bits([f(x) for f in functions], [f(x.numpy()) for f in arrays])


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("chunks", [1, 2])
def test_gradients_of_chunks(chunks, again):
    x = torch.from_numpy(numbers(RNG, 3, 4)).requires_grad_()
    gradients = [torch.from_numpy(numbers(RNG, 3, 4 // chunks)).requires_grad_(again) for _ in range(chunks)]
    parts = reproducible.chunk(x, chunks)
    (found,) = torch.autograd.grad(parts, x, gradients, create_graph=again)
    assert_same_bits(found.detach(), reproducible.settle(torch.cat([g.detach() for g in gradients], -1)))
    if again:
        seconds = torch.autograd.grad(found, gradients, torch.ones(3, 4))
        assert all(torch.equal(one, torch.ones(3, 4 // chunks)) for one in seconds)


def test_more_dimensions_than_kernels_have():
    a, b = (torch.from_numpy(numbers(RNG, *shape)) for shape in ((2, 1, 3, 1, 2), (1, 2, 1, 2, 1)))
    assert_same_bits(reproducible.add(a, b), reproducible.add(a.expand(2, 2, 3, 2, 2), b.expand(2, 2, 3, 2, 2)))


def test_other_sizes_and_options_take_the_same_kernels(fresh, tmp_path):
    def run(size, eps):
        x = torch.ones(3, size, requires_grad=True)
        reproducible.layer_norm(x, torch.ones(size), None, eps=eps).sum().backward()

    run(4, 1e-5)
    before = libraries(tmp_path)
    run(5, 1e-3)
    assert libraries(tmp_path) == before
    assert before


def test_gradients_do_not_share_memory():
    a, b = (torch.ones(4, requires_grad=True) for _ in range(2))
    reproducible.add(a, b).sum().backward()
    a.grad += 1
    assert b.grad.tolist() == [1.0] * 4


def test_threads_make_no_difference():
    x, gradient = (torch.from_numpy(numbers(RNG, 250, 400)) for _ in range(2))

    def run(threads):
        torch.set_num_threads(threads)
        given = x.clone().requires_grad_()
        y = reproducible.softmax(reproducible.gelu(given, "tanh"))
        return [y, *torch.autograd.grad(y, given, gradient)]

    before = torch.get_num_threads()
    try:
        assert_all_same_bits(run(1), run(2))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [reproducible.SGD, reproducible.AdamW])
def test_optimizers_step_in_place(kind, monkeypatch):
    """In one call for all parameters, as in calls of the law one by one; and autograd knows."""
    options = {"weight_decay": 0.1} | ({"momentum": 0.9, "nesterov": True} if kind is reproducible.SGD else {})
    values = [torch.from_numpy(np.array(numbers(RNG, *shape))) for shape in ((5, 3), (7,), (7,), (), (4, 6))]
    gradients = [torch.from_numpy(np.array(numbers(RNG, *x.shape))) for x in values]
    found = []
    monkeypatch.setattr(optimizers, "_joined", None)
    for in_place in (True, False):
        if not in_place:
            monkeypatch.undo()
            monkeypatch.setattr(optimizers, "replace", lambda *arguments: False)
        parameters = [torch.nn.Parameter(x.clone()) for x in values]
        optimizer = kind(parameters, lr=0.1, **options)
        before = [(p.data_ptr(), p._version) for p in parameters]
        for _ in range(3):
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
            optimizer.step()
        state = [x for p in parameters for x in optimizer.state[p].values()]
        found.append([p.detach() for p in parameters] + state)
        assert [p.data_ptr() for p in parameters] == [address for address, _ in before]
        assert all(p._version > version for p, (_, version) in zip(parameters, before, strict=True))
    assert_all_same_bits(*found)


def test_numbers_that_are_read_again_are_not_replaced():
    law = without_gradients(lambda xp, p, gradient: (xp.add(p, p), xp.add(gradient, p)))  # two loops read p
    p, gradient = torch.ones(4), torch.ones(5, 4)
    assert not replace(law, [(p, gradient)], (), (0, 1), {})
    assert p.tolist() == [1.0] * 4


@pytest.mark.parametrize("wrong", ["strided", "shape", "float64"])
def test_numbers_of_other_layouts_are_not_replaced(wrong):
    wide = torch.ones(4, 4, dtype=torch.float64)
    p = {"strided": torch.ones(4, 8)[:, ::2], "shape": torch.ones(4), "float64": wide}[wrong]
    law = without_gradients(lambda xp, p, gradient: (xp.add(p, gradient),))
    assert not replace(law, [(p, torch.ones(4, 4))], (), (0,), {})
    assert p.eq(1).all()


def test_sums_save_no_operands_of_their_shape():
    a, b = torch.ones(3, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    assert [None if x is None else x.shape for x in reproducible.add(a, b).grad_fn.saved_tensors] == [None, (4,)]
    assert reproducible.subtract(a, a).grad_fn.saved_tensors == (None, None)


PRODUCTS = {
    "float32": {},
    "elements": {"operands": ("e5m2", "float(3,4)"), "grad_weight": Product("e4m3fn", None)},
    "blocks": {"operands": (BlockScaled("e4m3fn", {-1: None}, "rceil"),) * 2, "grad_input": Product("e4m3fn", "e5m2")},
    "chunks": {"accumulator": Accumulator("float(6,9)", chunk=2)},
    "scales": {"operands": (Operand("e4m3fn", scale=Scale(1)), None)},
    "rounded sums": {"accumulator": Accumulator("float(6,9)", chunk=1)},
}


@pytest.mark.parametrize("said", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5), (0, 5)], ids=str)
def test_products_have_the_bits_of_their_parts(said, shape):
    """With a bias or not; the operands' gaps make no difference."""
    x, w, b = (torch.from_numpy(np.array(numbers(RNG, *each))) for each in (shape, (4, 5), (4,)))
    gradient = torch.from_numpy(np.array(numbers(RNG, *shape[:-1], 4)))

    def run(function, *given):
        given = [each.clone().requires_grad_() for each in given]
        y = function(*given)
        return [y, *torch.autograd.grad(y, given, gradient)]

    def parts(x, w, *bias):
        y = linalg.linear(x, w, **said)
        return reproducible.add(y, *bias) if bias else reproducible.settle(y)

    gaps = torch.stack((x, x), -1)[..., 0]
    for given in ((x, w), (x, w, b), (gaps, w.T.contiguous().T, b)):
        assert_all_same_bits(run(lambda *all_: reproducible.linear(*all_, **said), *given), run(parts, *given))


def test_gradients_that_nobody_wants_are_not_computed(fresh, monkeypatch):
    made = []
    monkeypatch.setattr(plan, "product_steps", lambda *given: made.append(given[0].which) or product_steps(*given))
    reproducible.linear(torch.ones(3, 7), torch.ones(2, 7, requires_grad=True)).sum().backward()
    assert made == [FORWARD, GRAD_B]


@pytest.mark.filterwarnings("ignore:.*CC.*:RuntimeWarning")
def test_products_without_a_compiler(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    test_products_have_the_bits_of_their_parts(PRODUCTS["blocks"], (6, 5))
    assert not libraries(tmp_path)


@pytest.mark.parametrize("size", [(1, 1, 1), (7, 3, 2), (1000, 600, 5), (3000, 40, 97), (5, 4, 100)], ids=str)
def test_sums_of_rows_by_index(size):
    """More rows than one index has, wide ones, and indices that none has."""
    count, width, indices = size
    rows = np.ldexp(RNG.standard_normal((count, width)), RNG.integers(-60, 60, (count, width))).astype(np.float32)
    rows[0, 0] = -0.0
    given = RNG.integers(0, indices, count, dtype=np.int32)
    found = reproducible.Names.sums_by_index(torch.from_numpy(rows), torch.from_numpy(given), indices)
    assert_same_bits(found, operations.Names.sums_by_index(rows, given, indices))  # of float64


def test_other_default_devices():
    """Tensors of the processor are computed there."""
    x, w, of_rows = (torch.from_numpy(np.array(numbers(RNG, *shape))) for shape in ((3, 7), (2, 7), (2, 2)))
    w, indices = w.requires_grad_(), torch.tensor([2, 0])

    def run():
        rows = reproducible.embedding(indices, reproducible.softmax(reproducible.linear(x, w)))
        return [rows, *torch.autograd.grad(rows, w, of_rows)]

    with torch.device("meta"):
        found = run()
    assert_all_same_bits(found, run())


def test_saved_tensors_that_others_change():
    """Kernels read no memory as what it is not."""
    w = torch.from_numpy(RNG.standard_normal((5, 3), np.float32)).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.long() if x.dtype is torch.int32 else x):
        y = reproducible.embedding(torch.tensor([1, 2, 4]), w)
    assert torch.autograd.grad(y.sum(), w)[0][:, 0].tolist() == [0, 1, 1, 0, 1]


def test_products_are_watched_in_backward_passes():
    seen = []
    x, w = torch.ones(3, 4, requires_grad=True), torch.ones(2, 4, requires_grad=True)
    y = reproducible.linear(x, w, operands=("e5m2", None)).sum()
    with observed_by(lambda kind, role, *others: seen.append(role)):
        y.backward()
    assert seen == ["grad_weight.input"]


def test_models_compile_once():
    counter = CompileCounter()
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    compiled = torch.compile(reproducible.convert(model), backend=counter)
    for _ in range(2):
        compiled(torch.ones(1, 2)).sum().backward()
    assert counter.frame_count == 1


def test_laws_are_operators_of_a_program():
    """With their gradients, options and absent arrays, and under vmap."""

    def function(x, w):
        y = reproducible.clamp(reproducible.pow(reproducible.add(x, w), torch.tensor(2.0)), low=0.25)
        y = reproducible.layer_norm(y, w)
        return reproducible.sum(reproducible.softmax(y, -1), 1)

    x = torch.from_numpy(RNG.standard_normal((5, 7), np.float32)).requires_grad_()
    w = torch.from_numpy(RNG.standard_normal(7, np.float32)).requires_grad_()
    right = function(x, w)
    counter = CompileCounterWithBackend("aot_eager")
    y = torch.compile(function, backend=counter, fullgraph=True)(x, w)
    assert not any("floor" in str(node.target) for node in counter.graphs[0].graph.nodes)  # of a power
    assert_same_bits(y.detach(), right.detach())
    of_result = torch.arange(5.0)
    assert_all_same_bits(torch.autograd.grad(y, (x, w), of_result), torch.autograd.grad(right, (x, w), of_result))
    each = torch.compile(lambda x, w: torch.vmap(function, (0, None))(x[:, None], w), backend="aot_eager")
    assert_same_bits(each(x.detach(), w.detach())[:, 0], right.detach())


def test_gradients_of_an_operator_have_memory_of_their_own():
    """Inductor adds to the gradient of x in place, and y has the same one."""

    def function(x, y, w):
        return reproducible.sum(reproducible.multiply(reproducible.add(x, y), w)) + (x * 3.0).sum()

    x, y, w = (torch.from_numpy(RNG.standard_normal((4, 5), np.float32)).requires_grad_() for _ in range(3))
    found = torch.autograd.grad(torch.compile(function, fullgraph=True)(x, y, w), (x, y))
    assert_all_same_bits(found, (w.detach() + 3.0, w.detach()))


@pytest.mark.parametrize("products", [{}, {"operands": ("e4m3fn", "e5m2"), "grad_weight": Product("e5m2", None)}])
def test_products_and_losses_are_operators_of_a_program(products):
    """A product with its bias is one, and so is a loss; an input that needs no gradient gets none."""

    def function(x, w, b, target):
        y = reproducible.relu(reproducible.linear(x, w, b, **products))
        return reproducible.cross_entropy(reproducible.matmul(y, w[:, :3]), target)

    x, w, b = (torch.from_numpy(RNG.standard_normal(shape, np.float32)) for shape in ((6, 5), (4, 5), (4,)))
    target = torch.tensor([0, 2, -100, 1, 1, 0], dtype=torch.int32)
    for parameter in (w, b):
        parameter.requires_grad_()
    right = function(x, w, b, target)
    counter = CompileCounterWithBackend("aot_eager")
    y = torch.compile(function, backend=counter, fullgraph=True)(x, w, b, target)
    called = [str(node.target) for node in counter.graphs[0].graph.nodes]
    assert not any("product" in name or "sums" in name for name in called)
    assert_same_bits(y.detach(), right.detach())
    assert_all_same_bits(torch.autograd.grad(y, (w, b)), torch.autograd.grad(right, (w, b)))
