"""The parameters of JAX's primitives: in one file, and there in this version of JAX."""

import ast
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas, sparse
from jax.extend import core

from qjax._parameters import CHECKPOINT, Parameters, _Parameter, of_bind, parameters

ROOT = Path(__file__).parents[2]
X = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
MESH = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
ROWS = jax.sharding.PartitionSpec("rows")
OWN = {"adds", "keyed", "levels", "products", "which", "w", "w1", "w2"}  # of our own primitive, and examples
READS = {name: row.primitives for name, row in vars(Parameters).items() if isinstance(row, _Parameter)}


@jax.custom_jvp
def own_tangent(x):
    return jnp.sin(x)


own_tangent.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), tangents[0]))


@jax.custom_vjp
def own_gradient(x):
    return jnp.sin(x)


own_gradient.defvjp(lambda x: (x, x), lambda x, g: (g,))


def twice(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2


def chosen(x):
    return jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)


def pooled(op, start, x):
    return jax.lax.reduce_window(x, np.float32(start), op, (2, 2), (1, 1), "VALID")


def indexed(method, x):
    return getattr(x.at[jnp.array([1, 2])], method)(2.0)


OF_X = {  # a program with each primitive
    "scan": lambda x: jax.lax.scan(lambda c, row: (c + row, row), x[0], x),
    "jit": lambda x: jax.jit(jnp.tanh)(x),
    CHECKPOINT: jax.checkpoint(jnp.sin),
    "while": lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 3, lambda x: x + 1, x),
    "cond": chosen,
    "shard_map": jax.shard_map(jnp.cos, mesh=MESH, in_specs=ROWS, out_specs=ROWS),
    "pallas_call": lambda x: pallas.pallas_call(twice, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x),
    "ffi_call": lambda x: jax.ffi.ffi_call("a_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x),
    "custom_jvp_call": own_tangent,
    "custom_vjp_call": own_gradient,
    "name": lambda x: checkpoint_name(x, "x"),
    "dot_general": lambda x: x @ x.T,
    "ragged_dot_general": lambda x: jax.lax.ragged_dot(x, jnp.ones((2, 4, 5)), jnp.array([1, 2])),
    "conv_general_dilated": lambda x: jax.lax.conv(x[None, None], jnp.ones((1, 1, 2, 2)), (1, 1), "VALID"),
    "reduce_window_max": partial(pooled, jax.lax.max, -np.inf),
    "reduce_window_min": partial(pooled, jax.lax.min, np.inf),
    "reduce_window_sum": partial(pooled, jax.lax.add, 0),
    "reduce_sum": lambda x: x.sum(0),
    "reduce_max": lambda x: x.max(0),
    "reduce_min": lambda x: x.min(0),
    "reduce_prod": lambda x: x.prod(0),
    "reduce_and": lambda x: (x > 0).all(0),
    "reduce_or": lambda x: (x > 0).any(0),
    "argmax": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(0),
    "cumsum": lambda x: jax.lax.cumsum(x),
    "sort": lambda x: jax.lax.sort(x),
    "top_k": lambda x: jax.lax.top_k(x, 2),
    "split": lambda x: jax.lax.split(x, (1, 2)),
    "concatenate": lambda x: jnp.concatenate([x, x]),
    "iota": lambda x: jax.lax.iota(jnp.int32, 3),
    "rev": lambda x: x[::-1],
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x, (2, 3, 4)),
    "transpose": lambda x: x.T,
    "tile": lambda x: jax.lax.tile(x, (2, 1)),
    "slice": lambda x: jax.lax.slice(x, (0, 1), (2, 3)),
    "pad": lambda x: jnp.pad(x, 1),
    "gather": lambda x: x[jnp.array([1, 2])],
    "dynamic_slice": lambda x: jax.lax.dynamic_slice(x, (1, 1), (2, 2)),
    "scatter": partial(indexed, "set"),
    "scatter-add": partial(indexed, "add"),
    "scatter-mul": partial(indexed, "mul"),
    "scatter-max": partial(indexed, "max"),
    "scatter-min": partial(indexed, "min"),
    "integer_pow": lambda x: x**3,
    "round": jnp.round,
    "reduce_precision": lambda x: jax.lax.reduce_precision(x, 5, 2),
}
OF_SPARSE = {  # and products with a sparse array, with the name of its class
    "bcoo_dot_general": ("BCOO", lambda e: e @ X.T),
    "bcoo_spdot_general": ("BCOO", lambda e: e @ e.T),
    "bcoo_dot_general_sampled": (
        "BCOO",
        lambda e: sparse.bcoo_dot_general_sampled(X, X.T, e.indices, dimension_numbers=(((1,), (0,)), ((), ()))),
    ),
    "bcsr_dot_general": ("BCSR", lambda e: e @ X.T),
    "coo_matvec": ("COO", lambda e: e @ X[0]),
    "coo_matmat": ("COO", lambda e: e @ X.T),
    "csr_matvec": ("CSR", lambda e: e @ X[0]),
    "csr_matmat": ("CSR", lambda e: e @ X.T),
}


