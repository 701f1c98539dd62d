"""Modules that mark where a model's floats become integers, and where integers become floats."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from qcore.arguments import check_flag
from qjax._models import check_model


class QuantStub(nnx.Module):
    """Marks where floats become integers: `convert` puts `quantized.Quantize` in its place.

    Example:
        >>> import jax.numpy as jnp
        >>> QuantStub()(jnp.float32([0.25]))
        Array([0.25], dtype=float32)
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


class DeQuantStub(nnx.Module):
    """Marks where integers become floats: `convert` puts `quantized.DeQuantize` in its place.

    Example:
        >>> import jax.numpy as jnp
        >>> DeQuantStub()(jnp.float32([0.25]))
        Array([0.25], dtype=float32)
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


class QuantWrapper(nnx.Module):
    """A module between a `QuantStub` and a `DeQuantStub`; after conversion it still takes and returns floats.

    It also offers the attributes of the module: `wrapper.kernel`.

    Args:
        module: the wrapped module.
        quant, dequant: True for a `QuantStub` before, and a `DeQuantStub` after the module.

    Example:
        >>> import jax.numpy as jnp
        >>> QuantWrapper(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))(jnp.zeros((1, 2))).shape
        (1, 3)
    """

    def __init__(self, module: nnx.Module, quant: bool = True, dequant: bool = True) -> None:
        check_model("module", module)
        check_flag("quant", quant)
        check_flag("dequant", dequant)
        self.quant = QuantStub() if quant else Identity()
        self.dequant = DeQuantStub() if dequant else Identity()
        self.module = module

    def __getattr__(self, name: str) -> Any:
        if name == "module" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.module, name)

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        """The module's result; of its arguments the first is quantized."""
        module: Any = self.module
        if args:
            return self.dequant(module(self.quant(args[0]), *args[1:], **kwargs))
        (name, x), *more = kwargs.items()
        return self.dequant(module(**{name: self.quant(x)}, **dict(more)))


class Identity(nnx.Module):
    """Returns its input; takes the place of a layer that was fused with the layer before it.

    Example:
        >>> import jax.numpy as jnp
        >>> Identity()(jnp.float32([0.25]))
        Array([0.25], dtype=float32)
    """

    def __call__(self, x: Any) -> Any:
        return x
