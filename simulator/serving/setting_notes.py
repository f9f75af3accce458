"""Sentences on a setting for the reader of a result: what no release does, or another mode has."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from hisparse_sim.simulator.serving.exposure import GUESSES, miss_rate
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.memory import held_tokens, pages
from hisparse_sim.simulator.serving.misses import WARM_UP_STEPS, LayerMisses
from hisparse_sim.simulator.serving.prediction import Setting, own_mode
from hisparse_sim.traces.file.units import COMPRESSED

RESIDENT = (
    "resident tokens by SGLang's rules, of which no release keeps any; vLLM 0.33 does, by rules of"
    " its own"
)


def resident_within(
    residents: Collection[int], setting: Setting, aim: Aim
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Numbers of resident tokens, none above the longest request, and a note where one was."""
    longest = pages(min(aim.prompt + aim.output, setting.deployment.model.context))
    kept = tuple(dict.fromkeys(min(each, longest) for each in residents))
    if max(residents) <= longest:
        return kept, ()
    note = f"resident tokens of {max(residents):,}: a whole request has {longest:,} at most"
    return kept, (note,)


def check_guess(setting: Setting, modes: Collection[str]) -> None:
    """Raise ValueError where it is stated how well misses are foreseen, and no mode guesses any."""
    if setting.guess is not None and not set(GUESSES) & set(modes):
        raise ValueError(f"`prefetch_recall` is for the modes {' and '.join(GUESSES)}: ask for one")


def notes_on_setting(
    setting: Setting, modes: Collection[str], residents: Collection[int]
) -> Iterator[str]:
    """Notes on a setting in these modes, with these numbers of resident tokens."""
    if any(residents):
        yield RESIDENT
    model, engine = setting.deployment.model, setting.deployment.engine
    own = own_mode(setting.deployment, setting.speculation)
    if model.position_tokens > 1 and model.unit != COMPRESSED:  # compressed groups have pools of it
        yield (
            f"no release of SGLang runs HiSparse with {model.name}: a server does not start with"
            " --enable-hisparse"
        )
    if own == "prefetch":
        missing = "" if own in modes else ", which hisparse has not"
        yield (
            f"{engine.name} copies ahead for the layers of {model.name} that share an index: the"
            f" mode {own}{missing}"
        )


def note_on_lengths(setting: Setting, misses: LayerMisses, aim: Aim) -> str:
    """How the misses of a trace become those of a load."""
    prompt, output = aim.lengths
    context = float(np.average(prompt + output / 2, weights=output))
    model, size = setting.deployment.model, misses.device_buffer_size
    rate = miss_rate(misses, held_tokens(model, size, misses.resident_tokens), prompt, output)
    return (
        f"misses leave out the first {WARM_UP_STEPS} steps of a request, and are scaled from the"
        f" {misses.context:,.0f} tokens (mean) of the trace to the {context:,.0f} of the load by"
        f" the share of tokens outside the buffer: at B {size:,} from {100 * misses.rate:.1f} to"
        f" {100 * rate:.1f} %"
    )
