"""The declaration files of `qbits p3109`: YAML's own reader reads them, and what they declare is provided."""

import random
import re
from pathlib import Path

import pytest

from qcore.__main__ import main
from qcore.arithmetic import p3109
from qcore.cli.declared import report

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


@pytest.mark.heavy
def test_own_declarations_are_provided(tmp_path, capsys):
    assert main(["p3109", "--declare", "-o", str(tmp_path)]) == main(["check", str(tmp_path)]) == 0
    assert "declares 549 of 549 that the report demands\n0 differ" in capsys.readouterr().out


OTHERS = {
    "Configurations": """
Small:
  IEEE754: binary32
  Projections:
    Rounding:
      - NearestTiesToEven
      - StochasticB:
          - bits: 8
    Saturation: [SatNone, SatClip]
""",
    "Profiles": """
Small:
  formats:
    - (' "Binary8p$(i)se" for i in [3, 4] ')
    - Binary9p1sx
""",
    "Constraints": """
Small:
  - "Add<fx, fy, fr, rho>(x, y) -> r":
      Requires:
        - [(' fx == fy '), (' BitwidthOf(fr) >= BitwidthOf(fx) ')]
        - (' fr in [Binary8p3se, binary32] ')
      Projections:
        - { RoundingMode: NearestTiesToEven, SaturationMode: SatNone }
        - { RoundingMode: ToNothing, SaturationMode: SatNone }
  - "Root<fx, fr, rho>(x) -> r":
  - "Recip<fx, fy, fr, rho>(x) -> r":
  - "BlockReduceAdd<B, fsx, fx, fr, rho>((sx, x)) -> r":
      Requires: [(' fsx == binary32 '), (' fx == binary32 ')]
  - "Other<fx, fr, rho>(x) -> r":
      Requires: (' fx == fr ')
""",
    "Kappas": """
Small:
  Exp:
    Approximates: "Exp<fx, fr, rho>(x) -> r"
""",
}
FOUND = """
Small: 4 formats, 5 operations
  formats that are not here: Binary9p1sx
  saturations that are not here: SatClip
  operations that are not here: Root
  Add is projected by ToNothing, which are not here
  Recip has 3 formats: fx, fy, fr; here it has 2
  not provided here: BlockReduceAdd<32, binary32, binary32, Binary8p3se>,
  Exp is approximate and has the name of an exact operation
  declares 7 of 549 that the report demands; missing are
"""


def test_declarations_of_others(tmp_path, capsys, monkeypatch):
    pytest.importorskip("yaml")
    monkeypatch.setenv("COLUMNS", "1000")
    for name, text in OTHERS.items():
        (tmp_path / f"{name}.yaml").write_text(f"---\nMetadata:\n  version: '1'{text}", encoding="utf-8")
    assert main(["check", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    for line in FOUND.strip().splitlines():
        assert line in text, text
    assert "7 differ from what is provided here" in text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("Profiles", "[", "Profiles.yaml: .*; allowed is a declaration in YAML"),
        ("Constraints", "Small: [Add: 3]", "Constraints.yaml has 'Add'; allowed is 'Add<fx, fy, fr, rho>"),
        ("Configurations", "- Small", "is a list; allowed is a declaration"),
        (
            "Constraints",
            'Small: ["Abs<fx>(x) -> r": {Requires: [exit()]}]',
            r"requires 'exit\(\)'; allowed are comparisons",
        ),
    ],
)
def test_wrong_declarations(tmp_path, name, text, message):
    pytest.importorskip("yaml")
    for each, given in (OTHERS | {name: text}).items():
        (tmp_path / f"{each}.yaml").write_text(given, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        report(tmp_path)
