"""Low-precision training as optax transformations: QPyTorch's `OptimLP` in JAX's idiom, and states as codes.

Needs optax; `import qjax` does not import it; the first use of `qjax.optim` does.
"""

try:
    import optax  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("qjax.optim needs optax: pip install optax") from error

from qcore.lazy import public_names
from qjax.optim.adam import (
    Adam4bit,
    Adam8bit,
    AdamFp8,
    AdamW4bit,
    AdamW8bit,
    AdamWFp8,
    CodedAdamState,
    adam_4bit,
    adam_8bit,
    adam_fp8,
    adamw_4bit,
    adamw_8bit,
    adamw_fp8,
)
from qjax.optim.coded import CodedArray, CodedFloat8, CodedTransformation
from qjax.optim.flash import FlashAdamW, flash_adamw
from qjax.optim.low_precision import low_precision
from qjax.optim.orthogonal import Muon, Muon8bit, MuonState, muon, muon_8bit
from qjax.optim.state import LowPrecisionState, accumulators, apply_updates

__all__ = [
    "Adam4bit",
    "Adam8bit",
    "AdamFp8",
    "AdamW4bit",
    "AdamW8bit",
    "AdamWFp8",
    "CodedAdamState",
    "CodedArray",
    "CodedFloat8",
    "CodedTransformation",
    "FlashAdamW",
    "LowPrecisionState",
    "Muon",
    "Muon8bit",
    "MuonState",
    "accumulators",
    "adam_4bit",
    "adam_8bit",
    "adam_fp8",
    "adamw_4bit",
    "adamw_8bit",
    "adamw_fp8",
    "apply_updates",
    "flash_adamw",
    "low_precision",
    "muon",
    "muon_8bit",
]
__dir__ = public_names(__name__)
