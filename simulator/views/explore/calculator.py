"""Answers for a choice of buffer, policy, link, model, context and load, from swept misses.

The rates are those of `serve` with `--miss-curve` and the ratio that an estimate ranks first, on
the default machine and layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.serving.estimate import estimate
from hisparse_sim.simulator.serving.latency import load_link, swap_in_us
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.misses import MissCurve, read_miss_curve
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.plan import DEFAULT_RATIOS
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.profiles.listing import profiles
from hisparse_sim.simulator.serving.scenario import DEFAULT_MODEL, Scenario
from hisparse_sim.simulator.serving.serving_rows import serve_one
from hisparse_sim.simulator.views.palette import OPTIMUM, named
from hisparse_sim.simulator.views.report.answer import Tile, pays
from hisparse_sim.simulator.views.report.pieces import percent
from hisparse_sim.traces import TraceError

PROMPTS = (8192, 32_768, 65_536, 131_072)  # tokens
CONCURRENCIES = (8, 16, 32, 64, 128, 256, 512)
_OUTPUT = 8192  # tokens
_LATENCIES = ("tpot_ms", "ttft_s")
_TOP_K = 2048  # of a curve until the model is chosen


@dataclass(frozen=True)
class Choice:
    """What a reader chooses."""

    buffer: int  # slots
    policy: str
    link: str
    model: str
    prompt: int  # tokens
    concurrency: int  # requests, over all ranks


class Calculator:
    """Answers from the misses of one result file (of sweep, or facts) at some buffers.

    `least`: the miss rates of MIN by buffer, of rows that know it without its own.
    `options`: what may be chosen, by name of the fields of `Choice`. Raises TraceError for a file
    that cannot be read or holds several traces, and if no model can be priced with its top_k."""

    def __init__(
        self,
        path: Path,
        policies: Sequence[str],
        buffers: Sequence[int],
        least: Mapping[int, float] | None = None,
    ) -> None:
        self.least = dict(least or {})
        self.curves: dict[str, MissCurve] = {}
        for name in policies:
            name = "lru" if name == TEXTBOOK_LRU else name
            with suppress(ValueError):  # a policy of the user's, by a name that is none here
                policy = get_policy(name)
                self.curves[name] = read_miss_curve(path, policy.name, 1.0, _TOP_K)
        if OPTIMUM in self.curves:
            self.least |= self.curves[OPTIMUM].rates
        if not self.curves:
            raise TraceError(f"{path} has no rows of a policy that can be priced")
        known = profiles()
        names = {table: known[known["table"] == table]["name"].unique() for table in ("models",
                 "links")}  # fmt: skip
        swept = {size for curve in self.curves.values() for size in curve.rates}
        sizes = sorted(swept.intersection(buffers))
        models = [name for name in names["models"] if self._priced(str(name), sizes)]
        if not models:
            raise TraceError(f"{path} holds buffers that no known model takes")
        self.options: dict[str, tuple[Any, ...]] = {
            "buffer": tuple(sizes),
            "policy": tuple(self.curves),
            "link": tuple(map(str, names["links"])),
            "model": tuple(models),
            "prompt": PROMPTS,
            "concurrency": CONCURRENCIES,
        }

    def _priced(self, name: str, sizes: Sequence[int]) -> bool:
        return load_model(name).top_k <= min(sizes)

    @property
    def note(self) -> str:
        """What a choice leaves alone."""
        curve = next(iter(self.curves.values()))
        return (
            f"The share of misses is that of {curve.origin.name}, as replayed, whatever the model,"
            " the prompt and the load; of another prompt it would differ. The choice changes"
            " memory, times and rates."
        )

    @property
    def first(self) -> Choice:
        """The engine's defaults, as far as they were swept."""
        wanted: dict[str, Any] = {
            "buffer": 4096,
            "policy": "lru",
            "link": "h200-pcie5",
            "model": DEFAULT_MODEL,
            "prompt": Scenario.prompt,
            "concurrency": 64,
        }
        chosen = {
            name: wanted[name] if wanted[name] in known else known[0]
            for name, known in self.options.items()
        }
        return Choice(**chosen)

    def choice(self, given: Mapping[str, str]) -> Choice:
        """Return the choice that texts name. Raises ValueError for what is no option."""
        chosen: dict[str, Any] = {}
        for field in fields(Choice):
            known = {str(value): value for value in self.options[field.name]}
            text = given.get(field.name, "")
            if text not in known:
                raise ValueError(f"{field.name} must be one of {', '.join(known)}")
            chosen[field.name] = known[text]
        return Choice(**chosen)

    @lru_cache(maxsize=4096)  # noqa: B019  # one calculator lives as long as the program
    def answer(self, choice: Choice) -> dict[str, Any]:
        """Return `verdict` and `tiles` (each `name, label, value, note, href`) for a choice."""
        return self._answer(choice)

    def _answer(self, choice: Choice) -> dict[str, Any]:
        curve = self.curves[choice.policy]
        if choice.buffer not in curve.rates:
            return _unanswered(f"{named(choice.policy)} was not swept at {choice.buffer:,} slots.")
        rate = curve.rates[choice.buffer]
        model, link = load_model(choice.model), load_link(choice.link)
        misses = rate * model.top_k
        entry = model.entry_bytes(Scenario.kv_dtype)
        time_us = float(swap_in_us(link, "sglang", 1, misses, choice.buffer, entry))
        tiles = [
            Tile("misses", "Misses", percent(rate, 1),
                 f"{misses:,.1f} of {model.top_k:,} selected positions per step and layer;"
                 f" {named(choice.policy)}, {choice.buffer:,} slots",
                 "miss-ratio-card", "replayed"),
            self._excess(choice, rate, model.top_k),
            Tile("moved", "Over the link",
                 f"{misses * entry * model.layers / 1e6:,.1f} MB",
                 f"a token, all {model.layers} layers of {model.name};"
                 f" {time_us * model.layers / 1000:,.1f} ms of swap-in over {link.name},"
                 " one request",
                 "swap-in-card"),
        ]  # fmt: skip
        try:
            served, base, best, resident = self._served(choice)
        except ValueError as error:  # what the engine, or the profiles, refuse
            return _unanswered(f"{error}.", tiles)
        even = {
            "buffer": choice.buffer,
            "ratio": best.ratio,
            "tokens_per_s": served["tokens_per_s"],
            **{name: served[name] for name in _LATENCIES},
            **{f"baseline_{name}": base[name] for name in _LATENCIES},
        }
        verdict = pays(even, base["tokens_per_s"], f" at {choice.concurrency} concurrent requests")
        gain = served["tokens_per_s"] / base["tokens_per_s"] if base["tokens_per_s"] else 0.0
        tiles += [
            Tile("requests", "Requests per rank", f"{resident[0]:,}",
                 f"of {choice.prompt + _OUTPUT:,} tokens, ratio {best.ratio}, limited by"
                 f" {resident[1]}", "memory"),
            Tile("rate", "Tokens per second", f"{served['tokens_per_s']:,.0f}",
                 f"{gain:.1f} times the {base['tokens_per_s']:,.0f} without HiSparse;"
                 f" {served['tpot_p50_ms']:,.1f} ms per token", "plan"),
        ]  # fmt: skip
        return {"verdict": verdict, "tiles": [asdict(tile) for tile in tiles]}

    def _excess(self, choice: Choice, rate: float, top_k: int) -> Tile:
        least = self.least.get(choice.buffer)
        value, note = "-", "MIN was not swept at this buffer"
        if least:
            value = f"+{percent(rate / least - 1)}"
            note = f"no policy can miss fewer than {least * top_k:,.1f} a step"
        return Tile("excess", "Over MIN", value, note, "dots-card", "replayed")

    def _served(
        self, choice: Choice
    ) -> tuple[dict[str, Any], dict[str, Any], Setting, tuple[int, str]]:
        """Return the rows with and without HiSparse, the setting, and the requests that a GPU runs
        with their limit."""
        setting = _setting(choice.model, choice.prompt, choice.link)
        curve = self.curves[choice.policy]
        model = setting.deployment.model
        context = float(choice.prompt + _OUTPUT // 2)
        misses = replace(curve, context=context, top_k=model.top_k)(choice.policy, choice.buffer)
        aim = Aim(choice.prompt, _OUTPUT, choice.concurrency)
        best, most = None, -1.0
        for ratio in DEFAULT_RATIOS:
            one = replace(setting, mode="hisparse", device_buffer_size=choice.buffer, ratio=ratio,
                          misses=misses)  # fmt: skip
            with suppress(ValueError):
                found = estimate(one, aim)
                if found.requests and found.tokens_per_s > most:
                    best, most = one, found.tokens_per_s
        if best is None:
            raise ValueError(f"With {choice.buffer:,} slots no request of this length fits")
        return (
            serve_one(best, aim),
            _baseline(choice.model, choice.prompt, choice.link, aim),
            best,
            best.resident(choice.prompt, _OUTPUT),
        )


def _unanswered(why: str, tiles: Sequence[Tile] = ()) -> dict[str, Any]:
    return {"verdict": why, "tiles": [asdict(tile) for tile in tiles]}


@lru_cache(maxsize=256)
def _setting(model: str, prompt: int, link: str) -> Setting:
    """Return the default deployment of a model, over another host link."""
    asked = Scenario(model=model, prompt=prompt, output_len=_OUTPUT)
    setting = asked.resolve("hisparse", get_policy("lru")).setting
    own = setting.deployment
    linked = replace(own, hardware=replace(own.hardware, link=link))
    return replace(setting, deployment=linked)


@lru_cache(maxsize=1024)
def _baseline(model: str, prompt: int, link: str, aim: Aim) -> dict[str, Any]:
    """Return the row without HiSparse."""
    return serve_one(replace(_setting(model, prompt, link), mode="baseline", misses=None), aim)
