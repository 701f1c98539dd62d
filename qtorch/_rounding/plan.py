"""Plans: the program, constants and kernels that follow from a format, a rounding mode and a dtype; computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qcore import Number, Rounding, law
from qcore.arguments import quoted
from qcore.formats.block import BlockNumber
from qcore.formats.number import check_number, prepare
from qcore.formats.table import Table
from qcore.formats.text import parse
from qcore.law.carrier import CARRIERS, Carrier
from qcore.law.program import Constants, Decoding, Program, flat
from qcore.law.rounding import check_rounding
from qcore.law.tiles import Matrix, Sizes, as_matrix
from qtorch import _kernels
from qtorch._rounding.cache import cached, literal
from qtorch._rounding.paths.operations import DTYPES, lane_dtype, result_dtype
from qtorch._torch_internals import constant_result

if TYPE_CHECKING:
    from qtorch._kernels.store import Function

_MOST_SHAPES = 1024  # that a plan keeps


class _Kernels(dict[str, "tuple[Function, int] | None"]):
    """The CPU's kernels of a law by layout (a key of `laws.LAYOUTS`), with the address of their constants, or None."""

    def __init__(self, number: Number, program: Program, constants: Constants, overflow: Any) -> None:
        self.number, self.law, self.overflow = number, (program, constants), overflow

    @cached_property
    def compiled(self) -> tuple[Program, torch.Tensor]:
        """The program that is compiled, in the narrowest lanes that suffice, and its constants."""
        program, constants = self.law
        if program.narrows:
            carrier = program.carrier.narrow
            program, constants = prepare(self.number, program.mode, carrier, self.overflow, bool(program.codes))
        return program, torch.tensor(flat(constants), dtype=lane_dtype(program.carrier), device="cpu")

    def step(self, layout: str) -> tuple[int, int] | None:
        """The kernel as a step of a program: the addresses of the function and the constants, or None."""
        program, constants = self.compiled
        function = _kernels.laws.rounding_step(program, layout)
        return None if function is None else (function, constants.data_ptr())

    def __missing__(self, layout: str) -> tuple[Function, int] | None:
        program, constants = self.compiled
        function = _kernels.laws.rounding(program, layout)
        self[layout] = None if function is None else (function, constants.data_ptr())
        return self[layout]


class _Matrices(dict[torch.Size, "tuple[Matrix | None, str]"]):
    """See `RoundingPlan.matrices`. A cache for all formats would hash the format in each call, which takes too long."""

    def __init__(self, number: Number) -> None:
        self.number = number

    def __missing__(self, shape: torch.Size) -> tuple[Matrix | None, str]:
        matrix = as_matrix(tuple(shape), self._sizes(shape))
        if getattr(self.number, "four_over_six", None) and not _is_in_rows(matrix):
            matrix = None  # kernels know whole blocks in a row only
        if len(self) >= _MOST_SHAPES:  # a program with endless new shapes must not fill the memory
            self.clear()
        self[shape] = (None, "") if matrix is None else (matrix, _kernels.laws.layout_of(matrix))
        return self[shape]

    def _sizes(self, shape: torch.Size) -> Sizes:
        """The sizes of blocks; with sub-blocks only if these are whole, since kernels know no others."""
        together = getattr(self.number, "together", 0)
        if together and shape[-1] % together == 0 and shape[-1] < 2**31:
            return tuple(size[0] if isinstance(size, tuple) else size for size in self.number.tile_sizes(len(shape)))
        return self.number.tile_sizes(len(shape))


def _is_in_rows(matrix: Matrix | None) -> bool:
    """True if memory has the elements of each block side by side, one block after the other."""
    return matrix is not None and matrix.block_rows == 1 and matrix.columns % matrix.block_columns == 0


