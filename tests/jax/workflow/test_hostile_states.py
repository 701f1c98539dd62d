"""States that nobody's `state_dict` wrote: a ValueError that names the entry, and a model that stays as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_support import layer_of
from jax.experimental import sparse

from qjax.nnx import from_torch
from qjax.quantization import MinMaxObserver, restore
from qjax.reproducible import load_state_dict, state_dict

GOOD = {"fc.weight": np.float32([[1, 2]]), "fc.bias": np.float32([3])}
INTEGERS = {
    "fc.weight.int_repr": np.int8([[1, 2]]),
    "fc.weight.scale": np.float32(0.5),
    "fc.weight.zero_point": np.int32(0),
    "fc.bias": np.float32([3]),
}
RESULTS = INTEGERS | {"fc.scale": np.float32([0.5]), "fc.zero_point": np.int32([3])}
PACKED = {"fc.weight.packed": np.uint8([[0x21]])} | {name: INTEGERS[name] for name in list(INTEGERS)[1:]}
HOSTILE = {
    "None": None,
    "text": "x",
    "ragged": [[1, 2], [3]],
    "objects": np.array([[None, "x"]]),
    "complex": np.ones((1, 2), np.complex64),
    "texts": np.array([["a", "b"]]),
    "another byte order": np.ones((1, 2), ">f4"),
    "times": np.zeros((1, 2), "M8[s]"),
    "bytes": np.zeros((1, 2), "V4"),
    "a key": jax.random.key(0),
    "sparse": sparse.BCOO((np.ones(2, np.float32), np.int32([[0, 0], [1, 1]])), shape=(2, 2)),
    "a shape": jax.ShapeDtypeStruct((1, 2), jnp.float32),
    "another shape": np.ones((5, 7, 3), np.float32),
}


def layer() -> nnx.Module:
    return nnx.Dict(fc=layer_of(nnx.Linear, 2, 1))


@pytest.mark.parametrize("entry", GOOD)
@pytest.mark.parametrize("title", HOSTILE)
def test_floats(title, entry):
    model = layer()
    before = jax.tree.leaves(nnx.state(model))
    for load in (from_torch, load_state_dict):
        with pytest.raises(ValueError, match=entry.replace("fc.", r"fc\.")):
            load(model, GOOD | {entry: HOSTILE[title]})
    assert all((x == y).all() for x, y in zip(before, jax.tree.leaves(nnx.state(model)), strict=True))


@pytest.mark.parametrize("title", list(HOSTILE)[::4])
def test_integers_and_scales(title):
    for good in (INTEGERS, RESULTS, PACKED):
        from_torch(layer(), good)
        for entry in good:
            with pytest.raises(ValueError, match="'fc"):
                from_torch(layer(), good | {entry: HOSTILE[title]})


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("fc.weight.scale", np.float32(np.nan)),
        ("fc.weight.scale", np.float32(-1)),
        ("fc.weight.zero_point", np.int32(300)),
        ("fc.scale", np.float32([0])),
        ("fc.zero_point", np.int32([-1])),
        ("fc.zero_point", np.float32([1.5])),
        ("fc.bias", np.float32([1, 2])),
    ],
)
def test_values_out_of_range(entry, value):
    with pytest.raises(ValueError, match="'fc.*" + entry.rpartition(".")[2]):
        from_torch(layer(), RESULTS | {entry: value})


@pytest.mark.parametrize("name", [3, None, ("fc",)])
def test_names_are_texts(name):
    for load in (from_torch, load_state_dict):
        with pytest.raises(ValueError, match=r"^the name .* of tensors"):
            load(layer(), GOOD | {name: np.float32(1)})


@pytest.mark.parametrize("title", list(HOSTILE)[::4])
def test_attention(title):
    model = layer_of(nnx.MultiHeadAttention, 2, 4, decode=False)
    good = {name: np.asarray(x) for name, x in state_dict(model).items()}
    load_state_dict(model, good)
    for entry in good:
        with pytest.raises(ValueError, match=entry):
            load_state_dict(model, good | {entry: HOSTILE[title]})


@pytest.mark.parametrize("title", list(HOSTILE)[1:])
def test_observers(title):
    entries = {"fc.min_val": HOSTILE[title], "fc.max_val": np.float32([2])}
    with pytest.raises(ValueError, match=r"^array 'fc\.min_val'"):
        restore(MinMaxObserver().init(), entries, "fc")
