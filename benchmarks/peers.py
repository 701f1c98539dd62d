"""How fast other packages round, beside ours: same process, same input, same format and mode, same framework.

Usage:
    python -m benchmarks.peers                          every peer that is installed, on 2^20 numbers
    python -m benchmarks.peers --only torch gfloat --exponent 24 --json peers.json
    QPYTORCH=FOLDER python -m benchmarks.peers          QPyTorch too, if it is in that folder
    python -m benchmarks.peers --newest [PEER ...]      times nothing: which bits the newest versions of peers move

Each peer's call takes turns with ours, and medians are compared. That the bits are the same, or where they are known
not to be, is what `tests/peers` is about. Calls are those of the peers' documentation on arrays that they are at home
with: what brings numbers there, such as APyTypes' conversion from NumPy, is not timed. QPyTorch runs in a process of
its own, which measures itself; that both copy as fast is its first row. Left out are packages that are not on PyPI
(CPFloat, and microxcaling, in whose place is code like it), that round wrongly (unit-scaling) or to formats that are
not ours (softposit).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module, metadata
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import qcore
import qtorch
from benchmarks.support import peers_qpytorch
from benchmarks.support.peers_match import Match, on_jax, on_numpy, on_torch
from benchmarks.support.peers_mx import mx_matches, torchao_mx_matches
from benchmarks.support.peers_newest import NEWEST, moved
from benchmarks.support.results import write_results
from benchmarks.support.timing import Call, by_turns, clock_for, keep_pages, machine, versions
from qcore import BinaryFloat, BlockFloatingPoint, FixedPoint, FloatingPoint

WIDTH = 144  # columns, which the table needs


class Row(NamedTuple):
    """One measurement; times are medians in nanoseconds an element, and the ratio is theirs to ours."""

    peer: str
    call: str
    framework: str
    number: str
    rounding: str
    theirs: float
    ours: float
    ratio: float


def torch_matches(x: np.ndarray) -> Iterator[Match]:
    tensor = torch.from_numpy(x)
    for name in ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"):
        options = {"overflow": "saturate"} if name.endswith("fn") else {}
        theirs = partial(_torch_cast, tensor, getattr(torch, name))
        yield on_torch(f".to({name}), and back", theirs, x, name.removeprefix("float8_"), **options)
    affine = partial(torch.fake_quantize_per_tensor_affine, tensor, 2.0**-4, 0, -128, 127)
    yield on_torch("fake_quantize_per_tensor_affine", affine, x, FixedPoint(8, 4))
    yield from mx_matches(x)


def _torch_cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).to(torch.float32)


def jax_matches(x: np.ndarray) -> Iterator[Match]:
    import jax

    for exp, man in ((5, 2), (8, 7)):
        theirs = partial(jax.lax.reduce_precision, exponent_bits=exp, mantissa_bits=man)
        yield on_jax("lax.reduce_precision", theirs, x, BinaryFloat(exp, man))
    for name in ("float8_e5m2", "float8_e4m3fn", "float4_e2m1fn"):
        yield on_jax(f".astype({name}), and back", partial(_cast, dtype=name), x, name.partition("_")[2])


def ml_dtypes_matches(x: np.ndarray) -> Iterator[Match]:
    ml_dtypes = import_module("ml_dtypes")
    for name in ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float6_e2m3fn", "float4_e2m1fn"):
        theirs = partial(_cast, x, getattr(ml_dtypes, name))
        yield on_numpy(f".astype({name}), and back", theirs, x, name.partition("_")[2] or name)


def _cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype).astype(np.float32)


def gfloat_matches(x: np.ndarray) -> Iterator[Match]:
    gfloat, formats = import_module("gfloat"), import_module("gfloat.formats")
    wide, modes, e5m2 = x.astype(np.float64), gfloat.RoundMode, formats.format_info_ocp_e5m2
    for rounding, mode in (("nearest", modes.TiesToEven), ("up", modes.TowardPositive)):
        yield on_numpy("round_ndarray", partial(gfloat.round_ndarray, e5m2, wide, mode), wide, "e5m2", rounding)
    p3109 = partial(gfloat.round_ndarray, formats.format_info_p3109(8, 4), wide)
    yield on_numpy("round_ndarray", p3109, wide, qcore.p3109(8, 4))
    if _installed("jax"):
        yield on_jax("round_ndarray", lambda x: gfloat.round_ndarray(e5m2, x), x, "e5m2")


def apytypes_matches(x: np.ndarray) -> Iterator[Match]:
    apytypes = import_module("apytypes")
    modes, wide = apytypes.QuantizationMode, x.astype(np.float64)
    fixed = apytypes.APyFixedArray.from_float(wide, int_bits=20, frac_bits=40)
    for rounding, mode in (("nearest", modes.TIES_EVEN), ("stochastic", modes.STOCH_WEIGHTED)):
        theirs = partial(fixed.cast, int_bits=4, frac_bits=4, quantization=mode, overflow=apytypes.OverflowMode.SAT)
        yield on_numpy("APyFixedArray.cast", theirs, x, FixedPoint(8, 4), rounding)
    floats = apytypes.APyFloatArray.from_float(wide, exp_bits=8, man_bits=23)
    for rounding, mode in (("nearest", modes.TIES_EVEN), ("stochastic", modes.STOCH_WEIGHTED)):
        theirs = partial(floats.cast, exp_bits=5, man_bits=2, quantization=mode)
        yield on_numpy("APyFloatArray.cast", theirs, x, BinaryFloat(5, 2), rounding)


def torchao_matches(x: np.ndarray) -> Iterator[Match]:
    kernels = import_module("torchao.prototype.mx_formats.kernels")
    tensor = torch.from_numpy(x)
    for name, short in (("e2m1fn", "f4"), ("e3m2fn", "f6_e3m2")):
        call, ours = f"f32_to_{short}_unpacked", partial(qtorch.encode, tensor, name)
        yield Match(call, "torch", f"{name}, codes", "nearest", partial(getattr(kernels, call), tensor), ours)
        codes: Any = ours()
        call = f"{short}_unpacked_to_f32"
        theirs, ours = partial(getattr(kernels, call), codes), partial(qtorch.decode, codes, name)
        yield Match(call, "torch", f"{name}, decoded", "-", theirs, ours)
    yield from torchao_mx_matches(x)
    stochastic = import_module("torchao.optim.quant_utils")._fp32_to_bf16_sr
    yield on_torch("optim's _fp32_to_bf16_sr", partial(stochastic, tensor), x, "bfloat16", "stochastic")


# QPyTorch's function, our number, our name for how it rounds to nearest, its arguments
_QPYTORCH = (
    ("float_quantize", FloatingPoint(5, 2), "nearest_away", {"exp": 5, "man": 2}),
    ("fixed_point_quantize", FixedPoint(8, 4), "nearest", {"wl": 8, "fl": 4}),
    ("block_quantize", BlockFloatingPoint(8), "nearest_up", {"wl": 8}),
)


def qpytorch_matches(x: np.ndarray) -> Iterator[Match]:
    tensor = torch.from_numpy(x)
    with peers_qpytorch.QPyTorch() as peer:
        ours = partial(torch.empty_like(tensor).copy_, tensor)
        yield Match("Tensor.copy_", "torch", "float32", "-", peer.call("copy_", x), ours)
        for call, number, nearest, arguments in _QPYTORCH:
            for theirs, ours in (("nearest", nearest), ("stochastic", "stochastic")):
                yield on_torch(call, peer.call(call, x, **arguments, rounding=theirs), x, number, ours)


def qtorch_plus_matches(x: np.ndarray) -> Iterator[Match]:
    quant, tensor = import_module("qtorch_plus.quant"), torch.from_numpy(x)
    for call, number, nearest, arguments in _QPYTORCH:
        for theirs, ours in (("nearest", nearest), ("stochastic", "stochastic")):
            yield on_torch(call, partial(getattr(quant, call), tensor, **arguments, rounding=theirs), x, number, ours)


def pychop_matches(x: np.ndarray) -> Iterator[Match]:
    chop, tensor = import_module("pychop").Chop, torch.from_numpy(x)
    for rounding, mode in (("nearest", 1), ("stochastic", 5)):
        rounds = chop(exp_bits=5, sig_bits=2, rmode=mode)
        yield on_torch("Chop", partial(rounds, tensor), x, BinaryFloat(5, 2), rounding)
        yield on_numpy("Chop", partial(rounds, x), x, BinaryFloat(5, 2), rounding)


def _installed(name: str) -> str | None:
    """The version of a distribution, or None where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


