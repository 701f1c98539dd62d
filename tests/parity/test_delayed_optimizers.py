"""Delayed scales of what optimizers round, against a loop in NumPy's floats, in PyTorch and in JAX."""

import copy
import io
import pickle
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import torch
import torch.distributed.checkpoint.state_dict as checkpoint
from delayed_support import expected_row, rounded
from support import assert_all_same_bits, assert_same_bits, assert_same_trees

import qcore
import qjax
from qjax.optim import accumulators, apply_updates, low_precision
from qtorch.optim import OptimLP
from qtorch.quant import quantizer

KEY = 5
SHAPES = [(3, 70), (5,), ()]
ELEMENTS = {"gradient": "e5m2", "accumulator": "float(6,9)", "weight": "e4m3fn", "momentum": "e4m3fn"}
LARGEST = {"e5m2": 57344.0, "e4m3fn": 448.0, "float(6,9)": 2.0**33 - 2.0**23}
TEXTS = {role: f"scaled({name},{{...:None}},scale=float32,history=3)" for role, name in ELEMENTS.items()}
ARGUMENTS = {
    "gradient": "grad_quant",
    "accumulator": "acc_quant",
    "weight": "weight_quant",
    "momentum": "momentum_quant",
}
ENTRIES = {role: f"low_precision_scaling_of_{role}" for role in ELEMENTS}
ENTRIES["momentum"] = "low_precision_scaling_of_state_momentum_buffer"


def gradients():
    """Of six steps, of very different sizes; the third are zeros, and the fifth have an infinity."""
    random = np.random.default_rng(0)
    for step in range(6):
        found = [np.float32(random.standard_normal(shape) * 2.0 ** random.integers(-9, 9)) for shape in SHAPES]
        if step == 2:
            found = [0 * g for g in found]
        if step == 4:
            found[1][3] = np.inf
        yield found


def start():
    random = np.random.default_rng(1)
    return [np.float32(random.standard_normal(shape)) for shape in SHAPES]


class Loop:
    """SGD with a momentum of 1/2 and a learning rate of 2^-9, whose products are exact, with all roles rounded."""

    def __init__(self, roles, stochastic):
        self.roles, self.stochastic = roles, stochastic
        self.kept, self.weights, self.momenta = start(), start(), [np.float32(0)] * 3
        self.rows = {(role, j): (np.float32(1), [0.0] * 3) for role in roles for j in range(3)}

    def rounded(self, role, x, j, step):
        if role not in self.roles:
            return x
        key = None
        if self.stochastic:
            key = qcore.fold_in(qcore.fold_in(qcore.fold_in(KEY, step), list(ELEMENTS).index(role)), j)
        scale, past = self.rows[role, j]
        self.rows[role, j] = expected_row(past, x, LARGEST[ELEMENTS[role]], scale)
        return rounded(x, ELEMENTS[role], scale, key)

    def step(self, gradients, step):
        for j, g in enumerate(gradients):
            g = self.rounded("gradient", g, j, step)
            momentum = np.float32(self.momenta[j] / 2 + g)
            self.kept[j] = self.rounded("accumulator", np.float32(self.kept[j] - momentum / 512), j, step)
            self.weights[j] = self.rounded("weight", self.kept[j], j, step)
            self.momenta[j] = self.rounded("momentum", momentum, j, step)
            if "accumulator" not in self.roles:
                self.kept[j] = self.weights[j]

    def row(self, role, j):
        scale, past = self.rows[role, j]
        return np.float32([scale, *past])


def optimizer_of(params, roles, stochastic, key=KEY):
    mode = "stochastic" if stochastic else "nearest"
    told = {ARGUMENTS[role]: quantizer(TEXTS[role], forward_rounding=mode) for role in roles}
    return OptimLP(torch.optim.SGD(params, 2**-9, momentum=0.5), **told, key=key)


def parameters(arrays):
    return [torch.nn.Parameter(torch.tensor(x)) for x in arrays]


def step_of(optimizer, params, gradients):
    for p, g in zip(params, gradients, strict=True):
        p.grad = torch.tensor(g)
    optimizer.step()


