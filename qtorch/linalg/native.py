"""Products that C computes: kernels of sums in chunks, and programs of several kernels in one call.

A product without scales and random words needs the same steps at each call: round the operands, multiply them.
`direct_product` looks them up once for its formats and shapes. If both operands have no gaps, `program` makes one call
of C from the steps; `qtorch.reproducible` puts further steps into such programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from qcore import Accumulator
from qcore.formats.text import parse
from qcore.linalg.accumulator import CANONICAL_NAN
from qcore.linalg.convolution import Axis, ConvolutionGeometry, Geometry, Places, convolution_places, geometry_of
from qcore.linalg.geometry import GRAD_B
from qcore.linalg.law import Sums, batch_shape
from qcore.linalg.product import Product
from qtorch._kernels import products
from qtorch._kernels.launch import addresses, aligned
from qtorch._rounding.paths.choice import round_tensor
from qtorch._rounding.plan import RoundingPlan, plan_for
from qtorch.linalg.namespace import Float64, run_sequential

Slots = list[Any]
_address_of = torch.Tensor.data_ptr
_ALIGNMENT = 64  # bytes, of a program's own arrays
BLOCK = 1 << 21  # numbers that have float64 copies at a time


class ProductSpec(NamedTuple):
    """One of a geometry's products, with the fields in the order of the operator `qtorch::product`.

    Attributes:
        other: the shape of the operand that is not given; see `qcore.linalg.geometry.MatrixGeometry.matrices`.
        shape: the shape of the result.
        geometry: the geometry as text.
        which: FORWARD, GRAD_A or GRAD_B.
        product: the `Product` as text.
    """

    other: tuple[int, ...]
    shape: tuple[int, ...]
    geometry: str
    which: str
    product: str


@lru_cache(maxsize=1024)
def product_of(text: str) -> Product:
    return parse(text, Product)


@lru_cache(maxsize=1024)
def sums_for(
    geometry: Geometry, which: str, product: Product, first: Any, second: Any, other: Any, adds: bool = False
) -> Sums:
    """The sums of a product of operands with these shapes; `adds` if accumulators start at an addend."""
    return product.sums(geometry, which, first, second, other, adds)


class NoKernelError(Exception):
    """There is no kernel for these arrays."""


class Array(NamedTuple):
    """An array of a program: its name, its shape, and its dtype by name."""

    name: str
    shape: Sequence[int]
    dtype: str


class Native(NamedTuple):
    """A step in C, of arrays by their names.

    Attributes:
        function: the address of the C function.
        sizes, numbers: its integers and floats, see `steps.c`.
        reads: the arrays that it reads; None for an array that it does without.
        makes: the arrays that it writes: each an `Array`, or an object with these attributes.
        kept: objects whose memory sizes or numbers point to; the step keeps them alive.
    """

    function: int
    sizes: np.ndarray
    numbers: np.ndarray
    reads: Sequence[str | None]
    makes: Sequence[Any]
    kept: Any = None


def program(steps: Sequence[Native], slots: Mapping[str, int]) -> Callable[[Slots], None]:
    """A function that runs steps in one call of C, on a list of tensors; results replace each None in the list.

    `slots` are the indices in the list of arrays that are tensors; the program has memory for other arrays. Without a
    compiler it raises NoKernelError.
    """
    function = products.steps()
    if function is None:
        raise NoKernelError
    # The table of the program is built once; a call writes nothing into it, so threads may share it.
    names = [name for one in steps for name in (*one.reads, *(made.name for made in one.makes)) if name is not None]
    given = list(dict.fromkeys(slots[name] for name in names if name in slots))
    all_made = [made for one in steps for made in one.makes]
    own = [made for made in all_made if made.name not in slots]
    fresh = [(slots[made.name], made.shape, getattr(torch, made.dtype)) for made in all_made if made.name in slots]
    # C finds an array by its number: first the tensors of the call, then the program's own arrays; -1 is no array.
    at: dict[Any, int] = {name: given.index(slots[name]) for name in names if name in slots}
    at |= {made.name: len(given) + index for index, made in enumerate(own)} | {None: -1}
    begins = np.cumsum(
        [0, *(-(-prod(one.shape) * np.dtype(one.dtype).itemsize // _ALIGNMENT) * _ALIGNMENT for one in own)]
    )
    most = max(len(one.reads) + len(one.makes) for one in steps)
    words = [len(given), len(own), begins[-1], len(steps), most, *begins[:-1]]
    for one in steps:
        arrays = [*one.reads, *(made.name for made in one.makes)]
        addresses = one.function, one.sizes.ctypes.data, one.numbers.ctypes.data
        words += [*addresses, len(arrays), *(at[name] for name in arrays)]
    table = np.array(words, np.int64)
    address = table.ctypes.data

    def run(tensors: Slots, kept: Any = (table, steps)) -> None:  # the table holds addresses of both
        for index, shape, dtype in fresh:
            if tensors[index] is None:
                tensors[index] = torch.empty(shape, dtype=dtype, device="cpu")
        function(address, *map(_address_of, map(tensors.__getitem__, given)))

    return run


def convolution_product(
    geometry: Any,
    which: str,
    first: torch.Tensor,
    second: torch.Tensor,
    other: Any,
    sums: Sums,
    key: torch.Tensor | None,
    addend: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """A convolution's product in float32, without a matrix of columns; None without a kernel for its sums."""
    if not (isinstance(geometry, ConvolutionGeometry) and _has_kernel(first, sums)):
        return None
    first, second = aligned(first.contiguous()), aligned(second.contiguous())
    windows = geometry.windows(Float64, which, first, second, other)
    places = convolution_places(geometry, which, tuple(first.shape), tuple(second.shape), windows)
    x = windows.x.contiguous()
    return _from_places(places, *((second, x) if which != GRAD_B else (first, x)), sums, key, addend)


