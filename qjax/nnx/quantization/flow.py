"""The data flow between the layers of a model: a traced run shows which layers can be fused and stay in integers.

The model is traced once, with marks before and after each layer. Equations of the jaxpr between the marks of a layer
belong to the layer; every other equation is a function between layers. A jaxpr inside an equation (of jit, scan,
remat) has a flow of its own, so its arguments and results stay floats. `qcore.workflow.flow` draws the conclusions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

from qcore.names import shown
from qcore.workflow import flow
from qcore.workflow.flow import Bounds, Flow
from qcore.workflow.settings import HasRunError
from qjax._jaxprs import CUSTOM, INLINED, bind, inner_programs, split_arrays, walk
from qjax._models import names_of, rebuilt
from qjax._parameters import parameters
from qjax.nnx.activations import ReLU, ReLU6
from qjax.nnx.quantization.observing import Ran
from qjax.nnx.quantization.quantization_mappings import GENERAL, keeps_children
from qjax.nnx.quantization.reasons import PASSING
from qjax.quantization import QTensor, quantize_per_tensor

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


_IN, _OUT = "qjax takes: ", "qjax gives: "


class Call(flow.Call):
    """One call of a layer, or one equation outside of all layers, which ran; its tensors are variables of the jaxpr."""

    def __init__(self, path: str | None, takes: list[Any], gives: list[Any], ran: Any) -> None:
        self.path, self.takes, self.gives, self.ran = path, takes, gives, ran

    @property
    def keeps(self) -> bool:
        """True if the result has the scale of the input, for functions that take integers.

        True for some layers, for the equations of `qjax.nnx.functional.keeps_scale`, and for equations that only move
        numbers.
        """
        if self.path is not None:
            return isinstance(self.ran, PASSING)
        return len(self.takes) == 1 and (parameters(self.ran).name == "keeps_scale" or _moves(self.ran))

    @property
    def joins(self) -> bool:
        """True for equations that only move the numbers of several arrays."""
        return self.path is None and len(self.takes) > 1 and _moves(self.ran)

    @property
    def bounds(self) -> Bounds:
        """The bounds to which a layer or an equation clamps its result; (None, None) if it does not clamp.

        An equation is evaluated for some numbers, since names do not identify a clamp: `jax.nn.relu`, `qjax.nnx.relu`
        and `jnp.maximum(x, 0)` are the same function.
        """
        if self.path is not None:
            return _CLAMPS.get(type(self.ran), (None, None))
        if self.ran.primitive.name not in _CHOOSING:
            return None, None
        if len(self.takes) != 1 or len(self.gives) != 1 or self.takes[0].aval.shape != self.gives[0].aval.shape:
            return None, None
        probe = jnp.asarray(np.resize(_PROBE, self.gives[0].aval.shape), self.gives[0].aval.dtype)
        operands = [probe if isinstance(atom, core.Var) else atom.val for atom in self.ran.invars]
        result = _inlined(0, self.ran, operands)[0]
        least, most = float(result.min()), float(result.max())
        clamps = bool((result == jnp.clip(probe, least, most)).all())
        bounds = None if least == probe.min() else least, None if most == probe.max() else most
        return bounds if clamps else (None, None)


_MOVES = set(
    "reshape transpose squeeze expand_dims broadcast_in_dim rev slice dynamic_slice split gather concatenate "
    "pad copy".split()
)


def _moves(equation: Any) -> bool:
    """True for an equation that only moves the numbers of its one array of floats, and may add zeros."""
    if any(isinstance(atom, core.Literal) and _is_float(atom) and np.any(atom.val) for atom in equation.invars):
        return False  # a pad with a number that is not 0, which integers would round
    if inner := list(_jaxprs_in(equation)):
        jitted = equation.primitive.name in ("jit", "pjit")
        return jitted and all(_moves(one) for jaxpr in inner for one in jaxpr.eqns)
    arrays = [result for result in equation.outvars if _is_float(result) and result.aval.ndim]
    return not arrays or equation.primitive.name in _MOVES


def _inlined(_: int, equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation without the calls in it, which may ask for a mesh that these operands are not on."""
    if equation.primitive.name not in INLINED | CUSTOM:
        return bind(equation, operands)
    (program,) = inner_programs(equation, operands) or []
    return walk(program.jaxpr, program.consts, program.inputs, _inlined)


def _is_float(atom: Any) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.inexact)


_PROBE = np.array([-1e4, -8, -1, -0.5, 0, 0.5, 1, 3, 8, 1e4], np.float32)
_CLAMPS: dict[type[nnx.Module], Bounds] = {ReLU: (0.0, None), ReLU6: (0.0, 6.0)}
_CHOOSING = ("max", "min", "clamp", "jit", "pjit", "custom_jvp_call")  # primitives that may be a clamp


def _read(jaxpr: Any, modules: Mapping[str, nnx.Module]) -> Flow:
    """The flow of a jaxpr with marks, and of the jaxprs in its equations."""
    calls, returned = list[Call](), set[Any]()

    def read(jaxpr: Any) -> None:
        layer: Call | None = None
        constants = set(jaxpr.constvars)
        for equation in jaxpr.eqns:
            takes = [atom for atom in equation.invars if isinstance(atom, core.Var) and atom not in constants]
            name = parameters(equation).name if equation.primitive.name == "name" else ""
            if name.startswith(_IN):
                path = name.removeprefix(_IN)
                layer = Call(path, takes, [], modules[path])
                calls.append(layer)
            elif name.startswith(_OUT) and layer is not None:
                layer.gives, layer = list(equation.outvars), None
            elif layer is None:
                calls.append(Call(None, takes, list(equation.outvars), equation))
                for inner in _jaxprs_in(equation):
                    read(inner)
        returned.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))

    read(jaxpr)
    # Code may use a result without an equation, as for its dtype, so a result that no equation takes stays in floats.
    unused = {atom for call in calls for atom in call.gives}.difference(*(call.takes for call in calls))
    return Flow(calls, returned | unused)


