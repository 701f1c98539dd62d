"""quantize_model: networks of flax that were not written for quantization, by one call."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax_support import layer_of, module_of, run
from support import assert_same_bits

import qjax.nnx as qnn
from qjax._models import all_names, names_of
from qjax.nnx import quantized
from qjax.nnx.rounded import RoundedLayer
from qjax.quantization import (
    QConfig,
    default_dynamic_qconfig,
    default_per_channel_weight_observer,
    default_qconfig,
    functional,
)

X = jnp.asarray(np.random.default_rng(0).standard_normal((8, 4), np.float32))


class Functions(nnx.Module):
    """Linear layers with functions between them, as people have them."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        for name in ("one", "two", "three", "four", "five", "six", "twice"):
            setattr(self, name, nnx.Linear(4, 4, rngs=rngs))
        self.norm, self.act = nnx.BatchNorm(4, rngs=rngs), qnn.ReLU6()

    def __call__(self, x):
        x = nnx.relu(self.norm(self.one(x)))  # fused
        x = self.four(self.act(self.three(jnp.maximum(self.two(x), 0))))  # from three to four in integers
        x = x + jax.nn.leaky_relu(self.five(qnn.relu6(x)))
        return self.twice(self.twice(self.six(x)))


def kinds(model, *types):
    return sorted(name for name, module in all_names(model) if isinstance(module, types))


@pytest.fixture(scope="module")
def floats():
    model = module_of(Functions)
    model.eval()
    return model


@pytest.fixture(scope="module")
def small(floats):
    return qnn.quantize_model(floats, default_qconfig, [X])


def test_what_is_fused_and_where_integers_begin_and_end(floats, small):
    assert {name for name in kinds(small, quantized.Linear) if names_of(small)[name].relu} == {
        "one.module",
        "two.module",
    }
    assert kinds(small, nnx.BatchNorm) == []
    stubs = kinds(small, quantized.Quantize, quantized.DeQuantize)
    both = [f"{name}.{stub}" for name in ("five", "one", "two") for stub in ("dequant", "quant")]
    assert stubs == sorted([*both, "three.quant", "four.dequant", "six.quant", "six.dequant"])
    assert kinds(floats, qnn.QuantWrapper) == []
    assert kinds(small, quantized.dynamic.Linear) == ["twice"]
    exact = run(floats, X)
    assert np.linalg.norm(run(small, X) - exact) < 0.1 * np.linalg.norm(exact)


class Between(nnx.Module):
    """Layers with functions between them that move numbers."""

    def __init__(self, first, second):
        self.one, self.two, self.three = (layer_of(nnx.Linear, 4, 4) for _ in range(3))
        self.first, self.second = first, second

    def __call__(self, x):
        return self.three(self.second(self.two(self.first(self.one(x)))))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("first", "second", "needing"),
    [
        (lambda x: x, lambda x: x[:, ::-1].reshape(8, 2, 2).swapaxes(1, 2).reshape(8, 4), []),
        (lambda x: x.astype(jnp.float32), lambda x: functional.flip(x, 1), ["two"]),  # a cast without an equation
        (lambda x: functional.flip(x, 1), lambda x: jnp.flip(x, 1), ["three"]),  # equal in the jaxpr
        (lambda x: functional.pad(x, ((0, 0), (2, 2)))[:, 2:6], lambda x: jnp.pad(x, ((0, 0), (0, 0))), ["three"]),
        (lambda x: functional.pad(x, ((0, 0), (2, 2)), constant_values=0.3)[:, 2:6], lambda x: x, ["two"]),
    ],
)
def test_functions_that_move_numbers_take_integers_where_they_can(first, second, needing):
    small = qnn.quantize_model(Between(first, second), default_qconfig, [X])
    assert kinds(small, quantized.Quantize) == sorted(f"{name}.quant" for name in ["one", *needing])
    floats = qnn.quantize_model(Between(lambda x: first(x) + 0, lambda x: second(x) + 0), default_qconfig, [X])
    assert kinds(floats, quantized.Quantize) == ["one.quant", "three.quant", "two.quant"]
    assert_same_bits(small(X), floats(X))


@pytest.mark.heavy
def test_copies_files_and_exports_have_the_same_bits(floats, small, recwarn):
    y = small(X)
    exported = jax.export.export(jax.jit(lambda x: small(x)))(X)
    other = qnn.quantize_model(floats, default_qconfig, [X / 2])
    again = qnn.from_torch(other, qnn.to_torch(small))
    graph, state = nnx.split(small)
    nnx.update(other, state)
    for model in (nnx.clone(small), again, other, nnx.merge(graph, state), exported.call, nnx.jit(lambda x: small(x))):
        assert_same_bits(model(X), y)


