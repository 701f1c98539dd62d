"""What is shown of a record: the table, the page, and what goes to other programs."""

import json
import re
import xml.etree.ElementTree as xml
from itertools import pairwise

import numpy as np
import pytest

from qcore.__main__ import main
from qcore.insight import Record, Site, draw, findings, print_worst, send, statistics_of
from qcore.pictures import ORANGE, SCALE

X = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
SITES = {  # the format, the numbers' scale, and the start of the advice
    "loud": ("e4m3fn", 900, "overflows"),
    "clipped": ("e4m3fn:saturate", 900, "saturates"),
    "quiet": ("e5m2", 2.0**-21, "underflows"),
    "coarse": ("float(8,0)", 1, "is noisy"),
    "good": ("bfloat16", 1, "fine"),
}


@pytest.fixture(scope="module")
def record():
    found = Record("mlp")
    for step in range(3):
        for name, (number, scale, _) in SITES.items():
            found.add(step, Site(name, "output"), statistics_of(X * np.float32(scale), number))
    return found


def test_sites_are_in_order_and_have_advice(record):
    found = findings(record)
    assert found[0].site.path == "loud"
    assert found[-1].site.path == "good"
    for one in found:
        assert one.advice.startswith(SITES[one.site.path][2])
    by_site = {one.site.path: one for one in found}
    assert "or take more exponent bits" in by_site["loud"].advice
    assert by_site["quiet"].advice.endswith("for which there is room")
    assert "more significand bit" in by_site["coarse"].advice


def test_scaling_as_advised_helps(record):
    for name in ("loud", "clipped", "quiet"):
        one = next(one for one in findings(record) if one.site.path == name)
        power = int(re.search(r"scale by 2\^(-?\d+)", one.advice)[1])
        number, scale, _ = SITES[name]
        after = statistics_of(X * np.float32(scale * 2.0**power), number)
        assert after.overflowed == after.saturated == 0
        assert after.underflowed < 20


