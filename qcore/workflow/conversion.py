"""Conversion: which layers of a prepared model change, in which order, and what is said of layers without data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from qcore.arguments import quoted
from qcore.names import is_in, shown, some
from qcore.notices import warn
from qcore.workflow.reporting import Rounding
from qcore.workflow.tree import Tree, tie, ties_of


class Conversion(Tree, Protocol):
    """The final forms of a framework's layers.

    Attributes:
        stub: the class that marks where integers end; it stays where a model has none.
        dequantize: the class that takes its place, and returns floats of the model's dtype.
        left_out: how a layer is left in floats, for messages.
        unprepared: the error of a model without a layer to convert.
        counted: what is said of the number of runs.
    """

    stub: type
    dequantize: type
    left_out: str
    unprepared: str
    counted = ""

    def is_known(self, layer: Any) -> bool: ...  # it has settings, and a final form
    def is_observed(self, layer: Any) -> bool: ...  # and its form has the range of its results, or rounds them
    def is_rounded(self, layer: Any) -> bool: ...  # its form is in floats
    def observer(self, layer: Any) -> Any: ...  # of its results; None before it is prepared
    def rounding(self, observer: Any) -> Rounding: ...  # what an observer makes
    def unseen(self, layer: Any) -> Sequence[str]: ...  # the names of its observers without data
    def has_scalars(self, layer: Any) -> bool: ...  # it adds and multiplies single numbers, which need no range
    def with_some_range(self, layer: Any, names: Sequence[str]) -> Any: ...  # its observers of these names have one
    def runs(self, model: Any) -> tuple[int, Mapping[str, int]]: ...  # of the model, and of each observed layer
    def floats(self, model: Any) -> Iterable[tuple[Any, int]]: ...  # the dtype and the size of each parameter
    def rounded(self, path: str, layer: Any) -> Any: ...  # the form in floats
    def final(self, path: str, layer: Any) -> Any: ...  # any other form, or the layer
    def refuse(self, path: str, made: Any) -> None: ...  # makes it raise when it is called

    def explain(self, path: str, layer: Any, in_integers: bool) -> None:
        """Notes why a layer is what it was; nothing where reports find out."""

    def converted(self, model: Any, allow_uncalibrated: Any) -> Any:
        """The model in which each prepared layer has its final form; see `convert`."""
        allowed = allowed_names(allow_uncalibrated, {name for name, _ in self.named(model)})
        times, calls = self.runs(model)
        for path, count in calls.items():
            if 0 < times < count:
                warn_of_repeats(path, count, times, self.counted)
        return self.changed(model, *self._without_data(model, allowed))

    def changed(self, model: Any, unseen: Mapping[str, Sequence[str]], refused: Collection[str] = ()) -> Any:
        """The model in which each layer with settings has its final form.

        Args:
            model: the model.
            unseen: the names of observers without data by the layer's path; they get an arbitrary range.
            refused: the layers among them that raise when they are called.
        """
        in_integers = any(self.is_observed(layer) and not self.is_rounded(layer) for _, layer in self.walk(model))
        ties, sizes = ties_of(self, model), Counter[Any]()
        for dtype, size in self.floats(model):  # most numbers count, since norms may be float32 in a bfloat16 model
            sizes[dtype] += size

        def change(path: str, layer: Any) -> Any:
            if path in unseen and self.is_observed(layer):  # several may have one name
                layer = self.with_some_range(layer, unseen[path])
            observer, rounds, made = self.observer(layer), self.is_rounded(layer), layer
            if rounds:
                made = self.rounded(path, layer)
            elif in_integers or not isinstance(layer, self.stub):
                made = self.final(path, layer)
            if made is layer and not rounds:
                self.explain(path, layer, in_integers)
            elif observer is not None:
                made.observed_by = self.rounding(observer).name
            if isinstance(made, self.dequantize) and sizes:
                made.dtype = max(sizes, key=lambda dtype: sizes[dtype])
            if path in refused:
                self.refuse(path, made)
            return made

        made = self.rebuilt(model, change)
        tie(self, made, ties)
        return made

    def _without_data(self, model: Any, allowed: Collection[str]) -> tuple[dict[str, Sequence[str]], Collection[str]]:
        """The names of observers without data by the paths of their layers; and the layers that need a range.

        Raises:
            ValueError: if a layer is not prepared, no layer saw data, or no layer is to be converted.
        """
        found, refused, unprepared = dict[str, Sequence[str]](), list[str](), list[str]()
        known = seen = False
        for path, layer in self.walk(model):
            known |= self.is_known(layer)
            if not self.is_observed(layer):
                continue
            observer = self.observer(layer)
            if observer is None:
                unprepared.append(path)
            elif names := self.unseen(layer):
                found[path] = names
                if not (self.has_scalars(layer) or any(is_in(path, one) for one in allowed)):
                    refused.append(path)
            else:
                seen |= self.rounding(observer).form is not None
        if not known:
            raise ValueError(self.unprepared)
        if unprepared:
            have = "has" if len(unprepared) == 1 else "have"
            raise ValueError(
                f"{some(list(map(shown, unprepared)))} {have} no observer; call prepare(model) or prepare_qat(model) "
                "before convert"
            )
        check_seen(refused, seen, self.left_out)
        return found, refused


def allowed_names(allowed: Any, names: Collection[str]) -> Collection[str]:
    """The names of modules in which layers may have seen nothing, as the argument allow_uncalibrated says.

    Args:
        allowed: True is the whole model, False nothing.
        names: of all modules.

    Raises:
        TypeError: if it is neither a bool nor a list of names.
        ValueError: if a name does not occur in the model.
    """
    if isinstance(allowed, bool):
        return [""] if allowed else []
    if not isinstance(allowed, Collection) or isinstance(allowed, str) or not all(isinstance(n, str) for n in allowed):
        raise TypeError(f"allow_uncalibrated={quoted(allowed)}; allowed are True, False and a list of names of modules")
    for name in allowed:
        if name not in names:
            raise ValueError(f"allow_uncalibrated has {quoted(name)}, which names no module")
    return allowed


def warn_of_repeats(path: str, calls: int, times: int, more: str = "") -> None:
    """Warns of a layer that ran more often than the model, with one observer for all calls."""
    warn(
        f"{shown(path)} ran {calls} times while the model ran {times} times{more}: all calls share one observer, and "
        "will share one scale; use a module for each call, or leave it in floats: the settings None for its name"
    )


def check_seen(unseen: Sequence[str], seen: bool, left_out: str) -> None:
    """Raises if no observer saw data, and warns if some did not.

    Args:
        unseen: the names of the layers without a range that need one.
        seen: True if other layers have a range.
        left_out: how a layer is left in floats.

    Raises:
        ValueError: if there are unseen layers, and no others.
    """
    if not unseen:
        return
    named = (
        f"{some(list(map(shown, unseen)))} {'has' if len(unseen) == 1 else 'have'} an observer that has seen nothing"
    )
    if not seen:
        raise ValueError(
            f"{named}; run the prepared model on data that has elements, {left_out}, or pass allow_uncalibrated=True "
            "to convert and load scales"
        )
    warn(
        f"{named}, and will raise when called; calibrate with data that reaches it, {left_out}, or name it in "
        "convert(.., allow_uncalibrated=[..])"
    )


def uncalibrated(name: str, left_out: str) -> RuntimeError:
    """The error of a layer that runs, but saw no data in calibration."""
    return RuntimeError(
        f"{name} runs for the first time, and has no range: it saw no data before convert; calibrate with data that "
        f"reaches it, or {left_out}"
    )
