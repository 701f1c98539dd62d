"""The record of a run: the statistics of every rounding site at every step, saved as JSON, compared, sent to logs."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from qcore.arguments import check_choice, check_float, check_int, check_type, printable, quoted
from qcore.files import write_text
from qcore.html import html_table
from qcore.insight.statistics import COUNTS, MAGNITUDES, Statistics, merged_digests
from qcore.version import NUMERICS, __version__

VERSION = 2  # the first had neither settings nor versions
Setting = str | int | float | bool | None
Row = dict[str, int | float | str | None]  # of a table, by column
KINDS = ("output", "gradient", "weight", "operand", "accumulator", "state")
_FIELDS = ("version", "model", "entries")
_MORE = ("settings", "versions")
_PACKAGES = ("numpy", "torch", "jax", "flax", "optax")
_SHOWN = 40  # rows of a notebook's table
_RATES = ("overflowed", "saturated", "underflowed")


class Site(NamedTuple):
    """A place in a model where numbers are rounded.

    Attributes:
        path: the dotted path of the module: "features.0"; "" is the model itself.
        kind: the kind of the rounded tensor: "output" (of a layer), "gradient" (of an output), "weight" (of a layer),
            "operand" (of a product), "accumulator" (of a product), "state" (of an optimizer, with the parameter's
            path).
        role: the tensor among several of one kind: "input", "weight" or "gradient" of an operand, "exp_avg" or
            "weight" of an optimizer; "" for a single one.

    Example:
        >>> str(Site("conv1", "operand", "weight")), str(Site("", "output"))
        ('conv1:operand:weight', 'output')
    """

    path: str
    kind: str
    role: str = ""

    def __str__(self) -> str:
        return printable(":".join(part for part in (self.path, self.kind, self.role) if part))


@dataclass(frozen=True)
class Entry:
    """The statistics of one site at one step.

    Attributes:
        step: the number of the step, from 0.
        site: the site.
        statistics: the statistics of all roundings at this site in this step together.
        digest: the digest of the results' bits, see `qcore.insight.statistics`, as hexadecimal digits; None if not
            kept.

    Example:
        >>> import numpy as np
        >>> from qcore.insight import statistics_of
        >>> entry = Entry(0, Site("conv1", "output"), statistics_of(np.float32([1, 500]), "e4m3fn"))
        >>> entry.statistics.overflowed, Entry.from_json(entry.to_json()) == entry
        (1, True)
    """

    step: int
    site: Site
    statistics: Statistics
    digest: str | None = None

    def to_json(self) -> dict[str, object]:
        site = {name: value for name, value in self.site._asdict().items() if value != ""}
        digest = {} if self.digest is None else {"digest": self.digest}
        return {"step": self.step, **site, **digest, "statistics": self.statistics.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Entry:
        given: Any = fields
        try:
            site = Site(given.get("path", ""), given["kind"], given.get("role", ""))
            check_choice("kind", site.kind, KINDS)
            for name, text in (("path", site.path), ("role", site.role), ("digest", given.get("digest", ""))):
                check_type(name, text, str, "a str")
            step = check_int("step", given["step"], 0)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"entry={quoted(fields)}; allowed is what Entry.to_json returns ({error})") from None
        return cls(step, site, Statistics.from_json(given.get("statistics")), given.get("digest"))


@dataclass(repr=False)
class Record:
    """The statistics of a run.

    Attributes:
        model: the model's name; records of different models are not merged.
        entries: at most one for each step and site, in the order in which they came.
        settings: what else decides the run, by names of your own: texts of formats and recipes, keys, rates; texts,
            numbers, flags or None.
        versions: of this library, its numerics, Python, and the packages that were imported when the record was made.

    Example:
        >>> import numpy as np
        >>> from qcore.insight import statistics_of
        >>> record = Record("digits", settings={"recipe": "mxfp8", "key": 7})
        >>> record.add(0, Site("conv1", "output"), statistics_of(np.float32([1, 500]), "e4m3fn"))
        >>> record.add(0, Site("conv1", "output"), statistics_of(np.float32([2, 700]), "e4m3fn"))
        >>> record.entries[0].statistics.overflowed, record.steps
        (2, [0])
    """

    model: str
    entries: list[Entry] = field(default_factory=list)
    settings: dict[str, Setting] = field(default_factory=dict)
    versions: dict[str, str | int] = field(default_factory=lambda: _versions(), compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.model, str):
            raise TypeError(f"model={quoted(self.model)} is a {type(self.model).__name__}; allowed is a name, a str")
        if not isinstance(self.entries, list) or not all(isinstance(one, Entry) for one in self.entries):
            kind = type(self.entries).__name__
            raise TypeError(f"entries={quoted(self.entries)} is a {kind}; allowed is a list of Entry")
        _check_settings(self.settings)
        self._places = {(one.step, one.site): place for place, one in enumerate(self.entries)}

    def __repr__(self) -> str:
        steps = self.steps
        span = f"steps {steps[0]} to {steps[-1]}" if steps else "no steps"
        return f"Record({quoted(self.model)}: {len(self.entries)} entries, {len(self.sites)} sites, {span})"

    def _repr_html_(self) -> str:
        """The HTML that notebooks show: a row for each site and format, all steps together."""
        groups: dict[tuple[Site, str], list[Statistics]] = {}
        for one in self.entries:
            groups.setdefault((one.site, one.statistics.number), []).append(one.statistics)
        rows: list[tuple[object, ...]] = []
        for (site, number), (first, *others) in islice(groups.items(), _SHOWN):
            found = first.merge(*others)
            rates = (f"{100 * found.rate(name):.3g} %" for name in _RATES)
            rows.append((site, number, found.elements, *rates, f"{found.sqnr:.1f} dB"))
        more = f"<p>and {len(groups) - _SHOWN} more</p>" if len(groups) > _SHOWN else ""
        return html_table(("site", "format", "elements", *_RATES, "SQNR"), rows) + more

    @property
    def steps(self) -> list[int]:
        """The steps, ascending."""
        return sorted({one.step for one in self.entries})

    @property
    def sites(self) -> list[Site]:
        """The sites, in the order in which they came."""
        return list(dict.fromkeys(one.site for one in self.entries))

    def add(self, step: int, site: Site, statistics: Statistics, digest: str | None = None) -> None:
        """Adds the statistics of a site at a step; statistics and digests of the same site and step are merged.

        Args:
            step, site: the step and the site.
            statistics: the statistics of the roundings.
            digest: the digest of the results' bits; None takes the digest of the statistics, if they have one.

        Raises:
            TypeError, ValueError: if the step is not an int of at least 0, the kind is unknown, or the site had another
                format at this step.
        """
        step, place = check_int("step", step, 0), self._places.get((step, site))
        check_choice("kind", site.kind, KINDS)
        digest = statistics.digest if digest is None else digest
        if place is None:
            self._places[step, site] = len(self.entries)
            self.entries.append(Entry(step, site, statistics.pack(), digest))
            return
        before = self.entries[place]
        together = before.statistics.merge(statistics).pack()
        self.entries[place] = Entry(step, site, together, merged_digests(before.digest, digest))

    def add_all(self, step: int, found: Mapping[Site, Statistics]) -> None:
        """Adds the statistics of several sites at a step, as a function of `qjax.insight.watch` returns them."""
        for site, statistics in found.items():
            self.add(step, site, statistics)

    def at(self, step: int, site: Site) -> Entry:
        """The entry of a step and a site; raises KeyError without one."""
        return self.entries[self._places[step, site]]

    def site(self, site: Site) -> Statistics:
        """The statistics of a site over all steps together; raises KeyError for an unknown site."""
        found = [one.statistics for one in self.entries if one.site == site]
        if not found:
            raise KeyError(site)
        return found[0].merge(*found[1:])

    def rows(self) -> list[Row]:
        """A flat table, one row for each entry: columns of ints, floats and texts, as parquet and data frames have."""
        return [
            {
                "model": self.model,
                "step": one.step,
                **one.site._asdict(),
                "number": one.statistics.number,
                "digest": one.digest,
                **one.statistics.row(),
            }
            for one in self.entries
        ]

    def merge(self, other: Record) -> Record:
        """The entries of both, for example of two processes that each had a part of the data.

        Raises:
            ValueError: if it is of another model, has other settings, or a site has different formats.
        """
        if not isinstance(other, Record):
            raise TypeError(f"other is a {type(other).__name__}; allowed is a Record")
        if other.model != self.model:
            raise ValueError(f"other is a record of model {quoted(other.model)}; allowed is {quoted(self.model)}")
        if other.settings != self.settings:
            raise ValueError(f"other has settings {quoted(other.settings)}; allowed are {quoted(self.settings)}")
        whole = Record(self.model, list(self.entries), dict(self.settings), dict(self.versions))
        for one in other.entries:
            whole.add(one.step, one.site, one.statistics, one.digest)
        return whole

    def provenance(self) -> dict[str, object]:
        """What a reader needs to make the run again, and to know that it is the same: for JSON.

        Returns:
            The model, the steps' number, settings and versions, the text of each site's formats, and "sha256": a hash
            of all statistics, and of the digests of the results' bits if the watch kept them.

        Example:
            >>> record = Record("digits", settings={"key": 7})
            >>> record.provenance()["settings"], "numerics" in record.provenance()["versions"]
            ({'key': 7}, True)
        """
        formats: dict[str, list[str]] = {}
        for one in self.entries:
            texts = formats.setdefault(str(one.site), [])
            if one.statistics.number not in texts:
                texts.append(one.statistics.number)
        entries = json.dumps([one.to_json() for one in self.entries], separators=(",", ":"), sort_keys=True)
        return {
            "model": self.model,
            "steps": len(self.steps),
            "settings": self.settings,
            "versions": self.versions,
            "formats": formats,
            "digests": any(one.digest is not None for one in self.entries),
            "sha256": sha256(entries.encode()).hexdigest(),
        }

    def to_json(self) -> dict[str, object]:
        _check_settings(self.settings)
        more = {"settings": self.settings, "versions": self.versions}
        return {"version": VERSION, "model": self.model, **more, "entries": [one.to_json() for one in self.entries]}

    @classmethod
    def from_json(cls, fields: Mapping[str, object], model: str | None = None) -> Record:
        """The inverse of `to_json`; see `load`. Records of earlier versions have no settings, and no versions."""
        if not isinstance(fields, Mapping) or set(fields) - set(_MORE) != set(_FIELDS):
            raise ValueError(f"record={quoted(fields)}; allowed is a record, with {', '.join(_FIELDS)}")
        if fields["version"] not in range(1, VERSION + 1):
            raise ValueError(f"record has version {quoted(fields['version'])}; allowed are 1 to {VERSION}")
        if model is not None and fields["model"] != model:
            raise ValueError(f"record is of model {quoted(fields['model'])}; allowed is {quoted(model)}")
        if not isinstance(fields["entries"], list) or not isinstance(fields["model"], str):
            raise ValueError(f"record={quoted(fields)}; allowed are a str as model and a list of entries")
        settings: Any = fields.get("settings", {})
        versions: Any = fields.get("versions", {})
        check_type("versions", versions, dict, "a dictionary of names and versions")
        return cls(fields["model"], [Entry.from_json(one) for one in fields["entries"]], settings, versions)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the record as JSON."""
        write_text(path, json.dumps(self.to_json(), separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: str | PathLike[str], model: str | None = None) -> Record:
        """Reads a file of `save`.

        Args:
            path: the path of the file.
            model: the name of the model that the record must have; None allows any.

        Raises:
            ValueError: if the file is not a record, or has another version or model.
        """
        try:
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"path={quoted(str(path))} is no JSON ({error}); allowed is what Record.save wrote"
            ) from None
        return cls.from_json(fields, model)


