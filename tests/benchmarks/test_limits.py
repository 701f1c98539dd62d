"""What `benchmarks.speed` says of missed limits."""

from benchmarks.speed import Case, Row
from benchmarks.support.limits import made_of

KNOWN = {
    ("avx2", "float(5,2)", "nearest", "float32"): (4.0, 0.5),
    ("avx2", "posit16", "nearest", "float32"): (6.0, 1.0),
}


def row(text, exponent, ratio, limit=3.5):
    baseline = 1e-9 * (1 << exponent) / 4  # a quarter of a nanosecond an element
    return Row("avx2", Case("nearest", text, "float32", exponent), ratio * baseline, baseline, limit)


def test_missed_limits_are_named_by_group():
    ratios = [("float(5,2)", 20, 4), ("posit16", 20, 5), ("posit16", 20, 3), ("e4m3fn", 24, 4), ("e4m3fn", 6, 9)]
    rows = [row(*one) for one in ratios]
    assert list(made_of(rows, KNOWN, 2)) == [
        "avx2, element, 2^20: 2 missed; 4.0 to 6.0 instructions an element, which take 1.0 to 2.0 baselines at least",
        "avx2, element, 2^24: 1 missed; not counted",
        "avx2, element, 2^6: 1 missed; Python's steps of a call",
    ]
    assert not list(made_of([row("posit16", 20, 3)], KNOWN, 2))
