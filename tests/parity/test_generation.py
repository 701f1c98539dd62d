"""Generation: the same tokens in three packages, in batches of any size, with padding on both sides."""

from fractions import Fraction
from functools import partial

import jax
import numpy as np
import pytest
import torch

import qjax.engines
import qjax.reproducible
import qtorch.engines
import qtorch.reproducible
from benchmarks.support.policy import VOCABULARY, Framework, first_weights, logits
from qcore.engines import Engine, generate
from qcore.random import random_bits
from qcore.random.threefry import fold_in

f = np.float32
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
WEIGHTS = first_weights(0)
TORCH = Framework(qtorch.reproducible, qtorch.engines.attention, qtorch.quantize)
JAX = Framework(qjax.reproducible, qjax.engines.attention, qjax.quantize)
TENSORS = {name: torch.from_numpy(x) for name, x in WEIGHTS.items()}
SETTINGS = {"key": 11, "temperature": 0.5, "top_k": 7, "top_p": 0.9, "max_new_tokens": 6}


@pytest.mark.parametrize("padding_in_jax", ["left", pytest.param("right", marks=pytest.mark.heavy)])
def test_torch_and_jax_draw_the_same_tokens(padding_in_jax):
    """Logits of equal weights, by the engine that gives the same bits in every batch."""
    engine = Engine.of("exact")
    model = partial(logits, TORCH, TENSORS, engine, None)
    made = qtorch.engines.generate(model, PROMPTS, **SETTINGS)
    assert len({tuple(row) for row in made.tokens}) == 3
    for batch in (1, 3):
        for padding in ("left", "right"):
            found = qtorch.engines.generate(model, PROMPTS, batch=batch, padding=padding, **SETTINGS)
            assert found.tokens == made.tokens, (batch, padding)
            assert all(map(np.array_equal, found.log_probabilities, made.log_probabilities))
    program = jax.jit(partial(logits, JAX, WEIGHTS, engine, None))
    found = qjax.engines.generate(program, PROMPTS, padding=padding_in_jax, **SETTINGS)
    assert found.tokens == made.tokens
    assert all(map(np.array_equal, found.log_probabilities, made.log_probabilities))


def table(rows):
    """A model whose logits are rows of a table, by the last token."""
    return lambda tokens, mask, positions: rows[tokens]


ROWS = np.random.default_rng(2).standard_normal((VOCABULARY, VOCABULARY)).astype(f).round(1)  # with equal logits


def by_hand(row, word, temperature, top_k, top_p):
    """One token: fractions, and a walk through the vocabulary."""
    weights = [int(float(f(np.exp(float(f(f(x - row.max()) / f(temperature)))))) * 2**42) for x in row]
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))[:top_k]
    if top_p is not None:
        total, kept, share = sum(weights[token] for token in order), [], Fraction(0)
        for token in order:
            if share >= Fraction(top_p):
                break
            kept.append(token)
            share += Fraction(weights[token], total)
        order = kept
    point, total = Fraction(word, 2**32), sum(weights[token] for token in order)
    below = Fraction(0)
    for token in sorted(order):
        below += Fraction(weights[token], total)
        if point < below:
            return token
    raise AssertionError


@pytest.mark.parametrize("temperature", [0.3, 1.0, 7.0])
@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (4, None), (None, 0.5), (5, 0.8), (1, 1.0)])
def test_the_law_of_a_token(temperature, top_k, top_p):
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    found = generate(table(ROWS), [[3], [3, 5]], key=(7, 9), max_new_tokens=20, **settings)
    for number, prompt in enumerate(([3], [3, 5])):
        text = list(prompt)
        for place in range(len(prompt), len(prompt) + 20):
            word = int(random_bits(fold_in(fold_in((7, 9), number), place), (1,))[0])
            text.append(by_hand(ROWS[text[-1]], word, temperature, top_k, top_p))
        assert found.tokens[number] == text[len(prompt) :]
    raw = ROWS[[3, *found.tokens[0][:-1]]].astype(float)
    raw -= np.log(np.exp(raw).sum(-1, keepdims=True))
    np.testing.assert_allclose(found.log_probabilities[0], raw[range(20), found.tokens[0]], rtol=1e-12)


def test_shares_are_those_of_the_probabilities():
    rows = np.tile(np.log(f([0.5, 0.25, 0.125, 0.125])), (4, 1))
    tokens = generate(table(rows), [[0]] * 50, key=1, max_new_tokens=20).tokens
    assert abs(np.bincount(np.ravel(tokens)) / 1000 - [0.5, 0.25, 0.125, 0.125]).max() < 0.04


def test_ends():
    greedy = generate(table(ROWS), [[2]], key=0, temperature=0, max_new_tokens=4).tokens[0]
    assert greedy == generate(table(ROWS), [[2]], key=5, top_k=1, max_new_tokens=4).tokens[0]
    text = generate(table(ROWS), [[2], [6]], key=0, max_new_tokens=30).tokens
    stop = text[0][3]
    stopped = generate(table(ROWS), [[2], [6]], key=0, max_new_tokens=30, stop=stop).tokens
    assert stopped == [row[: row.index(stop) + 1] if stop in row else row for row in text]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompts": [[]]}, r"prompts\[0\]=\[\]; allowed is a list of one token at least"),
        ({"prompts": []}, r"prompts=\[\]"),
        ({"temperature": -1.0}, r"temperature=-1.0"),
        ({"top_p": 0.0}, r"top_p=0.0"),
        ({"top_k": 0}, r"top_k=0"),
        ({"padding": "middle"}, r"padding='middle'"),
        ({"model": table(np.full((9, 9), np.nan, f))}, "not finite"),
    ],
)
def test_wrong_arguments_raise(wrong, message):
    given = {"model": table(ROWS), "prompts": [[1]], "key": 0, **wrong}
    with pytest.raises(ValueError, match=message):
        generate(given.pop("model"), given.pop("prompts"), **given)
