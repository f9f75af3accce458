"""Misses by buffer size: the table that a pass over traces fills, and facts files hold."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.replay.coverage import SELECTED, Covered, coverage
from hisparse_sim.simulator.replay.metrics import without_tokens
from hisparse_sim.traces import Part
from hisparse_sim.traces.demand import Longs
from hisparse_sim.traces.notebook import Shown

ENGINE_LRU = "lru"
_COVERS = ["seed", "trace_sha256", *SELECTED]
ONE_PASS_METHOD, REPLAY, INTERPOLATED = "one pass", "replay", "interpolated"


class Curve(NamedTuple):
    """The misses of one policy."""

    method: str  # ONE_PASS_METHOD: every size, or every so many slots; REPLAY: some sizes
    sizes: Longs  # [S] slots, ascending
    misses: Longs  # [lines, S]


@dataclass(frozen=True, eq=False, repr=False)
class MissCurves(Shown):
    """Misses by buffer size, exact where they are given.

    `lines` has a row per trace, per (request, layer) or per window of steps of one: `trace,
    trace_sha256, provenance, unit, model, top_k, request, layer, first_step, steps, tokens (of the
    request in its last step), accesses` and what `replay.coverage` says of all lines of the trace;
    what a line sums up is null. A window holds the steps from `first_step` to `first_step` +
    `window` - 1.
    """

    lines: pd.DataFrame
    start: str
    seed: int
    of: Mapping[str, Curve]  # by policy
    parts: Mapping[str, tuple[Part, ...]]  # all of a trace, by its SHA-256
    window: int | None = None

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of every trace, by its name in the rows."""
        return dict(zip(self.lines["trace"], self.lines["trace_sha256"], strict=True))

    @property
    def rows(self) -> pd.DataFrame:
        """The tidy table: a row per line, policy and size, columns as in docs/metrics.md.

        `method` is `one pass` or `replay`, which are exact, or `interpolated`, between two replays.
        """
        about = ["trace", "provenance", "unit", "request", "layer"]
        about += ["first_step"] if self.window is not None else []
        tables = []
        for policy, curve in self.of.items():
            sizes, misses = curve.sizes, curve.misses
            method = np.full(len(sizes), curve.method)
            if curve.method == REPLAY:
                sizes = np.union1d(sizes, self._between(sizes))
                misses = interpolated(curve, sizes)
                method = np.where(np.isin(sizes, curve.sizes), REPLAY, INTERPOLATED)
            lines = self.lines.loc[self.lines.index.repeat(len(sizes))].reset_index(drop=True)
            found = pd.DataFrame(
                {
                    "policy": policy,
                    "buffer": np.tile(sizes, len(self.lines)),
                    "start": self.start,
                    "steps": lines["steps"],
                    "accesses": lines["accesses"],
                    "misses": misses.ravel(),
                    "miss_rate": misses.ravel() / lines["accesses"],
                    "misses_per_step": misses.ravel() / lines["steps"],
                    "method": np.tile(method, len(self.lines)),
                }
            )
            tables.append(pd.concat([lines[about], found, lines[_COVERS]], axis=1))
        rows = pd.concat(tables, ignore_index=True).astype({"layer": "Int64"})
        return without_tokens(rows)

    def _shown(self) -> tuple[str, Iterable[str], pd.DataFrame]:
        names = ", ".join(dict.fromkeys(self.lines["trace"]))
        policies = ", ".join(self.of)
        return f"Miss-ratio curves of {names}: {policies}", (), self.rows

    def _between(self, sizes: Longs) -> Longs:
        """Return the sizes at which the others are known, between the first and the last of
        these."""
        known = [curve.sizes for curve in self.of.values() if curve.method == ONE_PASS_METHOD]
        every = known[0] if known else sizes
        inner: Longs = every[(every >= sizes[0]) & (every <= sizes[-1])]
        return inner

    def summed(self, by: Sequence[str] = ()) -> "MissCurves":
        """Return a line per trace, or per trace and other columns of `lines`."""
        keys = ["trace_sha256", *by]
        groups = self.lines.groupby(keys, sort=False, dropna=False)
        number = groups.ngroup().to_numpy()
        lines = self.lines.loc[~self.lines.duplicated(keys)].reset_index(drop=True)
        if "request" not in by:
            same = groups["request"].nunique(dropna=False).to_numpy() == 1
            lines["request"] = lines["request"].where(same)
        if "layer" not in by:
            lines["layer"] = None
        # Of windows of one (request, layer) the first one tells where they begin.
        single = {"request", "layer"} <= set(by)
        lines["first_step"] = groups["first_step"].min().to_numpy() if single else None
        lines["tokens"] = groups["tokens"].max().to_numpy()
        for column in ("steps", "accesses"):
            lines[column] = np.bincount(number, self.lines[column]).astype(np.int64)
        of = {}
        for policy, curve in self.of.items():
            misses = np.zeros((len(lines), len(curve.sizes)), np.int64)
            np.add.at(misses, number, curve.misses)
            of[policy] = curve._replace(misses=misses)
        return replace(self, lines=lines, of=of, window=self.window if "first_step" in by else None)

    def of_trace(self, sha256: str) -> "MissCurves":
        """Return the lines of one trace."""
        return self._kept((self.lines["trace_sha256"] == sha256).to_numpy())

    def select(
        self,
        requests: Iterable[str] | None = None,
        layers: Iterable[int] | None = None,
        steps: tuple[int, int] | None = None,
    ) -> "MissCurves":
        """Return the lines of these requests, layers and steps (first, stop); None means all.

        Raises ValueError for a request or layer that no line has, or steps that cut a window.
        """
        chosen = np.ones(len(self.lines), bool)
        for column, wanted in (("request", requests), ("layer", layers)):
            if wanted is None:
                continue
            names: set[object] = set(wanted)
            for unknown in names - set(self.lines[column]):
                raise ValueError(f"there is no {column} {unknown!r} in the lines")
            chosen &= self.lines[column].isin(names).to_numpy()
        if steps is not None:
            if self.lines["first_step"].isna().any():
                raise ValueError("the lines sum up steps: count them with a window")
            begin = self.lines["first_step"].to_numpy(np.int64)
            end = begin + self.lines["steps"].to_numpy(np.int64)
            for edge in steps:
                if (chosen & (begin < edge) & (edge < end)).any():
                    raise ValueError(f"step {edge} is inside a window of steps that are summed up")
            chosen &= (begin >= steps[0]) & (end <= steps[1])
        if not chosen.any():
            raise ValueError("no line is left of what is selected")
        return self._kept(chosen)

    def without_first(self, steps: int) -> "MissCurves":
        """Return the lines from so many steps of every request on (the start-up burst apart).

        Raises ValueError for steps that end inside a window.
        """
        of_a_part = self.lines.groupby(["trace_sha256", "request", "layer"], dropna=False)
        since = self.lines["first_step"] - of_a_part["first_step"].transform("min")
        if ((since < steps) & (since + self.lines["steps"] > steps)).any():
            raise ValueError(f"{steps:,} steps end inside a window of steps that are summed up")
        if not (since >= steps).any():
            raise ValueError(f"no request has more than {steps:,} steps")
        kept = self._kept((since >= steps).to_numpy())
        return replace(kept, lines=skipped(kept.lines, steps))

    def up_to(self, largest: int) -> "MissCurves":
        """Return the curves of buffers of up to so many slots."""
        of = {}
        for policy, curve in self.of.items():
            kept = curve.sizes <= largest
            if not kept.any():
                raise ValueError(
                    f"the smallest buffer has {curve.sizes[0]:,} slots, not {largest:,}"
                )
            of[policy] = Curve(curve.method, curve.sizes[kept], curve.misses[:, kept])
        return replace(self, of=of)

    def _kept(self, chosen: "np.ndarray[Any, np.dtype[np.bool_]]") -> "MissCurves":
        of = {
            policy: curve._replace(misses=curve.misses[chosen]) for policy, curve in self.of.items()
        }
        lines = self.lines[chosen].reset_index(drop=True)
        return replace(self, lines=covering(lines, lines, self.parts, self.seed), of=of)


