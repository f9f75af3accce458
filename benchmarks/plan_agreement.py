"""Whether `serve` confirms what `plan` says, on random settings.

    python benchmarks/plan_agreement.py [--settings N]

Each setting is planned by command, the `serve` command that the plan prints is run, and their
figures for the recommendation are compared. For every tenth setting all candidates are served too,
and the best of them is compared with the one that the search found. Writes
results/plan-agreement.json.
"""

import json
import random
import shlex
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from machine import describe_versions

from hisparse_sim.cli import cli

RESULT = Path(__file__).parent / "results" / "plan-agreement.json"
COMPARED = ("tokens_per_s", "tpot_p50_ms", "tpot_p99_ms", "ttft_p50_s")


def draw(number: int) -> list[str]:
    """Options of a plan: co-located or apart, lengths alike or spread, closed or open loop, with
    and without speculative decoding."""
    pick = random.Random(number)
    options: dict[str, Any] = {
        "model": pick.choice(["glm-5.1", "glm-5.2", "deepseek-v3.2"]),
        "hardware": pick.choice(["h200", "h20", "b200", "gh200"]),
        "layout": pick.choice(["dp8-tp8", "dp8-tp8", "tp8"]),
        "prompt": pick.choice([2000, 8192, 32_768, 65_536, 100_000]),
        "output-len": pick.choice([100, 1024, 4096, 8192]),
        "range-ratio": pick.choice([1, 1, 0.8, 0.2]),
        "seed": number,
    }
    if pick.random() < 0.3:
        options |= {"rate": pick.choice([0.02, 0.1, 0.5, 2]), "requests": 200}
    else:
        options["concurrency"] = pick.choice([8, 32, 64, 128, 256])
    if pick.random() < 0.5:
        options["disaggregated"] = None
    if pick.random() < 0.5:
        options["max-tpot-ms"] = pick.choice([30, 50, 80, 120])
    if pick.random() < 0.4:
        options["max-ttft-s"] = pick.choice([5, 30, 120, 600])
    if pick.random() < 0.5:
        options["percentile"] = pick.choice([50, 90, 99])
    if pick.random() < 0.3:
        rows = pick.choice([2, 3, 4])
        options |= {"draft-tokens": rows, "acceptance-length": pick.choice([1.5, 0.8 * rows])}
        if pick.random() < 0.5:
            options["union-misses"] = pick.choice([1, 1.4])
    words = []
    for name, value in options.items():
        words += [f"--{name}"] if value is None else [f"--{name}", str(value)]
    return words


def run(*words: str) -> tuple[int, Any]:
    """Exit code and the JSON that a command writes."""
    done = CliRunner().invoke(cli, [*words, "--format", "json", "--quiet"])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else None


def agree(words: list[str], thorough: bool = False) -> dict[str, Any]:
    """One setting: what plan says, what serve says, and how far they are apart."""
    row: dict[str, Any] = {"plan": " ".join(words)}
    _, planned = run("plan", *words)
    if planned is None or planned["recommendation"] is None:
        reason = planned["reasons"][0] if planned else "refused"
        return row | {"outcome": "none", "reason": reason}
    best = planned["recommendation"]
    code, rows = run(*shlex.split(planned["serve"])[1:])
    assert code == 0, planned["serve"]
    served = next(one for one in rows if one["mode"] != "baseline")
    row |= {
        "outcome": "served",
        "buffer": best["buffer"],
        "ratio": best["ratio"],
        "instances": [best["prefill_instances"], best["decode_instances"]],
        "tokens_per_s": served["tokens_per_s"],
        "targets_met": served["meets"],
        "bottleneck": served["bottleneck"],
        "largest_difference": max(
            abs(best[name] / served[name] - 1) for name in COMPARED if served[name]
        ),
    }
    if thorough:
        _, every = run("plan", *words, "--candidates")
        top = every["recommendation"]["tokens_per_s_per_gpu"]
        row["of_the_best_candidate"] = best["tokens_per_s_per_gpu"] / top
    return row


@click.command()
@click.option("--settings", default=200, show_default=True)
def main(settings: int) -> None:
    rows = []
    with click.progressbar(range(settings), label="settings") as numbers:
        for number in numbers:
            rows.append(agree(draw(number), thorough=number % 10 == 0))
    served = [row for row in rows if row["outcome"] == "served"]
    found = [row["of_the_best_candidate"] for row in rows if "of_the_best_candidate" in row]
    summary = {
        "settings": settings,
        "with_drafts": sum("--draft-tokens" in row["plan"] for row in rows),
        "with_a_recommendation": len(served),
        "largest_difference": max(row["largest_difference"] for row in served),
        "targets_missed": sum(not row["targets_met"] for row in served),
        "searched_against_all": len(found),
        "worst_of_the_best_candidate": min(found),
    }
    result = {"summary": summary, "versions": describe_versions(), "rows": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    click.echo(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
