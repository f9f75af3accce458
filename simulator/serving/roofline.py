"""Step times without measured kernels: a roofline over FLOPs, bytes and links.

Each part of a step is a sum of terms. A term is the time that the machine's peak rates allow, the
longer of arithmetic and memory traffic, times a factor for the efficiency of real kernels, and
every layer adds a fixed time for launches and synchronisation. Factors and fixed times are fitted
to the shipped tables by benchmarks/fit_roofline.py, which also gives the error on a machine that
was left out: the parts of a decode step by 6 to 27 % in the median and up to 45 % for one point in
ten, of prefill by 5 to 30 and up to 60 %. A table of measured kernels is better.

    attention: projections; sparse attention over the selected entries; indexer over all keys
    rest:      routed experts that any token chose; dense parts; exchange between the GPUs
"""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_sim.simulator.serving.hardware import Hardware
from hisparse_sim.simulator.serving.model import Model
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.steptimes import MODELLED, Layout, StepTimes

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
PROMPTS = (64, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)

# us a layer, then the factor of each term in the order above.
DECODE_ATTENTION = (55.5, 2.32, 1.94, 4.65)
DECODE_REST = (45.2, 1.23, 2.91, 3.55)
PREFILL_ATTENTION = (112.0, 3.59, 1.34, 5.45)
PREFILL_REST = (433.0, 5.09, 5.09, 2.0)


@dataclass(frozen=True)
class Roofline:
    """One model on one machine and layout; rates per us."""

    model: Model
    hardware: Hardware
    layout: Layout
    kv_dtype: str

    def _us(self, flops: float, bytes_: float, *, fp8: bool) -> float:
        tflops = self.hardware.fp8_tflops if fp8 else self.hardware.bf16_tflops
        return max(flops / tflops / 1e6, bytes_ / self.hardware.memory_gb_s / 1e3)

    def attention_terms(
        self, tokens: float, attended: float, scanned: float, keys: float, others: float = 0.0
    ) -> tuple[float, float, float]:
        """us of projections, sparse attention and indexer on one rank, over all layers.

        `tokens` are computed; their queries attend to `attended` entries and score the keys of
        `scanned` tokens in a layer that selects, and attend to `others` in all other ways, all
        together; the keys of `keys` tokens are read.
        """
        model, tp = self.model, self.layout.attention_tp
        whole = model.unsplit_attention_parameters
        weights = whole + (model.parameters().attention - whole) / tp
        scores = 2 * model.heads / tp * model.score_values
        entry = model.entry_bytes(self.kv_dtype) * model.entry_tokens
        read = model.layers * attended + others
        queries = 2 * model.index_heads * model.index_dim / model.key_tokens
        return (
            self._us(2 * weights * tokens, weights * model.weight_bytes, fp8=True),
            self._us(read * scores, read * entry, fp8=False),
            model.indexer_layers
            * self._us(scanned * queries, keys * model.indexer_key_bytes, fp8=True),
        )

    def rest_terms(self, tokens: float) -> tuple[float, float, float]:
        """us of routed experts, dense parts and exchange, `tokens` computed on every rank."""
        model, layout = self.model, self.layout
        counts, gpus = model.parameters(), layout.gpus
        every = tokens * layout.attention_dp
        chosen = model.experts_per_token / max(model.experts, 1)  # without experts none
        hit = 1 - (1 - chosen) ** every if every < 1e5 else 1.0  # of the experts
        split = counts.dense / layout.attention_tp
        return (
            self._us(
                2 * every * chosen * counts.experts / gpus,
                hit * counts.experts * model.expert_weight_bytes / gpus,
                fp8=True,
            ),
            self._us(
                2 * tokens * split,
                split * model.weight_bytes + 2 * counts.head / layout.attention_tp,
                fp8=True,
            ),
            self._exchange_us(tokens),
        )

    def _exchange_us(self, tokens: float) -> float:
        """Hidden states to the experts and back: bf16 among the GPUs of a node; to each other node
        a token goes once, in FP8, and comes back in bf16."""
        machine, size = self.hardware, self.model.hidden * self.model.all_layers
        inside = min(self.layout.gpus, machine.gpus)
        every = tokens * self.layout.attention_dp * inside / self.layout.gpus
        us = 4 * every * size * (inside - 1) / inside / machine.gpu_link_gb_s / 1e3
        if self.layout.gpus > inside:
            nodes = self.layout.gpus // inside
            us += 3 * tokens * (nodes - 1) * size / machine.node_link_gb_s / 1e3
        return us

    def decode_attention_us(self, batch: float, context: float) -> float:
        model, (growing, fixed) = self.model, self.model.other_entries
        scanned, others = batch * context, batch * (growing * context + fixed)
        attended = batch * min(context / model.entry_tokens, model.selected_entries)
        terms = self.attention_terms(batch, attended, scanned, scanned, others)
        return self._sum(DECODE_ATTENTION, terms)

    def decode_rest_us(self, batch: float) -> float:
        return self._sum(DECODE_REST, self.rest_terms(batch))

    def prefill_attention_us(self, tokens: float) -> float:
        """A whole prompt; every query reads the entries that it selected."""
        model, (growing, fixed) = self.model, self.model.other_entries
        full = min(tokens, model.selected_entries * model.entry_tokens)
        attended = full * (full + 1) / 2 / model.entry_tokens
        attended += (tokens - full) * model.selected_entries
        scanned = tokens * (tokens + 1) / 2
        others = growing * scanned + fixed * tokens
        terms = self.attention_terms(tokens, attended, scanned, tokens, others)
        return self._sum(PREFILL_ATTENTION, terms)

    def prefill_rest_us(self, tokens: float) -> float:
        return self._sum(PREFILL_REST, self.rest_terms(tokens))

    def _sum(self, factors: tuple[float, ...], terms: tuple[float, ...]) -> float:
        fixed, *each = factors
        return fixed * self.model.all_layers + sum(
            factor * term for factor, term in zip(each, terms, strict=True)
        )


def roofline_step_times(
    model: Model, hardware: Hardware, layout: Layout, kv_dtype: str
) -> StepTimes:
    """A table like a measured one; ProfileError names the peak rates that are not known."""
    missing = hardware.missing_rates(layout.gpus)
    if missing:
        raise ProfileError(
            f"no step times for {model.name} on {hardware.name}, and no roofline without the"
            f" figures {', '.join(missing)} in its profile"
        )
    roof = Roofline(model, hardware, layout, kv_dtype)
    return StepTimes(
        model=model.name,
        hardware=hardware.name,
        layout=layout.name,
        kv_dtype=kv_dtype,
        source=(
            f"roofline of {hardware.bf16_tflops:g} and {hardware.fp8_tflops:g} TFLOPS (bf16, fp8),"
            f" {hardware.memory_gb_s:g} GB/s of memory and {hardware.gpu_link_gb_s:g} GB/s between"
            " GPUs, with the efficiency of the measured tables"
        ),
        batch=BATCHES,
        context=CONTEXTS,
        attention_us=tuple(
            tuple(round(roof.decode_attention_us(b, c), 1) for c in CONTEXTS) for b in BATCHES
        ),
        rest_us=tuple(round(roof.decode_rest_us(b), 1) for b in BATCHES),
        prefill_tokens=PROMPTS,
        prefill_attention_us=tuple(round(roof.prefill_attention_us(n), 1) for n in PROMPTS),
        prefill_rest_us=tuple(round(roof.prefill_rest_us(n), 1) for n in PROMPTS),
        kind=MODELLED,
    )