def transformation(roles, stochastic=False):
    mode = "stochastic" if stochastic else "nearest"
    told = {ARGUMENTS[role]: qjax.quantizer(TEXTS[role], forward_rounding=mode) for role in roles}
    tx = low_precision(optax.sgd(2**-9, momentum=0.5), **told, key=KEY)

    @jax.jit
    def step(weights, state, gradients):
        updates, state = tx.update(gradients, state, weights)
        return apply_updates(weights, updates, state), state

    return tx, step


@pytest.mark.parametrize(
    ("roles", "stochastic"),
    [*(pytest.param(tuple(ELEMENTS), one, marks=pytest.mark.heavy) for one in (True, False)), (("weight",), False)],
)
def test_equals_a_loop(roles, stochastic):
    """Also saved and loaded in the middle of the run."""
    loop, params = Loop(roles, stochastic), parameters(start())
    optimizer = optimizer_of(params, roles, stochastic)
    tx, step = transformation(roles, stochastic)
    weights = [jnp.asarray(x) for x in start()]
    state = tx.init(weights)
    for number, given in enumerate(gradients()):
        if number == 3:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            params = parameters([p.detach().numpy() for p in params])
            optimizer = optimizer_of(params, roles, stochastic, None if not stochastic else 0)
            optimizer.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
            leaves, tree = jax.tree.flatten((weights, state))
            weights, state = tree.unflatten([jnp.asarray(np.array(x)) for x in leaves])
        loop.step(given, number)
        step_of(optimizer, params, given)
        weights, state = step(weights, state, [jnp.asarray(g) for g in given])
        assert sorted(state.scaling) == sorted(roles)
        for j, p in enumerate(params):
            entries = optimizer.state[p]
            assert {name for name in entries if "scaling" in name} == {ENTRIES[role] for role in roles}
            assert_same_bits(p.detach(), loop.weights[j])
            assert_same_bits(np.asarray(weights[j]), loop.weights[j])
            assert_same_bits(entries["momentum_buffer"], loop.momenta[j])
            assert_same_bits(np.asarray(state.inner[0].trace[j]), loop.momenta[j])
            if "accumulator" in roles:
                assert_same_bits(optimizer.weight_acc[p], loop.kept[j])
                assert_same_bits(np.asarray(accumulators(state)[j]), loop.kept[j])
            for role in roles:
                rows = state.scaling[role][0].trace if role == "momentum" else state.scaling[role]
                assert_same_bits(entries[ENTRIES[role]], loop.row(role, j))
                assert_same_bits(np.asarray(rows[j]), loop.row(role, j))


def test_16_bit_parameters():
    """Are stepped in float32, in which the rows stay when they are loaded."""
    roles, given = ("gradient", "weight", "momentum"), list(gradients())[:4]
    arrays = [x.astype(ml_dtypes.bfloat16) for x in start()]
    params = [torch.nn.Parameter(torch.tensor(x.astype(np.float32)).bfloat16()) for x in arrays]
    optimizer = optimizer_of(params, roles, False)
    tx, step = transformation(roles)
    weights = [jnp.asarray(x) for x in arrays]
    state = tx.init(weights)
    for number, one in enumerate(given):
        if number == 2:
            saved = copy.deepcopy(optimizer.state_dict())
            params = [torch.nn.Parameter(p.detach().clone()) for p in params]
            optimizer = optimizer_of(params, roles, False)
            optimizer.load_state_dict(saved)
        for p, g in zip(params, one, strict=True):
            p.grad = torch.tensor(g).bfloat16()
        optimizer.step()
        weights, state = step(weights, state, [jnp.asarray(g.astype(ml_dtypes.bfloat16)) for g in one])
        for j, p in enumerate(params):
            assert_same_bits(p.detach().view(torch.int16), np.asarray(weights[j]).view(np.int16))
            for role in ("gradient", "weight"):
                assert_same_bits(optimizer.state[p][ENTRIES[role]], np.asarray(state.scaling[role][j]))