def _versions() -> dict[str, str | int]:
    """Versions of what computes in this process; packages that are not imported have none."""
    loaded = {name: sys.modules[name] for name in _PACKAGES if name in sys.modules}
    found = {name: str(module.__version__) for name, module in loaded.items() if hasattr(module, "__version__")}
    return {"qbits": __version__, "numerics": NUMERICS, "python": platform.python_version(), **found}


def _check_settings(settings: Any) -> None:
    check_type("settings", settings, dict, "a dictionary of names and texts, numbers or flags")
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float, bool, type(None))):
            allowed = "a str and a text, number, flag or None, such as recipe.text"
            raise TypeError(f"settings has {quoted(name)}: {quoted(value)}; allowed is {allowed}")


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
        step, site: the place of the difference.
        fields: the fields of `Statistics` that differ, "digest", or "missing" if only one run has the site.
        first, second: the two entries; None for a missing entry.

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

    Steps are compared in ascending order; the sites of a step in the order of run_a, then the sites that only run_b
    has. If both runs have the same sites, the first difference is the first rounding with another result.

    A site of run_b that run_a lacks is compared with run_a's site for the same tensor by another name: an optimizer's
    state as PyTorch and optax call it ("exp_avg" and "mu"), a parameter as torch and flax call it ("weight" and
    "kernel"). Digests of kernels differ if one framework keeps them transposed.

    Args:
        run_a, run_b: records of one model, perhaps of different frameworks.
        tolerance: None compares bits: all statistics must be equal, and digests if both runs have them. A number >= 0
            is the largest difference of counts, magnitudes and sums, relative to the larger one; digests do not matter.

    Returns:
        The difference; None if the runs agree.

    Raises:
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
    """The names of the first run for sites of the second run that have another name there."""
    free = {_plain(site): site for site in reversed(first) if site not in second}
    found = {}
    for site in second:
        if site not in first and _plain(site) in free:
            found[site] = free.pop(_plain(site))
    return found


