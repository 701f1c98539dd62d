"""Models whose attention an engine computes: those of the package transformers, and others."""

# pyright: reportMissingImports=false
# Packages of others that need not be installed.

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from qcore.arguments import check_type
from qcore.engines.coverage import Coverage, covered
from qcore.engines.engine import HALVES, Engine, EngineLike, check_engine
from qcore.engines.fold import WEIGHTS
from qtorch._classes import plain_class
from qtorch.engines.functions import exchange
from qtorch.engines.layers import realize
from qtorch.engines.tensors import attention
from qtorch.recipes import lower

if TYPE_CHECKING:
    Model = TypeVar("Model", bound=nn.Module)
else:
    Model = TypeVar("Model")


def apply(model: Model, engine: EngineLike) -> Model:
    """Makes an engine compute a model's attention, and the layers around it, in place: same object, parameters, names.

    All keys and values pass the engine's cache when they are read: those of `generate` and of every cache of
    transformers, and those of a pass without one, such as a training step. A padded batch computes as each of its texts
    alone. Layers stay as they are where the engine's field is None; `qtorch.reproducible.convert(model)` gives them
    bits that do not depend on the batch. Another call puts another engine in the place of this one; products that were
    lowered stay.

    Args:
        model: a decoder of transformers 5, such as Llama, Qwen2, Qwen3, Gemma, GPT-2 or Mixtral; or another module
            whose code calls `torch.nn.functional.scaled_dot_product_attention`.
        engine: a name of `qcore.engines.ENGINES`, such as "fa3.hopper.fp8", an `Engine`, or its text.

    Returns:
        The same model; `report` says which layers compute each field, and a warning what the engine does not define.
        While it runs, dropout of attention and a missing mask raise a ValueError. So do soft caps, sinks and windows
        that the engine does not define. With an engine that has tiles of keys so do several texts in one row, and a
        window beside padding, a static cache or `torch.compile`: tiles of a window depend on places in the text.

    Raises:
        ValueError: if the model's attention cannot be exchanged, or the numbers of a token in the engine's cache depend
            on later tokens.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM  # doctest: +SKIP
        >>> model = apply(LlamaForCausalLM(LlamaConfig()), "fa3.hopper.fp8")  # doctest: +SKIP
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    found = check_engine(engine)
    if found.cache is not None and not found.cache.causal:
        raise ValueError(
            f"engine has cache={found.cache.text}: {found.cache.why_not_causal}; allowed here are static scales, those "
            "of a token or of a token and head, and blocks along the head"
        )
    if hasattr(model, "set_attn_implementation"):
        kinds = {"attention": _register(model, found)}
    else:
        exchange(model, found)
        kinds = {"attention": ["torch.nn.functional.scaled_dot_product_attention"]}
    layers, undefined = realize(model, found)
    kinds |= layers
    if found.cache is not None:
        kinds["cache"] = kinds["attention"]
    if found.products is not None:
        lower(model, found.products, on=found.on)
        kinds["products"] = [type(layer).__name__ for layer in model.modules() if hasattr(layer, "products")]
    switched: Any = model
    switched.qtorch_coverage = covered(found, kinds, undefined)
    return model


def _register(model: Any, engine: Engine) -> list[str]:
    """Gives a model of transformers the engine's attention; returns the classes of its layers."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(
            f"model is a {type(model).__name__}, whose attention transformers does not exchange; allowed are models "
            "with _supports_attention_backend"
        )
    name = f"qtorch.{sha256(engine.text.encode()).hexdigest()[:12]}"
    ALL_ATTENTION_FUNCTIONS.register(name, _attention_of(engine))
    # Without a row here a padded batch would get no mask, silently.
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, _mask)
    model.set_attn_implementation(name)
    return [plain_class(layer).__name__ for layer in model.modules() if _is_attention(layer)]


def report(model: nn.Module) -> Coverage:
    """What of an engine a model computes, and what the engine does not define for it.

    Args:
        model: a model that `apply` returned.

    Returns:
        A `Coverage`: for each field of the engine the layers that compute it. `print` shows a table.

    Raises:
        ValueError: if the model has no engine.

    Example:
        >>> print(report(apply(model, "hf.eager")))  # doctest: +SKIP
    """
    check_type("model", model, nn.Module, "a model that apply returned")
    found = getattr(model, "qtorch_coverage", None)
    if found is None:
        raise ValueError(f"model is a {type(model).__name__} without an engine; allowed is what apply returned")
    return found


def _is_attention(layer: nn.Module) -> bool:
    return plain_class(layer).__name__.endswith("Attention") and next(layer.children(), None) is not None


