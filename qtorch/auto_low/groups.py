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
