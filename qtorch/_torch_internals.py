"""All private parts of torch that qtorch uses, each with a replacement for versions of torch that lack it.

A version of torch that lacks a part costs speed, never bits. docs/inside.md says how much some parts save, and
tests/torch/test_internals.py runs without each. All were seen in this form with torch 2.13.0. Without them:

- torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack: the law runs operation by
  operation, without kernels.
- torch.autograd.forward_ad._current_level: the same; `torch.compile` leaves rounding to eager.
- torch._C._functorch.get_interpreter_stack: forward-mode derivatives of forward-mode derivatives are wrong, without
  an error.
- torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack: torch's error about a captured tensor, with
  delayed scales.
- torch._C._FunctionBase.apply: `Function.apply`.
- torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter, torch._C._functorch._add_batch_dim,
  torch._C._ExcludeDispatchKeyGuard: keys by `torch.randint`, of which Inductor draws other numbers than eager
  programs.
- _dynamo_marked_constant, an attribute of functions: the public function, which imports Dynamo; found out by looking
  into torch's file.
- torch._int_mm: integer products of few rows, in compiled programs and on GPUs are products of float32, 1,024 terms
  at a time, which are exact. So they are, too, on processors without instructions for int8
  (`torch.cpu.get_capabilities`), and where `ONEDNN_MAX_CPU_ISA` limits them.
- torch._C.__file__: kernels of a compiler with another OpenMP than torch's, such as clang's, are told the number of
  threads at each call.
- torch._C._nn, torch._dynamo.variables.torch.get_overridable_functions: in compiled programs these functions of a
  model of `reproducible.convert` are torch's own.
- the same, with torch._grouped_mm, _scaled_mm, _scaled_grouped_mm, _convolution and _addmm_activation: a warning:
  recipes leave these products wide in compiled programs.
- the names of two methods of Dynamo, trace_forward_graph and trace_backward_graph: a compiled program lowers the
  products of such a backward, without a warning.
- the code of F.multi_head_attention_forward, copied with another has_torch_function: a warning: attention stays in
  high precision.
- the code of torch.utils.checkpoint.checkpoint and of torch.autograd.Function.apply, and cls in its frame: torch
  2.14 has no such frame of functions: recipes do not warn.
- _checkpoint_wrapped_module, _fsdp_wrapped_module, attributes of modules: names of layers have these parts.
- _orig_mod and _compiled_call_impl, attributes of modules: a lowered model's compiled parts are compiled with the
  hooks of the first call, and then again.
- torch._dynamo.symbolic_convert.InstructionTranslator.current_tx, the graph and the modules of its output, node.hint
  of symbolic sizes: a compiled program does not warn if most of its work stays wide; an eager call does.
- _qualified_op_name, an attribute of functions of torch.ops: recipes take a program's operator with the name of a
  product of torch's for torch's.
- torch._C._get_tracing_state: programs of `torch.jit.trace` are wrong.
- __prepare_scriptable__ of modules: `torch.jit.script` raises torch's error about a type.
- torch._C._current_graph_task_id, torch.autograd.Variable._execution_engine.queue_callback: delayed scales raise; a
  checkpoint in training observes a batch twice.
- torch._C.DisableTorchFunction: `lower` raises where a model needs a mode.
- Tensor._base, torch.nn.Module._parameters: for recipes views of weights are no weights; parameters are.
- torch.utils._pytree.tree_map: of outputs, tuples, lists and mappings only are rounded, no classes that users
  registered as trees.
- torch.nn.Module._forward_pre_hooks, _forward_hooks and what belongs to them: layers that `fuse_modules` or
  `convert` swaps lose users' hooks; those of observers stay and do nothing; `FakeQuantize` takes two steps instead
  of one pass.
- _tensor_name, an attribute of the hooks of torch.nn.utils.prune: `quantize_model` of pruned models raises an
  AttributeError.
- _metadata of state_dicts: those of `to_torch_ao` have no versions, which torch then does not look for.
- torch.ops.aten (view.dtype, full.default, full_like.default, scalar_tensor.default): `to_onnx` takes torch's own
  translation.
- torch.ops.quantized (linear_prepack, make_quantized_cell_params_dynamic, linear_prepack_fp16,
  make_quantized_cell_params_fp16): `to_torch_ao` of recurrent layers raises.
- torch._inductor.aoti_compile_and_package, aoti_load_package, config (aot_inductor.output_path): on a GPU a warning,
  then operation by operation.
- torch._inductor (ir.Pointwise, lowering, virtualized.ops): a compiled program calls the operator, in no loop with
  its neighbours.
- AOTICompiledModel.loader.run: each call on a GPU calls the package.
- torch._subclasses.FakeTensor: programs of `torch.export` hold the operations of laws, not one operator for each.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from qcore.notices import frames, warn

T = TypeVar("T")


def _find(path: str) -> Any:
    """A part of torch by its name; None where this version has none."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _knows(name: str, file: str) -> bool:
    """True if a file of torch has a name; to import the file would take longer."""
    path = Path(torch.__file__).parent / file
    return path.is_file() and name in path.read_text(encoding="utf-8")


