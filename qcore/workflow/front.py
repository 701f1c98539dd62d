"""`quantize_model` in its order: what runs after what, and on which data; PyTorch and flax give the steps."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from math import inf, isnan, log10
from typing import Any, NamedTuple, Protocol

from qcore.arguments import check_type, quoted
from qcore.names import MOST, shown, some
from qcore.notices import warn
from qcore.report import LayerReport
from qcore.workflow.conversion import Conversion
from qcore.workflow.flow import Bounds, Call, Flow, Flows
from qcore.workflow.settings import (
    Arguments,
    arguments_of,
    check_effects,
    check_settings,
    check_some,
    check_train,
    first_and_all,
    first_arguments,
    needs_data,
    warn_of_floats,
)

ASKED = (
    "code of the model asks for its class (isinstance), and takes another way with the class of a quantized layer; "
    "allowed are the settings None, and code that asks for something else"
)

# A layer is named if its errors have more than 6 dB more power than those of rounding, which count from 50 dB below.
_MORE, _LEAST = 10**0.6, 1e-5
_SAVED = 0.05  # of a layer's error
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
        fused: the paths of layers that were fused.
    """

    module: type  # of all modules
    settings: tuple[type, type]  # of static and of dynamic quantization
    defaults: tuple[Callable[[str], Any], ...]  # makers of an engine's settings, for calibration and for training
    table: type  # of embeddings, which dynamic settings quantize only if they are named
    functional: type  # of modules with the methods add and mul
    stubs: tuple[type, type]  # where a model says itself that integers begin and end
    wrapper: Callable[..., Any]  # puts stubs, or none, around a layer; it has the layer's attributes
    tree: Conversion  # of modules, and what layers become
    library: object  # its classes are named without a module
    no_layer = ""  # the end of the error of a model without a layer to quantize
    report: Callable[[Any], Iterable[LayerReport]]
    results: Callable[[Any, Arguments], Any]  # of a model's call: what tells one computation from others
    engine = "exact"  # of the default settings: all integers, since sums are exact here and do not overflow
    remedy = ""  # the end of the warning of layers in floats
    model: Any
    entries: dict[Any, Any]
    known: list[Arguments]
    repeated: dict[str, Any]
    run: Callable[[Any], object] | None
    trains: bool
    fused: set[str]
    _chooses_ranges: bool  # the default settings leave them to the model's results
    _data: Any
    _ways: set[Hashable]
    _joined: dict[str, str]  # layers whose numbers another layer quantizes again, with that layer
    _others: list[Arguments]
    _asked: tuple[Mapping[Any, Any], list[tuple[str, type]]]  # the entries, and the classes of the float model
    _uses: Counter[int]  # of the modules by identity: how many names each has
    _expected: list[Any]  # what the model returns for each of the known arguments
    named: dict[str, Any]  # the modules of the recorded model, by all names

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
            kinds = {self.tree.class_of(module) for _, module in self.modules()}
            off = {
                key: None for key, one in self.entries.items() if one is None and (isinstance(key, str) or key in kinds)
            }
            chosen = ({self.table: None} if self.table in kinds else {}) | off | chosen
            self.quantize_dynamically({key: one and self.by_rows(one) for key, one in chosen.items()})
        rows = [(row, self.why_float(row)) for row in self.report(self.model) if row.state == "float"]
        warn_of_floats([f"{shown(row.path)} ({row.layer}): {why}" for row, why in rows if why], self.remedy)
        return self.model

    def _static(self, entries: dict[Any, Any]) -> None:
        """Fuses, observes or trains, and converts the layers that have settings."""
        self._propagate(entries)
        self._take_data()
        self._observe()
        while self._others:  # what was decided does not suit other ways through the model's code
            if isinstance(self._data, Iterator):
                raise ValueError(
                    "calibrate can be read once, and later inputs take another way through the model's code than the "
                    "first; allowed is a list, which is read again"
                )
            self.known, self._others, self.model = self.known + self._others, [], self.make()
            self._propagate(entries)
            self._observe()
        if self.repeated and not self.replaced():
            return
        if self.known and not self.trains:
            self._share_ranges()
            self._convert_and_judge()
        else:
            self.convert()

    def _propagate(self, entries: Mapping[Any, Any]) -> None:
        """Gives each module of a copy of the float model its settings."""
        self.propagate(entries)
        kinds = [(path, self.tree.class_of(module)) for path, module in self.modules()]
        self._asked, self.fused = (entries, kinds), set()

    def check_effects(self, done: Iterable[str]) -> None:
        """Raises ValueError if an entry reached no layer; done are the paths of layers, beside those of other steps."""
        entries, kinds = self._asked
        done = {*done, *self.fused, *self.repeated}
        check_effects(entries, kinds, lambda class_: class_, self.library, done, "layer to observe", self.no_layer)

    def _convert_and_judge(self) -> None:
        """Converts; with default settings twice, and the model's results decide between the ranges.

        Histograms cut off what makes the error of one layer's results least. Numbers beyond the range are few, but
        their errors have one sign and lie together, so that they may count more in what follows than rounding errors,
        which average out; and other data have more of them. So a histogram cuts off only where that saves a twentieth
        of the layer's error. The second time nothing is cut off. Results with large errors decide nothing: errors do
        not add up in them, and other data would decide otherwise.
        """
        prepared = self._with_whole_ranges(self.model, _SAVED) if self._chooses_ranges else self.model
        self.model = prepared
        self.convert()
        made = [self.model]
        if self._chooses_ranges:
            self.model = self._with_whole_ranges(prepared, inf)
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

    def _with_whole_ranges(self, prepared: Any, least: float) -> Any:
        """A prepared model after histograms became whole ranges, but for those that save a share by cutting."""
        for _, layer in self.tree.walk(prepared):
            observer = self.tree.observer(layer)
            if observer is not None and self.has_counts(observer) and observer.saves() < least:
                layer.activation_post_process = observer.without_counts()
        return prepared

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
        if not (has_stubs := self.has_stubs()):  # then sums and products are between floats, as all functions are
            self.switch_off([path for path, module in self.modules() if isinstance(module, self.functional)])
        if self.known:
            self._leave_by_class()
            if rows := list(self._flows().rows(self.joins, self.fuses)):
                self.fused = {path for row, _ in rows for path in row}
                self.fuse(rows)
            flows = self._flows()
            if not has_stubs and not self.trains:
                self._take_repeated(flows)
            bounds = flows.clamped(self.integers())
            if not has_stubs:
                self._joined = flows.joined(self._add_stubs(flows))
        if self.repeated and not self.replaced():
            self.check_effects(())
            return  # there is nothing to observe
        self.observe(bounds)
        if self.run is not None:
            self.execute(self.run)
            return
        for path, layer in self.tree.walk(self.model):
            if self.tree.is_observed(layer) and self.tree.unseen(layer):
                raise needs_data(path)

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
        self.switch_off(self.repeated)

    def _flows(self) -> Flows:
        flows = Flows([self.record(arguments) for arguments in self.known])
        self.named = dict(self.modules())
        self._uses = Counter(map(id, self.named.values()))
        return flows

    def joins(self, path: str) -> bool:
        """True of a layer that may go into another, as it has one name."""
        return self._uses[id(self.named[path])] == 1

    def has_stubs(self) -> bool:
        """True if the model says itself where integers begin and end."""
        return any(isinstance(module, self.stubs) for _, module in self.modules())

    def _add_stubs(self, flows: Flows) -> dict[str, tuple[bool, bool]]:
        """Puts stubs where integers begin and end; returns them as `Flows.stubs`."""
        found = self.chosen_stubs(flows, self.integers())

        def change(path: str, layer: Any) -> Any:
            return self.wrapper(layer, *found[path]) if any(found.get(path, ())) else layer

        self.model = self.tree.rebuilt(self.model, change)
        return found

    def chosen_stubs(self, flows: Flows, layers: Collection[str]) -> dict[str, tuple[bool, bool]]:
        """The stubs of layers in integers, as `Flows.stubs`."""
        return flows.stubs(layers)

    def _share_ranges(self) -> None:
        """Gives layers whose numbers another layer quantizes again that layer's range, if it contains their own."""
        modules = dict(self.modules())
        for path, taker in self._joined.items():
            own, other = (self.observer_of(modules.get(one)) for one in (f"{path}.module", f"{taker}.quant"))
            if own is not None and other is not None:
                self.share_range(own, other)

    def _take_data(self) -> None:
        """Finds the first arguments, and makes a list of inputs a function that runs a model on them."""
        data = self.run if self.trains else self._data
        if data is None:
            return
        if callable(data) and not isinstance(data, self.module):
            name = "train" if self.trains else "calibrate"
            self.run, self.known = data, [self.held(first_arguments(data, self.stopping(), name))]
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
        layers, self._expected = self.replaced(), []
        if not self._asks_for(layers) or self._asks_for([]):  # and no run of such a model equals another
            return
        found, modules = self._asked_for(layers), dict(self.modules())
        if len(found) == len(layers):
            raise ValueError(f"no layer can be quantized: {some(list(map(shown, found)))}: {ASKED}")
        self.switch_off(found)
        for path in found:
            modules[path].left_because = ASKED

    def _asks_for(self, layers: Collection[str]) -> bool:
        """True if the model has other results with these layers behind another class."""

        def change(path: str, layer: Any) -> Any:
            return self.wrapper(layer, False, False) if path in layers else layer

        self._expected = self._expected or [self.results(self.as_is(), arguments) for arguments in self.known]
        other = self.tree.rebuilt(self.as_is(), change)
        for arguments, expected in zip(self.known, self._expected, strict=True):
            try:
                found = self.results(other, arguments)
            except Exception:  # of code that finds another class
                return True
            if not self.equal(found, expected):
                return True
        return False

    def _asked_for(self, layers: list[str]) -> list[str]:
        """The layers among others whose class, alone or with its neighbours', the model's code asks for."""
        if not self._asks_for(layers):
            return []
        if len(layers) == 1:
            return layers
        half = len(layers) // 2
        return self._asked_for(layers[:half]) + self._asked_for(layers[half:]) or layers

    def _entries(self, qconfig: Any) -> dict[Any, Any]:
        """The settings by names and types."""
        if qconfig is None:
            return {"": self.defaults[self.trains](self.engine)}
        if not isinstance(qconfig, Mapping):
            allowed = "a QConfig, a QConfigDynamic, or a mapping of them; data is calibrate="
            check_type("qconfig", qconfig, self.settings, allowed)
            return {"": qconfig}
        for key, one in qconfig.items():
            check_settings(f"the entry {quoted(key)}", one, self.settings)
        check_some(qconfig)
        return dict(qconfig)

    # The tree of modules of a framework

    def modules(self) -> list[tuple[str, Any]]: ...  # of the model, by all names
    def switch_off(self, layers: Iterable[str]) -> None: ...  # their settings become None
    def observer_of(self, module: Any) -> Any: ...  # of a layer's results, if it chooses a range

    # The steps of a framework

    def make(self) -> Any: ...  # a copy of the user's model
    def propagate(self, entries: Mapping[Any, Any]) -> None: ...  # gives each module its settings
    def is_one(self, data: Any) -> bool: ...  # one input, which is not a list of them
    def stopping(self) -> Any: ...  # a copy of the model that raises HasRunError when it is called
    def call(self, model: Any, args: Any, kwargs: Any) -> None: ...  # on one batch
    def way(self, arguments: Arguments) -> Hashable: ...  # equal if calls take the same way through the model's code
    def held(self, arguments: Arguments) -> Arguments: ...  # what no later call changes
    def as_is(self) -> Any: ...  # the model, or a copy with its parameters if calls and `rebuilt` change it
    def replaced(self) -> list[str]: ...  # the names of layers that layers of other classes will replace
    def equal(self, found: Any, expected: Any) -> bool: ...  # of two such results
    def record(self, arguments: Arguments) -> Flow: ...  # the model's flow in evaluation
    def fuses(self, row: list[str], function: Call | None) -> Any: ...  # how a row becomes one, as in Flow.rows
    def fuse(self, rows: list[tuple[list[str], Any]]) -> None: ...  # the first layer of a row gives the settings
    def dynamic_of(self, path: str) -> Any: ...  # a layer's settings with a range for each call; None if it has none
    def integers(self) -> Collection[str]: ...  # the names of layers that become layers in integers
    def observe(self, bounds: Mapping[str, Bounds]) -> None: ...  # prepares layers; some are clamped before observers
    def execute(self, run: Callable[[Any], object]) -> None: ...  # the prepared model on all data
    def share_range(self, own: Any, other: Any) -> None: ...  # an observer takes another's range if it contains its own
    def has_counts(self, observer: Any) -> bool: ...  # of a histogram
    def convert(self) -> None: ...
    def noises(self, models: list[Any]) -> list[Noises]: ...  # of converted models on the first inputs; [] without
    def by_rows(self, settings: Any, /) -> Any: ...  # dynamic settings with a range for each row, if they name none
    def quantize_dynamically(self, entries: Mapping[Any, Any]) -> None: ...
    def why_float(self, row: LayerReport) -> str: ...  # the reason of a layer with settings and a matrix; "" for others
