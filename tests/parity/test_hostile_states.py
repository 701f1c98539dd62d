"""States of optimizers with defined bits that no step made: an error that names the entry, in all packages."""

import copy
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import qcore.reproducible
import qjax.reproducible
import qtorch.reproducible

ROOMS = {
    "qcore": (qcore.reproducible, np.asarray),
    "qtorch": (qtorch.reproducible, torch.from_numpy),
    "qjax": (qjax.reproducible, jnp.asarray),
}
X = np.ones(2, np.float32)
COUNTS = [-1.0, 0.5, np.nan, np.inf]


@pytest.mark.parametrize("package", ROOMS)
@pytest.mark.parametrize("count", COUNTS)
def test_counts_of_steps(count, package):
    room, array = ROOMS[package]
    x, one, wrong = array(X), array(np.float32(1)[...]), array(np.float32(count)[...])
    with pytest.raises(ValueError, match=rf"^step={count}; allowed is a whole number >= 1"):
        room.adam_step(x, x, x, x, wrong, one)
    with pytest.raises(ValueError, match=rf"^step={count}; allowed is a whole number >= 0"):
        room.rate(qcore.reproducible.Cosine(1.0, 10), wrong)


def test_a_count_that_was_changed_between_steps():
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = qtorch.reproducible.Adam([p])
    for count in (0.0, *COUNTS):
        p.grad = torch.ones(2)
        optimizer.step()
        optimizer.state[p]["step"].fill_(count)
        if count:
            with pytest.raises(ValueError, match=rf"^step={count}; allowed is a whole number >= 0"):
                optimizer.step()
            optimizer.state.clear()


def test_a_traced_count_is_taken():
    rate = qjax.reproducible.rate
    schedule = qcore.reproducible.Milestones(1.0, (2,), 0.5)
    found = jax.vmap(lambda step: rate(schedule, step))(jnp.float32([1, 2]))
    assert found.tolist() == [1.0, 0.5]


def trained(kind):
    """An optimizer of torch after a step, and its parameter."""
    p = torch.nn.Parameter(torch.ones(2))
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(qtorch.reproducible, kind)([p], **options)
    p.grad = torch.ones(2)
    optimizer.step()
    return optimizer, p


STATE, GROUP = ("state", 0), ("param_groups", 0)
ALL = [
    (("state",), []),
    (("param_groups",), None),
    (("param_groups",), []),
    (GROUP, 3),
    ((*GROUP, "params"), []),
    ((*GROUP, "params"), 3),
    ((*GROUP, "lr"), "fast"),
    ((*GROUP, "lr"), -1.0),
    ((*GROUP, "lr"), torch.ones(2)),
    ((*GROUP, "weight_decay"), None),
    (STATE, [1]),
]
TENSORS = [None, 3, torch.ones(3), torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.float64)]
CASES = {
    "SGD": [((*STATE, "momentum_buffer"), x) for x in TENSORS]
    + [((*GROUP, "momentum"), -1), ((*GROUP, "nesterov"), 2)],
    "Adam": [((*STATE, name), x) for name in ("exp_avg", "exp_avg_sq") for x in TENSORS]
    + [((*STATE, "step"), x) for x in (*map(torch.tensor, COUNTS), torch.ones(1), torch.tensor(3), 3, None)]
    + [((*GROUP, "betas"), x) for x in ((0.9,), (2, 0.9), None)],
}


@pytest.mark.parametrize(
    ("kind", "path", "value"), [(kind, *case) for kind, cases in CASES.items() for case in ALL + cases]
)
def test_states_of_torch(kind, path, value):
    optimizer, _ = trained(kind)
    good = copy.deepcopy(optimizer.state_dict())
    wrong, before = copy.deepcopy(good), copy.deepcopy(good)
    *outer, last = path
    place = wrong
    for key in outer:
        place = place[key]
    place[last] = value
    words = "state_dict" + "".join(f"[{key!r}]" for key in path)
    if path[:2] == GROUP and path[2:] and path[2] != "params":  # checked as the optimizer's own argument is
        words = f"state_dict['param_groups'][0]: {path[2]}"
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(words)}"):
        optimizer.load_state_dict(wrong)
    assert str(optimizer.state_dict()) == str(before)
    optimizer.load_state_dict(good)
    optimizer.step()


@pytest.mark.parametrize("kind", CASES)
def test_states_of_torch_that_lack_an_entry(kind):
    optimizer, _ = trained(kind)
    for wrong in ([], None, "state"):
        with pytest.raises(TypeError, match=r"^state_dict is a"):
            optimizer.load_state_dict(wrong)
    state = optimizer.state_dict()
    for name in state["state"][0]:
        lacking = copy.deepcopy(state)
        del lacking["state"][0][name]
        lacking["state"][0]["other"] = 1
        with pytest.raises(TypeError, match=re.escape(f"state_dict['state'][0]['{name}'] is a NoneType")):
            optimizer.load_state_dict(lacking)
    for name in ("lr", "params", "weight_decay"):
        lacking = copy.deepcopy(state)
        del lacking["param_groups"][0][name]
        with pytest.raises(ValueError, match=re.escape(f"state_dict['param_groups'][0] lacks {name}")):
            optimizer.load_state_dict(lacking)


@pytest.mark.parametrize(("kind", "options"), [("SGD", {}), ("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {})])
def test_states_of_torchs_optimizers_are_taken(kind, options):
    p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    theirs, ours = (getattr(room, kind)([x], **options) for room, x in ((torch.optim, p), (qtorch.reproducible, q)))
    ours.load_state_dict(theirs.state_dict())  # before a step
    p.grad = q.grad = torch.ones(2)
    theirs.step()
    ours.load_state_dict(theirs.state_dict())
    ours.step()


OPTIMIZERS = {"sgd": qjax.reproducible.sgd(0.1, momentum=0.9), "adam": qjax.reproducible.adam(0.1)}
P = {"w": jnp.ones(2)}
OF_JAX = [
    ("sgd", "state is another tree", None),
    ("sgd", "state is another tree", [jnp.ones(2)]),
    ("sgd", "state is another tree", {"v": jnp.ones(2)}),
    ("sgd", "velocity is a", {"w": "text"}),
    ("sgd", "velocity has shape (3,)", {"w": jnp.ones(3)}),
    ("sgd", "velocity is", {"w": jnp.int32([1, 2])}),
    ("adam", "state is a dict", {}),
    ("adam", "state is a tuple", (1, 2)),
    *(("adam", f"state.step={count}", {"step": jnp.float32(count)}) for count in COUNTS),
    ("adam", "state.step is", {"step": None}),
    ("adam", "state.step is", {"step": jnp.int32(1)}),
    ("adam", "state.step has shape (1,)", {"step": jnp.ones(1)}),
    ("adam", "state.first is another tree", {"first": [jnp.ones(2)]}),
    ("adam", "state.second is another tree", {"second": None}),
    ("adam", "first has shape (3,)", {"first": {"w": jnp.ones(3)}}),
    ("adam", "second is", {"second": {"w": jnp.int32([1, 2])}}),
]


@pytest.mark.parametrize(("kind", "words", "state"), OF_JAX)
def test_states_of_jax(kind, words, state):
    optimizer = OPTIMIZERS[kind]
    good = optimizer.init(P)
    wrong = good._replace(**state) if kind == "adam" and state and isinstance(state, dict) else state
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(words)}"):
        optimizer.step(P, P, wrong)
    with pytest.raises(ValueError, match=r"^gradients is another tree than params"):
        optimizer.step(P, [jnp.ones(2)], good)