def matrix_product(
    a: torch.Tensor, b: torch.Tensor, sums: Sums, key: torch.Tensor | None, addend: torch.Tensor | None = None
) -> torch.Tensor | None:
    """A product of matrices, or of batches of them, in float32; None without a kernel for its sums."""
    if not _has_kernel(a, sums):
        return None
    a, b = aligned(a), aligned(b)
    places, batch = _matrix_places(a.shape, a.stride(), b.shape, b.stride())
    # The kernel has one axis of batches, whose matrices may lie anywhere; the result gets the batch's shape back.
    result = _from_places(places, a, b, sums, key, addend)
    return None if result is None else result.reshape(*batch, *result.shape[1:])


@lru_cache(maxsize=1024)
def _matrix_places(
    shape_a: tuple[int, ...], strides_a: tuple[int, ...], shape_b: tuple[int, ...], strides_b: tuple[int, ...]
) -> tuple[Places, tuple[int, ...]]:
    """The places of the elements of batches of matrices, and the shape of the batches."""
    # Tensors without memory: only their shapes and strides are keys of the cache.
    a, b = (torch.empty_strided(*one, device="meta") for one in ((shape_a, strides_a), (shape_b, strides_b)))
    batch = batch_shape(a, b)
    of_a, of_b = (_batch_places(x.expand(*batch, *x.shape[-2:])) for x in (a, b))
    sizes = prod(batch), a.shape[-2], b.shape[-1], a.shape[-1]
    return Places(sizes, (of_a, of_b, a.stride(-2), a.stride(-1), b.stride(-2), b.stride(-1))), tuple(batch)


def _has_kernel(x: torch.Tensor, sums: Sums) -> bool:
    return x.is_cpu and has_chunk_kernel(sums)


def has_chunk_kernel(sums: Sums) -> bool:
    """True for chunks that are plain sums; a sequential accumulator that rounds has a kernel of its own."""
    accumulator = sums.accumulator
    return accumulator._plain and not (accumulator._sequential and accumulator._rounds)


def _from_places(
    places: Places,
    a: torch.Tensor,
    b: torch.Tensor,
    sums: Sums,
    key: torch.Tensor | None,
    addend: torch.Tensor | None,
) -> torch.Tensor | None:
    adds = addend is not None
    result = torch.empty(places.sizes[:3], dtype=torch.float32, device="cpu")
    if result.numel() == 0:
        return result
    function = products.chunked(_of_chunks(sums.accumulator, adds))
    if function is None:
        return None
    if addend is not None:
        result.copy_(addend.reshape(result.shape))
    sizes, axes = _arguments(places, sums.accumulator)
    function(*sizes, int(adds), *addresses(a, b, key, result), *axes)
    return result


