"""The layer of a torch model in which an error is raised."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from qcore.names import shown
from qcore.notices import running


def running_layer() -> str:
    """The beginning of an error message: "layer 'fc': " for the innermost module whose code runs, or "" outside.

    The name is the one in the outermost module around it.

    Example:
        >>> running_layer()
        ''
    """
    if torch.compiler.is_dynamo_compiling():  # the frames are Dynamo's own
        return ""
    modules = list(running_modules())
    for model in reversed(modules):
        for name, layer in model.named_modules():
            if layer is modules[0]:
                return f"{shown(name)}: "
    return ""


def running_modules() -> Iterator[nn.Module]:
    """The modules whose methods run, innermost first: first arguments of the functions on the stack.

    torch keeps no record of the module that runs. Hooks on all layers would cost time in each call of a model; hooks
    for all modules of a process make torch.compile compile again; and Dynamo does not trace a ContextVar. So this
    function reads the stack, only when there is an error to write.
    """
    return running(nn.Module)
