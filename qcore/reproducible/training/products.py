"""Products of float32 numbers by the sequential float64 law (`qcore.linalg`), with biases, and attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from qcore.arguments import check_choice, check_flag, check_sizes, quoted
from qcore.linalg.attention import check_attention, check_mask
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.training.functions import TrainingFunctions


def _mask(xp: Any, x: Any, mask: Any) -> Any:
    if mask is not None:
        return mask
    return xp.arange(x.shape[-2], x)[:, None] >= xp.arange(x.shape[-1], x)[None]


def _masked(xp: Any, x: Any, mask: Any) -> tuple[Any, tuple[Any]]:
    """Scores, -inf where the mask is False; without a mask where a key comes after the query."""
    return xp.where(_mask(xp, x, mask), x, -inf), (mask,)


def _masked_gradient(xp: Any, saved: tuple[Any], gradient: Any) -> tuple[Any, None]:
    return xp.where(_mask(xp, gradient, saved[0]), gradient, xp.zeros((), gradient)), None


MASKED = Differentiable(_masked, _masked_gradient, by_pieces=True)


class ProductFunctions(TrainingFunctions):
    """`TrainingFunctions`, and products of a package's `linalg`, whose default accumulator is that of this law.

    Attributes:
        linalg: the package's room of products.
    """

    linalg: Any

    def matmul(self, a: Any, b: Any, **products: Any) -> Any:
        """a @ b.

        Args:
            a: float32 array of shape (..., M, K).
            b: float32 array of shape (..., K, N).
            products: the named arguments of `linalg.matmul`.

        Returns:
            A float32 array of shape (..., M, N).

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> reproducible.matmul(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
            tensor([[11.]])
        """
        return self._product("matmul", self.float32("a", a), self.float32("b", b), None, products)

    def linear(self, x: Any, weight: Any, bias: Any = None, **products: Any) -> Any:
        """x @ weight.T + bias; the bias's gradient is a `sum`.

        Args:
            x: float32 array of shape (..., inputs).
            weight: float32 array of shape (outputs, inputs).
            bias: float32 array of shape (outputs,), or None.
            products: the named arguments of `linalg.linear`.

        Returns:
            A float32 array of shape (..., outputs).

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> reproducible.linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([0.5]))
            tensor([[11.5000]])
        """
        return self._product("linear", self.float32("x", x), self.float32("weight", weight), bias, products)

    def conv1d(self, x: Any, weight: Any, bias: Any = None, *window: Any, **products: Any) -> Any:
        """A convolution along one axis; the bias's gradient is a `sum`.

        Args:
            x: float32 array of shape (batch, channels, length).
            weight: float32 array of shape (outputs, channels / groups, kernel).
            bias: float32 array of shape (outputs,), or None.
            window: stride, padding, dilation and groups, as for `linalg.conv1d`; padding may be "valid", and with
                stride 1 "same", whose odd zero comes last.
            products: the named arguments of `linalg.conv1d`.

        Returns:
            A float32 array of shape (batch, outputs, positions), where the number of positions is
            (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> x, weight = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 3), torch.ones(1, 1, 2)
            >>> reproducible.conv1d(x, weight).flatten().tolist()
            [3.0, 5.0]
        """
        return self._convolved(1, x, weight, bias, *window, **products)

    def conv2d(self, x: Any, weight: Any, bias: Any = None, *window: Any, **products: Any) -> Any:
        """A convolution of images; the bias's gradient is a `sum`.

        Args:
            x: float32 array of shape (batch, channels, height, width).
            weight: float32 array of shape (outputs, channels / groups, kernel height, kernel width).
            bias: float32 array of shape (outputs,), or None.
            window: stride, padding, dilation and groups, as for `conv1d`.
            products: the named arguments of `linalg.conv2d`.

        Returns:
            A float32 array of shape (batch, outputs, positions down, positions across); `conv1d` says how many.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> x, weight = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 1, 3), torch.ones(1, 1, 1, 2)
            >>> reproducible.conv2d(x, weight).flatten().tolist()
            [3.0, 5.0]
        """
        return self._convolved(2, x, weight, bias, *window, **products)

    def conv3d(self, x: Any, weight: Any, bias: Any = None, *window: Any, **products: Any) -> Any:
        """A convolution of volumes; the bias's gradient is a `sum`.

        Args:
            x: float32 array of shape (batch, channels, depth, height, width).
            weight: float32 array of shape (outputs, channels / groups, kernel depth, kernel height, kernel width).
            bias: float32 array of shape (outputs,), or None.
            window: stride, padding, dilation and groups, as for `conv1d`.
            products: the named arguments of `linalg.conv3d`.

        Returns:
            A float32 array of shape (batch, outputs, positions deep, positions down, positions across); `conv1d`
            says how many.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> x, weight = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 1, 1, 3), torch.ones(1, 1, 1, 1, 2)
            >>> reproducible.conv3d(x, weight).flatten().tolist()
            [3.0, 5.0]
        """
        return self._convolved(3, x, weight, bias, *window, **products)

    def _convolved(
        self,
        dims: int,
        x: Any,
        weight: Any,
        bias: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        **products: Any,
    ) -> Any:
        x, weight = self.float32("x", x), self.float32("weight", weight)
        if isinstance(padding, str):
            check_choice("padding", padding, ("same", "valid"))
            if padding == "same":
                x = self._padded_to_same(x, weight.shape[2:], stride, dilation, dims)
            padding = 0
        function = getattr(self.linalg, f"conv{dims}d")
        return self._plus(function(x, weight, None, stride, padding, dilation, groups, **products), bias, dims)

    def _padded_to_same(self, x: Any, kernel: Sequence[int], stride: Any, dilation: Any, dims: int) -> Any:
        """x with the zeros that keep its lengths."""
        if any(step != 1 for step in check_sizes("stride", stride, 1, dims)):
            raise ValueError(f"stride={quoted(stride)} with padding='same'; allowed is 1")
        spaces = check_sizes("dilation", dilation, 1, dims)
        totals = [space * (size - 1) for size, space in zip(kernel, spaces, strict=True)]
        return self.pad(x, [(total // 2, total - total // 2) for total in totals])

    def _product(self, name: str, a: Any, b: Any, bias: Any, products: dict[str, Any]) -> Any:
        """A function of `linalg` by its name, and the bias."""
        return self._plus(getattr(self.linalg, name)(a, b, **products), bias, 0)

    def _plus(self, y: Any, bias: Any, dims: int) -> Any:
        if bias is None:
            return self.settle(y)
        self._check_bias(bias, y.shape[-1 - dims])
        return self.add(y, bias.reshape((-1, *(1,) * dims)) if dims else bias)

    def _check_bias(self, bias: Any, size: int) -> None:
        if tuple(self.float32("bias", bias).shape) != (size,):
            raise ValueError(f"bias has shape {tuple(bias.shape)}; allowed is {(size,)}")

    def scaled_dot_product_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """softmax(scale * query @ key^T + mask) @ value: `multiply`, `matmul`, `add`, `softmax` and `matmul`.

        Args:
            query: float32 array of shape (..., L, E).
            key: float32 array of shape (..., S, E), with query's leading dimensions.
            value: float32 array of shape (..., S, V), with the same.
            attn_mask: what broadcasts to (..., L, S): array of bools, True where a key counts, or float32 array that
                is added to the scores; or None.
            is_causal: True masks keys after the query's position.
            scale: None is 1 / sqrt(E).
            enable_gqa: True where a head of keys and values, on the third axis from the end, serves several heads of
                queries: each head is repeated (`broadcast_to`).

        Returns:
            A float32 array of shape (..., L, V).

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> query, value = torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
            >>> reproducible.scaled_dot_product_attention(query, query, value, is_causal=True).tolist()
            [[1.0], [2.0]]
        """
        query, key, value = self.float32("query", query), self.float32("key", key), self.float32("value", value)
        check_flag("enable_gqa", enable_gqa)
        if enable_gqa:
            key, value = self._repeated("key", key, query), self._repeated("value", value, query)
        q, k, v = (tuple(x.shape) for x in (query, key, value))
        factor = check_attention(q, k, v, attn_mask, is_causal, scale)
        check_mask(attn_mask, q, k)
        return self.matmul(self.attention_weights(query, key, attn_mask, is_causal, factor), value)

    def attention_weights(self, query: Any, key: Any, attn_mask: Any, is_causal: bool, scale: float) -> Any:
        """softmax(scale * query @ key^T); arguments are those of `scaled_dot_product_attention`."""
        scores = self.matmul(self.multiply(query, self.number(scale, query)), key.mT)
        if attn_mask is not None and "float" in str(attn_mask.dtype):
            scores = self.add(scores, attn_mask)
        elif is_causal or attn_mask is not None:
            scores = self.call(MASKED, scores, attn_mask)
        return self.softmax(scores)

    def _repeated(self, name: str, x: Any, query: Any) -> Any:
        """Keys or values with as many heads as queries have: each head several times in a row."""
        heads, wanted = (one.shape[-3] if one.ndim >= 3 else 0 for one in (x, query))
        if not heads or wanted % heads:
            allowed = "a number of heads that divides the queries'"
            raise ValueError(f"{name} has shape {tuple(x.shape)}, query {tuple(query.shape)}; allowed is {allowed}")
        if heads == wanted:
            return x
        lead, tail = tuple(x.shape[:-3]), tuple(x.shape[-2:])
        copies = self.broadcast_to(x.reshape((*lead, heads, 1, *tail)), (*lead, heads, wanted // heads, *tail))
        return copies.reshape((*lead, wanted, *tail))
