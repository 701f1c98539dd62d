"""The parameters of JAX's primitives that are read from equations: names that JAX does not promise to keep.

They are `Parameters`' attributes, and nothing else has their names. A JAX without one of them gives an error with its
name, and tests/jax/test_parameters.py traces a program with each primitive to find it before users do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.extend import core

from qcore.arguments import quoted

CHECKPOINT: str = core.primitives.remat_p.name


class _Parameter:
    """A parameter, by its attribute's name, of the primitives that must have it; None of all others without it."""

    def __init__(self, primitives: str) -> None:
        self.primitives = frozenset(primitives.split())

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, parameters: Parameters | None, owner: type) -> Any:
        if parameters is None:
            return self
        if self.name in parameters.given:
            return parameters.given[self.name]
        if parameters.primitive in self.primitives:
            raise RuntimeError(
                f"jax {jax.__version__} has no parameter {quoted(self.name)} of {parameters.primitive}, which qjax "
                "reads; allowed is a version that has it, such as 0.10"
            )
        return None


class Parameters:
    """The parameters of an equation, by names."""

    # Calls, loops and branches.
    jaxpr = _Parameter(f"scan jit shard_map {CHECKPOINT}")
    call_jaxpr = _Parameter("custom_jvp_call custom_vjp_call")  # and of calls of older versions
    name = _Parameter("jit name")  # of the function, and of the value
    in_shardings = _Parameter("jit")
    out_shardings = _Parameter("jit")
    prevent_cse = _Parameter(CHECKPOINT)
    differentiated = _Parameter(CHECKPOINT)
    policy = _Parameter(CHECKPOINT)
    length = _Parameter("scan")
    reverse = _Parameter("scan cumsum")
    unroll = _Parameter("scan")
    cond_jaxpr = _Parameter("while")
    body_jaxpr = _Parameter("while")
    cond_nconsts = _Parameter("while")
    body_nconsts = _Parameter("while")
    branches = _Parameter("cond")
    mesh = _Parameter("shard_map")
    in_specs = _Parameter("shard_map")
    out_specs = _Parameter("shard_map")
    check_vma = _Parameter("shard_map")
    newly_manual_axes = _Parameter("")  # of shard_map from jax 0.10.2 on
    manual_axes = _Parameter("")  # and before
    grid_mapping = _Parameter("pallas_call")
    target_name = _Parameter("ffi_call")
    # Of functions with a derivative of their own, as `of_bind` has them.
    subfuns = _Parameter("")
    out_trees = _Parameter("")
    symbolic_zeros = _Parameter("custom_jvp_call custom_vjp_call")
    # Products and convolutions.
    dimension_numbers = _Parameter(
        "dot_general conv_general_dilated gather scatter scatter-add scatter-mul scatter-max scatter-min "
        "bcoo_dot_general bcoo_dot_general_sampled bcoo_spdot_general bcsr_dot_general"
    )
    ragged_dot_dimension_numbers = _Parameter("ragged_dot_general")
    batch_group_count = _Parameter("conv_general_dilated")
    feature_group_count = _Parameter("conv_general_dilated")
    window_strides = _Parameter("conv_general_dilated reduce_window_max reduce_window_min reduce_window_sum")
    padding = _Parameter("conv_general_dilated reduce_window_max reduce_window_min reduce_window_sum")
    lhs_dilation = _Parameter("conv_general_dilated")
    rhs_dilation = _Parameter("conv_general_dilated")
    lhs_spinfo = _Parameter("bcoo_dot_general bcoo_spdot_general bcsr_dot_general")
    rhs_spinfo = _Parameter("bcoo_spdot_general")
    spinfo = _Parameter("coo_matvec coo_matmat")
    # Pools, reductions and orders.
    window_dimensions = _Parameter("reduce_window_max reduce_window_min reduce_window_sum")
    window_dilation = _Parameter("reduce_window_max reduce_window_min reduce_window_sum")
    base_dilation = _Parameter("reduce_window_max reduce_window_min reduce_window_sum")
    axes = _Parameter("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin")
    num_keys = _Parameter("sort")
    k = _Parameter("top_k")
    # What moves numbers.
    axis = _Parameter("split cumsum")  # and stack, and of newer versions top_k
    dimension = _Parameter("concatenate iota sort")
    dimensions = _Parameter("rev")
    shape = _Parameter("broadcast_in_dim csr_matvec csr_matmat")
    broadcast_dimensions = _Parameter("broadcast_in_dim")
    permutation = _Parameter("transpose")
    reps = _Parameter("tile")
    sizes = _Parameter("split")
    start_indices = _Parameter("slice")
    limit_indices = _Parameter("slice")
    strides = _Parameter("slice")
    padding_config = _Parameter("pad")
    slice_sizes = _Parameter("gather dynamic_slice")
    mode = _Parameter("gather scatter scatter-add scatter-mul scatter-max scatter-min")
    fill_value = _Parameter("gather")
    # Elements.
    y = _Parameter("integer_pow")
    rounding_method = _Parameter("round")
    exponent_bits = _Parameter("reduce_precision")
    mantissa_bits = _Parameter("reduce_precision")
    # Of scans: numbers of operands up to jax 0.10, and from 0.12 on the trees of operands instead.
    num_consts = _Parameter("")
    num_carry = _Parameter("")
    ft_in = _Parameter("")

    def __init__(self, primitive: str, given: Mapping[str, Any]) -> None:
        self.primitive, self.given = primitive, given

    @property
    def shard_axes(self) -> frozenset[Any]:
        """The axes of its mesh over which a shard_map splits arrays."""
        return self.manual_axes if self.newly_manual_axes is None else self.newly_manual_axes

    @property
    def program(self) -> Any:
        """The program of a call, or of a scan; None of other equations."""
        return self.call_jaxpr if self.jaxpr is None else self.jaxpr


def parameters(equation: Any) -> Parameters:
    return Parameters(equation.primitive.name, equation.params)


def of_bind(equation: Any) -> Parameters:
    """The parameters that an equation's primitive is bound with, which have the functions of a derivative."""
    return Parameters(equation.primitive.name, equation.primitive.get_bind_params(equation.params))
