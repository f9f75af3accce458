"""Synthetic demand: a small random model of what a sparse-attention indexer selects.

Position p of a request has, in one layer and at decode step t, the score

    importance(p) + drift * d(segment of p, t) + noise * e(p, t)  [+ recency] [+ sink]

and the `top_k` highest are selected. `importance` is fixed, `e` is new in every step, and `d` keeps
its value for a random time: every segment of a few neighbouring positions has a mean life of its
own, spread evenly on a log scale between `shortest_life` and `longest_life` steps. So the overlap
between steps falls slowly with their distance, as it does in traces of real models, instead of at
one rate. All three parts are nearly normal and are scaled so that a score has variance 1. The
newest tokens get a bonus that falls linearly to 0 over `window` tokens, the first `sinks`
positions are always selected, and layers differ in their noise by a factor exp(layer_spread * z)
with z at the quantiles of the normal distribution.

Profiles hold parameters that were fitted to published figures (`benchmarks/fit_synth.py`), and the
result of the fit. A fitted generator is not a reproduction: every file says `synthetic`.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from hisparse_sim.traces.demand import Demand, Ints
from hisparse_sim.traces.drafts import check_accepted, drafted, tokens_verified
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.layer_types import FULL, layer_types_of
from hisparse_sim.traces.file.metadata import Metadata
from hisparse_sim.traces.file.units import COMPRESSED, TOKEN, block_unit, first_growth, positions_of
from hisparse_sim.traces.machine_memory import refuse_too_large

PROFILES_PATH = Path(__file__).parents[1] / "data" / "synth_profiles.json"


@dataclass(frozen=True)
class Parameters:
    """The random model; amplitudes are relative to the standard deviation of importance, 1."""

    noise: float  # of a layer in the middle of the spread
    drift: float
    shortest_life: float  # steps
    longest_life: float  # steps
    segment: int = 8  # positions that drift together
    layer_spread: float = 0.0  # standard deviation of log(noise) over layers
    early_layers: int = 0  # so many layers at the bottom have another noise
    early_noise: float = 0.0
    sinks: int = 4
    recency: float = 6.0  # bonus of the newest token
    window: int = 256  # tokens


@dataclass(frozen=True)
class Profile:
    """The shape of a model, its fitted parameters, and the quality of the fit."""

    name: str
    model: str
    num_layers: int
    top_k: int  # positions
    prompt_len: int  # tokens
    steps: int
    parameters: Parameters
    aliases: tuple[str, ...] = ()
    tokens_per_position: int = 1  # above 1 a position is a block of so many tokens
    compressed: bool = False  # or a group of them, which has an entry once it is complete
    stands_in: str = ""  # whose figures it has, if not those published of `model`
    fit: Any = None  # published and achieved figures, JSON


@cache
def profiles() -> dict[str, Profile]:
    """Return the shipped profiles by name."""
    found = json.loads(PROFILES_PATH.read_text())
    return {
        name: Profile(
            name,
            aliases=tuple(values.pop("aliases")),
            parameters=Parameters(**values.pop("parameters")),
            **values,
        )
        for name, values in found.items()
    }


def get_profile(name: str) -> Profile:
    """Return a shipped profile by its name or an alias, case ignored. Raises ValueError, naming
    those there are."""
    wanted = name.casefold()
    for profile in profiles().values():
        if wanted in (profile.name, *profile.aliases):
            return profile
    raise ValueError(f"unknown profile {name!r}; known are {', '.join(profiles())}")


def layer_noise(profile: Profile, layer: int) -> float:
    """Return the noise of one layer.

    Layers go through the quantiles in steps of the golden ratio, so that any run of neighbouring
    layers covers the spread evenly.
    """
    parameters = profile.parameters
    if layer < parameters.early_layers:
        return parameters.early_noise
    rank = ((layer + 0.5) * 0.6180339887498949) % 1
    return parameters.noise * float(np.exp(parameters.layer_spread * NormalDist().inv_cdf(rank)))


def generate(profile: Profile, layer: int, *, request: str = "synth-0", seed: int = 0) -> Demand:
    """Return the demand of one layer of one request: `profile.steps` rows, sorted positions.

    Needs about 16 bytes per position of the context besides the result. Raises TraceError if the
    profile's shape is impossible.
    """
    from hisparse_sim.traces.synth import passes as synth_passes

    _check(profile)
    parameters = profile.parameters
    prompt_len, lengths = _lengths(profile)
    total = int(lengths[-1])
    noise = layer_noise(profile, layer)
    scale = float(1 / np.sqrt(1 + parameters.drift**2 + noise**2))
    keys = _keys(seed, request, layer)
    level = np.empty(total, np.float32)
    synth_passes.fill_bell(keys[0], level)
    level *= np.float32(scale)
    lives = np.empty(-(-total // parameters.segment), np.float32)
    synth_passes.fill_uniform(keys[1], lives)
    lives = parameters.shortest_life * (parameters.longest_life / parameters.shortest_life) ** lives
    listed = np.minimum(lengths, profile.top_k).astype(np.int64)
    positions = np.empty(int(listed.sum()) + 1, np.int32)
    offsets = np.zeros(profile.steps + 1, np.int64)
    synth_passes.select_rows(
        keys[2],
        lengths,
        profile.top_k,
        level,
        lives.astype(np.float32),
        parameters.segment,
        np.float32(parameters.drift * scale),
        np.float32(noise * scale),
        parameters.sinks,
        np.float32(parameters.recency * scale),
        parameters.window,
        positions,
        offsets,
    )
    steps = np.arange(profile.steps, dtype=np.int32)
    return Demand(request, layer, prompt_len, steps, lengths, offsets, positions[:-1])


def metadata(profile: Profile, requests: list[str], seed: int, caveat: str = "") -> Metadata:
    """Return the metadata of a generated file; `caveat` says why the fit does not hold for it."""
    notes: dict[str, Any] = {
        "profile": profile.name,
        "seed": seed,
        "parameters": asdict(profile.parameters),
        "fit": profile.fit,
    }
    if caveat:
        notes["fit_holds"] = caveat
    return Metadata(
        model=profile.model,
        provenance="synthetic",
        top_k=profile.top_k,
        num_layers=profile.num_layers,
        source=f"hisparse-sim {version('hisparse-sim')}, generator",
        dataset="none: drawn from a random model",
        unit=_unit(profile),
        prompt_len=dict.fromkeys(requests, _lengths(profile)[0]),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=notes,
    )


def synthesize(
    path: str | os.PathLike[str],
    profile: Profile,
    *,
    layers: list[int] | None = None,
    requests: int = 1,
    seed: int = 0,
    draft_tokens: int = 1,
    acceptance_length: float | None = None,
    full_layers: Collection[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a synthetic trace, layer by layer; `progress(done, all)` is called after each.

    With `draft_tokens` above 1 the steps of the profile are verify steps of this many queries,
    which accept `acceptance_length` tokens on average, see `traces.drafts`. With `full_layers`
    these have an index, and the others repeat the one before them: of those there are no rows.

    Raises TraceError for an impossible shape or layer, or if the file cannot be written; ValueError
    for impossible drafts.
    """
    _check(profile)
    mean = float(draft_tokens if acceptance_length is None else acceptance_length)
    check_accepted(mean, draft_tokens)
    if draft_tokens > 1 and _unit(profile) != TOKEN:
        raise ValueError(f"drafts are modelled for single tokens, not for {profile.model}")
    tokens = tokens_verified(profile.steps, draft_tokens, mean)
    drawn = profile if draft_tokens == 1 else replace(profile, steps=tokens)
    _check(drawn)
    layers = list(range(profile.num_layers)) if layers is None else sorted(set(layers))
    for layer in layers:
        if not 0 <= layer < profile.num_layers:
            raise TraceError(
                f"there is no layer {layer}: profile {profile.name} has layers 0 to "
                f"{profile.num_layers - 1}"
            )
    if requests < 1:
        raise TraceError(f"{requests} requests were asked for, and a trace has at least one")
    refuse_too_large(128.0 * requests, f"the names of {requests:,} requests")
    names = [f"synth-{number}" for number in range(requests)]
    types = None if full_layers is None else layer_types_of(profile.num_layers, full_layers)
    if types is not None:
        layers = [layer for layer in layers if types[layer] == FULL]
        if not layers:
            known = ", ".join(str(layer) for layer, kind in enumerate(types) if kind == FULL)
            raise TraceError(f"none of the layers asked for has an index: choose from {known}")
    caveat = profile.stands_in
    if not caveat and profile != profiles().get(profile.name):
        caveat = "not for this file: its shape differs from the fitted one"
    elif not caveat and len(layers) < profile.num_layers:
        caveat = f"over all {profile.num_layers} layers, of which this file has {len(layers)}"
    parts = (generate(drawn, layer, request=name, seed=seed) for name in names for layer in layers)
    about = replace(metadata(profile, names, seed, caveat), layer_types=types)
    if draft_tokens > 1:
        parts = (drafted(part, draft_tokens, mean) for part in parts)
        drafts = {"draft_tokens": draft_tokens, "accepted": mean, "rows": "of the tokens that came"}
        about = replace(about, draft_tokens=draft_tokens, notes=about.notes | {"drafts": drafts})
    write_parts(path, about, parts, requests * len(layers), progress)


