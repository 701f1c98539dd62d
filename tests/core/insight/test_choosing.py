"""The search for formats by site, on losses that are written down: no model, no framework."""

import itertools
import math

import numpy as np
import pytest

from qcore import Recipe, parse
from qcore.insight import choose_formats, sensitivity
from qcore.insight.choosing import bits_per_element, check_batches, mean_over, recipe_of, sqnr

BITS = {"e4m3fn": 8, "e3m2fn": 6, "e2m1fn": 4}
SITES = {"a": 100, "b": 300, "c": 50}
# What each format adds to the loss at each site.
COSTS = {
    "a": {"e4m3fn": 0.00, "e3m2fn": 0.10, "e2m1fn": 0.90},
    "b": {"e4m3fn": 0.01, "e3m2fn": 0.02, "e2m1fn": 0.05},
    "c": {"e4m3fn": 0.00, "e3m2fn": 0.30, "e2m1fn": 0.70},
}


def separable(formats):
    return 1.0 + sum(COSTS[site][text] for site, text in formats.items()), np.zeros(1)


def mean_bits(formats):
    return sum(BITS[text] * SITES[site] for site, text in formats.items()) / sum(SITES.values())


def all_points(loss):
    for texts in itertools.product(BITS, repeat=len(SITES)):
        formats = dict(zip(SITES, texts, strict=True))
        yield mean_bits(formats), loss(formats)[0], formats


def test_each_site_is_rounded_alone():
    rows = sensitivity(SITES, BITS, separable)
    assert [(row.site, row.format) for row in rows] == list(itertools.product(SITES, BITS))
    assert [row.difference for row in rows] == pytest.approx([cost for one in COSTS.values() for cost in one.values()])
    assert {row.bits for row in rows} == {8, 6, 4}
    assert all(row.loss == 1 + row.difference for row in rows)


def test_the_search_makes_the_moves_of_least_price_first():
    """For losses that add up the order of prices is known beforehand."""
    found = choose_formats(SITES, BITS, separable, 8)
    path = [dict.fromkeys(SITES, "e4m3fn")]
    for site, text in [("b", "e3m2fn"), ("b", "e2m1fn"), ("a", "e3m2fn"), ("c", "e3m2fn"), ("a", "e2m1fn")]:
        path.append(path[-1] | {site: text})
    prices = [(separable(y)[0] - separable(x)[0]) / (mean_bits(x) - mean_bits(y)) for x, y in itertools.pairwise(path)]
    by_bits = {point.bits: point for point in found.front}
    assert prices[:4] == sorted(prices[:4])
    for formats in path[:4]:
        assert by_bits[mean_bits(formats)].formats == formats


def test_the_front_beats_every_uniform_format_and_is_nondominated():
    found = choose_formats(SITES, BITS, separable, 5)
    assert [point.formats for point in found.uniform] == [dict.fromkeys(SITES, text) for text in BITS]
    for uniform in found.uniform:
        best = min(point.loss for point in found.front if point.bits <= uniform.bits)
        assert best < uniform.loss or uniform.bits in (8, 4)
        assert best <= uniform.loss
    for one, other in itertools.pairwise(found.front):
        assert one.bits > other.bits
        assert one.loss < other.loss
    within = [point for point in found.front if point.bits <= 5]
    assert found.chosen == min(within, key=lambda point: point.loss)
    best = min(loss for bits, loss, _ in all_points(separable) if bits <= 5)
    assert found.chosen.loss == pytest.approx(best)


def test_the_same_again_and_in_few_measurements():
    calls = []

    def counted(formats):
        calls.append(dict(formats))
        return separable(formats)

    first, second = (choose_formats(SITES, BITS, counted, 5) for _ in range(2))
    assert first == second
    assert len(calls) == 2 * first.measured <= 2 * 3**3
    assert calls[: first.measured] == calls[first.measured :]
    assert len({tuple(call.items()) for call in calls}) == first.measured  # nothing is measured twice


def test_growth_is_measured_where_the_search_stands():
    """Alone a and b cost nothing in 4 bits, together much: an estimate from each alone would take both."""

    def loss(formats):
        low = {site for site, text in formats.items() if text == "e2m1fn"}
        return (10.0 if {"a", "b"} <= low else 0.0) + 0.1 * ("c" in low), np.zeros(1)

    found = choose_formats(SITES, ["e4m3fn", "e2m1fn"], loss, 6.8)
    assert found.chosen.formats == {"a": "e2m1fn", "b": "e4m3fn", "c": "e2m1fn"}
    assert found.chosen.loss == 0.1


def test_of_formats_of_one_width_each_site_has_its_own():
    def loss(formats):
        return sum(text != ("e5m2" if site == "b" else "e4m3fn") for site, text in formats.items()), np.zeros(1)

    found = choose_formats(SITES, ["e4m3fn", "e5m2", "e2m1fn"], loss, 8)
    assert found.front[0].formats == {"a": "e4m3fn", "b": "e5m2", "c": "e4m3fn"}
    assert found.chosen.loss == 0


