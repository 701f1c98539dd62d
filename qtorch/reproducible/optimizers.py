"""SGD, Adam and AdamW as torch's optimizers, and clipping of gradients; their steps are those of `qcore.numerics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from qtorch.reproducible.call import Tensors

_tensors = Tensors()


class _Optimizer(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """A step for all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate = torch.as_tensor(group["lr"], dtype=torch.float32)
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, rate, group)
        return loss

    def _update(self, p: torch.Tensor, rate: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class SGD(_Optimizer):
    """Gradient descent by `qtorch.reproducible.sgd_step`, for float32 parameters.

    Args:
        params: parameters, or groups of them, as for `torch.optim.SGD`.
        lr: the learning rate.
        momentum: the velocity's factor.
        nesterov: True for Nesterov's momentum.
        weight_decay: times the parameter is added to its gradient.

    Raises:
        TypeError, ValueError: at a step, if parameters are not float32, or an argument is out of range.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = SGD([p], lr=0.25)
        >>> p.grad = torch.ones(1)
        >>> optimizer.step()
        >>> p.tolist()
        [0.75]
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay})

    def _update(self, p: torch.Tensor, rate: torch.Tensor, group: dict[str, Any]) -> None:
        options = {name: group[name] for name in ("momentum", "nesterov", "weight_decay")}
        velocity = None
        if group["momentum"]:
            velocity = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        found, new = _tensors.sgd_step(p, p.grad, velocity, rate.to(p.device), **options)
        p.copy_(found)
        if velocity is not None:
            velocity.copy_(new)


class Adam(_Optimizer):
    """Adam by `qtorch.reproducible.adam_step`, for float32 parameters.

    Args:
        params: parameters, or groups of them, as for `torch.optim.Adam`.
        lr: the learning rate.
        betas: the moments' factors.
        eps: added to the root of the second moment.
        weight_decay: times the parameter is added to its gradient.

    Raises:
        TypeError, ValueError: at a step, if parameters are not float32, or an argument is out of range.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = Adam([p], lr=0.5)
        >>> p.grad = torch.ones(1)
        >>> optimizer.step()
        >>> p.tolist()
        [0.5]
    """

    decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(self, p: torch.Tensor, rate: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), device=p.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        options = {name: group[name] for name in ("betas", "eps", "weight_decay")}
        moments = state["exp_avg"], state["exp_avg_sq"]
        found = _tensors.adam_step(
            p, p.grad, *moments, state["step"], rate.to(p.device), **options, decoupled=self.decoupled
        )
        for old, new in zip((p, *moments), found, strict=True):
            old.copy_(new)


class AdamW(Adam):
    """Adam whose weight decay is decoupled: the parameter is multiplied with 1 - lr * weight_decay.

    Args:
        params, lr, betas, eps: as for `Adam`.
        weight_decay: 0.01 by default, as in torch.

    Raises:
        TypeError, ValueError: at a step, as for `Adam`.

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
        params: Any,
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
        parameters: tensors; those without a gradient do not count.
        max_norm: the largest norm that changes nothing.

    Returns:
        The gradients' common norm before: a float32 tensor without dimensions.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> p.grad = torch.tensor([3.0, 4.0])
        >>> clip_grad_norm_([p], max_norm=10.0)
        tensor(5.)
        >>> p.grad  # within the norm: as it was
        tensor([3., 4.])
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    clipped, norm = _tensors.clip_by_norm(gradients, max_norm)
    for old, new in zip(gradients, clipped, strict=True):
        old.copy_(new)
    return norm
