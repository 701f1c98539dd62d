"""One row for one operation: what the packages make of a function of quantized arrays, and how they describe it.

`operation(...)` above a function of `qcore.affine.arithmetic` adds its row to `OPERATIONS`. The packages make their
functions, layers and tables of the rows; so the sentence, the settings and the example of an operation stand once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc, signature
from textwrap import wrap
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

SCALE, ZERO_POINT = 0.125, 120  # of the examples, whose numbers are exact in uint8


class Words(NamedTuple):
    """What a package says of functions of one kind.

    Attributes:
        arguments: by the names as they stand in a document, "scale, zero_point", what the arguments are.
        returns, raises: the other sections; "" for none.
    """

    arguments: Mapping[str, str]
    returns: str = ""
    raises: str = ""


class Example(NamedTuple):
    """Some numbers, what an operation makes of them, and with which settings."""

    numbers: list[float]
    shows: list[float]
    settings: Mapping[str, float] = {}


@dataclass(frozen=True)
class Operation:
    """An operation of quantized arrays.

    Attributes:
        law: the function of quantized arrays of any package.
        sentence: what it computes.
        settings: its own arguments by name, and what they are.
        example: numbers for the documents; None if `law` has a document of its own.
        limits: the range of the results, "from 0 to 1", from which their parameters follow; "" if they are given.
        layers: the layers of torch.nn that `qtorch.nn.quantized` has, too: their results have parameters of their own.
        passing: the layers of torch.nn that take quantized tensors: their results have the input's parameters.
        rounds: True if such results are rounded to the input's scale.
        names: torch's names of settings that are not ours.
        flax: the function of floats in `jax.nn`, for which `qjax.nnx` has the layer.
    """

    law: Callable[..., Any]
    sentence: str
    settings: Mapping[str, str] = field(default_factory=dict)
    example: Example | None = None
    limits: str = ""
    layers: Sequence[str] = ()
    passing: Sequence[str] = ()
    rounds: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    flax: str = ""

    def in_torch(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Something of each setting, by torch's names."""
        return {self.names.get(name, name): value for name, value in settings.items()}


OPERATIONS: dict[str, Operation] = {}  # by the names of the functions


def operation(words: Words | None = None, **row: Any) -> Callable[[F], F]:
    """Adds a function's row to the table.

    Args:
        words: what functions of the kind have in common, which completes the docstring of a row with an example.
        row: fields of `Operation`.
    """

    def add(function: F) -> F:
        about = cleandoc(function.__doc__ or "")
        made = Operation(function, about.partition("\n\n")[0], **row)
        OPERATIONS[function.__name__] = made
        if words is not None and made.example is not None:
            arguments = {**words.arguments, **made.settings}
            function.__doc__ = document(function, about, words._replace(arguments=arguments), _in_numpy(made))
        return function

    return add


def document(thing: Callable[..., Any], about: str, words: Words, example: Sequence[str]) -> str:
    """The docstring of a function or class: its arguments are those of `words` that its signature has."""
    places = [*signature(thing).parameters]
    arguments = {}  # by the place of the first
    for names, text in words.arguments.items():
        if known := [name for name in names.split(", ") if name in places]:
            arguments[places.index(known[0])] = f"{', '.join(known)}: {text}"
    sections = {
        "Args": [arguments[place] for place in sorted(arguments)],
        "Returns": [words.returns],
        "Raises": [words.raises],
    }
    found = [about]
    for title, texts in sections.items():
        lines = [line for text in texts for line in wrap(text, 112, subsequent_indent=" " * 4)]
        found += [_section(title, lines)] if lines else []
    return "\n\n".join([*found, _section("Example", example)])


def in_dimensions(dimensions: int, function: F) -> F:
    """The member of a family for one, two or three dimensions: its name, and its docstring, a template with that name.

    The docstring has {name}, {sizes} for the names of the sizes, and {ones} for the sizes of 1 before the last one.
    """
    name = f"{function.__name__}{dimensions}d"
    sizes = ("length", "height, width", "depth, height, width")[dimensions - 1]
    function.__doc__ = cleandoc(function.__doc__ or "").format(name=name, sizes=sizes, ones="1, " * (dimensions - 1))
    function.__name__ = function.__qualname__ = name
    return function


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:", *(f"    {line}" for line in lines)])


def settings_of(example: Example, names: Mapping[str, str]) -> str:
    """The settings of an example as they stand in a call."""
    return ", ".join(f"{names.get(name, name)}={value}" for name, value in example.settings.items())


def _in_numpy(row: Operation) -> list[str]:
    """The example of the law, on NumPy's arrays."""
    example: Any = row.example
    integers = [min(max(round(number / SCALE) + ZERO_POINT, 0), 255) for number in example.numbers]
    shown = [f"{(integer - ZERO_POINT) * SCALE:g}" for integer in integers]
    output = [] if row.limits else ["q.qparams"]
    call = ", ".join(["q", *output, *filter(None, [settings_of(example, {})])])
    return [
        ">>> import numpy as np",
        ">>> from qcore.affine import UINT8, QArray, QParams",
        f">>> q = QArray(np.uint8({integers}), QParams.of({SCALE}, {ZERO_POINT}), UINT8)  # {', '.join(shown)}",
        f">>> {row.law.__name__}({call}).dequantize().tolist()",
        str(example.shows),
    ]