def test_the_table(record, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_worst(record, 2)
    title, heading, first, *rest = capsys.readouterr().out.splitlines()
    assert title.rstrip() == "mlp, steps 0 to 2: 2 of 5 sites, the worst first"
    assert heading.split()[:2] == ["site", "format"]
    assert first.startswith("loud:output")
    second, *advice = [line for line in rest if line.strip()]
    assert second.startswith("quiet:output")
    assert " ".join(advice).startswith("loud:output: overflows (61 %): the numbers reach ")
    assert max(map(len, (title, heading, first, *advice))) <= 80


def test_a_record_is_short_and_names_are_whole(capsys, monkeypatch):
    """Sites behind the first NaN are counted once, not told one by one."""
    monkeypatch.setenv("COLUMNS", "80")
    found, long = Record("run"), "model.layers.0.self_attention.query_key_value_projection.weight"
    nan = np.full(100, np.nan, np.float32)
    found.add(0, Site(long, "gradient"), statistics_of(X * 900, "e4m3fn"))
    for number in range(24):
        found.add(0, Site(f"{long}.{number}", "gradient"), statistics_of(nan, "e4m3fn"))
    assert repr(found) == "Record('run': 25 entries, 25 sites, steps 0 to 0)"
    assert repr(Record("empty")) == "Record('empty': 0 entries, 0 sites, no steps)"
    print_worst(found, 30)
    text = capsys.readouterr().out
    assert "; and 24 more behind it" in " ".join(text.split())
    assert text.count("look there") == 0
    assert text.count(f"{long}:gradient") == 2  # in the table, and in front of its advice
    assert all(f"{long}.{number}:gradient" in text for number in range(24))
    for width in (40, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        print_worst(found, 30)
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= width
        assert "".join(text.split()).count(f"{long}:gradient") == 2


@pytest.mark.heavy
def test_the_page(record, tmp_path):
    for name in ("one.svg", "two.svg"):
        drawn = draw(record, tmp_path / name)
    assert drawn._repr_svg_() == (tmp_path / "two.svg").read_text()
    assert draw(record, tmp_path / "page.png")._repr_png_().startswith(b"\x89PNG")
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    root = xml.fromstring(text)
    title, description = root[0], root[1]
    assert (title.text, root.get("role")) == ("Roundings of mlp", "img")
    assert "loud:output in e4m3fn overflows" in description.text
    assert "prefers-color-scheme:dark" in text
    assert all(f"fill: {colour}" in text for colour in SCALE)


def test_colours_are_read_without_hue():
    """As on paper: each step of the scale is darker than the one before, by a fifteenth of the range at least."""
    light = [sum(w * int(c[i : i + 2], 16) for w, i in ((0.299, 1), (0.587, 3), (0.114, 5))) for c in SCALE]
    assert all(one > other + 17 for one, other in pairwise(light))


def test_nan_is_the_first_advice_with_its_place(tmp_path, capsys):
    """The run of `order`: NaN out and none in is where it comes in; sites after it name that one."""
    nan, inf = np.full(100, np.nan, np.float32), np.full(100, np.inf, np.float32)
    for order, source, problem in (
        ({"good": X, "loud": X * 900, "after": nan}, "loud", "overflows ("),
        ({"after": nan, "good": X, "loud": X * 900}, "loud", "overflows ("),  # entries in another order
        ({"good": X, "before": nan, "after": nan}, "before", "is NaN (100 %): NaN is first here, at step 3"),
        ({"good": X, "from": inf, "after": nan}, "from", "is NaN (100 %): infinities before it become NaN"),
    ):
        found = Record("run")
        for name, x in order.items():
            found.add(3, Site(name, "gradient"), statistics_of(x, "e4m3fn" if name != "good" else "bfloat16"))
        first, second, last = findings(found)
        assert (first.site.path, second.site.path, last.site.path) == (source, "after", "good")
        assert first.advice.startswith(problem)
        assert second.advice == f"is NaN (100 %): NaN is first at {source}:gradient, step 3; look there"
        assert last.advice == "fine"
        draw(found, tmp_path / "page.svg")
        assert f"fill: {ORANGE}" in (tmp_path / "page.svg").read_text()
        print_worst(found)
        assert "nan dB" not in capsys.readouterr().out


@pytest.mark.heavy
def test_notebooks_show_what_was_drawn(tmp_path):
    found = Record("run")
    found.add(0, Site("a", "output"), statistics_of(X, "e4m3fn"))
    svg, png = (draw(found, tmp_path / name) for name in ("page.svg", "page.PNG"))
    assert (svg._repr_svg_(), svg._repr_png_()) == ((tmp_path / "page.svg").read_text(), None)
    assert (png._repr_svg_(), png._repr_png_()) == (None, (tmp_path / "page.PNG").read_bytes())


def test_infinity_names_the_place_where_it_comes_in():
    found = Record("run")
    found.add(0, Site("a", "output"), statistics_of(np.float32([np.inf, 1]), "e5m2"))
    found.add(0, Site("b", "output"), statistics_of(np.float32([np.inf, 1]), "e5m2"))
    first, second = findings(found)
    assert first.advice == (
        "is infinite (50 %): infinity is first here, at step 0, before rounding; look at the operation before it"
    )
    assert second.advice == "is infinite (50 %): infinity is first at a:output, step 0; look there"


@pytest.mark.heavy
def test_many_sites_and_steps(tmp_path):
    found = Record("wide")
    for step in range(0, 130, 2):
        for index in range(41):
            found.add(step, Site(f"l{index}", "output"), statistics_of(X[:4], "e4m3fn"))
    draw(found, tmp_path / "page.svg")
    assert "41 sites over steps 0 to 128" in (tmp_path / "page.svg").read_text()


def test_a_writer_gets_scalars_and_histograms(record):
    scalars, histograms = {}, {}

    class Writer:
        def add_scalar(self, tag, value, step):
            scalars[tag, step] = value

        def add_histogram(self, tag, values, step):
            histograms[tag, step] = values

    send(record, Writer(), step=1)
    told = record.at(1, Site("loud", "output")).statistics
    assert scalars["loud:output/overflowed", 1] == told.overflowed / told.elements
    assert scalars["loud:output/sqnr", 1] == told.sqnr
    assert {step for _, step in scalars} == {1}
    values = histograms["loud:output/exponents", 1]
    assert set(values) == set(told.exponents)
    assert abs(len(values) - 4096) <= len(told.exponents)


def test_a_function_gets_rows(record):
    rows = []
    send(record, rows.append)
    assert rows == record.rows()


def test_the_command(record, tmp_path, capsys):
    file, page = tmp_path / "run.json", tmp_path / "page.svg"
    record.save(file)
    assert main(["insight", str(file)]) == 0
    assert "loud:output" in capsys.readouterr().out
    assert main(["insight", str(file), "--plot", str(page)]) == 0
    assert "5 sites, 3 steps" in capsys.readouterr().out
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 99}, "record has version 99; allowed are"),
        ({"entries": []}, "record of 'mlp' has no entries"),
        ({"entries": [{}]}, "allowed is what Entry.to_json returns"),
    ],
)
def test_other_files(record, change, text, tmp_path, capsys):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(record.to_json() | change))
    with pytest.raises(SystemExit):
        main(["insight", str(file)])
    assert text in capsys.readouterr().err


def test_wrong_arguments(record, tmp_path):
    with pytest.raises(ValueError, match=r"allowed are names that end in \.svg or \.png"):
        draw(record, tmp_path / "page.pdf")
    with pytest.raises(TypeError, match="allowed is a Record"):
        findings({})
    with pytest.raises(ValueError, match="count=0"):
        print_worst(record, 0)
    with pytest.raises(ValueError, match="step=7; allowed are the record's steps: 0, 1, 2"):
        send(record, print, 7)
    with pytest.raises(TypeError, match="to=3 is a int"):
        send(record, 3)
