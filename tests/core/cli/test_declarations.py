"""The declaration files of `qbits p3109`: YAML's own reader reads them, and what they declare is provided."""

import random
import re
from pathlib import Path

import pytest

from qcore.__main__ import main
from qcore.arithmetic import p3109

RHO = "\N{GREEK SMALL LETTER RHO}"
FILES = ["Configurations.yaml", "Profiles.yaml", "Constraints.yaml", "Kappas.yaml"]


def expanded(text):
    """The formats of a comprehension, `(' "Binary8p$(i)se" for i in 1:7 ')`."""
    name, first, last = re.fullmatch(r"\(' \"(\S+)\" for i in (\d+):(\d+) '\)", text).groups()
    return [name.replace("$(i)", str(i)) for i in range(int(first), int(last) + 1)]


def meets(required, formats):
    """True if formats by the names of parameters are as an expression demands."""
    name, sign, right = re.fullmatch(r"\(' (\w+) (==|in) (.+) '\)", required).groups()
    if sign == "in":
        return formats[name] in right.strip("[]").split(", ")
    return formats[name] == formats.get(right, right)


def test_what_the_files_declare_is_provided(tmp_path, capsys):
    yaml = pytest.importorskip("yaml")
    assert main(["p3109", "--declare", "-o", str(tmp_path)]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.split()]
    assert [path.name for path in paths] == FILES
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths}
    assert all("none is claimed" in one["Metadata"]["conformance"] for one in found.values())
    assert found["Kappas"]["Empty"] is True
    configuration = found["Configurations"]["Simulator"]
    every = [one for text in found["Profiles"]["Simulator"]["formats"] for one in expanded(text)]
    assert {"Binary4p2sf", "Binary8p3se", "Binary8p4se", "Binary8p1uf"} < set(every)
    assert len(every) == len(set(every)) == sum(4 * bits - 2 for bits in range(3, 9))
    every += configuration["IEEE754"]
    draw, operations = random.Random(0), {}
    for one in found["Constraints"]["Simulator"]:
        ((signature, rules),) = one.items()
        name, parameters = re.match(r"(\w+)<(.*)>\(", signature).groups()
        operations[name] = rules
        same = draw.choice(every)
        formats = {key: "Binary8p1uf" if key.startswith("fs") else same for key in re.findall(r"f\w+", parameters)}
        if "Projections" in rules:
            formats |= {key: draw.choice(every) for key in formats if not key.startswith("fs")}
            pair = (draw.choice(rules["Projections"][key]) for key in ("RoundingMode", "SaturationMode"))
            formats |= {RHO: f"({', '.join(pair)})", f"{RHO}s": "(ToOdd, SatFinite)"}
        assert all(meets(rule, formats) for rule in rules["Requires"])
        text = re.sub(r"\w+", lambda word, of=formats | {"B": "32"}: of[word[0]], parameters)
        assert p3109.is_provided(f"{name}<{text}>"), text
    assert set(operations) == set(p3109.OPERATIONS)
    assert configuration["Projections"]["Saturation"] == [*p3109.SATURATIONS]
