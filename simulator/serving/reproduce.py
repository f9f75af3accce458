"""Published figures reproduced: what was published, what our models give, and how it was obtained.

The figures and their scenarios are data (profiles/published.toml). No model reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import pandas as pd

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.serving.engines import NEWEST
from hisparse_sim.simulator.serving.misses import Origin
from hisparse_sim.simulator.serving.published import read_published
from hisparse_sim.simulator.serving.published_causes import FAR, causes
from hisparse_sim.simulator.serving.published_runs import THEN, Runs, memory_figure
from hisparse_sim.traces import Trace
from hisparse_sim.traces.file.opening import refuse_queries
from hisparse_sim.traces.file.units import refuse_blocks

Progress = Callable[[str], None]
SHAPED, OUT = "shaped", "out of sample"
COMPARED = "compared with only"
CURVE = (8, 16, 32, 64, 128, 256)  # concurrencies of the figure


@dataclass(frozen=True)
class Reproduced:
    """One published figure and ours."""

    what: str
    published: float
    ours: float
    at_least: bool  # the published figure is a lower bound
    how: str
    gap: str
    source: str
    shaped: str = ""  # the choice in the model that the figure shaped; empty: out of sample
    entered: str = ""  # why one out of sample is so
    host_low: float = nan  # ours with the lowest and the highest rate that the host may give
    host_high: float = nan
    causes: str = ""  # of a large error: what changed inputs give

    @property
    def error(self) -> float:
        """ours / published - 1; 0 where a lower bound is kept."""
        if self.at_least and self.ours >= self.published:
            return 0.0
        return self.ours / self.published - 1

    @property
    def sample(self) -> str:
        return SHAPED if self.shaped else OUT


def _whole(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure of decode alone as one of the whole deployment."""
    what = entry["what"].replace("H20 disaggregated", "H20 with 1 prefill node")
    gap = "prefill limits it: the model has an H20 prefill 6.7 times slower than an H200"
    return dict(entry) | {"what": what, "gap": gap}


def reproduce(
    trace: Trace | None = None,
    policy: str | Policy = "lru",
    progress: Progress | None = None,
    engine: str | None = None,
) -> Iterator[Reproduced]:
    """Reproduce all published figures, one after the other.

    `trace`: whose misses are replayed (None: the synthetic demand of each model, see demand.py).
    `progress` gets each name first.
    `engine`: one release for all figures (None: the one that each figure is from).
    """
    published = read_published()
    if trace is not None:
        refuse_blocks([trace], "serving models need")
        refuse_queries(trace.path, trace.metadata, ())
    runs = Runs(trace, policy, engine)
    kinds = {
        "memory": memory_figure,
        "serving": runs.serving,
        "step": runs.step,
        "hidden": runs.hidden,
        "steps": runs.steps,
        "decode": runs.decode,
        "end to end": runs.end_to_end,
    }
    figures = published | {"end to end": [_whole(entry) for entry in published["decode"]]}
    for kind, compute in kinds.items():
        for entry in figures[kind]:
            if progress:
                progress(entry["what"])
            found = compute(entry)
            assumed = entry.get("assumed", "")
            row = Reproduced(
                what=entry["what"],
                published=float(entry["value"]),
                ours=found.ours,
                at_least=entry.get("at_least", False),
                how=f"{found.how} ({assumed})" if assumed else found.how,
                gap=entry["gap"],
                source=published["sources"][entry["source"]],
                shaped=entry.get("shaped", ""),
                entered=entry.get("entered", COMPARED),
                host_low=found.host_low,
                host_high=found.host_high,
            )
            if kind == "serving" and abs(row.error) > FAR:
                row = replace(row, causes=causes(runs, entry))
            yield row


def origin_of(trace: Trace | None) -> Origin:
    """Return the source of the misses: a trace, or the synthetic demand of each model."""
    return Origin.of(trace) if trace else Origin("synthetic@each", "synthetic", "")


def table(rows: list[Reproduced]) -> pd.DataFrame:
    """Tidy rows: what, published, ours, error, `sample` (whether the figure shaped a choice in the
    model or is out of sample), `choice` (which, or why it is so), host_low and host_high (ours with
    the lowest and the highest rate that the host may give all its GPUs), how, causes, gap, source.
    """
    return pd.DataFrame(
        [
            {
                "what": row.what,
                "published": row.published,
                "ours": row.ours,
                "error": row.error,
                "sample": row.sample,
                "choice": row.shaped or row.entered,
                "host_low": row.host_low,
                "host_high": row.host_high,
                "how": row.how,
                "causes": row.causes,
                "gap": row.gap,
                "source": row.source,
            }
            for row in rows
        ]
    )


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors of both groups, from the rows of `table`: sample, figures, `median` and `worst`
    (absolute errors), and `what`, the figure with the worst."""
    found = []
    for sample in (SHAPED, OUT):
        own = rows[rows["sample"] == sample]
        if len(own):
            errors = own["error"].abs()
            worst = own["what"].iloc[int(errors.to_numpy().argmax())]
            found.append(
                {
                    "sample": sample,
                    "figures": len(own),
                    "median": float(errors.median()),
                    "worst": float(errors.max()),
                    "what": str(worst),
                }
            )
    return pd.DataFrame(found)


def throughput_curves(trace: Trace | None = None, policy: str | Policy = "lru") -> pd.DataFrame:
    """Our rates for 32k/8k on 8 x H200, as rows of `serve`: columns mode, load, tokens_per_s."""
    runs, origin = Runs(trace, policy), origin_of(trace)
    lines = (  # name, mode, pool in GiB, engine
        ("baseline", "baseline", None, THEN),
        ("baseline, pool 10.7 GB", "baseline", 10.0, THEN),
        ("HiSparse, SGLang 0.5.23", "hisparse", None, NEWEST.name),
        ("HiSparse, before PR 31992", "hisparse", None, THEN),
    )
    return pd.DataFrame(
        [
            {
                "trace": origin.name,
                "provenance": origin.provenance,
                "mode": name,
                "load": str(concurrency),
                "tokens_per_s": runs.tokens_per_s(
                    {
                        "requests": 4 * concurrency,
                        "concurrency": concurrency,
                        "engine": engine,
                    },
                    mode,
                    pool,
                ).ours,
            }
            for name, mode, pool, engine in lines
            for concurrency in CURVE
        ]
    )
