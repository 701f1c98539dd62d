"""A product has one name: in reports, in watches, and for entries."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx
from flax_support import module_of

from qcore import RECIPES, Entry, Product, Recipe, Rule
from qjax.insight import watch
from qjax.recipes import lower, report

X = jnp.ones((4, 32))
NEAREST = {"forward_rounding": "nearest", "backward_rounding": "nearest"}
ALL = Recipe([Entry(forward=Product("e4m3fn", "e4m3fn"))])


class Attention(nnx.Module):
    def __init__(self, rngs):
        self.query, self.key = (nnx.Linear(32, 32, rngs=rngs) for _ in range(2))

    def __call__(self, x):
        return jnp.tanh(self.query(x)) + self.key(x)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks, self.head = nnx.List([Attention(rngs) for _ in range(2)]), nnx.Linear(32, 32, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.head(x))


class Dense(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(8, name="last")(linen.Dense(32, name="first")(x))


def of_nnx():
    graph, state = nnx.split(module_of(lambda: Net(nnx.Rngs(0))))
    places = ["blocks.0.query", "blocks.0.key", "blocks.1.query", "blocks.1.key", "head", "head #1"]
    return (lambda state, x: nnx.merge(graph, state)(x)), state, places


def of_equinox():
    arrays, rest = eqx.partition(eqx.nn.MLP(32, 32, 32, 2, key=jax.random.key(0)), eqx.is_array)
    return (lambda arrays, x: jax.vmap(eqx.combine(arrays, rest))(x)), arrays, ["layers.0", "layers.1", "layers.2"]


def of_linen():
    return (lambda v, x: Dense().apply(v, x)), Dense().init(jax.random.key(0), X), ["Dense.first", "Dense.last"]


def of_dict():
    w = jnp.eye(32)
    parameters = {"dense": {"kernel": w}, "rest": [w, w], "top": w}
    places = ["dense", "rest.0", "rest.1", "top"]
    return (
        (lambda p, x: x @ p["dense"]["kernel"] @ p["rest"][0] @ p["rest"][1] @ p["top"]),
        parameters,
        places,
    )


def of_array():
    return (lambda kernel, x: x @ kernel @ kernel), jnp.eye(32), ["kernel", "kernel #1"]


@pytest.mark.parametrize("made", [of_nnx, of_equinox, of_linen, of_dict, of_array], ids=lambda made: made.__name__[3:])
def test_one_name(made):
    fn, parameters, places = made()
    lowered = lower(fn, ALL)
    found = [f"{one.path} #{one.number}" if one.number else one.path for one in report(lowered, parameters, X)]
    assert sorted(found) == sorted(places)
    sites = jax.eval_shape(lambda p, x: watch(lowered)(p, x)[1], parameters, X)
    assert {site.path for site in sites} == set(places)
    name = places[0]
    one = report(lower(fn, Recipe([Entry(name, forward=Product("e4m3fn", "e4m3fn"))])), parameters, X)
    assert [each.path for each in one if each.products] == [each.path for each in one if each.path == name]


@pytest.mark.parametrize("made", [of_nnx, of_equinox, of_linen, of_dict], ids=lambda made: made.__name__[3:])
def test_rules_have_the_names_of_reports(made):
    fn, parameters, places = made()

    def sites(**said):
        step = watch(jax.grad(lambda p: lower(fn, **NEAREST, **said)(p, X).sum()))
        return jax.eval_shape(lambda p: step(p)[1], parameters)

    found = sites(forward_number="e4m3fn", backward_number="e5m2", weight_number="e5m2")
    assert {(site.path, site.kind) for site in found} == {
        (place, kind) for place in places for kind in ("output", "gradient", "weight")
    }
    one = {site.path for site in sites(rules=[Rule(places[0], weight_number="e4m3fn")])}
    assert one == {place for place in places if place.partition(" ")[0] == places[0]}
    with pytest.raises(ValueError, match=f"rules match no layer; the layers are '{places[0]}' ?"):
        sites(rules=[Rule("nowhere", weight_number="e4m3fn")])


def test_other_layers_have_the_names_of_modules_and_groups():
    def fn(p, x):
        return jnp.tanh(jnp.tanh(x @ p["block"]["w"])) @ p["head"]["w"]

    low = lower(fn, ["activation"], forward_number="e4m3fn", **NEAREST)
    found = watch(low)({"block": {"w": jnp.eye(32)}, "head": {"w": jnp.eye(32)}}, X)[1]
    assert [str(site) for site in found] == ["activation:output", "activation #1:output"]
    scoped = watch(jax.named_scope("net")(low))({"block": {"w": jnp.eye(32)}, "head": {"w": jnp.eye(32)}}, X)[1]
    assert [str(site) for site in scoped] == ["activation:output", "activation #1:output"]


def test_gradients_have_the_name_of_their_product():
    fn, parameters, places = of_nnx()
    lowered = lower(fn, RECIPES["bf16_mixed"])
    step = watch(jax.grad(lambda p: lowered(p, X).sum()))
    sites = jax.eval_shape(lambda p: step(p)[1], parameters)
    assert {site.path for site in sites} == set(places)
    assert {site.role.partition(".")[0] for site in sites} >= {"input", "grad_input", "grad_weight"}


def test_report_takes_a_key():
    lowered = lower(lambda w, x: x @ w, RECIPES["swalp"])
    assert report(lowered, jnp.eye(32), X, key=1).products == report(lowered, jnp.eye(32), X).products


@pytest.mark.parametrize("arguments", [(jnp.sin, optax.sgd(0.1)), (optax.sgd(0.1),)], ids=["second", "first"])
def test_an_optimizer_is_left_out(arguments):
    with pytest.raises(TypeError, match="watch the function that calls its update"):
        watch(*arguments)
