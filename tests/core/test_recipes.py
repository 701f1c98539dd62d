"""Recipes: their text, what they match, what they refuse, and what the published ones say."""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from qcore import RECIPES, Accumulator, Entry, Hadamard, Product, Recipe, Scale, parse, quantize
from qcore.linalg import matmul

WIDE_HEAD = Recipe([Entry("head"), Entry("block?.[ab]*", "conv", Product("int8", "int8")), *RECIPES["hfp8"].entries])


@pytest.mark.parametrize("recipe", [*RECIPES.values(), WIDE_HEAD], ids=[*RECIPES, "patterns"])
def test_text_makes_the_recipe_again(recipe):
    again = parse(json.loads(json.dumps(recipe.text)))
    assert (again, hash(again), again.text) == (recipe, hash(recipe), str(recipe))
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_a_wrong_name_raises_with_the_names():
    with pytest.raises(KeyError, match=r"'mxfp9' is not a recipe; did you mean mxfp8\? allowed are mxfp8, .*swalp"):
        RECIPES["mxfp9"]
    with pytest.raises(KeyError, match="'zzz' is not a recipe; allowed are mxfp8"):
        RECIPES["zzz"]
    assert RECIPES.get("mxfp9") is None


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
        (lambda: Entry(layer_type="matmul", last=1), ValueError, "'matmul' with first or last"),
        (lambda: Entry(forward="e5m2"), TypeError, "forward="),
        (lambda: Entry(first=-1), ValueError, "first=-1"),
        (lambda: Entry(last="1"), TypeError, "last='1'"),
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
    with pytest.raises(ValueError, match=r"no layer to apply to; the layers are 'a' \(conv\)"):
        RECIPES["mxfp8"].check([("a", "conv")])
    Recipe([Entry("a", "attention")]).check([], ["a"])
    with pytest.raises(ValueError, match="matches no layer"):
        Recipe([Entry("a")]).check([], ["a"])


