"""Products take memory for parts of their operands, and never for all terms."""

import json
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from qcore import Accumulator
from qtorch import linalg
from qtorch.linalg.operator import BLOCK


def most_bytes(call, path):
    """The most bytes that a call has allocated at a time, by torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = call()
    found.export_chrome_trace(str(path))
    events = [one for one in json.loads(path.read_text())["traceEvents"] if one["name"] == "[memory]"]
    sizes = [one["args"]["Bytes"] for one in sorted(events, key=lambda one: one["ts"])]
    assert sum(sizes) >= result.nbytes
    return max(accumulate(sizes))


@pytest.mark.parametrize("accumulator", [None, Accumulator("float(6,9)", chunk=64)], ids=["exact", "chunks"])
def test_float64_copies_are_of_parts(accumulator, tmp_path):
    a, b = torch.ones(3000, 64), torch.ones(64, 3000)
    options = {"accumulator": accumulator, "operands": ("e4m3fn", "e4m3fn")}
    most = most_bytes(lambda: linalg.matmul(a, b, **options), tmp_path / "trace.json")
    rounded, result = 4 * (a.numel() + b.numel()), 4 * 3000**2
    assert most <= rounded + result + 3 * 8 * BLOCK
    assert most < result + 8 * 3000**2  # what float64 sums of the whole would take


@pytest.mark.parametrize("chunk", [None, 1, 16])
def test_memory_has_no_place_for_all_terms(chunk, tmp_path):
    x, accumulator = torch.ones(128, 128), Accumulator("float(6,9)", chunk=chunk)
    most = most_bytes(lambda: linalg.matmul(x, x, accumulator=accumulator), tmp_path / "trace.json")
    assert most <= 8 * 8 * 128**2


def test_parts_have_the_bits_of_the_whole(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 70, 8, generator=rng), torch.randn(3, 8, 130, generator=rng)
    weight, images = torch.randn(6, 2, 3, generator=rng), torch.randn(3, 4, 90, generator=rng)
    options = {"operands": ("e4m3fn", "e4m3fn"), "accumulator": Accumulator("float(6,9)", chunk=4)}

    def results():
        return linalg.bmm(a, b, **options), linalg.conv1d(images, weight, groups=2, **options)

    whole = results()
    monkeypatch.setattr("qtorch.linalg.operator.BLOCK", 100)
    for part, expected in zip(results(), whole, strict=True):
        assert torch.equal(part, expected)
