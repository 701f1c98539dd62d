"""Tables of what is quantized in a model; `qtorch.quantization.report` and `qjax.nnx.report` fill them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class LayerReport:
    """A layer of a model.

    Attributes:
        path: its dotted name; "" is the model itself.
        layer: its class.
        state: "float", "observed", "trained" with simulated quantization, "quantized", or "rounded": in floats, with a
            coded weight.
        weight, output: their formats as text, or "" where they are floats, or not of the layer's own.
        scale, zero_point: of the output, or None where there is none, or none for the whole.
        observer: what chose them.
        reason: why the layer is in floats, or what is missing.

    Example:
        >>> LayerReport("fc", "Linear", "observed", observer="MinMaxObserver").weight
        ''
    """

    path: str
    layer: str
    state: str
    weight: str = ""
    output: str = ""
    scale: float | None = None
    zero_point: int | None = None
    observer: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """All layers of a model, in order. `rich.print` shows a table, `print` the same in plain text.

    Attributes:
        layers: one entry for each layer.

    Example:
        >>> print(Report((LayerReport("fc", "Linear", "float", reason="no qconfig"),))["fc"].reason)
        no qconfig
    """

    layers: tuple[LayerReport, ...]

    def __getitem__(self, path: str) -> LayerReport:
        """The layer of a name.

        Raises:
            KeyError: if there is none.
        """
        return {layer.path: layer for layer in self.layers}[path]

    def __iter__(self) -> Iterator[LayerReport]:
        return iter(self.layers)

    def __str__(self) -> str:
        rows = [_HEAD, *map(_cells, self.layers)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def __rich__(self) -> Any:
        from rich.table import Table

        table = Table(*_HEAD)
        for layer in self.layers:
            table.add_row(*_cells(layer), style="dim" if layer.state == "float" else None)
        return table


_HEAD = tuple(field.name.replace("_", " ") for field in fields(LayerReport))


def _cells(layer: LayerReport) -> tuple[str, ...]:
    cells = (f"{value:.6g}" if isinstance(value, float) else value for value in astuple(layer))
    path, *others = ("" if cell is None else str(cell) for cell in cells)
    return path or "(model)", *others
