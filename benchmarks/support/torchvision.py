"""torchvision where its operators are built for another torch, as PyPI's are beside torch for CPUs."""

import torch

OPERATORS = "nms", "qnms"  # of detection: its import describes them, and no classifier or decoder calls them


def describe_operators() -> None:
    """Makes torchvision importable, which transformers imports; nothing where it is, or is not installed."""
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        pass
    except RuntimeError:
        for name in OPERATORS:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
