"""Reports: a table of a model's layers and their formats, and one of a run's products; qtorch and qjax fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from html import escape
from typing import Any

from qcore.html import html_table
from qcore.linalg.accumulator import Accumulator
from qcore.linalg.operands import Operand
from qcore.linalg.product import Product, Products
from qcore.tables import fitted_table, fitted_text


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

    Text is as wide as the terminal, in a pipe 80 columns, or as COLUMNS says: what has no room stands below its row.

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

    def __rich_console__(self, console: Any, options: Any) -> Any:
        wide = (layer.state == "float" for layer in self.layers)
        return _rich_lines(_HEAD, map(_cells, self.layers), wide, options.max_width)

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
        path: the dotted name of the module, or of the name scope, that multiplies; "" is the model itself.
        number: the index of the product at this path, counted from 0.
        kind: "linear", "conv", "attention_scores", "attention_output", "matmul", or for other products the name of the
            function.
        shapes: the shapes of the operands.
        multiply_adds: the number of multiply-adds of the forward product; None if it is not known. A complex one counts
            as four; numbers that a sparse tensor does not store do not count.
        products: the formats and accumulators, forward and of both gradients; None in high precision.
        reason: the reason why the product, or both gradients, stayed in high precision; else "".
        share: its part of all known multiply-adds of the run, from 0 to 1.

    Example:
        >>> ProductReport(
        ...     "head", 0, "linear", ((2, 8), (4, 8)), 64, reason="no entry of the recipe"
        ... ).multiply_adds
        64
    """

    path: str
    number: int
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    multiply_adds: int | None
    products: Products | None = None
    reason: str = ""
    share: float = 0.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Reports that were pickled when the field was called place.
        vars(self).update({"path" if name == "place" else name: value for name, value in state.items()})


@dataclass(frozen=True)
class FunctionReport:
    """A call of a function in a model's run, such as softmax, for whose steps a recipe has formats.

    Attributes:
        path: as of a `ProductReport`.
        kind: the name of the function in a recipe.
        shape: the shape of its operand.
        arithmetic: the formats of its steps, as in the text of a recipe; "" in high precision.
        reason: the reason why it stayed in high precision; else "".

    Example:
        >>> FunctionReport("attention", "softmax", (8, 8), "bfloat16").reason
        ''
    """

    path: str
    kind: str
    shape: tuple[int, ...]
    arithmetic: str = ""
    reason: str = ""


@dataclass(frozen=True)
class RunReport:
    """All products of a run, in order. `print` shows a table, `rich.print` the same in color.

    Args:
        products: one `ProductReport` for each; their shares are computed.
        functions: one `FunctionReport` for each function whose steps have formats, or should have.

    Example:
        >>> wide = ProductReport("head", 0, "linear", ((2, 8), (4, 8)), 64, reason="no entry of the recipe")
        >>> report = RunReport([wide])
        >>> report.lowered, report["head"][0].share
        (0.0, 1.0)
    """

    products: Sequence[ProductReport]
    functions: Sequence[FunctionReport] = ()

    def __post_init__(self) -> None:
        total = sum(one.multiply_adds or 0 for one in self.products)
        shared = (replace(one, share=(one.multiply_adds or 0) / total if total else 0.0) for one in self.products)
        object.__setattr__(self, "products", tuple(shared))

    @property
    def lowered(self) -> float:
        """The part of all known multiply-adds with formats of fewer than 16 bits, from 0 to 1; sums alone count, too.

        A product whose gradients stayed in high precision counts by a third: each gradient has as many multiply-adds.
        """
        return self._part(lambda products: not products.forward.has_16_bits)

    @property
    def in_16_bits(self) -> float:
        """The part of all known multiply-adds with formats of 16 bits or more alone, from 0 to 1."""
        return self._part(lambda products: products.forward.has_16_bits)

    def _part(self, counts: Callable[[Products], bool]) -> float:
        """The part of all known multiply-adds with products that count."""
        total = sum(one.multiply_adds or 0 for one in self.products)
        chosen = [one for one in self.products if one.products and counts(one.products)]
        found = sum((one.multiply_adds or 0) / (3 if one.reason else 1) for one in chosen)
        return found / total if total else 0.0

    def __getitem__(self, path: str) -> tuple[ProductReport, ...]:
        """The products of a path; () for a path without products."""
        return tuple(one for one in self.products if one.path == path)

    def __iter__(self) -> Iterator[ProductReport]:
        return iter(self.products)

    def __len__(self) -> int:
        return len(self.products)

    def __str__(self) -> str:
        return "\n".join([_plain_table(_RUN_HEAD, self._cells()), *self._fitted_legend()])

    def __rich_console__(self, console: Any, options: Any) -> Any:
        wide = (one.products is None for one in self.products)
        yield from _rich_lines(_RUN_HEAD, self._cells(), wide, options.max_width)
        yield "\n".join(self._fitted_legend(options.max_width))

    def _repr_html_(self) -> str:
        return html_table(_RUN_HEAD, self._cells()) + f"<pre>{escape(chr(10).join(self._legend()))}</pre>"

    def _names(self) -> dict[Products, str]:
        """Short names of the products' formats, which many layers share."""
        found = dict.fromkeys(one.products for one in self.products if one.products is not None)
        return {products: f"({number})" for number, products in enumerate(found, 1)}

    def _cells(self) -> list[tuple[str, ...]]:
        names = self._names()
        return [_run_cells(one, names) for one in self.products]

    def _fitted_legend(self, width: int | None = None) -> Iterator[str]:
        return (part for line in self._legend() for part in fitted_text(line, width))

    def _legend(self) -> list[str]:
        """What the short names mean, and the part that is lowered."""
        lines = []
        for products, name in self._names().items():
            lines += [
                f"{name} forward: {_long_product(products.forward)}",
                f"{name} gradient of the input: {_long_product(products.grad_a)}",
                f"{name} gradient of the weight: {_long_product(products.grad_b)}",
            ]
        more = f", in 16 bits: {self.in_16_bits:.1%}" if self.in_16_bits else ""
        return [*lines, f"lowered: {self.lowered:.1%}{more}", *map(_function_line, self.functions)]


