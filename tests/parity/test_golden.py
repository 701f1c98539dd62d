"""Hashes of results, committed: bits never change by accident. Formats and inputs are `benchmarks.support.inputs`.

Run this file as a program to write them anew, and say why in CHANGELOG under "Numerics".
"""

import hashlib
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import qcore
from benchmarks.support.inputs import FORMATS, MODES, MORE
from qcore.random.threefry import as_lane, element_words

FILE = Path(__file__).with_name("golden.json")
KEYS = (7, 0xFEDC_BA98_7654_3210)


@cache
def inputs():
    """Random bit patterns of our own making, since NumPy's generators may change between versions."""
    words = [np.full(1, as_lane(word), np.int32) for word in (0, 1, 0, 0)]
    lanes = element_words(lambda n: np.arange(n, dtype=np.int32), (2**15,), (words[0], words[1]), (words[2], words[3]))
    return lanes.view(np.float32).reshape(8, 64, 64)


def digest(number, mode):
    results = [
        qcore.quantize(inputs(), number, mode, key=key) for key in (KEYS if mode.startswith("stochastic") else (None,))
    ]
    return hashlib.sha256(b"".join(result.astype("<f4").tobytes() for result in results)).hexdigest()[:16]


@cache
def known():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", FORMATS + MORE, ids=str)
def test_golden(number):
    assert {mode: digest(number, mode) for mode in MODES} == {mode: known()[f"{number.text} {mode}"] for mode in MODES}


if __name__ == "__main__":
    FILE.write_text(json.dumps({f"{n.text} {m}": digest(n, m) for n in FORMATS + MORE for m in MODES}, indent=0) + "\n")
