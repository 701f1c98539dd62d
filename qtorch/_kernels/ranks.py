"""The kernel that adds a rank's numbers to a sum over ranks; the loop is in `ranks.c`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

import torch

from qtorch._kernels.source import VALUES
from qtorch._kernels.store import Function, load

TEMPLATE = Path(__file__).with_name("ranks.c")
TYPES = {torch.float32: "FLOAT32", torch.bfloat16: "bfloat16"}


@cache
def adding(dtype: torch.dtype, wire: torch.dtype, sum: torch.dtype, operation: str) -> Function | None:
    """The kernel for numbers of a dtype, rounded to the wire's and added to a sum; None where there is none.

    With the operation "*" or "/" numbers of the wire are multiplied or divided, and rounded again, before they are
    added. A call gives the number of elements, the addresses of the numbers and of the sum, and the bits of a float32
    factor or divisor.
    """
    if not {dtype, wire, sum} <= TYPES.keys():
        return None
    to = TYPES[wire]
    fields = {
        "values": VALUES.read_text(encoding="utf-8"),
        "dtype": TYPES[dtype],
        "wire": to,
        "sum": TYPES[sum],
        "term": f"from_{to}(to_{to}(sent {operation} factor))" if operation else "sent",
    }
    return load(Template(TEMPLATE.read_text(encoding="utf-8")).substitute(fields))
