"""What the hashes of `benchmarks.same_training` depend on."""

from __future__ import annotations

from pathlib import Path

from benchmarks.support.timing import machine, versions
from benchmarks.training_models.data import data_hash
from benchmarks.training_models.record import Record


def open_record(path: Path) -> tuple[Record, str]:
    """The record of a file, with this machine's versions, and the commit of this repository."""
    found = versions()
    commit = found.pop("commit")
    kept = {name: value for name, value in machine("cpu").items() if name in ("system", "cpu", "cores", "vectors")}
    data = {"digits": data_hash("mlp"), "text": data_hash("gpt")}
    return Record(path, {"versions": found, "machine": kept, "data": data}), commit
