"""The four declaration files of IEEE P3109 (interim report v4.0), from what `qcore.arithmetic.p3109` provides.

| file | holds |
| --- | --- |
| Configurations.yaml | the configuration's external formats, projections, and sizes of blocks |
| Profiles.yaml | its formats |
| Constraints.yaml | its operations, with what their formats and projections must be |
| Kappas.yaml | its approximate operations: there are none |
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from qcore.arithmetic import p3109
from qcore.arithmetic.p3109 import Layout, layout_of
from qcore.files import write_texts
from qcore.version import __version__

CONFIGURATION = "Simulator"
EXTERNAL = "binary32", "binary16", "BFloat16"
SCALE = "Binary8p1uf"
_WIDTHS, _BLOCK, _LARGEST_BLOCK = range(3, 9), 32, 1 << 16
_OPERANDS = "x", "y", "z"
_RHO = "\N{GREEK SMALL LETTER RHO}"


def declare(folder: Path | None = None) -> dict[str, str]:
    """The texts of the four files by name; written into a folder if there is one.

    Formats have 3 to 8 bits, and the external ones; scales of numbers and of blocks are powers of two.
    """
    parts = {
        "Configurations": [f"{CONFIGURATION}:", *_configuration()],
        "Profiles": [f"{CONFIGURATION}:", *_profile()],
        "Constraints": [f"{CONFIGURATION}:", *_constraints()],
        "Kappas": ["Empty: true"],
    }
    head = [*_metadata()]
    files = {f"{name}.yaml": "\n".join([*head, *lines, ""]) for name, lines in parts.items()}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_texts({folder / name: text for name, text in files.items()})
    return files


def _metadata() -> Iterator[str]:
    yield from ["---", "Metadata:"]
    yield "  conformance: none is claimed; it follows the interim report, which is a draft"
    yield '  version: "4.0"'
    yield "  provider: The qbits contributors"
    yield from ["  contact:", '    email: ""', '    uri: ""']
    yield from ["  implementation:", "    name: qcore", f'    version: "{__version__}"']
    yield f'    timestamp: "{datetime.now(UTC):%Y-%m-%dT%H:%MZ}"'


def _configuration() -> Iterator[str]:
    yield f"  IEEE754: [{', '.join(EXTERNAL)}]"
    yield from ["  Projections:", "    Rounding:"]
    for name in p3109.ROUNDINGS:
        if not name.startswith("Stochastic"):
            yield f"      - {name}"
            continue
        yield from [f"      - {name}:", "          - bits: (' 1:24 ')", "          - notes:"]
        yield "              - description: the leading bits of a word of Threefry-2x32, by key and index"
    yield from ["    Saturation:", *(f"      - {name}" for name in p3109.SATURATIONS)]
    yield from ["  BlockSizes:", f"    core: {_BLOCK}", f"    supported: (' 1:{_LARGEST_BLOCK} ')"]
    yield "  KappaApproximate: []"


def _precisions(width: int, kind: str) -> range:
    return range(1, width + (kind[0] == "u"))


def _profile() -> Iterator[str]:
    yield "  formats:"
    for width in _WIDTHS:
        for kind in ("se", "sf", "ue", "uf"):
            yield f"""    - (' "Binary{width}p$(i){kind}" for i in 1:{_precisions(width, kind)[-1]} ')"""


def profile() -> list[str]:
    """The formats that the profile names."""
    kinds = ("se", "sf", "ue", "uf")
    return [f"Binary{k}p{p}{kind}" for k in _WIDTHS for kind in kinds for p in _precisions(k, kind)]


def _constraints() -> Iterator[str]:
    formats = [*profile(), *EXTERNAL]
    for name in p3109.OPERATIONS:
        layout = layout_of(name)
        fields, arguments = _fields(layout, "f"), ", ".join(_arguments(layout))
        provided = [one for one in formats if p3109.is_provided(_text(name, layout, one))]
        if not provided:
            continue
        rho = [_RHO + "s", _RHO][2 - layout.projections :]
        result = "(s, r)" if layout.result_scale else "r"
        yield f'  - "{name}<{", ".join([*fields, *rho])}>({arguments}) -> {result}":'
        required = [*_required(layout, formats, provided)]
        yield from ["      Requires:", *required] if required else ["      Requires: []"]
        if layout.projections:
            yield "      Projections:"
            yield f"        RoundingMode: [{', '.join(p3109.ROUNDINGS)}]"
            yield f"        SaturationMode: [{', '.join(p3109.SATURATIONS)}]"


def _required(layout: Layout, formats: list[str], provided: list[str]) -> Iterator[str]:
    """What the formats must be: of the profile, if the registry has all; scales are powers of two."""
    given = [f"f{one}" for one in _OPERANDS[: layout.operands]] + ["fr"] * layout.result
    if layout.scaled or layout.result_scale:
        scales = [f"fs{one}" for one in _OPERANDS[: layout.operands]] * layout.scaled + ["fs"] * layout.result_scale
        yield from (f"        - (' {one} == {SCALE} ')" for one in scales)
    if len(provided) < len(formats):
        yield from (f"        - (' {one} in [{', '.join(provided)}] ')" for one in given)
    if not layout.result and layout.operands > 1:
        yield from (f"        - (' {one} == fx ')" for one in given[1:])


def _fields(layout: Layout, prefix: str) -> list[str]:
    """The parameters of an operation before its projection."""
    scaled = [(f"{prefix}s{one}", f"{prefix}{one}") for one in _OPERANDS[: layout.operands]]
    found = ["B"] * layout.block
    if not layout.scaled:
        found += [one for _, one in scaled]
    elif layout.block:
        found += [one for pair in scaled for one in pair]
    else:
        found += [f"({', '.join(pair)})" for pair in scaled]
    return found + [f"{prefix}s"] * layout.result_scale + [f"{prefix}r"] * layout.result


def _arguments(layout: Layout) -> list[str]:
    given = _OPERANDS[: layout.operands]
    return [f"(s{one}, {one})" for one in given] if layout.scaled else [*given]


def _text(name: str, layout: Layout, number: str) -> str:
    """A specialization whose operands and result have one format."""
    fields = _fields(layout, "f")
    named = {"B": str(_BLOCK)} | dict.fromkeys(("fx", "fy", "fz", "fr"), number)
    named |= dict.fromkeys(("fsx", "fsy", "fsz", "fs"), SCALE)
    words = ", ".join(fields).replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    return f"{name}<{''.join(named.get(one, one) for one in words)}>"
