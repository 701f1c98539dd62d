"""Twins of converted models: the float model whose weights and results are only rounded, to judge the converted one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from qcore.workflow.front import Noises
from qcore.workflow.settings import Arguments
from qjax._jaxprs import CUSTOM, INLINED, bind, evaluate, inner_programs, split_arrays
from qjax._models import names_of, rebuilt
from qjax._parameters import parameters
from qjax.nnx import quantized
from qjax.nnx.flattened import Flattened
from qjax.nnx.intrinsic import Fused
from qjax.nnx.layouts import set_torch_weight, torch_weight
from qjax.nnx.quantization.flow import Around
from qjax.nnx.quantization.observing import FloatFunctional, Observed
from qjax.nnx.quantization.quantization_mappings import GENERAL, keeps_children
from qjax.nnx.quantization.rounding import around_linear
from qjax.nnx.quantized import dynamic
from qjax.nnx.quantized.weights import Weight
from qjax.nnx.rounded import RoundedLayer
from qjax.quantization import QTensor, quantize_affine


def noises(model: nnx.Module, models: Sequence[nnx.Module], arguments: Arguments) -> list[Noises]:
    """The powers of errors of converted models, which differ in scales at most.

    One program computes the float model, its rounded twin and a converted model, and returns only these numbers.

    Args:
        model: the float model with the layers of the converted one; it stays as it is.
        models: the converted models.
        arguments: those of a call.
    """
    judged = set[str]()
    watched = [_beside_others(model, made, judged) for made in models]
    graph, _ = nnx.split(watched[0])
    arrays, put = split_arrays(arguments)

    def all_results(state: Any, arrays: Any) -> list[list[jax.Array]]:
        args, kwargs = put(arrays)
        merged: Any = nnx.merge(graph, state)
        return [split_arrays(one(*args, **kwargs))[0] for one in merged]

    def run(state: Any, arrays: Any) -> tuple[tuple[Any, Any], list[dict[str, Any]]]:
        results, (expected, rounded, found) = _with_notes(all_results, state, arrays)
        powers = {path: sum(map(_power, ones)) for path, ones in expected.items()}
        exact, _, made = ({"": [x for x in ones if jnp.issubdtype(x.dtype, jnp.inexact)]} for ones in results)
        signal = sum(map(_power, exact[""]))
        return (signal, _errors(made, exact)[""]), [powers, _errors(found, expected), _errors(rounded, expected)]

    compiled = jax.jit(run)
    results = [compiled(nnx.state(one), arrays) for one in watched]
    found = list[Noises]()
    for (power, error), (signal, noise, rounding) in results:
        powers = {path: (float(signal[path]), float(noise[path]), float(rounding[path])) for path in signal}
        found.append(Noises(float(power), float(error), powers))
    return found


_Notes = Mapping[str, list[jax.Array]]  # the results of layers' calls, by the layers' names
_NOTE = "qjax notes: "


def _with_notes(run: Any, *inputs: Any) -> tuple[Any, list[_Notes]]:
    """What a function of three models returns, and what each model notes.

    The notes are read from the function's program, since no value may leave the programs within it by another way than
    a result. A loop within it keeps its notes.
    """
    traced, shapes = jax.make_jaxpr(run, return_shape=True)(*inputs)
    notes = [defaultdict[str, list[jax.Array]](list) for _ in range(3)]

    def step(_: int, equation: Any, operands: list[Any]) -> Sequence[Any]:
        kind = equation.primitive.name
        if kind == "name" and (name := str(parameters(equation).name)).startswith(_NOTE):
            which, path = name.removeprefix(_NOTE).split(" ", 1)
            notes[int(which)][path] += operands
        if kind in INLINED | CUSTOM:
            (program,) = inner_programs(equation, operands) or []
            return evaluate(program.jaxpr, program.consts, program.inputs, step)
        return bind(equation, operands)

    results = evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(inputs), step)
    return jax.tree.unflatten(jax.tree.structure(shapes), results), [*notes]


def _beside_others(model: nnx.Module, made: nnx.Module, judged: set[str]) -> nnx.Module:
    """A float model, its rounded twin and a converted model, which note the results of layers."""
    known, modules = names_of(model), {path: _inner(layer) for path, layer in names_of(made).items()}
    layers = {path: layer for path, layer in modules.items() if path in known and _is_converted(layer)}
    # What goes in, tables, and modules of several functions.
    kinds = quantized.Quantize, quantized.Embed, quantized.QFunctional
    judged |= {path for path, layer in layers.items() if not isinstance(layer, kinds)}

    def change(path: str, layer: nnx.Module) -> nnx.Module:
        if isinstance(modules.get(path), (dynamic.RNN, dynamic.Cell, dynamic.Recurrent)):
            return modules[path]  # rounding is all that it does, and what follows has these errors
        return _rounded(layer, layers[path]) if path in layers else layer

    twin = rebuilt(model, change, keeps_children)
    models = nnx.List([_watched(one, judged, which) for which, one in enumerate((model, twin, made))])
    models.eval()
    for one in models:
        _set_keys(one, model)
    return models


def _set_keys(model: nnx.Module, other: nnx.Module) -> None:
    """Gives a model the random keys and counts of another, since calibration draws numbers."""
    keys = dict(nnx.to_flat_state(nnx.state(other, nnx.RngState)))
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.RngState)) if path in keys]
    nnx.update(model, nnx.from_flat_state({path: keys[path] for path in paths}))


class _Watched(Around):
    """A layer whose results are noted, with the number of the model that it belongs to."""

    def __init__(self, module: nnx.Module, path: str, which: int) -> None:
        super().__init__(module)
        self.path, self.which = path, which

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        y = super().__call__(*arguments, **settings)
        note = checkpoint_name(_numbers(y), f"{_NOTE}{self.which} {self.path}")
        return jax.lax.optimization_barrier((y, note))[0]  # what no result needs is not traced


class _Rounded(Around):
    """A float layer whose results are rounded as those of its converted form."""

    def __init__(self, module: nnx.Module, made: Any) -> None:
        super().__init__(module)
        self.rounding = _Rounding(made)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.rounding(super().__call__(*arguments, **settings))


class _Rounding(nnx.Module):
    """The numbers to which a converted layer rounds a result."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def __call__(self, y: jax.Array) -> jax.Array:
        made: Any = self.made
        if isinstance(made, quantized.Quantized):
            result: Any = quantize_affine(y, made.output, made.form)
        else:
            result = (made.output if isinstance(made, RoundedLayer) else made.activation_post_process)(y)
        return _numbers(result).astype(y.dtype)