def test_all_evaluations_of_a_closure_are_one_step():
    """Which takes the largest magnitude of all, here that of the second evaluation."""
    p, remaining = torch.nn.Parameter(torch.tensor([4.0, -3.0])), [8.0, 64.0, 16.0]
    optimizer = OptimLP(torch.optim.LBFGS([p], lr=0.25, max_iter=3), grad_quant=TEXTS["gradient"])

    def closure():
        p.grad = torch.tensor([1.0, -remaining.pop(0)])
        return torch.tensor(float(len(remaining)))

    optimizer.step(closure)
    assert not remaining
    assert optimizer.state[p][ENTRIES["gradient"]].tolist() == [57344 / 64, 64, 0, 0]


def state_of(optimizer, params):
    return [p.detach() for p in params] + [x for p in params for _, x in sorted(optimizer.state[p].items())]


def test_copies_and_distributed_checkpoints_continue():
    """A step that only makes state makes the rows, which a distributed checkpoint then fills."""

    def make(seed):
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 2)
        inner = torch.optim.Adam(model.parameters(), 2**-6)
        return model, OptimLP(inner, **{ARGUMENTS[role]: text for role, text in TEXTS.items()})

    def steps(model, optimizer, numbers):
        for number in numbers:
            optimizer.zero_grad()
            (model(torch.linspace(-1, 1, 12).reshape(4, 3)) * 2**number).square().sum().backward()
            optimizer.step()

    model, optimizer = make(0)
    steps(model, optimizer, range(3))
    twins = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer))), make(1)]
    other, again = twins[2]
    before = [p.detach().clone() for p in other.parameters()]
    checkpoint.get_state_dict(other, again)
    assert_all_same_bits(list(other.parameters()), before)
    rows = [x for p in other.parameters() for name, x in again.state[p].items() if "_scaling_of_" in name]
    assert [row.tolist() for row in rows] == [[1, 0, 0, 0]] * 10
    saved = copy.deepcopy(checkpoint.get_state_dict(model, optimizer))
    checkpoint.set_state_dict(other, again, model_state_dict=saved[0], optim_state_dict=saved[1])
    steps(model, optimizer, range(3, 5))
    for one, its in twins:
        steps(one, its, range(3, 5))
        assert_all_same_bits(state_of(its, list(one.parameters())), state_of(optimizer, list(model.parameters())))


def stepped(**told):
    params = parameters(start())
    optimizer = OptimLP(torch.optim.Adagrad(params), **told)
    step_of(optimizer, params, next(gradients()))
    return optimizer, params


ROW = torch.tensor([1.0, 0, 0, 0])
WEIGHT, SUM = ENTRIES["weight"], "low_precision_scaling_of_state_sum"


@pytest.mark.parametrize("name", [WEIGHT, SUM])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        (..., "lacks "),
        (None, "is None; allowed is float32[4]"),
        (3, "is 3; allowed is float32[4]"),
        (ROW[:3], "is float32[3]; allowed is float32[4]"),
        (ROW.double(), "is float64[4]; allowed is float32[4]"),
        (ROW * torch.inf, "begins with [inf, nan, nan, nan]; allowed are a finite scale"),
        (ROW * 0, "begins with [0.0, 0.0, 0.0, 0.0]; allowed are a finite scale"),
        (ROW - 2 * torch.eye(4)[2], "begins with [1.0, 0.0, -2.0, 0.0]; allowed are a finite scale"),
    ],
)
def test_saved_rows_that_no_step_made(name, row, words):
    optimizer, _ = stepped(weight_quant=TEXTS["weight"], momentum_quant=TEXTS["weight"])
    good, wrong = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(optimizer.state_dict())
    if row is ...:
        del wrong["state"][1][name]
        words = f"state_dict['state'][1] lacks {name}"
    else:
        wrong["state"][1][name] = row
        words = f"state_dict['state'][1]['{name}'] {words}"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        optimizer.load_state_dict(wrong)
    assert str(optimizer.state_dict()) == str(good)
    optimizer.load_state_dict(good)


