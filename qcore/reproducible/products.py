"""Products of float32 numbers by the sequential float64 law (`qcore.linalg`), with biases, and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qcore.arguments import check_choice, check_flag, check_sizes, quoted
from qcore.binding import public
from qcore.linalg.attention import check_attention, check_mask
from qcore.reproducible.moves import MASKED
from qcore.reproducible.state_codes import StateFunctions


def _convolution(dims: int, lengths: str, kernel: str, positions: str) -> Any:
    """The function of convolutions along this number of axes, with its docstring."""

    def function(self: Any, x: Any, weight: Any, bias: Any = None, *window: Any, **products: Any) -> Any:
        return self._convolved(dims, x, weight, bias, *window, **products)

    name, ones = f"conv{dims}d", "1, " * (dims + 1)
    function.__name__ = name
    function.__doc__ = f"""A convolution along the last axes, {dims} of them; the bias's gradient is a `sum`.

        Args:
            x: float32 array of shape (batch, channels, {lengths}).
            weight: float32 array of shape (outputs, channels / groups, {kernel}).
            bias: float32 array of shape (outputs,), or None.
            window: stride, padding, dilation and groups, as for `linalg.{name}`; padding may be "valid", and with
                stride 1 "same", whose odd zero comes last.
            products: the named arguments of `linalg.{name}`.

        Returns:
            A float32 array of shape (batch, outputs, {positions}), where the number of positions along an axis is
            (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1.

        Example:
            >>> x = np.float32([1.0, 2, 3]).reshape({ones}3)
            >>> weight = np.float32([1.0, 1]).reshape({ones}2)
            >>> reproducible.{name}(x, weight).reshape(-1).tolist()
            [3.0, 5.0]
        """
    return public(function)


class ProductFunctions(StateFunctions):
    """`StateFunctions`, and products by a package's `linalg` with this law's default accumulator.

    Attributes:
        linalg: the package's module of products.
    """

    linalg: Any

    @public
    def matmul(self, a: Any, b: Any, **products: Any) -> Any:
        """a @ b.

        Args:
            a: float32 array of shape (..., M, K).
            b: float32 array of shape (..., K, N).
            products: the named arguments of `linalg.matmul`.

        Returns:
            A float32 array of shape (..., M, N).

        Example:
            >>> reproducible.matmul(np.float32([[1.0, 2.0]]), np.float32([[3.0], [4.0]])).tolist()
            [[11.0]]
        """
        return self._product("matmul", self.float32("a", a), self.float32("b", b), None, products)

    @public
    def linear(self, x: Any, weight: Any, bias: Any = None, **products: Any) -> Any:
        """x @ weight.T + bias; the bias's gradient is a `sum`.

        Args:
            x: float32 array of shape (..., inputs).
            weight: float32 array of shape (outputs, inputs).
            bias: float32 array of shape (outputs,), or None.
            products: the named arguments of `linalg.linear`.

        Returns:
            A float32 array of shape (..., outputs).

        Example:
            >>> reproducible.linear(
            ...     np.float32([[1.0, 2.0]]), np.float32([[3.0, 4.0]]), np.float32([0.5])
            ... ).tolist()
            [[11.5]]
        """
        return self._product("linear", self.float32("x", x), self.float32("weight", weight), bias, products)

    conv1d = _convolution(1, "length", "kernel", "positions")
    conv2d = _convolution(2, "height, width", "kernel height, kernel width", "positions down, positions across")
    conv3d = _convolution(
        3,
        "depth, height, width",
        "kernel depth, kernel height, kernel width",
        "positions deep, positions down, positions across",
    )

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

    @public
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
            value: float32 array of shape (..., S, V), with query's leading dimensions.
            attn_mask: array that broadcasts to (..., L, S): bools, True where a key counts, or float32 numbers that are
                added to the scores; or None.
            is_causal: True masks keys after the query's position.
            scale: None is 1 / sqrt(E).
            enable_gqa: True if a head of keys and values, on the third axis from the end, serves several heads of
                queries: each head is repeated (`broadcast_to`).

        Returns:
            A float32 array of shape (..., L, V).

        Example:
            >>> query, value = np.float32([[0.0], [0.0]]), np.float32([[1.0], [3.0]])
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
        """softmax(scale * query @ key^T), with the arguments of `scaled_dot_product_attention`."""
        scores = self.matmul(self.multiply(query, self.number(scale, query)), key.mT)
        if attn_mask is not None and "float" in str(attn_mask.dtype):
            scores = self.add(scores, attn_mask)
        elif is_causal or attn_mask is not None:
            scores = self.call(MASKED, scores, attn_mask)
        return self.softmax(scores)

    def _repeated(self, name: str, x: Any, query: Any) -> Any:
        """Keys or values with one head for each head of the queries: each head several times in a row."""
        heads, wanted = (one.shape[-3] if one.ndim >= 3 else 0 for one in (x, query))
        if not heads or wanted % heads:
            allowed = "a number of heads that divides the queries'"
            raise ValueError(f"{name} has shape {tuple(x.shape)}, query {tuple(query.shape)}; allowed is {allowed}")
        if heads == wanted:
            return x
        lead, tail = tuple(x.shape[:-3]), tuple(x.shape[-2:])
        copies = self.broadcast_to(x.reshape((*lead, heads, 1, *tail)), (*lead, heads, wanted // heads, *tail))
        return copies.reshape((*lead, wanted, *tail))
