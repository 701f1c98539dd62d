"""Recipes: the formats of the three products of each layer of a model, as data."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from qcore.arguments import check_choice, check_int, quoted
from qcore.arithmetic.composed import LAWS, Steps, check_steps
from qcore.formats.number import Number, call_text
from qcore.formats.text import Kind, Reader, choice, register
from qcore.html import html_table
from qcore.law.tiles import MOST_ELEMENTS
from qcore.linalg.product import Product, ProductLike, Products, check_product, check_products

# What is multiplied: a layer's weight by a matrix product or a convolution; the two products of attention; two other
# tensors. "attention" is both of attention's.
LINEAR, CONV, SCORES, OUTPUT, MATMUL = "linear", "conv", "attention_scores", "attention_output", "matmul"
_ATTENTION = "attention"
FUNCTION_TYPES = tuple(LAWS)
LAYER_TYPES = (LINEAR, CONV, _ATTENTION, SCORES, OUTPUT, MATMUL, *FUNCTION_TYPES)
_LAYERS = (LINEAR, CONV)  # their weights belong to modules, so that they can be counted before a run
_QUOTE = "'"
_PRODUCTS, _ENDS = ("forward", "grad_input", "grad_weight"), ("first", "last")

Layers = Sequence[tuple[str, str]]  # dotted names, and what is multiplied there


@dataclass(frozen=True, repr=False)
class Entry:
    """A row of a recipe: layers or products by pattern, and their three products, or none in high precision.

    Args:
        name: a shell pattern for the dotted name of the layer, or of the place of a product: "features.*",
            "block?.conv1".
        layer_type: "linear" or "conv" for products with a weight; "attention_scores", "attention_output", or for both
            "attention", of scaled_dot_product_attention; "matmul" for products of two other tensors. None is "linear"
            and "conv". Or a function: "softmax", "exp", "tanh", "sigmoid", "silu", "gelu", "layer_norm", "rms_norm".
        first, last: if given, the entry is for this number of matching layers from the start, and from the end, of the
            model; an argument that is not given is 0. They count "linear" and "conv" only.
        forward: the `Product` of the input and the weight, or its text. None leaves the layers as they are.
        grad_input: the product of the output's gradient and the weight.
        grad_weight: the product of the output's gradient and the input. None for grad_input or grad_weight takes the
            other operand as the forward product rounds it, the unrounded gradient, and the same accumulator.
        arithmetic: for a function, the format of its steps, or a dict of steps and formats: {"exp": "e5m2", "sum":
            "bfloat16", "*": "float16"}. "*" is all other steps; without it they are float32, and bfloat16 before "exp",
            "tanh" and "erf", which are tables. A sum may have an accumulator.

    Attributes:
        text: the entry in the text of a recipe.

    Example:
        >>> Entry("head").text
        "entry('head')"
        >>> Entry(layer_type="conv", forward=Product("int8", "int8")).grad_input.second.number.text
        'int8'
        >>> Entry("*", "softmax", arithmetic="bfloat16").text
        "entry('*',layer_type=softmax,arithmetic=bfloat16)"
    """

    name: str = "*"
    layer_type: str | None = None
    forward: Product | None = None
    grad_input: Product | None = None
    grad_weight: Product | None = None
    first: int | None = None
    last: int | None = None
    arithmetic: Steps | None = None
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str = "*",
            layer_type: str | None = None,
            forward: ProductLike = None,
            grad_input: ProductLike = None,
            grad_weight: ProductLike = None,
            first: int | None = None,
            last: int | None = None,
            arithmetic: Steps | Number | str | Mapping[str, Any] | None = None,
        ) -> None: ...

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        for name in _ENDS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_int(name, getattr(self, name), 0, MOST_ELEMENTS))
        if not isinstance(self.name, str):
            raise TypeError(f"name={quoted(self.name)} is a {type(self.name).__name__}; allowed is a pattern, a str")
        if _QUOTE in self.name or not self.name.isprintable():
            raise ValueError(f"name={quoted(self.name)}; allowed are printable characters but {_QUOTE}")
        if self.layer_type is not None:
            check_choice("layer_type", self.layer_type, LAYER_TYPES)
        if not self.of_layers and self.counts:
            raise ValueError(
                f"layer_type={quoted(self.layer_type)} with first or last, which count linear and conv layers only"
            )
        self._check_arithmetic()
        if self.forward is not None:
            forward = check_product(self.forward, "forward")
            made = check_products(
                forward.operands, forward.accumulator, self.grad_input, self.grad_weight, _PRODUCTS[1:]
            )
            for name, product in zip(_PRODUCTS, (made.forward, made.grad_a, made.grad_b), strict=True):
                object.__setattr__(self, name, product)
        elif self.grad_input is not None or self.grad_weight is not None:
            raise ValueError("forward=None with a product of a gradient; allowed is a Product, or None for all three")
        object.__setattr__(self, "text", f"entry({','.join(self._arguments())})")

    def _check_arithmetic(self) -> None:
        """Reads the formats of a function's steps; raises for an entry that mixes functions and products."""
        is_function = self.layer_type in FUNCTION_TYPES
        if is_function and any(getattr(self, name) is not None for name in _PRODUCTS):
            raise ValueError(f"layer_type={quoted(self.layer_type)} with products; allowed is arithmetic, or None")
        if self.arithmetic is None:
            return
        if not is_function:
            raise ValueError(
                f"layer_type={quoted(self.layer_type)} with arithmetic; allowed are {', '.join(FUNCTION_TYPES)}"
            )
        object.__setattr__(self, "arithmetic", check_steps(str(self.layer_type), self.arithmetic))

    def _arguments(self) -> list[str]:
        kind = [] if self.layer_type is None else [f"layer_type={self.layer_type}"]
        products = [f"{name}={getattr(self, name).text}" for name in _PRODUCTS if getattr(self, name) is not None]
        ends = [f"{name}={getattr(self, name)}" for name in _ENDS if getattr(self, name) is not None]
        steps = [] if self.arithmetic is None else [f"arithmetic={self.arithmetic.text}"]
        return [f"{_QUOTE}{self.name}{_QUOTE}", *kind, *products, *ends, *steps]

    def on(self, machine: str) -> Entry:
        """The entry with the products of a machine, see `Recipe.on`."""
        if self.forward is None:
            return self
        try:
            return replace(self, **{name: getattr(self, name).on(machine) for name in _PRODUCTS})
        except ValueError as error:
            raise ValueError(f"{error}; the products are those of {self.text}") from error

    @property
    def products(self) -> Products | None:
        """The three products; None for layers that are left in high precision."""
        if self.forward is None or self.grad_input is None or self.grad_weight is None:
            return None
        return Products(self.forward, self.grad_input, self.grad_weight)

    @property
    def of_layers(self) -> bool:
        """True if the entry is for products with a weight."""
        return self.layer_type is None or self.layer_type in _LAYERS

    @property
    def counts(self) -> bool:
        """True if the entry is for the first or last layers only."""
        return self.first is not None or self.last is not None

    def _matches(self, name: str, layer_type: str) -> bool:
        """True for a layer, or a product, of this dotted name and type."""
        if self.layer_type is None:
            fits = layer_type in _LAYERS
        elif self.layer_type == _ATTENTION:
            fits = layer_type in (SCORES, OUTPUT)
        else:
            fits = layer_type == self.layer_type
        return fits and fnmatchcase(name, self.name)

    def _places(self, layers: Layers) -> list[int]:
        """The numbers of the layers that the entry is for."""
        found = [place for place, layer in enumerate(layers) if self._matches(*layer)]
        if not self.counts:
            return found
        begin, end = self.first or 0, len(found) - (self.last or 0)
        return [place for rank, place in enumerate(found) if rank < begin or rank >= end]


