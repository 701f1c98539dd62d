"""A graph of ONNX under construction: inputs, constants, nodes and outputs; it ends as a checked model.

Values are names. The opset is the smallest, from 19 on, whose operators take the types and attributes that are used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from io import TextIOBase
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

from qcore.arguments import check_type, quoted
from qcore.files import is_regular, replaced, replaced_together
from qcore.version import __version__

Target = str | PathLike[str] | BinaryIO  # where a model is written: a path, or a file that is open for bytes
OPSETS = range(19, 26)
_IR_VERSIONS = {19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13}  # the oldest that knows an opset's types

_SMALL = 2**10  # elements of constants that shapes may depend on
_MOST = 2**31 - 2**24  # bytes of constants in the file of a model, which has nodes too
_PAGE = 2**12  # where runtimes map a file into memory


class Graph:
    """A graph to which nodes are added in the order of their computation.

    Args:
        name: the graph's name in the file.
        outer: the graph around this one, which is the body of a loop or a branch; constants and names are common.

    Attributes:
        inputs, outputs: the `onnx.ValueInfoProto` of each.
        constants: the arrays of all constants by name.
        nodes: the nodes, in the order of their computation.
        types: the dtypes of the values that are known, by name: "float32", "uint8", "bool", ...

    Raises:
        ImportError: if the package onnx is missing.

    Example:
        >>> graph = Graph("half")
        >>> x = graph.input("x", "float32", ("batch", 3))
        >>> half = graph.node("Mul", x, graph.constant(np.float32(0.5)), dtype="float32")
        >>> graph.output(half, "float32", ("batch", 3), name="y")
        >>> model = graph.model()
        >>> [node.op_type for node in model.graph.node], model.opset_import[0].version
        (['Mul', 'Identity'], 19)
    """

    def __init__(self, name: str, outer: Graph | None = None) -> None:
        self._onnx = onnx_package()
        self.name = name
        self.constants: dict[str, np.ndarray] = outer.constants if outer else {}
        self.types: dict[str, str] = outer.types if outer else {}
        self._same: dict[Any, str] = outer._same if outer else {}
        self._taken: set[str] = outer._taken if outer else set()
        self._bodies: list[Graph] = outer._bodies if outer else []
        if outer:
            self._bodies.append(self)
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def input(self, name: str, dtype: str, shape: Sequence[int | str | None]) -> str:
        """Adds an input of the graph; a size may be a name, or None if it is not known.

        Returns:
            The value's name.
        """
        self.inputs.append(self._info(name, dtype, shape))
        self._taken.add(name)
        self.types[name] = dtype
        return name

    def output(self, value: str, dtype: str, shape: Sequence[int | str | None], name: str | None = None) -> None:
        """Makes a value an output of the graph, under a name of its own if one is given."""
        if name is not None and name != value:
            value = self.node("Identity", value, dtype=dtype, name=name)
        self.outputs.append(self._info(value, dtype, shape))

    def constant(self, array: Any, name: str | None = None) -> str:
        """Adds a constant; types of 2 and 4 bits and of small floats are ml_dtypes' and are packed.

        Returns:
            The constant's name; that of an equal constant which is already there, unless a name is given.
        """
        array = np.asarray(array)
        key = array.dtype.name, array.shape, _digest(array)
        if name is None:
            if key in self._same:
                return self._same[key]
            name = self.new_name("constant")
        self._taken.add(name)
        self._same.setdefault(key, name)
        self.constants[name], self.types[name] = array, array.dtype.name
        return name

    def node(
        self,
        op: str,
        *inputs: str,
        outputs: int = 1,
        domain: str = "",
        dtype: str | None = None,
        name: str | None = None,
        **attributes: Any,
    ) -> Any:
        """Adds a node.

        Args:
            op: the operator.
            inputs: names of values; "" for an optional input that is absent.
            outputs: how many results the node has.
            domain: the operator's domain.
            dtype: the type of all results, if it is known.
            name: the name of the only result; None makes a new one.
            attributes: the node's attributes; None leaves one out.

        Returns:
            The name of the result, or a tuple of names if there are several.
        """
        names = [self.new_name(op)] if name is None else [name]
        names += [self.new_name(op) for _ in range(outputs - 1)]
        given = {key: value for key, value in attributes.items() if value is not None}
        made = self._onnx.helper.make_node(op, inputs, names, name=f"node_{names[0]}", domain=domain, **given)
        self.append(made)
        if dtype is not None:
            self.types.update(dict.fromkeys(names, dtype))
        return names[0] if outputs == 1 else tuple(names)

    def append(self, node: Any) -> None:
        """Adds a node of another model, whose names are not in use yet."""
        self.nodes.append(node)
        self._taken.update(node.output)

    def reserve(self, names: Any) -> None:
        """Takes names that no new value is to have."""
        self._taken.update(names)

    def new_name(self, stem: str) -> str:
        """A name that no value has."""
        name = self.free_name(f"{stem.lower()}_{len(self._taken)}")
        self._taken.add(name)
        return name

    def free_name(self, name: str) -> str:
        """The name itself, or with a number behind it if there is a value of this name."""
        number, free = 1, name
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        return free

    def proto(self, constants: Sequence[Any] = ()) -> Any:
        """The `onnx.GraphProto`, of the body of a loop or a branch without constants, which the outermost graph has."""
        return self._onnx.helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, constants)

    @property
    def _all_nodes(self) -> list[Any]:
        """The nodes of this graph and of all bodies of its loops and branches."""
        return [*self.nodes, *(node for body in self._bodies for node in body.nodes)]

    def model(self, least: int = OPSETS[0]) -> Any:
        """The finished `onnx.ModelProto`, without the constants that no node uses, and checked.

        Args:
            least: the smallest opset that may be used.

        Raises:
            ValueError: if no opset has all operators with these types, the checker refuses the model, or its constants
                have more bytes than a message of protobuf may have.
        """
        weights = self._weights()
        if (size := sum(one.nbytes for one in weights.values())) > _MOST:
            raise ValueError(
                f"the graph {self.name} has {size} bytes of constants; allowed are {_MOST}: to_onnx has more"
            )
        return self._made(least, [self._tensor(*one) for one in weights.items()])

    def save(self, file: Target, least: int = OPSETS[0]) -> None:
        """Writes the finished model, whole or not at all; see `model`.

        A file of protobuf has at most 2 GB. The constants of larger models lie beside it, in a file with its name and
        .data behind it.
        """
        weights = self._weights()
        if sum(one.nbytes for one in weights.values()) <= _MOST:
            save(self.model(least), file)
            return
        if not isinstance(file, (str, bytes, PathLike)):
            raise ValueError(f"file is a {type(file).__name__}; allowed for a model of more than 2 GB is a path")
        name = os.fspath(file)
        if not is_regular(name):
            raise ValueError(f"file is {quoted(name)}; allowed for a model of more than 2 GB is a file on a disk")
        path = os.path.realpath(name)
        with replaced_together([f"{path}.data", path]) as (data, fresh):
            with data.open("wb") as written:
                location = f"{os.path.basename(path)}.data"
                tensors = [self._outside(key, array, written, location) for key, array in weights.items()]
            self._onnx.save(self._made(least, tensors), fresh)

    def _weights(self) -> dict[str, np.ndarray]:
        """The constants that nodes use."""
        self._prune()
        used = {name for node in self._all_nodes for name in names_read(node)}
        used |= {one.name for graph in (self, *self._bodies) for one in graph.outputs}
        return {name: array for name, array in self.constants.items() if name in used}

    def _tensor(self, name: str, array: np.ndarray) -> Any:
        return self._onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)

    def _outside(self, name: str, array: np.ndarray, written: BinaryIO, location: str) -> Any:
        """A constant whose numbers are written to a file, unless shapes may depend on them."""
        tensor = self._tensor(name, array)
        if array.size > _SMALL:
            written.write(bytes(-written.tell() % _PAGE))
            place = written.tell()
            written.write(tensor.raw_data)
            self._onnx.external_data_helper.set_external_data(tensor, location, place, written.tell() - place)
            tensor.ClearField("raw_data")
        return tensor

    def _made(self, least: int, weights: Sequence[Any]) -> Any:
        """The checked model with these constants."""
        onnx, opset = self._onnx, self.opset(least)
        domains = {node.domain for node in self._all_nodes} - {""}
        made = onnx.helper.make_model(
            self.proto(weights),
            opset_imports=[onnx.helper.make_opsetid(domain, 1 if domain else opset) for domain in ["", *domains]],
            ir_version=_IR_VERSIONS[opset],
            producer_name="qbits",
            producer_version=__version__,
        )
        try:
            onnx.checker.check_model(without_weights(made), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise ValueError(f"the graph {self.name} is not a valid model: {error}") from error
        return made

    def _prune(self) -> None:
        """Removes the nodes without which all outputs are the same."""
        needed = {one.name for graph in (self, *self._bodies) for one in graph.outputs}
        needed.update(name for body in self._bodies for node in body.nodes for name in node.input)
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(names_read(node))
                kept.append(node)
        self.nodes = kept[::-1]

    def opset(self, least: int = OPSETS[0]) -> int:
        """The smallest opset that has all operators with the types and attributes used."""
        missing = ""
        for version in OPSETS[OPSETS.index(least) :]:
            refused = next((text for node in self._all_nodes if (text := self._refusal(node, version))), "")
            if not refused:
                return version
            missing = refused
        raise ValueError(f"no opset up to {OPSETS[-1]} has {missing}")

    def _refusal(self, node: Any, version: int) -> str:
        """Why an opset does not have this node; empty if it has."""
        if node.domain not in ("", "ai.onnx"):
            return ""
        try:
            schema = self._onnx.defs.get_schema(node.op_type, version, "")
        except self._onnx.defs.SchemaError:
            return f"the operator {node.op_type}"
        for attribute in node.attribute:
            if attribute.name not in schema.attributes:
                return f"the attribute {attribute.name} of {node.op_type}"
            if attribute.name in ("to", "output_dtype") and attribute.i:
                known = {text for one in schema.type_constraints for text in one.allowed_type_strs}
                if (text := _tensor(attribute.i)) not in known:
                    return f"{node.op_type} to {text}"
        for place, name in enumerate(node.input):
            if name not in self.types:
                continue
            formal = schema.inputs[min(place, len(schema.inputs) - 1)]
            text = _tensor(number_of(self.types[name]))
            if text not in formal.types:
                return f"{node.op_type} of {text}"
        return ""

    def _info(self, name: str, dtype: str, shape: Sequence[int | str | None]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, number_of(dtype), list(shape))


def _digest(array: np.ndarray) -> bytes:
    return sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


def without_weights(model: Any) -> Any:
    """A copy of a model whose large constants are inputs: checkers copy what they check, and take no 2 GB."""
    bare = type(model)()
    _copy(model, bare, "graph")
    _copy(model.graph, bare.graph, "initializer")
    declared = {one.name for one in model.graph.input}
    for one in model.graph.initializer:
        if np.prod(one.dims, dtype=float) <= _SMALL:
            bare.graph.initializer.append(one)
        elif one.name not in declared:
            info = onnx_package().helper.make_tensor_value_info(one.name, one.data_type, one.dims)
            bare.graph.input.append(info)
    return bare


def _copy(source: Any, target: Any, *without: str) -> None:
    """Fills a message with the fields of another one, but for some."""
    for field, value in source.ListFields():
        if field.name in without:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def check_target(file: Any) -> None:
    """Raises TypeError unless a model may be written to a file: by its path, or as it is open."""
    if not hasattr(file, "write") or isinstance(file, TextIOBase):
        allowed = "a str, an os.PathLike, or a file that is open for bytes, such as io.BytesIO"
        check_type("file", file, (str, bytes, PathLike), allowed)


def save(model: Any, file: Target) -> None:
    """Writes an `onnx.ModelProto`, whole or not at all."""
    if not isinstance(file, (str, bytes, PathLike)):
        file.write(model.SerializeToString())
        return
    with replaced(file) as fresh:
        onnx_package().save(model, fresh)


def onnx_package() -> Any:
    """The package onnx; without it, an error with the command that installs it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError("models in ONNX need the package onnx: pip install 'qbits[export]'") from error
    return onnx


def number_of(dtype: str) -> int:
    """ONNX's number of a dtype that NumPy or ml_dtypes names."""
    if dtype in ("bool", *np.sctypeDict):
        return onnx_package().helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    import ml_dtypes  # a requirement of onnx

    return onnx_package().helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, dtype)))


def dtype_of(number: int) -> str:
    """The name of ONNX's number of a dtype."""
    return onnx_package().helper.tensor_dtype_to_np_dtype(number).name


def _tensor(dtype: int) -> str:
    """The name of a type in ONNX's schemas: tensor(float) for TensorProto.FLOAT."""
    text = onnx_package().helper.tensor_dtype_to_string(dtype)
    return f"tensor({text.removeprefix('TensorProto.').lower()})"


def names_read(node: Any) -> Iterator[str]:
    """The names that a node reads, also those within its loops and branches."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from names_read(inner)
