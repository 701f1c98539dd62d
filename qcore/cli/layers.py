"""Vectors for whole layers: operands as files of their own, and the bits of each step for every element of the result.

A layer is linear, or a convolution, whose sums are those of `qcore.linalg.convolution`: its terms lie in the order
(channel of the group, tap). Its tensors have torch's shapes. A file has one code in each row, in row-major order:

| file | holds |
| --- | --- |
| NAME.input, NAME.weight | the operands' codes |
| NAME.input_scale, NAME.weight_scale | the codes of their blocks' scales, for instructions with scaled operands |
| NAME.bias | float32, one for each output |
| NAME | a row for each element of the result, in row-major order: the columns of steps of `qcore.cli.sums`, then |
| | `result`, the sum in float32, `biased`, with the bias in float32, and `output`, the code in the result's format |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from qcore.arguments import check_choice, check_regular, quoted
from qcore.arrays import decode, encode
from qcore.cli.comparison import check_fields
from qcore.cli.properties import digits, why_no_codes
from qcore.cli.sum_inputs import ANY, KINDS, every_second, row_codes, scale_codes, shrink
from qcore.cli.sums import Operands, Results, Unit
from qcore.formats.block import BlockNumber
from qcore.formats.number import check_number
from qcore.law.rounding import MODES, Rounding
from qcore.linalg.convolution import ConvolutionGeometry, convolution_geometry, geometry_of
from qcore.linalg.geometry import FORWARD, MatrixGeometry, check_bias
from qcore.linalg.law import batch_shape
from qcore.linalg.namespace import Float64

BIASES = "added", "start", "none"
_WEIGHTS = "near", "cancellation", "random", "near"  # the kinds of the outputs' weights, in turn


@dataclass(frozen=True)
class Layer:
    """A layer in hardware.

    Attributes:
        accumulator, first, second, key: see `qcore.cli.sums.Unit`; the formats are the input's and the weight's.
        form: the text of the layer's geometry, see `qcore.linalg.geometry`.
        input, weight: the shapes.
        bias: "added" in float32 after the sum, as layers of this library do; "start": accumulators start at it; "none".
        result: the text of the format of the results; None is float32.
        rounding: the rounding to this format.
    """

    accumulator: str
    first: str | None
    second: str | None
    key: int | None
    form: str
    input: tuple[int, ...]
    weight: tuple[int, ...]
    bias: str = "added"
    result: str | None = None
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        check_choice("bias", self.bias, list(BIASES))
        if not self.is_convolution and len(self.weight) != 2:
            raise ValueError(f"weight has shape {self.weight}; allowed are (outputs, inputs)")
        if min(self.input + self.weight) < 1:
            raise ValueError(f"input has shape {self.input}, weight has shape {self.weight}; allowed are sizes >= 1")
        self._form.check(self.input, self.weight)
        if self.unit.product.block and self.is_convolution:
            raise ValueError(
                f"{self.accumulator} with a convolution; allowed is a linear layer, whose blocks lie along its inputs"
            )
        if self.result is not None:
            number = check_number(self.result, "result")
            if isinstance(number, BlockNumber) or why_no_codes(number):
                raise ValueError(
                    f"result={quoted(self.result)}; allowed are formats with codes, and without shared scales"
                )
        check_choice("rounding", self.rounding, list(MODES))
        if Rounding(self.rounding).stochastic:
            raise ValueError(f"rounding={quoted(self.rounding)}; allowed are modes of results that are not stochastic")

    @classmethod
    def of(cls, header: dict[str, Any]) -> Layer:
        """The layer of a header's fields."""
        text, optional, sizes = (str,), (str, type(None)), (list,)
        kinds = {"accumulator": text, "first": optional, "second": optional, "key": (int, type(None)), "form": text}
        kinds |= {"input": sizes, "weight": sizes, "bias": text, "result": optional, "rounding": text}
        found = check_fields(header, kinds)
        for name in ("input", "weight"):
            if not all(type(size) is int for size in found[name]):
                raise ValueError(f"{name} is {quoted(found[name])}; allowed are sizes")
            found[name] = tuple(found[name])
        return cls(**found)

    @property
    def _form(self) -> Any:
        try:
            found = geometry_of(self.form)
        except (ValueError, LookupError) as error:
            raise ValueError(f"form={quoted(self.form)}; allowed is what `vectors` wrote") from error
        return found

    @property
    def is_convolution(self) -> bool:
        """True for a convolution, False for a linear layer."""
        return isinstance(self._form, ConvolutionGeometry)

    @cached_property
    def unit(self) -> Unit:
        """The unit that adds the products of one element of the result."""
        terms = self._form.contraction(FORWARD, self.input, self.weight, self.weight).terms
        return Unit(self.accumulator, self.first, self.second, terms, self.key)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self._form.result(self.input, self.weight)

    @property
    def text(self) -> str:
        """The layer for people."""
        form = self.form
        if self.is_convolution:
            words = zip(("stride", "padding", "dilation", "groups"), form.split(" ")[1:], strict=True)
            form = f"convolution, {', '.join(f'{name} {value}' for name, value in words)}"
        return f"{form}, input {list(self.input)}, weight {list(self.weight)}, {self.accumulator}"

    @property
    def tensors(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """The files of tensors: by name, the bits of a code and the shape."""
        first, second = self.unit.numbers
        found = {"input": (first.bits, self.input), "weight": (second.bits, self.weight)}
        if self.unit.product.block:
            for name in ("input", "weight"):
                *rows, terms = found[name][1]
                found[f"{name}_scale"] = self.unit.scale.bits, (*rows, terms // self.unit.product.block)
        return found if self.bias == "none" else found | {"bias": (32, (self.weight[0],))}

    @property
    def outputs(self) -> dict[str, int]:
        """The hexadecimal digits of the columns that the law has."""
        found = self.unit.outputs
        found |= {"biased": 8} if self.bias == "added" else {}
        return found | ({"output": digits(check_number(self.result, "result").bits)} if self.result else {})

    def name(self, row: int) -> str:
        """The element of the result in a row."""
        return f"output{[int(place) for place in np.unravel_index(row, self.shape)]}"

    def run(self, given: Operands) -> Results:
        """The sums of all elements."""
        a, b = (decode(x, number) for x, number in zip((given.a, given.b), self.unit.numbers, strict=True))
        left, right = self._form.matrices(Float64, FORWARD, a, b, b.shape)
        swapped = self._form.is_swapped(FORWARD)
        numbers, scales = self.unit.numbers[::-1] if swapped else self.unit.numbers, None
        if given.scales is not None:
            of_a, of_b = map(self.unit.scale_numbers, given.scales)
            scales = of_a.reshape(-1, of_a.shape[-1]), of_b.mT
        addend = np.zeros(self.shape, np.float32)
        if self.bias == "start":
            addend += self._along_outputs(given.c)
        addend = addend.reshape(*batch_shape(left, right), left.shape[-2], right.shape[-1])
        sums = self.unit.product.sums(self._form, FORWARD, a.shape, b.shape, b.shape, True)
        return self.unit.add(left, right, scales, addend, sums, numbers)

    def columns(self, given: Operands) -> tuple[dict[str, np.ndarray], Results]:
        """The columns of `outputs` as integers, and what they are made of."""
        found = self.run(given)
        columns = self.unit.columns_of(found)
        result = found.result.reshape(self.shape)
        if self.bias == "added":
            with np.errstate(all="ignore"):
                result = result + self._along_outputs(given.c)
            result.view(np.uint32)[np.isnan(result)] = self.unit.product.accumulator.nan
            columns["biased"] = result.view(np.uint32).reshape(-1).astype(np.uint64)
        if self.result is not None:
            codes: Any = encode(result, self.result, Rounding(self.rounding))
            columns["output"] = codes.reshape(-1).astype(np.uint64)
        return columns, found

    def _along_outputs(self, bias: np.ndarray) -> np.ndarray:
        """The bias, which broadcasts against the result."""
        return bias.reshape(-1, *(1,) * (len(self.weight) - 2))

    def draw(self, seed: int) -> Operands:
        """Hard operands."""
        rng, unit, scales = np.random.default_rng(seed), self.unit, None
        with np.errstate(all="ignore"):
            outputs, terms = self.weight[0], prod(self.weight[1:])
            kinds = np.resize([KINDS.index(kind) for kind in _WEIGHTS], outputs)
            b = row_codes(unit.numbers[1], kinds, terms, rng, -1).reshape(self.weight)
            a = self._draw_input(b, rng)
            if unit.product.block:
                of_a, of_b = (self.tensors[f"{name}_scale"][1] for name in ("input", "weight"))
                scales = scale_codes(unit.scale, of_a, rng), scale_codes(unit.scale, of_b, rng)
            bias = None if self.bias == "none" else self._draw_bias(a, b, rng)
        return Operands(a, b, scales, bias)

    def _draw_input(self, weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Codes of the input: rows of all kinds, for a convolution by example and place along the first dimension."""
        (number, of_weight), batch, channels, first, rest = (
            self.unit.numbers,
            prod(self.input[:-1]),
            1,
            1,
            self.input[-1:],
        )
        if self.is_convolution:
            batch, channels, first, *rest = self.input
        kinds = (np.arange(batch)[:, None] + np.arange(first) * len(ANY) // first).reshape(-1) % len(ANY)
        codes = row_codes(number, kinds, channels * prod(rest), rng, 1)
        if not self.unit.product.block:
            rows = every_second(kinds)
            # Each sum is at most the row's largest number times the weights of one output.
            reach = np.abs(decode(weight, of_weight).astype(np.float64)).reshape(len(weight), -1).sum(1).max()
            bounds = np.abs(decode(codes[rows], number).astype(np.float64)).max(1) * reach
            shrink(codes, number, rows, bounds, self.unit.largest)
        return np.moveaxis(codes.reshape(batch, first, channels, *rest), 1, 2).reshape(self.input)

    def _draw_bias(self, a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Numbers as large as products and larger, zeros, and tiny ones."""
        outputs = self.weight[0]
        factors = [decode(x, number) for x, number in zip((a, b), self.unit.numbers, strict=True)]
        factors = [np.abs(x[np.isfinite(x) & (x != 0)]) for x in factors]
        typical = prod(float(np.median(x)) if x.size else 1.0 for x in factors)
        bias = typical * np.ldexp(rng.uniform(-2, 2, outputs), rng.integers(-8, 12, outputs))
        tiny = rng.integers(0, 1 << 23, outputs, np.uint32).view(np.float32)
        return np.where(np.arange(outputs) % 8 == 7, tiny, bias).astype(np.float32)

    def rounded(self, tensors: dict[str, np.ndarray]) -> Operands:
        """The operands that float32 tensors become: rounded as the instruction's operands are."""
        sides, scales = [], []
        for name, operand in zip(("input", "weight"), self.unit.product.operands, strict=True):
            x, number = tensors[name], operand.number
            if isinstance(number, BlockNumber):
                if getattr(number, "tensor_scale", None) is not None:
                    raise ValueError(f"{name} with {number.text}; allowed are formats without a scale of the tensor")
                codes, scale = encode(x, number, operand.rounding)
                scales.append(scale)
            else:
                codes = x.view(np.uint32) if number is None else encode(x, number, operand.rounding)
            sides.append(codes)
        bias = None
        if self.bias != "none":
            bias = tensors.get("bias", np.zeros(self.weight[:1], np.float32))
            check_bias(bias.shape, str(bias.dtype), self.weight[0])
        return Operands(*sides, tuple(scales) or None, bias)  # type: ignore[arg-type]


def form_text(dimensions: int, settings: dict[str, Any]) -> str:
    """The text of the form of a layer whose weight has this number of dimensions.

    `settings` are a convolution's stride, padding, dilation and groups; None is the usual value.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if dimensions <= 2:
        if given:
            raise ValueError(f"{next(iter(given))} with a linear layer; allowed is it with a convolution")
        return MatrixGeometry(transposed=True).text
    values = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1} | given
    sizes = (value[0] if isinstance(value, tuple) and len(value) == 1 else value for value in values.values())
    return convolution_geometry(dimensions - 2, *sizes).text


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays input, weight and bias of a file of NumPy's."""
    try:
        check_regular(path)
        with np.load(path) as file:
            _check_sizes(path, file.zip)
            found = {name: file[name] for name in ("input", "weight", "bias") if name in file}
    except (ValueError, TypeError, AttributeError, EOFError, BadZipFile) as error:
        raise ValueError(
            f"{path} is not what np.savez writes; allowed is a file with input, weight and bias"
        ) from error
    for name in ("input", "weight"):
        if name not in found:
            raise ValueError(f"{path} has no {name}; allowed are float32 arrays input, weight and bias")
    for name, x in found.items():
        if x.dtype != np.float32:
            raise ValueError(f"{path}: {name} has dtype {x.dtype}; allowed is float32")
    return found


def _check_sizes(path: Path, archive: ZipFile) -> None:
    """Raises if an array is larger than its bytes in the archive, before memory is taken for it."""
    for entry in archive.infolist():
        with archive.open(entry) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            if prod(shape) * dtype.itemsize != entry.file_size - file.tell():
                raise ValueError(f"{entry.filename} has {entry.file_size} bytes for the shape {shape}")