def equations_of(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from equations_of(inner)


def equation_of(primitive):
    """The first equation of a primitive in its program."""
    if primitive in OF_SPARSE:
        kind, program = OF_SPARSE[primitive]
        traced = jax.make_jaxpr(program)(getattr(sparse, kind).fromdense(X))
    else:
        traced = jax.make_jaxpr(OF_X[primitive])(X)
    found = [one for one in equations_of(traced.jaxpr) if one.primitive.name == primitive]
    assert found, f"{primitive} is not in {traced}"
    return found[0]


@pytest.mark.parametrize("primitive", sorted({one for primitives in READS.values() for one in primitives}))
def test_each_parameter_is_there(primitive):
    found = parameters(equation_of(primitive))
    missing = [name for name, primitives in READS.items() if primitive in primitives and name not in found.given]
    assert not missing


def test_parameters_of_derivatives():
    for primitive, count in (("custom_jvp_call", 2), ("custom_vjp_call", 3)):
        found = of_bind(equation_of(primitive))
        assert (len(found.subfuns), found.symbolic_zeros) == (count, False)
    assert callable(found.out_trees)


def test_parameters_of_versions():
    """A scan says in one of two ways how many operands are constants."""
    found = parameters(equation_of("scan"))
    assert (found.num_consts, found.num_carry) == (0, 1) or found.ft_in is not None


def test_a_missing_parameter_is_named():
    primitive = SimpleNamespace(name="scan")
    found = parameters(SimpleNamespace(primitive=primitive, params={"size": 3}))
    with pytest.raises(RuntimeError, match=r"jax .* has no parameter 'length' of scan, which qjax reads; allowed"):
        _ = found.length
    assert found.axes is None  # which no scan has


def names_read(source):
    """The names by which a program reads dictionaries of parameters."""
    for node in ast.walk(ast.parse(source)):
        key = owner = None
        if isinstance(node, ast.Subscript):
            key, owner = node.slice, node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            key, owner = node.args[0], node.func.value
        elif isinstance(node, ast.Compare):
            key, owner = node.left, node.comparators[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and ast.unparse(owner).endswith("params"):
            yield key.value


def test_parameters_are_read_in_one_file():
    files = sorted((ROOT / "qjax").rglob("*.py"))
    found = {
        f"{path.relative_to(ROOT)} {name}" for path in files for name in names_read(path.read_text(encoding="utf-8"))
    }
    assert not [one for one in found if one.partition(" ")[2] not in OWN], "qjax/_parameters.py has their names"


def test_reads_are_found():
    source = 'equation.params["axes"]\nparams.get("axis", 0)\n"jaxpr" in params\nqparams.scale\noptions["y"]\n'
    assert sorted(names_read(source)) == ["axes", "axis", "jaxpr"]
