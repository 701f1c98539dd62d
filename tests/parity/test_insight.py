"""Statistics of roundings: NumPy against an oracle in fractions, and torch and JAX against NumPy, field by field."""

import itertools

import jax
import ml_dtypes
import numpy as np
import optax
import oracle_insight
import pytest
import torch

import qcore
import qcore.insight
import qjax
import qtorch
from qcore.insight import statistics_of
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch.insight import tensors

TEXTS = (
    *oracle_insight.RANGES,
    "block(8)",
    "block(5,dim=0)",
    "scaled(e4m3fn,{-1:16})",
    "scaled(e2m1fn,{-1:16})",
    "nvfp4",
)
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
BEYOND_A_TIE = 2.0**-19 * (1 + 2.0**-10)  # with 33 it rounds up to 24 bits, and then up from 33, a tie of 5 bits
TORCH = {np.float32: torch.float32, np.float16: torch.float16, ml_dtypes.bfloat16: torch.bfloat16}


def matrix(dtype, special, shape=(6, 24)):
    """Numbers of all exponents of a dtype: halfway ones, subnormal ones, zeros, and perhaps infinities and NaN."""
    rng = np.random.default_rng(7)
    with np.errstate(over="ignore", under="ignore"):
        wide = rng.normal(size=shape) * 2.0 ** rng.integers(-30, 20, shape)
        rows = [
            wide[:3],
            np.round(rng.normal(size=(1, shape[1])) * 40) / 64,
            2.0 ** rng.integers(-160, 128, (1, shape[1])),
        ]
        x = np.concatenate([*rows, -rng.integers(0, 9, (1, shape[1])) * 2.0**-149]).astype(dtype)
        x[0, :3] = 0, -0.0, np.finfo(np.float16).tiny / 8
        x[1, 0] = ml_dtypes.finfo(dtype).max
        if special:
            x[2, :3] = np.inf, -np.inf, np.nan
    return x


def to_torch(x):
    words = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}")
    return torch.from_numpy(words).view(TORCH[x.dtype.type])


@pytest.mark.parametrize("text", TEXTS)
def test_oracle(text):
    for dtype, special, mode in itertools.product(DTYPES, (False, True), ("nearest", "up")):
        x = matrix(dtype, special)
        y = qcore.quantize(x, text, mode)
        found, want = statistics_of(x, text, mode), oracle_insight.statistics(x, y, text)
        assert {name: getattr(found, name) for name in want} == want, (text, dtype, special, mode)


def test_results_of_something_else():
    """What no rounding makes: NaN that become finite, other signs, errors of all sizes."""
    x = matrix(np.float32, True)
    x[4, :2] = BEYOND_A_TIE, -BEYOND_A_TIE
    for seed, text in enumerate(("e4m3fn", "scaled(e4m3fn,{-1:16})", "fixed(8,4,signed=False)")):
        y = np.random.default_rng(seed).permutation(x.reshape(-1)).reshape(x.shape)
        y[2, :3] = 500, -0.0, 1
        y[4, :2] = -33, 33
        found, want = qcore.insight.statistics_between(x, y, text), oracle_insight.statistics(x, y, text)
        assert {name: getattr(found, name) for name in want} == want, text
        assert found.differing(qtorch.insight.statistics_between(to_torch(x), to_torch(y), text)) == [], text
        assert found.differing(qjax.insight.statistics_between(x, y, text)) == [], text


@pytest.mark.parametrize("text", ["e4m3fn", "fixed(8,4)", "fixed(8,4,signed=False)", "scaled(e4m3fn,{-1:256})"])
def test_runs_of_the_kernel(text):
    """It takes runs of 256 elements the short way, if none is special; there are several threads."""
    x = np.abs(np.random.default_rng(5).normal(size=(320, 256))).astype(np.float32)
    for row, special in enumerate((np.inf, np.nan, 500, -0.5, 7.97, -8)):
        x[row, 7] = special
    y = qcore.quantize(x, text)
    y[7, 7], y[8, 7], y[9, 7], y[10, 7] = np.nan, -np.inf, 0, -1e-3
    x[11, 7], y[11] = np.inf, 1
    for part in (slice(None), *(slice(row, row + 1) for row in range(12))):
        want = qcore.insight.statistics_between(x[part], y[part], text)
        found = qtorch.insight.statistics_between(to_torch(x[part]), to_torch(y[part]), text)
        assert want.differing(found) == [], (text, part)