@dataclass(frozen=True, repr=False)
class Recipe:
    """The products of a model's layers: the first entry that matches a layer counts.

    Layers without an entry stay in high precision.

    Args:
        entries: `Entry`s, in order.

    Attributes:
        text: the text form, which `parse` reads.

    Raises:
        TypeError: if an entry is not an `Entry`.
        ValueError: if there are no entries.

    Example:
        >>> recipe = Recipe([Entry("head"), Entry("*", "linear", Product("e5m2", "e4m3fn"))])
        >>> recipe.products_for("head", "linear") is None
        True
        >>> Recipe([Entry("head")]).text
        "recipe([entry('head')])"
    """

    entries: Sequence[Entry]
    text: str = field(init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        if not isinstance(self.entries, list | tuple):
            raise TypeError(
                f"entries={quoted(self.entries)} is a {type(self.entries).__name__}; allowed is a list of Entry"
            )
        for entry in self.entries:
            if not isinstance(entry, Entry):
                raise TypeError(f"entries has {quoted(entry)}, a {type(entry).__name__}; allowed are Entry")
        if not self.entries:
            raise ValueError(f"entries={quoted(self.entries)}; allowed is at least one Entry")
        object.__setattr__(self, "entries", tuple(self.entries))
        object.__setattr__(self, "text", f"recipe([{','.join(entry.text for entry in self.entries)}])")

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """The HTML that notebooks show: a row for each entry."""
        shown: tuple[str, ...] = ("name", "layer_type", *_PRODUCTS, *_ENDS)
        if any(entry.arithmetic for entry in self.entries):
            shown += ("arithmetic",)
        rows = ([getattr(entry, name) for name in shown] for entry in self.entries)
        texts = ([getattr(cell, "text", "" if cell is None else cell) for cell in row] for row in rows)
        return html_table([name.replace("_", " ") for name in shown], texts)

    def on(self, machine: str | None) -> Recipe:
        """The recipe with the products of a machine: each gets the instruction for its operands' formats.

        Args:
            machine: a chip, or a chip and an instruction, as for `Product.on`; None returns the recipe.

        Returns:
            A `Recipe`. Layers that stay in high precision still do.

        Raises:
            ValueError: if there is no such machine, or it has no instruction for a product; the message lists the
                formats that it has, and names the entry.

        Example:
            >>> backward = Product("e5m2", "e4m3fn")
            >>> recipe = Recipe([Entry("*", None, Product("e4m3fn", "e4m3fn"), backward, backward)])
            >>> recipe.on("ada").entries[0].grad_input.accumulator.text
            'accumulator(design=ada.mma.e4m3_e5m2)'
        """
        return self if machine is None else Recipe([entry.on(machine) for entry in self.entries])

    @property
    def stochastic(self) -> bool:
        """True if a product needs a key."""
        return any(entry.products is not None and entry.products.stochastic for entry in self.entries)

    @property
    def delayed(self) -> bool:
        """True if a product has scales that are state."""
        return any(entry.products is not None and entry.products.history is not None for entry in self.entries)

    def _products_of(self, layers: Layers) -> list[Products | None]:
        """The products of each layer of a model, given in order with names and types; None in high precision."""
        found: dict[int, Products | None] = {}
        for entry in self.entries:
            for place in entry._places(layers):
                found.setdefault(place, entry.products)
        return [found.get(place) for place in range(len(layers))]

    def products_for(self, name: str, layer_type: str) -> Products | None:
        """The products of a layer of this dotted name and type that is the only one; None in high precision."""
        return self._products_of([(name, layer_type)])[0]

    def _entry_at(self, name: str, layer_type: str) -> Entry | None:
        """The first entry that matches a product. Entries with first or last match layers only."""
        return next((entry for entry in self.entries if not entry.counts and entry._matches(name, layer_type)), None)

    def why_wide(self, name: str, layer_type: str) -> str:
        """Why a product of this dotted name and type stays in high precision, if the recipe has no products for it."""
        matches = any(entry._matches(name, layer_type) for entry in self.entries)
        return (
            "the recipe leaves it in high precision" if matches else f"no entry of the recipe is for {layer_type} here"
        )

    def check(self, layers: Layers, paths: Sequence[str] = ()) -> None:
        """Raises if no entry of the recipe matches, and for patterns other than "*" that match nothing.

        Args:
            layers: the layers of the model.
            paths: dotted names of modules that may have other products.
        """
        names = ", ".join(f"{quoted(name)} ({kind})" for name, kind in dict.fromkeys(layers)) or "none"
        matching = [
            any(entry._matches(*layer) for layer in layers)
            or any(fnmatchcase(path, entry.name) and not entry.of_layers for path in paths)
            for entry in self.entries
        ]
        for entry, matches in zip(self.entries, matching, strict=True):
            if entry.name != "*" and not matches:
                raise ValueError(f"recipe has {entry.text}, which matches no layer; the layers are {names}")
        if not any(matching):
            raise ValueError(
                f"recipe has no layer to apply to; the layers are {names}; allowed are models with linear layers or "
                "convolutions that an entry matches"
            )


def check_alone(others: dict[str, Any]) -> None:
    """Raises if `lower` has other arguments beside a recipe."""
    given = [name for name, is_given in others.items() if is_given]
    if given:
        raise ValueError(
            f"{', '.join(given)} beside a Recipe; allowed is the Recipe alone: its entries have all formats"
        )


def check_machine(on: Any) -> None:
    """Raises if `lower` has a machine without a recipe."""
    if on is not None:
        raise ValueError(
            f"on={quoted(on)} without a Recipe; allowed is None: layers that round outputs have no products"
        )


def _pattern(reader: Reader) -> str:
    """Reads a pattern in quotes."""
    reader.expect(_QUOTE)
    begin = reader.tokens[reader.index - 1][1] + 1
    while reader.token not in (_QUOTE, ""):
        reader.next()
    end = reader.tokens[reader.index][1]
    reader.expect(_QUOTE)
    return reader.text[begin:end]


def _entries(reader: Reader) -> list[Entry]:
    found: list[Entry] = []
    reader.expect("[")
    while reader.next_item("]", first=not found):
        found.append(reader.registered("entry"))
    return found


def _read_product(reader: Reader) -> Product:
    return reader.registered("product")


def _read_steps(reader: Reader) -> Any:
    """A format, or steps with formats in braces."""
    if reader.token != "{":
        return _read_format(reader)
    formats: dict[str, Any] = {}
    reader.expect("{")
    while reader.next_item("}", first=not formats):
        step = reader.next()
        reader.expect(":")
        formats[step] = _read_format(reader)
    return formats


def _read_format(reader: Reader) -> Any:
    return reader.registered("accumulator") if reader.token == "accumulator" else reader.number()


_PARAMETERS: dict[str, Callable[[Reader], Any]] = {"name": _pattern, "layer_type": choice(LAYER_TYPES)}
_PARAMETERS |= {**dict.fromkeys(_PRODUCTS, _read_product), **dict.fromkeys(_ENDS, Reader.integer)}
_PARAMETERS["arithmetic"] = _read_steps
register("entry", Kind(Entry, _PARAMETERS, 0, 1, 0))
register("recipe", Kind(Recipe, {"entries": _entries}, 1, 1, 1))
