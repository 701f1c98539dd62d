"""`quantize_model` in its order: what runs after what, and on which data; PyTorch and flax give the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from qcore.arguments import check_type
from qcore.names import shown
from qcore.workflow.flow import Bounds, Call, Flow
from qcore.workflow.settings import (
    Arguments,
    arguments_of,
    check_some,
    check_train,
    first_and_all,
    needs_data,
    warn_of_floats,
)


class Workflow(Protocol):
    """A copy of a model on its way to integers. A subclass has the steps of a framework.

    Args:
        model: the copy.
        qconfig, calibrate, train: as for `quantize_model`.

    Attributes:
        model: the copy after the steps so far.
        entries: the settings by names and types.
        arguments: those of the model's first call on the data; None without data.
        run: runs a model on all data; None without data.
        trains: True if it trains the model.
    """

    module: type  # of all modules
    settings: tuple[type, type]  # of static and of dynamic quantization
    table: type  # of embeddings, which dynamic settings quantize only if they are named
    remedy = ""  # the end of the warning of layers in floats
    model: Any
    entries: dict[Any, Any]
    trains: bool
    arguments: Arguments | None
    run: Callable[[Any], object] | None
    _data: Any

    def __init__(self, model: Any, qconfig: Any, calibrate: Any, train: Any) -> None:
        check_train(train, calibrate)
        self.model, self.trains = model, train is not None
        self.entries = self._entries(qconfig)
        self.arguments, self.run = None, train
        self._data = calibrate

    def quantized(self) -> Any:
        """The model after all steps, in evaluation."""
        static, dynamic = self.settings
        chosen = {key: one for key, one in self.entries.items() if isinstance(one, dynamic)}
        if any(isinstance(one, static) for one in self.entries.values()):
            self._static({key: None if key in chosen else one for key, one in self.entries.items()})
        self.model.eval()
        if chosen:
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
        bounds = dict[str, Bounds]()
        if self.arguments is not None:
            rows = list(self.record().rows(self.joins, self.fuses))
            if rows:
                self.fuse(rows)
            flow = self.record()
            bounds = flow.clamped(self.integers())
            if not self.has_stubs():
                self.add_stubs(flow)
        self.observe(bounds)
        if self.run is not None:
            self.execute()
        elif missing := self.unseen():
            raise needs_data(missing[0])
        self.convert()

    def _take_data(self) -> None:
        """Finds the first arguments, and makes a list of inputs a function that runs a model on them."""
        data = self.run or self._data
        if data is None:
            return
        if callable(data) and not isinstance(data, self.module):
            self.run, self.arguments = data, self.first_arguments(data)
            return
        first, batches = first_and_all(data, self.is_one)
        self.run, self.arguments = lambda model: self._call_on(model, batches), arguments_of(first)

    def _call_on(self, model: Any, batches: Iterable[Any]) -> None:
        for batch in batches:
            self.call(model, *arguments_of(batch))

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

    def default(self) -> Any: ...  # the settings if the user gives none
    def propagate(self, entries: Mapping[Any, Any]) -> None: ...  # gives each module its settings
    def is_one(self, data: Any) -> bool: ...  # one input, which is not a list of them
    def first_arguments(self, run: Callable[[Any], object]) -> Arguments: ...  # of the model's first call in a function
    def call(self, model: Any, args: Any, kwargs: Any) -> None: ...  # on one batch
    def record(self) -> Flow: ...  # of the model's call on the first arguments, in evaluation
    def joins(self, path: str) -> bool: ...  # a layer may go into another, as it has one name
    def fuses(self, row: list[str], function: Call | None) -> Any: ...  # how a row becomes one, as in Flow.rows
    def fuse(self, rows: list[tuple[list[str], Any]]) -> None: ...  # the first layer of a row gives the settings
    def integers(self) -> Iterable[str]: ...  # the names of layers that become layers in integers
    def has_stubs(self) -> bool: ...  # the model says itself where integers begin and end
    def add_stubs(self, flow: Flow) -> None: ...  # where floats enter and leave layers in integers
    def observe(self, bounds: Mapping[str, Bounds]) -> None: ...  # prepares layers; some are clamped before observers
    def execute(self) -> None: ...  # runs the prepared model on all data
    def unseen(self) -> list[str]: ...  # the names of layers that need data and saw none
    def convert(self) -> None: ...
    def kinds(self) -> set[type]: ...  # the classes of all modules
    def quantize_dynamically(self, entries: Mapping[Any, Any]) -> None: ...
    def floats(self) -> Iterable[tuple[str, str, str]]: ...  # layers with settings and matrices: name, class and reason
