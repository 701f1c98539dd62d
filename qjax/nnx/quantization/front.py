"""Quantization of a whole model by one call, which fuses, observes, calibrates and converts its layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer

from qcore.affine.observers import lies_in
from qcore.names import joined
from qcore.report import LayerReport
from qcore.workflow.flow import Bounds, Call, Flow, Flows
from qcore.workflow.front import Noises, Workflow
from qcore.workflow.tree import tie, ties_of
from qjax._jaxprs import is_array, split_arrays
from qjax._models import Model, all_names, check_model, names_of
from qjax._rounding.inputs import PyTree
from qjax.nnx.activations import ReLU, ReLU6
from qjax.nnx.flattened import Flattened
from qjax.nnx.quantization.conversion import Conversion, convert
from qjax.nnx.quantization.flow import Noting, Stopping, program_text, record, shapes_of, takes_integers
from qjax.nnx.quantization.fusion import fuse_modules, why_not_fused, with_all_names
from qjax.nnx.quantization.modules import Modules
from qjax.nnx.quantization.observing import IN_A_TRANSFORMATION, OBSERVER, FloatFunctional, Observed, Observer
from qjax.nnx.quantization.one_call import quantize_dynamic
from qjax.nnx.quantization.preparation import leave_attention, trained_layer, with_observers
from qjax.nnx.quantization.propagation import OTHERS, SettingsOf, settings_of
from qjax.nnx.quantization.quantization_mappings import GENERAL
from qjax.nnx.quantization.reasons import why_float, why_not_dynamic
from qjax.nnx.quantization.reporting import report, variables_in
from qjax.nnx.quantization.rounding import rounds_layer
from qjax.nnx.quantization.stubs import DeQuantStub, QuantStub, QuantWrapper
from qjax.nnx.quantization.twins import noises
from qjax.quantization import (
    FakeQuantize,
    HistogramObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigDynamic,
    get_default_qat_qconfig,
    get_default_qconfig,
)
from qjax.quantization.observer import RangeObserver
from qjax.quantization.rounding import FormatRounding


def quantize_model(
    model: Model,
    qconfig: SettingsOf[QConfig | QConfigDynamic] | None = None,
    calibrate: Iterable[PyTree] | Callable[[Model], object] | None = None,
    *,
    train: Callable[[Model], object] | None = None,
) -> nnx.Module:
    """A quantized copy of a float model.

    The model is traced once with the first calibration data, which shows the order of its layers; so it must run under
    `jax.jit`. Convolutions and linear layers are fused with the batch norms and ReLUs that follow them. If another
    function clamps their results, as ReLU6 does, their range is the clamped range. Layers in integers quantize floats
    at their inputs, and dequantize results for layers or functions of floats. Then the model is calibrated, or trained,
    and converted. `report` shows which layers of the result are quantized, and why others are in floats.

    Args:
        model: the float model; it is not changed.
        qconfig: the settings, or a mapping of settings by names and exact types of modules, where "" is the model and
            None leaves a part in floats. A `QConfig` of observers quantizes weights and activations, and a `QConfig` of
            formats rounds to them; with None as activation only weights are quantized. A `QConfigDynamic` quantizes
            activations by their own range at each call. None is `get_default_qconfig("exact")`, and with
            train `get_default_qat_qconfig("exact")`: activations have all 256 integers. With None the ranges are those
            of histograms, or the whole ones: the results of the first inputs decide.
        calibrate: a list of inputs, each an array, a tuple of the model's arguments or a dictionary of them by name; or
            a function that runs the model that it gets. The function is called twice; the first time it ends at the
            first call of the model. None if the settings need no data.
        train: a function that trains the model that it gets, with the rounding of the result; it is called twice, too.
            It replaces calibrate, and requires settings of `FakeQuantize` and formats.

    Returns:
        The converted model, in evaluation.

    Raises:
        ValueError: if the settings need data and there are none, an entry names nothing, nothing is quantized, or a
            layer to quantize is called with more than its input.

    Warns:
        UserWarning: if a layer with a matrix as weight has settings but stays in floats, if a layer saw no data, if a
            layer ran several times with one observer, or if a layer's errors on the first inputs are 6 dB above those
            of rounding; inputs that calibrate makes within a program are not judged.

    Example:
        >>> from qjax.nnx import ReLU
        >>> from qjax.quantization import default_qconfig
        >>> rngs = nnx.Rngs(0)
        >>> layers = nnx.Linear(4, 4, rngs=rngs), ReLU(), nnx.Linear(4, 3, rngs=rngs)
        >>> data = jnp.linspace(-1, 1, 32).reshape(8, 4)
        >>> small = quantize_model(nnx.Sequential(*layers), default_qconfig, [data])
        >>> [row.path for row in report(small) if row.state == "quantized"]
        ['0.module', '0.quant', '2.dequant', '2.module']
    """
    check_model("model", model)
    made = _Workflow(model, qconfig, calibrate, train).quantized()
    tie(Modules(), made, ties_of(Modules(), model))  # fused layers are other modules
    return made


class _Workflow(Workflow):
    """The steps for modules of flax; see `qcore.workflow.front`."""

    module, settings, defaults = nnx.Module, (QConfig, QConfigDynamic), (get_default_qconfig, get_default_qat_qconfig)
    table, functional, stubs, wrapper = nnx.Embed, FloatFunctional, (QuantStub, DeQuantStub), QuantWrapper
    tree, library, no_layer = Conversion(), nnx, OTHERS
    report, results = staticmethod(report), staticmethod(program_text)
    remedy = (
        "; allowed are flax's layers themselves, the settings None, and for any products prepare_fn of "
        "qjax.quantization"
    )
    model: Any

    def __init__(self, model: nnx.Module, *others: Any) -> None:
        self.user_model = model
        super().__init__(*others)
        self._shapes: dict[str, Hashable] = {}
        self.own: dict[str, Any]
        self.all_settings = self.own = settings_of(self.model, self.entries, QConfig, QConfigDynamic)
        self._first: Any = None  # arguments with numbers

    def modules(self) -> list[tuple[str, nnx.Module]]:
        return list(with_all_names(self.model).items())

    def switch_off(self, layers: Iterable[str]) -> None:
        self.own |= dict.fromkeys(layers)

    def observer_of(self, module: Any) -> Observer | None:
        while isinstance(module, Flattened):
            module = module.module
        observer = getattr(module, OBSERVER, None) if isinstance(module, Observed) else None
        return observer if observer is not None and isinstance(observer.description, RangeObserver) else None

    def make(self) -> nnx.Module:
        return nnx.clone(self.user_model)

    def propagate(self, entries: Mapping[Any, Any]) -> None:
        self.float = self.model
        self.own = {path: one if isinstance(one, QConfig) else None for path, one in self.all_settings.items()}
        if self.has_stubs():
            leave_attention(self.model, self.own)

    def is_one(self, data: Any) -> bool:
        return is_array(data)

    def stopping(self) -> nnx.Module:
        return Stopping(nnx.clone(self.model))

    def call(self, model: nnx.Module, args: Any, kwargs: Any) -> None:
        only_arrays = all(map(is_array, jax.tree.leaves((args, kwargs))))
        (_compiled if only_arrays else _call)(model, args, kwargs)

    def way(self, arguments: Any) -> Hashable:
        shapes = repr(self.held(arguments))
        if shapes not in self._shapes:  # the same shapes lead the same way
            self._shapes[shapes] = record(self.float, self._marks(self.float), arguments).way()
        return self._shapes[shapes]

    def held(self, arguments: Any) -> Any:
        arrays, put = split_arrays(arguments)
        if not self.known and not any(isinstance(x, Tracer) for x in arrays):
            self._first = put([jnp.array(x) for x in arrays])  # copies, as calibration may write to NumPy's arrays
        return shapes_of(arguments)

    def as_is(self) -> nnx.Module:
        return self.model

    def replaced(self) -> list[str]:
        return [path for path, own in self._marks(self.model).items() if own]

    def equal(self, found: str, expected: str) -> bool:
        return found == expected

    def record(self, arguments: Any) -> Flow:
        self.model.eval()
        flow = record(self.model, self._marks(self.model), arguments)
        if self.trains:
            self.model.train()
        return flow

    def _marks(self, model: nnx.Module) -> dict[str, bool]:
        """The names of the layers that a flow needs, each with True if it has its own settings."""
        modules = all_names(model)
        own = {path: self.own.get(path) is not None and not why_float(module) for path, module in modules}
        kinds = ReLU, ReLU6, nnx.Dropout, nnx.BatchNorm  # an Identity leaves no trace
        return {path: own[path] for path, module in modules if own[path] or isinstance(module, kinds)}

    def fuses(self, row: list[str], function: Call | None) -> bool | None:
        """True if a row is fused with a function as its ReLU, False if without; None if it is not fused."""
        parts = [self.named[path] for path in row]
        if self.own.get(row[0]) is None:
            return None
        if function is not None and function.bounds == (0.0, None) and not why_not_fused(parts, True):
            return True
        return False if len(row) > 1 and not why_not_fused(parts, False) else None

    def fuse(self, rows: list[tuple[list[str], Any]]) -> None:
        for relu in (False, True):
            chosen = [row for row, has_function in rows if has_function == relu]
            self.model = fuse_modules(self.model, chosen, relu) if chosen else self.model

    def dynamic_of(self, path: str) -> QConfigDynamic | None:
        observer = self.own[path].activation
        if type(self.named[path]) not in (nnx.Linear, *GENERAL) or not isinstance(observer, RangeObserver):
            return None
        return QConfigDynamic(self.own[path].weight, PerChannelMinMaxObserver(dtype=observer.form))

    def integers(self) -> set[str]:
        modules, marks = names_of(self.model), self._marks(self.model)
        return {path for path, own in marks.items() if own and not rounds_layer(modules[path], self.own[path])}

    def chosen_stubs(self, flows: Flows, layers: Collection[str]) -> dict[str, tuple[bool, bool]]:
        giving: list[Call] = []
        stubs = flows.stubs(layers, giving)

        def admit(calls: list[Call]) -> None:
            """Adds the calls that may return integers. If the model fails with all, each half is tried alone."""
            nonlocal giving, stubs
            more = flows.stubs(layers, [*giving, *calls])
            gives = {path: not ends[1] for path, ends in more.items()}
            if more == stubs or all(takes_integers(self.model, gives, arguments) for arguments in self.known):
                giving, stubs = [*giving, *calls], more
            elif len(calls) > 1:
                admit(calls[: len(calls) // 2])
                admit(calls[len(calls) // 2 :])

        admit([call for call in flows.calls if flows.in_integers(call, layers) or call.keeps])
        for path in layers:
            self.own |= {joined(path, part): self.own[path] for part in ("quant", "dequant", "module")}
        return stubs

    def observe(self, bounds: Mapping[str, Bounds]) -> None:
        make = trained_layer if self.trains else _observed_layer
        self._fused = nnx.clone(self.model)
        self.model, done = with_observers(self.model, self.own, make)
        self.check_effects(done)
        modules = names_of(self.model)
        for path, ends in bounds.items():
            layer: Any = modules[path]
            while isinstance(layer, (QuantWrapper, Flattened)):
                layer = layer.module
            layer.bounds = ends

    def execute(self, run: Callable[[Any], object]) -> None:
        try:
            run(Noting(self.model, self.note) if self.notes_calls() else self.model)
        except ValueError as error:
            if "axis spec None" in str(error) and OBSERVER in str(error):  # of nnx.vmap
                raise ValueError(f"{IN_A_TRANSFORMATION} ({error})") from error
            raise

    def share_range(self, own: Any, other: Any) -> None:
        state, others = own.state.get_value(), other.state.get_value()
        if self._first is not None and own.description == other.description and lies_in(state, others):
            own.load(others)

    def has_counts(self, observer: Observer) -> bool:
        return isinstance(observer.description, HistogramObserver)

    def convert(self) -> None:
        self.model.eval()
        self.model = convert(self.model)

    def noises(self, models: list[nnx.Module]) -> list[Noises]:
        if self._first is not None:
            return noises(self._fused, models, self._first)
        program_text(models[0], self.known[0])  # calibration in a program has no numbers: see if the model runs
        return []

    def by_rows(self, settings: QConfigDynamic) -> QConfigDynamic:
        named = not isinstance(settings.activation, FormatRounding) or settings.activation.number is not None
        if named or not isinstance(settings.weight, (RangeObserver, FakeQuantize)):
            return settings
        return QConfigDynamic(settings.weight, PerChannelMinMaxObserver())

    def quantize_dynamically(self, entries: Mapping[Any, Any]) -> None:
        self.model = quantize_dynamic(self.model, entries)

    def why_float(self, row: LayerReport) -> str:
        layer, chosen = names_of(self.model).get(row.path), self.all_settings.get(row.path)  # a list has neither
        if layer is None or chosen is None or all(one.ndim < 2 for _, one in variables_in(layer)):
            return ""  # and there is no reason for a table under dynamic settings, which has to be named
        return why_not_dynamic(layer) if isinstance(chosen, QConfigDynamic) else row.reason


def _observed_layer(name: str, module: nnx.Module, settings: QConfig) -> nnx.Module:
    return Observed(module, settings)


def _call(model: Any, args: Any, kwargs: Any) -> None:
    model(*args, **kwargs)


_compiled = nnx.jit(_call)
