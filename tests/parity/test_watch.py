"""The same sites and statistics of the same model in torch and JAX; and the run is as if nobody watched."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import qjax
import qtorch
from qcore.insight import Record, Site, compare
from qcore.insight.statistics import Statistics

FORMATS = {"forward_number": "e4m3fn", "backward_number": "e5m2", "weight_number": "e4m3fn"}
WAYS = {"forward_rounding": "nearest", "backward_rounding": "nearest"}
OPTIMIZER = {"weight_quant": "bfloat16", "grad_quant": "e5m2", "acc_quant": "float(8,15)"}
STEPS = 2


def numbers():
    """Inputs and weights whose products and sums are exact in float32, in any order."""
    rng = np.random.default_rng(3)
    shapes = {"0.weight": (6, 4), "0.bias": (6,), "1.weight": (3, 6), "1.bias": (3,)}
    params = {name: (rng.integers(-8, 9, shape) / 8).astype(np.float32) for name, shape in shapes.items()}
    return params, [(rng.integers(-8, 9, (5, 4)) / 4).astype(np.float32) for _ in range(STEPS)]


def torch_parts():
    params, _ = numbers()
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3))
    model.load_state_dict({name: torch.from_numpy(x) for name, x in params.items()})
    qtorch.recipes.lower(model, ["linear"], **FORMATS, **WAYS)
    return model, qtorch.optim.OptimLP(torch.optim.SGD(model.parameters(), lr=0.125), **OPTIMIZER)


def train_torch(watching=None, parts=None):
    model, optimizer = parts or torch_parts()
    for x in numbers()[1]:
        optimizer.zero_grad()
        model(torch.from_numpy(x)).sum().backward()
        optimizer.step()
        if watching is not None:
            watching.step()
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def jax_model(params, x):
    for name in ("0", "1"):
        with jax.named_scope(name):
            x = x @ params[name]["weight"].T + params[name]["bias"]
    return x


def jax_step():
    lowered = qjax.recipes.lower(jax_model, ["linear"], **FORMATS, **WAYS)
    tx = qjax.optim.low_precision(optax.sgd(0.125), **OPTIMIZER)

    def step(params, state, x):
        grads = jax.grad(lambda params: lowered(params, x).sum())(params)
        updates, state = tx.update(grads, state, params)
        return qjax.optim.apply_updates(params, updates, state), state

    params, _ = numbers()
    tree = {name: {kind: jnp.asarray(params[f"{name}.{kind}"]) for kind in ("weight", "bias")} for name in ("0", "1")}
    return step, tree, tx.init(tree)


@pytest.fixture(scope="module")
def records():
    parts = torch_parts()
    with qtorch.insight.watch(*parts, name="two layers", digests=True) as watching:
        weights = train_torch(watching, parts)
    assert all(np.array_equal(a.view("i4"), b.view("i4")) for a, b in zip(weights, train_torch(), strict=True))
    assert parts[1].observer is None

    step, params, state = jax_step()
    plain, watched, record = jax.jit(step), jax.jit(qjax.insight.watch(step)), Record("two layers")
    for number, x in enumerate(numbers()[1]):
        expected = plain(params, state, x)
        (params, state), found = watched(params, state, x)
        same = jax.tree.map(lambda a, b: np.array_equal(np.asarray(a), np.asarray(b)), (params, state), expected)
        assert all(jax.tree.leaves(same))
        record.add_all(number, found)
    return watching.record, record


@pytest.mark.heavy
def test_same_sites_and_statistics(records):
    mine, its = records
    assert len(mine.sites) == 18
    assert set(mine.sites) == set(its.sites)
    for entry in mine.entries:
        assert entry.statistics.differing(its.at(entry.step, entry.site).statistics) == [], entry.site
    assert compare(mine, its) is None


@pytest.mark.heavy
def test_changed_run(records):
    mine, its = records
    changed = Record.from_json(its.to_json())
    site = Site("1", "output")
    entry = changed.at(1, site)
    fields = entry.statistics.to_json()
    lowered = Statistics.from_json(fields | {"subnormal": fields["subnormal"] + 1})
    changed.entries[changed.entries.index(entry)] = type(entry)(1, site, lowered)
    found = compare(mine, changed)
    assert (found.step, found.site, found.fields) == (1, site, ("subnormal",))
    assert compare(mine, changed, tolerance=1.0) is None


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["fp8_chunked", "deepseek_v3_fp8"])
def test_products_of_a_recipe(name):
    """Operands and accumulators, which the first layer's unused gradient has in JAX only."""
    recipe = qtorch.Recipe(qtorch.RECIPES[name].entries[-1:])
    params, (x, _) = numbers()
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3))
    model.load_state_dict({name: torch.from_numpy(one) for name, one in params.items()})
    qtorch.recipes.lower(model, recipe)
    with qtorch.insight.watch(model) as watching:
        model(torch.from_numpy(x)).sum().backward()
        watching.step()
    lowered = qjax.recipes.lower(jax_model, recipe)
    _, tree, _ = jax_step()
    grads = jax.grad(lambda params: lowered(params, x).sum())
    found = jax.jit(qjax.insight.watch(lambda params: grads(params)))(tree)[1]
    entries = {entry.site: entry.statistics for entry in watching.record.entries}
    extra = {site for site in found if site.path == "0" and "grad_input" in site.role}
    assert set(found) - extra == set(entries)
    assert {site.kind for site in entries} >= {"operand", "accumulator"}
    for site, statistics in entries.items():
        assert statistics.differing(found[site]) == [], site
