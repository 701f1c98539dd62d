"""Modules whose `torch.nn.functional.scaled_dot_product_attention` an engine computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qcore.engines.engine import Engine
from qtorch._classes import change_class, restore_class
from qtorch.engines.tensors import attention
from qtorch.recipes.functions import OPENED

_ROLE = "attention of an engine"


def exchange(model: Any, engine: Engine) -> None:
    """Gives a module a class that runs with an engine's attention."""
    restore_class(model, _ROLE)
    model.qtorch_engine = engine
    change_class(model, _ROLE, _entering)


def _entering(base: type) -> dict[str, Any]:
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        mode = _Exchanging(self.qtorch_engine)
        with mode:
            found = base.forward(self, *arguments, **options)
        if not mode.reached:
            raise ValueError(
                f"{base.__name__} did not call torch.nn.functional.scaled_dot_product_attention; allowed is a model of "
                "transformers, or a module that calls it"
            )
        return found

    return {"forward": forward}


class _Exchanging(TorchFunctionMode):
    """A mode in which an engine computes attention; `reached` is True if it did."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine, self.reached = engine, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.multi_head_attention_forward:
            if kwargs.get("need_weights", True):
                raise ValueError("need_weights=True of MultiheadAttention; allowed is False: engines return no weights")
            if func.__name__ in OPENED:
                with self:  # for its statements, which a mode gets as a whole
                    return OPENED[func.__name__](*args, **kwargs)
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        self.reached = True
        return _attention(self.engine, *args, **kwargs)


def _attention(
    engine: Engine,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """An engine's attention with the arguments of torch's."""
    if dropout_p:
        raise ValueError(
            f"dropout_p={dropout_p} of scaled_dot_product_attention; allowed is 0: engines have no dropout"
        )
    if attn_mask is not None and attn_mask.dtype is not torch.bool:
        attn_mask = _as_bools(attn_mask)
    queries, keys = query.shape[-2], key.shape[-2]
    if is_causal and queries != keys:  # torch lets query i see the keys 0 to i
        early = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
        attn_mask, is_causal = early, False
    return attention(query, key, value, engine, is_causal, scale=scale, mask=attn_mask)


def _as_bools(mask: torch.Tensor) -> torch.Tensor:
    """A mask of 0 and -inf, which MultiheadAttention makes of bools, as bools again."""
    live = mask == 0
    if torch.compiler.is_compiling() or not bool((live | (mask == -torch.inf)).all()):
        came = f"attn_mask has dtype {mask.dtype}"
        raise ValueError(f"{came}; allowed are bools, and numbers 0 and -inf: engines do not define a bias of scores")
    return live