def test_checkpoints_of_other_histories():
    delayed, params = stepped(weight_quant=TEXTS["weight"])
    plain, _ = stepped(weight_quant="e4m3fn")
    with pytest.raises(ValueError, match=f"{WEIGHT}; allowed are none"):
        plain.load_state_dict(delayed.state_dict())
    with pytest.raises(ValueError, match=f"lacks {WEIGHT}"):
        delayed.load_state_dict(plain.state_dict())
    delayed.weight_quant = TEXTS["weight"].replace("=3", "=4")
    with pytest.raises(ValueError, match=rf"parameter 0 has {WEIGHT}, which is float32\[4\]; allowed is float32\[5\]"):
        step_of(delayed, params, next(gradients()))
    fresh = OptimLP(torch.optim.Adagrad(params), weight_quant=TEXTS["weight"])
    fresh.load_state_dict(fresh.state_dict())  # whose inner optimizer has entries before the first step
    params[0].grad = None
    fresh.step()
    fresh.load_state_dict(fresh.state_dict())  # and of a parameter without a gradient no row


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_tensors_without_a_scale_in_float32(dtype):
    p = torch.nn.Parameter(torch.ones(2, dtype=dtype))
    p.grad = torch.ones(2, dtype=dtype)
    optimizer = OptimLP(torch.optim.SGD([p]), grad_quant=TEXTS["gradient"], grad_scaling=0.5)
    with pytest.raises(TypeError, match=rf"grad_quant=.* delayed scale, and parameter 0 has a tensor of {dtype}"):
        optimizer.step()
    assert p.grad.tolist() == [1, 1]
    if dtype is torch.bfloat16:
        tx, x = low_precision(optax.sgd(0.1), grad_quant=TEXTS["gradient"]), {"w": jnp.ones(2, jnp.bfloat16)}
        with pytest.raises(TypeError, match=r"grad_quant=.* delayed scale, and gradient of parameter 'w' is bfloat16"):
            tx.update(x, tx.init(x), x)


def test_sharded_parameters_are_refused(monkeypatch):
    import qtorch.optim.quantizers as quantizers

    optimizer, params = stepped(weight_quant=TEXTS["weight"])
    monkeypatch.setattr(quantizers, "is_sharded", lambda x: True)
    with pytest.raises(TypeError, match=r"weight_quant=.* and parameter 0 is a DTensor; allowed are tensors of one"):
        step_of(optimizer, params, next(gradients()))


def test_states_of_jax():
    told = {"weight_quant": TEXTS["weight"], "momentum_quant": TEXTS["weight"]}
    tx, params = low_precision(optax.adam(2**-6), **told), {"b": jnp.ones(3), "a": jnp.ones(())}
    good = tx.init(params)
    assert_same_trees(good.scaling["momentum"][0].nu, {"b": np.float32(ROW), "a": np.float32(ROW)})
    assert good.scaling["momentum"][0].count is None
    assert low_precision(optax.adam(0.1), weight_quant="e4m3fn").init(params).scaling is None
    weight, momentum = good.scaling["weight"], good.scaling["momentum"]
    for scaling, words in (
        (None, "state.scaling has None; allowed is ['weight', 'momentum']"),
        (jnp.ones(3), "state.scaling has 'ArrayImpl'; allowed is"),
        ({"weight": weight}, "state.scaling has ['weight']; allowed is ['weight', 'momentum']"),
        ({"weight": {"b": weight["b"]}, "momentum": momentum}, "state.scaling['weight'] is another tree"),
        ({"weight": weight, "momentum": momentum[1:]}, "state.scaling['momentum'] is another tree"),
        ({"weight": weight | {"a": jnp.ones(3)}, "momentum": momentum}, "state.scaling['weight']['a'] is float32[3]"),
        ({"weight": weight | {"a": jnp.arange(4)}, "momentum": momentum}, "state.scaling['weight']['a'] is int32[4]"),
        ({"weight": weight | {"a": "text"}, "momentum": momentum}, "state.scaling['weight']['a'] is 'text'"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
            tx.update(params, good._replace(scaling=scaling), params)
    mapped = optax.tree_utils.tree_map_params(tx, lambda x: x, good)
    assert jax.tree.structure(mapped) == jax.tree.structure(good)
    plain = low_precision(optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"state.scaling has \['weight'\]; allowed is None"):
        plain.update(params, plain.init(params)._replace(scaling={"weight": weight}), params)
