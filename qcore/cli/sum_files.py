"""Files of vectors of sums and layers, and their comparison with the law.

`qcore.cli.sums` and `qcore.cli.layers` have the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np

from qcore.arguments import quoted
from qcore.arrays import decode
from qcore.cli.comparison import Vectors, first_line
from qcore.cli.faults import MOST_ROWS, likely, unseen
from qcore.cli.layers import Layer
from qcore.cli.layouts import Column, Rows, read_rows, rows_text
from qcore.cli.properties import digits, why_no_codes
from qcore.cli.sum_inputs import KINDS, draw
from qcore.cli.sums import Operands, Results, Unit, coverage, met
from qcore.files import is_regular, write_text, write_texts
from qcore.packing import storage
from qcore.version import __version__


def write(path: Path, unit: Unit, count: int, seed: int) -> str:
    """Writes the vectors of a unit; returns how many rows there are, and what they cover."""
    kinds, given = draw(unit, count, seed)
    results, found = unit.columns(given)
    inputs = dict(zip(unit.inputs, _inputs(unit, kinds, given), strict=True))
    sizes = unit.inputs | unit.outputs
    header = {**asdict(unit), "version": __version__, "kinds": list(KINDS), "columns": list(sizes)}
    write_text(path, rows_text(path, header, sizes, inputs | results))
    first = f"{path}: {count} rows ({unit.accumulator}, {unit.terms} terms)"
    return "\n".join([first, *coverage(unit, found), *_seen(unit, given, results["result"])])


def _seen(unit: Unit, given: Operands, right: np.ndarray) -> Iterator[str]:
    """How many faults the rows see, and which they do not."""
    count, words = unseen(unit, given, right)
    if count:
        yield f"{count - len(words)} of {count} faults of a unit change a result; not that it {', '.join(words) or '-'}"


def write_layer(path: Path, layer: Layer, given: Operands) -> str:
    """Writes the vectors of a layer, its tensors into files of their own; returns what they cover."""
    if not is_regular(path):
        raise ValueError(f"-o {path}; allowed is a file on a disk: the tensors lie beside it")
    results, found = layer.columns(given)
    names = {name: f"{path.stem}.{name}{path.suffix}" for name in layer.tensors}
    arrays = {"input": given.a, "weight": given.b}
    if given.scales is not None:
        arrays |= {"input_scale": given.scales[0], "weight_scale": given.scales[1]}
    if given.c is not None:
        arrays["bias"] = given.c.view(np.uint32)
    texts = dict[Path, str]()
    for name, (bits, shape) in layer.tensors.items():
        size = {"code": digits(bits)}
        header = {"tensor": name, "shape": list(shape), "version": __version__}
        texts[path.with_name(names[name])] = rows_text(path, header, size, {"code": arrays[name].reshape(-1)})
    header = {**asdict(layer), "version": __version__, "tensors": names, "columns": list(layer.outputs)}
    write_texts(texts | {path: rows_text(path, header, layer.outputs, results)})
    files = ", ".join(names.values())
    first = f"{path}: {prod(layer.shape)} rows, output of shape {list(layer.shape)} ({layer.text})"
    return "\n".join([first, f"operands: {files}", *coverage(layer.unit, found)])


def _inputs(unit: Unit, kinds: np.ndarray, given: Operands) -> Iterator[np.ndarray]:
    yield kinds
    for x in (given.a, given.b, *(given.scales or ())):
        yield from x.T
    if unit.addend:
        yield given.c.view(np.uint32)


@dataclass(frozen=True)
class SumVectors(Vectors):
    """The contents of a file of sums or of a layer; given are the operands.

    Attributes:
        law: the unit, or the layer, of its header.
        kinds: the kind of each row's inputs; None for layers.
    """

    law: Unit | Layer
    kinds: np.ndarray | None

    @cached_property
    def _results(self) -> tuple[dict[str, np.ndarray], Results]:
        return self.law.columns(self.given)

    @property
    def expected(self) -> dict[str, np.ndarray]:
        return self._results[0]

    @property
    def unit(self) -> Unit:
        """The unit that adds."""
        return self.law.unit if isinstance(self.law, Layer) else self.law

    @property
    def text(self) -> str:
        return self.law.text if isinstance(self.law, Layer) else f"{self.law.accumulator}, {self.law.terms} terms"

    @property
    def met(self) -> dict[str, np.ndarray]:
        """What the sums meet: True for each row, by name."""
        return met(self.unit, self._results[1])

    def numbers(self, name: str, bits: np.ndarray) -> np.ndarray | None:
        column, number = name.rstrip("0123456789"), self.unit.product.accumulator.number
        if column in ("result", "biased"):
            return bits.astype(np.uint32).view(np.float32)
        if column == "output":
            return decode(bits, self.law.result, np.float64)  # type: ignore[union-attr]
        if column == "sum" or (column == "total" and why_no_codes(number)):
            return bits.view(np.float64)
        return decode(bits, number, np.float64) if column == "total" else None

    def groups(self, differing: np.ndarray) -> Iterator[str]:
        """By kind of input and by what the sums meet; and the faults that would have the same results."""
        for index, kind in enumerate(() if self.kinds is None else KINDS):
            wrong, total = int((self.kinds[differing] == index).sum()), int((self.kinds == index).sum())  # type: ignore[index]
            if total:
                yield f"  {kind}: {wrong} of {total}"
        if len(differing):
            yield "  by what the inputs and the steps of a row meet, of which there may be several:"
            for name, where in self.met.items():
                if any(where):
                    yield f"    {name}: {where[differing].sum()} of {where.sum()}"
        result = self.found["result"]
        if len(differing) and isinstance(self.law, Unit) and result.present[:MOST_ROWS].all():
            yield from filter(None, [likely(self.law, self.given, result.values.astype(np.uint32))])

    def shown(self, row: int, first: bool) -> Iterator[str]:
        """A row's fields by step, the law's; beside a field that differs, what was found."""
        name = self.law.name(row) if isinstance(self.law, Layer) else KINDS[int(self.kinds[row])]  # type: ignore[index]
        yield f"line {self.lines[row]}, {name}:"
        groups: dict[str, list[str]] = {}
        for name, size in self.law.outputs.items():
            right, column = int(self.expected[name][row]), self.found[name]
            text = f"{name.rstrip('0123456789')} {right:0{size}x}"
            if column.present[row] and (row in column.undefined or int(column.values[row]) != right):
                text += f" (found {column.text(row, size)})"
            step = name.removeprefix(name.rstrip("0123456789"))
            groups.setdefault(f"step {step}: " if step else "", []).append(text)
        for step, texts in groups.items():
            yield f"  {step}{', '.join(texts)}"


def is_of(rows: Rows) -> bool:
    """True if a file has vectors of sums or of a layer."""
    return "accumulator" in rows.header


def read(rows: Rows) -> SumVectors:
    """The contents of a file of vectors of sums or of a layer."""
    header, version = rows.header, str(rows.header.get("version"))
    with first_line(rows):
        law = Layer.of(header) if "form" in header else Unit.of(header)
        _check_width(law, max(map(len, rows.fields)))
        inputs = {} if isinstance(law, Layer) else law.inputs
        if header.get("columns") != [*inputs, *law.outputs]:
            raise ValueError("columns are not those of the header's law; allowed is what `vectors` wrote")
        if isinstance(law, Layer) and header["rows"] != prod(law.shape):
            raise ValueError(f"rows={header['rows']}; allowed are {prod(law.shape)}, the elements of the result")
    columns = rows.columns(inputs | law.outputs, len(inputs))
    found = {name: columns[name] for name in law.outputs}
    if isinstance(law, Layer):
        return SumVectors(law, version, _tensors(rows, law), found, rows.lines, None)
    kinds = columns["kind"].values.astype(np.int64)
    if (kinds >= len(KINDS)).any():
        line = rows.line(int(np.argmax(kinds >= len(KINDS))))
        raise ValueError(f"{line}: kind is {kinds.max()}; allowed are 0 to {len(KINDS) - 1}")
    return SumVectors(law, version, _operands(law, columns), found, rows.lines, kinds)


def _check_width(law: Unit | Layer, fields: int) -> None:
    """Raises if the rows have too few fields for a law, before all columns of the law are named."""
    if isinstance(law, Unit) and law.terms > fields:
        raise ValueError(f"terms={law.terms}; allowed are at most {fields}, as many as a row has fields")
    steps = law.unit.steps if isinstance(law, Layer) else law.steps
    if steps > fields:
        raise ValueError(f"a sum has {steps} steps; allowed are at most {fields}, as many as a row has fields")


def _operands(unit: Unit, columns: dict[str, Column]) -> Operands:
    """The operands in the columns of a file."""

    def stacked(name: str, bits: int) -> np.ndarray:
        of = [column.values for text, column in columns.items() if text.rstrip("0123456789") == name]
        return np.stack(of, 1).astype(f"u{storage(bits) // 8}")

    a, b = (stacked(name, number.bits) for name, number in zip("ab", unit.numbers, strict=True))
    scales = None
    if unit.scale is not None:
        scales = stacked("scale_a", unit.scale.bits), stacked("scale_b", unit.scale.bits)
    c = columns["c"].values if unit.addend else np.zeros(len(a))
    return Operands(a, b, scales, c.astype(np.uint32).view(np.float32))


def _tensors(rows: Rows, layer: Layer) -> Operands:
    """The operands in the files that a header names, which lie beside it."""
    names, arrays = rows.header.get("tensors"), dict[str, np.ndarray]()
    if not isinstance(names, dict) or set(names) != set(layer.tensors):
        raise ValueError(f"{rows.path}, line 1: tensors is {quoted(names)}; allowed are {', '.join(layer.tensors)}")
    for name, (bits, shape) in layer.tensors.items():
        path = rows.path.with_name(Path(str(names[name])).name)
        if not path.exists():
            raise ValueError(f"{path} is missing, the {name} of {rows.path}; allowed are files side by side")
        found = read_rows(path)
        if found.header.get("tensor") != name or found.header.get("shape") != list(shape):
            raise ValueError(f"{path}, line 1: not the header of {name} of shape {list(shape)}, which {rows.path} has")
        if len(found.fields) != prod(shape):
            raise ValueError(f"{path}: {len(found.fields)} rows; allowed are {prod(shape)}")
        codes = found.columns({"code": digits(bits)}, 1)["code"].values
        arrays[name] = codes.astype(f"u{storage(bits) // 8}").reshape(shape)
    scales = (arrays["input_scale"], arrays["weight_scale"]) if "input_scale" in arrays else None
    bias = arrays["bias"].view(np.float32) if "bias" in arrays else None
    return Operands(arrays["input"], arrays["weight"], scales, bias)
