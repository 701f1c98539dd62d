"""The watch over torch models: sites, removal, and what is wrong with its arguments."""

import copy
import threading

import pytest
import torch
from calls import calls_of
from torch import nn

from qcore import Entry, Product
from qcore.insight import Site, Statistics, compare
from qcore.report import numbered
from qtorch import RECIPES, Recipe, linalg
from qtorch.insight import statistics_of, watch
from qtorch.linalg.operator import observed_by
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer
from qtorch.recipes import lower, report, sequential_lower


def test_sites_are_paths():
    model = nn.Sequential(nn.ModuleDict({"inner": nn.Linear(3, 3)}), nn.Linear(3, 2), Quantizer("e4m3fn"))
    model[0].forward = lambda x: model[0]["inner"](x)
    lower(model[0], ["linear"], "e5m2", "e5m2", weight_number="e4m3fn")
    model[1] = sequential_lower(model[1], ["linear"], "int8", None, "nearest")
    with watch(model) as watching:
        for _ in range(2):
            model(torch.randn(4, 3, requires_grad=True)).sum().backward()
        watching.step()
    sites = [str(site) for site in watching.record.sites]
    assert sites == ["0.inner:weight", "0.inner:output", "1:output", "2:output", "0.inner:gradient"]
    assert watching.record.at(0, Site("1", "output")).statistics.elements == 16


class Block(nn.Module):
    """A layer, and products of its own, of which two have other formats than the rest."""

    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(8, 8), nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        x = self.layer(x) @ self.weight @ self.weight
        return torch.softmax(x @ x.mT, -1) @ x


class Wrapper(nn.Module):
    """As torch's wrappers for checkpoints."""

    def __init__(self, module):
        super().__init__()
        self._checkpoint_wrapped_module = module

    def forward(self, x):
        return self._checkpoint_wrapped_module(x)


def test_a_watch_and_a_report_have_the_same_places():
    """Also of a part that was lowered on its own, in wrappers, and in a compiled model."""
    eight, half = Product("e5m2", "e4m3fn"), Product("bfloat16", "bfloat16")
    recipe = Recipe([Entry("*", None, eight, eight, eight), Entry("*", "matmul", half, half, half)])
    part = lower(nn.Sequential(Wrapper(Block())), recipe)
    model, x = nn.Sequential(nn.Identity(), part), torch.randn(3, 8, requires_grad=True)
    places = [numbered(row.path, row.number) for row in report(model, x)]
    assert places == ["1.0.layer", "1.0", "1.0 #1", "1.0 #2", "1.0 #3"]
    for run in (model, torch.compile(model, backend="eager")):
        with watch(run) as watching:
            run(x).sum().backward()
            watching.step()
        forward = [site for site in watching.record.sites if site.role == "weight"]
        assert [site.path for site in forward] == places
        number = watching.record.at(0, Site("1.0 #2", "operand", "grad_weight.gradient")).statistics.number
        assert number == "bfloat16"


def test_products_of_one_weight_of_a_recurrent_layer_have_one_place():
    model = lower(nn.Sequential(nn.LSTM(8, 4, num_layers=2)), RECIPES["bf16_mixed"])
    with watch(model) as watching:
        model[0](torch.randn(5, 2, 8))
        watching.step()
    paths = [site.path for site in watching.record.sites if site.role == "weight"]
    assert paths == ["0", "0 #1", "0 #2", "0 #3"]


def test_nothing_stays_behind():
    model = nn.Sequential(nn.Linear(2, 2), Quantizer("e4m3fn", "e5m2"))
    before = str(model[1]._forward_hooks), str(model[1]._forward_pre_hooks)
    with watch(model) as watching:
        model(torch.ones(1, 2))
    assert (str(model[1]._forward_hooks), str(model[1]._forward_pre_hooks)) == before
    model(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="nothing was rounded in this step"):
        watching.step()  # a step that had begun when the watch ended is none
    assert watching.record.entries == []