def _plain(site: Site) -> Site:
    """A site with the names of torch, for comparisons between frameworks."""
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
    check_float("tolerance", tolerance, "None, or a number from 0 on")


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


SCALARS = ("saturated", "overflowed", "underflowed", "nan_results", "subnormal")
SAMPLES = 4096  # of a histogram


class Writer(Protocol):
    """The methods that `send` needs of a writer, such as `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None) -> Any: ...

    def add_histogram(self, tag: str, values: Any, global_step: Any = None) -> Any: ...


def send(record: Record, to: Writer | Callable[[Row], object], step: int | None = None) -> None:
    """Sends a record's numbers to a writer of logs, or to a function.

    A writer gets under `site/name` the counts saturated, overflowed, underflowed, nan_results and subnormal as parts
    of all elements, and the SQNR in dB. Under `site/exponents` it gets a histogram of the exponents floor(log2 |x|)
    before rounding: about 4,096 elements, each exponent in proportion to its count, and at least once. A function gets
    the rows of `Record.rows`, one for each site and step.

    Args:
        record: the record of a run.
        to: an object with add_scalar and add_histogram, or a function of a dictionary.
        step: the step to send; None sends all.

    Returns:
        None; the numbers are passed to the writer, or to the function.

    Raises:
        TypeError: if record is not a Record, or `to` is neither a writer nor a function.
        ValueError: if record does not have the step.

    Example:
        >>> from qcore.insight import Site, statistics_of
        >>> record = Record("mlp")
        >>> record.add(0, Site("0", "output"), statistics_of(np.float32([1.0, 4000.0]), "e4m3fn"))
        >>> send(record, lambda row: print(row["path"], row["step"], row["overflowed"]))
        0 0 1
    """
    if not isinstance(record, Record):
        raise TypeError(f"record={quoted(record)} is a {type(record).__name__}; allowed is a Record")
    if step is not None and check_int("step", step) not in record.steps:
        raise ValueError(
            f"step={quoted(step)}; allowed are the record's steps: {', '.join(map(str, record.steps)) or 'none'}"
        )
    chosen = [step in (None, one.step) for one in record.entries]
    if hasattr(to, "add_scalar") and hasattr(to, "add_histogram"):
        for entry, is_chosen in zip(record.entries, chosen, strict=True):
            if is_chosen:
                _write(entry, to)
    elif callable(to):
        for row, is_chosen in zip(record.rows(), chosen, strict=True):
            if is_chosen:
                to(row)
    else:
        allowed = "allowed are a function and an object with add_scalar and add_histogram"
        raise TypeError(f"to={quoted(to)} is a {type(to).__name__}; {allowed}")


def _write(entry: Entry, writer: Any) -> None:
    statistics, site = entry.statistics, str(entry.site)
    for name in SCALARS:
        writer.add_scalar(f"{site}/{name}", statistics.rate(name), entry.step)
    if np.isfinite(statistics.sqnr):
        writer.add_scalar(f"{site}/sqnr", statistics.sqnr, entry.step)
    if statistics.exponents:
        exponents, counts = (np.array(list(one)) for one in (statistics.exponents, statistics.exponents.values()))
        repeated = np.maximum(np.rint(counts * (SAMPLES / counts.sum())).astype(int), 1)
        writer.add_histogram(f"{site}/exponents", np.repeat(exponents, repeated), entry.step)
