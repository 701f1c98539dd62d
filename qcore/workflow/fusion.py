"""Which layers in a row become one, and what is said of others; PyTorch and flax give the kinds of their layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from qcore.arguments import quoted
from qcore.names import joined, shown, some
from qcore.notices import warn
from qcore.workflow.tree import Tree


class Kind(NamedTuple):
    """The kind of a layer.

    Attributes:
        name: "linear", "convolution", "transposed", "norm" or "relu"; "" for others.
        dims: the dimensions of its images; 0 if the class serves all.
    """

    name: str
    dims: int = 0


class Norm(NamedTuple):
    """A batch norm behind a layer.

    Attributes:
        features: the number of its features.
        outputs: those of the layer.
        has_statistics, has_scale: whether it has running statistics, and a scale and a shift.
        remedy: the arguments that give it both.
    """

    features: int
    outputs: int | None
    has_statistics: bool
    has_scale: bool
    remedy: str


def why_not_fused(
    names: Sequence[str], kinds: Sequence[Kind], training: bool, norm: Norm | None, more: str = ""
) -> str:
    """The reason why layers in a row are not fused; "" if they are.

    Args:
        names: of the layers' classes.
        kinds: of the layers, and of a function behind them.
        training: False if a batch norm is folded into the layer before it.
        norm: the second layer if it is one.
        more: the end of the message, about functions.
    """
    if not _is_row(kinds, training):
        return (
            f"there is no fused layer of ({', '.join(names)}); allowed are, in this order and exactly, a convolution "
            "and its BatchNorm, with a ReLU or without; a convolution, Linear, or BatchNorm of images and a ReLU; and "
            "in evaluation a Linear and its BatchNorm, with a ReLU or without, or a transposed convolution and its "
            f"BatchNorm{more}"
        )
    if norm is None:
        return ""
    if norm.features != norm.outputs:
        return f"the batch norm has num_features={norm.features}; allowed is {norm.outputs}, as the layer's outputs"
    if not norm.has_statistics or (training and not norm.has_scale):
        return (
            f"the batch norm has no running statistics or, in training, no scale and shift; allowed are {norm.remedy}"
        )
    return ""


def _is_row(kinds: Sequence[Kind], training: bool) -> bool:
    (first, dims), *rest = kinds
    has_relu = rest[-1:] == [Kind("relu")]
    middle = rest[: len(rest) - has_relu]
    if middle not in ([], [Kind("norm", dims)]) or not rest:
        return False
    if first == "norm":  # there is no quantized batch norm of one dimension
        return not middle and dims != 1
    if first == "transposed":  # nothing trains it, and its integers have no ReLU
        return not (training or has_relu)
    return first == "convolution" or (first == "linear" and not (middle and training))


def rows_to_fuse(modules_to_fuse: Any) -> Any:
    """The lists of names: the argument is one such list, or a list of them; raises TypeError if it is neither."""
    listed = isinstance(modules_to_fuse, Collection) and not isinstance(modules_to_fuse, str)
    if not listed or all(isinstance(name, str) for name in modules_to_fuse):
        modules_to_fuse = [modules_to_fuse]
    for row in modules_to_fuse:
        if not isinstance(row, Collection) or isinstance(row, str):
            raise _no_names(row)
    return modules_to_fuse


def check_row(row: Sequence[Any], names: Mapping[str, Any], least: int = 2) -> None:
    """Raises unless a row has some different names of layers that have no other name.

    Args:
        row: the argument's.
        names: the modules by all their names.
        least: how many layers there are at least.
    """
    for name in row:
        if not isinstance(name, str):
            raise _no_names(name)
        if name not in names:
            known = some([one for one in names if one])
            raise ValueError(f"modules_to_fuse has {quoted(name)}, which names no module; there are {known}")
    layers = {id(names[name]) for name in row}
    if len(row) < least or len(layers) < len(row):
        allowed = "different layers" if least == 1 else "two or more layers"
        raise ValueError(f"modules_to_fuse has {list(row)}; allowed are {allowed}")
    for name in row:
        same = sorted(one for one, module in names.items() if module is names[name])
        if len(same) > 1:
            raise ValueError(f"modules_to_fuse has {quoted(name)}, which is one layer with the names {same}")


def _no_names(value: Any) -> TypeError:
    return TypeError(f"modules_to_fuse has {quoted(value)}; allowed are lists of names: [['conv', 'bn', 'relu']]")


def fused_rows(
    modules_to_fuse: Any, modules: Mapping[str, Any], fuse: Callable[[list[Any]], Sequence[Any]], least: int = 2
) -> dict[str, Any]:
    """What takes the place of the layers of some rows, by name.

    Args:
        modules_to_fuse: a row of names, or a list of rows.
        modules: the modules by all their names.
        fuse: the fused layer of a row, and what stands at its other names.
        least: how many layers a row has at least.

    Raises:
        TypeError, ValueError: if a row is wrong, or as fuse does, with the row's names.
    """
    made: dict[str, Any] = {}
    for row in rows_to_fuse(modules_to_fuse):
        check_row(row, modules, least)
        if twice := [name for name in row if name in made]:
            raise ValueError(f"modules_to_fuse has {quoted(twice[0])} in two rows; allowed is one")
        try:
            layers = fuse([modules[name] for name in row])
        except (TypeError, ValueError) as error:
            raise type(error)(f"modules_to_fuse has {list(row)}: {error}") from error
        made.update(zip(row, layers, strict=True))
    return made


def warn_of_unfused(tree: Tree, model: Any, trains: Callable[[str, Any, Any], bool]) -> None:
    """Warns of convolutions right before a batch norm: they are trained with other weights than inference has.

    Args:
        tree, model: the modules.
        trains: true of the path of a convolution, the convolution, and a batch norm that can be fused with it.
    """
    for path, parent in tree.walk(model):
        for (name, first), (after, second) in pairwise(tree.children(parent)):
            convolution, norm = joined(path, name), joined(path, after)
            if trains(convolution, first, second):
                warn(
                    f"{shown(convolution)} is a convolution before the batch norm '{norm}', and not fused with it: "
                    "training sees other weights than the converted model has; call fuse_modules(model, "
                    f"[{[convolution, norm]}])"
                )
