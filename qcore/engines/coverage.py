"""What of an engine a model computes: the report of `apply`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from qcore.engines.engine import Engine
from qcore.notices import warn
from qcore.tables import fitted_table


class Covered(NamedTuple):
    """A field of an engine in a model.

    Attributes:
        field: its name, such as "norm".
        layers: the number of layers that compute it.
        kinds: the classes of these layers.
        undefined: what the model has, and the field does not define; "" if nothing.

    Example:
        >>> Covered("norm", 5, "LlamaRMSNorm", "").layers
        5
    """

    field: str
    layers: int
    kinds: str
    undefined: str


@dataclass(frozen=True, repr=False)
class Coverage:
    """The fields of an engine that are not None, and the layers of a model that compute them; `print` shows a table.

    Attributes:
        engine: the engine.
        rows: a `Covered` for each field.

    Example:
        >>> print(Coverage(Engine.of("exact"), (Covered("attention", 2, "LlamaAttention", ""),)))
        field      layers  kinds           undefined
        attention  2       LlamaAttention
    """

    engine: Engine
    rows: tuple[Covered, ...]

    @property
    def undefined(self) -> tuple[Covered, ...]:
        """The rows of what the engine does not define for this model."""
        return tuple(row for row in self.rows if row.undefined)

    def __str__(self) -> str:
        rows = [(row.field, str(row.layers), row.kinds, row.undefined) for row in self.rows]
        lines = [line for part in fitted_table(Covered._fields, rows) for line in part]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def given_fields(engine: Engine) -> list[str]:
    """The fields of an engine that say something else than that a layer stays as it is."""
    found = [one.name for one in fields(engine) if one.init]
    # "root" and "residual" are parts of what `norm` and `activations` say, and `on` of `products`.
    silent = {"on", "log_softmax", *([] if engine.norm else ["root"]), *([] if engine.activations else ["residual"])}
    return [name for name in found if name not in silent and getattr(engine, name) is not None]


def covered(engine: Engine, kinds: Mapping[str, Iterable[str]], undefined: Mapping[str, str]) -> Coverage:
    """The coverage of an engine; a warning names what the model has, and the engine does not define.

    Args:
        engine: the engine.
        kinds: for each field the classes of the layers that compute it, one for each layer.
        undefined: for some fields what is not computed.
    """
    rows = []
    for name in given_fields(engine):
        layers = list(kinds.get(name, ()))
        rows.append(Covered(name, len(layers), ", ".join(dict.fromkeys(layers)), undefined.get(name, "")))
    found = Coverage(engine, tuple(rows))
    if found.undefined:
        texts = "; ".join(f"{row.field}: {row.undefined}" for row in found.undefined)
        warn(f"the engine does not define all of the model: {texts}; engines.report has the table")
    return found
