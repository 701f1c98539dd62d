"""The kernel that looks up the results of operations on codes; the loop is in `gather.c`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

import torch

from qtorch._kernels.source import VALUES
from qtorch._kernels.store import Function, load

TEMPLATE = Path(__file__).with_name("gather.c")


def gather(table: torch.Tensor, codes: tuple[torch.Tensor, ...], widths: tuple[int, ...]) -> torch.Tensor | None:
    """The entries of a table for contiguous CPU tensors of codes of one shape; None where there is no kernel.

    The first operand's code has the highest bits of an entry's place.
    """
    function = _function(tuple(x.element_size() for x in codes), table.element_size())
    if function is None:
        return None
    found = torch.empty(codes[0].shape, dtype=table.dtype)
    operands = [fact for x, bits in zip(codes, widths, strict=True) for fact in (x.data_ptr(), bits)]
    function(found.numel(), table.data_ptr(), found.data_ptr(), *operands)
    return found


@cache
def _function(operands: tuple[int, ...], entry: int) -> Function | None:
    """The kernel for operands, and entries, of so many bytes."""
    arrays, indices = [], []
    for i, size in enumerate(operands):
        kind = f"uint{8 * size}_t"
        arrays.append(f"const {kind}* const x{i} = pointer(call[{3 + 2 * i}]);")
        arrays.append(f"const int64_t bits{i} = call[{4 + 2 * i}];")
        indices.append(f"index = index << bits{i} | ((uint32_t)x{i}[j] & ((1u << bits{i}) - 1));")
    fields = {
        "values": VALUES.read_text(encoding="utf-8"),
        "operands": len(operands),
        "entry": f"uint{8 * entry}_t",
        "arrays": "\n    ".join(arrays),
        "indices": "\n        ".join(indices),
    }
    return load(Template(TEMPLATE.read_text(encoding="utf-8")).substitute(fields))