def _mask(**settings: Any) -> Any:
    """The mask of bools, always: where it is left out, a growing cache and a static one mean different keys by it."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(**{**settings, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def _attention_of(engine: Engine) -> Callable[..., tuple[torch.Tensor, None]]:
    """An engine's attention, as models of transformers call it."""

    def run(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        if dropout:
            raise ValueError(f"dropout={dropout} in {type(module).__name__}; allowed is 0: engines have no dropout")
        _check_mask(module, attention_mask)
        # With one block of keys a window is a mask: transformers has it in the mask that it gives.
        window = None if engine.attention.end == WEIGHTS else sliding_window
        if window is not None and _is_shorter(module, window, position_ids):
            _check_window(module, attention_mask, window, position_ids)
            key, value = (_from_the_first_key(x, position_ids) for x in (key, value))
            causal = True
        else:
            causal, window = not torch.compiler.is_compiling() and _is_causal(attention_mask), None
        if not causal:
            _check_texts(module, attention_mask, engine)
        mask = None if causal else attention_mask
        layout: Any = getattr(module, "qtorch_rope", None)  # None without rotary embeddings, or without `rope`
        if engine.rope is not None and layout is not None:
            query, key = (_arranged(x, layout, engine.rope) for x in (query, key))
        sinks = None if s_aux is None else s_aux.to(query.dtype)
        settings = {"scale": scaling, "mask": mask, "window": window, "softcap": softcap, "sinks": sinks}
        found = attention(query, key, value, engine, causal, **settings)
        return found.transpose(1, 2).contiguous(), None

    return run


def _arranged(x: torch.Tensor, layout: str, wanted: str) -> torch.Tensor:
    """The numbers of heads in the order of a layout: those that turn together are neighbours, or half a head apart."""
    if layout == wanted:
        return x
    sizes = (2, -1) if layout == HALVES else (-1, 2)
    return x.unflatten(-1, sizes).transpose(-1, -2).flatten(-2)


def _check_mask(module: nn.Module, mask: Any) -> None:
    """Raises for a mask that does not tell which keys a query sees: another one than the model's would be silent."""
    if mask is None or mask.dtype is not torch.bool:
        came = "no mask" if mask is None else f"a mask of {mask.dtype}"
        raise ValueError(f"{type(module).__name__} gave its attention {came}; allowed is a mask of bools")


def _is_causal(mask: Any) -> bool:
    """True if queries end where keys end, and nothing is masked but later keys: less work, and the same bits."""
    queries, keys = mask.shape[-2:]
    return bool((mask == torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril(keys - queries)).all())


def _is_shorter(module: nn.Module, window: int, places: Any) -> bool:
    """True if a window is shorter than the text so far; raises where places are not known."""
    if places is None or torch.compiler.is_compiling():
        raise ValueError(
            f"{type(module).__name__} has sliding_window={window}, and the engine has tiles of keys; allowed are eager "
            "programs of models that give position_ids: tiles of a window depend on places in the text"
        )
    return window <= int(places.max())


def _check_window(module: nn.Module, mask: Any, window: int, places: Any) -> None:
    """Raises unless each row is one text of which queries are the end."""
    queries, keys = mask.shape[-2:]
    near = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril(keys - queries)
    near &= ~near.tril(keys - queries - window)
    ascending = torch.arange(1 - queries, 1, device=places.device)
    if not bool((places == places[:1, -1:] + ascending).all()) or not bool((mask == near).all()):
        raise ValueError(
            f"{type(module).__name__} has sliding_window={window}, and the engine has tiles of keys; allowed is one "
            "text in each row, without padding, and a cache that grows"
        )


def _from_the_first_key(x: torch.Tensor, places: Any) -> torch.Tensor:
    """Keys or values with zeros for those that a cache of a window has dropped: tiles depend on places in the text."""
    return nn.functional.pad(x, (0, 0, int(places.max()) + 1 - x.shape[2], 0))


def _check_texts(module: nn.Module, mask: Any, engine: Engine) -> None:
    """Raises for rows of a batch with several texts, where an engine's blocks would not begin with the second text."""
    if engine.attention.end == WEIGHTS or torch.compiler.is_compiling():
        return
    first = mask.to(torch.int32).argmax(-1)  # key of each query
    start = torch.where(mask.any(-1), first, mask.shape[-1]).amin((1, 2), keepdim=True)
    if ((first != start) & mask.any(-1)).any():
        raise ValueError(
            f"{type(module).__name__} has several texts in one row of its batch; allowed with tiles of keys is one a "
            "row"
        )
