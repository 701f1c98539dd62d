"""Collectives by the names of the programs that have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import check_choice, check_type, quoted
from qcore.distributed.collective import (
    AFTER,
    ASCENDING,
    BEFORE,
    GATHER,
    GLOO_RING,
    NCCL_PAT,
    NCCL_RING,
    NCCL_TREE,
    NONE,
    OWN_FIRST,
    PREMULTIPLY,
    REDUCE,
    SCATTER,
    ZERO,
    Collective,
)
from qcore.distributed.scale import WireScale
from qcore.formats.text import parse_argument
from qcore.linalg.accumulator import Accumulator

DTYPES = "float32", "float16", "bfloat16"  # of arrays
_ONLY = {NCCL_TREE: REDUCE, NCCL_PAT: SCATTER, NONE: GATHER}  # orders that one call has
_FLOAT32, _FLOAT64 = Accumulator("float32", chunk=1), Accumulator("binary(11,52)", chunk=1)
_WIRES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "e4m3": "e4m3fn:saturate",
    "e5m2": "e5m2:saturate",
}


class Backend(NamedTuple):
    """A sum over ranks that a program computes.

    Attributes:
        law: the sum, as a `Collective`.
        others: the sums of arrays of other dtypes, by their names.
        average: `divide` of the mean; None where the program has no mean.
        source: where the law was read, with the version.
        undefined: what the program does not define, and what is simulated then.

    Example:
        >>> BACKENDS["deepep.combine"].law.text
        'collective(wire=bfloat16,accumulator=accumulator(chunk=1),start=zero)'
    """

    law: Collective
    source: str
    undefined: str
    average: str | None = None
    others: Mapping[str, Collective] = MappingProxyType({})


_QUOTIENTS = "Quotients, which kernels compute to two units in the last place: rounded to nearest here"
_ZEROPP = "DeepSpeed edaa7221, "
_NCCL = "NCCL 2.30.7 (5067397c), "
_READ = "read from source, not measured. "
_CHOICE = (
    _READ
    + "The choice of algorithm, protocol and channels, and where ranks are: one channel, protocol Simple, ranks in "
    "ascending order round the ring"
)
_TREE = _READ + "Nodes, channels and the second tree: one rank a node, and the first tree for all elements"


def _nccl() -> dict[str, Backend]:
    """NCCL's rings and trees for each format on the wire."""
    found = {}
    for name, wire in _WIRES.items():
        ring, tree = Collective(wire, NCCL_RING), Collective(wire, NCCL_TREE)
        found[f"nccl.ring.{name}"] = Backend(ring, _NCCL + "src/device/all_reduce.h", _CHOICE, PREMULTIPLY)
        found[f"nccl.tree.{name}"] = Backend(tree, _NCCL + "src/graph/trees.cc", _TREE, PREMULTIPLY)
    return found


# The programs by name. Formats are those of the arrays where a name has none.
BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        "gloo": Backend(
            Collective(order=GLOO_RING),
            "gloo cc441984, gloo/allreduce.cc, as torch 2.13 calls it",
            "nothing: compared by bits. torch's reduce_scatter of a list cuts each part as a message of its own",
            AFTER,
        ),
        "xla.cpu": Backend(
            Collective(accumulator=_FLOAT32, start=ZERO, flush=True),
            "openxla/xla of jaxlib 0.10.2, cpu_compiler.cc",
            "nothing: compared by bits for psum and psum_scatter in shard_map. In vmap psum is another sum",
            others={"float16": Collective(start=ZERO)},
        ),
        **_nccl(),
        "nccl.pat": Backend(
            Collective(order=NCCL_PAT),
            _NCCL + "src/include/collectives.h",
            _READ + "How many steps are sent together: 1 here, as for large messages; `Collective` has `aggregation`",
        ),
        "nccl.nvls": Backend(
            Collective(accumulator=_FLOAT64),
            _NCCL + "multimem.ld_reduce",
            _READ + "The order and the width of sums in the switch. A model: the float64 sum, rounded once. It is the "
            "exact sum of N numbers of p bits whose exponents differ by at most 53 - p - log2(N)",
        ),
        "nccl.symmetric": Backend(
            Collective(accumulator=_FLOAT32),
            _NCCL + "src/device/symmetric",
            _READ + "The kernel: that of low latency, which adds ranks in ascending order",
            AFTER,
        ),
        "megatron": Backend(
            Collective("bfloat16", ASCENDING, _FLOAT32, start=ZERO),
            "Megatron-LM d98e8a64, reduce_scatter_with_fp32_accumulation.py",
            "the order of torch.sum's kernel: ascending here. Up to two ranks Megatron-LM takes another way",
            BEFORE,
        ),
        "torchft": Backend(
            Collective("e4m3fn:saturate", OWN_FIRST, _FLOAT32, WireScale("row"), start=ZERO),
            "torchft 7eb70878, torchft/quantization.py",
            _READ + _QUOTIENTS + ". Arrays of more than two dimensions: matrices of their last axis",
            AFTER,
        ),
        "zeropp.qgz": Backend(
            Collective(
                "fixed(4,0)",
                ASCENDING,
                Accumulator("float16", chunk=1),
                WireScale("qgz", 8.0, inverse="reciprocal", number="float16"),
                start=ZERO,
            ),
            _ZEROPP + "csrc/quantization/quant_reduce.cu",
            _READ + _QUOTIENTS + ". One node, whose ranks are summed. Nodes are a level above, whose mean is taken: "
            "Collective('float16', start='zero', divide='after', inner=named('zeropp.qgz'), inner_ranks=8). "
            "Vectors, and matrices whose numbers 2 * ranks does not divide, are sent as they are: "
            "Collective(order='nccl_ring', divide='before')",
        ),
        "zeropp.qwz": Backend(
            Collective("fixed(8,0)", NONE, None, WireScale("qwz", 128.0, inverse="reciprocal", number="float16")),
            _ZEROPP + "deepspeed/runtime/zero/partition_parameters.py",
            _READ + _QUOTIENTS,
        ),
        "torchao.float8_all_gather": Backend(
            Collective("e4m3fn:saturate", NONE, None, WireScale("ranks", least=1e-12, spreads=True)),
            "torchao 0.18.0, torchao/float8/fsdp_utils.py",
            "the numbers that a product reads of codes and scale: float32 quotients here, compared by bits. Scales of "
            "float16 weights end at 65504 if they are computed ahead (precompute_float8_dynamic_scale_for_fsdp)",
        ),
        "deepep.dispatch": Backend(
            Collective(
                "e4m3fn:saturate", NONE, None, WireScale(128, least=float(np.float32(1e-4)), inverse="magnitude")
            ),
            "DeepEP dd758caf, csrc/kernels/legacy/internode_ll.cu",
            _READ + "The experts of a token: every rank has all tokens here. Scales that are powers of two: the option "
            "inverse='power_of_two' of `WireScale`",
        ),
        "deepep.combine": Backend(
            Collective("bfloat16", ASCENDING, _FLOAT32, start=ZERO),
            "DeepEP dd758caf, deep_ep/include/deep_ep/impls/combine_utils.cuh",
            _READ + "The ranks of a token: all of them here. Two terms are added in bfloat16 there, which keeps -0",
        ),
    }
)


