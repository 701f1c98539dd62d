"""Muon: momentum that is made nearly orthogonal by Newton-Schulz iterations, in any format and with any accumulator.

With X of at most as many rows as columns (else it is transposed), and (a, b, c) of each iteration:

    X <- X / max(|X|, eps)
    A = X X^T;  B = b A + c A A;  X <- a X + B X

X, A, B and the norm are rounded to `storage` each time they are made, and nothing between: as in `torch.optim.Muon`,
whose storage is bfloat16 and whose products are `addmm`. The sums with b, c and a are float32, each operation rounded.
"""

from __future__ import annotations

from itertools import islice
from math import sqrt
from typing import Any

from qcore.arguments import check_choice, check_flag, check_float, check_int, quoted
from qcore.binding import public
from qcore.reproducible.differentiable import without_gradients
from qcore.reproducible.products import ProductFunctions
from qcore.reproducible.state_codes import StateCodes, as_weight, decoded, encoded, in_blocks, unblocked, weighted

Triple = tuple[float, float, float]
# Of each iteration, from NVIDIA's Emerging-Optimizers (2026-08).
COEFFICIENTS: dict[str, tuple[Triple, ...]] = {
    "simple": ((3.4445, -4.7750, 2.0315),),
    "quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.2051, -22.9019, 16.4607),
        (4.0664, -2.8612, 0.5184),
        (3.9096, -2.8234, 0.5250),
        (3.2856, -2.4153, 0.4853),
        (2.2779, -1.6198, 0.3985),
        (1.8726, -1.2307, 0.3585),
        (1.8564, -1.2132, 0.3568),
        (1.8750, -1.2500, 0.3750),
    ),
    "cans": (
        (8.4703, -25.1081, 18.6293),
        (4.1828, -3.1087, 0.5806),
        (3.9619, -2.9541, 0.5630),
        (3.2866, -2.4647, 0.5074),
        (2.2737, -1.6447, 0.4162),
    ),
    "aol": (
        (4.0098, -7.0585, 2.4635),
        (3.4585, -5.5479, 2.5959),
        (2.7573, -3.2939, 1.4254),
        (2.7215, -3.0494, 1.3169),
    ),
    "deepseek_v4": ((3.4445, -4.7750, 2.0315),) * 8 + ((2.0, -1.5, 0.5),) * 2,
}
_STEPS = {"simple": 5}  # where they differ from the count of triples
_SCALES = {  # of the learning rate, by the count of rows and columns
    "original": lambda rows, columns: sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * sqrt(max(rows, columns)),
}


def iterations(coefficients: Any, steps: int | None) -> tuple[Triple, ...]:
    """The coefficients of each iteration; after the last triple of a set the last one is repeated."""
    if isinstance(coefficients, str):
        check_choice("coefficients", coefficients, [*COEFFICIENTS])
        found = COEFFICIENTS[coefficients]
        steps = _STEPS.get(coefficients, len(found)) if steps is None else steps
    else:
        found = (_triple(coefficients),)
        steps = _STEPS["simple"] if steps is None else steps
    check_int("steps", steps, 0, 99)
    return (*islice(found, steps), *[found[-1]] * (steps - len(found)))


def _triple(coefficients: Any) -> Triple:
    try:
        a, b, c = coefficients
    except (TypeError, ValueError):
        names = ", ".join(COEFFICIENTS)
        raise ValueError(f"coefficients={quoted(coefficients)}; allowed are three numbers, and {names}") from None
    a, b, c = (check_float("coefficients", one, "three numbers", lambda _: True) for one in (a, b, c))
    return a, b, c


def rate_scale(adjust: str | None, rows: int, columns: int) -> float:
    """What the learning rate of a matrix is multiplied with, by torch's names of the rules."""
    name = "original" if adjust is None else adjust
    check_choice("adjust_lr_fn", name, [*_SCALES])
    return _SCALES[name](rows, columns)


def _sum(xp: Any, x: Any, y: Any, a: float, c: float) -> Any:
    return xp.add(xp.mul(x, a), xp.mul(y, c))


def _moment(
    xp: Any, gradient: Any, *state: Any, codes: StateCodes | None, momentum: float, nesterov: bool
) -> tuple[Any, ...]:
    """The matrix to make orthogonal, and the state: the momentum as codes and scales, or as floats."""
    shape = tuple(gradient.shape)
    given = state[0] if codes is None else unblocked(decoded(xp, state[0], state[1], state[2], codes), shape)
    moment = weighted(xp, given, gradient, as_weight(1 - momentum))
    matrix = weighted(xp, gradient, moment, as_weight(momentum)) if nesterov else moment
    if codes is None:
        return matrix, moment
    kept, scale = encoded(xp, in_blocks(xp, moment, codes.block), state[3], codes)
    return matrix, kept if codes.bits == 4 else unblocked(kept, shape), scale


def _move(xp: Any, p: Any, direction: Any, rate: Any, scale: float, weight_decay: float) -> Any:
    """The parameter after a step; the last product and sum are rounded once, as in torch's `add_`."""
    p = xp.mul(p, xp.sub(1.0, xp.mul(rate, weight_decay)))
    return xp.float32(xp.float64(p) - xp.float64(direction) * xp.float64(xp.mul(rate, scale)))


