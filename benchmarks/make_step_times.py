"""Makes the shipped step-time tables from AIConfigurator.

    pip install . aiconfigurator==0.12.0
    python benchmarks/make_step_times.py            # all tables, a few seconds each

Writes simulator/serving/profiles/steptimes/MODEL_HARDWARE_LAYOUT_KV.json.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

from hisparse_sim.simulator.serving.aiconfigurator import ask_aiconfigurator
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.steptimes import table_name

FOLDER = Path(__file__).parents[1] / "simulator" / "serving" / "profiles" / "steptimes"
MODELS = ("deepseek-v3.2", "glm-5.1", "glm-5.2")
# Machines and layouts with kernel data, where the model fits: AIConfigurator has none for experts
# spread over the nodes of a GB200 rack (dp8-ep8), and for 16 GPUs those of DeepSeek's model alone.
PLACES = {
    ("h200", "dp8-tp8"): MODELS,
    ("h200", "dp8-ep8"): MODELS,
    ("h200", "tp8"): MODELS,
    ("h200", "dp16-ep16"): ("deepseek-v3.2",),
    ("h100", "dp16-ep16"): ("deepseek-v3.2",),
    ("b200", "dp8-tp8"): MODELS,
    ("b200", "dp8-ep8"): MODELS,
    ("b200", "tp8"): MODELS,
    ("b200", "dp16-ep16"): ("deepseek-v3.2",),
    ("gb200", "dp8-tp8"): MODELS,
    ("gb200", "tp8"): MODELS,
    ("gb200", "dp16-ep16"): ("deepseek-v3.2",),
}
TABLES = tuple(
    (model, hardware, layout, kv_dtype)
    for (hardware, layout), models in PLACES.items()
    for model in models
    for kv_dtype in ("bf16", "fp8")
)


def main() -> None:
    warnings.simplefilter("ignore")  # AIConfigurator announces its successor on every call
    logging.disable(logging.WARNING)
    FOLDER.mkdir(exist_ok=True)
    for model, hardware, layout, kv_dtype in TABLES:
        path = FOLDER / f"{table_name(model, hardware, layout, kv_dtype)}.json"
        if path.exists():
            print(f"{path.name} is there", file=sys.stderr)
            continue
        repository = load_model(model).repository
        table = ask_aiconfigurator(model, repository, hardware, layout, kv_dtype)
        path.write_text(table.to_json(), encoding="utf-8")
        print(f"wrote {path.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