def train(model):
    optimizer = nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param)
    optimizer.update(model, nnx.jit(nnx.grad(lambda model: (model(X) ** 2).mean()))(model))


def convolutions():
    norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    return nnx.Sequential(layer_of(nnx.Conv, 4, 4, (3,)), norm, qnn.ReLU(), layer_of(nnx.Linear, 4, 2))


@pytest.mark.parametrize(
    ("qconfig", "data"),
    [
        pytest.param(None, {"train": train}, marks=pytest.mark.heavy),
        pytest.param(QConfig(None, default_per_channel_weight_observer), {}, marks=pytest.mark.heavy),
        (QConfig(None, default_per_channel_weight_observer), {"calibrate": [X]}),
        pytest.param(
            QConfig("e4m3fn", default_per_channel_weight_observer), {"calibrate": [X]}, marks=pytest.mark.heavy
        ),
        pytest.param(QConfig("e4m3fn", "mxfp8_e4m3"), {"calibrate": [X]}, marks=pytest.mark.heavy),
        pytest.param(QConfig("e4m3fn", "mxfp8_e4m3"), {"train": train}, marks=pytest.mark.heavy),
    ],
    ids=["training", "weights", "fused weights", "a format", "formats", "training of formats"],
)
def test_settings(qconfig, data):
    model = convolutions()
    made = qnn.quantize_model(model, qconfig, **data)
    model.eval()
    exact, found = run(model, X), run(made, X)
    assert jnp.linalg.norm(exact - found) < 0.3 * jnp.linalg.norm(exact)
    states = {row.path: row.state for row in qnn.report(made)}
    assert set(states.values()) <= {"quantized", "rounded", "passing", "float"}
    if qconfig is not None:
        assert states["0"] == states["3"] == "rounded"
        assert isinstance(made.layers[3], RoundedLayer)
    assert ("1" in states) is not bool(data)  # the batch norm, where nothing shows what follows what


@pytest.mark.heavy
def test_dynamic_settings_and_parts(floats):
    model = convolutions()
    with pytest.warns(UserWarning, match=r"stay in floats: layer '0' \(Conv\): there is no dynamic Conv"):
        made = qnn.quantize_model(model, default_dynamic_qconfig)
    assert kinds(made, quantized.dynamic.Linear) == ["3"]
    mixed = qnn.quantize_model(model, {"": default_qconfig, "3": default_dynamic_qconfig, nnx.BatchNorm: None}, [X])
    assert kinds(mixed, quantized.dynamic.Linear) == ["3"]
    assert kinds(mixed, quantized.Conv) == ["0.module"]
    by_type = qnn.quantize_model(model, {nnx.Linear: default_qconfig}, [X])
    assert kinds(by_type, nnx.BatchNorm, quantized.Linear) == ["1", "3.module"]


@pytest.mark.heavy
def test_functions_that_calibrate_are_compiled(floats, small, recwarn):
    def run(model):
        nnx.jit(lambda model, x: model(x))(model, X)

    for data in (run, [np.asarray(X)]):
        assert_same_bits(qnn.quantize_model(floats, default_qconfig, data)(X), small(X))


class Conv1D(nnx.Module):
    """A linear layer that someone wrote."""

    def __init__(self):
        self.weight = nnx.Param(jnp.ones((4, 4)))

    def __call__(self, x):
        return x @ self.weight[...]


class SameConv(nnx.Conv):
    """A convolution that pads in a child and calls its base class."""

    def __init__(self):
        super().__init__(4, 4, (2,), padding="VALID", rngs=nnx.Rngs(0))
        self.pad = nnx.Dropout(0.5)

    def __call__(self, x):
        return super().__call__(jnp.pad(self.pad(x, deterministic=True), ((0, 1), (0, 0))))


@pytest.mark.heavy
def test_layers_that_stay_in_floats():
    model = nnx.Sequential(SameConv(), Conv1D(), layer_of(nnx.MultiHeadAttention, 2, 4, decode=False))
    model = nnx.Sequential(model, layer_of(nnx.Linear, 4, 4))
    with pytest.warns(UserWarning, match="these layers stay in floats") as found:
        made = qnn.quantize_model(model, {"": default_qconfig, "0.2.out": None}, [X])
    text = str(found[0].message)
    assert "layer '0.0' (SameConv): it is of a subclass of Conv, and only exact types are swapped" in text
    assert "layer '0.1' (Conv1D): there is no quantized Conv1D" in text
    assert "0.2." not in text
    assert kinds(made, quantized.Linear) == ["0.2.key.module", "0.2.query.module", "0.2.value.module", "1.module"]


