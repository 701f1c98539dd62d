"""Settings of layers, and the data on which a workflow runs: checks and messages.

Models are trees of modules with dotted names (`qcore.names`). PyTorch and JAX give the names and the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from qcore.arguments import check_type, quoted
from qcore.names import MOST, full_name, is_in, shown, some
from qcore.notices import warn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of a model's call


def check_entries(
    entries: Mapping[Any, Any],
    modules: Sequence[tuple[str, Any]],
    kind_of: Callable[[Any], type],
    classes: Sequence[type],
) -> None:
    """Raises unless each entry has settings, or None, and names a module of the model, or the type of one.

    Args:
        entries: settings by names and exact types of modules.
        modules: all names, with the modules.
        kind_of: the type that a module was made with.
        classes: of settings.

    Raises:
        TypeError, ValueError: if settings have another class, or an entry names nothing, so that it would do nothing.
    """
    names = sorted({name for name, _ in modules})
    kinds = {kind_of(module) for _, module in modules}
    for key, settings in entries.items():
        check_settings(f"the entry {quoted(key)}", settings, classes)
        if isinstance(key, str) and key not in names:
            raise ValueError(f"the entry {quoted(key)} names no module; there are {some(names[1:])}")
        if isinstance(key, type) and key not in kinds:
            derived = [name for name, module in modules if isinstance(module, key)]
            more = f"; {shown(derived[0])} is of a subclass, which needs an entry of its own" if derived else ""
            others = some(sorted({kind.__name__ for kind in kinds}))
            raise ValueError(f"the entry {key.__name__} is the exact type of no module; there are {others}{more}")
        if not isinstance(key, (str, type)):
            raise TypeError(
                f"the entry {quoted(key)} is a {type(key).__name__}; allowed are names and types of modules"
            )


def check_settings(where: str, settings: Any, classes: Sequence[type]) -> None:
    """Raises TypeError unless settings are of these classes, or None; torch.ao has classes of the same names."""
    if settings is not None and not isinstance(settings, tuple(classes)):
        kind, package = type(settings), classes[0].__module__.partition(".")[0]
        raise TypeError(
            f"{where} has a qconfig that is a {kind.__module__}.{kind.__name__}; allowed are {package}.quantization's "
            f"{' and '.join(one.__name__ for one in classes)}, and None"
        )


def check_effects(
    entries: Mapping[Any, Any],
    modules: Sequence[tuple[str, Any]],
    kind_of: Callable[[Any], type],
    library: object,
    done: Collection[str],
    what: str,
    more: str = "",
) -> None:
    """Raises ValueError unless each entry with settings has changed a layer.

    Args:
        entries, modules, kind_of: as for `check_entries`, before the change.
        library: its classes are named without a module.
        done: the names of the layers that were changed.
        what: the layers that an entry can change, in the words of the message.
        more: the end of the message for a model without such a layer.
    """
    for key, settings in entries.items():
        roots = [name for name, module in modules if key in (name, kind_of(module))]
        if settings is None or any(is_in(name, root) for name in done for root in roots):
            continue
        if key == "":
            kinds = sorted({full_name(kind_of(module), library) for _, module in modules})
            raise ValueError(f"model has no {what}; there are {some(kinds)}{more}")
        raise ValueError(f"the entry {quoted(key) if isinstance(key, str) else key.__name__} has no {what}")


def dynamic_entries(qconfig_spec: Any, default: Any) -> Mapping[Any, Any]:
    """The settings by names and types that `quantize_dynamic` got; raises TypeError if it is something else."""
    if isinstance(qconfig_spec, Mapping):
        return qconfig_spec
    if isinstance(qconfig_spec, (str, type)) or not isinstance(qconfig_spec, Iterable):
        allowed = "None, a dict, and a set of names and types of modules"
        kind = type(qconfig_spec).__name__
        raise TypeError(f"qconfig_spec={quoted(qconfig_spec)} is a {kind}; allowed are {allowed}")
    names = list(qconfig_spec)
    for one in names:
        check_type("each of qconfig_spec", one, (str, type), "a name or a type of modules")
    return dict.fromkeys(names, default)


def check_some(qconfig: Mapping[Any, Any]) -> None:
    """Raises ValueError if a dictionary of settings has none."""
    if not any(one is not None for one in qconfig.values()):
        raise ValueError("qconfig has no settings but None; allowed are a QConfig or a QConfigDynamic for some layer")


def check_train(train: Any, calibrate: Any) -> None:
    """Raises TypeError unless train is a function, or None, and the only one of both arguments."""
    if train is not None:
        check_type("train", train, Callable, "a function that trains the model it gets")
        if calibrate is not None:
            raise TypeError("calibrate and train are given; allowed is one of them")


def first_and_all(calibrate: Any, is_one: Callable[[Any], bool]) -> tuple[Any, Iterator[Any]]:
    """The first of a list of inputs, and all of them, of which the first is not taken twice from the list.

    Args:
        calibrate: any iterable.
        is_one: True of one input, which is not a list of them.

    Raises:
        TypeError: if it is something else.
        ValueError: if it is empty.
    """
    if not isinstance(calibrate, Iterable) or isinstance(calibrate, (str, Mapping)) or is_one(calibrate):
        raise TypeError(
            f"calibrate is a {type(calibrate).__name__}; allowed are None, a list of inputs ([x]), and a function that "
            "runs the model it gets"
        )
    batches = iter(calibrate)
    try:
        first = next(batches)
    except StopIteration:
        raise ValueError("calibrate has no inputs; allowed are one or more") from None
    return first, chain([first], batches)


def arguments_of(batch: Any) -> Arguments:
    """The arguments of a model's call: one array or tensor, a tuple of arguments, or a dictionary of them by name."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}


