"""torchvision is imported where its operators are built for another torch, as PyPI's are beside torch for CPUs."""

import pytest
import torch

OPERATORS = "nms", "qnms"  # of detection: its import describes them, and no classifier calls them


@pytest.fixture(autouse=True, scope="session")
def torchvision():
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass  # tests that need it are skipped
    except RuntimeError:
        for name in OPERATORS:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
