"""Files that somebody changed: mutants of small valid files of each kind that is read, and what reading them does.

`python tests/support/mutants.py FIRST COUNT FOLDER` reads so many mutants of each kind, from a number on, in a process
with bounds of memory and of time for each. It prints a line for each that ends in another error than the readers name.
The file `last` of the folder has the kind and the number of the mutant that is read: of one that ends the process.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SECONDS, BYTES = 20, 3 << 30  # of a mutant; beside what the imports take
NUMBERS = (
    "0",
    "-1",
    "1",
    "3",
    "255",
    "2147483648",
    "2305843009213693952",
    "9" * 40,
    "1e400",
    "NaN",
    "null",
    '"x"',
    "[]",
)
WORDS = (b"\x00", b"\xff" * 8, b"\x7f", b"{", b"}", b"[", b'"', b"\xef\xbb\xbf", b"\x1b[2J", "é".encode())


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """The content after one to three changes."""
    for _ in range(rng.integers(1, 4)):
        content = CHANGES[rng.integers(len(CHANGES))](content, rng)
    return content


def _flipped(content: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(content)
    for place in rng.integers(0, max(len(data), 1), rng.integers(1, 5)):
        data[place : place + 1] = bytes([int(rng.integers(256))])
    return bytes(data)


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content) + 1)]


def _without(content: bytes, rng: np.random.Generator) -> bytes:
    begin = int(rng.integers(len(content) + 1))
    return content[:begin] + content[begin + int(rng.integers(1, 40)) :]


def _repeated(content: bytes, rng: np.random.Generator) -> bytes:
    begin = int(rng.integers(len(content) + 1))
    return content[: begin + int(rng.integers(1, 40))] + content[begin:]


def _with_a_word(content: bytes, rng: np.random.Generator) -> bytes:
    begin = int(rng.integers(len(content) + 1))
    return content[:begin] + WORDS[rng.integers(len(WORDS))] + content[begin:]


def _with_a_number(content: bytes, rng: np.random.Generator) -> bytes:
    """Another number in a text; the length before a header of safetensors follows."""
    places = list(re.finditer(rb"-?\d+(\.\d+)?", content[:20_000]))
    if not places:
        return content
    found, number = places[rng.integers(len(places))], NUMBERS[rng.integers(len(NUMBERS))].encode()
    changed = content[: found.start()] + number + content[found.end() :]
    if content[8:9] == b"{":
        length = int.from_bytes(content[:8], "little") + len(changed) - len(content)
        changed = max(length, 0).to_bytes(8, "little") + changed[8:]
    return changed


def _with_a_long_number(content: bytes, rng: np.random.Generator) -> bytes:
    """A 64-bit integer in place of eight bytes, as headers in binary have them."""
    begin = int(rng.integers(max(len(content) - 8, 1)))
    value = (0, 1, 2**31, 2**32, 2**40, 2**61, 2**63 - 1, 2**64 - 1)[rng.integers(8)]
    return content[:begin] + value.to_bytes(8, "little") + content[begin + 8 :]


CHANGES: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (
    _flipped,
    _cut,
    _without,
    _repeated,
    _with_a_word,
    _with_a_number,
    _with_a_number,
    _with_a_long_number,
)


def read_weights(path: Path) -> None:
    from qcore.exchange import Encoded, load_quantized

    for value in load_quantized(path).values():
        value.dequantize() if isinstance(value, Encoded) else np.asarray(value)


def read_checkpoint(path: Path) -> None:
    from qcore.affine import checkpoint

    checkpoint.load_file(path)


def read_record(path: Path) -> None:
    command("insight", str(path))


def check(path: Path) -> None:
    command("check", str(path))


def run_model(path: Path) -> None:
    from qcore.exchange import run_onnx

    run_onnx(
        path, {"x": np.linspace(-2, 2, 24, dtype=np.float32).reshape(1, 2, 3, 4)}, max_elements=2**20, max_steps=10**4
    )


def command(*arguments: str) -> None:
    """A command, which may end with 0, 1 or 2."""
    from qcore.__main__ import main

    try:
        main(list(arguments))
    except SystemExit as end:
        if end.code not in (0, 2):
            raise ValueError(f"exit {end.code}") from end


def seeds(folder: Path) -> dict[str, tuple[str, Callable[[Path], None], bytes]]:
    """By kind: the name of the file, its reader, and the content of a valid file."""
    found: dict[str, tuple[str, Callable[[Path], None], bytes]] = {}
    sys.path.insert(0, str(HERE))
    from weight_files import CASES, write

    for name, case in CASES.items():
        write(folder / "w.safetensors", case(np.random.default_rng(0))[0])
        found[name] = "w.safetensors", read_weights, (folder / "w.safetensors").read_bytes()
    from qcore.exchange import gguf

    tensors = {
        "w": gguf.Tensor("Q8_0", (2, 32), np.zeros(68, np.uint8)),
        "k": gguf.Tensor("Q4_K", (1, 256), np.ones(144, np.uint8)),
    }
    gguf.write(folder / "w.gguf", tensors, {"general.name": "x", "list": ["a", "b"], "numbers": np.arange(3)})
    found["GGUF"] = "w.gguf", read_weights, (folder / "w.gguf").read_bytes()
    found |= _checkpoints(folder) | _vectors(folder) | _models()
    (folder / "w.safetensors").unlink()
    return found


def _checkpoints(folder: Path) -> dict[str, Any]:
    from qcore.affine import UINT8, QArray, QParams, checkpoint
    from qcore.insight import Record, Site, statistics_of

    array = QArray(np.uint8([[1, 2, 3]]), QParams.of(0.1, 7), UINT8)
    entry = checkpoint.Quantized(array.values, array.qparams.scale, array.qparams.zero_point, None, UINT8)
    checkpoint.save_file(folder / "c.safetensors", {"q": entry, "x": np.ones(3, np.float32)})
    record = Record("model")
    record.add(0, Site("layer", "output"), statistics_of(np.float32([1, 2, 700, 1e-9]), "e4m3fn"))
    record.save(folder / "r.json")
    return {
        "checkpoint": ("c.safetensors", read_checkpoint, (folder / "c.safetensors").read_bytes()),
        "record": ("r.json", read_record, (folder / "r.json").read_bytes()),
    }


def _vectors(folder: Path) -> dict[str, Any]:
    found = {}
    for end in ("csv", "json", "mem"):
        path = folder / f"v.{end}"
        for name, arguments in {
            "format": ["vectors", "e2m1fn", "--rounding", "stochastic", "--count", "4"],
            "blocks": ["vectors", "mxfp4", "--rounding", "nearest", "--count", "4"],
            "sums": ["vectors", "hopper.wgmma.e4m3", "--terms", "4", "--count", "3"],
            "layer": ["layer", "ada.mma.e4m3", "--input", "2,4", "--weight", "2,4"],
        }.items():
            command(*arguments, "-o", str(path))
            found[f"{name} in {end}"] = path.name, check, path.read_bytes()
    return found


def _models() -> dict[str, Any]:
    from onnx import TensorProto, helper

    def model(nodes: list[Any], inits: list[Any]) -> bytes:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 3, 4])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b", "c", "d"])
        graph = helper.make_graph(nodes, "g", [x], [y], inits)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("qonnx.custom_op.general", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    def of(name: str, dtype: Any, dims: list[int], values: Any) -> Any:
        return helper.make_tensor(name, dtype, dims, values)

    floats, bytes_ = TensorProto.FLOAT, TensorProto.INT8
    scale, zero = of("s", floats, [], [0.1]), of("z", bytes_, [], [3])
    node = helper.make_node
    integers = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearConv", ["q", "s", "z", "w", "s", "z", "s", "z"], ["c"], pads=[1, 1, 1, 1], strides=[1, 2]),
        node("DequantizeLinear", ["c", "s", "z"], ["y"]),
    ]
    weight = of("w", bytes_, [2, 2, 3, 3], [*range(-18, 18)])
    quant = [node("Quant", ["x", "s", "m", "b"], ["y"], domain="qonnx.custom_op.general", signed=1, narrow=0)]
    shapes = [
        node("Reshape", ["x", "shape"], ["r"]),
        node("Resize", ["r", "", "sizes"], ["t"], mode="nearest"),
        node("MaxPool", ["t"], ["p"], kernel_shape=[2, 2]),
        node("Concat", ["p", "p"], ["y"], axis=1),
    ]
    shape, sizes = of("shape", TensorProto.INT64, [4], [1, 3, 2, -1]), of("sizes", floats, [4], [1, 1, 2, 2])
    contents = {
        "ONNX, integers": model(integers, [scale, zero, weight]),
        "ONNX, QONNX": model(quant, [scale, of("m", floats, [], [0]), of("b", floats, [], [4])]),
        "ONNX, shapes": model(shapes, [shape, sizes]),
    }
    return {name: ("m.onnx", run_model, content) for name, content in contents.items()}


def late(*_: object) -> None:
    raise TimeoutError


def main(first: int, count: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    with redirect_stdout(StringIO()):
        found = seeds(folder)
        for name, read, content in found.values():
            (folder / name).write_bytes(content)
            read(folder / name)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    signal.signal(signal.SIGALRM, late)
    for kind, number in product(found, range(first, first + count)):
        name, read, content = found[kind]
        (folder / "last").write_text(f"{kind} {number}", encoding="ascii")
        (folder / name).write_bytes(mutated(content, np.random.default_rng(number)))
        signal.alarm(SECONDS)
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                read(folder / name)
        except (ValueError, FileNotFoundError):
            pass
        except BaseException as error:
            print(json.dumps([kind, number, type(error).__name__, str(error)[:200]]), flush=True)
        signal.alarm(0)
    print("read", count * len(found), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
