"""The source of the step times of a deployment: a table, AIConfigurator or a roofline."""

from __future__ import annotations

from hisparse_sim.simulator.serving.aiconfigurator import ask_aiconfigurator
from hisparse_sim.simulator.serving.hardware import Hardware
from hisparse_sim.simulator.serving.model import Model
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.roofline import roofline_step_times
from hisparse_sim.simulator.serving.steptimes import (
    LAYOUTS,
    StepTimes,
    load_step_times,
    shipped_tables,
    table_name,
)

ROOFLINE, AICONFIGURATOR = "roofline", "aiconfigurator"


def steps_for(
    model: Model, hardware: Hardware, layout: str, kv_dtype: str, source: str | None = None
) -> StepTimes:
    """Compute of a deployment: `source` is "aiconfigurator", "roofline", a table's path, or None.

    None takes the shipped table of this machine, else the table of the machine that its profile
    names, scaled as the profile says, else a roofline; `StepTimes.kind` says which of them are
    modelled. Raises ProfileError if the machine's peak rates are not known either.
    """
    if source not in (None, AICONFIGURATOR, ROOFLINE):
        return load_step_times(model.name, hardware.name, layout, kv_dtype, source)
    kv_dtype = "fp8" if kv_dtype == "fp8-raw" else kv_dtype  # the same arithmetic on fewer bytes
    measured = hardware.step_times
    if source == AICONFIGURATOR:
        if not measured:
            raise ProfileError(f"AIConfigurator has no data for {hardware.name}")
        table = ask_aiconfigurator(model.name, model.repository, measured, layout, kv_dtype)
    elif source is None and table_name(model.name, measured, layout, kv_dtype) in shipped_tables():
        table = load_step_times(model.name, measured, layout, kv_dtype)
    else:
        return roofline_step_times(model, hardware, LAYOUTS[layout], kv_dtype)
    if measured == hardware.name:
        return table
    why = hardware.sources.get("decode_scale")
    return table.scaled(
        hardware.name,
        hardware.decode_scale,
        hardware.prefill_scale,
        why.text if why else "not scaled",
    )
