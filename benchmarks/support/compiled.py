"""Programs that a user compiles with torch.compile: the bits of what Inductor makes of them beside qcore's.

A program rounds one array for each of several modes, forward and backward, between neighbours that keep all bits (a
negation before and after), and for some modes finite numbers between others, which Inductor fuses too. It encodes and
decodes, where the format has codes. So one compilation serves many modes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
import torch._dynamo  # before Inductor: torch imports the two in a circle
from torch._inductor import config

import qcore
import qtorch
from benchmarks.support.backends import KEY
from benchmarks.support.comparison import Case, Extent, Piece
from benchmarks.support.inputs import MODES, hard_inputs
from benchmarks.support.processes import processes, stopped_by_parent
from qcore import BlockFloatingPoint, parse
from qcore.formats.block import BlockNumber
from qcore.law.rounding import RoundingName
from qtorch._rounding.keys import key_tensor

# One format of each kind of law.
KINDS = (
    "e5m2 e4m3fn fixed(8,4) float(8,7) e4m3fnuz e8m0fnu posit16 posit(32,3) fixed(8,0,wrap=True) "
    "fixed(8,149,wrap=True) block(8,dim=0) block(8,dim=-1) scaled(e2m1fn,{0:4},rceil) scaled(e4m3fnuz,{1:8}) "
    "mxfp8_e4m3 scaled(e4m3fn,{-1:24}) nvfp4 block(22,dim=1)"
).split()
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LAYOUTS = ("contiguous", "transposed", "strided", "sizes that change")
COUNT = 24 * 32 * 32  # elements
_TOGETHER = 9  # programs of a process, about, before another takes its place
_SHAPE, _FILLED = (6, 8, 16, 32), (8, 32, 64)  # of elements, and of blocks that fill it, but for 24 along a row


class Program(NamedTuple):
    """What is compiled together.

    Attributes:
        format, dtype, layout: the format's text, the dtype's name, and a key of LAYOUTS.
        modes: of roundings.
        wide: of how many of the modes there are codes, and roundings of finite numbers between other neighbours.
    """

    format: str
    dtype: str
    layout: str
    modes: tuple[RoundingName, ...]
    wide: int = 2


def programs(extent: Extent) -> list[Program]:
    """All kinds, types and layouts with all modes; or pairs: each kind with each mode, type by type and layout."""
    if extent == "all":
        return [Program(*chosen, MODES, len(MODES)) for chosen in product(KINDS, DTYPES, LAYOUTS)]
    if extent == "quick":
        return [Program("e5m2", "float32", LAYOUTS[0], ("nearest", "toward_zero", "stochastic"))]
    found, others = [], list(DTYPES)[1:]
    for i, text in enumerate(KINDS):
        halves = MODES[i % 2 :: 2], MODES[1 - i % 2 :: 2]
        found.append(Program(text, "float32", LAYOUTS[i % 4], halves[0]))
        found.append(Program(text, others[i % 3], LAYOUTS[i // 3 % 4], halves[1]))
    return found


def compare_compiled(work: Sequence[Program], jobs: int) -> Iterator[list[Case]]:
    """For each program the cases of the reference and of "torch compiled", in so many processes."""
    if jobs == 1 or len(work) == 1:
        yield from map(compare, work)
        return
    for first in range(0, len(work), _TOGETHER * jobs):  # processes grow; Python 3.11's max_tasks_per_child can hang
        with processes(jobs, _start) as pool:
            with stopped_by_parent():
                found = pool.map(compare, work[first : first + _TOGETHER * jobs])
            yield from found


def _start() -> None:
    torch.set_num_threads(1)
    config.compile_threads = 1  # the other jobs have the other processors


def compare(program: Program) -> list[Case]:
    torch._dynamo.reset()
    number = parse(program.format)
    step = torch.compile(_steps(program), fullgraph=True, dynamic=True if program.layout == LAYOUTS[3] else None)
    cases = []
    for mode in program.modes:
        name = f"{mode}, {program.dtype}, {program.layout}"
        cases.append([Case(number.text, name, backend) for backend in ("numpy", "torch compiled")])
    for x in _inputs(number, DTYPES[program.dtype]):
        gradient, finite = x[..., ::-1].copy(), x.copy()
        finite[~(np.abs(x) < np.inf)] = 1  # NaN of all kinds too
        if program.layout == LAYOUTS[3]:
            _run(program, step, *(one[..., ::2].copy() for one in (x, gradient, finite)))
        begin = perf_counter()
        found = _run(program, step, x, gradient, finite)
        seconds = (perf_counter() - begin) / len(found)
        for mode, results, (reference, case) in zip(program.modes, found, cases, strict=True):
            begin = perf_counter()
            wide = mode in program.modes[: program.wide]
            expected = _expected(number, mode, x, gradient, finite, wide)
            taken = perf_counter() - begin
            for wanted, got in zip(expected, results, strict=True):
                piece = Piece(to_words(wanted))
                reference.add(piece, piece.x, piece.x, taken / len(expected))
                case.add(piece, piece.x, to_words(got), seconds / len(expected))
    return [case for pair in cases for case in pair]


def _inputs(number: Any, dtype: Any) -> list[np.ndarray]:
    """Hard inputs in arrays of one shape.

    Of blocks with several sizes those of 16 bits do not fill the arrays; others do, and every second row is finite.
    """
    arrays = hard_inputs(number, COUNT, dtype)
    if not isinstance(number, BlockNumber):
        return [one[: np.prod(_SHAPE)].reshape(_SHAPE) for one in arrays]
    if isinstance(number, BlockFloatingPoint) or np.dtype(dtype).itemsize == 2:
        return arrays[:2]
    filled = np.resize(arrays[0], _FILLED)
    filled[::2][~(np.abs(filled[::2]) < np.inf)] = 1
    return [filled]


def _steps(program: Program) -> Any:
    number, coded = parse(program.format), _has_codes(parse(program.format))
    quantizers = [qtorch.quantizer(number, number, mode, mode) for mode in program.modes]

    def step(xs: list[torch.Tensor], finite: torch.Tensor, key: torch.Tensor) -> list[list[torch.Tensor]]:
        results = []
        for x, mode, quantizer in zip(xs, program.modes, quantizers, strict=True):
            own = key if mode.startswith("stochastic") else None
            rounded = [-quantizer(-x, key=own)]
            wide = mode in program.modes[: program.wide]
            if wide:
                rounded.append(qtorch.quantize(finite.abs() * 1.5, number, mode, key=own) * 2)
            if wide and coded:
                codes: Any = qtorch.encode(-x.detach(), number, mode, key=own)
                rounded.append(codes)
                rounded.append(-qtorch.decode(codes, number, x.dtype))
            results.append(rounded)
        return results

    return step


def _has_codes(number: Any) -> bool:
    """True for single numbers with codes of up to 32 bits that a carrier of 16 bits holds."""
    if isinstance(number, BlockNumber):
        return False
    with suppress(ValueError):
        qcore.encode(np.ones(1, np.float16), number)
        qcore.decode(np.ones(1, np.int32), number, np.float16)
        qcore.decode(np.ones(1, np.int32), number, ml_dtypes.bfloat16)
        return True
    return False


def _run(program: Program, step: Any, *arrays: np.ndarray) -> list[list[np.ndarray]]:
    """For each mode: what a program returns, and the gradient."""
    x, gradient, finite = (_laid_out(to_tensor(one), program.layout) for one in arrays)
    xs = [x.clone().requires_grad_() for _ in program.modes]
    results = step(xs, finite, key_tensor(KEY))
    gradients = torch.autograd.grad([rounded[0] for rounded in results], xs, [gradient] * len(xs))
    pairs = zip(results, gradients, strict=True)
    return [[to_array(one.detach()) for one in (*rounded, own)] for rounded, own in pairs]


def _expected(
    number: Any, mode: RoundingName, x: np.ndarray, gradient: np.ndarray, finite: np.ndarray, wide: bool
) -> list[np.ndarray]:
    key = KEY if mode.startswith("stochastic") else None
    found = [-qcore.quantize(-x, number, mode, key=key)]
    if wide:
        near = to_array(to_tensor(finite).abs() * 1.5)  # torch's own arithmetic
        found.append(to_array(to_tensor(qcore.quantize(near, number, mode, key=key)) * 2))
    if wide and _has_codes(number):
        codes = qcore.encode(-x, number, mode, key=key)
        found += [codes, -qcore.decode(codes, number, x.dtype)]
    key = None if key is None else qcore.fold_in(KEY, 1)
    return [*found, -qcore.quantize(-gradient, number, mode, key=key)]


def _laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers, elsewhere in memory."""
    match layout:
        case "transposed":
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        case "strided":
            wide = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))
            wide[..., ::2] = x
            return wide[..., ::2]
    return x


def to_tensor(x: np.ndarray) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def to_array(x: torch.Tensor) -> np.ndarray:
    if x.dtype is torch.bfloat16:
        return x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.contiguous().numpy()


def to_words(x: np.ndarray) -> np.ndarray:
    """The bits of numbers or codes in words of 32 bits."""
    x = np.ascontiguousarray(x)
    return x.view(np.uint32) if x.itemsize >= 4 else x.view(f"u{x.itemsize}").astype(np.uint32)