class RoundingPlan:
    """A format under a rounding mode on a dtype, reduced to the program and the constants that the paths run.

    Attributes:
        number: the format.
        program: the law's program for formats of this kind.
        constants: the format's integers, which the program reads.
        dtype: the dtype of the result.
        overflow: the policy for overflow; None is the format's own.
        text: the format, the mode, the policy for overflow and the law's hash as text, where a program for
            `torch.compile` is traced; else empty. Such programs are kept on disk, and a text means the same in every
            process.
        stochastic: true if rounding reads random words.
        elementwise: true if no element's result depends on other elements.
        kernels: the kernels of the CPU by layout, compiled or loaded at the first use.
        matrices: from a shape to its blocks as tiles of a matrix, or None, and the layout of the kernel.
    """

    def __init__(
        self,
        number: Number,
        program: Program,
        constants: Constants,
        dtype: torch.dtype,
        overflow: Any,
        text: tuple[str, ...] = (),
    ) -> None:
        self.number = number
        self.program = program
        self.constants = constants
        self.dtype = result_dtype(program, dtype)
        self.overflow = overflow
        self.text = text
        self.stochastic = program.mode.stochastic
        self.elementwise = not isinstance(number, BlockNumber)
        self.kernels = _Kernels(number, program, constants, overflow)
        self.matrices = _Matrices(number)

    def calls_operator(self, x: torch.Tensor) -> bool:
        """True if a traced program calls an operator; otherwise the law becomes a part of it.

        On GPUs it does where Inductor makes a loop of the operator, see `qtorch._rounding.paths.inductor`.
        """
        numbers = self.elementwise and not self.program.codes and x.dtype in (torch.float32, torch.float64)
        return bool(self.text) and (self.stochastic or x.is_cpu or (x.is_cuda and numbers))


def make_plan(number: Any, rounding: Any, dtype: torch.dtype, overflow: Any, coded: bool) -> RoundingPlan:
    """The plan for a user's arguments, or an error that names what is wrong with them."""
    number, mode = check_number(number), check_rounding(rounding)
    carrier = check_dtype(dtype, "x")
    # The second half of this function does the same with numbers and texts alone, see `_description`.
    if not torch.compiler.is_dynamo_compiling():
        return RoundingPlan(number, *prepare(number, mode, carrier, overflow, coded), dtype, overflow)
    name = text_of(number)
    fields, constants, law = _prepare(name, mode.value, carrier.name, overflow, coded)
    program = Program(Carrier(*fields[0]), mode, *fields[1:])
    # An exported program may run where qtorch's operators are not, so it contains the law itself.
    text = () if torch.compiler.is_exporting() else (name, mode.value, overflow or "", law)
    return RoundingPlan(number, program, constants, dtype, overflow, text)


plan_for = cached(make_plan)
known_plan: Callable[..., RoundingPlan] = plan_for.known  # type: ignore[attr-defined]


def check_dtype(dtype: Any, argument: str) -> Carrier:
    """The carrier of a dtype, or a TypeError that names the argument."""
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise TypeError(f"{argument} has dtype {quoted(dtype)}; allowed are {', '.join(map(str, DTYPES))}")
    return DTYPES[dtype]


def text_of(number: Number) -> str:
    """`number.text`, as a literal where a program is traced."""
    return _text(*_description(number)) if torch.compiler.is_dynamo_compiling() else number.text


def block_sizes(number: Number, ndim: int) -> Sizes:
    """`number.block_sizes(ndim)`, as literals where a program is traced."""
    return _sizes(text_of(number), ndim) if torch.compiler.is_dynamo_compiling() else number.block_sizes(ndim)


def tile_sizes(number: Number, ndim: int) -> Sizes:
    """`number.tile_sizes(ndim)`, as literals where a program is traced."""
    traced = torch.compiler.is_dynamo_compiling()
    return _tile_sizes(text_of(number), ndim) if traced else number.tile_sizes(ndim)


def decoder(number: Number, dtype: Any) -> tuple[Decoding, tuple[int, ...]]:
    """The program that decodes a format's codes to a dtype, and the format's constants."""
    carrier = check_dtype(dtype, "the result")
    if not torch.compiler.is_dynamo_compiling():
        return number.decoding(carrier)
    fields, constants, _ = _decoding(text_of(number), carrier.name)
    return Decoding(Carrier(*fields[0]), *fields[1:]), constants


