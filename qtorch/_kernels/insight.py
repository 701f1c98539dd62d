"""The kernel of statistics, see `insight.c`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

import numpy as np

from qcore.insight.lanes import DIGIT
from qcore.insight.law import (
    COUNTS,
    ERROR_FIELDS,
    ERROR_KEYS,
    FIELDS,
    NUMBER_KEYS,
    PLAIN_CARRY,
    PLAIN_ERROR,
    PLAIN_KEYS,
    Bounds,
    Effects,
    effects,
    error_weights,
    number_weights,
    plain_effects,
    plain_weights,
    special,
    to_float32,
)
from qcore.law.carrier import FLOAT32, Carrier
from qtorch._kernels.source import VALUES
from qtorch._kernels.store import Function, load
from qtorch._kernels.trace import CONSTANT, ELEMENT, Trace, Value, declared, needed

TEMPLATE = Path(__file__).with_name("insight.c")


@cache
def statistics(carrier: Carrier, blocks: bool) -> Function | None:
    """The kernel for numbers of a carrier, with bounds of each element's block, or of all."""
    return load(source(carrier, blocks))


def source(carrier: Carrier, blocks: bool) -> str:
    """The kernel's C."""
    found, plain, rare = _traced(carrier, blocks)
    loops = {
        "each": _loop(*_steps(found)),
        "plain": _loop(*_steps(plain, "errors |= error_key[j];")),
        "special": _loop([rare], [f"special |= {rare.name};"]),
    }
    values = needed([*_steps(found)[0], *_steps(plain)[0], rare], ELEMENT)
    counted = [f"total->sums[{i + 1}] += flag{i};" for i in range(len(found.flags))]
    counted += [f"total->magnitudes[{i}] = MAX(total->magnitudes[{i}], most{i});" for i in range(4)]
    fields = {
        "values": VALUES.read_text(),
        "blocks": int(blocks),
        **_numbers_of_the_law(),
        "stored": "int16_t" if carrier.padding else "int32_t",
        "zeros": ", ".join(f"flag{i} = 0" for i in range(len(found.flags))),
        "least": ", ".join(f"most{i} = 0" for i in range(4)),
        "constants": "\n    ".join(declared(value) for value in values if value.level == CONSTANT),
        **loops,
        "counted": "\n    ".join(counted),
    }
    return Template(TEMPLATE.read_text()).substitute(fields)


def _traced(carrier: Carrier, blocks: bool) -> tuple[Effects, Effects, Value]:
    """What a rounding does to an element, the same of plain ones, and whether an element is not plain."""
    trace = Trace()
    lanes = [trace.value(f"{name}[j]", "int32", ELEMENT) for name in ("x", "y")]
    if carrier.padding:
        lanes = [one << carrier.padding for one in lanes]
    before, after = (to_float32(trace, one, carrier) for one in lanes)
    ends = [f"{name}[j]" for name in Bounds._fields] if blocks else [f"call->ends[{i}][0]" for i in range(3)]
    level = ELEMENT if blocks else CONSTANT
    bounds = Bounds(*(trace.value(end, "int32", level) for end in ends))
    found, plain = (law(trace, before, after, bounds) for law in (effects, plain_effects))
    return found, plain, special(trace, before, after, bounds)


def _numbers_of_the_law() -> dict[str, object]:
    plain_numbers, plain_errors = plain_weights()
    return {
        "counts": len(COUNTS),
        "fields": FIELDS,
        "errors": ERROR_FIELDS,
        "number_keys": NUMBER_KEYS,
        "error_keys": ERROR_KEYS,
        "plain_keys": PLAIN_KEYS,
        "plain_carry": PLAIN_CARRY,
        "plain_error": PLAIN_ERROR,
        "infinity": FLOAT32.infinity,
        "number_weights": _initializer(number_weights()),
        "error_weights": _initializer(error_weights()),
        "plain_number_weights": _initializer(plain_numbers),
        "plain_error_weights": ", ".join(f"{{{_initializer(plain_errors * [1, sign, 1])}}}" for sign in (1, -1)),
        "digit": DIGIT,
    }


def _steps(found: Effects, *more: str) -> tuple[list[Value], list[str]]:
    """Values of an element, and C for what is done with them, and more; what is 0 everywhere is no value."""
    written = {"number_key": found.number_key, "error_key": found.error_key}
    steps = [f"{name}[j] = (uint16_t){value.name};" for name, value in written.items()]
    sums = [(f"flag{i} -= {{}};", flag) for i, flag in enumerate(found.flags)]
    maxima = [(f"most{i} = MAX(most{i}, {{}});", one) for i, one in enumerate(found.magnitudes)]
    varying = [(text, value) for text, value in (*sums, *maxima) if isinstance(value, Value)]
    steps += [text.format(value.name) for text, value in varying]
    return [*written.values(), *(value for _, value in varying)], [*steps, *more]


def _loop(values: list[Value], steps: list[str]) -> str:
    lines = [declared(value) for value in needed(values, ELEMENT) if value.level == ELEMENT]
    return "\n                ".join([*lines, *steps])


def _initializer(weights: np.ndarray) -> str:
    return ", ".join(map(str, weights.reshape(-1).tolist()))
