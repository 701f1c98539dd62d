"""Kernels of layers in floats whose weights are integers: products (`dynamic.c`), and steps of recurrent layers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from qcore.affine import AffineInteger
from qcore.affine.functional import recurrent
from qcore.trace import CONSTANT, ELEMENT, Value, needed
from qcore.writer import WRITER
from qtorch._affine.kernels.integers import with_panels
from qtorch._affine.kernels.laws import AffineTrace, in_order
from qtorch._kernels.store import Function, load

PRODUCT, RECURRENT, RANGES, ELEMENTARY = (
    Path(__file__).with_name(name) for name in ("dynamic.c", "recurrent.c", "ranges.h", "elementary.h")
)
GATES = {"lstm": 4, "gru": 3}  # of the laws of recurrent layers


@cache
def product(biased: bool, form: AffineInteger) -> Function | None:
    """The kernel of a linear layer of floats whose input is quantized to unsigned 8-bit integers.

    A call gives the numbers of rows, features and outputs, whether each row has its own range, and the addresses of the
    packed weight, of the scales and biases of all outputs (only a kernel that is `biased` reads biases), of the sums of
    each output's differences, of the float32 rows, and of the float32 results.
    """
    trace = AffineTrace()
    y = _output(trace, "sum", "weight_scale[j]", "bias[j]" if biased else "")
    lines = map(WRITER.declared, needed([y], ELEMENT))
    fields = {"ranges": _ranges(form), "output": "\n            ".join(lines), "result": WRITER.name(y)}
    return load(with_panels(PRODUCT, fields))


@cache
def steps(law: str, biased: bool, form: AffineInteger) -> Function | None:
    """The kernel of all steps of a recurrent layer in one direction, whose hidden states are quantized.

    A call gives the numbers of steps and of a state's elements, the batch, whether the steps are taken backwards, and
    the addresses of the packed weight of hidden states, of its scales and biases as for `product`, of the int64 numbers
    of sequences that have each step, of the input's products, of the hidden and the cell states, which are written
    over, and of the results. `law` is a key of `GATES`; `biased` and `form` are as for `product`.
    """
    trace = AffineTrace()
    gates, states = range(GATES[law]), [trace.value(f"{name}[j]", "float32", ELEMENT) for name in ("hidden", "cell")]
    of_input = [trace.value(f"of_input[{gate} * size + j]", "float32", ELEMENT) for gate in gates]
    places = [f"[{gate} * size + j]" for gate in gates]
    of_hidden = [_output(trace, f"sums{at}", f"weight_scale{at}", f"bias{at}" if biased else "") for at in places]
    if law == "lstm":
        i, f, g, o = (a + b for a, b in zip(of_input, of_hidden, strict=True))
        hidden, cell = recurrent.lstm_step(trace, i, f, g, o, states[1])
        results = {"hidden": hidden, "cell": cell}
    else:
        results = {"hidden": recurrent.gru_step(trace, of_input, of_hidden, states[0])}
    written = [f"{name}[j] = {WRITER.name(value)};" for name, value in results.items()]
    fields = {
        "ranges": _ranges(form),
        "elementary": ELEMENTARY.read_text(encoding="utf-8"),
        "gates": str(GATES[law]),
        "before": "\n    ".join(WRITER.statements(results.values(), ELEMENT, CONSTANT)),
        "each": "\n        ".join(WRITER.statements(results.values(), ELEMENT)),
        "states": "\n        ".join([*written, f"result[j] = {WRITER.name(results['hidden'])};"]),
    }
    return load(with_panels(RECURRENT, fields))


def _output(trace: AffineTrace, sums: str, scale: str, bias: str) -> Value:
    """`recurrent.dynamic_output` of the variables of C with these names; without a bias if its name is ""."""
    parts = trace.value(sums, "int32", ELEMENT), trace.value("input_scale", "float32", ELEMENT)
    others = [trace.value(text, "float32", ELEMENT) if text else None for text in (scale, bias)]
    return recurrent.dynamic_output(trace, *parts, *others)


class _RangeTrace(AffineTrace):
    """The array namespace for arrays that are quantized by their own range; a loop of C has found its ends."""

    def extremes(self, x: Value, axes: tuple[int, ...]) -> tuple[Value, ...]:
        ends = [self.value(name, "int32", CONSTANT) for name in ("least", "most")]
        return tuple(self.float32_from(end) for end in in_order(self, *ends))


def _ranges(form: AffineInteger) -> str:
    """C for `recurrent.quantize_dynamic`."""
    trace: Any = _RangeTrace()
    q, qparams = recurrent.quantize_dynamic(trace, trace.value("from[j]", "float32", ELEMENT), form)
    values = [q, qparams.scale, qparams.zero_point]
    fields = {
        "range": "\n    ".join(WRITER.statements(values, ELEMENT, CONSTANT)),
        "scale": WRITER.name(qparams.scale),
        "zero_point": WRITER.name(qparams.zero_point),
        "quantized": "\n        ".join(WRITER.statements(values, ELEMENT)),
        "integer": WRITER.name(q),
    }
    return Template(RANGES.read_text(encoding="utf-8")).substitute(fields)