@cached
def decoder_for(number: Number, dtype: torch.dtype) -> tuple[Decoding, torch.Tensor]:
    """`decoder` for plain tensors on the CPU, with the constants as a tensor."""
    decoding, constants = decoder(number, dtype)
    return decoding, torch.tensor(flat(constants), dtype=lane_dtype(decoding.carrier), device="cpu")


# A traced program holds numbers and texts, not formats. The functions marked `constant` run as ordinary Python while
# Dynamo traces, and their results become constants of the program. Their arguments and results must be literals:
#
#     a format -> class and fields (traced) -> its text -> the fields of a program, and constants (all three constant)
#
# Passing the format itself is not enough: with dynamic shapes Dynamo makes symbols of its integers, which `literal`
# undoes. Returning a `Program` is not enough either: Dynamo cannot read the attributes of one that it did not make.


def _description(number: Number) -> tuple[Any, ...]:
    """A format's class and fields; a field that is a format is described in the same way.

    Dynamo would guard each number of a table, so a table is the function that reads its numbers' text, and that text.
    """
    if isinstance(number, Table):
        return parse, literal(number.numbers_text)
    fields = (getattr(number, name) for name in type(number).__match_args__)  # type: ignore[attr-defined]
    described = (_description(field) if isinstance(field, Number) else literal(field) for field in fields)
    return type(number), *described


@constant_result
def _text(*description: Any) -> str:
    """The text of a described format."""
    return _made(*description).text


def _made(make: Callable[..., Number], *fields: Any) -> Number:
    """The format of a description."""
    return make(*(_made(*x) if isinstance(x, tuple) and x and callable(x[0]) else x for x in fields))


@constant_result
def _prepare(text: str, mode: str, carrier: str, overflow: Any, coded: bool) -> tuple[tuple[Any, ...], Constants, str]:
    """The fields of a format's `Program`, its constants, and `digest_of_law`."""
    program, constants = prepare(check_number(text), Rounding(mode), CARRIERS[carrier], overflow, coded)
    own, _, *others = _fields(program)  # a traced program cannot hold a mode either
    fields, constants = (own, *others), tuple(constants)
    return fields, constants, digest_of_law(fields, constants)


@constant_result
def _decoding(text: str, carrier: str) -> tuple[tuple[Any, ...], tuple[int, ...], str]:
    """The fields of a format's `Decoding`, its constants, and `digest_of_law`."""
    decoding, constants = check_number(text).decoding(CARRIERS[carrier])
    fields, constants = _fields(decoding), tuple(constants)
    return fields, constants, digest_of_law(fields, constants)


@constant_result
def _sizes(text: str, ndim: int) -> Sizes:
    """The block sizes of a format."""
    return check_number(text).block_sizes(ndim)


@constant_result
def _tile_sizes(text: str, ndim: int) -> Sizes:
    """The sizes of blocks and their sub-blocks of a format."""
    return check_number(text).tile_sizes(ndim)


def _fields(part: Program | Decoding | Carrier) -> tuple[Any, ...]:
    """The arguments that make a part; those of a carrier are a tuple of their own."""
    values = (getattr(part, name) for name in type(part).__match_args__)
    return tuple(_fields(one) if isinstance(one, Carrier) else one for one in values)


def digest_of_law(*integers: Any) -> str:
    """A hash of the law's source, and of a format's integers: a user's own class may change, and keep its text.

    Inductor keeps programs on disk, and a changed law must not find old ones.
    """
    return hashlib.sha256(_files() + repr(integers).encode()).hexdigest()[:16]


@cache
def _files() -> bytes:
    return b"".join(path.read_bytes() for path in files_of_law())


def files_of_law() -> list[Path]:
    """The files that decide what Inductor's loops compute."""
    core = Path(law.__file__).parents[1]
    files = [path for room in ("law", "formats") for path in (core / room).rglob("*.py")]
    return sorted([*files, Path(__file__).parent / "paths" / "inductor.py"])


def law_of_decoding(number: Number, dtype: Any) -> str:
    """`digest_of_law` of a decoding, as a literal where a program is traced."""
    return _decoding(text_of(number), check_dtype(dtype, "the result").name)[2]
