"""Reports: a table of a model's layers and their formats, and one of a run's products; qtorch and qjax fill them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from qcore.html import html_table
from qcore.linalg.operands import Operand
from qcore.linalg.product import Product, Products


@dataclass(frozen=True)
class LayerReport:
    """A layer of a model.

    Attributes:
        path: its dotted name; "" is the model itself.
        layer: its class.
        state: "float"; "observed"; "trained", with simulated quantization; "quantized"; "rounded", in floats with a
            coded weight; or "passing", with integers or floats as its input has.
        weight: the weight's format as text; "" for floats, and for layers without a weight of their own.
        bits: the bits of each number of the weight; None without a weight.
        bytes: the bytes of the layer's weights, biases, scales and statistics in memory.
        output: the result's format, as for weight.
        scale, zero_point: the parameters of the output; None if it has none, or one pair for each channel.
        observer: the observer that chose them.
        reason: the reason why the layer is in floats, or the missing part.

    Example:
        >>> LayerReport("fc", "Linear", "observed", observer="MinMaxObserver").weight
        ''
    """

    path: str
    layer: str
    state: str
    weight: str = ""
    bits: int | None = None
    bytes: int = 0
    output: str = ""
    scale: float | None = None
    zero_point: int | None = None
    observer: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """All layers of a model, in order. `rich.print` shows a table, `print` the same in plain text, a notebook in HTML.

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
            KeyError: if the model does not have it.
        """
        return {layer.path: layer for layer in self.layers}[path]

    def __iter__(self) -> Iterator[LayerReport]:
        return iter(self.layers)

    def __str__(self) -> str:
        return _plain_table(_HEAD, map(_cells, self.layers))

    def __rich__(self) -> Any:
        return _rich_table(_HEAD, ((_cells(layer), layer.state == "float") for layer in self.layers))

    def _repr_html_(self) -> str:
        return html_table(_HEAD, map(_cells, self.layers))


_HEAD = tuple(field.name.replace("_", " ") for field in fields(LayerReport))


def _cells(layer: LayerReport) -> tuple[str, ...]:
    cells = (f"{value:.6g}" if isinstance(value, float) else value for value in astuple(layer))
    path, *others = ("" if cell is None else str(cell) for cell in cells)
    return path or "(model)", *others


@dataclass(frozen=True)
class ProductReport:
    """A product of a model's run.

    Attributes:
        place: the dotted name of the module, or of the name scope, that multiplies; "" is the model itself.
        number: the index of the product in this place, counted from 0.
        kind: "linear", "conv", "attention_scores", "attention_output", "matmul", or for other products the name of the
            function.
        shapes: the shapes of the operands.
        multiply_adds: the number of multiply-adds of the forward product; None if it is not known.
        products: the formats and accumulators, forward and of both gradients; None if the product stayed wide.
        reason: the reason why the product stayed wide; else "".
        share: its part of all known multiply-adds of the run, from 0 to 1.

    Example:
        >>> ProductReport(
        ...     "head", 0, "linear", ((2, 8), (4, 8)), 64, reason="no entry of the recipe"
        ... ).multiply_adds
        64
    """

    place: str
    number: int
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    multiply_adds: int | None
    products: Products | None = None
    reason: str = ""
    share: float = 0.0


@dataclass(frozen=True)
class RunReport:
    """All products of a run, in order. `print` shows a table, `rich.print` the same in color.

    Args:
        products: one `ProductReport` for each; their shares are computed.

    Example:
        >>> wide = ProductReport("head", 0, "linear", ((2, 8), (4, 8)), 64, reason="no entry of the recipe")
        >>> report = RunReport([wide])
        >>> report.lowered, report["head"][0].share
        (0.0, 1.0)
    """

    products: Sequence[ProductReport]

    def __post_init__(self) -> None:
        total = sum(one.multiply_adds or 0 for one in self.products)
        shared = (replace(one, share=(one.multiply_adds or 0) / total if total else 0.0) for one in self.products)
        object.__setattr__(self, "products", tuple(shared))

    @property
    def lowered(self) -> float:
        """The part of all known multiply-adds that the model computes with formats, from 0 to 1."""
        total = sum(one.multiply_adds or 0 for one in self.products)
        found = sum(one.multiply_adds or 0 for one in self.products if one.products is not None)
        return found / total if total else 0.0

    def __getitem__(self, place: str) -> tuple[ProductReport, ...]:
        """The products of a place; () for a place without products."""
        return tuple(one for one in self.products if one.place == place)

    def __iter__(self) -> Iterator[ProductReport]:
        return iter(self.products)

    def __len__(self) -> int:
        return len(self.products)

    def __str__(self) -> str:
        return f"{_plain_table(_RUN_HEAD, map(_run_cells, self.products))}\nlowered: {self.lowered:.1%}"

    def __rich__(self) -> Any:
        return _rich_table(_RUN_HEAD, ((_run_cells(one), one.products is None) for one in self.products))

    def _repr_html_(self) -> str:
        return html_table(_RUN_HEAD, map(_run_cells, self.products)) + f"<p>lowered: {self.lowered:.1%}</p>"


_RUN_HEAD = (
    "place",
    "kind",
    "shapes",
    "share",
    "forward",
    "gradient of the input",
    "gradient of the weight",
    "wide because",
)


def _run_cells(one: ProductReport) -> tuple[str, ...]:
    place = f"{one.place or '(model)'}{f' #{one.number}' if one.number else ''}"
    shapes = " ".join("x".join(map(str, shape)) or "()" for shape in one.shapes)
    share = "?" if one.multiply_adds is None else f"{one.share:.1%}"
    products = one.products
    texts = ("",) * 3 if products is None else map(short_product, (products.forward, products.grad_a, products.grad_b))
    return place, one.kind, shapes, share, *texts, one.reason


def short_product(product: Product) -> str:
    """The formats of a product's operands in one short text.

    Example:
        >>> short_product(Product("e4m3fn", None, "accumulator(float16,chunk=4)"))
        'e4m3fn x float32'
    """
    return " x ".join(map(_short_operand, product.operands))


def _short_operand(operand: Operand) -> str:
    if operand.number is None:
        return "float32"
    text = operand.number.text
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return text if operand.scale is None else f"scaled {text}"


_LONGEST = 28  # letters of a format


def _plain_table(head: Sequence[str], lines: Iterable[tuple[str, ...]]) -> str:
    rows = [tuple(head), *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(text.rstrip() for text in texts)


def _rich_table(head: Sequence[str], lines: Iterable[tuple[tuple[str, ...], bool]]) -> Any:
    from rich.table import Table

    table = Table(*head)
    for row, is_wide in lines:
        table.add_row(*row, style="dim" if is_wide else None)
    return table
