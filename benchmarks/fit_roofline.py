"""Fits the factors of simulator/serving/roofline.py to the shipped step-time tables, and says how
far a machine is missed that was left out.

    python benchmarks/fit_roofline.py

In prefill the tables cannot tell the exchange between GPUs from arithmetic: its factor is set, to
collectives that reach half of the links' rate. Prompts shorter than 4,096 tokens, where fixed times
rule, and instances of several nodes do not shape the prefill factors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.simulator.serving import roofline
from hisparse_sim.simulator.serving.hardware import load_hardware
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.roofline import Roofline
from hisparse_sim.simulator.serving.steptimes import (
    LAYOUTS,
    StepTimes,
    load_step_times,
    shipped_tables,
)

Floats = NDArray[np.float64]
Rows = list[tuple[tuple[float, ...], float]]  # (layers and terms, measured us)
LEAST_PROMPT = 4096
EXCHANGE = 2.0


def rows(table: StepTimes, roof: Roofline) -> dict[str, Rows]:
    """Terms and measured times of every part, by the name of its factors."""
    layers, top_k = roof.model.layers, roof.model.top_k
    out: dict[str, Rows] = {name: [] for name in PARTS}
    for b, row in zip(table.batch, table.attention_us, strict=True):
        for c, us in zip(table.context, row, strict=True):
            terms = roof.attention_terms(b, b * min(c, top_k), b * c, b * c)
            out["DECODE_ATTENTION"].append(((layers, *terms), us))
    for b, us in zip(table.batch, table.rest_us, strict=True):
        out["DECODE_REST"].append(((layers, *roof.rest_terms(b)), us))
    prompts = zip(
        table.prefill_tokens, table.prefill_attention_us, table.prefill_rest_us, strict=True
    )
    for n, attention, rest in prompts:
        if n < LEAST_PROMPT:
            continue
        attended = top_k * (top_k + 1) / 2 + (n - top_k) * top_k
        terms = roof.attention_terms(n, attended, n * (n + 1) / 2, n)
        out["PREFILL_ATTENTION"].append(((layers, *terms), attention))
        experts, dense, exchange = roof.rest_terms(n)
        if roof.layout.gpus <= roof.hardware.gpus:
            out["PREFILL_REST"].append(((layers, experts + dense), rest - EXCHANGE * exchange))
    return out


def fit(some: Rows) -> Floats:
    """Factors with the least squared error relative to the measured times."""
    terms, us = np.array([row[0] for row in some]), np.array([row[1] for row in some])
    scale = np.abs(us)[:, None]
    found: Floats = np.linalg.lstsq(terms / scale, us / np.abs(us), rcond=None)[0]
    return found


PARTS = ("DECODE_ATTENTION", "DECODE_REST", "PREFILL_ATTENTION", "PREFILL_REST")


def main() -> None:
    tables = {}
    for name in shipped_tables():
        model, hardware, layout, kv_dtype = name.split("_")
        table = load_step_times(model, hardware, layout, kv_dtype)
        roof = Roofline(load_model(model), load_hardware(hardware), LAYOUTS[layout], kv_dtype)
        tables[name] = (hardware, rows(table, roof))
    machines = sorted({hardware for hardware, _ in tables.values()})
    for part in PARTS:
        every = [row for _, parts in tables.values() for row in parts[part]]
        print(part, np.round(fit(every), 2), "shipped:", getattr(roofline, part))
        for machine in machines:
            kept = [row for at, parts in tables.values() if at != machine for row in parts[part]]
            left = [row for at, parts in tables.values() if at == machine for row in parts[part]]
            if not left:
                continue
            factors = fit(kept)
            error = np.abs([np.dot(row[0], factors) / row[1] - 1 for row in left])
            print(
                f"  without {machine}: {np.median(error):.0%}, one in ten over"
                f" {np.quantile(error, 0.9):.0%}"
            )


if __name__ == "__main__":
    main()
