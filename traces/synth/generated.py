"""Synthetic demand as a trace in memory: drawn when it is first read, and kept."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.file.parts import Part
from hisparse_sim.traces.file.reader import Trace
from hisparse_sim.traces.synth.generator import Profile, generate, layer_noise, metadata, reshaped

REQUEST = "synth-0"


def stand_ins(profile: Profile, count: int) -> dict[int, int]:
    """Layers that stand for all of a profile, and for how many each does.

    Layers differ in their noise alone: sorted by it they are cut into `count` groups as alike in
    size as can be, and the middle one stands for its group. The early layers, whose noise is the
    same, are a group of their own.
    """
    early = min(profile.parameters.early_layers, profile.num_layers)
    others = sorted(range(early, profile.num_layers), key=lambda layer: layer_noise(profile, layer))
    groups = [group for group in np.array_split(others, count) if len(group)]
    found = {int(group[len(group) // 2]): len(group) for group in groups}
    return {0: early} | found if early else found


def alike_layers(profile: Profile, count: int) -> tuple[int, ...]:
    """Return at most `count` layers of a profile that stand for as many each, to one: the middle
    ones of groups of all layers by their noise."""
    layers = sorted(range(profile.num_layers), key=lambda layer: layer_noise(profile, layer))
    groups = np.array_split(layers, min(count, len(layers)))
    return tuple(sorted(int(group[len(group) // 2]) for group in groups))


def prompt_of(context: int, steps: int) -> int:
    """Return the tokens of a prompt with which a request has `context` tokens on average."""
    return max(context - steps // 2, 1)


class GeneratedTrace(Trace):
    """One request of a profile, its layers represented by a few. There is no file."""

    def __init__(
        self,
        profile: Profile,
        context: int,
        steps: int,
        layers: int | Sequence[int],
        seed: int = 0,
    ):
        """Requests of `context` tokens on average over `steps` steps, in about `layers` layers, or
        in these, each of which counts as one."""
        shape = reshaped(profile, prompt_len=prompt_of(context, steps), steps=steps)
        self._shape, self._seed = shape, seed
        self._made: dict[int, Demand] = {}
        self._rebuild = (profile, context, steps, layers, seed)
        self.stands_for = (  # layer -> layers of the model
            stand_ins(profile, layers) if isinstance(layers, int) else dict.fromkeys(layers, 1)
        )
        self.path = Path(f"{profile.name}@{context}")  # no file has such a name
        self.metadata = replace(
            metadata(
                shape, [REQUEST], seed, f"at {profile.prompt_len:,} tokens and over all layers"
            ),
            created="",
        )
        chosen = sorted(self.stands_for)
        self.parts = tuple(Part(REQUEST, layer, steps * i, steps) for i, layer in enumerate(chosen))
        self.columns = frozenset()

    def __reduce__(self) -> tuple[Any, ...]:
        return GeneratedTrace, self._rebuild

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def shared_groups(self) -> int:
        return 0

    @cached_property
    def sha256(self) -> str:
        """Digest of what it is drawn from, 64 hexadecimal digits."""
        made_of = [
            asdict(self._shape),
            sorted(self.stands_for),
            self._seed,
            version("hisparse-sim"),
        ]
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()

    def read(
        self, part: Part, columns: Iterable[str] = (), steps: tuple[int, int] | None = None
    ) -> Demand:
        """The demand of one layer; there are no further columns, and all steps."""
        if tuple(columns) or steps is not None:
            raise ValueError("a generated trace has all of its steps, and positions only")
        if part.layer not in self._made:
            self._made[part.layer] = generate(
                self._shape, part.layer, request=part.request, seed=self._seed
            )
        return self._made[part.layer]
