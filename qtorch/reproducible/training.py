"""What models need besides arithmetic, as functions of tensors."""

from __future__ import annotations

from typing import Any

import torch

from qcore.numerics.differentiable import Differentiable
from qcore.numerics.training.dropout import DROPOUT
from qcore.numerics.training.embedding import EMBEDDING
from qcore.numerics.training.parts import CHUNK, NARROW, SETTLE
from qcore.numerics.training.pooling import AVG_POOL, MAX_POOL
from qcore.numerics.training.products import MASKED, ProductFunctions
from qtorch import linalg
from qtorch._rounding.keys import key_tensor
from qtorch.reproducible.call import Tensors, differentiable

_FUNCTIONS = {law.name: differentiable(law) for law in (CHUNK, MASKED, NARROW, SETTLE)}
_FUNCTIONS |= {law.name: differentiable(law, fused=False) for law in (AVG_POOL, DROPOUT, EMBEDDING, MAX_POOL)}


class TrainingTensors(Tensors, ProductFunctions):
    """Torch's."""

    linalg = linalg

    def call(self, law: Differentiable, *arrays: Any, **options: Any) -> Any:
        function = _FUNCTIONS.get(law.name)
        return function(*arrays, **options) if function else super().call(law, *arrays, **options)

    def key_words(self, key: Any) -> torch.Tensor:
        return key_tensor(key)

    def number(self, value: float, like: torch.Tensor) -> torch.Tensor:
        return torch.full((), value, dtype=torch.float32, device=like.device)


FUNCTIONS = TrainingTensors()
