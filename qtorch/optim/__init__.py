"""Optimizers whose weights, gradients, momenta and accumulators have low precision, or whose states are codes."""

from qcore.lazy import public_names
from qtorch.optim.adam import Adam4bit, Adam8bit, AdamFp8, AdamW4bit, AdamW8bit, AdamWFp8
from qtorch.optim.flash import FlashAdamW
from qtorch.optim.low_precision import OptimLP
from qtorch.optim.muon import Muon, Muon8bit

__all__ = [
    "Adam4bit",
    "Adam8bit",
    "AdamFp8",
    "AdamW4bit",
    "AdamW8bit",
    "AdamWFp8",
    "FlashAdamW",
    "Muon",
    "Muon8bit",
    "OptimLP",
]
__dir__ = public_names(__name__)
