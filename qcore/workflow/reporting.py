"""Reports of models: which modules have a row, and what a row says; PyTorch and flax give the facts of modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

from qcore.affine import AffineInteger
from qcore.formats.foreign import stored_bits
from qcore.formats.number import Number
from qcore.names import joined
from qcore.report import LayerReport, Report
from qcore.workflow.settings import UNSEEN
from qcore.workflow.tree import Tree


class Reports(Tree, Protocol):
    """The facts of a framework's modules."""

    def is_part(self, module: Any) -> bool: ...  # of a layer, or without effect: it has no row
    def owns_arrays(self, module: Any) -> bool: ...  # beside those of its children
    def row(self, path: str, layer: Any) -> LayerReport: ...

    def report(self, model: Any) -> Report:
        """The report of a model: a row for each layer that computes, or has parameters of its own, once."""

        def rows(path: str, module: Any) -> Iterator[LayerReport]:
            if id(module) in seen or self.is_part(module):
                return
            seen.add(id(module))
            children = self.children(module)
            if not children or self.owns_arrays(module):
                yield self.row(path, module)
            for name, child in children:
                yield from rows(joined(path, name), child)

        seen = set[int]()
        return Report(tuple(rows("", model)))


@dataclass(frozen=True)
class Rounding:
    """What observes or rounds numbers, or a rounded weight.

    Attributes:
        kind: the name of its class.
        number: the format; None for integers with a scale, and for floats.
        form, axis: the range of integers, and the axis of channels that have a scale each.
        inner: the name of the observer in a fake quantization.
        scale, zero_point: the chosen parameters, if they are one pair.
        seen: False if an observer has seen no numbers.
    """

    kind: str = ""
    number: Number | None = None
    form: AffineInteger | None = None
    axis: int | None = None
    inner: str = ""
    scale: float | None = None
    zero_point: int | None = None
    seen: bool = True

    @classmethod
    def of(cls, part: Any, observer: Any = None) -> Rounding:
        """That of a module or of settings, whose attributes have the same names in both frameworks."""
        rule = getattr(part if observer is None else observer, "rule", part)
        inner = "" if observer is None else type(observer).__name__
        form, axis = getattr(rule, "form", None), getattr(rule, "axis", None)
        return cls(type(part).__name__, getattr(part, "number", None), form, axis, inner)

    def with_parameters(self, scale: Any, zero_point: Any = None) -> Rounding:
        """The same with the parameters, given as arrays."""
        if prod(scale.shape) != 1:
            return self
        zero_point = None if zero_point is None else int(zero_point.reshape(()))
        return replace(self, scale=float(scale.reshape(())), zero_point=zero_point)

    @property
    def text(self) -> str:
        """The format; "" for floats."""
        if self.number is not None:
            return self.number.text
        return "" if self.form is None else self.form.text + " per channel" * (self.axis is not None)

    @property
    def name(self) -> str:
        """What reports call it."""
        more = [part for part in (self.inner, "" if self.number is None else self.number.text) if part]
        return f"{self.kind}({', '.join(more)})" if more else self.kind


def row(
    *columns: str,
    arrays: Sequence[tuple[Any, bool]],
    codes: Sequence[Any] = (),
    weight: Rounding | None = None,
    result: Rounding | None = None,
    observer: str = "",
    reason: str = "",
) -> LayerReport:
    """The row of a layer.

    Args:
        columns: the path, the class and the state.
        arrays: all arrays but observers', each with True for a weight.
        codes: the modules of weights that are no arrays of floats.
        weight, result: what will round the weight of a prepared layer; what observes, rounds or quantizes its result.
        observer: the name of the observer that chose the scale; "" for that of result.
        reason: why it is in floats.
    """
    result = Rounding() if result is None else result
    described = [Rounding.of(code) for code in codes] if weight is None else [weight]
    return LayerReport(
        *columns,
        weight=", ".join(sorted({one.text for one in described})),
        bits=max(map(_bits, codes or [array for array, is_weight in arrays if is_weight]), default=None),
        bytes=sum(array.nbytes for array, _ in arrays),
        output=result.text,
        scale=result.scale,
        zero_point=result.zero_point,
        observer=observer or result.name,
        reason=reason if result.seen else UNSEEN,
    )


def _bits(weight: Any) -> int:
    """The bits of each number of a weight."""
    if hasattr(weight, "form"):
        return weight.form.bits
    return stored_bits(weight.number, weight.shape) or 32 if hasattr(weight, "number") else 8 * weight.itemsize