def test_plain_runs_of_the_kernel():
    """Runs whose errors it takes from floats: at all exponents, errors of all sizes, carries, the ends of the way."""
    rng = np.random.default_rng(6)
    fields = np.arange(254, dtype=np.int32)[:, None] << 23
    x = (fields + rng.integers(0, 1 << 23, (254, 256), np.int32)) | (rng.integers(0, 2, (254, 256), np.int32) << 31)
    x[:, 3], x[:, 4] = fields[:, 0], fields[:, 0] + (1 << 23) - 1
    ties = (x & -(1 << 18)) | (rng.integers(0, 3, x.shape, np.int32) - 1 & 0x7FFFFFF)
    distances = np.int32(1) << rng.integers(0, 24, x.shape, np.int32)
    results = {
        "rounded": qcore.quantize(x.view(np.float32), "float(8,5)", "stochastic", key=1).view(np.int32),
        "near": np.where((x & 0x7FFFFFFF) > (1 << 25), x - distances, x),
        "next": x + 1,
        "far": np.where((x & 0x7FFFFFFF) < (240 << 23), x + (1 << 23) + 1, x),
        "zero": x & -0x80000000,
        "from zero": np.int32(1),
        "other sign": x ^ -0x80000000,
        "doubled": np.where((x & 0x7FFFFFFF) < (240 << 23), x + (1 << 23), x),
    }
    for (name, y), numbers in itertools.product(results.items(), (x, ties, x & 0)):
        before, after = numbers.view(np.float32), np.broadcast_to(y, x.shape).copy().view(np.float32)
        want = qcore.insight.statistics_between(before, after, "float(8,5)")
        found = qtorch.insight.statistics_between(torch.from_numpy(before), torch.from_numpy(after), "float(8,5)")
        assert want.differing(found) == [], name
    least = 1, np.nextafter(np.float32(1), 0)  # the smallest error there is
    for pair in (least, (BEYOND_A_TIE, -33)):
        before, after = (np.full(256, one, np.float32) for one in pair)
        want = qcore.insight.statistics_between(before, after, "float(8,5)")
        found = qtorch.insight.statistics_between(torch.from_numpy(before), torch.from_numpy(after), "float(8,5)")
        assert want.differing(found) == []


@pytest.mark.parametrize("first", [2, *(pytest.param(i, marks=pytest.mark.heavy) for i in range(2))])
@pytest.mark.parametrize("dtype", [np.float32, *(pytest.param(one, marks=pytest.mark.heavy) for one in DTYPES[1:])])
def test_packages(dtype, first, monkeypatch):
    """Every third format in one test."""
    for place, text in list(enumerate(TEXTS))[first::3]:
        x = matrix(dtype, special=bool(place % 2))
        want = statistics_of(x, text, "stochastic", key=5)
        found = qtorch.insight.statistics_of(to_torch(x), text, "stochastic", key=5)
        assert want.differing(found) == [], text
        found = qtorch.insight.statistics_of(to_torch(np.ascontiguousarray(x.T)).T, text, "stochastic", key=5)
        assert want.differing(found) == [], text
        with monkeypatch.context() as patch:
            patch.setattr(tensors, "is_plain_tensor", lambda x: False)
            assert want.differing(tensors.statistics_of(to_torch(x), text, "stochastic", key=5)) == [], text
        assert want.differing(qjax.insight.statistics_of(x, text, "stochastic", key=5)) == [], text
    assert is_plain_tensor(to_torch(x))  # so that there was a kernel


def steps_of_torch(x, weight):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False))
    model[0].weight.data = torch.from_numpy(weight.copy())
    qtorch.recipes.lower(model, ["linear"], *LOWERED, weight_number="e4m3fn")
    optimizer = qtorch.optim.OptimLP(torch.optim.SGD(model.parameters(), 0.5, momentum=0.5), **STATES)
    with qtorch.insight.watch(model, optimizer, name="one layer", digests=True) as watching:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.from_numpy(x)).sum().backward()
            optimizer.step()
            watching.step()
    return watching.record


def steps_of_jax(x, weight):
    def loss(weights):
        with jax.named_scope("0"):
            y = jax.lax.dot_general(x, weights["0"]["weight"], (((1,), (1,)), ((), ())))
        return y.sum()

    tx = qjax.optim.low_precision(optax.sgd(0.5, momentum=0.5), **STATES)
    lowered = qjax.recipes.lower(loss, ["linear"], *LOWERED, weight_number="e4m3fn")

    def step(weights, state):
        updates, state = tx.update(jax.grad(lowered)(weights), state, weights)
        return qjax.optim.apply_updates(weights, updates, state), state

    weights, run = {"0": {"weight": jax.numpy.asarray(weight)}}, qcore.insight.Record("one layer")
    state, watched = tx.init(weights), jax.jit(qjax.insight.watch(step, digests=True))
    for i in range(2):
        (weights, state), found = watched(weights, state)
        run.add_all(i, found)
    return run


LOWERED = "e4m3fn", "e5m2", "nearest", "nearest"
STATES = {"weight_quant": "bfloat16", "momentum_quant": "bfloat16"}


def test_runs_of_both_frameworks():
    """All statistics and digests of a training are the same, and sites are matched; an order is not."""
    rng = np.random.default_rng(3)
    x, weight = (rng.integers(-8, 9, shape).astype("f4") for shape in ((5, 4), (3, 4)))
    first, second = steps_of_torch(x, weight), steps_of_jax(x, weight)
    assert {one.digest is None for run in (first, second) for one in run.entries} == {False}
    assert {site.role for site in first.sites} >= {"momentum_buffer"}
    assert {site.role for site in second.sites} >= {"trace"}
    assert qcore.insight.compare(first, second) is None
    order = [0, 2, 1, 3]
    found = qcore.insight.compare(first, steps_of_torch(x[:, order], weight[:, order]))
    assert (found.step, found.site.kind) == (0, "weight")
    assert found.fields == ("digest",)