def test_formats_of_the_same_bits_are_exchanged_in_the_end():
    """Narrowing alone ends with e2m1fn at both sites: each is best there while the other is wide."""
    narrow = {("e2m1fn", "e2m1fn"): 1.0, ("e2m1fn", "fixed(4,2)"): 1.2, ("fixed(4,2)", "fixed(4,2)"): 2.0}

    def loss(formats):
        texts = tuple(formats.get(site, "e4m3fn") for site in ("a", "b"))
        alone = sum({"e4m3fn": 0, "e2m1fn": 0.1, "fixed(4,2)": 0.2}[text] for text in texts)
        return (alone if "e4m3fn" in texts else narrow.get(texts, 0.5)), np.zeros(1)

    found = choose_formats({"a": 1, "b": 1}, ["e4m3fn", "e2m1fn", "fixed(4,2)"], loss, 4)
    assert (found.chosen.formats, found.chosen.loss) == ({"a": "fixed(4,2)", "b": "e2m1fn"}, 0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_moves_without_a_finite_loss_are_not_made(bad):
    def loss(formats):
        return bad if formats.get("b") == "e2m1fn" else separable(formats)[0], np.zeros(1)

    found = choose_formats(SITES, BITS, loss, 6)
    assert all(point.formats["b"] != "e2m1fn" and math.isfinite(point.loss) for point in found.front)
    assert found.uniform[2].loss == math.inf
    assert min(point.bits for point in found.front) == mean_bits({"a": "e2m1fn", "b": "e3m2fn", "c": "e2m1fn"})
    with pytest.raises(ValueError, match=r"no formats of 4.5 bits have a finite loss"):
        choose_formats(SITES, BITS, loss, 4.5)


def test_a_choice_is_a_recipe():
    recipe = choose_formats(SITES, BITS, separable, 5).recipe
    assert parse(recipe.text) == recipe
    assert isinstance(recipe, Recipe)
    products = recipe.products_for("b", "linear")
    assert [operand.number.text for operand in products.forward.operands] == ["e2m1fn", "e2m1fn"]
    assert recipe.products_for("d", "linear") is None


@pytest.mark.parametrize("name", ["", "layers[0]", "w*", "a?b", "[!x]"])
def test_names_stand_for_themselves_in_recipes(name):
    recipe = recipe_of({name: "int8"})
    assert recipe.products_for(name, "conv") is not None
    assert recipe.products_for("layers0" if name else "x", "conv") is None
    assert recipe.products_for("wx", "conv") is recipe.products_for("aab", "conv") is None
    assert parse(recipe.text) == recipe


def test_bits_of_blocks_count_scales():
    texts = ("int8", "mxfp4", "nvfp4", "scaled(e2m1fn,{-2:8,-1:4})", "scaled(e2m1fn,{...:None})", "block(5,dim=0)")
    assert [bits_per_element(parse(text)) for text in texts] == [8, 4.25, 4.5, 4.25, 4, 5]


def test_signal_to_noise():
    y = np.float32([3.0, 4.0])
    assert sqnr(y, y) == math.inf
    assert sqnr(y, y + np.float32([0.0, 0.5])) == pytest.approx(20)
    assert sqnr(0 * y, y) == -math.inf
    assert math.isnan(sqnr(y, y * np.inf))


def test_losses_are_means_over_examples():
    batches = check_batches([(np.ones((3, 2)), np.zeros(3)), [np.full((1, 2), 5.0), np.zeros(1)]])
    loss, outputs = mean_over(batches, lambda x, y: (float(x.mean()), x))
    assert loss == (3 * 1 + 5) / 4
    assert outputs.tolist() == [1.0] * 6 + [5.0] * 2


@pytest.mark.parametrize(
    ("sites", "candidates", "budget", "error", "text"),
    [
        ({}, ["e4m3fn"], 8, ValueError, "model has no sites"),
        ({"a": 0}, ["e4m3fn"], 8, ValueError, "site 'a' has 0 weights"),
        (SITES, [], 8, ValueError, "candidates is empty"),
        (SITES, ["e9m9"], 8, ValueError, "candidates='e9m9'"),
        (SITES, ["e4m3fn", "binary(4,3,specials=fn)"], 8, ValueError, "'e4m3fn' twice"),
        (SITES, "e4m3fn", 8, TypeError, "candidates='e4m3fn' is a str"),
        (SITES, [8], 8, TypeError, "candidates=8 is a int"),
        (SITES, BITS, 3.9, ValueError, r"budget_bits=3.9; allowed is a number of at least 4 bits"),
        (SITES, BITS, math.nan, ValueError, "budget_bits=nan"),
        (SITES, BITS, True, TypeError, "budget_bits=True is a bool"),
        (SITES, BITS, "5", TypeError, "budget_bits='5' is a str"),
    ],
)
def test_wrong_arguments(sites, candidates, budget, error, text):
    with pytest.raises(error, match=text):
        choose_formats(sites, candidates, separable, budget)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ([], ValueError, "data is empty"),
        (iter([]), ValueError, "data is empty"),
        (3, TypeError, "data=3 is a int"),
        ([np.ones(3)], TypeError, "data has a ndarray"),
        ([(np.ones((0, 2)), np.ones(0))], ValueError, "data has a batch without targets"),
    ],
)
def test_wrong_data(data, error, text):
    with pytest.raises(error, match=text):
        check_batches(data)
