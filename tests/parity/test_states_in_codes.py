"""Adam with moments in codes: the same bits in NumPy, torch and JAX; a run moves from torch to JAX in its middle."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from support import assert_same_bits

import qcore.reproducible
import qjax.optim
import qtorch.optim
from qcore.reproducible.companded import WEIGHT_ERROR, WEIGHT_WITH_ERROR
from qcore.reproducible.functions import apply
from qcore.reproducible.state_codes import adam_codes

SHAPES = [(16, 256), (4224,), (70,)]  # codes; codes of 4 bits alone; floats
FORMS = {"8bit": 256, "4bit": 128, "Fp8": 256}
RATE = 3e-3


def start():
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def gradients(step):
    rng = np.random.default_rng((2, step))
    return [(rng.standard_normal(s) * np.exp(3 * rng.standard_normal(s))).astype(np.float32) for s in SHAPES]


class Torch:
    """Steps of the optimizer of torch."""

    def __init__(self, storage, **options):
        self.params = [torch.nn.Parameter(torch.from_numpy(p)) for p in start()]
        self.optimizer = getattr(qtorch.optim, f"AdamW{storage}")(self.params, RATE, **options)

    def step(self, number):
        for p, g in zip(self.params, gradients(number), strict=True):
            p.grad = torch.from_numpy(g)
        self.optimizer.step()

    def found(self):
        states = [self.optimizer.state[p] for p in self.params]
        names = ("exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale")
        return [
            (p.detach().numpy(), *(state[n].numpy() for n in names if n in state))
            for p, state in zip(self.params, states, strict=True)
        ]


def numpys(storage, steps):
    """The law on NumPy's arrays."""
    found, block = [], FORMS[storage]
    for i, p in enumerate(start()):
        codes = adam_codes(storage, block, p.size, False)
        states = [
            p * 0 if c is None else (
                np.zeros(p.shape if c.bits == 8 else p.size // 2, np.uint8), np.zeros(p.size // block, np.float32)
            )
            for c in codes
        ]  # fmt: skip
        for step in range(steps):
            p, states = qcore.reproducible.adam_step_with_codes(
                p, gradients(step)[i], states, np.float32(step + 1)[...], np.float32(RATE)[...], codes,
                weight_decay=1e-2, decoupled=True,
            )  # fmt: skip
        flat = [part for s in states for part in (s if isinstance(s, tuple) else (s,))]
        found.append((p, *flat))
    return found


def jax_parts(params, state):
    trees = zip(params, state.first, state.second, strict=True)
    return [(p, *jax.tree.leaves(m), *jax.tree.leaves(v)) for p, m, v in trees]


def assert_all_same(a, b):
    for i, (one, other) in enumerate(zip(a, b, strict=True)):
        for x, y in zip(one, other, strict=True):
            assert_same_bits(np.asarray(x), np.asarray(y), str(i))


@pytest.mark.parametrize("storage", ["8bit", *(pytest.param(one, marks=pytest.mark.heavy) for one in ("4bit", "Fp8"))])
def test_three_packages(storage):
    ours, optimizer = Torch(storage), getattr(qjax.optim, f"adamw_{storage.lower()}")(RATE)
    params = [jnp.asarray(p) for p in start()]
    state, step = optimizer.init(params), jax.jit(optimizer.step)
    for number in range(3):
        ours.step(number)
        params, state = step(params, [jnp.asarray(g) for g in gradients(number)], state)
    assert_all_same(ours.found(), numpys(storage, 3))
    assert_all_same(jax_parts(params, state), numpys(storage, 3))


@pytest.mark.heavy
def test_a_run_moves_from_torch_to_jax():
    """And there the parameters move by `step`; by optax's sum too, where a float32 number leads to the new one."""
    ours = Torch("8bit")
    ours.step(0)
    found, coded = ours.found(), qjax.optim.CodedArray
    params = [jnp.asarray(p) for p, *_ in found]
    moments = [
        [coded(*map(jnp.asarray, (m, ms))), coded(*map(jnp.asarray, (v, vs)))] for _, m, ms, v, vs in found[:1]
    ] + [[jnp.asarray(m), jnp.asarray(v)] for _, m, v in found[1:]]
    first, second = ([one[i] for one in moments] for i in range(2))
    state = qjax.optim.CodedAdamState(jnp.float32(1), first, second)
    optimizer = qjax.optim.AdamW8bit(lambda count: jnp.where(count == 1, RATE, 9.0))
    ours.step(1)
    given = [jnp.asarray(g) for g in gradients(1)]
    updates, same = jax.jit(optimizer.update)(given, state, params)
    summed = optax.apply_updates(params, updates)
    before = params
    params, state = jax.jit(optimizer.step)(params, given, state)
    assert_all_same(jax_parts(params, state), ours.found())
    assert_all_same(jax_parts(params, same), ours.found())
    for p, q, found in zip(before, params, summed, strict=True):
        p, q = np.asarray(p), np.asarray(q)
        nearest = q - p
        tried = [nearest, np.nextafter(nearest, np.float32(9)), np.nextafter(nearest, np.float32(-9))]
        reached = np.any([p + d == q for d in tried], 0)
        assert reached.mean() > 0.98
        assert_same_bits(np.where(reached, found, q), q)


@pytest.mark.heavy
@pytest.mark.parametrize("options", [{"bf16_stochastic_round": True, "key": 77}, {"store_param_remainders": True}])
def test_bfloat16_weights(options):
    p, *_ = start()
    theirs = torch.nn.Parameter(torch.from_numpy(p).bfloat16())
    optimizer = qtorch.optim.Adam8bit([torch.nn.Parameter(torch.ones(3)), theirs], RATE, **options)
    other = qjax.optim.adam_8bit(RATE, **options)
    params = [jnp.ones(3), jnp.asarray(p, jnp.bfloat16)]
    state, step = other.init(params), jax.jit(other.step)
    for number in range(2):
        gradient = gradients(number)[0]
        theirs.grad = torch.from_numpy(gradient).bfloat16()
        optimizer.step()
        params, state = step(params, [jnp.zeros(3), jnp.asarray(gradient, jnp.bfloat16)], state)
    assert_same_bits(theirs.detach().view(torch.int16).numpy(), np.asarray(params[1].view(jnp.int16)))
    if "key" not in options:
        assert_same_bits(optimizer.state[theirs]["remainder"].numpy(), np.asarray(state.remainder[1]))
        assert state.remainder[0] is None


def numpys_flash(p, slopes, dtype, error):
    """FlashAdamW's steps on NumPy's arrays: weights as float32, their errors, and both states."""
    codes, names = adam_codes("Flash", 32, p.size, False), {"dtype": dtype, "kept": "int8"}
    states = [(np.zeros(p.shape, c.dtypes[0]), np.zeros(c.counts(p.size)[1], np.float16)) for c in codes]
    for step, slope in enumerate(slopes):
        master = p if error is None else apply(WEIGHT_WITH_ERROR, p, error, **names)
        p, states = qcore.reproducible.adam_step_with_codes(
            master, slope, states, np.float32(step + 1)[...], np.float32(RATE)[...], codes,
            weight_decay=1e-2, decoupled=True, order="flashoptim",
        )  # fmt: skip
        if error is not None:
            master, p = p, qcore.quantize(p, dtype, overflow="inf")
            error = apply(WEIGHT_ERROR, master, p, **names)
    return p, error, *states[0], *states[1]


def test_flash():
    """Of all dtypes, with last blocks that are shorter; a checkpoint moves states and errors."""
    dtypes, rng = ("float32", "bfloat16", "float16"), np.random.default_rng(4)
    start = [rng.standard_normal((5, 9)).astype(np.float32) for _ in dtypes]
    start = [qcore.quantize(p, dtype) for p, dtype in zip(start, dtypes, strict=True)]
    slopes = [[qcore.quantize(rng.standard_normal((5, 9)).astype(np.float32), "e5m2") for _ in dtypes] for _ in "ab"]
    params = [torch.nn.Parameter(torch.tensor(p, dtype=getattr(torch, d))) for p, d in zip(start, dtypes, strict=True)]
    optimizer, other = qtorch.optim.FlashAdamW(params, RATE), qjax.optim.flash_adamw(RATE)
    trees = [jnp.asarray(p, dtype) for p, dtype in zip(start, dtypes, strict=True)]
    state, step = other.init(trees), jax.jit(other.step)
    for given in slopes:
        for p, slope in zip(params, given, strict=True):
            p.grad = torch.from_numpy(slope).to(p.dtype)
        optimizer.step()
        trees, state = step(trees, [jnp.asarray(one) for one in given], state)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        optimizer = qtorch.optim.FlashAdamW(params, RATE)
        optimizer.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    assert "States in codes (Flash, blocks of 32): 3 of 3 parameters" in repr(optimizer)
    for place, dtype in enumerate(dtypes):
        error = None if dtype == "float32" else np.zeros((5, 9), np.int8)
        expected = numpys_flash(start[place], [given[place] for given in slopes], dtype, error)
        own = optimizer.state[params[place]]
        names = ("remainder", "exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale")
        ours = params[place].detach().float(), *(own.get(name) for name in names)
        theirs = jnp.float32(trees[place]), state.remainder[place], *state.first[place], *state.second[place]
        for one, two, three in zip(expected, ours, theirs, strict=True):
            if one is not None:
                np.testing.assert_array_equal(np.asarray(two), one)
                np.testing.assert_array_equal(np.asarray(three), one)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("learning_rate=-1; allowed is a number >= 0", lambda o: o.adam_8bit(-1)),
        ("bf16_stochastic_round=True needs a key", lambda o: o.adamw_8bit(bf16_stochastic_round=True)),
        ("params=None; this optimizer needs the parameters", lambda o: o.adam_8bit().update(1, o.adam_8bit().init([]))),
        ("master_weight_bits=16; allowed are 24, 32 and None", lambda o: o.flash_adamw(master_weight_bits=16)),
        ("params has an array of int32; allowed are float32", lambda o: o.adam_8bit().init(jnp.ones(2, jnp.int32))),
    ],
)
def test_wrong(message, call):
    with pytest.raises((TypeError, ValueError)) as error:
        call(qjax.optim)
    assert message in str(error.value)