def _normalized(xp: Any, x: Any, norm: Any, eps: float) -> Any:
    return xp.div(x, xp.where(norm < eps, eps, norm))


SUM = without_gradients(_sum)
MOMENT = without_gradients(_moment, fusible=False)
MOVE = without_gradients(_move)
NORMALIZED = without_gradients(_normalized)


class MuonFunctions(ProductFunctions):
    """`ProductFunctions`, and Muon."""

    def rounded(self, x: Any, number: Any) -> Any:
        """x rounded to a format."""
        raise NotImplementedError

    @public
    def orthogonalize(
        self,
        x: Any,
        coefficients: Any = "simple",
        steps: int | None = None,
        eps: float = 1e-7,
        storage: Any = "bfloat16",
        **products: Any,
    ) -> Any:
        """The matrix whose singular values are those of x pulled towards 1, by Newton-Schulz iterations.

        Args:
            x: float32 array of shape (rows, columns).
            coefficients: three numbers, or a set of these by name: "simple" (Muon's), "quintic", "polar_express",
                "cans", "aol", "deepseek_v4".
            steps: the number of iterations; None is the set's own, 5 of "simple" and of three numbers.
            eps: the least norm that x is divided by.
            storage: the format to which the matrices are rounded, to nearest; None is float32.
            products: the named arguments of `linalg.matmul`, for the three products of each iteration.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> x = np.float32([[3.0, 0.0], [0.0, 4.0]])
            >>> reproducible.orthogonalize(x, "deepseek_v4").tolist()
            [[1.0, 0.0], [0.0, 1.0]]
        """
        x = self.float32("x", x)
        if x.ndim != 2:
            raise ValueError(f"x has shape {tuple(x.shape)}; allowed are two dimensions")
        wide = x.shape[0] <= x.shape[1]
        x = self._stored(x if wide else x.mT, storage)
        norm = self._stored(self.norm(x), storage)
        x = self._stored(self.call(NORMALIZED, x, norm, eps=check_float("eps", eps)), storage)
        for a, b, c in iterations(coefficients, steps):
            gram = self._stored(self.matmul(x, x.mT, **products), storage)
            square = self.matmul(gram, gram, **products)
            change = self._stored(self.call(SUM, gram, square, a=b, c=c), storage)
            x = self._stored(self.call(SUM, x, self.matmul(change, x, **products), a=a, c=1.0), storage)
        return x if wide else x.mT

    def _stored(self, x: Any, storage: Any) -> Any:
        return x if storage is None else self.rounded(x, storage)

    @public
    def muon_step(
        self,
        p: Any,
        gradient: Any,
        state: Any,
        rate: Any,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        adjust: str | None = None,
        codes: Any = None,
        **iterations: Any,
    ) -> tuple[Any, Any]:
        """A step of Muon in the order of `torch.optim.Muon`.

        Args:
            p, gradient: float32 arrays of shape (rows, columns).
            state: the momentum, a float32 array of p's shape, zeros at first; with codes a pair of codes and scales.
            rate: float32 array without dimensions: the learning rate.
            momentum: the momentum's factor, at least 0 and below 1.
            nesterov: True for Nesterov's momentum.
            weight_decay: the factor of the weight's decay, at least 0.
            adjust: how the rate follows from the shape, "original" or "match_rms_adamw"; None is the first.
            codes: a `StateCodes`, or None for a float32 array.
            iterations: the named arguments of `orthogonalize`.

        Returns:
            The parameter and the state after the step.

        Example:
            >>> p, zero, rate = np.zeros((2, 2), dtype=np.float32), np.zeros((2, 2)), np.float32(0.5)
            >>> gradient = np.float32([[0.0, 2.0], [2.0, 0.0]])
            >>> step = reproducible.muon_step(p, gradient, p, rate, coefficients="deepseek_v4")
            >>> step[0].tolist()
            [[0.0, -0.5], [-0.5, 0.0]]
        """
        p = self.float32("p", p)
        gradient = self._of_shape("gradient", gradient, tuple(p.shape))
        rate = self._of_shape("rate", rate, ())
        momentum = check_float("momentum", momentum, "a number from 0 to below 1", lambda number: 0 <= number < 1)
        check_flag("nesterov", nesterov)
        weight_decay = check_float("weight_decay", weight_decay)
        if p.ndim != 2:
            raise ValueError(f"p has shape {tuple(p.shape)}; allowed are two dimensions")
        arrays = self.state_arrays("state", state, tuple(p.shape), codes)
        options = {"codes": codes, "momentum": momentum, "nesterov": nesterov}
        matrix, *found = self.call(MOMENT, gradient, *arrays, **options)
        direction = self.orthogonalize(matrix, **iterations)
        scale = rate_scale(adjust, *p.shape)
        p = self.call(MOVE, p, direction, rate, scale=scale, weight_decay=weight_decay)
        return p, found[0] if codes is None else tuple(found)
