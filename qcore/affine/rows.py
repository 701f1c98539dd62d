"""One row for one operation: what the packages make of a function of quantized arrays, and how they describe it.

`operation(...)` above a function of `qcore.affine.functional` adds its row to `OPERATIONS`. The packages make their
functions, layers and tables of the rows; so the sentence, the settings and the example of an operation stand once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Example(NamedTuple):
    """Some numbers, what an operation makes of them, and with which settings.

    All are exact in the scale 1/8 and the zero point 120 of uint8, or saturate.
    """

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

    def document(
        self, template: str, name: str, names: Mapping[str, str] | None = None, words: Mapping[str, str] | None = None
    ) -> str:
        """A docstring: a template with the words of the row.

        They are {sentence} and {law}, its name; {settings}, lines of arguments; the example's {numbers}, what it
        {shows}, and its settings in a call, {values}, or {more} behind other arguments.

        Args:
            template: the text.
            name: {name}, that of the function or the layer.
            names: of settings that have another name.
            words: what else the template has.
        """
        names, example = names or {}, self.example or Example([], [])
        sentence = self.sentence.removesuffix(".")
        for own, other in names.items():
            sentence = sentence.replace(own, other)
        values = [f"{names.get(own, own)}={value}" for own, value in example.settings.items()]
        return template.format(
            name=name,
            sentence=sentence,
            law=self.law.__name__,
            settings="".join(f"    {names.get(own, own)}: {text}\n" for own, text in self.settings.items()),
            numbers=example.numbers,
            shows=example.shows,
            values=", ".join(values),
            more="".join(f", {value}" for value in values),
            **(words or {}),
        )


OPERATIONS: dict[str, Operation] = {}  # by the names of the functions


def operation(**row: Any) -> Callable[[F], F]:
    """Adds a function's row, with these fields of `Operation`, to the table."""

    def add(function: F) -> F:
        sentence = cleandoc(function.__doc__ or "").partition("\n\n")[0]
        OPERATIONS[function.__name__] = Operation(function, sentence, **row)
        return function

    return add
