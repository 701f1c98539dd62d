"""What computes the runs of `benchmarks.same_training`: frameworks, with and without compilers, threads, devices."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Program:
    """A way to train.

    Attributes:
        make: (model, arithmetic) -> a run, such as `benchmarks.training_models.torch_run.TorchRun`.
        threads: how many processors it may use; None is all.
        devices: how many devices JAX simulates.
        share: the part of all steps that it trains.
        networks: those that it has.
    """

    make: Callable[[str, str], Any]
    threads: int | None = None
    devices: int = 1
    share: float = 1.0
    networks: tuple[str, ...] = ("mlp", "gpt", "preresnet20")

    def environment(self) -> dict[str, str]:
        """The environment of a process for it."""
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={self.devices}"
        return os.environ | ({"XLA_FLAGS": flags} if self.devices > 1 else {})

    def prepare(self) -> None:
        """Leaves this process so many processors, before a framework starts its threads."""
        if self.threads is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.threads])


def _numpy(model: str, arithmetic: str) -> Any:
    from benchmarks.training_models.numpy_run import NumpyRun

    return NumpyRun(arithmetic)


def _torch(compiled: bool, threads: int) -> Callable[[str, str], Any]:
    def make(model: str, arithmetic: str) -> Any:
        import torch

        from benchmarks.training_models.torch_run import TorchRun

        torch.set_num_threads(threads)
        return TorchRun(model, arithmetic, compiled)

    return make


def _jax(jit: bool, devices: int = 1) -> Callable[[str, str], Any]:
    def make(model: str, arithmetic: str) -> Any:
        from benchmarks.training_models.jax_run import JaxRun

        return JaxRun(model, arithmetic, jit, devices)

    return make


PROGRAMS = {
    "numpy": Program(_numpy, networks=("mlp",)),
    "torch eager, 1 thread": Program(_torch(False, 1)),
    "torch eager, 2 threads": Program(_torch(False, 2)),
    "torch compiled, 1 thread": Program(_torch(True, 1)),
    "torch compiled, 2 threads": Program(_torch(True, 2)),
    "jax jit, 1 thread": Program(_jax(True), threads=1),
    "jax jit, 2 threads": Program(_jax(True), threads=2),
    "jax jit, 4 devices": Program(_jax(True, 4), devices=4),
    "jax eager": Program(_jax(False), share=0.1),
}
