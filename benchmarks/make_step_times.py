"""Makes the shipped step-time tables from AIConfigurator.

    pip install . aiconfigurator==0.12.0
    python benchmarks/make_step_times.py            # all tables, a few minutes each

Writes simulator/profiles/steptimes/MODEL_HARDWARE_LAYOUT_KV.json.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.steptimes import ask_aiconfigurator, file_name

FOLDER = Path(__file__).parents[1] / "simulator" / "serving" / "profiles" / "steptimes"
TABLES = (
    ("glm-5.1", "h200", "dp8-tp8", "bf16"),
    ("glm-5.1", "h200", "dp8-ep8", "bf16"),
    ("glm-5.1", "h200", "dp8-tp8", "fp8"),
    ("glm-5.1", "h200", "tp8", "bf16"),
    ("deepseek-v3.2", "h200", "dp8-tp8", "bf16"),
    ("glm-5.2", "h200", "dp8-tp8", "bf16"),
    ("glm-5.1", "b200", "dp8-tp8", "bf16"),
)


def main() -> None:
    warnings.simplefilter("ignore")  # AIConfigurator announces its successor on every call
    logging.disable(logging.WARNING)
    FOLDER.mkdir(exist_ok=True)
    for model, hardware, layout, kv_dtype in TABLES:
        path = FOLDER / file_name(model, hardware, layout, kv_dtype)
        if path.exists():
            print(f"{path.name} is there", file=sys.stderr)
            continue
        repository = load_model(model).repository
        table = ask_aiconfigurator(model, repository, hardware, layout, kv_dtype)
        path.write_text(table.to_json(), encoding="utf-8")
        print(f"wrote {path.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
