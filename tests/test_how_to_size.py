"""The figures on the page about sizing are those that its commands give."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from hisparse_sim.cli import cli

PAGE = (Path(__file__).parents[1] / "docs" / "how-to-size.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def answers(start: str) -> list[Any]:
    """The JSON that each command of the page that begins so gives, in order."""
    found = []
    for command in re.findall(rf"^hisparse-sim ({re.escape(start)}.*)$", PAGE, re.MULTILINE):
        done = CliRunner().invoke(cli, [*shlex.split(command), "--format", "json", "--quiet"])
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout))
    return found


def said(plan: dict[str, Any], words: str) -> str:
    """What the page says of a plan's best; `words` names figures of it, and of its baseline."""
    best, base = plan["recommendation"], plan["baseline"]
    return words.format(
        B=best["buffer"],
        R=best["ratio"],
        rate=best["tokens_per_s"],
        each=best["tokens_per_s_per_gpu"],
        base=base["tokens_per_s"],
        gain=best["tokens_per_s"] / base["tokens_per_s"],
        bottleneck=best["bottleneck"],
        crossing=best["break_even"],
    )


def test_one_node_of_h200() -> None:
    today, then = answers("plan --prompt 32k")
    for plan, words in (
        (today, "says B = {B} and R = {R}: {rate:,.0f} tokens/s, against {base:,.0f} without"),
        (today, "{gain:.2f} times as much"),
        (today, "Break-even: {crossing} concurrent requests"),
        (then, "B = {B}, R = {R} and {rate:,.0f} tokens/s, {gain:.2f} times the baseline"),
    ):
        assert said(plan, words) in TEXT
    other = max(today["candidates"], key=lambda row: row["tokens_per_s"])
    best = today["recommendation"]
    assert best["host_gb"] < other["host_gb"]
    assert other["tokens_per_s"] < 1.01 * best["tokens_per_s"]
    shown = f"B = {other['buffer']} and R = {other['ratio']} give {other['tokens_per_s']:,.0f}"
    assert shown in TEXT
    assert today["recommendation"]["worth_it"]


def test_every_load_of_one_node() -> None:
    (rows,) = answers("serve --buffer 4096 --ratio 4")
    for mode, name in (("baseline", "baseline"), ("hisparse", "HiSparse")):
        rates = [f"{row['tokens_per_s']:,.0f}" for row in rows if row["mode"] == mode]
        assert f"| {name}, tokens/s | {' | '.join(rates)} |" in TEXT


def test_two_nodes_of_h20() -> None:
    one, more = answers("plan --hardware h20 --disaggregated")
    assert said(one, "B = {B} and R = {R}, with {rate:,.0f} tokens/s ({base:,.0f} without") in TEXT
    assert said(one, "the bottleneck is **{bottleneck}**") in TEXT
    assert said(more, "with B = {B} and R = {R}: {rate:,.0f} tokens/s, {each:.1f} per GPU") in TEXT
    assert f"instead of {one['recommendation']['tokens_per_s_per_gpu']:.1f}" in TEXT
    best = more["recommendation"]
    assert (best["prefill_instances"], best["decode_instances"]) == (2, 1)
    assert "Two that prefill and one that decodes" in TEXT
