"""A quick estimate of a setting, without serving it: ranks candidates for the event loop.

It assumes a steady state: every rank runs the same number of requests of mean length, a new one is
prefilled when an old one ends, and nothing else waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.prediction import Setting


@dataclass(frozen=True)
class Estimate:
    """The estimate. `requests` is 0, with a reason, if the setting cannot run."""

    requests: int  # that one rank runs if more are always waiting
    limit: str  # what limits them, or "load" if fewer are asked for
    batch: int = 0  # that it runs at the load asked for
    tokens_per_s: float = 0.0  # of the whole deployment
    tpot_ms: float = float("nan")
    reason: str = ""


def estimate(setting: Setting, aim: Aim) -> Estimate:
    """The estimate for a setting at a load."""
    if setting.mode != "baseline":
        found = setting.deployment.capacity(
            setting.ratio,
            setting.device_buffer_size,
            aim.prompt + aim.output,
            aim.output,
            setting.scratch_tokens,
            setting.resident_tokens,
        )
        if found.requests == 0:
            return Estimate(0, found.limit, reason=found.reason)
    length = setting.pool.length(aim.prompt, aim.output)
    share = (1 + aim.range_ratio) / 2
    prompt, output = round(aim.prompt * share), max(round(length.output * share), 1)
    if aim.drawn is not None:
        prompt, output = map(round, aim.drawn.mean)
    resident, limit = setting.resident(prompt, output)
    if resident == 0 or length.output == 0:
        return Estimate(0, "length", reason=length.reason)
    rates = _Rates(setting, prompt, output, alike=_alike(aim))
    batch, rate = rates.held(resident)
    ranks = setting.ranks * setting.instances
    wanted = -(-aim.concurrency // ranks)
    if (sent := aim.sent_per_s) is not None:
        asked = sent * output
        wanted = next((n for n in range(1, batch + 1) if rates.tokens_per_s(n) >= asked), batch + 1)
        rate = min(rate, asked)
    if wanted <= batch:
        batch, limit = wanted, "load"
        rate = min(rate, rates.tokens_per_s(batch))
    return Estimate(resident, limit, batch, rate, rates.tpot_ms(batch))


def _alike(aim: Aim) -> bool:
    return aim.range_ratio == 1 and not aim.open_loop and aim.recorded is None


@dataclass(frozen=True)
class _Rates:
    setting: Setting
    prompt: int
    output: int
    alike: bool  # lengths, so that ranks prefill together; else each prefill stalls all ranks

    @property
    def _prefill_us(self) -> float:
        """A prompt on one rank, all others prefilling too."""
        steps = self.setting.known_steps
        attention = steps.prefill_attention_chunk_us(0, self.prompt)
        return attention + steps.prefill_rest_chunk_us(self.prompt)

    def _stall_us(self, batch: int) -> float:
        """Prefill in the time in which one batch is decoded."""
        if self.setting.disaggregated:
            return 0.0
        steps, ranks = self.setting.known_steps, self.setting.ranks
        if self.alike:
            return batch * self._prefill_us
        alone = steps.prefill_attention_chunk_us(0, self.prompt)
        chunk = min(self.setting.chunked_prefill_size // ranks, self.prompt)
        alone += self.prompt / chunk * steps.prefill_rest_chunk_us(chunk / ranks)
        return batch * ranks * alone

    def _decode_us(self, batch: int) -> float:
        return self.output * self.setting.step_us(batch, self.prompt + self.output / 2)

    def tokens_per_s(self, batch: int) -> float:
        """With `batch` requests on every rank, as far as decode allows."""
        ranks = self.setting.ranks * self.setting.instances
        span = self._stall_us(batch) + self._decode_us(batch)
        return ranks * batch * self.output / span * 1e6

    def tpot_ms(self, batch: int) -> float:
        # Alike, a request sees on average half of the other prompts that join with it.
        stall = self._stall_us(batch) * (0.5 if self.alike else 1.0)
        return (self._decode_us(batch) + stall) / self.output / 1000

    def held(self, resident: int) -> tuple[int, float]:
        """Requests that decode on a rank, and the rate, if so many hold memory: apart, some of them
        are being prefilled."""
        if not self.setting.disaggregated:
            return resident, self.tokens_per_s(resident)
        ranks = self.setting.ranks * self.setting.prefill_instances
        most = ranks / self._prefill_us * 1e6 * self.output
        everywhere = self.setting.ranks * self.setting.instances
        for batch in range(resident, 1, -1):
            rate = self.tokens_per_s(batch)
            prefilling = rate / self.output * self._prefill_us / 1e6 / everywhere
            if rate <= most and batch + prefilling <= resident:
                return batch, rate
        return 1, min(self.tokens_per_s(1), most)