def _of_chunks(accumulator: Accumulator, adds: bool = False) -> Accumulator | None:
    """The accumulator argument for `products.chunked`; None is one sum of all terms, to which an addend is added."""
    # A sequential sum that is not rounded is one sum as well, but only from +0 on: an addend is its first number.
    one_sum = accumulator._sequential and not accumulator._rounds and not adds
    return None if accumulator._converts or one_sum else accumulator


def _arguments(places: Places, accumulator: Accumulator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The arguments of a kernel of chunks: the sizes, and how to step along the axes of both operands."""
    axes = [(0, axis) if isinstance(axis, int) else (axis.ctypes.data, 0) for axis in places.axes]
    return (*places.sizes, accumulator.length(places.sizes[3])), tuple(chain(*axes))


def multiplication(
    operands: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], sums: Sums, names: Sequence[str], result: Array
) -> Native:
    """The step of a program that multiplies two matrices; both are views of operands without gaps.

    It raises NoKernelError if a matrix is not a view from an operand's first element on, or is empty, or there is no
    kernel for the sums.
    """
    # A step has the addresses of the operands only, so a matrix that is a copy, or begins elsewhere, cannot be used.
    views = [matrix.untyped_storage() is x.untyped_storage() for matrix, x in zip(matrices, operands, strict=True)]
    if not all(views) or any(matrix.storage_offset() for matrix in matrices) or prod(result.shape) == 0:
        raise NoKernelError
    function = products.chunked_step(_of_chunks(sums.accumulator))
    if function is None:
        raise NoKernelError
    a, b = matrices
    places, _ = _matrix_places(a.shape, a.stride(), b.shape, b.stride())
    sizes, axes = _arguments(places, sums.accumulator)
    return Native(function, np.array([*sizes, *axes], np.int64), np.zeros(0), names, [result], places)


def _batch_places(x: torch.Tensor) -> Axis:
    """The place of the first element of each matrix."""
    if x.dim() <= 3:
        return x.stride(0) if x.dim() == 3 else 0
    places = np.zeros((), np.int64)
    for size, stride in zip(x.shape[:-2], x.stride()[:-2], strict=True):
        places = np.add.outer(places, np.arange(size) * stride)
    return places.ravel()


class Direct(NamedTuple):
    """The steps of a product whose operands have no scales and read no random words.

    Attributes:
        geometry: the geometry.
        plans: the plans that round the operands; None for an operand that is not rounded.
        sums: the accumulator, and its faster sums.
        program: runs on [first, second, None] if both have no gaps, and puts the product in the third place; None if
            there is no program, and for convolutions.
        sequential: the kernel of a sequential accumulator that rounds; None for other accumulators.
    """

    geometry: Any
    plans: tuple[RoundingPlan | None, RoundingPlan | None]
    sums: Sums
    program: Callable[[Slots], None] | None
    sequential: Callable[..., object] | None = None


@lru_cache(maxsize=4096)
def direct_product(spec: ProductSpec, first: tuple[int, ...], second: tuple[int, ...]) -> Direct | None:
    """The steps of a product of operands with these shapes; None if it has scales or random words, or no kernel."""
    geometry, product = geometry_of(spec.geometry), product_of(spec.product)
    sums = sums_for(geometry, spec.which, product, first, second, spec.other)
    if product.stochastic or any(one.scale or one._as_matrix for one in product.operands):
        return None  # steps with keys or scales differ from call to call
    kernel = None
    if not has_chunk_kernel(sums):
        kernel = _sequential_kernel(geometry, sums, (first, second, spec.shape))
        if kernel is None:
            return None
    of_first, of_second = (
        None if one.number is None else plan_for(one.number, one.rounding, torch.float32, None, False)
        for one in product.operands
    )
    direct = Direct(geometry, (of_first, of_second), sums, None, kernel)
    try:
        steps = _steps(direct, spec, (first, second), ("first", "second"), Array("result", spec.shape, "float32"))
        return direct._replace(program=program(steps, {"first": 0, "second": 1, "result": 2}))
    except NoKernelError:
        return direct


def _sequential_kernel(
    geometry: Geometry, sums: Sums, shapes: Sequence[tuple[int, ...]]
) -> Callable[..., object] | None:
    """The kernel of sequential sums that round, for a product of matrices that is all in float64 at once; or None."""
    accumulator = sums.accumulator
    if isinstance(geometry, ConvolutionGeometry) or not (accumulator._sequential and accumulator._rounds):
        return None
    return products.sequential(accumulator, sums.narrow) if max(map(prod, shapes)) <= BLOCK else None


def product_steps(
    spec: ProductSpec, shapes: Sequence[tuple[int, ...]], names: Sequence[str], result: Any
) -> list[Native]:
    """The steps in C of a product of arrays without gaps; without a kernel they raise NoKernelError."""
    direct = direct_product(spec, *shapes)
    if direct is None:
        raise NoKernelError
    return _steps(direct, spec, shapes, names, result)


def _steps(direct: Direct, spec: ProductSpec, shapes: Sequence[Any], names: Sequence[str], result: Any) -> list[Native]:
    if isinstance(direct.geometry, ConvolutionGeometry) or direct.sequential is not None:
        raise NoKernelError
    steps, read = [], list(names)
    for index, (name, plan, shape) in enumerate(zip(names, direct.plans, shapes, strict=True)):
        if plan is not None:
            read[index] = f"{result.name} of {index}"
            steps.append(_rounding(plan, name, Array(read[index], shape, "float32")))
    operands = [torch.empty(shape, device="meta") for shape in shapes]
    matrices = direct.geometry.matrices(Float64, spec.which, operands[0], operands[1], spec.other)
    order = -1 if direct.geometry.is_swapped(spec.which) else 1  # the left matrix may be the second operand's
    return [*steps, multiplication(operands[::order], matrices, direct.sums, read[::order], result)]


def _rounding(plan: RoundingPlan, name: str, result: Array) -> Native:
    """The step that rounds an array without gaps to a result."""
    shape = torch.Size(result.shape)
    if shape.numel() == 0:
        raise NoKernelError
    sizes, layout = ((shape.numel(),), "flat") if plan.elementwise else plan.matrices[shape]
    found = None if sizes is None else plan.kernels.step(layout)
    if sizes is None or found is None:
        raise NoKernelError
    function, constants = found
    return Native(function, np.array([*sizes, constants], np.int64), np.zeros(0), [name], [result], plan)


def multiply_directly(
    direct: Direct, spec: ProductSpec, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor | None:
    """The product of plain tensors; None if there is no compiler."""
    if direct.program is not None and first.is_contiguous() and second.is_contiguous():
        slots: Slots = [first, second, None]
        direct.program(slots)
        return slots[2]
    geometry, (of_first, of_second), sums, _, sequential = direct
    # Step by step: a convolution, a sequential accumulator, or operands with gaps.
    x, y = first.detach(), second.detach()
    x = x if of_first is None else _rounded(geometry, of_first, spec.which, 0, x)
    y = y if of_second is None else _rounded(geometry, of_second, spec.which, 1, y)
    if isinstance(geometry, ConvolutionGeometry):
        return convolution_product(geometry, spec.which, x, y, spec.other, sums, None)
    left, right = geometry.matrices(Float64, spec.which, x, y, spec.other)
    if sequential is None:
        return matrix_product(left, right, sums, None)
    return one_nan(run_sequential(sequential, left, right, None).to(torch.float32))


def _rounded(geometry: Any, plan: RoundingPlan, which: str, index: int, x: torch.Tensor) -> torch.Tensor:
    """An operand rounded by its plan, in the layout of the geometry."""
    if not geometry.is_laid_out(plan.number):
        return round_tensor(x, plan, None, True)
    laid_out = round_tensor(geometry.laid_out(which, index, x), plan, None, True)
    return geometry.put_back(which, index, laid_out, tuple(x.shape[2:]))


def one_nan(x: torch.Tensor, pattern: int = CANONICAL_NAN) -> torch.Tensor:
    """x, in place, with one pattern of bits for all NaN: hardware differs in their sign and payload."""
    if pattern != CANONICAL_NAN:
        return x.copy_(torch.where(x == x, x.view(torch.int32), pattern).view(torch.float32))
    return torch.nan_to_num_(x, nan=torch.nan, posinf=torch.inf, neginf=-torch.inf)
