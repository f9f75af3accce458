"""Recorded loads for tests: drawn with the means that the public traces state, none of their data.

Lengths are log-normal with the medians and means that are published: Azure's conversations of 2023
(1,020 and 129 tokens median: Splitwise, arXiv 2311.18677), Mooncake's (7,590 and 182 tokens mean:
arXiv 2407.00079).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

AZURE_MEDIANS = (1020, 129)
MOONCAKE_MEANS = (7590, 182)


def lengths(stream: np.random.Generator, median: float, spread: float, count: int) -> list[int]:
    drawn = np.exp(np.log(median) + spread * stream.standard_normal(count))
    return [max(int(each), 1) for each in drawn]


def azure(path: Path, count: int, seed: int = 0) -> None:
    """Dates of 100 ns, as in the trace."""
    stream = np.random.default_rng(seed)
    now, lines = datetime(2023, 11, 16, 18, 15, 46, tzinfo=UTC), []
    prompts, outputs = (lengths(stream, median, 1.0, count) for median in AZURE_MEDIANS)
    for prompt, output in zip(prompts, outputs, strict=True):
        now += timedelta(seconds=float(stream.exponential(0.2)))
        lines.append(f"{now:%Y-%m-%d %H:%M:%S.%f}0,{prompt},{output}")
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")


def burstgpt(path: Path, count: int, seed: int = 0) -> None:
    """Every tenth request failed."""
    stream, lines = np.random.default_rng(seed), []
    times = np.cumsum(stream.exponential(2.0, count)).round().astype(int)
    for i, time in enumerate(times):
        output = 0 if i % 10 == 9 else int(stream.integers(1, 500))
        prompt = int(stream.integers(1, 2000))
        lines.append(f"{time},ChatGPT,{prompt},{output},{prompt + output},Conversation log")
    names = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path.write_text("\n".join([names, *lines]) + "\n")


def mooncake(path: Path, count: int, seed: int = 0, families: int = 8) -> None:
    """Prompts of a family begin alike, up to a block of its own for each."""
    stream, lines, fresh = np.random.default_rng(seed), [], 10**6
    spread = 1.0
    shift = np.exp(-(spread**2) / 2)  # from mean to median
    prompts, outputs = (lengths(stream, mean * shift, spread, count) for mean in MOONCAKE_MEANS)
    for i in range(count):
        blocks = -(-prompts[i] // 512)
        alike = min(int(stream.integers(0, 30)), blocks)
        family = int(stream.integers(families))
        ids = [family * 1000 + k for k in range(alike)]
        ids += [fresh + k for k in range(blocks - alike)]
        fresh += blocks
        line = {"timestamp": 3000 * i, "input_length": prompts[i], "output_length": outputs[i]}
        lines.append(json.dumps(line | {"hash_ids": ids}))
    path.write_text("\n".join(lines) + "\n")
