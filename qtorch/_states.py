"""What checkpoints hold of modules: states that stay float32, and that older ones lack; zero points that fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qcore.arguments import quoted


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


def keeps_zero_point(layer: Any, state_dict: dict[str, Any], prefix: str, errors: list[str]) -> bool:
    """Whether a checkpoint's zero points stay what they are in a layer's dtype; else the errors get a sentence.

    torch copies an int64 to an int32 without its high bits.
    """
    value = state_dict.get(f"{prefix}zero_point")
    if value is None or value.is_meta or (value.to(layer.zero_point.dtype) == value).all():
        return True
    found, dtype = quoted(value.flatten().tolist()), str(layer.zero_point.dtype).removeprefix("torch.")
    errors.append(f"{prefix}zero_point is {found}; allowed are integers of {dtype}")
    return False