def write_parts(
    path: str | os.PathLike[str],
    about: Metadata,
    parts: Iterator[Demand],
    count: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write `count` parts to a trace file as they come."""
    from hisparse_sim.traces.file.writer import TraceWriter

    with TraceWriter(path, about) as writer:
        for done, part in enumerate(parts, 1):
            writer.write(part)
            if progress is not None:
                progress(done, count)


def reshaped(profile: Profile, **changes: Any) -> Profile:
    """Return the profile with another shape: fields that are not None."""
    return replace(profile, **{name: value for name, value in changes.items() if value is not None})


def _check(profile: Profile) -> None:
    for name, least in (("num_layers", 1), ("top_k", 1), ("prompt_len", 0), ("steps", 1)):
        value = getattr(profile, name)
        if value < least:
            raise TraceError(f"{name} is {value}, expected at least {least}")
    if profile.prompt_len + profile.steps >= 2**31:
        raise TraceError("prompt_len and steps together must stay below 2^31")
    if profile.num_layers > 2**15:
        raise TraceError(f"num_layers is {profile.num_layers}, expected at most {2**15}")
    if profile.top_k >= 2**31:
        raise TraceError(f"top_k is {profile.top_k}, expected less than 2^31")
    context = -(-(profile.prompt_len + profile.steps) // profile.tokens_per_position)
    refuse_too_large(
        16.0 * context + 28.0 * profile.steps + 4.0 * profile.steps * min(context, profile.top_k),
        f"{profile.steps:,} steps behind a prompt of {profile.prompt_len:,} tokens",
    )


def _lengths(profile: Profile) -> tuple[int, Ints]:
    """Return (prompt_len, seq_len per step), both in positions."""
    unit = _unit(profile)
    tokens = profile.prompt_len + 1 + np.arange(profile.steps)
    lengths = positions_of(tokens, unit).astype(np.int32)
    return int(lengths[0]) - first_growth(unit), lengths


def _unit(profile: Profile) -> str:
    return COMPRESSED if profile.compressed else block_unit(profile.tokens_per_position)


def _keys(seed: int, request: str, layer: int) -> Any:
    """Return independent 32-bit keys for one (seed, request, layer)."""
    digest = blake2b(f"{seed}/{layer}/{request}".encode(), digest_size=12).digest()
    return np.frombuffer(digest, "<u4").astype(np.uint32)
