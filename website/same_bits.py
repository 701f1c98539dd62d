"""The picture of the first page: one image, rounded stochastically by each of the three packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qcore import quantize
from qcore.files import write_text
from qcore.pictures import DARK, INK

FORMAT, KEY = "e2m1fn", 42
NAME = "same-bits.svg"
_SIDE, _CELL, _GAP, _TEXT = 32, 5, 30, 42  # numbers of a row; sizes of a number, between images and of a line of text
_TILE = _SIDE * _CELL
_LARGEST, _STEPS = 1.5, 24  # of the image; as many shades are drawn
_PACKAGES = "PyTorch", "JAX", "NumPy"
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<title>The same random roundings in PyTorch, JAX and NumPy</title>
<desc>A ball of float32 numbers and its three stochastic roundings to four bits, which are equal in every number.</desc>
<style>
text {{ fill: {ink}; font: 27px sans-serif; text-anchor: middle }}
@media (prefers-color-scheme: dark) {{ text {{ fill: {light} }} }}
</style>"""


def draw(path: Path) -> None:
    """Rounds the image in NumPy, PyTorch and JAX, and draws the results beside each other.

    Raises:
        AssertionError: if two results differ in a bit.
    """
    image = _ball()
    rounded = _rounded(image)
    numpy = rounded["NumPy"].view(np.uint32)
    differing = max(int((one.view(np.uint32) != numpy).sum()) for one in rounded.values())
    assert differing == 0
    width, height = 4 * _TILE + 3 * _GAP, _TILE + 2 * _TEXT
    lines = [_HEAD.format(width=width, height=height, ink=INK, light=DARK[INK])]
    for place, (name, numbers) in enumerate(({"float32": image} | rounded).items()):
        left = place * (_TILE + _GAP)
        lines += [f'<g transform="translate({left} 0)">', *_tile(numbers), "</g>"]
        lines.append(_line(name, left + _TILE // 2, 1))
        if place:
            lines.append(_line("→" if place == 1 else "=", left - _GAP // 2, 0))
    words = f"stochastic rounding to 4 bits: {differing} of {image.size:,} differ"
    lines += [_line(words, width // 2, 2), "</svg>"]
    write_text(path, "\n".join(lines) + "\n")


def _rounded(image: np.ndarray) -> dict[str, np.ndarray]:
    import jax.numpy as jnp
    import torch

    import qjax
    import qtorch

    in_torch = qtorch.quantize(torch.from_numpy(image), FORMAT, "stochastic", key=KEY)
    in_jax = qjax.quantize(jnp.asarray(image), FORMAT, "stochastic", key=KEY)
    in_numpy = quantize(image, FORMAT, "stochastic", key=KEY)
    return dict(zip(_PACKAGES, (in_torch.numpy(), np.asarray(in_jax), in_numpy), strict=True))


def _ball() -> np.ndarray:
    """A ball in the light, from 0 to `_LARGEST`, in sixteenths, so that it has the same bits on every machine."""
    places = (np.arange(_SIDE) + 0.5) / _SIDE * 2 - 1
    x, y = np.meshgrid(places, places)
    inside = np.maximum(0.75 - x * x - y * y, 0)
    light = np.where(inside > 0, -0.55 * x - 0.65 * y + 0.75 * np.sqrt(inside), 0)
    return (np.round(np.clip(light, 0, 1) * 16) / 16 * _LARGEST).astype(np.float32)


def _tile(numbers: np.ndarray) -> Iterator[str]:
    """A dark square, and on it the numbers: the larger, the lighter."""
    yield f'<rect width="{_TILE}" height="{_TILE}" rx="6" fill="#10243e"/>'
    shades = np.round(numbers / _LARGEST * _STEPS).astype(int)
    for shade in range(1, _STEPS + 1):
        runs = "".join(_runs(shades == shade))
        if runs:
            yield f'<path fill="#9fd0ff" fill-opacity="{shade / _STEPS:.3f}" d="{runs}"/>'


def _runs(chosen: np.ndarray) -> Iterator[str]:
    """Rectangles around the neighbours in each row."""
    for row, columns in enumerate(chosen):
        ends = np.flatnonzero(np.diff(np.concatenate(([0], columns.astype(int), [0]))))
        for begin, end in ends.reshape(-1, 2):
            yield f"M{begin * _CELL} {row * _CELL}h{(end - begin) * _CELL}v{_CELL}h-{(end - begin) * _CELL}z"


def _line(words: str, x: int, line: int) -> str:
    """Words in the middle of the images' height, or in the first or second line below."""
    y = _TILE // 2 + 8 if line == 0 else _TILE + line * _TEXT - 10
    return f'<text x="{x}" y="{y}">{words}</text>'
