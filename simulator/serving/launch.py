"""Launch flags of the engine for a setting."""

from __future__ import annotations

import json

from hisparse_sim.simulator.serving.prediction import Setting


def hisparse_config(setting: Setting) -> dict[str, int]:
    """The value of --hisparse-config."""
    return {
        "top_k": setting.deployment.model.top_k,
        "device_buffer_size": setting.device_buffer_size,
        "host_to_device_ratio": setting.ratio,
    }


def launch_flags(setting: Setting) -> str:
    """The flags that start SGLang with this setting; if disaggregated, a decode instance."""
    flags = _common(setting)
    if setting.disaggregated or not setting.reuses_prefixes:
        flags.append("--disable-radix-cache")
    if setting.disaggregated:
        flags.append("--disaggregation-mode decode")
    if setting.mode != "baseline":
        config = json.dumps(hisparse_config(setting))
        flags.append(f"--enable-hisparse --hisparse-config '{config}'")
    return " ".join(flags)


def prefill_flags(setting: Setting) -> str:
    """The flags of a prefill instance, which does not use HiSparse."""
    radix = [] if setting.reuses_prefixes else ["--disable-radix-cache"]
    return " ".join([*_common(setting), *radix, "--disaggregation-mode prefill"])


def _common(setting: Setting) -> list[str]:
    deployment, layout = setting.deployment, setting.deployment.layout
    flags = [f"--tp-size {layout.gpus}"]
    if layout.attention_dp > 1:
        flags.append(f"--dp-size {layout.attention_dp} --enable-dp-attention")
    if layout.experts_ep > 1:
        flags.append(f"--ep-size {layout.experts_ep}")
    if stored_as := deployment.model.stored_as(deployment.kv_dtype):
        flags.append(f"--kv-cache-dtype {'bfloat16' if stored_as == 'bf16' else 'fp8_e4m3'}")
    flags.append(f"--mem-fraction-static {deployment.mem_fraction_static:g}")
    if setting.speculation:
        rows = setting.speculation.draft_tokens
        flags.append(
            f"--speculative-algorithm EAGLE --speculative-num-steps {rows - 1}"
            f" --speculative-eagle-topk 1 --speculative-num-draft-tokens {rows}"
        )
    if deployment.max_total_tokens is not None:
        flags.append(f"--max-total-tokens {deployment.max_total_tokens}")
    return [
        *flags,
        f"--max-running-requests {setting.max_running_requests}",
        f"--chunked-prefill-size {setting.chunked_prefill_size}",
    ]