class Peer(NamedTuple):
    """What to compare with: its version, or None where it is not installed, and the calls."""

    version: Callable[[], str | None]
    matches: Callable[[np.ndarray], Iterator[Match]]


PEERS = {
    "torch": Peer(partial(_installed, "torch"), torch_matches),
    "jax": Peer(partial(_installed, "jax"), jax_matches),
    "ml_dtypes": Peer(partial(_installed, "ml_dtypes"), ml_dtypes_matches),
    "gfloat": Peer(partial(_installed, "gfloat"), gfloat_matches),
    "apytypes": Peer(partial(_installed, "apytypes"), apytypes_matches),
    "torchao": Peer(partial(_installed, "torchao"), torchao_matches),
    "QPyTorch": Peer(peers_qpytorch.version, qpytorch_matches),
    "qtorch-plus": Peer(partial(_installed, "qtorch-plus"), qtorch_plus_matches),  # its fork, with another range
    "pychop": Peer(partial(_installed, "pychop"), pychop_matches),
}


def measure(peer: str, x: np.ndarray, seconds: float, log: Console) -> Iterator[Row]:
    """All rows of a peer; each is also written to `log` when it is there."""
    for match in PEERS[peer].matches(x):
        timings = by_turns([match.theirs, match.ours], _clock, seconds)
        theirs, ours = (timing.median * 1e9 / x.size for timing in timings)
        log.print(f"{peer}: {', '.join(match[:4])}: {theirs:.3f} ns, ours {ours:.3f}", soft_wrap=True)
        yield Row(peer, *match[:4], theirs, ours, theirs / ours)


