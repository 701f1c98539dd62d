"""Where two recorded runs begin to differ."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

from qcore.arguments import quoted
from qcore.insight.record import Entry, Record, Site
from qcore.insight.statistics import COUNTS, MAGNITUDES

# What optimizers of PyTorch and optax call the same tensor.
_STATES = {
    "momentum_buffer": "trace",
    **dict.fromkeys(("exp_avg", "grad_avg"), "mu"),
    **dict.fromkeys(("exp_avg_sq", "square_avg", "exp_inf", "e_g"), "nu"),
    "max_exp_avg_sq": "nu_max",
    "sum": "sum_of_squares",
    "acc_delta": "e_x",
}
_WEIGHTS = ("kernel", "scale", "embedding")  # flax's names of what torch calls weight
_SUMS = ("signal", "error_absolute", "error_squared", "error_signed")


class Difference(NamedTuple):
    """The first difference of two runs.

    Attributes:
        step, site: where it is.
        fields: the names of what differs: fields of `Statistics`, "digest", or "missing" if only one run has the site.
        first, second: the two entries; None for a missing one.

    Example:
        >>> import numpy as np
        >>> from qcore.insight import statistics_of
        >>> runs = [Record("digits"), Record("digits")]
        >>> for run, site in zip(runs, ("conv1", "conv2"), strict=True):
        ...     run.add(0, Site(site, "output"), statistics_of(np.float32([1]), "e4m3fn"))
        >>> found = compare(*runs)
        >>> str(found.site), found.fields, found.second
        ('conv1:output', ('missing',), None)
    """

    step: int
    site: Site
    fields: tuple[str, ...]
    first: Entry | None
    second: Entry | None


def compare(run_a: Record, run_b: Record, tolerance: float | None = None) -> Difference | None:
    """The first step and site at which two recorded runs differ.

    Steps are compared in ascending order; the sites of a step in the order in which run_a has them, then those that
    only run_b has. So the first difference is the first rounding that went another way, if the runs had the same sites.

    A site of run_b that run_a lacks is compared with run_a's site for the same tensor by another name: an optimizer's
    state as PyTorch and optax call it ("exp_avg" and "mu"), a parameter as torch and flax call it ("weight" and
    "kernel"). Digests of kernels differ if one framework keeps them transposed.

    Args:
        run_a, run_b: records of one model, perhaps of different frameworks.
        tolerance: None for bits: all statistics must be equal, and digests where both have them. A number from 0 on:
            counts, magnitudes and sums may differ by so much, relative to the larger one; digests do not matter.

    Returns:
        The difference; None if there is none.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if the records are of different models, one is empty, or the tolerance is negative or NaN.

    Example:
        >>> import numpy as np
        >>> from qcore.insight import statistics_of
        >>> runs = [Record("digits"), Record("digits")]
        >>> for run, x in zip(runs, ([1, 2], [1, 500]), strict=True):
        ...     run.add(0, Site("conv1", "output"), statistics_of(np.float32(x), "e4m3fn"))
        >>> found = compare(*runs)
        >>> found.step, str(found.site), "overflowed" in found.fields
        (0, 'conv1:output', True)
    """
    _check(run_a, run_b, tolerance)
    pairs: dict[tuple[int, Site], list[Entry | None]] = {}
    names = _same_sites(run_a.sites, run_b.sites)
    for place, run in enumerate((run_a, run_b)):
        for one in run.entries:
            site = names.get(one.site, one.site) if place else one.site
            pairs.setdefault((one.step, site), [None, None])[place] = one
    for (step, site), (first, second) in sorted(pairs.items(), key=lambda pair: pair[0][0]):
        fields = _differing(first, second, tolerance)
        if fields:
            return Difference(step, site, fields, first, second)
    return None


def _same_sites(first: list[Site], second: list[Site]) -> dict[Site, Site]:
    """The sites of the first run for those of the second that it calls otherwise."""
    free = {_plain(site): site for site in reversed(first) if site not in second}
    found = {}
    for site in second:
        if site not in first and _plain(site) in free:
            found[site] = free.pop(_plain(site))
    return found


def _plain(site: Site) -> Site:
    """A site of an optimizer by the names that stand for those of all frameworks."""
    if site.kind != "state":
        return site
    path, dot, last = site.path.rpartition(".")
    return Site(path + dot + ("weight" if last in _WEIGHTS else last), site.kind, _STATES.get(site.role, site.role))


def _check(run_a: Any, run_b: Any, tolerance: Any) -> None:
    for name, run in (("run_a", run_a), ("run_b", run_b)):
        if not isinstance(run, Record):
            raise TypeError(f"{name} is a {type(run).__name__}; allowed is a Record")
        if not run.entries:
            raise ValueError(f"{name} has no entries; allowed is the record of at least one step")
    if run_a.model != run_b.model:
        raise ValueError(f"run_b is of model {quoted(run_b.model)}; allowed is that of run_a, {quoted(run_a.model)}")
    if tolerance is None:
        return
    if not isinstance(tolerance, Real) or isinstance(tolerance, bool):
        raise TypeError(f"tolerance={quoted(tolerance)} is a {type(tolerance).__name__}; allowed are None and a number")
    if not float(tolerance) >= 0:
        raise ValueError(f"tolerance={tolerance}; allowed is a number from 0 on")


def _differing(first: Entry | None, second: Entry | None, tolerance: float | None) -> tuple[str, ...]:
    if first is None or second is None:
        return ("missing",)
    mine, its = first.statistics, second.statistics
    if tolerance is None:
        digests = first.digest, second.digest
        digest = ["digest"] if None not in digests and digests[0] != digests[1] else []
        return (*mine.differing(its), *digest)
    if mine.number != its.number:
        return ("number",)
    found = [(name, getattr(mine, name), getattr(its, name)) for name in (*COUNTS, *MAGNITUDES, *_SUMS)]
    return tuple(name for name, a, b in found if abs(a - b) > tolerance * max(abs(a), abs(b)))
