"""Recipes: their text, what they match, what they refuse, and what the published ones say."""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from qcore import RECIPES, Accumulator, Entry, Product, Recipe, parse, quantize
from qcore.accumulate import matmul

WIDE_HEAD = Recipe([Entry("head"), Entry("block?.[ab]*", "conv", Product("int8", "int8")), *RECIPES["hfp8"].entries])


@pytest.mark.parametrize("recipe", [*RECIPES.values(), WIDE_HEAD], ids=[*RECIPES, "patterns"])
def test_text_makes_the_recipe_again(recipe):
    again = parse(json.loads(json.dumps(recipe.text)))
    assert (again, hash(again), again.text) == (recipe, hash(recipe), str(recipe))
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_patterns_keep_their_spaces():
    assert parse(Recipe([Entry(" a  .*[!b]")]).text).entries[0].name == " a  .*[!b]"


def test_the_first_entry_that_matches_counts():
    assert WIDE_HEAD.products_for("head", "conv") is None
    assert WIDE_HEAD.products_for("block1.a2", "conv").forward.first.number.text == "int8"
    assert WIDE_HEAD.products_for("block1.a2", "linear") == RECIPES["hfp8"].entries[0].products
    assert RECIPES["mxfp8"].products_for("a", "conv") is None


def test_products_of_gradients_follow_the_forward_product():
    entry = Entry(forward=Product("int8", "e5m2", "accumulator(float16)"))
    assert entry.grad_input == Product(None, "e5m2", "accumulator(float16)")
    assert entry.grad_weight == Product(None, "int8", "accumulator(float16)")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Recipe([]), ValueError, "at least one Entry"),
        (lambda: Recipe("mxfp8"), TypeError, "entries='mxfp8' is a str"),
        (lambda: Recipe(["head"]), TypeError, "entries has 'head', a str"),
        (lambda: Entry(3), TypeError, "name=3"),
        (lambda: Entry("it's"), ValueError, "printable characters but '"),
        (lambda: Entry(layer_type="pool"), ValueError, "layer_type='pool'"),
        (lambda: Entry(forward="e5m2"), TypeError, "forward="),
        (lambda: Entry(grad_input=Product()), ValueError, "forward=None with a product of a gradient"),
        (lambda: parse("recipe([entry('a',moments=product())])"), ValueError, "allowed here are layer_type, forward"),
        (lambda: parse("recipe([entry('a)])"), ValueError, "allowed here is '"),
        (lambda: parse("recipe([])"), ValueError, "at least one Entry"),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=message.replace("[", r"\[")):
        make()


def test_patterns_that_match_nothing_are_named_with_the_layers():
    layers = [("a.b", "linear"), ("head", "conv")]
    Recipe([Entry("head"), Entry("*")]).check(layers)
    with pytest.raises(
        ValueError, match=r"entry\('hat'\), which matches no layer; the layers are 'a.b' \(linear\), 'he"
    ):
        Recipe([Entry("hat")]).check(layers)
    with pytest.raises(ValueError, match=r"entry.'head',layer_type=linear"):
        Recipe([Entry("head", "linear")]).check(layers)
    with pytest.raises(ValueError, match="no layer to apply to"):
        Recipe([Entry()]).check([])


def test_mxfp8_has_blocks_of_32_along_each_sum_whose_largest_never_saturates():
    products = RECIPES["mxfp8"].entries[0].products
    x = np.float32(np.random.default_rng(0).standard_normal((64, 96)) * 449)
    for product, blocks in ((products.forward, "-1 -1"), (products.grad_a, "-1 -2"), (products.grad_b, "-2 -2")):
        assert product.accumulator == Accumulator()  # one rounding, to float32
        for operand, axis in zip(product.operands, map(int, blocks.split()), strict=True):
            rows = np.moveaxis(x, axis, -1).reshape(-1, 32)
            scale = 2.0 ** np.ceil(np.log2(np.abs(rows).max(-1, keepdims=True) / 448.0))
            expected = nearest_e4m3(rows / scale) * scale
            found = np.moveaxis(quantize(x, operand.number), axis, -1).reshape(-1, 32)
            assert np.array_equal(found, expected.astype(np.float32))


def nearest_e4m3(x):
    """float64 numbers of at most 448 to the nearest of E4M3's, of ties the even one."""
    step = 2.0 ** np.maximum(np.floor(np.log2(np.abs(x) + 1e-300)), -6) / 8
    return np.round(x / step) * step


@pytest.mark.parametrize("name", ["fp8_chunked", "hfp8"])
def test_sums_are_of_1_6_9_in_chunks_of_64(name):
    (entry,) = RECIPES[name].entries
    a, b = np.float32(np.random.default_rng(1).integers(1, 8, (2, 9, 200))) / 4
    by_rule = [[in_chunks((x * y).tolist(), 64) for y in b] for x in a]
    for length in (1, 32, 128, 200):
        assert by_rule != [[in_chunks((x * y).tolist(), length) for y in b] for x in a]
    for product in (entry.forward, entry.grad_input, entry.grad_weight):
        assert matmul(a, b.T, accumulator=product.accumulator).tolist() == by_rule
        assert [operand.rounding.value for operand in product.operands] == ["nearest"] * 2


def in_chunks(terms, length):
    total = 0.0
    for begin in range(0, len(terms), length):
        inner = 0.0
        for term in terms[begin : begin + length]:
            inner = nearest_10_bits(inner + term)
        total = nearest_10_bits(total + inner)
    return total


def nearest_10_bits(x):
    step = 2.0 ** (np.floor(np.log2(abs(x))) - 9) if x else 1.0
    return float(np.round(x / step) * step)


def test_hfp8_has_one_format_forward_and_another_for_gradients():
    (entry,) = RECIPES["hfp8"].entries
    first, second = (operand.number for operand in entry.forward.operands)
    assert first == second
    assert (first.exp, first.man, first.bias) == (4, 3, 7 + 4)
    assert quantize(np.float32([1e6, -1e6]), first).tolist() == [30.0, -30.0]
    for product in (entry.grad_input, entry.grad_weight):
        assert (product.first.number.text, product.second.number) == ("float(5,2)", first)


def test_fp8_chunked_and_bf16_mixed_have_one_format():
    for name, number in (("fp8_chunked", "float(5,2)"), ("bf16_mixed", "bfloat16")):
        (entry,) = RECIPES[name].entries
        for product in (entry.forward, entry.grad_input, entry.grad_weight):
            assert [operand.number.text for operand in product.operands] == [number] * 2
    assert RECIPES["bf16_mixed"].entries[0].forward.accumulator == Accumulator()


def test_the_page_has_an_example():
    page = (Path(__file__).parents[2] / "docs" / "products.md").read_text()
    lines = re.search("```python\n(from qcore import RECIPES.*?)```", page, re.DOTALL)[1].splitlines()
    names = {}
    exec("\n".join(line for line in lines if "auto_low" not in line), names)
    found = names["recipe"]
    assert found.products_for("head", "linear") is None
    assert found.products_for("0", "conv").forward == names["first"]
    assert found.products_for("1", "conv") == RECIPES["fp8_chunked"].entries[0].products
    assert [line.split("(")[0] for line in lines[-2:]] == ["model = qtorch.auto_low.lower", "fn = qjax.auto_low.lower"]
