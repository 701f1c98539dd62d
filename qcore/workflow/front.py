"""`quantize_model` in its order: what runs after what, and on which data; PyTorch and flax give the steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from math import inf, isnan, log10
from typing import Any, NamedTuple, Protocol

from qcore.arguments import check_type
from qcore.names import MOST, shown, some
from qcore.notices import warn
from qcore.workflow.flow import Bounds, Call, Flow, Flows
from qcore.workflow.settings import (
    Arguments,
    arguments_of,
    check_some,
    check_train,
    first_and_all,
    needs_data,
    warn_of_floats,
)

ASKED = (
    "code of the model asks for its class (isinstance), and takes another way with the class of a quantized layer; "
    "allowed are the settings None, and code that asks for something else"
)

# A layer is named if its errors have more than 6 dB more power than those of rounding, which count from 50 dB below.
_MORE, _LEAST = 10**0.6, 1e-5
_SMALL = 0.01  # errors of 20 dB below the results
_REMEDY = 'allowed are the settings None for their names, which leave them in floats: {"": .., "NAME": None}'


class Noises(NamedTuple):
    """The errors of a converted model.

    Attributes:
        signal, error: the power of its results, and of their errors.
        layers: the power of layers' results, of their errors, and of the errors of rounding alone.
    """

    signal: float
    error: float
    layers: Mapping[str, tuple[float, float, float]]


def _decibels(signal: float, noise: float) -> str:
    """A ratio of powers in decibels, as text."""
    return "no errors" if noise == 0 else f"{10 * log10(signal / noise) if signal > 0 and noise < inf else -inf:.1f} dB"


class Workflow(Protocol):
    """A copy of a model on its way to integers. A subclass has the steps of a framework.

    Args:
        qconfig, calibrate, train: as for `quantize_model`.

    Attributes:
        model: a copy after the steps so far.
        entries: the settings by names and types.
        repeated: dynamic settings of layers that one run of the model calls several times, by name.
        known: the arguments of the model's calls that show all known ways through its code; [] without data.
        run: runs a model on all data; None without data.
        trains: True if it trains the model.
    """

    module: type  # of all modules
    settings: tuple[type, type]  # of static and of dynamic quantization
    table: type  # of embeddings, which dynamic settings quantize only if they are named
    engine = "onednn"  # of the default settings: all 256 integers, since sums are exact here and do not overflow
    remedy = ""  # the end of the warning of layers in floats
    model: Any
    entries: dict[Any, Any]
    known: list[Arguments]
    repeated: dict[str, Any]
    run: Callable[[Any], object] | None
    trains: bool
    _chooses_ranges: bool  # the default settings leave them to the model's results
    _data: Any
    _ways: set[Hashable]
    _joined: dict[str, str]  # layers whose numbers another layer quantizes again, with that layer
    _others: list[Arguments]

    def __init__(self, qconfig: Any, calibrate: Any, train: Any) -> None:
        check_train(train, calibrate)
        self.trains, self._chooses_ranges = train is not None, qconfig is None
        self.model = self.make()
        self.entries = self._entries(qconfig)
        self.known, self.run, self.repeated = [], train, {}
        self._data, self._ways, self._others = calibrate, set(), []

    def quantized(self) -> Any:
        """The model after all steps, in evaluation."""
        static, dynamic = self.settings
        chosen = {key: one for key, one in self.entries.items() if isinstance(one, dynamic)}
        if any(isinstance(one, static) for one in self.entries.values()):
            self._static({key: None if key in chosen else one for key, one in self.entries.items()})
        self.model.eval()
        if chosen := chosen | self.repeated:
            kinds = self.kinds()
            off = {
                key: None for key, one in self.entries.items() if one is None and (isinstance(key, str) or key in kinds)
            }
            self.quantize_dynamically(({self.table: None} if self.table in kinds else {}) | off | chosen)
        floats = [(path, kind, reason) for path, kind, reason in self.floats() if reason]
        warn_of_floats([f"{shown(path)} ({kind}): {reason}" for path, kind, reason in floats], self.remedy)
        return self.model

    def _static(self, entries: dict[Any, Any]) -> None:
        """Fuses, observes or trains, and converts the layers that have settings."""
        self.propagate(entries)
        self._take_data()
        self._observe()
        while self._others:  # what was decided does not suit other ways through the model's code
            if isinstance(self._data, Iterator):
                raise ValueError(
                    "calibrate can be read once, and later inputs take another way through the model's code than the "
                    "first; allowed is a list, which is read again"
                )
            self.known, self._others, self.model = self.known + self._others, [], self.make()
            self.propagate(entries)
            self._observe()
        if self.repeated and not self.replaced():
            return
        if self.known and not self.trains:
            self.share_ranges(self._joined)
            self._convert_and_judge()
        else:
            self.convert()

    def _convert_and_judge(self) -> None:
        """Converts; with default settings twice, and the model's results decide between the ranges.

        Histograms cut off what makes the error of one layer's results least. Numbers beyond the range are few, but
        their errors have one sign and lie together, so that they may count more in what follows than rounding errors,
        which average out. The other ranges cut nothing off. Results with large errors decide nothing: errors do not add
        up in them, and other data would decide otherwise.
        """
        prepared = self.model
        self.convert()
        made = [self.model]
        if self._chooses_ranges:
            self.model = self.with_whole_ranges(prepared)
            with warnings.catch_warnings():  # as the first time
                warnings.simplefilter("ignore")
                self.convert()
            made.append(self.model)
        self.model = made[0]
        try:
            found = self.noises(made)
        except Exception as error:
            more = "allowed are the settings None for the layers around the error"
            return warn(f"the quantized model does not run on the first inputs: {error}; {more}")
        if found:
            first = found[0]
            small = first.error < _SMALL * first.signal
            chosen = int(len(found) > 1 and small and found[1].error < first.error)
            self.model = made[chosen]
            self._warn_of_noise(found[chosen].layers)

    def _warn_of_noise(self, found: Mapping[str, tuple[float, float, float]]) -> None:
        """Warns of layers whose results have more errors than rounding alone makes."""
        worse = [
            f"{shown(path)} ({_decibels(signal, noise)}; rounding alone has {_decibels(signal, rounding)})"
            for path, (signal, noise, rounding) in found.items()
            if noise > _MORE * max(rounding, _LEAST * signal) or isnan(noise) > isnan(rounding)
        ]
        if worse:
            named = "; ".join(worse[:MOST])
            warn(f"these layers have larger errors than rounding has: {named}; {_REMEDY}")

    def _observe(self) -> None:
        """Fuses and observes or trains the layers that have settings."""
        bounds, self.repeated, self._joined = dict[str, Bounds](), {}, {}
        if self.known:
            self._leave_by_class()
            if rows := list(self._flows().rows(self.joins, self.fuses)):
                self.fuse(rows)
            flows = self._flows()
            if not self.has_stubs() and not self.trains:
                self._take_repeated(flows)
            bounds = flows.clamped(self.integers())
            if not self.has_stubs():
                self._joined = flows.joined(self.add_stubs(flows))
        if self.repeated and not self.replaced():
            return  # there is nothing to observe
        self.observe(bounds)
        if self.run is not None:
            self.execute(self.run)
        elif missing := self.unseen():
            raise needs_data(missing[0])

    def _take_repeated(self, flows: Flows) -> None:
        """Takes layers that one run of the model calls several times out of those that are observed.

        One scale for all calls suits none of them. Ranges of each call need no count of calls, which programs that are
        compiled, and layers that are called alone, do not have.
        """
        calls = [flow.by_path for flow in flows.flows]
        for path in list(self.integers()):
            several = any(len(one.get(path, ())) > 1 for one in calls)
            settings = self.dynamic_of(path) if several else None
            if settings is not None:
                self.repeated[path] = settings
        self.leave_to_calls(self.repeated)

    def _flows(self) -> Flows:
        return Flows([self.record(arguments) for arguments in self.known])

    def _take_data(self) -> None:
        """Finds the first arguments, and makes a list of inputs a function that runs a model on them."""
        data = self.run if self.trains else self._data
        if data is None:
            return
        if callable(data) and not isinstance(data, self.module):
            self.run, self.known = data, [self.first_arguments(data)]
            return
        first, batches = first_and_all(data, self.is_one)
        self.known = [self.held(arguments_of(first))]

        def run(model: Any) -> None:
            nonlocal batches
            for index, batch in enumerate(batches):
                arguments = arguments_of(batch)
                if index:
                    self.note(arguments)
                self.call(model, *arguments)
            batches = data  # of the next reading

        self.run = run

    def notes_calls(self) -> bool:
        """True if each call of the prepared model is to be noted, where a function runs it; but for its first call."""
        return callable(self._data) and not isinstance(self._data, self.module)

    def note(self, arguments: Arguments) -> None:
        """Keeps the arguments of a call in calibration if it takes another way through the model's code."""
        self._ways = self._ways or {self.way(one) for one in self.known}
        if (way := self.way(arguments)) not in self._ways:
            self._ways.add(way)
            self._others.append(self.held(arguments))

    def _leave_by_class(self) -> None:
        """Leaves layers in floats whose class the model's code asks for, since other classes take their place.

        In front of a layer of another class, with the same numbers, such code takes another way.
        """
        layers = self.replaced()
        if not self.asks_for(layers) or self.asks_for([]):  # and no run of such a model equals another
            return
        found = self._asked_for(layers)
        if len(found) == len(layers):
            raise ValueError(f"no layer can be quantized: {some(list(map(shown, found)))}: {ASKED}")
        self.leave(found, ASKED)

    def _asked_for(self, layers: list[str]) -> list[str]:
        """The layers among others whose class, alone or with its neighbours', the model's code asks for."""
        if not self.asks_for(layers):
            return []
        if len(layers) == 1:
            return layers
        half = len(layers) // 2
        return self._asked_for(layers[:half]) + self._asked_for(layers[half:]) or layers

    def _entries(self, qconfig: Any) -> dict[Any, Any]:
        """The settings by names and types."""
        if qconfig is None:
            return {"": self.default()}
        if not isinstance(qconfig, Mapping):
            allowed = "a QConfig, a QConfigDynamic, or a mapping of them; data is calibrate="
            check_type("qconfig", qconfig, self.settings, allowed)
            return {"": qconfig}
        self.check_entries(qconfig)
        check_some(qconfig)
        return dict(qconfig)

    def check_entries(self, entries: Mapping[Any, Any]) -> None:
        """Raises TypeError unless settings by names and types are settings; may wait for `propagate`."""

    # The steps of a framework

    def make(self) -> Any: ...  # a copy of the user's model
    def default(self) -> Any: ...  # the settings if the user gives none
    def propagate(self, entries: Mapping[Any, Any]) -> None: ...  # gives each module its settings
    def is_one(self, data: Any) -> bool: ...  # one input, which is not a list of them
    def first_arguments(self, run: Callable[[Any], object]) -> Arguments: ...  # of the model's first call in a function
    def call(self, model: Any, args: Any, kwargs: Any) -> None: ...  # on one batch
    def way(self, arguments: Arguments) -> Hashable: ...  # equal if calls take the same way through the model's code
    def held(self, arguments: Arguments) -> Arguments: ...  # what no later call changes
    def replaced(self) -> list[str]: ...  # the names of layers that layers of other classes will replace
    def asks_for(self, layers: Collection[str]) -> bool: ...  # behind other classes, the model has other results
    def leave(self, layers: Collection[str], reason: str) -> None: ...  # in floats
    def record(self, arguments: Arguments) -> Flow: ...  # the model's flow in evaluation
    def joins(self, path: str) -> bool: ...  # a layer may go into another, as it has one name
    def fuses(self, row: list[str], function: Call | None) -> Any: ...  # how a row becomes one, as in Flow.rows
    def fuse(self, rows: list[tuple[list[str], Any]]) -> None: ...  # the first layer of a row gives the settings
    def dynamic_of(self, path: str) -> Any: ...  # a layer's settings with a range for each call; None if it has none
    def leave_to_calls(self, layers: Collection[str]) -> None: ...  # they get no observers
    def integers(self) -> Iterable[str]: ...  # the names of layers that become layers in integers
    def has_stubs(self) -> bool: ...  # the model says itself where integers begin and end
    def add_stubs(self, flows: Flows) -> dict[str, tuple[bool, bool]]: ...  # as Flows.stubs, which it puts in
    def observe(self, bounds: Mapping[str, Bounds]) -> None: ...  # prepares layers; some are clamped before observers
    def execute(self, run: Callable[[Any], object]) -> None: ...  # the prepared model on all data
    def unseen(self) -> list[str]: ...  # the names of layers that need data and saw none
    def share_ranges(self, layers: Mapping[str, str]) -> None: ...  # of quantizers, if they contain the layers' own
    def with_whole_ranges(self, prepared: Any) -> Any: ...  # the prepared model, whose histograms cut nothing off
    def convert(self) -> None: ...
    def noises(self, models: list[Any]) -> list[Noises]: ...  # of converted models on the first inputs; [] without
    def kinds(self) -> set[type]: ...  # the classes of all modules
    def quantize_dynamically(self, entries: Mapping[Any, Any]) -> None: ...
    def floats(self) -> Iterable[tuple[str, str, str]]: ...  # layers with settings and matrices: name, class and reason
