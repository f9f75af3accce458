"""What a watched server did, as JSON and as a few lines for people."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hisparse_sim.gpu_replay.engine.recording import Budget, Recording


def sum_up(
    about: Mapping[str, Any],
    processes: Mapping[int, Mapping[str, Any]],
    counts: Sequence[Mapping[str, Any]],
    recordings: Sequence[Recording],
    budget: Budget,
    faults: Sequence[tuple[int, str, str]],
) -> dict[str, Any]:
    """The summary of a run, ready for JSON.

    `about`: facts of the run; `processes`: what each said when it started; `counts`: the last of
    each; `faults`: (process, part, message).
    """
    last = {each["process"]: each for each in counts}
    cut: Counter[str] = Counter()
    for each in recordings:
        cut.update(each.cut)
    recorded = {
        "files": [path.name for each in recordings for path in each.written],
        "steps": sum(each.steps for each in recordings),
        "steps_dropped": sum(each.steps_dropped for each in recordings),
        "cut": dict(cut),
        "bytes": budget.used_bytes,
        "stopped": budget.full,
    }
    return {
        **about,
        "processes": [{**facts, **last.get(number, {})} for number, facts in processes.items()],
        "recorded": recorded if recordings else None,
        "faults": [
            {"process": process, "part": part, "message": message}
            for process, part, message in faults
        ],
    }


def lines(summary: dict[str, Any]) -> Iterator[str]:
    """The summary in a few lines."""
    for process in summary["processes"]:
        layers = process.get("by_layer")
        if not layers:
            yield f"rank {process['rank']}: nothing was counted"
            continue
        accesses = sum(layer["accesses"] for layer in layers)
        misses = sum(layer["misses"] for layer in layers)
        moved = sum(layer["bytes"] for layer in layers)
        calls = process["steps"] * process["layers"]
        yield (
            f"rank {process['rank']}: {process['steps']:,} decode steps of requests, "
            f"{misses:,} misses in {accesses:,} accesses ({misses / max(1, accesses):.2%}), "
            f"{misses / max(1, calls):.1f} per step and layer, {moved / 1e9:,.2f} GB fetched"
        )
    recorded = summary["recorded"]
    if recorded:
        yield (
            f"recorded {len(recorded['files']):,} requests, {recorded['steps']:,} steps, "
            f"{recorded['bytes'] / 1e6:,.1f} MB; {recorded['steps_dropped']:,} steps were dropped"
        )
        for why, number in recorded["cut"].items():
            yield f"cut short: {number:,} requests: {why}"
    for fault in summary["faults"]:
        yield f"switched off in process {fault['process']}: {fault['part']}: {fault['message']}"
