"""Every product has a row: complex, sparse, in place, in a function with its own backward, in high precision."""

import pytest
import torch
import torch.nn.functional as F
from support import assert_all_same_bits, assert_same_bits
from torch import nn

from qcore import RECIPES, Entry, Product, Recipe
from qtorch.recipes import lower, report

HALF = Product("bfloat16", "bfloat16")
KINDS = (None, "attention", "matmul")
ALL = Recipe([Entry("*", kind, HALF, HALF, HALF) for kind in KINDS])


class Do(nn.Module):
    """A linear layer, and a function of its result and a parameter."""

    def __init__(self, function, *shape, dtype=torch.float32):
        super().__init__()
        self.lift, self.function = nn.Linear(16, 16), function
        self.w = nn.Parameter(torch.randn(shape, dtype=dtype))

    def forward(self, x, *more):
        return self.function(self.lift(x), self.w, *more)


# A function of x of shape (4, 16) and a complex weight of the given shape, and its multiply-adds of complex numbers.
COMPLEX = {
    "@": (lambda x, w: x.cfloat() @ w, (16, 8), 4 * 16 * 8),
    "reflected @": (lambda x, w: w @ x.cfloat().mT, (8, 16), 4 * 16 * 8),
    "linear": (lambda x, w: F.linear(x.cfloat(), w), (8, 16), 4 * 16 * 8),
    "einsum": (lambda x, w: torch.einsum("bx,ixo->bio", torch.fft.fft(x), w), (3, 16, 5), 4 * 3 * 16 * 5),
    "bmm": (lambda x, w: torch.bmm(x.cfloat()[None], w), (1, 16, 2), 4 * 16 * 2),
    "addmm": (lambda x, w: torch.addmm(w[0], x.cfloat(), w), (16, 8), 4 * 16 * 8),
    "conv": (lambda x, w: F.conv1d(x.cfloat()[:, None], w), (2, 1, 3), 4 * 2 * 14 * 3),
    "no weight": (lambda x, w: (x.cfloat() @ x.cfloat().mT).real @ w.real, (4, 1), 4 * 4 * 16),
}


@pytest.mark.filterwarnings("ignore:the recipe lowers")
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_products_stay_wide_with_a_row_and_a_warning(name):
    function, shape, work = COMPLEX[name]
    torch.manual_seed(0)
    model, x = Do(function, *shape, dtype=torch.complex64), torch.randn(4, 16)
    expected = function(model.lift(x).bfloat16().float(), model.w).shape
    low = lower(model, ALL)
    with pytest.warns(UserWarning, match="stays in high precision: its numbers are complex") as caught:
        found = report(low, x)
    rows = [row for row in found if "complex" in row.reason]
    assert [(row.multiply_adds, row.products) for row in rows] == [(4 * work, None)]
    assert found.in_16_bits < 1
    assert len(caught) == 1
    assert low(x).shape == expected


def test_layers_of_complex_numbers_stay_wide():
    model = lower(nn.Sequential(nn.Linear(4, 4, dtype=torch.cfloat), nn.Conv1d(1, 1, 2, dtype=torch.cfloat)), ALL)
    x = torch.randn(2, 1, 4, dtype=torch.cfloat)
    with pytest.warns(UserWarning, match=r"in '.' stays in high precision: its numbers are complex") as caught:
        found = report(model, x)
    assert [(row.path, row.kind) for row in found] == [("0", "linear"), ("1", "conv")]
    assert len(caught) == 2
    assert found.in_16_bits == 0


