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
    Bounds,
    effects,
    error_weights,
    number_weights,
    to_float32,
)
from qcore.law.carrier import Carrier
from qtorch._kernels.source import VALUES, declared, needed
from qtorch._kernels.store import Function, load
from qtorch._kernels.trace import CONSTANT, ELEMENT, Trace

TEMPLATE = Path(__file__).with_name("insight.c")


@cache
def statistics(carrier: Carrier, blocks: bool) -> Function | None:
    """The kernel for numbers of a carrier, with bounds of each element's block, or of all."""
    return load(source(carrier, blocks))


def source(carrier: Carrier, blocks: bool) -> str:
    """The kernel's C."""
    trace = Trace()
    lanes = [trace.value(f"{name}[j]", "int32", ELEMENT) for name in ("x", "y")]
    if carrier.padding:
        lanes = [one << carrier.padding for one in lanes]
    before, after = (to_float32(trace, one, carrier) for one in lanes)
    ends = [f"{name}[j]" for name in Bounds._fields] if blocks else [f"call->ends[{i}][0]" for i in range(3)]
    level = ELEMENT if blocks else CONSTANT
    found = effects(trace, before, after, Bounds(*(trace.value(end, "int32", level) for end in ends)))
    written = {"number_key": found.number_key, "error_key": found.error_key}
    values = needed([*written.values(), *found.flags, *found.magnitudes], ELEMENT)
    each = [declared(value) for value in values if value.level == ELEMENT]
    each += [f"{name}[j] = (uint16_t){value.name};" for name, value in written.items()]
    each += [f"flag{i} += {flag.name};" for i, flag in enumerate(found.flags)]
    each += [f"most{i} = MAX(most{i}, {one.name});" for i, one in enumerate(found.magnitudes)]
    counted = [f"total->sums[{i + 1}] += flag{i};" for i in range(len(found.flags))]
    counted += [f"total->magnitudes[{i}] = MAX(total->magnitudes[{i}], most{i});" for i in range(4)]
    fields = {
        "values": VALUES.read_text(),
        "blocks": int(blocks),
        "counts": len(COUNTS),
        "fields": FIELDS,
        "errors": ERROR_FIELDS,
        "number_keys": NUMBER_KEYS,
        "error_keys": ERROR_KEYS,
        "number_weights": _initializer(number_weights()),
        "error_weights": _initializer(error_weights()),
        "digit": DIGIT,
        "stored": "int16_t" if carrier.padding else "int32_t",
        "zeros": ", ".join(f"flag{i} = 0" for i in range(len(found.flags))),
        "least": ", ".join(f"most{i} = 0" for i in range(4)),
        "constants": "\n    ".join(declared(value) for value in values if value.level == CONSTANT),
        "each": "\n            ".join(each),
        "counted": "\n    ".join(counted),
    }
    return Template(TEMPLATE.read_text()).substitute(fields)


def _initializer(weights: np.ndarray) -> str:
    return ", ".join(f"{{{', '.join(map(str, row))}}}" for row in weights.tolist())
