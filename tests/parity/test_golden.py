"""Hashes of results, committed: bits never change by accident, and a change of bits raises the version of the numerics.

`golden.json` has for each law the hash of its results, by the version of the numerics (`qcore.version.NUMERICS`) from
which on they are so. Run this file as a program to add new laws. Where the bits of a known law changed it refuses,
until the version is raised; then say why in CHANGELOG under "Numerics".
"""

import hashlib
import json
from functools import cache, partial
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

import qcore
from benchmarks.support.inputs import FORMATS, MODES, MORE, tie_row
from qcore import affine, arithmetic, distributed, engines, linalg, reproducible
from qcore.linalg.designs import DESIGNS
from qcore.random.threefry import as_lane, element_words
from qcore.version import NUMERICS

FILE = Path(__file__).with_name("golden.json")
KEYS = (7, 0xFEDC_BA98_7654_3210)
FUNCTIONS = """
abs cos erf exp expm1 gelu hardswish log log1p log_softmax logsumexp mean norm reciprocal rsqrt sigmoid silu sin softmax
softplus sqrt sum tanh var
""".split()
OPERATIONS = [name for name in arithmetic.__all__ if name.endswith("_codes")]
STATES = ("float32", "dynamic", "udynamic", "dynamic4", "linear4", "e4m3fn")


@cache
def patterns():
    """Random bit patterns of our own making, since NumPy's generators may change between versions."""
    words = [np.full(1, as_lane(word), np.int32) for word in (0, 1, 0, 0)]
    return element_words(lambda n: np.arange(n, dtype=np.int32), (2**15,), (words[0], words[1]), (words[2], words[3]))


def numbers(*shape, start=0):
    """Float32 numbers from -0.5 to 0.5, of 24 random bits."""
    return (patterns()[start : start + np.prod(shape)].astype(np.float32) * np.float32(2.0**-32)).reshape(shape)


def rounded(number, mode):
    x = patterns().view(np.float32).reshape(8, 64, 64)
    return [qcore.quantize(x, number, mode, key=key) for key in (KEYS if mode.startswith("stochastic") else (None,))]


def summed(name):
    return [linalg.matmul(numbers(8, 128), numbers(128, 8, start=2**14), accumulator=name)]


def reduced(name):
    order = distributed.BACKENDS[name].law.order
    call = {"none": distributed.all_gather, "nccl_pat": distributed.reduce_scatter}.get(order, distributed.reduce)
    return [call(numbers(8, 8, 128), name)]


def attended(name):
    return [engines.attention(*numbers(3, 1, 2, 130, 32), name)]


def windowed(name):
    q, k, v = numbers(3, 1, 2, 60, 32)
    sinks = np.float32([-1, 0.5])
    return [engines.attention(q * 9, k * 9, v, name, window=20, softcap=3.0, sinks=sinks)]


def tied(name):
    """A row that shows an order of its sum, which ordinary numbers do not."""
    return [getattr(reproducible, name)(tie_row(2**13))]


def evaluated(name):
    return [getattr(reproducible, name)(abs(numbers(64, 64)))]


def operated(name):
    """An operation on all pairs of 8-bit codes, or on all codes; of three operands, the last is one."""
    function = getattr(arithmetic, name)
    count = list(signature(function).parameters).index("operands")
    first, second = np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2)
    return [function(*(first, second, np.full_like(first, 0x38))[:count], "e4m3fn")]


def trained(kind):
    """A parameter and its moments after three steps of AdamW; or codes, and scales, of moments."""
    p, gradient = numbers(2048), numbers(2048, start=2**14)
    if kind != "float32":
        return reproducible.encode_state(abs(p), reproducible.StateCodes(kind))
    first, second, rate = np.zeros_like(p), np.zeros_like(p), np.float32(0.01)
    for step in np.float32([1, 2, 3]):
        p, first, second = reproducible.adam_step(p, gradient, first, second, step, rate, decoupled=True)
    return p, first, second


def scaled(name):
    form = affine.FORMS[name]
    qparams = affine.choose_qparams(np.float32(-0.4), np.float32(0.45), form, "symmetric" if "32" in name else "affine")
    return [affine.quantize_affine(numbers(64, 64), qparams, form)]


ROOMS = {
    "sum": (summed, DESIGNS),
    "collective": (reduced, distributed.BACKENDS),
    "attention": (attended, engines.ENGINES),
    "window, softcap and sinks": (windowed, engines.ENGINES),
    "function": (evaluated, FUNCTIONS),
    "function of a tie": (tied, ("softmax",)),
    "operation": (operated, OPERATIONS),
    "optimizer": (trained, STATES),
    "affine": (scaled, affine.FORMS),
}


def laws(room):
    """The results of each law of a room, as functions of nothing, by its name."""
    law, names = ROOMS[room]
    return {f"{room} {name}": partial(law, name) for name in names}


def laws_of(number):
    return {f"{number.text} {mode}": partial(rounded, number, mode) for mode in MODES}


def digest(results):
    return hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in results)).hexdigest()[:16]


@cache
def known():
    return json.loads(FILE.read_text(encoding="utf-8"))


def now(law):
    """The hash of a law that the newest numerics have."""
    return known()[law][max(known()[law], key=int)]


@pytest.mark.parametrize("number", FORMATS + MORE, ids=str)
def test_formats(number):
    found = laws_of(number)
    assert {law: digest(results()) for law, results in found.items()} == {law: now(law) for law in found}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms(room):
    found = laws(room)
    assert {law: digest(results()) for law, results in found.items()} == {law: now(law) for law in found}


def test_the_newest_change_has_the_newest_version():
    versions = {int(version) for history in known().values() for version in history}
    assert max(versions) == NUMERICS, "a version stands for a change of bits"


def added(history, found, version):
    """The history of a law with the hash that was found: nothing new, or one of a new version."""
    if history and history[max(history, key=int)] == found:
        return history
    if any(int(before) >= version for before in history):
        raise ValueError(f"the bits of numerics {version} changed; raise NUMERICS in qcore/version.py")
    return {**history, str(version): found}


def test_a_change_needs_a_version():
    history = added({}, "aa", 1)
    assert added(history, "aa", 2) == history == {"1": "aa"}
    with pytest.raises(ValueError, match="the bits of numerics 1 changed; raise NUMERICS"):
        added(history, "bb", 1)
    assert added(history, "bb", 2) == {"1": "aa", "2": "bb"}


def main():
    found = {law: results for number in FORMATS + MORE for law, results in laws_of(number).items()}
    for room in ROOMS:
        found |= laws(room)
    histories = {law: added(known().get(law, {}), digest(results()), NUMERICS) for law, results in found.items()}
    lines = (f"{json.dumps(law)}: {json.dumps(history)}" for law, history in histories.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
