"""The statistics of a run: what every rounding site did at every step; made by `watch`, kept as JSON."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from qcore.arguments import check_choice, check_int, check_type, quoted
from qcore.files import write_text
from qcore.insight.digest import merged
from qcore.insight.statistics import Statistics

VERSION = 1
KINDS = ("output", "gradient", "weight", "operand", "accumulator", "state")
_FIELDS = ("version", "model", "entries")


class Site(NamedTuple):
    """Where a model rounds.

    Attributes:
        path: the dotted path of the module: "features.0"; "" is the model itself.
        kind: what is rounded there: "output" (of a layer), "gradient" (of that output), "weight" (of a layer),
            "operand" (of a product), "accumulator" (of a product), "state" (of an optimizer: the path is the
            parameter's).
        role: which of several tensors of that kind: "input", "weight" or "gradient" of an operand, "exp_avg" or
            "weight" of an optimizer; "" where there is only one.

    Example:
        >>> str(Site("conv1", "operand", "weight")), str(Site("", "output"))
        ('conv1:operand:weight', 'output')
    """

    path: str
    kind: str
    role: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in (self.path, self.kind, self.role) if part)


@dataclass(frozen=True)
class Entry:
    """What one site did at one step.

    Attributes:
        step: the number of the step, from 0.
        site: where.
        statistics: what all roundings at this site in this step did, together.
        digest: of the results' bits, see `qcore.insight.digest`, as hexadecimal digits; None if not kept.

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

    def to_json(self) -> dict[str, Any]:
        site = {name: value for name, value in self.site._asdict().items() if value != ""}
        digest = {} if self.digest is None else {"digest": self.digest}
        return {"step": self.step, **site, **digest, "statistics": self.statistics.to_json()}

    @classmethod
    def from_json(cls, fields: Any) -> Entry:
        try:
            site = Site(fields.get("path", ""), fields["kind"], fields.get("role", ""))
            check_choice("kind", site.kind, KINDS)
            for name, text in (("path", site.path), ("role", site.role), ("digest", fields.get("digest", ""))):
                check_type(name, text, str, "a str")
            step = check_int("step", fields["step"], 0)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"entry={fields!r:.80}; allowed is what Entry.to_json returns ({error})") from None
        return cls(step, site, Statistics.from_json(fields.get("statistics")), fields.get("digest"))


@dataclass
class Record:
    """The statistics of a run.

    Attributes:
        model: the model's name; records of different models are not merged.
        entries: at most one for each step and site, in the order in which they came.

    Example:
        >>> import numpy as np
        >>> from qcore.insight import statistics_of
        >>> record = Record("digits")
        >>> record.add(0, Site("conv1", "output"), statistics_of(np.float32([1, 500]), "e4m3fn"))
        >>> record.add(0, Site("conv1", "output"), statistics_of(np.float32([2, 700]), "e4m3fn"))
        >>> record.entries[0].statistics.overflowed, record.steps
        (2, [0])
    """

    model: str
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.model, str):
            raise TypeError(f"model={quoted(self.model)} is a {type(self.model).__name__}; allowed is a name, a str")
        if not isinstance(self.entries, list) or not all(isinstance(one, Entry) for one in self.entries):
            kind = type(self.entries).__name__
            raise TypeError(f"entries={self.entries!r:.80} is a {kind}; allowed is a list of Entry")
        self._places = {(one.step, one.site): place for place, one in enumerate(self.entries)}

    @property
    def steps(self) -> list[int]:
        """The steps, ascending."""
        return sorted({one.step for one in self.entries})

    @property
    def sites(self) -> list[Site]:
        """The sites, in the order in which they came."""
        return list(dict.fromkeys(one.site for one in self.entries))

    def add(self, step: int, site: Site, statistics: Statistics, digest: str | None = None) -> None:
        """Adds what a site did at a step; statistics and digests of the same site and step are merged.

        Args:
            step, site: where.
            statistics: what it did.
            digest: of the results' bits; None is that of the statistics, if they have one.

        Raises:
            TypeError, ValueError: if the step is no int of at least 0, the kind is unknown, or the site had another
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
        self.entries[place] = Entry(step, site, together, merged(before.digest, digest))

    def add_all(self, step: int, found: Mapping[Site, Statistics]) -> None:
        """Adds what several sites did at a step: what a function of `qjax.insight.watch` returns beside its result."""
        for site, statistics in found.items():
            self.add(step, site, statistics)

    def at(self, step: int, site: Site) -> Entry:
        """The entry of a step and a site; a KeyError if there is none."""
        return self.entries[self._places[step, site]]

    def site(self, site: Site) -> Statistics:
        """The statistics of a site over all steps together; a KeyError if there is no such site."""
        found = [one.statistics for one in self.entries if one.site == site]
        if not found:
            raise KeyError(site)
        return found[0].merge(*found[1:])

    def rows(self) -> list[dict[str, int | float | str | None]]:
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
            TypeError: if other is no Record.
            ValueError: if it is one of another model, or a site has different formats.
        """
        if not isinstance(other, Record):
            raise TypeError(f"other is a {type(other).__name__}; allowed is a Record")
        if other.model != self.model:
            raise ValueError(f"other is a record of model {quoted(other.model)}; allowed is {quoted(self.model)}")
        whole = Record(self.model, list(self.entries))
        for one in other.entries:
            whole.add(one.step, one.site, one.statistics, one.digest)
        return whole

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, "model": self.model, "entries": [one.to_json() for one in self.entries]}

    @classmethod
    def from_json(cls, fields: Any, model: str | None = None) -> Record:
        """What `to_json` made a dictionary of; see `load`."""
        if not isinstance(fields, Mapping) or set(fields) != set(_FIELDS):
            raise ValueError(f"record={fields!r:.80}; allowed is a record, with {', '.join(_FIELDS)}")
        if fields["version"] != VERSION:
            raise ValueError(f"record has version {quoted(fields['version'])}; allowed is {VERSION}")
        if model is not None and fields["model"] != model:
            raise ValueError(f"record is of model {quoted(fields['model'])}; allowed is {quoted(model)}")
        if not isinstance(fields["entries"], list) or not isinstance(fields["model"], str):
            raise ValueError(f"record={fields!r:.80}; allowed are a str as model and a list of entries")
        return cls(fields["model"], [Entry.from_json(one) for one in fields["entries"]])

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the record as JSON."""
        write_text(path, json.dumps(self.to_json(), separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: str | PathLike[str], model: str | None = None) -> Record:
        """Reads what `save` wrote.

        Args:
            path: of the file.
            model: the name of the model that it must be of; None takes any.

        Raises:
            ValueError: if the file is no record, or one of another version or model.
        """
        try:
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"path={quoted(str(path))} is no JSON ({error}); allowed is what Record.save wrote"
            ) from None
        return cls.from_json(fields, model)
