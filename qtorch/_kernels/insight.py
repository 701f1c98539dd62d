"""The kernel that counts the effects of roundings; the loops are in `insight.c`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

import numpy as np

from qcore.insight.law import (
    COUNTS,
    DIGIT,
    ERROR_FIELDS,
    ERROR_KEYS,
    FIELDS,
    NUMBER_KEYS,
    PLAIN_CARRY,
    PLAIN_ERROR,
    PLAIN_KEYS,
    PLAIN_SMALLEST,
    Bounds,
    Effects,
    PlainEffects,
    effects,
    error_weights,
    number_weights,
    plain_effects,
    plain_weights,
    to_float32,
)
from qcore.law.carrier import FLOAT32, Carrier
from qcore.trace import CONSTANT, ELEMENT, Trace, Value
from qcore.writer import WRITER
from qtorch._kernels.source import VALUES
from qtorch._kernels.store import Function, load

TEMPLATE = Path(__file__).with_name("insight.c")


@cache
def statistics(carrier: Carrier, blocks: bool) -> Function | None:
    """The kernel for numbers of a carrier; `blocks` is true if each element has the bounds of its own block."""
    return load(source(carrier, blocks))


def source(carrier: Carrier, blocks: bool) -> str:
    """The kernel's C."""
    found, plain = _traced(carrier, blocks)
    each, of_each = _steps(found)
    rest, of_plain = _plain_steps(plain)
    counted = [f"total->sums[{i + 1}] += flag{i};" for i in range(len(found.flags))]
    counted += [f"total->magnitudes[{i}] = MAX(total->magnitudes[{i}], most{i});" for i in range(4)]
    fields = {
        "values": VALUES.read_text(encoding="utf-8"),
        "blocks": int(blocks),
        **_numbers_of_the_law(),
        "stored": "int16_t" if carrier.padding else "int32_t",
        "flags": ", ".join(f"flag{i} = 0" for i in range(len(found.flags))),
        "most": ", ".join(f"most{i} = 0" for i in range(4)),
        "constants": "\n    ".join(WRITER.statements([*each, *rest], ELEMENT, CONSTANT)),
        "each": _loop(each, of_each),
        "plain": _loop(rest, of_plain),
        "counted": "\n    ".join(counted),
    }
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(fields)


def _traced(carrier: Carrier, blocks: bool) -> tuple[Effects, PlainEffects]:
    """The effects of a rounding on an element, and the shorter ones on a plain element."""
    trace = Trace()
    lanes = [trace.value(f"{name}[j]", "int32", ELEMENT) for name in ("x", "y")]
    if carrier.padding:
        lanes = [one << carrier.padding for one in lanes]
    before, after = (to_float32(trace, one, carrier) for one in lanes)
    ends = [f"{name}[j]" for name in Bounds._fields] if blocks else [f"call->ends[{i}][0]" for i in range(3)]
    level = ELEMENT if blocks else CONSTANT
    bounds = Bounds(*(trace.value(end, "int32", level) for end in ends))
    return effects(trace, before, after, bounds), plain_effects(trace, before, after, bounds)


def _numbers_of_the_law() -> dict[str, object]:
    plain_numbers, plain_errors = plain_weights()
    return {
        "counts": len(COUNTS),
        **{f"place_of_{name}": COUNTS.index(name) for name in ("zeros", "underflowed", "subnormal")},
        "fields": FIELDS,
        "errors": ERROR_FIELDS,
        "number_keys": NUMBER_KEYS,
        "error_keys": ERROR_KEYS,
        "plain_keys": PLAIN_KEYS,
        "plain_carry": PLAIN_CARRY,
        "plain_error": PLAIN_ERROR,
        "plain_least": (1 << 31) - PLAIN_SMALLEST,  # as `ends` have it
        "hidden": FLOAT32.hidden,
        "infinity": FLOAT32.infinity,
        "number_weights": _initializer(number_weights()),
        "error_weights": _initializer(error_weights()),
        "plain_number_weights": _initializer(plain_numbers),
        "plain_error_weights": ", ".join(f"{{{_initializer(plain_errors * [1, sign, 1])}}}" for sign in (1, -1)),
        "digit": DIGIT,
    }


def _steps(found: Effects) -> tuple[list[Value], list[str]]:
    """The values of an element, and the statements that count them."""
    name = WRITER.name
    steps = [f"keys[j] = {name(found.number_key)} | {name(found.error_key)} << 16;"]
    steps += [f"flag{i} -= {name(flag)};" for i, flag in enumerate(found.flags)]
    steps += [f"most{i} = MAX(most{i}, {name(one)});" for i, one in enumerate(found.magnitudes)]
    return [found.number_key, found.error_key, *found.flags, *found.magnitudes], steps


def _plain_steps(found: PlainEffects) -> tuple[list[Value], list[str]]:
    """`_steps` of plain elements. Zeros take the keys of their field in turn: counts then do not wait for one key."""
    name = WRITER.name
    steps = [
        f"special |= {name(found.special)};",
        f"underflowed += {name(found.underflowed)};",
        f"subnormal += {name(found.subnormal)};",
        *(f"end{i} = MAX(end{i}, {name(one)});" for i, one in enumerate(found.ends)),
        "const int32_t key = j & (PLAIN_KEYS - 1);",
        f"keys[j] = MAX({name(found.number_key)}, key) | MAX({name(found.error_key)}, key) << 16;",
        f"errors |= {name(found.error_key)};",
    ]
    values = [found.special, found.underflowed, found.subnormal, *found.ends, found.number_key, found.error_key]
    return values, steps


def _loop(values: list[Value], steps: list[str]) -> str:
    return "\n                ".join([*WRITER.statements(values, ELEMENT), *steps])


def _initializer(weights: np.ndarray) -> str:
    """Weights as an initializer of C, column by column."""
    return ", ".join(map(str, weights.T.reshape(-1).tolist()))
