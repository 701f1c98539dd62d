"""What quantizers and rules are told, and keys from keys."""

import copy
import pickle
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcore import FixedPoint, FloatingPoint, Quantization, Rounding, Rule, fold_in
from qcore.random.threefry import fold_in_each, fold_words

F, FIXED = FloatingPoint(5, 2), FixedPoint(4, 2)
WORDS = st.integers(0, 2**32 - 1)


def test_names_become_what_they_name():
    told = Quantization("int4", "qpytorch8", "nearest", Rounding.UP, backward_hooks=[abs])
    assert told == Quantization(FixedPoint(4, 0), F, Rounding.NEAREST, "up", False, (abs,))
    assert hash(told) == hash(copy.copy(told))
    assert pickle.loads(pickle.dumps(told)) == told
    assert Quantization() == Quantization(None, None, "stochastic", "stochastic")


@pytest.mark.parametrize(
    ("told", "stochastic"),
    [
        (Quantization(), False),
        (Quantization(F), True),
        (Quantization(None, F), True),
        (Quantization(F, None, "nearest"), False),
        (Quantization(F, F, "nearest"), True),
        (Quantization(F, F, "nearest", "down"), False),
        (Quantization(None, F, "stochastic", "nearest"), False),
    ],
)
def test_whether_a_key_is_needed(told, stochastic):
    assert told.stochastic is stochastic
    assert pickle.loads(pickle.dumps(told)).stochastic is stochastic


def test_what_is_masked():
    assert Quantization(FIXED, clamping_grad_zero=True).unclamped == FixedPoint(4, 2, clamp=False)
    symmetric = FixedPoint(4, 2, symmetric=True)
    assert Quantization(symmetric, F, clamping_grad_zero=True).unclamped == replace(symmetric, clamp=False)
    for number in (None, FixedPoint(4, 2, clamp=False), FixedPoint(4, 2, wrap=True)):
        told = Quantization(number, clamping_grad_zero=True)
        assert told.unclamped is None
        assert told.unclamped is None
    assert Quantization(FIXED).unclamped is None
    assert Quantization(FIXED, clamping_grad_zero=True).unclamped == FixedPoint(FIXED.wl, FIXED.fl, clamp=False)


def test_rules_match_names():
    assert Rule().names("")
    assert Rule("features.*").names("features.0.conv")
    assert not Rule("features.*").names("Features.0")
    assert Rule("block?.conv1").names("block2.conv1")
    assert Rule(weight_number="int8", weight_rounding="up") == Rule("*", None, Quantization(), FixedPoint(8, 0), "up")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Quantization(F, clamping_grad_zero=True), ValueError, ["clamping_grad_zero", "FixedPoint and None"]),
        (lambda: Quantization(3), TypeError, ["forward_number", "3"]),
        (lambda: Quantization(backward_number=3), TypeError, ["backward_number", "3"]),
        (lambda: Quantization(backward_hooks=[1]), TypeError, ["backward_hooks", "int"]),
        (lambda: Rule(3), TypeError, ["name", "3", "pattern"]),
        (lambda: Rule(outputs=F), TypeError, ["outputs", "Quantization"]),
        (lambda: Rule(weight_number=3), TypeError, ["weight_number", "3"]),
        (lambda: Rule(weight_rounding="near"), ValueError, ["weight_rounding", "near"]),
    ],
)
def test_wrong_arguments(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


@given(WORDS, WORDS, WORDS)
def test_keys_from_keys_equal_jax(word0, word1, data):
    key = jax.random.wrap_key_data(np.array([word0, word1], np.uint32), impl="threefry2x32")
    expected = tuple(int(word) for word in jax.random.key_data(jax.random.fold_in(key, data)))
    assert fold_words(word0, word1, data) == expected
    assert fold_words(word0 - 2**32, word1 - 2**32, data) == expected  # signed words
    assert tuple(fold_in_each(np.array([word0, word1], np.uint32), np.uint32(data)).tolist()) == expected


def test_many_keys_from_many_keys():
    keys = np.random.default_rng(0).integers(0, 2**32, (3, 1, 2), np.uint32)
    data = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    folded = fold_in_each(keys, data)
    assert (folded.shape, folded.dtype) == ((3, 4, 2), np.uint32)
    for row, key in zip(folded, keys[:, 0].tolist(), strict=True):
        assert [tuple(words) for words in row.tolist()] == [fold_in(tuple(key), number) for number in data.tolist()]
    assert fold_in_each(keys[0], np.empty(0, np.uint32)).shape == (0, 2)
