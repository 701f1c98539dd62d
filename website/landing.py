"""The first page's figures, each in two widths: for a desk and for a phone. Words are text in the reader's own font."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from qcore.engines import Engine
from qcore.files import write_text
from qcore.pictures import BAND, BLUE, DARK, FAINT, INK, ORANGE
from website.records import Record, results

_CLASSES = {"ink": INK, "faint": FAINT, "rule": BAND, "blue": BLUE, "orange": ORANGE}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_BASE = f"""\
text {{ font: 12px {_FONT}; font-variant-numeric: tabular-nums }} .label {{ font-size: 13px }}
.end {{ text-anchor: end }} .middle {{ text-anchor: middle }}
.bold {{ font-weight: 700 }} .large {{ font-size: 22px; font-weight: 700 }}
polyline {{ fill: none; stroke-width: 2; stroke-linejoin: round }}"""


class Size(NamedTuple):
    """A drawing's width and height in CSS pixels; `wide` for a desk."""

    width: int
    height: int
    wide: bool


def draw(folder: Path) -> None:
    """Writes position-97.svg and ring.svg, and their narrow ones, from the committed results."""
    found = results("first-page")
    for name, figure, heights in (("position-97", _position, (408, 316)), ("ring", _ring, (340, 270))):
        for size in (Size(640, heights[0], True), Size(328, heights[1], False)):
            write_text(folder / f"{name}{'' if size.wide else '-narrow'}.svg", figure(found, size))


def _position(found: Record, size: Size) -> str:
    """The part of outputs that differ, by keys, above the tiles in which each side reads the keys."""
    rows, outputs = found["positions"], found["settings"]["outputs"]
    last = rows[-1]["keys"]
    first = next(row for row in rows if row["differing"])
    attention = Engine.of(found["settings"]["engine"]).attention
    decode, prefill = (attention.tile(found["settings"]["head_size"], queries) or last for queries in (1, last))
    assert first["keys"] == decode + 1, "the second tile is the cause"
    floor, top, bar = size.height - 140, 64, 30
    across = (size.width - 2) / last

    def at(keys: float) -> float:
        return round(1 + keys * across, 1)

    highest = max(row["differing"] for row in rows)
    steps = [(at(row["keys"] - side), row["differing"]) for row in rows[decode:] for side in (1, 0)]
    points = [(x, round(floor - (floor - top) * count / highest, 1)) for x, count in steps]
    parted, right = at(decode), at(last)
    area = _points([(parted, floor), *points, (right, floor)])
    of, end = f"of {outputs:,} outputs differ", rows[-1]["differing"] / outputs
    parts = [
        f'<polygon points="{area}" class="orange" fill-opacity=".13"/>',
        f'<polyline points="{_points([(parted, floor), *points])}" class="orange-line"/>',
        f'<polyline points="1,{floor} {parted},{floor}" class="blue-line" style="stroke-width: 3"/>',
        _text(parted, 20, f"{first['keys']} keys", "orange large"),
        _text(
            parted, 42, f"{first['differing']} {of}" if size.wide else f"{first['differing']} differ", "orange label"
        ),
        _text(1, floor - 32, f"1 to {decode} keys", "blue large" if size.wide else "blue label bold"),
        _text(1, floor - 12, f"0 {of}" if size.wide else "0 differ", "blue label"),
        _text(right - 6, points[-1][1] + 20, f"{end:.0%} at {last} keys", "orange end"),
        f'<polyline points="{parted},{floor} {parted},{size.height - 22}" class="orange-line" '
        'style="stroke-width: 1; stroke-dasharray: 2 3"/>',
    ]
    for row, (name, tile) in enumerate((("decode", decode), ("prefill", prefill))):
        y = floor + 22 + row * (bar + 12)
        for start in range(0, last, tile):
            stop = min(start + tile, last)
            colour = "orange" if name == "decode" and start == decode else "blue"
            width = round(at(stop) - at(start) - 2, 1)
            parts.append(
                f'<rect x="{at(start)}" y="{y}" width="{width}" height="{bar}" class="{colour}" fill-opacity=".2"/>'
            )
        words = f"{name}: keys 1 to {tile} in one tile" if size.wide else f"{name}: 1 to {tile}"
        parts.append(_text(9, y + 20, words, "ink label" if size.wide else "ink"))
    parts.append(_text(parted + 8, floor + 42, f"{'keys ' * size.wide}{decode + 1} to {2 * decode}", "ink label"))
    base = size.height - 4
    parts += [_text(1, base, "1", "faint"), _text(parted, base, str(decode + 1), "faint")]
    parts += [_text((parted + right) / 2, base, "keys in the cache", "faint middle")]
    parts += [_text(right, base, str(last), "faint end")]
    words = (
        f"Outputs of attention that differ between decoding and prefill, by keys in the cache: 0 of {outputs:,} up to "
        f"{decode} keys, {first['differing']} at {first['keys']}. Decoding has tiles of {decode} keys and prefill of "
        f"{prefill}, so the second tile of decoding begins there."
    )
    return _svg(size, f"Position {first['keys']}", words, parts)


