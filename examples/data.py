"""Images to train on: CIFAR10 if torchvision and its files are there, else scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

ROOT = "./data/CIFAR10"  # where torchvision puts the files, and where they are looked for
TEST_DIGITS = 500
_MEAN, _STD = (
    np.array(values, np.float32).reshape(3, 1, 1) for values in ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])
)


@dataclass(frozen=True)
class Data:
    """Images of ten classes.

    Attributes:
        name: as reports show it.
        images, labels: to train on, float32 of shape (images, 3, 32, 32) and int64 of shape (images,).
        test_images, test_labels: to test on.
        batch: how many images a step takes.
        augmented: whether training images are shifted and mirrored at random.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    batch: int
    augmented: bool

    @property
    def steps(self) -> int:
        """How many batches an epoch has."""
        return max(1, len(self.images) // self.batch)

    def batches(self, random: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
        """The training images in a new order; the last ones, which fill no batch, are left out."""
        order = random.permutation(len(self.images))
        batch = min(self.batch, len(order))
        found = []
        for i in range(0, len(order) - batch + 1, batch):
            chosen = order[i : i + batch]
            images = self.images[chosen]
            found.append((_augment(images, random) if self.augmented else images, self.labels[chosen]))
        return found

    def test_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        size = 250  # divides the numbers of test images, so that jitted functions meet one shape
        for i in range(0, len(self.test_images), size):
            yield self.test_images[i : i + size], self.test_labels[i : i + size]


def load(limit: int | None = None) -> Data:
    """Loads images.

    Args:
        limit: how many of the training images to use; None is all.

    Returns:
        CIFAR10 from `ROOT` if torchvision and the files are there, else digits.
    """
    try:
        data = _cifar10()
    except (ImportError, RuntimeError):  # torchvision says with a RuntimeError that there are no files
        data = _digits()
    return Data(**{**vars(data), "images": data.images[:limit], "labels": data.labels[:limit]})


def _cifar10() -> Data:
    from torchvision.datasets import CIFAR10  # type: ignore[import-not-found]

    parts = []
    for train in (True, False):
        part = CIFAR10(ROOT, train=train)
        images = part.data.transpose(0, 3, 1, 2).astype(np.float32) / 255
        parts += [(images - _MEAN) / _STD, np.array(part.targets, np.int64)]
    return Data("CIFAR10", *parts, batch=128, augmented=True)


def _digits() -> Data:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order].astype(np.float32) - 5) / 6  # values 0 to 16, mean 5, deviation 6
    images = np.tile(images.repeat(4, 1).repeat(4, 2)[:, None], (1, 3, 1, 1))
    labels = digits.target[order].astype(np.int64)
    train, test = slice(TEST_DIGITS, None), slice(TEST_DIGITS)
    return Data("digits", images[train], labels[train], images[test], labels[test], batch=64, augmented=False)


def _augment(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Each image shifted by up to four pixels, and mirrored or not."""
    padded = np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (32, 32), (2, 3))
    rows, columns = random.integers(0, 9, (2, len(images)))
    shifted = windows[np.arange(len(images)), :, rows, columns]
    mirrored = random.random(len(images)) < 0.5
    return np.where(mirrored[:, None, None, None], shifted[..., ::-1], shifted)