def _clock(call: Call, count: int) -> float:
    """The mean seconds of calls in a row, where they take place."""
    return call.seconds(count) if isinstance(call, peers_qpytorch.Remote) else clock_for("cpu")(call, count)


def peers_table(rows: list[Row], missing: list[str], exponent: int) -> Table:
    table = Table(box=SIMPLE, title=f"nanoseconds an element for 2^{exponent} numbers, medians")
    table.caption = f"not installed: {', '.join(missing) or 'none'}"
    for column in ("peer", "what it does", "framework", "number", "rounding"):
        table.add_column(column, no_wrap=True)
    for column in ("theirs", "ours", "theirs / ours"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row[:5], *(f"{value:.3f}" for value in row[5:]), style="red" if row.ratio < 1 else None)
    return table


def print_newest(peers: list[str], console: Console) -> int:
    """Prints what the newest versions of peers change, as they are tested; 1 if any test of theirs fails."""
    failures = 0
    for one in moved(peers):
        console.print(f"{one.peer}: pinned {one.pinned}, newest {one.newest}: {one.result}", soft_wrap=True)
        for name in one.failed:
            console.print(f"    moved: {name}", soft_wrap=True, markup=False)
        failures += len(one.failed)
    return int(failures > 0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time other packages' rounding beside ours.")
    parser.add_argument("--exponent", type=int, default=20, help="2^this numbers")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each row, five turns at least")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER", help="these peers")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    parser.add_argument(
        "--newest",
        nargs="*",
        choices=NEWEST,
        metavar="PEER",
        help="install the newest versions in folders of their own, and print which tests of tests/peers they move",
    )
    options = parser.parse_args(argv)
    console, log = (Console(stderr=stderr, highlight=False) for stderr in (False, True))
    console.width = max(console.width, WIDTH)
    if options.newest is not None:
        return print_newest(options.newest or list(NEWEST), console)
    found = {peer: PEERS[peer].version() for peer in options.only}
    missing = [peer for peer, version in found.items() if version is None]
    present = {peer: version for peer, version in found.items() if version is not None}
    facts = {"versions": versions() | present, "machine": machine("cpu")}
    for name, values in facts.items():
        console.print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in values.items()), soft_wrap=True)
    x = np.random.default_rng(options.exponent).standard_normal(1 << options.exponent, np.float32)
    rows = [row for peer in present for row in measure(peer, x, options.seconds, log)]
    console.print(peers_table(rows, missing, options.exponent))
    if options.json:
        report = facts | {"elements": x.size, "rows": [row._asdict() for row in rows], "not installed": missing}
        write_results(options.json, report)
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
