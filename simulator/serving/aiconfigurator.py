"""Step times from AIConfigurator, which sums kernel times measured by its authors.

It is not a dependency: the shipped tables were made with it, and `--step-times aiconfigurator` uses
it for others.
"""

from __future__ import annotations

from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.steptimes import LAYOUTS, Layout, StepTimes

VERSION = "0.12.0"
KERNEL_DATA = "0.5.14"  # of SGLang; fixed, since finding the newest takes longer than the estimate
SYSTEMS = {"h200": "h200_sxm", "h100": "h100_sxm", "b200": "b200_sxm", "gb200": "gb200"}
_KV = {"bf16": "bfloat16", "fp8": "fp8"}
# Operations that run per rank on the rank's own tokens.
_ATTENTION = ("generation_attention", "context_attention")


def _ask(
    repository: str,
    system: str,
    layout: Layout,
    kv_dtype: str,
    prefill: bool,
    batch: int,
    tokens: int,
) -> tuple[float, float]:
    """(attention, rest) in us of one step from AIConfigurator."""
    try:
        from aiconfigurator.cli.api import cli_estimate
    except ImportError as error:
        raise ProfileError(
            "AIConfigurator is not installed: pip install"
            f" aiconfigurator=={VERSION}, or use a shipped table"
        ) from error
    try:
        result = cli_estimate(
            model_path=repository,
            system_name=system,
            mode="static_ctx" if prefill else "static_gen",
            backend_name="sglang",
            backend_version=KERNEL_DATA,
            isl=tokens,
            osl=8 if prefill else 2,
            batch_size=batch,
            tp_size=layout.attention_tp,
            attention_dp_size=layout.attention_dp,
            moe_tp_size=layout.experts_tp,
            moe_ep_size=layout.experts_ep,
            kvcache_quant_mode=_KV[kv_dtype],
        )
    except Exception as error:  # errors of its own, some of them plain RuntimeErrors
        why = str(error).splitlines()[0]
        raise ProfileError(
            f"AIConfigurator has no data for {repository} on {system}, {layout.name}: {why}"
        ) from error
    summary = result.summary
    parts = summary.get_context_latency_dict() if prefill else summary.get_generation_latency_dict()
    attention = sum(ms for name, ms in parts.items() if name in _ATTENTION)
    return attention * 1000, (sum(parts.values()) - attention) * 1000


DEFAULT_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DEFAULT_CONTEXTS = (1024, 4096, 8192, 16384, 32768, 49152, 65536, 98304, 131072, 163000)
DEFAULT_PROMPTS = (64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 98304, 131072, 163000)


def ask_aiconfigurator(
    model: str,
    repository: str,
    hardware: str,
    layout: str = "dp8-tp8",
    kv_dtype: str = "bf16",
    batches: tuple[int, ...] = DEFAULT_BATCHES,
    contexts: tuple[int, ...] = DEFAULT_CONTEXTS,
    prompts: tuple[int, ...] = DEFAULT_PROMPTS,
) -> StepTimes:
    """A table made from AIConfigurator's database, in a few seconds.

    Raises ProfileError if it is not installed or has no data for this combination.
    """
    if hardware not in SYSTEMS:
        raise ProfileError(
            f"AIConfigurator has no data for {hardware} here; known: {', '.join(SYSTEMS)}"
        )
    if kv_dtype not in _KV:
        raise ProfileError(f"AIConfigurator knows the KV dtypes {', '.join(_KV)}, not {kv_dtype}")
    place, system = LAYOUTS[layout], SYSTEMS[hardware]

    def ask(prefill: bool, batch: int, tokens: int) -> tuple[float, float]:
        attention, rest = _ask(repository, system, place, kv_dtype, prefill, batch, tokens)
        return round(attention, 1), round(rest, 1)

    decode = [[ask(False, batch, context) for context in contexts] for batch in batches]
    prefill = [ask(True, 1, tokens) for tokens in prompts]
    return StepTimes(
        model=model,
        hardware=hardware,
        layout=layout,
        kv_dtype=kv_dtype,
        source=(
            f"AIConfigurator {VERSION} (Apache-2.0), {system}, SGLang {KERNEL_DATA} kernel"
            f" data, {repository}, attention dp {place.attention_dp} tp {place.attention_tp},"
            f" experts tp {place.experts_tp} ep {place.experts_ep}; measured kernels summed"
        ),
        batch=tuple(batches),
        context=tuple(contexts),
        attention_us=tuple(tuple(point[0] for point in row) for row in decode),
        rest_us=tuple(row[0][1] for row in decode),
        prefill_tokens=tuple(prompts),
        prefill_attention_us=tuple(point[0] for point in prefill),
        prefill_rest_us=tuple(point[1] for point in prefill),
    )
