"""Wrong calls of public functions: a ValueError or a TypeError, never an error of Python's or a framework's own."""

import jax.numpy as jnp
import pytest
from flax import nnx
from wrong_calls import public, recorded, survey

import qjax.insight
import qjax.nnx
from qjax import quantization

PACKAGES = ("qcore", "qtorch", "qjax")
HUGE = 10**30


# Calls of JAX compile: of this package one function in eleven is called.
@pytest.mark.parametrize(("package", "every", "functions"), [("qcore", 4, 1), ("qtorch", 7, 1), ("qjax", 11, 11)])
def test_no_raw_errors(package, every, functions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a text is taken for a path
    count, found = survey(package, (package,), every, functions)
    assert count > 40
    assert [one for one in found if one.raw] == []


@pytest.mark.heavy
@pytest.mark.parametrize("package", PACKAGES)
def test_no_raw_errors_at_all(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, found = survey(package, (package,))
    assert [one for one in found if one.raw] == []


@pytest.mark.parametrize("package", ["qcore", "qtorch", pytest.param("qjax", marks=pytest.mark.heavy)])
def test_most_public_functions_have_a_right_call(package):
    """Otherwise the tests above would test nothing."""
    functions = public(package)
    assert sum(bool(recorded(name, function)) for name, function in list(functions.items())[:40]) > 25


def rules_of_other_layers():
    init, _ = quantization.prepare_fn(lambda params, x: x @ params["w"], quantization.default_dynamic_qconfig)
    params = {"w": jnp.ones((2, 1))}
    quantization.convert_params(params, init(params, jnp.ones((1, 2))), None)


# What the heavy test found once: OverflowError, MemoryError, IndexError and AttributeError
RAW = {
    "logits=1000000": lambda: qjax.insight.cross_entropy(HUGE, jnp.ones(1, int)),
    "targets=1000000": lambda: qjax.insight.cross_entropy(jnp.ones((1, 2)), HUGE),
    "num_layers=1000000": lambda: qjax.nnx.GRU(1, 1, HUGE, rngs=nnx.Rngs(0)),
    "modules_to_fuse has []": lambda: qjax.nnx.fuse_modules(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), []),
    "x=-100000": lambda: qjax.nnx.relu(-HUGE),
    "x=1000000": lambda: qjax.nnx.relu6(HUGE),
    "x=1000": lambda: qjax.nnx.hard_tanh(HUGE),
    "rules has None for w": rules_of_other_layers,
    "state is or has a tuple": lambda: quantization.restore((1, 2), {"x": jnp.ones(1)}, "x"),
}


@pytest.mark.parametrize("words", RAW)
def test_what_was_raw_once(words):
    with pytest.raises((ValueError, TypeError)) as caught:
        RAW[words]()
    assert words in str(caught.value)
