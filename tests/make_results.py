"""Result files of a small trace, such as sweep, curve, plan and serve write them."""

import json
from pathlib import Path

import pandas as pd
from click.testing import CliRunner

from hisparse_sim.cli import cli
from hisparse_sim.traces import open_trace, sample, sample_path

PLAN = pd.DataFrame(
    {
        "buffer": [3072, 4096],
        "ratio": [4, 8],
        "requests": [9, 9],
        "batch": [8, 8],
        "tokens_per_s": [100.0, 99.5],
        "tpot_ms": [50.0, 51.0],
        "host_gb": [300.0, 200.0],
        "limit": "device pool",
        "meets": True,
        "trace": "small",
        "parameters": json.dumps({"model": "glm-5.1", "prompt": 32768, "disaggregated": True}),
    }
)
SERVED = pd.DataFrame(
    {
        "mode": ["baseline", "hisparse", "hisparse"],
        "load": ["8", "8", "16"],
        "tokens_per_s": [10.0, 12.0, 20.0],
        "tpot_p50_ms": [20.0, 21.0, 22.0],
        "trace": "small",
        "seed": 0,
    }
)


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def results(folder: Path) -> list[Path]:
    """Write small.parquet, a part of the sample, and what was found: rows, curve, plan, serve."""
    path = folder / "small.parquet"
    sample(open_trace(sample_path()), path, layers=[4, 9, 14], steps=(0, 60))
    swept = (
        "--policy lru,arc,belady --buffer 2048,3072,4096 --per-layer --ratio 4 --model glm-5.1"
        " --link h200-pcie5 --kernel native --batch 8 --quiet"
    )
    run("sweep", path, *swept.split(), "-o", folder / "rows.parquet")
    curve = "--policy lru,belady --buffer 2048,3072 --window 10 --quiet"
    run("curve", path, *curve.split(), "-o", folder / "curve.csv")
    PLAN.to_json(folder / "plan.json", orient="records")
    SERVED.to_json(folder / "serve.jsonl", orient="records", lines=True)
    return [folder / name for name in ("rows.parquet", "curve.csv", "plan.json", "serve.jsonl")]
