"""Functions that others want to be called when an optimizer's state is saved or loaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

Hook = Callable[..., Any]


class Hooks(OrderedDict[int, Hook]):
    """Hooks of one kind, in the order in which they are called."""

    def add(self, hook: Hook, prepend: bool) -> RemovableHandle:
        """Adds a hook after the others, or before them; the handle removes it."""
        handle = RemovableHandle(self)
        self[handle.id] = hook
        if prepend:
            self.move_to_end(handle.id, last=False)
        return handle

    def apply(self, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        """The state after all hooks, each of which may return another one."""
        for hook in self.values():
            state = hook(optimizer, state) or state
        return state

    def call(self, optimizer: Any) -> None:
        for hook in self.values():
            hook(optimizer)


class StateHooks:
    """`torch.optim.Optimizer`'s four ways to register such functions."""

    _before_saving: Hooks
    _after_saving: Hooks
    _before_loading: Hooks
    _after_loading: Hooks

    def _forget_hooks(self) -> None:
        self._before_saving, self._after_saving = Hooks(), Hooks()
        self._before_loading, self._after_loading = Hooks(), Hooks()

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        return self._before_saving.add(hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        return self._after_saving.add(hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        return self._before_loading.add(hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        return self._after_loading.add(hook, prepend)
