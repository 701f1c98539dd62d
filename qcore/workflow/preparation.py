"""Preparation: which layers of a model are observed before it is converted; PyTorch and flax observe them."""

from __future__ import annotations

from typing import Any, Protocol

from qcore.workflow.tree import Tree


class Preparation(Tree, Protocol):
    """The layers of a framework before they are quantized."""

    def settings(self, path: str, layer: Any) -> Any: ...  # None for floats
    def needs_no_observer(self, path: str, layer: Any, settings: Any) -> bool: ...  # settings alone convert it
    def is_observed(self, layer: Any, settings: Any) -> bool: ...  # its form has the range of its results, or rounds
    def is_prepared(self, layer: Any) -> bool: ...  # by an earlier call
    def observed(self, path: str, layer: Any, settings: Any) -> Any: ...  # what takes its place, or it

    def keep(self, layer: Any, settings: Any) -> None:
        """Gives a layer without an observer its settings; nothing where it has them."""

    def prepared(self, model: Any) -> tuple[Any, set[str]]:
        """The model with observers, and the paths of the layers that settings reach."""
        done = set[str]()

        def change(path: str, layer: Any) -> Any:
            settings = self.settings(path, layer)
            if settings is None:
                return layer
            alone = self.needs_no_observer(path, layer, settings)
            if not alone and not self.is_observed(layer, settings):
                return layer
            done.add(path)
            if alone:
                self.keep(layer, settings)
            return layer if alone or self.is_prepared(layer) else self.observed(path, layer, settings)

        return self.rebuilt(model, change), done