def _inner(layer: Any) -> Any:
    return layer.module if isinstance(layer, Flattened) else layer


def _is_converted(layer: Any) -> bool:
    return isinstance(layer, (quantized.Quantized, quantized.Embed, RoundedLayer, Observed))


def _watched(model: nnx.Module, paths: set[str], which: int) -> nnx.Module:
    """A copy of a model that notes the results of layers."""

    def change(path: str, layer: nnx.Module) -> nnx.Module:
        if isinstance(layer, Flattened) and isinstance(layer.module, _Watched):  # of the same name
            layer.module = layer.module.module
        return _Watched(layer, path, which) if path in paths else layer

    return rebuilt(model, change, keeps_children)


def _rounded(layer: Any, made: Any) -> nnx.Module:
    """A float layer with the weight of a converted one, and with results that are rounded as that rounds them."""
    if isinstance(layer, FloatFunctional):
        layer.activation_post_process = _Rounding(made)
        return layer
    if isinstance(layer, nnx.Embed):
        layer.embedding = nnx.Param(_numbers(made.weight()).astype(layer.embedding.dtype))
        return layer
    if type(layer) in GENERAL:
        return around_linear("", layer, lambda linear: _rounded(linear, made))
    weight: Any = getattr(made, "weight", None)
    if isinstance(weight, get_args(Weight)):
        inner = layer.layer if isinstance(layer, Fused) else layer
        old = torch_weight(inner)
        set_torch_weight(inner, _numbers(weight()).reshape(old.shape).astype(old.dtype))
    return _Rounded(layer, made)


def _numbers(y: Any) -> jax.Array:
    return y.dequantize() if isinstance(y, QTensor) else y


def _errors(found: _Notes, expected: _Notes) -> dict[str, Any]:
    """The power of the differences of layers' results; infinite if there are more or fewer results, or others."""

    def error(path: str, ones: list[jax.Array]) -> Any:
        others = found.get(path, [])
        if [y.shape for y in others] != [y.shape for y in ones]:
            return inf
        return sum(_power(y.astype(jnp.float32) - x.astype(jnp.float32)) for y, x in zip(others, ones, strict=True))

    return {path: error(path, ones) for path, ones in expected.items()}


def _power(x: jax.Array) -> jax.Array:
    return jnp.square(x.astype(jnp.float32)).sum()
