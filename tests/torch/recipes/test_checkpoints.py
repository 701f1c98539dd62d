"""Functions that a program hands to others: to checkpoints, to torch.cond, to loops; and names behind wrappers."""

import warnings

import pytest
import torch
import torch.distributed as dist
from support import assert_all_same_bits, assert_same_bits
from torch import nn
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from qcore import Entry, Product, Recipe, Rule
from qtorch.recipes import lower, report

NARROW = Product("e4m3fn", "e5m2")
ALL = Recipe([Entry("*", kind, NARROW, NARROW, NARROW) for kind in (None, "attention", "matmul")])
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class Handing(nn.Module):
    """A module that hands its products to another function; without one it computes them itself."""

    def __init__(self, hand=None):
        super().__init__()
        torch.manual_seed(0)
        self.w, self.v, self.hand = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8)), hand

    def forward(self, x):
        def products(x):
            return (x @ self.w).relu() @ self.v

        return (products(x) if self.hand is None else self.hand(products, x)).sin() @ self.w


HANDS = {
    "checkpoint": lambda f, x: checkpoint(f, x, use_reentrant=False),
    "reentrant": lambda f, x: checkpoint(f, x, use_reentrant=True),
    "cond": lambda f, x: torch.cond(x.sum() < 1e9, f, lambda x: x.sin(), (x,)),
    "map": lambda f, x: map_rows(f, x[:, None])[:, 0],
}


def run(model, function=None):
    x = X.clone().requires_grad_()
    model.zero_grad()
    y = (model if function is None else function)(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize(
    "hand", ["checkpoint", *(pytest.param(n, marks=pytest.mark.heavy) for n in ("cond", "reentrant", "map"))]
)
def test_compiled_programs_lower_functions_that_are_handed_on(hand):
    expected = run(lower(Handing(), ALL))
    low = lower(Handing(HANDS[hand]), ALL)
    torch._dynamo.reset()
    assert_all_same_bits(run(low, torch.compile(low, fullgraph=True, backend="eager")), expected)
    assert not torch.equal(run(Handing())[0], expected[0])


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("hand", ["checkpoint", "reentrant"])
def test_eager_checkpoints_of_functions_are_refused(hand):
    """Where there is no backward pass nothing runs again, so they are right."""
    low = lower(nn.Sequential(Handing(HANDS[hand])), ALL)
    with pytest.raises(RuntimeError, match=r"matmul in '0' is in a function .* allowed are modules and their methods"):
        run(low)
    with torch.no_grad():
        assert_same_bits(low(X), lower(Handing(), ALL)(X))
    weights = lower(Handing(HANDS[hand]), rules=[Rule("*", weight_number="e4m3fn")])
    with pytest.raises(RuntimeError, match="matmul in the model itself is in a function"):
        run(weights)


def test_eager_cond_is_refused_by_torch():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="Unsafe side effect"):
        lower(Handing(HANDS["cond"]), ALL)(X)


@pytest.mark.heavy
def test_loops_warn():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return scan(lambda carry, row: (carry.sin(), row @ self.w), x[0], x)[1]

    low = lower(Loop(), ALL)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.compile(low, backend="eager")(X)
    assert any("scan in the model itself stays in high precision" in str(one.message) for one in caught)


class Flex(nn.Module):
    def forward(self, x):
        return flex_attention(x, x, x)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without")
def test_flex_attention_is_listed_and_warned_of():
    low, x = lower(nn.Sequential(nn.Linear(16, 16), Flex()), ALL), torch.randn(1, 2, 16, 16)
    with pytest.warns(
        UserWarning, match="flex_attention in '1' stays in high precision: qtorch.linalg has no such product"
    ):
        found = report(low, x)
    assert [row.kind for row in found] == ["linear", "attention_scores", "attention_output"]
    assert [row.multiply_adds for row in found] == [2 * 16**3] * 3
    assert [bool(row.products) for row in found] == [True, False, False]


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def checkpointed(model):
    for name, child in list(model.named_children()):
        setattr(model, name, checkpoint_wrapper(child))
    return model


WRAPPERS = {
    "DDP": DistributedDataParallel,
    "checkpoints": checkpointed,
    "both": lambda model: DistributedDataParallel(checkpointed(model)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_names_behind_wrappers(wrapper, one_rank):
    recipe = Recipe([Entry("1", "linear", NARROW, NARROW, NARROW), Entry("2", None, NARROW)])
    wrap, places = WRAPPERS[wrapper], ["0"] * 3 + ["1"] * 3 + ["2"]
    plain = lower(nn.Sequential(Handing(), Handing(), nn.Linear(8, 8)), recipe)
    expected, state = run(plain), plain.state_dict()
    for early in (True, False):
        model = nn.Sequential(Handing(), Handing(), nn.Linear(8, 8))
        model.load_state_dict(state)
        low = lower(wrap(model), recipe) if early else wrap(lower(model, recipe))
        found = report(low, X)
        assert [row.path for row in found] == places
        assert [bool(row.products) for row in found] == [False] * 3 + [True] * 4
        assert_all_same_bits(run(low), expected)