def _function_line(one: FunctionReport) -> str:
    """A line of a function, behind the table of products."""
    shape = "x".join(map(str, one.shape)) or "()"
    return f"{one.path or '(model)'}: {one.kind} of {shape} in {one.arithmetic or f'high precision: {one.reason}'}"


_RUN_HEAD = ("path", "kind", "shapes", "share", "formats")


def _run_cells(one: ProductReport, names: dict[Products, str]) -> tuple[str, ...]:
    path = numbered(one.path or "(model)", one.number)
    shapes = " ".join("x".join(map(str, shape)) or "()" for shape in one.shapes)
    share = "?" if one.multiply_adds is None else f"{one.share:.1%}"
    formats = f"none: {one.reason}" if one.products is None else names[one.products]
    return path, one.kind, shapes, share, f"{formats}, {one.reason}" if one.products and one.reason else formats


def with_own_gradients(products: Products, function: str) -> tuple[Products, str]:
    """The products in a function with a derivative of its own, which a recipe does not reach, and the reason.

    Example:
        >>> forward = Product("e4m3fn", "e4m3fn")
        >>> with_own_gradients(Products(forward, forward, forward), "mine")[1]
        'its gradients stay in high precision: mine has a derivative of its own'
    """
    products = replace(products, grad_a=Product(), grad_b=Product())
    return products, f"its gradients stay in high precision: {function} has a derivative of its own"


def numbered(path: str, number: int) -> str:
    """The name of a product: the path of its module, or of an argument, with a number behind the first product.

    Example:
        >>> numbered("blocks.0.query", 0), numbered("blocks.0.query", 1)
        ('blocks.0.query', 'blocks.0.query #1')
    """
    return f"{path} #{number}" if number else path


def short_product(product: Product) -> str:
    """The formats of a product's operands in one short text.

    Example:
        >>> short_product(Product("e4m3fn", None, "accumulator(float16,chunk=4)"))
        'e4m3fn x float32'
    """
    return " x ".join(map(_short_operand, product.operands))


def _long_product(product: Product) -> str:
    """The formats of a product's operands, and its accumulator if that is not exact."""
    sums = "" if product.accumulator == Accumulator() else f", {product.accumulator.text}"
    return f"{_long_operand(product.first)} x {_long_operand(product.second)}{sums}"


def _long_operand(operand: Operand) -> str:
    """An operand's text; "float32" or the format alone, if it has nothing else."""
    if operand == Operand(operand.number):
        return "float32" if operand.number is None else operand.number.text
    return operand.text


def _short_operand(operand: Operand) -> str:
    if operand.number is None:
        return "float32"
    text = operand.number.text
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return text if operand.scale is None else f"scaled {text}"


_LONGEST = 28  # letters of a format


def _plain_table(head: Sequence[str], lines: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(line for row in fitted_table(head, lines) for line in row)


def _rich_lines(head: Sequence[str], lines: Iterable[tuple[str, ...]], is_dim: Iterable[bool], width: int) -> Any:
    """The same table for rich, in which layers and products in high precision are dim."""
    from rich.text import Text

    head_lines, *rows = fitted_table(head, lines, width)
    yield Text("\n".join(head_lines), style="bold")
    for row, dim in zip(rows, is_dim, strict=True):
        yield Text("\n".join(row), style="dim" if dim else "")
