"""Which layers "conv", "linear" and so on are: QPyTorch's groups, and those of the layers that PyTorch gained since."""

from __future__ import annotations

from types import ModuleType

from torch import nn
from torch.nn import modules


def _all(*sources: ModuleType, without: tuple[str, ...] = ()) -> tuple[type[nn.Module], ...]:
    """All layers of some of torch's modules: what torch adds to them later is among them."""
    return tuple(getattr(source, name) for source in sources for name in source.__all__ if name not in without)


GROUPS: dict[str, tuple[type[nn.Module], ...]] = {
    "conv": _all(modules.conv, modules.fold),
    "linear": _all(modules.linear, without=("Identity",)),
    "pool": _all(modules.pooling),
    "pad": _all(modules.padding),
    "activation": _all(modules.activation, modules.adaptive, without=("MultiheadAttention",)),
    "normalization": _all(modules.batchnorm, modules.instancenorm, modules.normalization),
    "dropout": _all(modules.dropout),
    "loss": _all(modules.loss),
    "embedding": _all(modules.sparse),
    "attention": (nn.MultiheadAttention,),
    "rnn": _all(modules.rnn),
}


# Modules around a model, and what they call it: names of layers are those of the model.
_WRAPPED = {
    "_orig_mod": None,  # torch.compile
    "_checkpoint_wrapped_module": None,
    "_fsdp_wrapped_module": None,
    "module": {"DistributedDataParallel", "DataParallel", "AveragedModel", "FullyShardedDataParallel"},
}


def named_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All modules of a model once, with the dotted names that they have in the model without wrappers.

    The wrappers themselves, and what computes parametrized weights, are not among them.
    """
    found, seen = [], set()

    def visit(name: str, module: nn.Module) -> None:
        if module in seen:
            return
        seen.add(module)
        inside = [key for key, _ in module.named_children() if _wraps(module, key)]
        if not inside:
            found.append((name, module))
        for key, child in module.named_children():
            if key in inside:
                visit(name, child)
            elif key != "parametrizations":
                visit(f"{name}.{key}" if name else key, child)

    visit("", model)
    return found


def _wraps(module: nn.Module, key: str) -> bool:
    """True if a module is a wrapper around a child."""
    kinds = _WRAPPED.get(key, set())
    return kinds is None or any(kind.__name__ in kinds for kind in type(module).__mro__)
