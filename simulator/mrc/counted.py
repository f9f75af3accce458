"""Facts in place of a trace: sweeps and rolling curves without a replay.

One file, for a counted sweep, its pieces and its curves share how facts become rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import pandas as pd

from hisparse_sim.policies import ALIASES, Policy
from hisparse_sim.simulator.mrc.curves import MissCurves, joined
from hisparse_sim.simulator.mrc.facts import is_facts, read_facts
from hisparse_sim.simulator.mrc.names import BELADY, COMPULSORY
from hisparse_sim.simulator.replay.applicable import with_all
from hisparse_sim.simulator.replay.coverage import SELECTED, Covered
from hisparse_sim.simulator.replay.curves import rolling_curves
from hisparse_sim.simulator.replay.metrics import excess_over_min, without_tokens
from hisparse_sim.simulator.replay.replaying import MAX_BUFFER_SIZE
from hisparse_sim.simulator.replay.sweeping import trace_names
from hisparse_sim.simulator.replay.swept import Piece, Run, Sweep
from hisparse_sim.traces import Metadata, OneTrace, Part, Trace, TraceError, Traces, as_traces
from hisparse_sim.traces.arguments import whole_numbers
from hisparse_sim.traces.file.units import TOKEN
from hisparse_sim.traces.remote import place_of

FACTS_NOTE = (
    "misses were counted before and not replayed: percentiles are not known, and LRU is the"
    " textbook's, not the engine's"
)


class CountedTrace(Trace):
    """A trace with known misses, without positions."""

    def __init__(self, path: str | PathLike[str], curves: MissCurves) -> None:
        """`curves`: of one trace, a line per (request, layer), or per window of one."""
        first = curves.lines.iloc[0]
        self.curves = curves
        self.path = place_of(path)
        self.metadata = Metadata(
            first["model"], first["provenance"], int(first["top_k"]), None, unit=first["unit"]
        )
        counted = set(curves.lines[["request", "layer"]].itertuples(index=False, name=None))
        every = curves.parts[first["trace_sha256"]]
        self.parts = tuple(part for part in every if (part.request, part.layer) in counted)
        self.columns = frozenset()

    def __reduce__(self) -> tuple[Any, ...]:
        return CountedTrace, (self.path, self.curves)

    @property
    def name(self) -> str:
        return str(self.curves.lines["trace"].iloc[0])

    @property
    def sha256(self) -> str:
        """Digest of the counted trace."""
        return str(self.curves.lines["trace_sha256"].iloc[0])

    @property
    def has_digest(self) -> bool:
        return False

    def read_tallied(self, *_: Any, **__: Any) -> NoReturn:
        """Raises TraceError: there are no positions."""
        raise TraceError(f"{self.path} holds facts and no positions: give the trace itself")

    def read_steps(self, part: Part) -> NoReturn:
        """Raises TraceError: there are no rows."""
        raise self.read_tallied()


def as_traces_or_facts(given: Traces | None) -> list[Trace]:
    """Return opened traces and the counted traces of facts files; None: the bundled sample.

    Raises TraceError for a file that is neither.
    """
    if given is None or isinstance(given, str | PathLike | Trace):
        given = [] if given is None else [given]
    else:
        given = list(given)
    opened: list[Trace] = []
    for one in given:
        if isinstance(one, Trace) or not is_facts(one):
            opened += as_traces([one])
        else:
            facts = read_facts(one)
            opened += [
                CountedTrace(one, facts.of_trace(str(sha256)))
                for sha256 in facts.lines["trace_sha256"].unique()
            ]
    return opened or as_traces(None)


def as_trace_or_facts(given: OneTrace) -> Trace:
    """Return one trace, or the counted trace of a facts file. Raises TraceError for several."""
    opened = as_traces_or_facts(given)
    if len(opened) > 1:
        raise TraceError(f"{opened[0].path} holds facts of {len(opened)} traces: give those of one")
    return opened[0]


def are_facts(given: OneTrace | None) -> bool:
    """Return whether this is a facts file, not a trace."""
    if given is None or isinstance(given, Trace):
        return isinstance(given, CountedTrace)
    return is_facts(given)


def counted_only(traces: Sequence[Trace]) -> list[CountedTrace]:
    """Return the traces if all are counted, [] if none is. Raises TraceError for a mix."""
    counted = [trace for trace in traces if isinstance(trace, CountedTrace)]
    if counted and len(counted) < len(traces):
        raise TraceError(
            f"{counted[0].path} holds facts, which cannot be swept together with traces"
        )
    return counted


@dataclass(eq=False)
class _CountedPiece(Piece):
    """A part without the misses of single steps."""

    steps: int = 0

    @property
    def covered(self) -> Covered:
        return Covered(self.part, self.first_step, self.steps)


def curves_counted(
    traces: Sequence[CountedTrace],
    policies: str | Policy | Iterable[str | Policy] | None,
    start: str,
    *,
    largest: int | None = None,
    per_layer: bool = False,
    window: int | None = None,
    skip_steps: int = 0,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
) -> MissCurves:
    """Return what `mrc` would, for the counted policies and sizes.

    Raises what `sweep_counted` raises, and ValueError for a window other than the counted one.
    """
    found = []
    for trace in traces:
        own = _selected(trace, start, requests, layers, steps)
        names = list(own.of) if policies is None else _asked(trace, policies)
        found.append(replace(own, of={name: own.of[name] for name in names}))
        if window is not None and window != own.window:
            raise ValueError(f"{trace.path} was counted with a `window` of {own.window} steps")
    curves = joined(found)
    curves = curves.without_first(skip_steps) if skip_steps else curves
    curves = curves if largest is None else curves.up_to(largest)
    if window is not None:
        return curves
    return curves.summed(["request", "layer"]) if per_layer else curves.summed()


def sweep_counted(
    traces: Sequence[CountedTrace],
    policies: str | Policy | Iterable[str | Policy] | None,
    buffers: Sequence[int],
    start: str,
    *,
    compare_min: bool = True,
    per_layer: bool = False,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
) -> Sweep:
    """Return what a sweep would, without percentiles and the misses of single steps.

    Raises TraceError for a policy, start or size that was not counted, ValueError for a selection
    that does not exist.
    """
    tables: list[pd.DataFrame] = []
    pieces: list[Piece] = []
    parts_per_row: list[int] = []
    for trace, name in zip(traces, trace_names(traces), strict=True):
        single = _selected(trace, start, requests, layers, steps).summed(["request", "layer"])
        part_of = {(part.request, part.layer): part for part in trace.parts}
        for line in single.lines.to_dict("records"):
            piece = _CountedPiece(trace, name, part_of[line["request"], line["layer"]])
            piece.first_step, piece.steps = line["first_step"], line["steps"]
            piece.last_seq_len, piece.accesses = line["tokens"], line["accesses"]
            pieces.append(piece)
        lines = single if per_layer else single.summed()
        rows = _rows(trace, lines, _asked(trace, policies), buffers, compare_min)
        tables.append(rows.assign(trace=name))
        parts_per_row += [1 if per_layer else len(single.lines)] * len(rows)
    return Sweep(
        rows=without_tokens(pd.concat(tables, ignore_index=True)),
        per_layer=per_layer,
        parts_per_row=np.array(parts_per_row),
        finished=len(pieces),
        parts=len(pieces),
        pieces=pieces,
    )


def curve_counted(
    trace: CountedTrace,
    policies: str | Policy | Iterable[str | Policy] | None,
    buffers: Sequence[int],
    start: str,
    *,
    window: int,
    skip_steps: int = 0,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
) -> tuple[pd.DataFrame, Sweep]:
    """Return rolling curves as `replay.curves.rolling_curves` does, at the ends of the counted
    windows, and their sweep.

    Raises what `sweep_counted` raises, and ValueError for a window or steps to skip that are not
    multiples of the counted window.
    """
    size = trace.curves.window
    if size is None or window % size or skip_steps % size:
        raise ValueError(
            f"{trace.path} was counted in windows of {size or 'all'} steps: `window` and"
            " `skip_steps` must be multiples of that"
        )
    selected = (requests, layers, steps)
    swept = sweep_counted(
        [trace], policies, buffers, start, compare_min=False, requests=requests, layers=layers,
        steps=steps,
    )  # fmt: skip
    own = _selected(trace, start, *selected)
    whole = own.lines["steps"] == size  # the last window of a request may be short
    offsets = set(own.lines["first_step"] % size)
    if len(offsets) > 1:
        raise ValueError(
            f"the windows of {trace.path} begin at different steps: select one request"
        )
    for piece in swept.pieces:
        part = piece.part
        mine = whole & (own.lines["request"] == part.request) & (own.lines["layer"] == part.layer)
        for policy in _asked(trace, policies):
            for slots in buffers:
                run = Run(cast(Policy, _Named(policy)), slots)
                at = int(np.searchsorted(own.of[policy].sizes, slots))
                piece.misses[run] = own.of[policy].misses[mine.to_numpy(), at]
        piece.first_step //= size
    curves = rolling_curves(swept, window // size, skip_steps // size)
    curves["step"] = (curves["step"] + 1) * size - 1 + offsets.pop()
    curves[["misses_per_step", "p10", "p90"]] /= size
    return curves.assign(window=window, skip_steps=skip_steps), swept


class _Named(NamedTuple):
    name: str  # of a counted policy, not a replayed one


def _selected(
    trace: CountedTrace,
    start: str,
    requests: str | Iterable[str] | None,
    layers: int | Iterable[int] | None,
    steps: tuple[int, int] | None,
) -> MissCurves:
    """Return the lines of a selection, each from the beginning of its request."""
    if start != trace.curves.start:
        raise TraceError(
            f"{trace.path} was counted for the start {trace.curves.start}, not {start}"
        )
    own = trace.curves.select(
        [requests] if isinstance(requests, str) else requests,
        None if layers is None else whole_numbers("layers", layers),
        None if steps is None else (0, steps[1]),
    )
    if steps is not None and (own.lines["first_step"] < steps[0]).any():
        raise ValueError(
            f"a sweep from step {steps[0]} on starts there with a buffer as after the prompt, and"
            f" {trace.path} was counted from the first step on: give the trace itself, or use"
            " `mrc --skip-steps`"
        )
    return own


def _asked(
    trace: CountedTrace, policies: str | Policy | Iterable[str | Policy] | None
) -> list[str]:
    known = [policy for policy in trace.curves.of if policy != COMPULSORY]
    if policies is None:
        return known
    given = with_all(policies, lambda: known)
    names = [each.name if isinstance(each, Policy) else ALIASES.get(each, each) for each in given]
    for name in names:
        if name not in trace.curves.of:
            raise TraceError(
                f"{trace.path} holds the misses of {', '.join(trace.curves.of)}; to replay {name}"
                " give the trace itself"
            )
    return list(dict.fromkeys(names))


def _rows(
    trace: CountedTrace,
    lines: MissCurves,
    policies: Sequence[str],
    buffers: Sequence[int],
    compare_min: bool,
) -> pd.DataFrame:
    for policy in policies:
        sizes = lines.of[policy].sizes
        for missing in sorted(set(buffers) - set(sizes.tolist())):
            step = int(np.diff(sizes).min(initial=MAX_BUFFER_SIZE))
            raise TraceError(
                f"{trace.path} has no {policy} at {missing:,} slots; its sizes go from {sizes[0]:,}"
                f" to {sizes[-1]:,} in steps of {step:,}"
            )
    keys = ["request", "layer", "buffer"]
    rows = lines.rows
    if "unit" not in rows:
        rows.insert(2, "unit", TOKEN)
    rows = rows.copy()
    rows = rows[rows["buffer"].isin(buffers)].assign(p50=np.nan, p95=np.nan, max=np.nan)
    rows["excess_over_min"] = np.nan
    if compare_min and BELADY in lines.of:
        least = rows[rows["policy"] == BELADY].set_index(keys)["misses"]
        of = pd.MultiIndex.from_frame(rows[keys])
        rows["excess_over_min"] = [
            excess_over_min(misses, optimum)
            for misses, optimum in zip(rows["misses"], least.loc[of], strict=True)
        ]
    behind = [name for name in rows if name in ("seed", "trace_sha256", *SELECTED)]
    before = [name for name in rows if name not in (*behind, "method")]
    tables = [rows[rows["policy"] == policy] for policy in policies]
    return pd.concat(tables).sort_values(["request", "layer"], kind="stable")[before + behind]
