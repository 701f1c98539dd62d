"""The operators of rooms that are imported when they are first used.

Programs that are compiled or exported hold operators by name. A process that loads such a program finds all of them
after `import qtorch`. An operator's functions are in its room, which is imported when the operator is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

_library = torch.library.Library("qtorch", "FRAGMENT")


def _define(schema: str, room: str, run: str, shape: str, batch: str | None = None, *tags: torch.Tag) -> None:
    """Registers an operator.

    Args:
        schema: name, arguments and results, as torch writes them.
        room: the module that has its functions.
        run: the function for tensors with values.
        shape: the function for tensors without values, whose results have shapes and dtypes only.
        batch: the rule for vmap; None where there is none.
        tags: torch's tags.
    """
    name = schema.partition("(")[0]
    _library.define(schema, tags=tags)
    _library.impl(name, _late(room, run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"qtorch::{name}", _late(room, shape), lib=_library)
    if batch is not None:
        torch.library.register_vmap(f"qtorch::{name}", _late(room, batch), lib=_library)


def _differentiate(name: str, room: str, backward: str, keep: str) -> None:
    """Registers an operator's gradient, and the function that keeps for it what it needs."""
    torch.library.register_autograd(
        f"qtorch::{name}", _late(room, backward), setup_context=_late(room, keep), lib=_library
    )


def _late(room: str, name: str) -> Callable[..., Any]:
    """A function of a module that its first call imports."""
    found = cache(lambda: getattr(import_module(room), name))
    return lambda *arguments, **options: found()(*arguments, **options)


_ROUNDING, _DELAYED = "qtorch._rounding.paths.operator", "qtorch.linalg.delayed"
_READ = "Tensor x, Tensor? key, Tensor? window, str number, str rounding, str overflow, str law"
_HISTOGRAM = "Tensor histogram, Tensor low, Tensor high"

_define(f"round({_READ}) -> Tensor", _ROUNDING, "run_round", "round_shape", "batch_round", torch.Tag.flexible_layout)
_define(
    f"encode({_READ}) -> Tensor[]", _ROUNDING, "run_encode", "encode_shapes", "batch_encode", torch.Tag.flexible_layout
)
_define(
    "decode(Tensor codes, Tensor? scales, Tensor? scale, str number, ScalarType dtype, str law) -> Tensor",
    _ROUNDING,
    "run_decode",
    "decode_shape",
    "batch_decode",
    torch.Tag.flexible_layout,
)
_define(
    "convert(Tensor x, ScalarType dtype) -> Tensor",
    "qtorch._conversion",
    "run_convert",
    "run_convert",
    "batch_convert",
    torch.Tag.flexible_layout,
)
_differentiate("convert", "qtorch._conversion", "convert_back", "keep_dtype")
_define("refuse_recording(Tensor?[] gradients) -> ()", "qtorch._rounding.gradients", "raise_if_recorded", "nothing")
# Exported programs name the arguments of their operators, so `form`, the text of the geometry, keeps the name it had.
_define(
    "product(Tensor first, Tensor second, Tensor? addend, Tensor? key, Tensor? state, SymInt[] other, SymInt[] shape, "
    "str form, str which, str product) -> Tensor",
    "qtorch.linalg.operator",
    "run_product",
    "product_shape",
    "batch_product",
)
_define(
    "gather(Tensor state, Tensor scales, Tensor a, Tensor b, Tensor gradient, str forward, str grad_a, str grad_b) "
    "-> Tensor",
    _DELAYED,
    "gather_product",
    "scales_shape",
    None,
    torch.Tag.cudagraph_unsafe,  # it leaves the state to the end of the backward pass
)
_define(
    "gather_rows(Tensor state, Tensor scale, Tensor x, Tensor gradient, str[] numbers) -> Tensor",
    _DELAYED,
    "gather_rows",
    "scales_shape",
)
_define(
    "round_delayed(Tensor x, Tensor? key, Tensor scale, str number, str rounding) -> Tensor",
    _DELAYED,
    "round_with_state",
    "rounded_shape",
)
_define(
    "round_scaled(Tensor x, Tensor scale, str number, int axis) -> Tensor",
    "qtorch._affine.scaled",
    "run_round_scaled",
    "round_scaled_shape",
)
_define(
    f"histogram_update({_HISTOGRAM}, Tensor x, int upsample_rate) -> (Tensor, Tensor, Tensor)",
    "qtorch._affine.observer",
    "run_histogram_update",
    "histogram_update_shapes",
)
_define(
    f"histogram_qparams({_HISTOGRAM}, int qmin, int qmax, bool signed, int middle, str scheme, float eps)"
    " -> (Tensor, Tensor)",
    "qtorch._affine.observer",
    "run_histogram_qparams",
    "histogram_qparams_shapes",
)
# Composite, with no function for shapes: torch takes it apart. `_define` makes operators that stay whole.
_library.define("affine_law(Tensor[] tensors, SymInt[] sizes, str text) -> Tensor", tags=torch.Tag.flexible_layout)
_library.impl("affine_law", _late("qtorch._affine.programs", "run_law"), "CompositeImplicitAutograd")
_define(
    "statistics(Tensor x, Tensor y, str number) -> Tensor",
    "qtorch.insight.tensors",
    "run_statistics",
    "statistics_shape",
)
_define(
    "sums(Tensor a, Tensor? b, int[] axes) -> Tensor",
    "qtorch.reproducible.operations",
    "tensor_sums",
    "sums_shape",
    "batch_sums",
)
_LAWS = "qtorch.reproducible.operator"
_define("reproduce(Tensor?[] tensors, str name, str options) -> Tensor", _LAWS, "run_law", "law_shape", "batch_law")
_define(
    "reproduce_gradients(Tensor?[] tensors, Tensor gradient, str name, str options, bool[] wanted) -> Tensor[]",
    _LAWS,
    "run_law_gradients",
    "gradients_shape",
    "batch_law_gradients",
)
_define(
    "recurrent(Tensor x, SymInt[] sizes, Tensor[] state, Tensor[] of_input, Tensor[] of_hidden, "
    "Tensor[] projection, int[] forms, str[] roundings, str law, bool reverse) -> Tensor[]",
    "qtorch.nn.quantized.dynamic.rnn",
    "run_recurrent",
    "recurrent_shapes",
)
_define(
    "collective(Tensor stack, Tensor? key, str text, str call) -> Tensor",
    "qtorch.distributed.tensors",
    "run_collective",
    "collective_shape",
    "batch_collective",
)
_ATTENTION = "Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? sinks"
_ENGINE = "str engine, bool causal, float? scale, int? window, float? softcap"
_ENGINES = "qtorch.engines.tensors"
_define(f"attention({_ATTENTION}, {_ENGINE}) -> Tensor", _ENGINES, "run_attention", "attention_shape")
_define(
    f"attention_gradients({_ATTENTION}, Tensor gradient, {_ENGINE}) -> (Tensor, Tensor, Tensor, Tensor)",
    _ENGINES,
    "run_gradients",
    "gradients_shape",
)
_define(
    "arithmetic_table(str which, str[] texts, Device device) -> Tensor",
    "qtorch.arithmetic.functions",
    "table_for_program",
    "table_shape",
)
