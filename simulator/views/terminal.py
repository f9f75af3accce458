"""Result rows on a terminal."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.replay.metrics import origins, slots_are
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views.sparks import drawable, sparkline
from hisparse_sim.simulator.views.tables import print_table
from hisparse_sim.traces import TraceInfo
from hisparse_sim.traces.file.layer_types import followers
from hisparse_sim.traces.file.metadata import fit_caveat
from hisparse_sim.traces.file.units import TOKEN, plural
from hisparse_sim.traces.terminal import counted, escaped, printable

Columns = dict[str, tuple[str, Callable[[Any], str]]]


def _count(value: Any) -> str:
    return f"{value:,.0f}"


def _per_token(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:,.1f}"


def _percent(value: Any) -> str:
    return "-" if pd.isna(value) else f"{100 * value:.2f}"


def _more(value: Any) -> str:
    return "-" if pd.isna(value) else f"{100 * value:+.1f} %"


def _mb(value: Any) -> str:
    return f"{value / 1e6:,.1f}"


def _gb(value: Any) -> str:
    return f"{value / 1e9:,.2f}"


def show_sweep(rows: pd.DataFrame, output: Path | None = None) -> None:
    """Print the rows of a sweep: the misses and, if asked for, their cost and the requests that
    fit."""
    columns: Columns = {}
    # A row that sums over requests has none.
    requests = rows.groupby("trace")["request"].nunique()
    if requests.max() > 1 and rows["request"].notna().all():
        columns["request"] = ("request", str)
    if rows["layer"].notna().any():
        columns["layer"] = ("layer", lambda value: f"{value:.0f}")
    columns |= {
        "policy": ("policy", str),
        "buffer": ("buffer", _count),
        "miss_rate": ("miss %", _percent),
        "misses_per_step": ("per step", lambda value: f"{value:,.1f}"),
        "p50": ("p50", _count),
        "p95": ("p95", _count),
        "max": ("max", _count),
    }
    if rows["p50"].isna().all():  # of facts
        del columns["p50"], columns["p95"], columns["max"]
    if rows["excess_over_min"].notna().any():
        columns["excess_over_min"] = ("over MIN", _more)
    if "misses_per_token" in rows:
        columns["misses_per_token"] = ("per token", _per_token)
    priced = "bytes_per_step" in rows
    if priced:
        columns |= {"bytes_per_step": ("MB/step", _mb), "bytes_per_request": ("GB/req", _gb)}
    if "swap_in_us" in rows:
        columns["swap_in_us"] = ("swap-in us", lambda value: f"{value:,.1f}")
        if priced:  # to fit into 80 columns
            columns.pop("p50", None), columns.pop("p95", None)
    apart = [name for name in columns if name != "excess_over_min"]
    shown = rows.drop_duplicates(["trace", *apart])
    traces = [f"{trace} ({kind})" for trace, kind in shown[["trace", "provenance"]].to_numpy()]
    print_table(
        shown,
        columns,
        output,
        before=_title(rows),
        after=_over_layers(rows, output) + (_memory(rows) if "device_pool_gib" in rows else ""),
        bars="misses_per_step",
        keys=[name for name in ("request", "layer", "policy", "buffer") if name in columns],
        sections=traces if len(set(traces)) > 1 else None,
    )


def _over_layers(rows: pd.DataFrame, output: Path | None) -> str:
    """Return the misses from the first layer to the last, a line per policy and buffer."""
    layers, several = rows["layer"].nunique(), rows["trace"].nunique() > 1
    if layers < 3 or output is not None or not drawable():
        return ""
    sums = totals(rows, ["trace", "policy", "buffer", "layer"]).sort_values("layer", kind="stable")
    lines = [
        f"  {name if several else ''} {policy:<7}{size:>7,}"
        f"  {sparkline(list(group['misses_per_step']))}"
        for (name, policy, size), group in sums.groupby(["trace", "policy", "buffer"], sort=False)
    ]
    return "\n".join(
        [f"\nMisses per step over {layers} layers, each line scaled to its largest:", *lines]
    )


def _memory(rows: pd.DataFrame) -> str:
    """Return how many requests fit, a line per buffer and ratio."""
    first = rows.iloc[0]
    lines = [
        f"Memory, {first['model']}"
        + f" with {first['kv_dtype']} KV" * bool(first["kv_dtype"])
        + ","
        f" {first['request_tokens']:,} tokens per request, on {first['hardware']}:",
        f"{first['device_pool_gib']:.1f} GiB of a GPU and {first['host_gib']:.1f} GiB of its host"
        f" for KV, {first['engine']}",
    ]
    for _, row in rows.drop_duplicates(["buffer", "host_to_device_ratio"]).iterrows():
        lines.append(
            f"  buffer {row['buffer']:,}, ratio {row['host_to_device_ratio']}: "
            f"{counted(row['requests_per_gpu'], 'request')} per GPU, limited by: {row['limit']}\n"
            f"    of a request: hot buffer {row['hot_buffer_bytes'] / 2**20:,.1f} MiB on the GPU, "
            f"KV {row['host_bytes_per_request'] / 2**30:,.2f} GiB on the host\n"
            + textwrap.fill(row["reason"], 80, initial_indent="    ", subsequent_indent="    ")
        )
    return "\n" + "\n".join(lines)


def _title(rows: pd.DataFrame) -> str:
    traces = origins(rows)
    where = f"{len(traces)} traces" if len(traces) > 1 else traces[0]
    title = f"Misses per decode step and layer: {where}, {rows.iloc[0]['start']} start"
    if "rules" in rows:
        title += f"\nRules of {'; '.join(rows['rules'].dropna().drop_duplicates())}"
    return title + slots_are(rows)


def show_policies(rows: pd.DataFrame, output: Path | None = None) -> None:
    """Print one policy, or one prefetcher, per line."""
    kind = rows.columns[0]
    print_table(
        rows,
        {
            kind: (kind, str),
            "summary": ("rule", str),
            "parameters": ("parameters", str),
            "reference": ("reference", str),
        },
        output,
    )


def show_trace_info(info: TraceInfo, output: Path | None = None) -> None:
    """Print a description of a trace, and a line per layer and for all layers."""
    metadata = info.metadata
    facts = {
        "model": metadata.model or "unknown",
        "provenance": metadata.provenance,
        "source": metadata.source or "unknown",
        "dataset": metadata.dataset or "unknown",
        "holds": f"{counted(len(info.requests), 'request')},"
        f" {counted(len(info.per_layer), 'layer')}"
        + (f" of {metadata.num_layers}" if metadata.num_layers else "")
        + f", {info.total.rows:,} rows, {info.total.positions:,} positions",
        "unit": metadata.unit
        + f": positions, seq_len and top_k are {plural(metadata.unit)}" * (metadata.unit != TOKEN),
        "top_k": f"{metadata.top_k:,}; order within a row: {metadata.order}",
        "size": f"{info.size_bytes / 1e6:.2f} MB, "
        f"{info.size_bytes / max(1, info.total.positions):.2f} bytes per position",
        "sha256": info.sha256,
    }
    if metadata.draft_tokens > 1:
        facts["drafts"] = f"up to {metadata.draft_tokens} queries a step"
        if info.accepted_per_step is not None:
            facts["drafts"] += f", {info.accepted_per_step:.2f} accepted on average"
    if sharing := followers(metadata.layer_types):
        facts["indexers"] = (
            f"in {len(sharing)} layers; {sum(sharing.values())} layers repeat the one before them"
        )
    if caveat := fit_caveat(metadata):
        facts["fit"] = caveat
    layers = pd.DataFrame([vars(layer) for layer in (*info.per_layer, info.total)])
    layers["layer"] = [str(layer.layer) for layer in info.per_layer] + ["all"]
    layers["seq_len"] = [
        f"{low:,}-{high:,}"
        for low, high in zip(layers["seq_len_min"], layers["seq_len_max"], strict=True)
    ]
    print_table(
        layers,
        {
            "layer": ("layer", str),
            "requests": ("requests", _count),
            "rows": ("rows", _count),
            "seq_len": ("seq_len", str),
            "overlap": ("overlap %", _percent),
            "first_4_share": ("first 4 %", _percent),
            "recent_256_share": ("last 256 %", _percent),
        },
        output,
        before="\n".join(
            [
                printable(info.path.name),
                *(f"  {name:<11}{escaped(fact)}" for name, fact in facts.items()),
            ]
        )
        + "\n",
        after="overlap: share of positions that the step before selected too"
        + ", of first queries" * (metadata.draft_tokens > 1)
        + f"\nfirst 4, last 256: so many {plural(metadata.unit)}" * (metadata.unit != TOKEN)
        + _overlaps(layers["overlap"].iloc[:-1], output),
    )


def _overlaps(values: "pd.Series[float]", output: Path | None) -> str:
    if len(values) < 3 or output is not None or not drawable():
        return ""
    return f"\nover the layers: {sparkline(list(values.astype(float)))}"
