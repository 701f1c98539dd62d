"""SGD, Adam and AdamW as torch's optimizers, and clipping of gradients, with the steps of `qcore.reproducible`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from qcore.arguments import check_float, check_type, quoted
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.optimizers import ADAM, adam_options, sgd_options
from qcore.reproducible.optimizers import SGD as SGD_LAW
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch.reproducible.functions import FUNCTIONS
from qtorch.reproducible.fused.plan import replace

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

Loss = TypeVar("Loss")  # what a closure returns
_MOST = 1 << 20  # numbers that are updated at a time, as if they were those of one parameter


def listed_parameters(params: Any) -> list[Any]:
    """What an optimizer is for; raises where it is no list of tensors or groups, or an empty one."""
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise TypeError(f"params is a {type(params).__name__}; allowed are a list of tensors and a list of dicts")
    found = list(params)
    if not found:
        raise ValueError("params has no tensors; allowed are a list of tensors and a list of dicts")
    return found


class _Optimizer(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float | torch.Tensor, options: dict[str, Any]) -> None:
        rate = lr if isinstance(lr, torch.Tensor) else check_float("lr", lr)
        super().__init__(listed_parameters(params), {"lr": rate} | options)

    # What the state of a parameter has: numbers of steps, and tensors of the parameter's shape.
    counts: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a `state_dict` of an optimizer of this kind, or of torch's optimizer of the same name.

        Args:
            state_dict: "state" by the numbers of parameters, and "param_groups" for the same number of parameters.

        Raises:
            TypeError, ValueError: if an entry does not belong to such an optimizer; nothing is loaded then.
        """
        check_type("state_dict", state_dict, dict, "a dict")
        for name, kind in (("state", dict), ("param_groups", list)):
            check_type(f"state_dict['{name}']", state_dict.get(name), kind, f"a {kind.__name__}")
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"state_dict['param_groups'] has {len(groups)} groups; allowed are {len(self.param_groups)}"
            )
        for i, (group, own) in enumerate(zip(groups, self.param_groups, strict=True)):
            where = f"state_dict['param_groups'][{i}]"
            check_type(where, group, dict, "a dict")
            lacking = sorted({*self.defaults, "params"} - {*group})
            if lacking:
                raise ValueError(f"{where} lacks {', '.join(lacking)}")
            numbers, parameters = group["params"], own["params"]
            check_type(f"{where}['params']", numbers, list, "a list")
            if len(numbers) != len(parameters):
                raise ValueError(f"{where}['params'] has {len(numbers)} entries; allowed are {len(parameters)}")
            try:
                self._check_options(group)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{where}: {error}") from None
            for number, p in zip(numbers, parameters, strict=True):
                if number in state_dict["state"]:
                    self._check_state(f"state_dict['state'][{quoted(number)}]", state_dict["state"][number], p, group)
        super().load_state_dict(state_dict)

    def _check_options(self, group: dict[str, Any]) -> None:
        """Raises an error that names a number of a group if it is out of range."""
        rate = group["lr"]
        if isinstance(rate, torch.Tensor) and rate.numel() != 1:
            raise ValueError(f"lr has shape {tuple(rate.shape)}; allowed is one number")
        check_float("lr", rate)

    def _check_state(self, where: str, state: Any, p: torch.Tensor, group: dict[str, Any]) -> None:
        """Raises an error that names an entry of a parameter's state if it is not one."""
        check_type(where, state, dict, "a dict")
        for name in (*self.counts, *self.buffers) if state else ():
            entry = f"{where}['{name}']"
            check_type(entry, state.get(name), torch.Tensor, "a torch.Tensor")
            shape = p.shape if name in self.buffers else ()
            if state[name].dtype is not torch.float32 or state[name].shape != shape:
                came = f"{state[name].dtype} of shape {tuple(state[name].shape)}"
                raise ValueError(f"{entry} is {came}; allowed is torch.float32 of shape {tuple(shape)}")
            if name in self.counts:
                FUNCTIONS.count(entry, state[name], 0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """A step for all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate = torch.as_tensor(group["lr"], dtype=torch.float32).squeeze()
            for parameters in self._together(group["params"]):
                self._update(parameters, rate.to(parameters[0].device), group)
        return loss

    def _together(self, parameters: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """The parameters with a gradient, in lists that are updated together: a call for one takes as long as for many.

        A parameter that is not a plain tensor goes alone. Makes the states of optimizers that count steps.
        """
        given, tensors = [], []
        for p in parameters:
            if p.grad is not None:
                given.append(p)
                tensors += (p, p.grad)
        all_plain = are_plain_tensors(tensors)
        found, size, kind, count = [], 0, None, 0.0
        for p in given:
            gradient: Any = p.grad
            if self.counts:
                state = self.state[p]
                if not state:
                    self._begin(state, p)
                count = float(state["step"])
                if not (count >= 0 and count.is_integer()):
                    FUNCTIONS.count("step", state["step"], 0)  # raises
            alone = None if all_plain or are_plain_tensors((p, gradient)) else id(p)
            own = alone, p.dtype, p.device, gradient.dtype, count
            size, before, kind = size + p.numel(), kind, own
            if found and (kind != before or size > _MOST):
                yield found
                found, size = [], p.numel()
            found.append(p)
        if found:
            yield found

    def _begin(self, state: dict[str, Any], p: torch.Tensor) -> None:
        """Makes the state of a parameter before its first step, for optimizers that count steps."""
        raise NotImplementedError

    def _update(self, parameters: Sequence[torch.Tensor], rate: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


def _apply(
    law: Differentiable,
    check: Callable[..., Any],
    options: dict[str, Any],
    groups: Sequence[Sequence[Any]],
    common: Sequence[Any],
) -> None:
    """Runs a law on each parameter with its gradient and state, and writes the results over parameters and state.

    Args:
        law: (parameter, gradient, *state, *common) -> the parameter and its state.
        check: a function of the law's arrays that raises an error for wrong ones.
        options: the law's options.
        groups: for each parameter: itself, its gradient and its state.
        common: further arguments, which all parameters share.
    """
    # A kernel takes float32 alone, and results that fit where they are written: it needs no check.
    if replace(law, groups, common, (0, *range(2, len(groups[0]))), options):
        return
    for group in groups:
        check(*group, *common)
    parameters, gradients, *states = zip(*groups, strict=True)
    joined = [_joined(each) for each in (parameters, gradients, *states)]
    found = FUNCTIONS.call(law, *joined, *common, **options)
    for each, new in zip((parameters, *states), found, strict=False):
        parts = [new] if len(each) == 1 else new.split([x.numel() for x in each])
        for x, part in zip(each, parts, strict=True):
            x.copy_(part.view_as(x))


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat([x.flatten() for x in tensors])


class SGD(_Optimizer):
    """Gradient descent by `qtorch.reproducible.sgd_step`, for float32 parameters.

    Args:
        params: parameters, or groups of them, as for `torch.optim.SGD`.
        lr: the learning rate, at least 0; a number or a tensor of one.
        momentum: the velocity's factor, at least 0.
        nesterov: True for Nesterov's momentum.
        weight_decay: times the parameter is added to its gradient, at least 0.

    Raises:
        TypeError, ValueError: if an argument is out of range; at a step, if parameters are not float32, or a number
            of a group is out of range.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = SGD([p], lr=0.25)
        >>> p.grad = torch.ones(1)
        >>> optimizer.step()
        >>> p.tolist()
        [0.75]
    """

    buffers = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, sgd_options(momentum, nesterov, weight_decay))

    def _check_options(self, group: dict[str, Any]) -> None:
        super()._check_options(group)
        sgd_options(group["momentum"], group["nesterov"], group["weight_decay"])

    def _check_state(self, where: str, state: Any, p: torch.Tensor, group: dict[str, Any]) -> None:
        # Without momentum, torch's SGD has an entry that is None.
        unused = isinstance(state, dict) and not group["momentum"] and state.get("momentum_buffer", None) is None
        super()._check_state(where, {} if unused else state, p, group)

    def _update(self, parameters: Sequence[torch.Tensor], rate: torch.Tensor, group: dict[str, Any]) -> None:
        options = sgd_options(group["momentum"], group["nesterov"], group["weight_decay"])
        groups: list[tuple[Any, ...]] = []
        for p in parameters:
            if not group["momentum"]:
                groups.append((p, p.grad))
                continue
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
            groups.append((p, p.grad, state["momentum_buffer"]))
        common = (rate,) if group["momentum"] else (None, rate)  # without momentum, None is the velocity
        _apply(SGD_LAW, FUNCTIONS.sgd_arrays, options, groups, common)


class Adam(_Optimizer):
    """Adam by `qtorch.reproducible.adam_step`, for float32 parameters.

    Args:
        params: parameters, or groups of them, as for `torch.optim.Adam`.
        lr: the learning rate, at least 0; a number or a tensor of one.
        betas: the moments' factors, at least 0 and below 1.
        eps: added to the root of the second moment, at least 0.
        weight_decay: times the parameter is added to its gradient, at least 0.

    Raises:
        TypeError, ValueError: if an argument is out of range; at a step, if parameters are not float32, or a number
            of a group is out of range.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = Adam([p], lr=0.5)
        >>> p.grad = torch.ones(1)
        >>> optimizer.step()
        >>> p.tolist()
        [0.5]
    """

    decoupled = False
    counts, buffers = ("step",), ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, adam_options(betas, eps, weight_decay))

    def _check_options(self, group: dict[str, Any]) -> None:
        super()._check_options(group)
        adam_options(group["betas"], group["eps"], group["weight_decay"])

    def _begin(self, state: dict[str, Any], p: torch.Tensor) -> None:
        state["step"] = torch.zeros(())
        for name in self.buffers:
            state[name] = torch.zeros_like(p)

    def _update(self, parameters: Sequence[torch.Tensor], rate: torch.Tensor, group: dict[str, Any]) -> None:
        options = adam_options(group["betas"], group["eps"], group["weight_decay"])
        groups = []
        for p in parameters:
            state = self.state[p]
            state["step"] += 1
            groups.append((p, p.grad, *map(state.__getitem__, self.buffers)))
        count = self.state[parameters[0]]["step"].to(rate.device)
        options["decoupled"] = self.decoupled
        _apply(ADAM, FUNCTIONS.adam_arrays, options, groups, (count, rate))


class AdamW(Adam):
    """Adam whose weight decay is decoupled: the parameter is multiplied with 1 - lr * weight_decay.

    Args:
        params, lr, betas, eps: as for `Adam`.
        weight_decay: at least 0; 0.01 by default, as in torch.

    Raises:
        TypeError, ValueError: as for `Adam`.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = AdamW([p], lr=0.25, weight_decay=1.0)
        >>> p.grad = torch.ones(1)
        >>> optimizer.step()
        >>> p.tolist()  # 1 * (1 - 0.25), then a step of 0.25
        [0.5]
    """

    decoupled = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Clips the gradients of parameters in place, by `qtorch.reproducible.clip_by_norm`.

    Args:
        parameters: tensors; tensors without a gradient are skipped.
        max_norm: the largest norm of gradients that stay as they are, above 0.

    Returns:
        The gradients' common norm before: a float32 tensor without dimensions.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> p.grad = torch.tensor([3.0, 4.0])
        >>> clip_grad_norm_([p], max_norm=10.0)
        tensor(5.)
        >>> p.grad  # within the norm: as it was
        tensor([3., 4.])
    """
    if isinstance(parameters, torch.Tensor) or not isinstance(parameters, Iterable):
        raise TypeError(f"parameters is a {type(parameters).__name__}; allowed is an iterable of tensors")
    parameters = list(parameters)
    for i, p in enumerate(parameters):
        check_type(f"parameters[{i}]", p, torch.Tensor, "a torch.Tensor")
    gradients = [p.grad for p in parameters if p.grad is not None]
    clipped, norm = FUNCTIONS.clip_by_norm(gradients, max_norm)
    for old, new in zip(gradients, clipped, strict=True):
        old.copy_(new)
    return norm
