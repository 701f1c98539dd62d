"""Initial weights from a key."""

from __future__ import annotations

from flax import nnx

from qcore.random import initial_state
from qjax._models.tree import names_of
from qjax.reproducible.modules.checkpoint import load_state_dict, state_dict


def initialize(model: nnx.Module, key: int | tuple[int, int]) -> None:
    """Gives all parameters and statistics their first numbers: the same as in PyTorch, by `qcore.random.initial_state`.

    Args:
        model: as for `state_dict`, switched by `convert` or not; it is changed, as flax's modules are.
        key: an int from 0 to 2^64 - 1, or two 32-bit words.

    Returns:
        Nothing; the model is changed in place.

    Raises:
        TypeError, ValueError: if model is no module, key is none, or the model has another parameter; it is unchanged
            then.

    Example:
        >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> initialize(model, 7)
        >>> model.kernel[...].tolist()
        [[0.6677977442741394], [-0.1035371869802475]]
    """
    shapes = {name: x.shape for name, x in state_dict(model).items()}
    tables, slopes = (
        {f"{name}.weight".lstrip(".") for name, layer in names_of(model).items() if isinstance(layer, kind)}
        for kind in (nnx.Embed, nnx.PReLU)
    )
    load_state_dict(model, initial_state(key, shapes, tables, slopes))
