"""States of modules that stay float32, and that checkpoints from before they existed lack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def apply_but_states(layer: Any, names: Iterable[str], apply: Any, *arguments: Any) -> Any:
    """`nn.Module._apply`, such as a change of dtype, after which these states of delayed scales are float32 again."""
    # A scale in float16 would lose bits, and its largest magnitudes would overflow.
    before = {name: state for name in names if (state := getattr(layer, name, None)) is not None}
    changed = apply(*arguments)
    for name, state in before.items():
        after = getattr(layer, name)
        if after.dtype is not state.dtype:
            setattr(layer, name, state.to(after.device))
    return changed


def keep_states(layer: Any, names: Iterable[str], state_dict: dict[str, Any], prefix: str) -> None:
    """Adds the states of delayed scales to a checkpoint without them, such as one from before `lower`."""
    for name in names:
        if (state := getattr(layer, name, None)) is not None:
            state_dict.setdefault(f"{prefix}{name}", state)
