"""What can be worked out once for a format, a rounding mode and a dtype."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from qcore import Number, Rounding
from qcore.arguments import check_rounding
from qcore.block import BlockNumber
from qcore.carrier import CARRIERS, Carrier
from qcore.codes import Codes
from qcore.named import check_number
from qcore.program import CODES, Program, kind_of, prepare
from qcore.tiles import Sizes
from qtorch import kernels
from qtorch.cache import constant, literal, remember
from qtorch.lanes import DTYPES, pair_dtype, result_dtype
from qtorch.vectors import quick_casts


class Plan:
    """A format under a rounding mode on a dtype, reduced to what the paths need.

    Attributes:
        number, program, constants: the format, what is traced, and the format's integers.
        spelling: in a compiled program that calls an operator, the format and its policy for overflow as a text, which
            means the same in every process, because such programs are kept on disk; else "".
        stochastic: whether there are random words.
        flat: whether a kernel may see the tensor as flat, since its shape does not matter (random words aside) and the
            result has no scales.
        layout: of the kernel for a flat tensor on the CPU.
        layout_on_gpu: the same there.
        dtype: of the result.
        memory: the dtype of what kernels on the CPU write.
        usual: what `runner` says of a flat tensor on the CPU whose results are numbers, once there is a kernel.
    """

    def __init__(
        self, number: Number, program: Program, constants: tuple[int, ...], dtype: torch.dtype, spelling: str = ""
    ) -> None:
        self.number = number
        self.program = program
        self.constants = constants
        self.spelling = spelling
        self.stochastic = program.mode is Rounding.STOCHASTIC
        self.flat = not isinstance(number, BlockNumber) or (number.whole and not program.codes)
        self.layout_on_gpu = "whole" if program.shared else "flat"
        self.layout = "pairs" if pair_dtype(program) else self.layout_on_gpu
        self.dtype = result_dtype(program, dtype)
        self.memory = torch.int16 if self.layout == "pairs" and program.codes else self.dtype
        self.usual: tuple[kernels.Kernel, torch.Tensor] | None = None
        self._runners: dict[Any, tuple[kernels.Kernel | None, torch.Tensor]] = {}

    def runner(self, layout: str, device: torch.device | None) -> tuple[kernels.Kernel | None, torch.Tensor]:
        """The kernel for a layout, if there is one, and this format's integers as its argument.

        Args:
            layout: a key of `kernels.LAYOUTS`.
            device: a GPU, or None for the CPU: devices take long to make and to hash.
        """
        place = layout if device is None else (layout, device)
        runner = self._runners.get(place)
        if runner is None:
            device = device or torch.device("cpu")
            constants = kernels.constant_tensor(self.program, self.constants, layout, device)
            kernel = kernels.load(self.program, layout, device)
            runner = self._runners[place] = kernel, constants
            if kernel is not None and place == self.layout and not self.program.codes:
                self.usual = kernel, constants
        return runner


def make_plan(number: Any, rounding: Any, dtype: torch.dtype, overflow: Any, coded: bool) -> Plan:
    """The plan for a user's arguments, or an error that names what is wrong with them."""
    number, mode = check_number(number), check_rounding(rounding)
    if dtype not in DTYPES:
        raise TypeError(f"x has dtype {dtype}; allowed are {', '.join(map(str, DTYPES))}")
    if torch.compiler.is_compiling():
        program, constants = _prepare(mode.value, DTYPES[dtype].name, overflow, coded, *_description(number))
        carrier, kind, codes, storage, element = program
        opaque = mode is Rounding.STOCHASTIC and not coded and not torch.compiler.is_exporting()
        spelling = _spelling(overflow, *_description(number)) if opaque else ""
        return Plan(number, Program(Carrier(*carrier), mode, kind, codes, storage, element), constants, dtype, spelling)
    return Plan(number, *prepare(number, mode, DTYPES[dtype], overflow, coded), dtype)


def _description(number: Number) -> tuple[Any, ...]:
    """A format as literals of a traced program: its class and fields, in place of a field that is a format its own."""
    fields = (getattr(number, name) for name in type(number).__match_args__)  # type: ignore[attr-defined]
    described = (_description(field) if isinstance(field, Number) else literal(field) for field in fields)
    return type(number), *described


def _described(make: type[Number], *fields: Any) -> Number:
    """The inverse of `_description`."""
    return make(*(_described(*field) if _describes(field) else field for field in fields))


def _describes(field: Any) -> bool:
    return isinstance(field, tuple) and bool(field) and isinstance(field[0], type)


@constant
def _prepare(
    mode: str, carrier: str, overflow: Any, coded: bool, *description: Any
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """A program's fields and the constants as literals of a traced program; see `literal`."""
    if not torch.compiler.is_exporting():
        quick_casts()
    program, constants = prepare(_described(*description), Rounding(mode), CARRIERS[carrier], overflow, coded)
    return (_fields(program.carrier), program.kind, program.codes, program.storage, program.element), tuple(constants)


@constant
def _spelling(overflow: Any, *description: Any) -> str:
    return pickle.dumps((_described(*description), overflow)).hex()


@constant
def _sizes(ndim: int, *description: Any) -> Sizes:
    return _described(*description).block_sizes(ndim)


def block_sizes(number: Number, ndim: int) -> Sizes:
    """`number.block_sizes(ndim)`, as literals where a program is traced."""
    return _sizes(ndim, *_description(number)) if torch.compiler.is_compiling() else number.block_sizes(ndim)


plan_for = remember(make_plan)


def decoder(number: Any, dtype: Any) -> tuple[Carrier, Codes]:
    """The carrier of a dtype, and a format's codes on it."""
    number = check_number(number)
    if dtype not in DTYPES:
        raise TypeError(f"dtype={dtype}; allowed are {', '.join(map(str, DTYPES))}")
    if not torch.compiler.is_compiling():
        number.check_exact(DTYPES[dtype])
        return DTYPES[dtype], number.codes(DTYPES[dtype])
    kind, carrier, codes = _decoder(DTYPES[dtype].name, *_description(number))
    return Carrier(*carrier), CODES[kind](*codes)


@constant
def _decoder(carrier: str, *description: Any) -> tuple[str, tuple[Any, ...], tuple[int, ...]]:
    number = _described(*description)
    number.check_exact(CARRIERS[carrier])
    codes = number.codes(CARRIERS[carrier])
    return kind_of(codes), _fields(CARRIERS[carrier]), tuple(codes)


def _fields(carrier: Carrier) -> tuple[Any, ...]:
    return tuple(getattr(carrier, name) for name in Carrier.__match_args__)