_dispatch_modes = _find("_C._len_torch_dispatch_stack")
_transforms = _find("_C._functorch.peek_interpreter_stack")
_without_transforms = _find("_functorch.pyfunctorch.temporarily_clear_interpreter_stack")
_transform_stack = _find("_C._functorch.get_interpreter_stack")
_interpreter = _find("_functorch.pyfunctorch.retrieve_current_functorch_interpreter")
_without_keys = _find("_C._ExcludeDispatchKeyGuard")
_add_batch_dim = _find("_C._functorch._add_batch_dim")
_apply = _find("_C._FunctionBase.apply")
_int_mm = _find("_int_mm")
_capabilities = _find("cpu.get_capabilities")
# oneDNN, which makes torch's product, may be told to leave instructions out. Without those for int8 it adds products
# in pairs in int16, which does not hold 255 * -128 twice.
_limits_onednn = any(map(os.environ.get, ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")))
_has_int8_instructions = (
    not _limits_onednn
    and _capabilities is not None
    and any(map(_capabilities().get, ("avx512_vnni", "avx_vnni", "amx_int8")))
)
INT8_TERMS = 1024  # whose products, of at most 2^14, have sums that float32 holds
_tree_map = _find("utils._pytree.tree_map")
_HOOKS = {True: "_forward_pre_hooks", False: "_forward_hooks"}
_trace = _find("_C._get_tracing_state")
_graph_task = _find("_C._current_graph_task_id")
_queue_callback = _find("autograd.Variable._execution_engine.queue_callback")
_disable_functions = _find("_C.DisableTorchFunction")
_functions_of_layers = _find("_C._nn")
GROUPED_MM, SCALED_MM, ADDMM_ACTIVATION, CONVOLUTION = "_grouped_mm", "_scaled_mm", "_addmm_activation", "_convolution"
_HIDDEN_PRODUCTS = (
    f"{GROUPED_MM} {SCALED_MM} _scaled_grouped_mm {CONVOLUTION} {ADDMM_ACTIVATION} Tensor.{ADDMM_ACTIVATION} "
    "addmv_ sparse.mm sparse.addmm sparse.sampled_addmm"
).split()
COLLECTIVES = "_c10d_functional"  # the namespace of torch.distributed's operators
# The attributes by which wrappers hold a module: those of torch.compile, of checkpoints and of FSDP.
WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_CHECKPOINT = inspect.unwrap(checkpoint).__code__
_FUNCTION = getattr(torch.autograd.Function.apply, "__code__", None)  # torch 2.14 has no code of Python here
_TRACED_PARTS = {"trace_forward_graph": "forward", "trace_backward_graph": "backward"}
_marks_constants = _knows("_dynamo_marked_constant", "_dynamo/decorators.py")


def is_memory(*tensors: torch.Tensor) -> bool:
    """True if kernels may read the memory of tensors: it is there, and aligned, without transform, mode or tangent.

    Without the private parts it is never true: all runs operation by operation.
    """
    if _dispatch_modes is None or _transforms is None:
        return False
    if getattr(forward_ad, "_current_level", 0) >= 0:  # as in `in_forward_mode`, without a call
        return False
    if _transforms() is not None or _dispatch_modes() != 0:
        return False
    if _trace is not None and _trace() is not None:  # `torch.jit.trace` sees operations, and no kernel
        return False
    try:
        for x in tensors:
            address = x.data_ptr()
            if address == 0 and x.numel() != 0:  # torch has zeros that are nowhere
                return False
            if address & 7 and address % x.element_size():  # `torch.frombuffer` takes any offset
                return False
    except RuntimeError:  # the tensor was in a transform that has ended
        return False
    return True


class Unscripted:
    """A module that `torch.jit.script` refuses with the remedy; without the private method torch finds other words."""

    def __prepare_scriptable__(self) -> Any:
        raise RuntimeError(
            f"torch.jit.script of a {type(self).__name__}; allowed are torch.export.export(model, inputs), "
            "torch.compile(model), and torch.jit.trace(model, inputs) of models without products of qtorch.linalg"
        )


def apply_directly(function: Any) -> Callable[..., Any]:
    """`function.apply` without a look at transforms and at the names of arguments, which takes longer than the rest.

    The tensors must be plain (`is_plain_tensor`), and all arguments are given by position.
    """
    return function.apply if _apply is None else super(torch.autograd.Function, function).apply  # type: ignore[misc]


def in_forward_mode() -> bool:
    """True within `torch.autograd.forward_ad.dual_level`, where tensors may have tangents.

    Without the private part always: kernels are not used, and `torch.compile` leaves rounding to eager.
    """
    return getattr(forward_ad, "_current_level", 0) >= 0


def check_one_tangent() -> None:
    """Raises in a forward-mode derivative of a forward-mode derivative, such as `jacfwd(jacfwd(f))`.

    There torch drops the outer tangents of the tensors that an autograd function saves: derivatives would silently be
    0.
    """
    stack = _transform_stack() if _transform_stack is not None else None
    if sum(one.key().name == "Jvp" for one in stack or ()) > 1:
        raise NotImplementedError(
            "torch has no forward-mode derivatives of forward-mode derivatives of autograd functions; allowed are "
            "torch.func.hessian, jacfwd of jacrev, and jacrev of either"
        )


def check_passes() -> None:
    """Raises RuntimeError if this version of torch does not tell the end of a backward pass."""
    if _graph_task is None or _queue_callback is None:
        raise RuntimeError(
            f"torch {torch.__version__} does not say when a backward pass ends, at which delayed scales are advanced; "
            "allowed are scales just in time, such as Scale() for Scale(history=16)"
        )


def in_backward() -> bool:
    """True while torch's engine runs a backward pass in this thread; `check_passes` comes first."""
    return _graph_task() != -1


def is_fake(x: torch.Tensor) -> bool:
    """True if x is a tensor without values that stands for one in a traced program, and no wrapper around it."""
    return type(x) is _find("_subclasses.FakeTensor")


def is_recomputed() -> bool:
    """True in a forward pass that a backward pass runs again, as `torch.utils.checkpoint` does; False if unknown.

    Compiled programs do not ask.
    """
    return not torch.compiler.is_dynamo_compiling() and _graph_task is not None and _graph_task() != -1


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Has the engine call a function once at the end of the backward pass that it runs, unless the pass fails."""
    _queue_callback(function)


def outside_transforms() -> Any:
    """A context outside of all transforms of `torch.func`, where tensors that these have not made may be changed."""
    return nullcontext() if _without_transforms is None else _without_transforms()


def unseen_by_modes() -> Any:
    """A context in which no `TorchFunctionMode` sees torch's functions; in a torch without it all modes see them."""
    return nullcontext() if _disable_functions is None else _disable_functions()


def check_modes() -> None:
    """Raises RuntimeError if this version of torch cannot hide functions from modes, as `unseen_by_modes` does."""
    if _disable_functions is None:
        raise RuntimeError(
            f"torch {torch.__version__} has no torch._C.DisableTorchFunction; lowered there are only models whose "
            "products are those of nn.Linear and nn.Conv1d to Conv3d"
        )


def base_of(x: torch.Tensor) -> torch.Tensor | None:
    """The tensor that a view shows; None of other tensors, and where this version of torch does not say it."""
    return getattr(x, "_base", None)


def operator_of(function: Any) -> str:
    """The full name of a function of torch.ops ("mylib::mm"); "" of torch's other functions."""
    return getattr(function, "_qualified_op_name", "")


def name_of(function: Any) -> str:
    """torch's name of a function; "" of a program's operator, which may have torch's name as well."""
    name = getattr(function, "__name__", "")
    # Compared as a whole: torch.compile traces no method of an operator's name.
    return name if operator_of(function) in ("", f"aten::{name}") else ""


def own_parameters(module: torch.nn.Module) -> dict[str, Any]:
    """The parameters of a module without its children's, and what `torch.func.functional_call` puts in their places."""
    return {name: x for name, x in getattr(module, "_parameters", {}).items() if x is not None}


def constant_result(function: Callable[..., T]) -> Callable[..., T]:
    """A function whose result is a constant of a traced program.

    It is what `torch.compiler.assume_constant_result` does, which imports the whole of Dynamo to set one attribute.
    """
    if not _marks_constants:
        return torch.compiler.assume_constant_result(function)
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_result
def differentiates() -> bool:
    """True within a transform of `torch.func` that differentiates what runs, or what Dynamo traces."""
    stack = _transform_stack() if _transform_stack is not None else None
    return any(one.key().name in ("Grad", "Jvp") for one in stack or ())


def show_to_modes(functions: Iterable[Any]) -> None:
    """Makes Dynamo pass functions to modes, as eager torch does; traced programs call it in a `constant_result`.

    Dynamo leaves out what torch lists as never overridden, and names that begin with an underscore, so a compiled
    program would compute these functions as they are, without a word.
    """
    from torch._dynamo.variables import torch as of_torch

    known = getattr(of_torch, "get_overridable_functions", None)
    if known is None:
        warn(
            f"torch {torch.__version__} hides functions from modes in compiled programs: products by grouped_mm, "
            "scaled_mm and sparse.mm stay in high precision there, and functions of converted models such as hardswish "
            "are torch's"
        )
    else:
        known().update(functions)


def hidden_products() -> set[Any]:
    """Products that Dynamo does not pass to modes."""
    return {found for found in map(_find, _HIDDEN_PRODUCTS) if found is not None}


def hidden_functions() -> set[Any]:
    """Functions in place, and functions of layers, of which Dynamo does not pass all to modes."""
    rooms = [(torch, "_")] if _functions_of_layers is None else [(torch, "_"), (_functions_of_layers, "")]
    found = [getattr(room, name) for room, end in rooms for name in dir(room) if name[0] != "_" and name.endswith(end)]
    return set(filter(callable, found))


@constant_result
def traced_part() -> str:
    """The part of a program's torch.autograd.Function that Dynamo traces now, "forward" or "backward"; "" outside.

    Programs have no word for it, and Dynamo traces a backward with the modes that are on in forward; in eager programs
    it runs when these have ended. The names are those of Dynamo's methods in torch 2.13.
    """
    return next((_TRACED_PARTS[one.f_code.co_name] for one in frames() if one.f_code.co_name in _TRACED_PARTS), "")


def is_checkpoint(frame: FrameType) -> bool:
    """True of the frame of `torch.utils.checkpoint.checkpoint`, which runs a part of a model."""
    return frame.f_code is _CHECKPOINT


def function_of(frame: FrameType) -> type[torch.autograd.Function] | None:
    """The `torch.autograd.Function` whose forward a frame runs; None of other frames, and where torch has no frame."""
    return frame.f_locals["cls"] if frame.f_code is _FUNCTION else None


def opened(function: Callable[..., T]) -> Callable[..., T] | None:
    """A copy of a Python function of torch that runs its statements where a mode would get the call as a whole.

    None if this version of torch asks for modes in another way: they then get the call.
    """
    code = getattr(function, "__code__", None)
    if code is None or "has_torch_function" not in code.co_names:
        return None
    global_names = {**function.__globals__, "has_torch_function": lambda tensors: False}
    made: Any = FunctionType(code, global_names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def is_compiled(module: torch.nn.Module) -> bool:
    """True of a module that `torch.compile`, or its own method `compile`, has made a program of."""
    return without_program(module) is not module or getattr(module, "_compiled_call_impl", None) is not None


def without_program(module: torch.nn.Module) -> torch.nn.Module:
    """The module of which `torch.compile` has made a program, or the module itself."""
    return getattr(module, WRAPPED[0], module)


def traced_program() -> Any:
    """Dynamo's record of the program that it traces now; None where this version of torch has no such record."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        return InstructionTranslator.current_tx().output
    except (ImportError, AttributeError):  # also outside of a trace
        return None


def traced_calls(program: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """The calls of a traced program so far: a function or a method's name, arguments, named arguments, and the result.

    Tensors are tensors without numbers, of the sizes that the trace has. A call of a part, such as the forward of a
    `torch.autograd.Function`, is the calls within.
    """
    known: dict[Any, Any] = {}

    def value(node: Any) -> Any:
        if node not in known:
            known[node] = map_tree(_without_numbers, node.meta.get("example_value", node.meta.get("val")))
        return known[node]

    def walk(graph: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
        for node in graph.nodes:
            if node.op not in ("call_function", "call_method"):
                continue
            parts = [one.target for one in node.args if getattr(one, "op", "") == "get_attr"]
            part = program.nn_modules.get(parts[0]) if parts else None
            if isinstance(part, torch.fx.GraphModule):
                yield from walk(part.graph)
            else:
                arguments = torch.fx.map_arg((node.args, node.kwargs), value)
                yield node.target, *arguments, value(node)

    yield from walk(program.graph)


def _without_numbers(x: Any) -> Any:
    """A tensor of the same sizes and dtype on no device, or a number for one that is symbolic.

    A size that follows from data counts as 1.
    """
    if isinstance(x, torch.Tensor):
        y = torch.empty([_without_numbers(size) for size in x.shape], dtype=x.dtype, device="meta")
        return torch.nn.Parameter(y, requires_grad=False) if isinstance(x, torch.nn.Parameter) else y
    if not isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        return x
    hint = getattr(x.node, "hint", None) if getattr(x.node, "has_hint", lambda: True)() else None
    return 1 if hint is None else hint


def draw_in_vmap(draw: Callable[[Sequence[int]], torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """Words of keys of shape (*shape, 2) inside of `torch.func.vmap`, whose argument `randomness` decides.

    `draw` makes the words for given sizes, as an operator that a vmap outside of this one finds. Without the private
    parts torch draws them; Inductor then draws other numbers than eager programs. "error" raises RuntimeError.
    """
    if None in (_interpreter, _without_keys, _add_batch_dim):
        return torch.randint(0, 2**31, (*shape, 2), dtype=torch.int32)
    vmap: Any = _interpreter()
    randomness, level = vmap.randomness(), vmap.level()
    if randomness == "error":
        raise RuntimeError(
            "vmap: stochastic rounding without a key draws one from torch's generator, and randomness is 'error'; "
            "allowed are randomness='different' and 'same', or a key"
        )
    each = randomness == "different"
    with _without_keys(torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchVmapMode)):
        drawn = draw([vmap.batch_size(), *shape] if each else shape)
    return _add_batch_dim(drawn, 0, level) if each else drawn


def multiplies_int8(device: torch.device) -> bool:
    """True if `torch._int_mm` has instructions for int8 on a device; without them floats are faster.

    `torch.onnx.export` of a program cannot translate it.
    """
    if _int_mm is None or (not torch.compiler.is_dynamo_compiling() and torch.onnx.is_in_onnx_export()):
        return False
    return device.type != "cpu" or _has_int8_instructions


def int8_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The matrix product of int8 matrices: in int32, which wraps around, or in float32 if that holds all sums."""
    if a.shape[1] == 1:  # torch 2.13's gives wrong numbers where both strides of b are 1
        return a.to(torch.int32) * b.to(torch.int32)
    if multiplies_int8(a.device):
        return _int_mm(a, b)
    parts = [slice(first, first + INT8_TERMS) for first in range(0, max(1, a.shape[1]), INT8_TERMS)]
    with torch.autocast(a.device.type, enabled=False):
        sums = a[:, parts[0]].to(torch.float32) @ b[parts[0]].to(torch.float32)
        for part in parts[1:]:
            more = a[:, part].to(torch.float32) @ b[part].to(torch.float32)
            sums = sums.to(torch.int32).add_(more.to(torch.int32))
    return sums


@cache
def openmp_address() -> int | None:
    """The address of torch's `omp_get_max_threads`; None if torch was built without OpenMP or its file was not found.

    A library linked with another OpenMP does not see `torch.set_num_threads`: it gets the number of threads at each
    call.
    """
    try:
        return ctypes.cast(ctypes.CDLL(_find("_C.__file__") or "").omp_get_max_threads, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def with_versions(state_dict: OrderedDict[str, Any], versions: dict[str, int]) -> OrderedDict[str, Any]:
    """A state_dict that tells modules of torch which version of their layout it has; without the private part none."""
    state_dict._metadata = OrderedDict((name, {"version": version}) for name, version in versions.items())  # type: ignore[attr-defined]
    return state_dict


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    """A weight as torch's quantized recurrent cells keep it: quantized, or in float32 for a float16 weight.

    If torch has no such cells any more, it raises ValueError.
    """
    pack = _find("ops.quantized.linear_prepack" if weight.is_quantized else "ops.quantized.linear_prepack_fp16")
    if pack is None:
        raise ValueError(f"torch {torch.__version__} has no packed weights, in which torch.ao keeps recurrent layers")
    return pack(weight, bias)


def pack_recurrent(
    ih: torch.Tensor, ih_bias: torch.Tensor | None, hh: torch.Tensor, hh_bias: torch.Tensor | None
) -> Any:
    """The weights and biases of the two products of a recurrent layer, as torch's quantized layers keep them.

    If torch has no such layers any more, it raises ValueError.
    """
    biases = [torch.zeros(len(ih)) if bias is None else bias for bias in (ih_bias, hh_bias)]
    packed = [pack_linear(weight, bias) for weight, bias in zip((ih, hh), biases, strict=True)]
    if ih.is_quantized:
        return _find("ops.quantized.make_quantized_cell_params_dynamic")(*packed, *biases, True)
    return _find("ops.quantized.make_quantized_cell_params_fp16")(*packed)


def forward_hooks(module: torch.nn.Module, before: bool) -> list[tuple[Any, dict[str, bool]]]:
    """A module's forward pre-hooks, or its forward hooks, with what they were registered with.

    None where this version of torch keeps them elsewhere: then a swapped layer loses its user's hooks.
    """
    name = _HOOKS[before]
    flags = {"with_kwargs": f"{name}_with_kwargs"} | ({} if before else {"always_call": f"{name}_always_called"})
    return [
        (hook, {flag: key in getattr(module, where, ()) for flag, where in flags.items()})
        for key, hook in getattr(module, name, {}).items()
    ]


def hooked_name(hook: Any) -> str:
    """The name of the tensor that a hook of weight norm, spectral norm or pruning computes."""
    return getattr(hook, "_tensor_name", None) or hook.name


def has_forward_hooks(module: torch.nn.Module) -> bool:
    """True if something is registered that a module's call runs, or may be: where torch keeps it elsewhere."""
    return any(getattr(module, name, True) for name in _HOOKS.values())


def drop_forward_hooks(module: torch.nn.Module, before: bool, unwanted: Callable[[Any], bool]) -> None:
    """Takes hooks away from a module; where torch keeps them elsewhere they stay."""
    hooks = getattr(module, _HOOKS[before], {})
    for key in [key for key, hook in hooks.items() if unwanted(hook)]:
        del hooks[key]


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies a function to all that is within tuples, lists and dictionaries, and what else torch takes for a tree."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if _tree_map is not None:
        return _tree_map(function, tree)
    if isinstance(tree, Mapping):
        return type(tree)((name, map_tree(function, each)) for name, each in tree.items())  # type: ignore[call-arg]
    if not isinstance(tree, tuple | list):
        return function(tree)
    mapped = [map_tree(function, each) for each in tree]
    return type(tree)(*mapped) if hasattr(tree, "_fields") else type(tree)(mapped)


class Inductor(NamedTuple):
    """The parts of Inductor that an operator's lowering needs.

    Attributes:
        ops: the operations of a loop's body.
        zero: an index.
        lowerings: those of torch's own operators "view" and "amax", on Inductor's values.
        call: leaves an operator in the program: takes it, and its arguments.
        pointwise: a loop over the elements of a value, with a dtype and a function from an index to a result.
        is_fused: true for a value that is not in memory: the loop that reads it will compute it.
        register: gives an operator a lowering.
    """

    ops: Any
    zero: Any
    lowerings: dict[str, Callable[..., Any]]
    call: Callable[..., Any]
    pointwise: Callable[..., Any]
    is_fused: Callable[[Any], bool]
    register: Callable[[Any, Callable[..., Any]], Any]


def imports_inductor() -> bool:
    """True if the process has imported Inductor, which takes seconds."""
    return "torch._inductor.lowering" in sys.modules


@cache
def inductor() -> Inductor | None:
    """Inductor's parts; None where this version of torch has them elsewhere: operators then stay calls."""
    try:
        import sympy
        from torch._inductor import ir, lowering, virtualized

        table, fallback, register = lowering.lowerings, lowering.fallback_handler, lowering.register_lowering
        lowerings = {name: table[getattr(torch.ops.aten, name).default] for name in ("view", "amax")}
        create, ops = ir.Pointwise.create, virtualized.ops
    except (ImportError, AttributeError, KeyError):
        return None

    def pointwise(x: Any, dtype: torch.dtype, inner: Callable[[Any], Any]) -> Any:
        return create(device=x.get_device(), dtype=dtype, inner_fn=inner, ranges=list(x.get_size()))

    return Inductor(
        ops,
        sympy.Integer(0),
        lowerings,
        lambda operator, *arguments: fallback(operator, add_to_fallback_set=False)(*arguments),
        pointwise,
        lambda x: x.maybe_get_name() is None,
        lambda operator, lower: register(operator, type_promotion_kind=None)(lower),
    )


def compile_package(program: Any, path: str, outputs: str, options: Mapping[str, Any]) -> None:
    """Compiles an exported program to a package of Inductor's with some options, by way of a folder for outputs.

    Inductor's own folder is the same for all processes that compile the same program, and they would package each
    other's half-written files.

    Raises:
        Exception: if it cannot.
    """
    from torch._inductor import aoti_compile_and_package, config

    with config.patch({"aot_inductor.output_path": outputs} | dict(options)):
        aoti_compile_and_package(program, package_path=path)


def open_package(path: str, device_index: int) -> Callable[[list[torch.Tensor]], object]:
    """The function that runs a package on a list of tensors."""
    from torch._inductor import aoti_load_package

    package: Any = aoti_load_package(path, device_index=device_index)
    run = getattr(getattr(package, "loader", None), "run", None)  # which looks at no trees
    return (lambda tensors: package(*tensors)) if run is None else run


def functions_of_layers(name: str) -> tuple[Any, ...]:
    """The function that torch's function of a layer calls, in a tuple; empty if this version of torch has none."""
    found = getattr(_functions_of_layers, name, None)
    return () if found is None else (found,)


def exported_operators() -> dict[str, Any]:
    """Operators whose translation to ONNX is the library's own, by name; None where torch has none."""
    return {
        "view": _find("ops.aten.view.dtype"),
        "full": _find("ops.aten.full.default"),
        "full_like": _find("ops.aten.full_like.default"),
        "scalar_tensor": _find("ops.aten.scalar_tensor.default"),
    }
