"""The peak of a process's memory, or of a GPU's."""

from __future__ import annotations

import sys
from pathlib import Path


def reset_peak(device: str) -> tuple[str, int]:
    """Starts measuring the peak of memory: by which means, and the bytes in use now."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return "torch.cuda", torch.cuda.memory_allocated()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return "getrusage", peak_of("getrusage")  # which cannot be reset: what it hides is below the earlier peak
    return "VmHWM", peak_of("VmHWM")


def peak_of(source: str) -> int:
    """The bytes of the peak since then, by the means that `reset_peak` returned."""
    if source == "torch.cuda":
        import torch

        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    if source == "getrusage":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    (line,) = (
        line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) * 1024