class HasRunError(BaseException):
    """Ends a run at the model's first call; handlers of `Exception` in users' code do not catch it."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        self.arguments = arguments


def first_arguments(run: Callable[[Any], object], stopping: Any, name: str) -> Arguments:
    """The arguments of the first call of a model in a function that runs it.

    Args:
        run: the function.
        stopping: a model that raises HasRunError when it is called.
        name: the function's name in messages.

    Raises:
        ValueError: if it does not run the model.
    """
    try:
        run(stopping)
    except HasRunError as stopped:
        return stopped.arguments
    raise ValueError(f"{name} has not run the model; allowed is a function that calls the model it gets")


def needs_data(path: str) -> ValueError:
    """The error for a layer whose settings need data, if no data were given."""
    return ValueError(
        f"calibrate=None; {shown(path)} needs the range of its results: allowed are inputs, a function that runs the "
        "model, and settings that need no data (QConfig(None, ...))"
    )


def warn_of_floats(left: Sequence[str], more: str = "") -> None:
    """Warns of layers that have settings and stay in floats.

    Args:
        left: their names and reasons.
        more: the end of the message, with the remedy.
    """
    if left:
        others = f"; and {len(left) - MOST} more, see report(model)" if len(left) > MOST else ""
        warn(f"these layers stay in floats: {'; '.join(left[:MOST])}{others}{more}")


# Reasons why layers are in floats.
KEEPS_SCALE = "its result has the scale of its input"
FOR_INTEGERS = "it is for integers"
UNPREPARED = "it is not prepared"
UNSEEN = "it has seen nothing yet"


def why_no_form(
    kind: str, bases: Sequence[str], own: Sequence[str], dynamic: str = "", static: bool = False, remedy: str = ""
) -> str:
    """The reason of a layer whose class no quantized one replaces; `own` parameters are used by code around layers."""
    if bases:
        return f"it is of a subclass of {bases[0]}, and only exact types are swapped{remedy}"
    if own:
        return f"code of its own uses its {', '.join(own)}"
    if static:
        return f"there is no dynamic {kind}: a QConfig, and data, quantize it"
    more = f" with fixed ranges: the settings {{{dynamic}: default_dynamic_qconfig}} have one" if dynamic else ""
    return f"there is no quantized {kind}{more}"