def test_off_it_costs_nothing():
    """A step after the watch calls as many functions, Python's and C's, as one before it; a watched one calls more."""
    model = lower(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), ["linear"], "e4m3fn", "e5m2", weight_number="e4m3fn")
    model.append(lower(nn.Sequential(nn.Linear(8, 2)), Recipe(RECIPES["fp8_chunked"].entries[-1:])))
    optimizer = OptimLP(torch.optim.SGD(model.parameters(), lr=0.1), weight_quant="bfloat16")

    x = torch.ones(3, 4)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    def calls():
        return len(calls_of(step, ("call", "c_call")))

    # The first steps make what later ones keep; a step now and then has a call more, of a weak reference that ends.
    first = min(calls() for _ in range(5))
    with watch(model, optimizer):
        assert min(calls() for _ in range(3)) > first
    assert min(calls() for _ in range(5)) == first


def test_an_observer_sees_its_own_thread():
    """While one thread observes, another one multiplies; gradients have the observer of their forward pass."""
    a, seen, others = torch.ones(2, 2, requires_grad=True), [], []

    def multiply():
        return linalg.matmul(a, a, operands=("e4m3fn", "e4m3fn"))

    def in_a_thread(function):
        thread = threading.Thread(target=lambda: others.append(function()))
        thread.start()
        thread.join()

    with observed_by(lambda *about: seen.append(about[1])):
        in_a_thread(multiply)
        assert seen == []
        watched = multiply()
    assert seen == ["input", "weight"]
    others[0].sum().backward()
    assert len(seen) == 2
    in_a_thread(watched.sum().backward)
    assert seen[2:] == ["grad_input.weight", "grad_weight.input"]


def test_a_copy_has_its_own_weights():
    model = lower(nn.Sequential(nn.Linear(2, 2)), Recipe(RECIPES["fp8_chunked"].entries[-1:]))
    with watch(model):
        copied = copy.deepcopy(model)
        nn.init.zeros_(copied[0].weight)
        nn.init.zeros_(copied[0].bias)
        assert not copied(torch.ones(1, 2)).any()
        assert model(torch.ones(1, 2)).any()
    assert "forward" not in vars(model[0])


def test_every():
    """The other steps run no code of the watch's, and need not round."""
    model = nn.Sequential(nn.Linear(2, 2), Quantizer("e4m3fn", "e5m2"))
    optimizer = OptimLP(torch.optim.SGD(model.parameters(), 0.1), weight_quant="bfloat16")
    with watch(model, optimizer, every=3) as watching:
        for step in range(7):
            assert (optimizer.observer is None) == (step % 3 != 0)
            if step != 4:
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            watching.step()
    assert watching.record.steps == [0, 3, 6]
    assert len(watching.record.entries) == 3 * 4
    with pytest.raises(ValueError, match="every=0; allowed"):
        watch(model, every=0)


def test_a_checkpoint_has_the_record(tmp_path):
    """A training that goes on from a file has the record of one that did not stop."""

    def start():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), Quantizer("e4m3fn", "e5m2", "nearest", "nearest"))
        return model, watch(model, every=2)

    def run(model, watching, steps):
        for i in range(watching.steps, steps):
            model(torch.full((1, 2), float(i))).sum().backward()
            watching.step()

    whole, first, second = start(), start(), start()
    run(*whole, 5)
    run(*first, 3)
    torch.save(first[1].state_dict(), tmp_path / "watch.pt")
    second[1].load_state_dict(torch.load(tmp_path / "watch.pt"))
    assert second[1].steps == 3
    assert second[1].record == first[1].record
    run(*second, 5)
    assert second[1].record == whole[1].record
    assert second[1].record.steps == [0, 2, 4]
    for state, message in (
        ({"steps": 1}, "state=.*allowed is what Watch.state_dict returns"),
        (first[1].state_dict() | {"steps": -1}, "steps=-1; allowed"),
        (first[1].state_dict() | {"record": {}}, "allowed is a record"),
    ):
        with pytest.raises(ValueError, match=message):
            second[1].load_state_dict(state)
    with pytest.raises(ValueError, match="record is of model 'Sequential'; allowed is 'other'"):
        watch(whole[0], name="other").load_state_dict(first[1].state_dict())


