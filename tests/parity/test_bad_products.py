"""Wrong arguments of products raise the same kind of error, with the same words, in NumPy, torch and JAX."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import qcore.linalg
import qjax
import qjax.recipes
import qtorch
import qtorch.recipes
from qcore import RECIPES, Accumulator, Entry, Operand, Product, Recipe, Scale, parse

A, B = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
DELAYED = Operand("e4m3fn", scale=Scale(history=2))
PACKAGES = {
    "qcore": (qcore.linalg, np.asarray),
    "qtorch": (qtorch.linalg, torch.from_numpy),
    "qjax": (qjax.linalg, jnp.asarray),
}
# arrays, further arguments, the error, words of its message, and the packages that have the argument
CALLS = [
    ((A, A), {}, ValueError, "a has shape (2, 3), b has shape (2, 3); allowed are", 3),
    ((A[0], B), {}, ValueError, "a has shape (3,), b has shape (3, 4); allowed are", 3),
    ((A.astype(np.int32), B), {}, TypeError, "a has dtype", 3),
    ((A, B.astype(np.int32)), {}, TypeError, "b has dtype", 3),
    ((A, B), {"operands": ("e5m2",)}, TypeError, "operands=('e5m2',); allowed are None and a pair", 3),
    ((A, B), {"operands": ("e5m2", 3)}, TypeError, "operands[1]=3 is a int", 3),
    ((A, B), {"operands": ("e5m3", None)}, ValueError, "operands[0]='e5m3'", 3),
    ((A, B), {"accumulator": "accumulator(chunk=0)"}, ValueError, "chunk=0; allowed is an int from 1 to", 3),
    ((A, B), {"accumulator": "accumulator(fixed(1,0))"}, ValueError, "allowed are formats with numbers above zero", 3),
    ((A, B), {"accumulator": "accumulator(nvfp4)"}, ValueError, "allowed are formats without shared scales", 3),
    ((A, B), {"accumulator": "e5m2"}, TypeError, "allowed are an Accumulator, its text, and None", 3),
    ((A, B), {"grad_a": "e5m2"}, TypeError, "allowed are a Product, its text, and None", 2),
    (
        (A, B),
        {"operands": (DELAYED, None)},
        ValueError,
        "scaling=None; delayed scales need a float32 array of shape",
        2,
    ),
    ((A, B), {"scaling": A}, ValueError, "scaling has shape (2, 3)", 2),
]


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(("arrays", "arguments", "error", "words", "count"), CALLS, ids=[case[3] for case in CALLS])
def test_calls(package, arrays, arguments, error, words, count):
    room, make = PACKAGES[package]
    if package == "qcore" and count == 2:
        pytest.skip("without gradients")
    given = {name: make(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    with pytest.raises(error) as caught:
        room.matmul(*map(make, arrays), **given)
    assert type(caught.value) is error
    assert words in str(caught.value)


# attn_mask, the error and words of its message
MASKS = [
    (np.ones((2, 2), np.int32), TypeError, "attn_mask has dtype int32; allowed are bool and float32"),
    (np.ones((2, 2), np.float16), TypeError, "attn_mask has dtype float16; allowed are bool and float32"),
    (np.ones((2, 3), bool), ValueError, "attn_mask has shape (2, 3); allowed is what broadcasts to the scores' (2, 2)"),
    (np.ones((5, 2, 2), bool), ValueError, "attn_mask has shape (5, 2, 2); allowed is what broadcasts to the scores'"),
    ([[True]], TypeError, "attn_mask is a list; allowed are arrays of bool and float32, and None"),
]


@pytest.mark.parametrize("package", ["qtorch", "qjax"])
@pytest.mark.parametrize(("mask", "error", "words"), MASKS, ids=[case[2] for case in MASKS])
def test_masks_of_attention(package, mask, error, words):
    room, make = PACKAGES[package]
    with pytest.raises(error) as caught:
        room.scaled_dot_product_attention(make(A), make(A), make(A), make(mask) if hasattr(mask, "dtype") else mask)
    assert words in str(caught.value)


@pytest.mark.parametrize("package", ["qtorch", "qjax"])
def test_scales_of_attention(package):
    room, make = PACKAGES[package]
    with pytest.raises(TypeError, match="scale=True is a bool; allowed are a number and None"):
        room.scaled_dot_product_attention(make(A), make(A), make(A), scale=True)


def lowered_by_torch(recipe):
    return qtorch.recipes.lower(torch.nn.Linear(3, 3), recipe)


def lowered_by_jax(recipe):
    return qjax.recipes.lower(lambda w, x: x @ w["w"], recipe)({"w": jnp.eye(3)}, jnp.ones((2, 3)))


@pytest.mark.parametrize(("lowered", "name"), [(lowered_by_torch, ""), (lowered_by_jax, "w")])
def test_recipes_for_layers_that_are_not_there(lowered, name):
    message = rf"entry\('head'\), which matches no layer; the layers are '{name}' \(linear\)"
    with pytest.raises(ValueError, match=message):
        lowered(Recipe([Entry("head"), *RECIPES["mxfp8"].entries]))
    with pytest.raises(ValueError, match=r"layer_type=conv.*, which matches no layer"):
        lowered(Recipe([Entry("c*", "conv", Product("int8", "int8", Accumulator(chunk=4)))]))


@pytest.mark.parametrize(
    "text", ["recipe([entry('a',optimizer=product())])", "recipe([entry('a',forward=product(third=e5m2))])"]
)
def test_recipes_with_unknown_tensors(text):
    with pytest.raises(ValueError, match="allowed here are"):
        parse(text)
