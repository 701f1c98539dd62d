"""Kernels: how it gets fast. Modules are imported when they are first used: the first kernel needs them."""

from typing import TYPE_CHECKING

from qcore.lazy import subpackages

if TYPE_CHECKING:
    from qtorch._kernels import laws as laws
    from qtorch._kernels import packages as packages

__getattr__, __dir__ = subpackages(__name__, ("laws", "packages"))