def test_statistics_are_a_buffer():
    """Their lanes are one tensor, which modules keep, move and save."""
    module, x = nn.Module(), torch.linspace(-500, 500, 99)
    module.register_buffer("seen", statistics_of(x, "e4m3fn").lanes)
    other = nn.Module()
    other.register_buffer("seen", torch.zeros_like(module.seen))
    other.load_state_dict(module.state_dict())
    assert other.seen.dtype == torch.int32
    assert Statistics("e4m3fn", other.seen) == statistics_of(x, "e4m3fn")


def test_bad_arguments():
    model = nn.Sequential(nn.Linear(2, 2), Quantizer("e4m3fn"))
    with pytest.raises(ValueError, match="model has no site: Linear rounds nothing"):
        watch(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"model is a int; allowed is a torch.nn.Module"):
        watch(3)
    with pytest.raises(TypeError, match="digests='all' is a str; allowed are True and False"):
        watch(model, digests="all")
    with pytest.raises(TypeError, match="optimizer is a SGD; allowed is an OptimLP"):
        watch(model, torch.optim.SGD(model.parameters(), 0.1))
    with watch(model) as watching, pytest.raises(RuntimeError, match="nothing was rounded in this step"):
        watching.step()
    other = nn.Parameter(torch.ones(2))
    optimizer = OptimLP(torch.optim.SGD([other], 0.1), weight_quant="e5m2")
    other.grad = torch.ones(2)
    with watch(model, optimizer), pytest.raises(ValueError, match="optimizer has a parameter that is not the model's"):
        optimizer.step()
    with pytest.raises(TypeError, match="x has dtype float64"):
        statistics_of(torch.ones(1, dtype=torch.float64), "e5m2")


def test_compiled_statistics():
    """In a compiled program an operator calls the kernel."""
    x = torch.linspace(-600, 600, 77)
    compiled = torch.compile(lambda x: statistics_of(x, "e4m3fn").lanes, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), statistics_of(x, "e4m3fn").lanes)


def trained(watch_of, backend):
    """The record of a watched training, and the loss of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    lower(model[:3], ["linear"], "e4m3fn", "e5m2", "nearest", "stochastic", weight_number="e4m3fn")
    lower(model[3:], Recipe(RECIPES["fp8_chunked"].entries[-1:]))
    optimizer = OptimLP(torch.optim.SGD(model.parameters(), lr=0.1), weight_quant="bfloat16")
    program, losses = model if backend is None else torch.compile(model, backend=backend), []
    with watch({"program": program, "model": model}[watch_of], optimizer, name="", digests=True) as watching:
        for _ in range(2):
            optimizer.zero_grad()
            losses.append(program(torch.randn(16, 4)).square().sum())
            losses[-1].backward()
            optimizer.step()
            watching.step()
    program(torch.randn(16, 4)).sum().backward()  # unwatched again
    assert watching._found == {}
    return watching.record, torch.stack(losses)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch, where a graph ends
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_model(backend):
    """All statistics, and the bits of all results, are those of the model that is not compiled."""
    torch.compiler.reset()
    want, losses = trained("model", None)
    found, its = trained("program", backend)
    assert {site.kind for site in want.sites} == {"output", "gradient", "weight", "state", "operand", "accumulator"}
    assert compare(want, found) is None
    assert torch.equal(losses.view(torch.int32), its.view(torch.int32))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch, where a graph ends
def test_compiled_before_it_is_watched():
    torch.compiler.reset()
    model = lower(nn.Sequential(nn.Linear(2, 2)), ["linear"], "e4m3fn")
    model.compile(backend="eager")
    model(torch.ones(1, 2))
    with watch(model) as watching:
        with pytest.raises(RuntimeError, match="nothing was rounded in this step; allowed is a model that runs"):
            watching.step()
        model(torch.ones(1, 2))
        watching.step()
    assert [str(site) for site in watching.record.sites] == ["0:output"]
