"""QPyTorch's own kernels. They run in a process of their own, because its package has the name of ours.

Usage:
    pip install --target FOLDER --no-deps qtorch==0.3.0
    QPYTORCH=FOLDER python -m benchmarks.peers --only QPyTorch

Its kernels are compiled when it is first imported, for which it needs ninja and a C++ compiler.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module, metadata
from typing import Any

import numpy as np
import torch

from benchmarks.support.timing import ROOT, Call, clock_for

VARIABLE = "QPYTORCH"  # of the environment: the folder


def version() -> str | None:
    """The version of QPyTorch in the folder that the environment names, or None where there is none."""
    folder = os.environ.get(VARIABLE)
    found = metadata.distributions(name="qtorch", path=[folder] if folder else [])
    return next((distribution.version for distribution in found), None)


class QPyTorch:
    """The process: a context that ends it.

    Example:
        with QPyTorch() as peer:
            rounded = peer.call("block_quantize", x, wl=8, rounding="nearest")()
    """

    def __init__(self) -> None:
        # Its folder comes first; -P keeps the working folder, where our package may lie, from coming before it.
        path = os.pathsep.join([os.environ[VARIABLE], str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.support.peers_qpytorch", str(torch.get_num_threads())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )

    def __enter__(self) -> QPyTorch:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()

    def call(self, function: str, x: np.ndarray, **arguments: Any) -> Remote:
        """A call of `qtorch.quant`'s function on float32 numbers, or of `Tensor.copy_` from them."""
        return Remote(self, self.ask("prepare", function, x, arguments))

    def ask(self, *request: Any) -> Any:
        """What the process answers to a request, which is the name of a method of `_Server` and its arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(request, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)


class Remote:
    """A call in the process; its result comes back as an array."""

    def __init__(self, peer: QPyTorch, index: int) -> None:
        self._peer, self._index = peer, index

    def __call__(self) -> np.ndarray:
        return self._peer.ask("result", self._index)

    def seconds(self, count: int) -> float:
        """The mean of `count` calls in a row, by the process's own clock: without sending anything."""
        return self._peer.ask("seconds", self._index, count)


class _Server:
    def __init__(self, quant: Any) -> None:
        self._quant = quant
        self._calls: list[Call] = []

    def prepare(self, function: str, x: np.ndarray, arguments: dict[str, Any]) -> int:
        tensor = torch.from_numpy(x)
        called = torch.empty_like(tensor).copy_ if function == "copy_" else getattr(self._quant, function)
        self._calls.append(partial(called, tensor, **arguments))
        return len(self._calls) - 1

    def result(self, index: int) -> np.ndarray:
        result: Any = self._calls[index]()
        return result.numpy()

    def seconds(self, index: int, count: int) -> float:
        return clock_for("cpu")(self._calls[index], count)


def main() -> None:
    """Answers requests until the other side ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print goes elsewhere
    torch.set_num_threads(int(sys.argv[1]))
    server = _Server(import_module("qtorch.quant"))
    with suppress(EOFError):
        while True:
            name, *arguments = pickle.load(sys.stdin.buffer)
            pickle.dump(getattr(server, name)(*arguments), answers)
            answers.flush()


if __name__ == "__main__":
    main()