def covering(
    lines: pd.DataFrame, all_lines: pd.DataFrame, parts: Mapping[str, tuple[Part, ...]], seed: int
) -> pd.DataFrame:
    """Return lines with what `all_lines`, of single (request, layer), say of their traces."""
    found = {}
    for sha256, own in all_lines.groupby("trace_sha256", sort=False):
        part_of: dict[Any, Part] = {(part.request, part.layer): part for part in parts[str(sha256)]}
        covered = [
            Covered(part_of[key], int(rows["first_step"].min()), int(rows["steps"].sum()))
            for key, rows in own.groupby(["request", "layer"], sort=False)
        ]
        found[sha256] = coverage(str(sha256), parts[str(sha256)], covered, seed)
    covers = pd.DataFrame.from_dict(found, orient="index").drop(columns="trace_sha256")
    own = lines.drop(columns=["seed", *SELECTED], errors="ignore")
    return own.join(covers, on="trace_sha256")


def skipped(lines: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Return lines that say that the first steps were replayed and not counted: a sweep of the
    others begins with another buffer."""
    if not steps:
        return lines
    return lines.assign(selected_steps=lines["selected_steps"] + f" (first {steps} replayed)")


def joined(found: Sequence[MissCurves]) -> MissCurves:
    """Return the lines of several, which have one start and window, for the policies and sizes that
    all have."""
    first = found[0]
    of = {}
    for policy, curve in first.of.items():
        others = [each.of[policy] for each in found if policy in each.of]
        if len(others) == len(found):
            sizes = curve.sizes
            for other in others:
                sizes = (
                    sizes
                    if np.array_equal(sizes, other.sizes)
                    else np.intersect1d(sizes, other.sizes)
                )
            misses = [other.misses[:, np.searchsorted(other.sizes, sizes)] for other in others]
            of[policy] = Curve(curve.method, sizes, np.concatenate(misses))
    lines = pd.concat([each.lines for each in found], ignore_index=True)
    parts = {sha256: own for each in found for sha256, own in each.parts.items()}
    return replace(first, lines=lines, of=of, parts=parts)


def interpolated(curve: Curve, sizes: Longs) -> Longs:
    """Return the misses [lines, sizes] on straight lines between what is known, both axes
    logarithmic, as miss-ratio curves are nearly straight there."""
    at = np.log(sizes)
    return np.stack(
        [
            np.where(
                np.isin(sizes, curve.sizes),
                own[np.searchsorted(curve.sizes, sizes).clip(max=len(own) - 1)],
                np.exp(np.interp(at, np.log(curve.sizes), np.log(np.maximum(own, 0.5)))).round(),
            )
            for own in curve.misses
        ]
    ).astype(np.int64)


def engine_difference(curves: MissCurves) -> tuple[float, int] | None:
    """Return the largest difference of the engine's LRU from the textbook's, as a share of all
    accesses, and the size where it is; None if either is missing or they share no size."""
    if ENGINE_LRU not in curves.of or TEXTBOOK_LRU not in curves.of:
        return None
    engine, textbook = curves.of[ENGINE_LRU], curves.of[TEXTBOOK_LRU]
    sizes, own, theirs = np.intersect1d(engine.sizes, textbook.sizes, return_indices=True)
    if not len(sizes):
        return None
    apart = engine.misses[:, own].sum(axis=0) - textbook.misses[:, theirs].sum(axis=0)
    at = int(np.abs(apart).argmax())
    return float(apart[at] / curves.lines["accesses"].sum()), int(sizes[at])
