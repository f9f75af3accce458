"""A deployment, its compute, replayed misses and a HiSparse setting, put together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from hisparse_sim.simulator.serving.admission import Pool, length_on
from hisparse_sim.simulator.serving.buffers import check_buffer
from hisparse_sim.simulator.serving.deployment import RESERVE, Deployment
from hisparse_sim.simulator.serving.exposure import GUESSES, Exposure, miss_rate
from hisparse_sim.simulator.serving.foresight import Guess
from hisparse_sim.simulator.serving.latency import Link, load_link, swap_in_on
from hisparse_sim.simulator.serving.lengths import Length
from hisparse_sim.simulator.serving.memory import (
    HOST,
    PAGE_TOKENS,
    full_kv_bytes,
    held_tokens,
)
from hisparse_sim.simulator.serving.misses import LayerMisses
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.residents import residents
from hisparse_sim.simulator.serving.served import Server
from hisparse_sim.simulator.serving.speculation import Speculation
from hisparse_sim.simulator.serving.steptimes import StepTimes
from hisparse_sim.simulator.serving.transfer import TRANSFER_GB_S
from hisparse_sim.simulator.serving.workload import Floats
from hisparse_sim.traces.arguments import whole_number


@cache
def _shipped_link(name: str) -> Link:
    return load_link(name)


def _link(name: str, profiles: str | Path | None) -> Link:
    """As `load_link`; a shipped profile is read once."""
    return _shipped_link(name) if profiles is None else load_link(name, profiles)


class CannotRun(ValueError):
    """The engine does not start with a setting, or refuses every request."""


def own_mode(deployment: Deployment, speculation: Speculation | None) -> str:
    """The mode of serving that the engine of a deployment has for its model."""
    model = deployment.model
    shares = model.indexer_layers < model.layers
    return deployment.engine.mode(shares, speculation is not None)


@dataclass(frozen=True)
class Setting:
    """One way to serve: all that a prediction depends on except the workload."""

    deployment: Deployment
    steps: StepTimes | None  # None: rates are not known, memory is
    mode: str = "hisparse"
    device_buffer_size: int = 4096
    ratio: int = 2
    misses: LayerMisses | None = None  # of a replay with this buffer size and share
    resident_tokens: int = 0  # the newest of a request, beside its buffer: a hybrid
    disaggregated: bool = False  # prefill on instances of its own, alike
    prefill_instances: int = 1  # where they are apart
    decode_instances: int = 1
    transfer_gb_s: float = TRANSFER_GB_S  # from prefill to decode, one GPU
    chunked_prefill_size: int = 65_536  # over all ranks
    max_running_requests: int = 480  # over all ranks
    conservativeness: float = 1.0
    ignore_eos: bool = True  # requests of a fixed length: another admission, see admission.py
    kernel: str = "sglang"  # swap-in kernel: the engine's, or "native" for ours
    profiles: str | Path | None = None  # the user's file, for links
    speculation: Speculation | None = None
    guess: Guess | None = None  # of misses ahead of time, for the modes that guess
    prefix_cache: bool = False  # for prompts with known blocks, where the engine allows it
    host_gb_s: float | None = None  # what all GPUs of one host copy together; None: the link's
    no_steps: str = "no step times"  # why there are none
    longest: int | None = None  # tokens of a request that is served; None: as the model has them

    def __post_init__(self) -> None:
        if self.mode != "baseline":
            model = self.deployment.model
            check_buffer(model, self.device_buffer_size)
            if self.speculation and model.position_tokens > 1:
                raise ValueError(f"drafts are modelled for single tokens, not for {model.name}")
            if self.speculation:
                self.speculation.check(
                    self.deployment.engine, model.top_k, self.device_buffer_size, self.max_running
                )
            whole_number("resident_tokens", self.resident_tokens, 0)
        if self.speculation and self.mode in ("prefetch", *GUESSES):
            raise ValueError(f"mode {self.mode}: the engine does not prefetch where it speculates")
        if self.misses and self.misses.device_buffer_size != self.device_buffer_size:
            raise ValueError(
                f"the misses were replayed with a buffer of {self.misses.device_buffer_size}, not"
                f" {self.device_buffer_size}"
            )
        if self.misses and self.misses.resident_tokens != self.resident_tokens:
            raise ValueError(
                f"the misses were replayed with {self.misses.resident_tokens} resident tokens, not"
                f" {self.resident_tokens}"
            )

    @property
    def ranks(self) -> int:
        """Of one instance."""
        return self.deployment.layout.attention_dp

    @property
    def max_running(self) -> int:
        """Requests that one rank may run at once."""
        return max(self.max_running_requests // self.ranks, 1)

    @property
    def instances(self) -> int:
        """Instances that decode."""
        return self.decode_instances if self.disaggregated else 1

    @property
    def gpus(self) -> int:
        """Of all instances."""
        prefill = self.prefill_instances if self.disaggregated else 0
        return self.deployment.layout.gpus * (self.instances + prefill)

    @property
    def reuses_prefixes(self) -> bool:
        """Whether ranks that prefill have a prefix cache: HiSparse forbids it, see prefixes.py."""
        return self.prefix_cache and (self.disaggregated or self.mode == "baseline")

    @cached_property
    def pool(self) -> Pool:
        """Pool of one rank; CannotRun if the engine does not start with it."""
        if self.mode == "baseline":
            tokens = self.deployment.baseline_tokens(self.disaggregated)
            return self._pool(tokens, tokens, 0)
        found = self.deployment.capacity(self.ratio, self.device_buffer_size, 1)
        if found.limit in (HOST, RESERVE):
            raise CannotRun(found.reason)
        return self._pool(found.pool_tokens, found.logical_tokens, self.held_tokens)

    @property
    def prefill_pool(self) -> Pool | None:
        """Pool of a rank that only prefills, if any do."""
        if not self.disaggregated:
            return None
        tokens = self.deployment.baseline_tokens(True)
        return self._pool(tokens, tokens, 0)

    def length(self, prompt: int, output: int) -> Length:
        """The outcome for a request on an empty deployment."""
        return length_on(self.pool, self.prefill_pool, prompt, output)

    @property
    def held_tokens(self) -> int:
        """Tokens of a request that are on the GPU at most, the reserved page and scratch aside."""
        model = self.deployment.model
        return held_tokens(model, self.device_buffer_size, self.resident_tokens)

    def _pool(self, device_tokens: int, logical_tokens: int, device_buffer_size: int) -> Pool:
        return Pool(
            device_tokens,
            logical_tokens,
            device_buffer_size,
            self.deployment.model.context,
            self.conservativeness,
            # With a prefix cache the engine admits by its estimate: schedule_policy.py, add_one_req
            self.ignore_eos and (self.disaggregated or not self.reuses_prefixes),
            self.deployment.engine,
            self.scratch_tokens if device_buffer_size else 0,
        )

    @property
    def scratch_tokens(self) -> int:
        """Device tokens of a request beside its hot buffer."""
        if self.speculation is None or self.mode == "baseline":
            return 0
        top_k = self.deployment.model.top_k
        return self.speculation.scratch_tokens(top_k, self.device_buffer_size)

    @cached_property
    def known_steps(self) -> StepTimes:
        """The step times, of decode for each token that a step yields; ProfileError where a rate is
        asked for that needs them."""
        if self.steps is None:
            raise ProfileError(self.no_steps)
        if self.speculation is None:
            return self.steps
        rows, accepted = self.speculation.draft_tokens, self.speculation.acceptance_length
        return self.steps.verifying(rows, accepted, self.deployment.model.layers)

    @cached_property
    def exposure(self) -> Exposure:
        misses = self.misses
        if misses and self.speculation:
            misses = misses.times(self.speculation.misses_times)
        return Exposure(
            self.mode,
            self.deployment.model,
            self.held_tokens,
            misses,
            swap_in_on(
                self.link,
                self.kernel,
                self.device_buffer_size,
                self.deployment.entry_bytes * self.deployment.model.position_tokens,
            ),
            self.speculation.acceptance_length if self.speculation else 1.0,
            self.guess,
            self.deployment.model.context if self.longest is None else self.longest,
        )

    def miss_rate(self, lengths: tuple[Floats, Floats]) -> float:
        """Misses over selected positions, of requests [n] of these prompts and outputs."""
        return miss_rate(self.misses, self.held_tokens, *lengths) if self.misses else 0.0

    @cached_property
    def link(self) -> Link:
        """The host link as each GPU sees it while all of its host pull.

        ProfileError if the machine's profile names none or an unknown one.
        """
        link = _link(self.deployment.hardware.link, self.profiles)
        if self.host_gb_s is not None:
            link = link.limited(self.host_gb_s)
        return link.among(self.deployment.pulling_gpus)

    def host_range(self) -> tuple[float, ...]:
        """Lowest and highest rate that the host may give all its GPUs together, in GB/s; empty if
        no range is known."""
        link = load_link(self.deployment.hardware.link, self.profiles)
        return (link.host_low_gb_s, link.host_high_gb_s) if link.host_low_gb_s else ()

    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the figures that may not have been stated, a sentence each."""
        link, pulling = self.link, self.deployment.pulling_gpus
        copying = f" when all {pulling} copy" if pulling > 1 else ""
        steps = (
            f"step times, {self.steps.kind}: {self.steps.source}" if self.steps else self.no_steps
        )
        return (
            *self.deployment.assumptions(),
            f"host link: {link.name}, {link.bulk_gb_s:,.0f} GB/s per GPU{copying}",
            steps,
            *([str(self.speculation)] if self.speculation else []),
        )

    def server(self) -> Server:
        """The instance for `serve`."""
        model = self.deployment.model
        return Server(
            steps=self.known_steps,
            exposure=self.exposure,
            pool=self.pool,
            ranks=self.ranks,
            chunk_tokens=max(self.chunked_prefill_size // self.ranks, PAGE_TOKENS),
            max_running=self.max_running,
            staging_bytes_per_s=self.link.bulk_gb_s * 1e9,
            token_bytes=model.layers * self.deployment.entry_bytes,
            instances=self.instances,
            prefill_instances=self.prefill_instances if self.disaggregated else 0,
            prefill_pool=self.prefill_pool,
            transfer_bytes_per_s=self.transfer_gb_s * 1e9,
            transfer_token_bytes=full_kv_bytes(model, self.deployment.kv_dtype, PAGE_TOKENS)
            // PAGE_TOKENS,
            prefix_cache=self.reuses_prefixes,
        )

    def resident(self, prompt: int, output: int) -> tuple[int, str]:
        """Requests that one rank runs together if others always wait, and their limit."""
        return residents(self.pool, self.max_running, prompt, output, self.disaggregated)

    def step_us(self, batch: int, context: float) -> float:
        """A decode step with `batch` requests of mean `context` on every rank, swap-in included."""
        steps = self.known_steps
        attention = steps.decode_attention_us(batch, context)
        rest = steps.decode_rest_us(batch)
        wait = self.exposure.step_us(batch, context, attention + rest, attention)
        return attention + rest + wait

    def steady_tokens_per_s(self, prompt: int, output: int, batch: int) -> float:
        """Output tokens per second of the whole instance with `batch` requests on every rank.

        Requests in cohorts: every rank prefills `batch` prompts one after the other, all ranks at
        once, then they decode together. Equal requests behave like that (a prefill stalls all);
        unequal lengths cost more. If disaggregated, only decode counts.
        """
        if batch < 1:
            return 0.0
        decode = output * self.step_us(batch, prompt + output / 2)
        prefill = 0.0
        if not self.disaggregated:
            steps = self.known_steps
            prefill = steps.prefill_attention_chunk_us(0, prompt)
            prefill += steps.prefill_rest_chunk_us(prompt)
        return self.ranks * batch * output / (batch * prefill + decode) * 1e6