def named(name: str, dtype: str = "float32") -> Collective:
    """The collective of a program.

    Args:
        name: a name of `BACKENDS`, such as "gloo" or "nccl.ring.bf16"; with ".avg" after it, its mean.
        dtype: that of the arrays, by its name; some programs have other sums for some.

    Returns:
        A `Collective`, whose wire is None if it is the arrays' dtype.

    Raises:
        ValueError: if no program has this name, or it has no mean; the message has the nearest names.

    Example:
        >>> named("nccl.ring.bf16.avg").text
        'collective(wire=bfloat16,order=nccl_ring,divide=premultiply)'
        >>> BACKENDS["nccl.pat"].source
        'NCCL 2.30.7 (5067397c), src/include/collectives.h'
    """
    check_type("name", name, str, "a str, such as 'gloo'")
    check_choice("dtype", dtype, DTYPES)
    return _law_of("name", name, dtype)


def _law_of(argument: str, name: str, dtype: str) -> Collective:
    """`named`; messages call the name by the user's argument."""
    backend = BACKENDS.get(name.removesuffix(".avg"))
    if backend is None:
        nearest = get_close_matches(name, BACKENDS, 3, 0.3)
        hint = f" (nearest: {', '.join(nearest)})" if nearest else ""
        raise ValueError(f"{argument}={quoted(name)}{hint}; allowed are {', '.join(BACKENDS)}, and texts")
    law = backend.others.get(dtype, backend.law)
    if not name.endswith(".avg"):
        return law
    if backend.average is None:
        raise ValueError(f"{argument}={quoted(name)}; allowed is {name.removesuffix('.avg')}, which has no mean")
    return replace(law, divide=backend.average)


def check_ranks(level: Collective | None, ranks: int) -> None:
    """Raises unless so many ranks are whole nodes, at all levels."""
    while level is not None:
        size = level.inner_ranks
        if ranks % size:
            raise ValueError(f"{ranks} ranks with nodes of {size}; allowed is a multiple of {size} ranks")
        if level.aggregation > 1:
            nodes = int(ranks // size)
            most = max(1, (1 << (nodes - 1).bit_length()) // 2)  # half of the least power of two from the nodes on
            if level.aggregation > most:
                raise ValueError(
                    f"aggregation={level.aggregation} of {nodes} ranks or nodes; allowed is at most {most} there"
                )
        ranks, level = size, level.inner


CollectiveLike = Collective | str  # as users give collectives


def check_collective(collective: Any, dtype: str, call: str, ranks: int | None = None) -> Collective:
    """A `Collective`, given as such, as text or by name, with nothing left open for a call on arrays of a dtype.

    Without a number of ranks, any is allowed.
    """
    found = collective
    if isinstance(collective, str):
        found = (
            parse_argument(collective, "collective") if "(" in collective else _law_of("collective", collective, dtype)
        )
    check_type("collective", found, Collective, "a Collective, its text, or a name such as 'gloo'")
    level: Collective | None = found
    while level is not None:
        only = _ONLY.get(level.order, call)
        if call not in (only, GATHER):
            raise ValueError(f"collective={quoted(collective)} has the order {level.order}; allowed is it in {only}")
        level = level.inner
    if ranks is not None:
        check_ranks(found, ranks)
    return found.on(dtype)