def _jaxprs_in(equation: Any) -> Iterator[Any]:
    kinds = core.Jaxpr, core.ClosedJaxpr
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda node: isinstance(node, kinds)):
        if isinstance(value, kinds):
            yield getattr(value, "jaxpr", value)


class Around(nnx.Module):
    """A wrapper of a module that also offers the module's attributes."""

    def __init__(self, module: nnx.Module) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        if name == "module" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.module, name)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        module: Any = self.module
        return module(*arguments, **settings)


class _Marked(Around):
    """A layer between two marks in the jaxpr."""

    def __init__(self, module: nnx.Module, path: str, has_settings: bool) -> None:
        super().__init__(module)
        self.path, self.has_settings = path, has_settings

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        module: Any = self.module
        if type(module) in GENERAL:  # flax's attention says all settings of their calls
            settings = {name: value for name, value in settings.items() if value is not None}
        if not arguments and settings.keys() in ({"inputs"}, {"x"}):  # as flax's layers call their input
            arguments, settings = (*settings.values(),), {}
        if (len(arguments) != 1 or settings) and not self.has_settings:
            return module(*arguments, **settings)
        if len(arguments) != 1 or settings:
            more = ", ".join([*("its input" for _ in arguments[:1]), *("another" for _ in arguments[1:]), *settings])
            raise ValueError(
                f"{shown(self.path)} is called with {more or 'no input'}; a quantized layer takes its input alone: "
                "leave out the others (model.eval() and model.train() say what use_running_average and deterministic "
                "are), or give the layer the settings None"
            )
        return checkpoint_name(module(checkpoint_name(arguments[0], _IN + self.path)), _OUT + self.path)


class _Rehearsed(Around):
    """A layer that takes floats and integers, and if so configured returns integers with an arbitrary scale."""

    def __init__(self, module: nnx.Module, gives_integers: bool) -> None:
        super().__init__(module)
        self.gives_integers = gives_integers

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        module: Any = self.module
        (x,) = (*arguments, *(value for value in settings.values() if value is not None))
        y = module(x.dequantize() if isinstance(x, QTensor) else x)
        return quantize_per_tensor(y, 1.0, 0, "quint8") if self.gives_integers else y


def record(model: nnx.Module, paths: Mapping[str, bool], arguments: Arguments) -> Flow:
    """The flow of a model's forward pass in evaluation.

    Args:
        model: the model, which is not changed.
        paths: for the name of each layer, True if it has settings and so must be called with its input alone.
        arguments: the arguments of the call; only shapes and dtypes of arrays count.

    Raises:
        ValueError: if a layer is called with more than its input.
    """

    def change(path: str, module: nnx.Module) -> nnx.Module:
        return _Marked(module, path, paths[path]) if path in paths else module

    run, *inputs = _program(rebuilt(model, change, keeps_children), arguments)
    return _read(jax.make_jaxpr(run)(*inputs).jaxpr, names_of(model))


def takes_integers(model: nnx.Module, paths: Mapping[str, bool], arguments: Arguments) -> bool:
    """True if a model runs in evaluation when some of its layers return integers.

    The jaxpr alone does not show this. Code that needs floats may leave no equation, as `x.astype(x.dtype)`, or the
    same equation as code that takes integers, as `jnp.reshape(x, shape)` and `x.reshape(shape)`.

    Args:
        model: the model, which is not changed.
        paths: for the name of each layer that takes integers, True if it returns integers.
        arguments: as for `record`.
    """

    def change(path: str, module: nnx.Module) -> nnx.Module:
        return _Rehearsed(module, paths[path]) if path in paths else module

    run, *inputs = _program(rebuilt(model, change, keeps_children), arguments)
    try:
        jax.eval_shape(run, *inputs)
    except (TypeError, ValueError):
        return False
    return True


def _program(model: nnx.Module, arguments: Arguments) -> tuple[Callable[..., Any], Any, list[Any]]:
    """A model's call as a function of its state and of the arrays in its arguments; the state; and these arrays."""
    model.eval()
    graph, state = nnx.split(model)
    arrays, put = split_arrays(arguments, jax.ShapeDtypeStruct)

    def run(state: Any, arrays: list[Any]) -> list[Any]:
        args, kwargs = put(arrays)
        return split_arrays(nnx.merge(graph, state)(*args, **kwargs))[0]

    return run, state, arrays


def program_text(model: nnx.Module, arguments: Arguments) -> str:
    """The program of a model's call in evaluation, as text; two models with equal texts compute the same."""
    run, *inputs = _program(nnx.clone(model), arguments)
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(run)(*inputs)))  # of functions in memory


def shapes_of(arguments: Any) -> Any:
    """Arguments with shapes and dtypes in the place of arrays."""
    arrays, put = split_arrays(arguments)
    return put([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays])


class Noting(Around):
    """A model that notes the arguments of its calls, but for the first."""

    def __init__(self, model: nnx.Module, note: Callable[[Any], None]) -> None:
        super().__init__(model)
        self.note, self.ran = note, Ran()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.ran.count()
        if self.ran.calls > 1:
            self.note(shapes_of((args, kwargs)))
        return super().__call__(*args, **kwargs)


class Stopping(Around):
    """A model that ends a run when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise HasRunError((args, kwargs))
