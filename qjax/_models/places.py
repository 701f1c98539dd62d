"""Where in a model of flax an error comes from."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import currentframe

from flax import nnx

from qjax._models.tree import all_names, shown


def running_layer() -> str:
    """The innermost module whose code runs, as errors begin with it: "layer 'fc': "; "" where no module's does.

    Its name is that in the outermost module around it.

    Example:
        >>> running_layer()
        ''
    """
    modules = list(_running_modules())
    for model in reversed(modules):
        names = {id(module): name for name, module in reversed(all_names(model))}
        if id(modules[0]) in names:
            return f"{shown(names[id(modules[0])])}: "
    return ""


def _running_modules() -> Iterator[nnx.Module]:
    """The modules whose methods run, innermost first: what each function on the stack got as its first argument.

    flax keeps no record of the module that runs, and wrappers around all calls would change every model for the sake of
    an error. So the stack is read, and only when there is an error to write.
    """
    frame = currentframe()
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, nnx.Module):
            yield first
        frame = frame.f_back