EDGES = torch.eye(4).to_sparse()
PAIR = torch.stack([torch.eye(4), torch.ones(4, 4)])  # 4 and 16 stored numbers
SPARSE = {
    "sparse.mm": (lambda x, w: torch.sparse.mm(EDGES, x), 4 * 16),
    "spmm": (lambda x, w: torch.spmm(EDGES, x), 4 * 16),
    "@": (lambda x, w: EDGES @ x, 4 * 16),
    "mv": (lambda x, w: EDGES.mv(x[:, 0]), 4),
    "CSR": (lambda x, w: EDGES.to_sparse_csr() @ x, 4 * 16),
    "CSR last": (lambda x, w: x.mT @ EDGES.to_sparse_csr(), 4 * 16),
    "sparse.addmm": (lambda x, w: torch.sparse.addmm(x, EDGES, x), 4 * 16),
    "addmm": (lambda x, w: torch.addmm(x, EDGES, x), 4 * 16),
    "smm": (lambda x, w: torch.smm(EDGES, x.detach()).to_dense(), 4 * 16),
    "of a weight": (lambda x, w: torch.sparse.mm(EDGES, w), 4 * 8),
    "bmm": (lambda x, w: torch.bmm(PAIR.to_sparse(), x.expand(2, 4, 16)), 20 * 16),
    "sampled": (lambda x, w: torch.sparse.sampled_addmm(EDGES.to_sparse_csr(), x, x.mT).to_dense(), 4 * 16),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_products_stay_wide_with_a_row_and_a_warning(name):
    function, work = SPARSE[name]
    torch.manual_seed(0)
    low, x = lower(Do(function, 4, 8), ALL), torch.randn(4, 16)
    with pytest.warns(UserWarning, match="stays in high precision: it has a tensor of layout torch.sparse"):
        found = report(low, x)
    assert [(row.path, row.multiply_adds) for row in found] == [("lift", 4 * 16 * 16), ("", work)]
    assert 0 < found.in_16_bits < 1
    assert_same_bits(low(x), function(low.lift(x), low.w))


OTHERS = {
    "in place": (lambda x, w: x.clone().addmm_(x, w), 4 * 16 * 16, "it changes a tensor in place; addmm is lowered"),
    "out": (lambda x, w: torch.mm(x.detach(), w.detach(), out=torch.empty(0)), 4 * 16 * 16, "it writes its result"),
    "float64": (lambda x, w: (x.double() @ w.double()).float(), 4 * 16 * 16, "its numbers are of torch.float64"),
    "convolution": (lambda x, w: F.conv_tbc(x[None], w[None], w[0]), 4 * 16 * 16, "qtorch.linalg has no such"),
    "fused": (lambda x, w: torch._addmm_activation(w[0], x, w), 4 * 16 * 16, "qtorch.linalg has no such"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_spellings_stay_wide_with_a_row_and_a_warning(name):
    function, work, reason = OTHERS[name]
    low, x = lower(Do(function, 16, 16), ALL), torch.randn(4, 16)
    with pytest.warns(UserWarning, match=f"in the model itself stays in high precision: {reason}"):
        found = report(low, x)
    assert [row.multiply_adds for row in found] == [4 * 16 * 16, work]
    assert found[""][0].reason.startswith(reason)
    assert_same_bits(low(x), function(low.lift(x), low.w))


def test_nested_tensors_have_a_row():
    low = lower(Do(lambda x, w, *more: more[0] @ w, 16, 2), ALL)
    ragged = torch.nested.nested_tensor([torch.ones(3, 16), torch.ones(5, 16)], layout=torch.jagged)
    with pytest.warns(UserWarning, match="stays in high precision: it has a tensor of layout torch.jagged"):
        found = report(low, torch.ones(4, 16), ragged)
    assert [row.multiply_adds for row in found] == [4 * 16 * 16, None]


class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.T @ x


class Later(torch.autograd.Function):
    """The same with its context set up behind forward, as torch.func wants it."""

    @staticmethod
    def forward(x, weight):
        return torch.addmm(torch.zeros(()), x, weight.T)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    backward = Multiply.backward


@pytest.mark.parametrize("function", [Multiply, Later])
def test_a_function_with_its_own_backward_has_wide_gradients(function):
    torch.manual_seed(0)
    model = lower(Do(lambda x, w: function.apply(x, w), 16, 16), ALL)
    x, g = torch.randn(4, 16), torch.randn(4, 16)
    h = model.lift(x)
    text = f"gradients of .* in the model itself stay in high precision: they are those of {function.__name__}"
    with pytest.warns(UserWarning, match=text) as caught:
        y = model(x)
    y.backward(g)
    found = report(model, x)  # which warns no more
    assert len(caught) == 1
    (row,) = found[""]
    assert_same_bits(model.w.grad, g.T @ h)  # which is what the row says
    assert (row.products.grad_a, row.products.grad_b) == (Product(), Product())
    assert row.products.forward == HALF
    assert row.reason == f"its gradients stay in high precision: {function.__name__} has a derivative of its own"
    half = row.multiply_adds / (row.multiply_adds + 4 * 16 * 16)
    assert found.in_16_bits == pytest.approx(1 - half * 2 / 3)
    assert row.reason in " ".join(str(found).split())  # a table folds it
    assert "gradient of the weight: float32 x float32" in str(found)


@pytest.mark.filterwarnings(
    "ignore:gradients of matmul in the model itself stay in high precision. they are those of Multiply"
)
def test_compiled_programs_warn_of_a_function_with_its_own_backward():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x, g = lower(Do(lambda x, w: Multiply.apply(x, w), 16, 16), ALL), torch.randn(4, 16), torch.randn(4, 16)
    with pytest.warns(
        UserWarning, match="stay in high precision: they are those of the torch.autograd.Function around it"
    ):
        y = torch.compile(model, backend="eager", fullgraph=True)(x)
    y.backward(g)
    assert_same_bits(model.w.grad, g.T @ model.lift(x))
    gradients = [p.grad.clone() for p in model.parameters()]  # those of lift come from the gradient of the input
    model.zero_grad()
    model(x).backward(g)
    assert_all_same_bits(gradients, [p.grad for p in model.parameters()])


class Net(nn.Module):
    """A model of a program, which would find the products of a layer that has no mode of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.block, self.head = nn.Linear(16, 16), nn.Sequential(nn.Conv1d(1, 1, 3)), nn.Linear(14, 14)

    def forward(self, x):
        return self.head(self.block(self.a(x)[:, None]))


@pytest.mark.parametrize(
    "recipe", [RECIPES["deepseek_v3_fp8"], Recipe([Entry("head"), *RECIPES["mxfp8"].entries])], ids=["last", "name"]
)
def test_layers_that_a_recipe_leaves_wide_are_wide_and_have_their_names(recipe):
    torch.manual_seed(0)
    model, x = lower(Net(), recipe), torch.randn(4, 16)
    assert_same_bits(model(x), F.linear(model.block(model.a(x)[:, None]), model.head.weight, model.head.bias))
    found = report(model, x)
    assert [(row.path, row.number, row.products is None) for row in found] == [
        ("a", 0, False),
        ("block.0", 0, True),
        ("head", 0, True),
    ]
    assert found["head"][0].reason == "the recipe leaves it in high precision"


@torch.library.custom_op("qtorch_tests_of_rows::mm", mutates_args=())
def doubled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return 2 * (a @ b)


def test_an_operator_of_a_program_is_listed_and_not_taken_for_torchs_of_that_name():
    low, x = lower(Do(lambda x, w: torch.ops.qtorch_tests_of_rows.mm(x, w), 16, 2), ALL), torch.randn(4, 16)
    h = low.lift(x)
    assert_same_bits(low(x), 2 * (h @ low.w))
    for model in (low, Do(low.function, 16, 2)):
        row = report(model, x)[""][0]
        assert (row.kind, row.multiply_adds) == ("qtorch_tests_of_rows::mm", None)
        assert row.reason == "an operator of the program, whose products are not known"


class OwnConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3))

    def forward(self, x):
        return F.conv1d(x, self.weight)


class Inside(nn.Module):
    """A module with children, which is no layer, that multiplies by a weight of its own, and of a list."""

    def __init__(self):
        super().__init__()
        self.activation, self.weights = nn.ReLU(), nn.ParameterList([torch.randn(4, 4, 3)])

    def forward(self, x):
        return F.conv1d(self.activation(x), self.weights[0])


@pytest.mark.parametrize("make", [OwnConvolution, Inside])
def test_a_recipe_for_convolutions_finds_those_of_programs_alone(make):
    recipe = Recipe([Entry("*", "conv", *[Product("e5m2", "e5m2")] * 3)])
    model, x = nn.Sequential(make()), torch.randn(2, 4, 12)
    (row,) = report(lower(model, recipe), x)
    assert (row.kind, row.products) == ("conv", recipe.entries[0].products)
    with pytest.raises(ValueError, match="no layer to apply to"):
        lower(nn.Sequential(Do(lambda x, w: x, 4)), recipe)
