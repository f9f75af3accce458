"""Sentences on a setting for the reader of a result: what no release does, or another mode has."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hisparse_sim.simulator.serving.prediction import Setting

RESIDENT = (
    "resident tokens by SGLang's rules, of which no release keeps any; vLLM 0.33 does, by rules of"
    " its own"
)


def notes_on_setting(
    setting: Setting, modes: Collection[str], residents: Collection[int]
) -> Iterator[str]:
    """Notes on a setting in these modes, with these numbers of resident tokens."""
    if any(residents):
        yield RESIDENT
    model, engine = setting.deployment.model, setting.deployment.engine
    shares = model.indexer_layers < model.layers and setting.speculation is None
    if shares and engine.plans_shared_misses and "prefetch" not in modes:
        yield (
            f"{engine.name} copies ahead for the layers of {model.name} that share an index, which"
            " the mode prefetch has and hisparse has not"
        )
