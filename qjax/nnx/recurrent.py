"""Recurrent layers of floats with PyTorch's weights, of several layers and in two directions."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
from flax import nnx

from qcore.arguments import check_flag, check_int, check_size, check_type
from qcore.lazy import public_names
from qjax.quantization.functional.dynamic import CellWeights, over_layers

__all__ = ["GRU", "LSTM", "Recurrent"]
__dir__ = public_names(__name__)


class Recurrent(nnx.Module):
    """Layers of recurrent cells, in one or two directions, over sequences.

    Parameters have PyTorch's names and layout: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, and so on for each
    layer. The names of the reverse direction end in "_reverse".

    Args:
        in_features: the size of the input.
        hidden_features: the size of the hidden states.
        num_layers: the number of layers, at most 2^16.
        use_bias: False for no biases.
        bidirectional: True for two directions, whose results are concatenated.
        time_major: True for arrays of shape (steps, batch, features), else (batch, steps, features).
        proj_size: for an LSTM: the size to which weight_hr_l0 projects hidden states; 0 for no projection.
        rngs: random numbers for the parameters.

    Attributes:
        kind: "lstm" or "gru".

    Example:
        >>> layer = LSTM(4, 4, bidirectional=True, rngs=nnx.Rngs(0))
        >>> layer.weight_ih_l0_reverse.shape
        (16, 4)
    """

    kind: ClassVar[str]
    gates: ClassVar[int]

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        num_layers: int = 1,
        use_bias: bool = True,
        bidirectional: bool = False,
        time_major: bool = False,
        proj_size: int = 0,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        for name, flag in (("use_bias", use_bias), ("bidirectional", bidirectional), ("time_major", time_major)):
            check_flag(name, flag)
        check_type("rngs", rngs, nnx.Rngs, "an nnx.Rngs")
        self.in_features = check_size("in_features", in_features)
        self.hidden_features = check_size("hidden_features", hidden_features)
        self.num_layers = check_int("num_layers", num_layers, 1, 2**16)
        self.use_bias, self.bidirectional, self.time_major = use_bias, bidirectional, time_major
        self.proj_size = check_int("proj_size", proj_size, 0, hidden_features - 1 if self.kind == "lstm" else 0)
        state_size = proj_size or hidden_features
        rows, bound = self.gates * hidden_features, hidden_features**-0.5
        for number, suffix in enumerate(self.suffixes):
            inner = number >= 1 + bidirectional
            width = (1 + bidirectional) * state_size if inner else in_features
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, width), "weight_hh": (rows, state_size)}
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if use_bias else {}
            shapes |= {"weight_hr": (proj_size, hidden_features)} if proj_size else {}
            for name, shape in shapes.items():
                setattr(
                    self,
                    name + suffix,
                    nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound)),
                )

    @property
    def suffixes(self) -> list[str]:
        """The suffixes of parameter names, one for each layer and direction."""
        directions = ("", "_reverse")[: 1 + self.bidirectional]
        return [f"_l{layer}{direction}" for layer in range(self.num_layers) for direction in directions]

    def weights(self) -> list[CellWeights]:
        """The weights and biases of each layer and direction."""
        names = {"ih": "weight_ih", "hh": "weight_hh"}
        names |= {"bias_ih": "bias_ih", "bias_hh": "bias_hh"} if self.use_bias else {}
        names |= {"hr": "weight_hr"} if self.proj_size else {}
        return [
            CellWeights(**{part: getattr(self, name + suffix)[...] for part, name in names.items()})
            for suffix in self.suffixes
        ]

    def __call__(self, inputs: jax.Array, initial_carry: Any = None, return_carry: bool = False) -> Any:
        """The results of all steps, and with return_carry the last states.

        Args:
            inputs: floats.
            initial_carry: the initial hidden states, of shape (num_layers * directions, batch, hidden_features or
                proj_size); for an LSTM a pair of these and the cell states. None for zeros.
            return_carry: True for a pair of results and states.

        Raises:
            ValueError: if shapes do not fit.
        """
        return run_layers(self, self.weights(), _product, inputs, initial_carry, return_carry)


class LSTM(Recurrent):
    """`torch.nn.LSTM`; `quantize_dynamic` replaces it by a `quantized.dynamic.LSTM`.

    Args:
        in_features, hidden_features, num_layers, use_bias, bidirectional, time_major, proj_size, rngs: as for
            `Recurrent`, which raises the same errors.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = LSTM(4, 4, rngs=nnx.Rngs(0))
        >>> run = nnx.jit(lambda layer, x: layer(x, return_carry=True))
        >>> y, (hidden, cell) = run(layer, jnp.ones((1, 5, 4)))
        >>> y.shape, cell.shape
        ((1, 5, 4), (1, 1, 4))
    """

    kind, gates = "lstm", 4


class GRU(Recurrent):
    """`torch.nn.GRU`; `quantize_dynamic` replaces it by a `quantized.dynamic.GRU`.

    Args:
        in_features, hidden_features, num_layers, use_bias, bidirectional, time_major, proj_size, rngs: as for
            `Recurrent`, which raises the same errors.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = GRU(4, 4, rngs=nnx.Rngs(0))
        >>> nnx.jit(lambda layer, x: layer(x))(layer, jnp.ones((1, 5, 4))).shape
        (1, 5, 4)
    """

    kind, gates = "gru", 3


def run_layers(
    layer: Any, weights: list[CellWeights], product: Any, inputs: Any, initial_carry: Any, return_carry: bool
) -> Any:
    """The call of a recurrent layer; see `Recurrent.__call__`.

    Args:
        layer: has `kind`, `bidirectional` and `time_major`.
        weights: of each layer and direction.
        product: as for `over_layers`.
        inputs, initial_carry, return_carry: of the call.
    """
    features = weights[0].ih.shape[1]
    if getattr(inputs, "ndim", 0) != 3 or inputs.shape[-1] != features:
        axes = "steps, batch" if layer.time_major else "batch, steps"
        raise ValueError(f"inputs has shape {getattr(inputs, 'shape', None)}; allowed is ({axes}, {features})")
    directions = 1 + layer.bidirectional
    stacked = [weights[first : first + directions] for first in range(0, len(weights), directions)]
    x = inputs if layer.time_major else inputs.swapaxes(0, 1)
    lstm = layer.kind == "lstm"
    states = initial_carry if lstm or initial_carry is None else (initial_carry,)
    y, last = over_layers(layer.kind, product, x, stacked, states)
    y = y if layer.time_major else y.swapaxes(0, 1)
    return (y, last if lstm else last[0]) if return_carry else y


def _product(x: jax.Array, weight: jax.Array, bias: Any) -> jax.Array:
    y = x @ weight.T
    return y if bias is None else y + bias