def _ring(found: Record, size: Size) -> str:
    """The part of a gradient that a ring and a tree leave, by ranks."""
    rows = found["sums"]
    named = {"tree": ("nccl.tree.bf16", "blue"), "ring": ("nccl.ring.bf16", "orange")}
    left, right, top, floor = 1, size.width - 96, 26, size.height - 30
    least, most = log(rows[0]["ranks"]), log(rows[-1]["ranks"])

    def point(ranks: int, part: float) -> tuple[float, float]:
        x = left + (right - left) * (log(ranks) - least) / (most - least)
        return round(x, 1), round(floor - (floor - top) * part, 1)

    parts = []
    for part in (0.0, 0.5, 1.0):
        y = point(8, part)[1]
        parts.append(f'<polyline points="{left},{y} {right},{y}" class="rule-line" style="stroke-width: 1"/>')
        parts.append(_text(left, y - 6, f"{part:.0%}{' of the gradient' if part == 1 else ''}", "faint"))
    for name, (law, colour) in named.items():
        points = [point(row["ranks"], row[law]) for row in rows]
        x, y = points[-1]
        parts.append(f'<polyline points="{_points(points)}" class="{colour}-line"/>')
        parts.append(f'<circle cx="{x}" cy="{y}" r="3" class="{colour}"/>')
        words = f"{rows[-1][law]:.0%} {name}"
        parts.append(_text(x + 8, y + (4 if name == "tree" else -2), words, f"{colour} label bold"))
    shown = next(row for row in rows if row["ranks"] == 1536)
    x, y = point(1536, shown["nccl.ring.bf16"])
    parts += [f'<circle cx="{x}" cy="{y}" r="3" class="orange"/>']
    parts += [
        _text(
            x + 8, y - 14, f"{shown['nccl.ring.bf16']:.0%} left", "orange large" if size.wide else "orange label bold"
        )
    ]
    parts += [_text(x + 8, y + 2, "at 1,536 GPUs", "orange label" if size.wide else "orange")]
    for ranks in (8, 96, 1536, 16384):
        place = "faint" if ranks == 8 else "faint middle"
        words = f"{ranks:,}{' GPUs' if ranks == 16384 else ''}"
        parts.append(_text(point(ranks, 0)[0], floor + 20, words, place))
    words = (
        f"The part of the gradient that is left by the number of GPUs: a bfloat16 ring keeps "
        f"{shown['nccl.ring.bf16']:.0%} at 1,536 and {rows[-1]['nccl.ring.bf16']:.0%} at 16,384, a tree "
        f"{rows[-1]['nccl.tree.bf16']:.0%}."
    )
    return _svg(size, "A ring and a tree", words, parts)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _text(x: float, y: float, words: str, classes: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{classes}">{escape(words)}</text>'


def _svg(size: Size, title: str, words: str, parts: Sequence[str]) -> str:
    """The file, whose colours are those of all pictures, for light and dark pages."""

    def rules(colours: dict[str, str]) -> str:
        found = colours.items()
        return " ".join(f".{name} {{ fill: {one} }} .{name}-line {{ stroke: {one} }}" for name, one in found)

    dark = rules({name: DARK[colour] for name, colour in _CLASSES.items()})
    place = f'width="{size.width}" height="{size.height}" viewBox="0 0 {size.width} {size.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {place}>',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(words)}</desc>",
        f"<style>\n:root {{ color-scheme: light dark }}\n{_BASE}\n{rules(_CLASSES)}",
        f"@media (prefers-color-scheme: dark) {{ {dark} }}\n</style>",
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