class Scanned(nnx.Module):
    """A table, layers as one stack that is scanned over, and a head."""

    def __init__(self):
        make = nnx.vmap(lambda rngs: nnx.Linear(4, 4, rngs=rngs), in_axes=0, out_axes=0)
        self.table, self.head = layer_of(nnx.Embed, 5, 4), layer_of(nnx.Linear, 4, 2)
        self.stack = nnx.split_rngs(splits=3)(make)(nnx.Rngs(0))

    def __call__(self, tokens):
        run = nnx.scan(lambda layer, x: layer(x), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        return self.head(run(self.stack, self.table(tokens)))


@pytest.mark.heavy
@pytest.mark.parametrize("qconfig", [default_qconfig, default_dynamic_qconfig])
def test_stacks_and_tables(qconfig):
    tokens = jnp.array([[0, 3], [4, 1]])
    with pytest.warns(
        UserWarning, match=r"layer 'stack' \(Linear\): its parameters are those of several layers"
    ) as found:
        made = qnn.quantize_model(Scanned(), qconfig, [tokens])
    assert "table" not in str(found[0].message)
    quantizes_table = qconfig is default_qconfig  # or where it is named
    assert kinds(made, quantized.Embed) == ["table"] * quantizes_table
    assert made(tokens).shape == (2, 2, 2)


class Calls(nnx.Module):
    """A batch norm that is called with a flag."""

    def __init__(self):
        self.conv, self.bn = nnx.Conv(4, 4, (3,), rngs=nnx.Rngs(0)), nnx.BatchNorm(4, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.bn(self.conv(x), use_running_average=True)


def linear():
    return nnx.Linear(4, 4, rngs=nnx.Rngs(0))


@pytest.mark.heavy
def test_flags_of_calls_are_named():
    with pytest.raises(ValueError, match="layer 'bn' is called with its input, use_running_average; a quantized"):
        qnn.quantize_model(Calls(), None, [X])


@pytest.mark.heavy
def test_layers_without_settings_are_called_as_they_are():
    kept = qnn.quantize_model(Calls(), {"": default_qconfig, "bn": None}, [X])
    assert kinds(kept, nnx.BatchNorm) == ["bn"]


@pytest.mark.heavy
def test_words_go_into_a_table_that_is_quantized():
    """The words are no numbers of a layer in integers, and the rows are floats, which a QuantStub takes."""
    model, words = nnx.Sequential(layer_of(nnx.Embed, 8, 4), layer_of(nnx.Linear, 4, 4)), jnp.arange(8)
    made = qnn.quantize_model(model, calibrate=[words])
    rows = {row.path: (row.state, row.bits) for row in qnn.report(made)}
    assert (rows["0"], rows["1.module"]) == (("quantized", 8), ("quantized", 8))
    assert jnp.abs(made(words) - model(words)).max() < 0.05


def test_numbers_of_the_first_call_are_kept():
    """Calibration writes to the array that it has shown."""
    batch = np.array(X)

    def calibrate(small):
        small(batch)
        batch[:] = np.nan

    qnn.quantize_model(nnx.Sequential(linear()), QConfig("int8", "int8"), calibrate)  # without a warning


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(QConfig("e4m3fn", "mxfp4"), marks=pytest.mark.heavy),
        pytest.param(None, marks=pytest.mark.heavy),
        default_dynamic_qconfig,
        pytest.param(QConfig(None, "gguf(q8_0)"), marks=pytest.mark.heavy),
    ],
    ids=["formats", "integers", "dynamic", "gguf"],
)
@pytest.mark.filterwarnings("ignore")  # of orbax
def test_orbax_restores_the_bits(settings, tmp_path):
    checkpoint = pytest.importorskip("orbax.checkpoint")
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    rngs = map(nnx.Rngs, range(2))
    floats = (nnx.Sequential(nnx.Linear(4, 4, rngs=one), nnx.BatchNorm(4, rngs=one)) for one in rngs)
    saved, other = (qnn.quantize_model(one, settings, [x]) for one in floats)
    with checkpoint.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", nnx.state(saved))
        saver.wait_until_finished()
        shapes = jax.tree.map(checkpoint.utils.to_shape_dtype_struct, nnx.state(other))
        nnx.update(other, saver.restore(tmp_path / "state", shapes))
    assert_same_bits(np.asarray(other(x)), np.asarray(saved(x)))