KINDS = {
    None: ["linear", "conv"],
    "linear": ["linear"],
    "attention": ["attention_scores", "attention_output"],
    "attention_output": ["attention_output"],
    "matmul": ["matmul"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_entries_name_products_by_kind(kind):
    recipe = Recipe([Entry("a*", kind, Product("int8", "int8"))])
    assert parse(recipe.text) == recipe
    every = ["linear", "conv", "attention_scores", "attention_output", "matmul"]
    assert [one for one in every if recipe._entry_at("ab", one)] == KINDS[kind]
    assert not any(recipe._entry_at("b", one) for one in every)


def test_entries_that_count_layers_are_for_layers_only():
    recipe = Recipe([Entry("*", last=1), Entry("*", forward=Product("int8", "int8"))])
    assert recipe._entry_at("a", "linear") == recipe.entries[1]


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
    entry = RECIPES[name].entries[-1]
    assert {entry.forward.accumulator} == {
        product.accumulator
        for one in RECIPES[name].entries
        for product in (one.forward, one.grad_input, one.grad_weight)
    }
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
    entry = RECIPES["hfp8"].entries[-1]
    first, second = (operand.number for operand in entry.forward.operands)
    assert first == second
    assert (first.exp, first.man, first.bias) == (4, 3, 7 + 4)
    assert quantize(np.float32([1e6, -1e6]), first).tolist() == [30.0, -30.0]
    for product in (entry.grad_input, entry.grad_weight):
        assert (product.first.number.text, product.second.number) == ("float(5,2)", first)


def test_fp8_chunked_and_bf16_mixed_have_one_format():
    for name, number in (("fp8_chunked", "float(5,2)"), ("bf16_mixed", "bfloat16")):
        entry = RECIPES[name].entries[-1]
        for product in (entry.forward, entry.grad_input, entry.grad_weight):
            assert [operand.number.text for operand in product.operands] == [number] * 2
    assert RECIPES["bf16_mixed"].entries[0].forward.accumulator == Accumulator()


def test_the_first_and_the_last_layer_have_1_6_9():
    half, eight = "float(6,9)", "float(5,2)"
    layers = [(name, "conv") for name in "abc"] + [("head", "linear")]
    wide = [(half, half)] * 3
    for name, first in (("hfp8", wide), ("fp8_chunked", [(half, eight), (eight, eight), (eight, half)])):
        texts = [
            [tuple(one.number.text for one in product.operands) for product in (made.forward, made.grad_a, made.grad_b)]
            for made in RECIPES[name]._products_of(layers)
        ]
        assert (texts[0], texts[-1]) == (first, wide)
        assert all(half not in pair for pairs in texts[1:-1] for pair in pairs)
        (only,) = RECIPES[name]._products_of(layers[-1:])  # of a model with one layer
        assert only.forward.operands[0].number.text == only.forward.operands[1].number.text == half


def operands(name, entry=-1):
    """The two operands of each of a recipe's three products."""
    made = RECIPES[name].entries[entry]
    return [product.operands for product in (made.forward, made.grad_input, made.grad_weight)]


LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def test_deepseek_has_tiles_of_128_with_scales_and_sums_in_float32():
    wide, entry = RECIPES["deepseek_v3_fp8"].entries
    assert (wide.products, wide.last, entry.layer_type) == (None, 1, "linear")
    tiles = [[(one.scale.outer, one.scale.terms) for one in pair] for pair in operands("deepseek_v3_fp8")]
    assert tiles == [[(1, 128), (128, 128)], [(1, 128), (128, 128)], [(1, 128), (1, 128)]]
    for product in (entry.forward, entry.grad_input, entry.grad_weight):
        assert product.accumulator == Accumulator(chunk=128)
        for one in product.operands:
            assert (one._largest, one.rounding.value, one.scale.history) == (LARGEST["e4m3"], "nearest", None)
            assert quantize(np.float32([1e9, 1.06]), one.number).tolist() == [448.0, 1.0]


def test_nvfp4_rounds_gradients_stochastically_and_transforms_for_weights():
    ends, entry = RECIPES["nvfp4_pretraining"].entries
    assert (ends.first, ends.last, ends.forward) == (1, 1, Product("bfloat16", "bfloat16"))
    assert (ends.layer_type, entry.layer_type) == ("linear", "linear")
    blocks = [[dict(one.number.block) for one in pair] for pair in operands("nvfp4_pretraining")]
    row, square = {-1: 16}, {-2: 16, -1: 16}
    assert blocks == [[row, square], [row, square], [row, row]]
    pairs = operands("nvfp4_pretraining")
    assert [[one.stochastic for one in pair] for pair in pairs] == [[False, False], [True, False], [True, False]]
    assert {one.number.rule for pair in pairs for one in pair} == {"te"}
    assert [[one.transform for one in pair] for pair in pairs] == [[None] * 2, [None] * 2, [Hadamard(law="te")] * 2]
    assert {one.accumulator for one in (entry.forward, entry.grad_input, entry.grad_weight)} == {Accumulator()}


def test_four_over_six_is_to_nearest_for_all_operands():
    ends, entry = RECIPES["nvfp4_four_over_six"].entries
    assert (ends.first, ends.last, ends.forward, entry.layer_type) == (1, 1, Product("bfloat16", "bfloat16"), "linear")
    pairs = operands("nvfp4_four_over_six")
    row, column, square = {-1: 16}, {-2: 16}, {-2: 16, -1: 16}
    assert [[dict(one.number.block) for one in pair] for pair in pairs] == [[row, square], [row, square], [column] * 2]
    every = [one for pair in pairs for one in pair]
    assert {(one.number.four_over_six, one.number.scale_max, one.stochastic) for one in every} == {("mae", 256, False)}
    assert {one.transform for one in every} == {None}


def test_fp8_delayed_is_transformer_engines_hybrid():
    assert RECIPES["fp8_delayed"].delayed
    assert RECIPES["fp8_delayed"].entries[0].layer_type == "linear"
    largest = [[one._largest for one in pair] for pair in operands("fp8_delayed")]
    e4m3, e5m2 = LARGEST["e4m3"], LARGEST["e5m2"]
    assert largest == [[e4m3, e4m3], [e5m2, e4m3], [e5m2, e4m3]]
    assert {one.scale for pair in operands("fp8_delayed") for one in pair} == {Scale(history=1024)}
    for number, most in {(one.number, one._largest) for pair in operands("fp8_delayed") for one in pair}:
        assert quantize(np.float32([1e9, -1e9]), number).tolist() == [most, -most]


def test_wage_has_integers_and_errors_scaled_by_a_rounded_logarithm():
    (x, w), (e, other_w), (other_e, other_x) = operands("wage")
    assert (w, e, x) == (other_w, other_e, other_x)
    assert quantize(np.float32([9, -9, 0.3]), x.number).tolist() == [127 / 128, -127 / 128, 38 / 128]
    assert quantize(np.float32([9, -9, 0.2, 0.3]), w.number).tolist() == [0.5, -0.5, 0, 0.5]
    for most in (1.0, 1.41, 1.42, 2.8, 3.0, 0.0123):
        errors = np.float32([most, -most / 3, 0.001])
        scale = 2.0 ** np.round(np.log2(most))
        expected = np.clip(np.round(errors / scale * 128) / 128, -127 / 128, 127 / 128) * scale
        assert np.array_equal(quantize(errors, e.number), expected.astype(np.float32))
    assert not RECIPES["wage"].stochastic


def test_swalp_has_stochastic_blocks_of_8_bits():
    for pair in operands("swalp"):
        for one in pair:
            assert (one.number.text, one.stochastic) == ("block(8,dim=0)", True)


def test_entries_count_layers_from_both_ends():
    recipe = Recipe([Entry("*", "linear", first=1, last=2), Entry(forward=Product("int8", "int8"))])
    layers = [("a", "conv"), *((name, "linear") for name in "bcdef")]
    assert [one is None for one in recipe._products_of(layers)] == [False, True, False, False, True, True]
    assert [one is None for one in recipe._products_of(layers[:3])] == [False, True, True]
    assert parse(recipe.text) == recipe


def test_the_page_has_an_example():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    lines = re.search("```python\n[^`]*(from qcore import RECIPES.*?)```", page, re.DOTALL)[1].splitlines()
    names = {}
    exec("\n".join(line for line in lines if not line.startswith(("model", "fn"))), names)
    found = names["recipe"]
    assert found.products_for("head", "linear") is None
    assert found.products_for("0", "conv").forward == names["first"]
    assert found._products_of([("1", "conv"), ("2", "conv")])[1] == RECIPES["fp8_chunked"].entries[0].products
    assert [line.split("(")[0] for line in lines[-2:]] == ["model = qtorch.recipes.lower", "fn = qjax.recipes.lower"]
