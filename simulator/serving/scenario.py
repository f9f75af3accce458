"""A deployment, its load and its misses by plain names, and the `Setting` that results.

The commands plan and serve and the functions of the same names take these options, with these
defaults. The command line imports this, so it loads nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hisparse_sim.simulator.serving.engines import NEWEST, load_engine
from hisparse_sim.simulator.serving.foresight import Guess
from hisparse_sim.simulator.serving.speculation import Stated
from hisparse_sim.simulator.serving.transfer import TRANSFER_GB_S
from hisparse_sim.traces.arguments import switch, whole_number
from hisparse_sim.traces.documents import LEAST_AMOUNT, MOST_AMOUNT, MOST_COUNT

if TYPE_CHECKING:
    from hisparse_sim.policies import Policy
    from hisparse_sim.simulator.serving.deployment import Deployment
    from hisparse_sim.simulator.serving.misses import MissesOf, Origin
    from hisparse_sim.simulator.serving.models import Model
    from hisparse_sim.simulator.serving.prediction import Setting
    from hisparse_sim.traces import OneTrace

Function = TypeVar("Function", bound=Callable[..., Any])
Value = TypeVar("Value")

DEFAULT_MODEL = "glm-5.1"
GIB = 1 << 30
MOST_GIB = 1 << 20  # a pebibyte
MOST_INSTANCES = 1000  # of a kind
_BOTH = "give host_gib (of a GPU) or host_memory_gib (of the machine), not both"


@dataclass(frozen=True)
class Scenario:
    """What plan and serve share; they vary buffer, ratio, mode and concurrency."""

    model: str | None = None  # model profile; None: that of the trace, else DEFAULT_MODEL
    hardware: str = "h200"  # machine profile
    layout: str = "dp8-tp8"  # a name of `steptimes.LAYOUTS`
    kv_dtype: str = "bf16"
    mem_fraction_static: float = 0.85  # share of the GPU for weights and KV
    device_pool_gib: float | None = None  # GPU memory for KV; None: what is left
    max_total_tokens: int | None = None  # most tokens of a rank's pool, as the engine's option
    host_gib: float | None = None  # host memory of a GPU; None: its share of the machine's
    host_memory_gib: float | None = None  # of the machine, all GPUs; None: the profile's
    engine: str = NEWEST.name  # whose memory and admission rules hold
    early_stops: bool = False  # requests may end before their limit (no ignore_eos)
    disaggregated: bool = False  # prefill runs on instances of its own; so too with either of these
    prefill_instances: int | None = None  # None: plan searches, serve takes 1
    decode_instances: int | None = None
    transfer_gb_s: float = TRANSFER_GB_S  # from prefill to decode, each GPU
    max_running_requests: int = 480  # over all ranks
    chunked_prefill_size: int = 65_536  # tokens, over all ranks
    draft_tokens: int | None = None  # rows verified a step, in speculative decoding; None: without
    acceptance_length: float | None = None  # tokens that a step yields, with draft_tokens
    union_misses: float | None = None  # misses of a step over those of a row; None: draft_tokens
    prefetch_recall: float | None = None  # misses foreseen, of 1, in the modes that guess
    prefetch_waste: float | None = None  # copies in vain for each of them; None: 0
    kernel: str = "sglang"  # swap-in kernel: the engine's, or "native" for ours
    profiles: str | Path | None = None  # TOML file with your own profiles
    step_times: str | None = None  # a table's path, "aiconfigurator" or "roofline"; None: shipped
    prompt: int = 32_768  # tokens
    output_len: int = 8192  # tokens
    workload: str | Path | None = None  # recorded requests, with lengths of their own
    time_scale: float | None = None  # of their times: 2 is half the rate
    no_prefix_cache: bool = False  # although the engine allows one
    trace: OneTrace | None = None  # to replay, or its facts; None: see demand.py
    miss_curve: str | Path | None = None  # rows of a sweep, instead of a replay

    def __post_init__(self) -> None:
        for name in ("prompt", "output_len", "max_running_requests"):
            whole_number(name, getattr(self, name), 1, MOST_COUNT)
        whole_number("chunked_prefill_size", self.chunked_prefill_size, 64, MOST_COUNT)
        for name, most in (
            ("prefill_instances", MOST_INSTANCES),
            ("decode_instances", MOST_INSTANCES),
            ("draft_tokens", MOST_COUNT),
        ):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1, most)
        for name in ("early_stops", "disaggregated", "no_prefix_cache"):
            switch(name, getattr(self, name))
        if None not in (self.host_gib, self.host_memory_gib):
            raise ValueError(_BOTH)
        for name in ("device_pool_gib", "host_gib", "host_memory_gib"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MOST_GIB:
                raise ValueError(f"{name} must be above 0 and at most {MOST_GIB}, not {value}")
        if not LEAST_AMOUNT <= self.transfer_gb_s <= MOST_AMOUNT:
            raise ValueError(f"transfer_gb_s must be above 0 and finite, not {self.transfer_gb_s}")
        _ = self.guess
        if self.trace is None:  # which may say it
            self.stated.speculation()
        if not 0 < self.mem_fraction_static < 1:
            raise ValueError(
                f"mem_fraction_static must lie between 0 and 1, not {self.mem_fraction_static}"
            )

    @property
    def stated(self) -> Stated:
        """What is stated of speculative decoding."""
        return Stated(self.draft_tokens, self.acceptance_length, self.union_misses)

    @property
    def guess(self) -> Guess | None:
        """What is stated of misses that are foreseen."""
        if self.prefetch_recall is None:
            if self.prefetch_waste is not None:
                raise ValueError("prefetch_waste is of what prefetch_recall foresees: give both")
            return None
        return Guess(self.prefetch_recall, self.prefetch_waste or 0.0)

    @property
    def apart(self) -> bool:
        """Whether prefill runs on instances of its own."""
        return self.disaggregated or (self.prefill_instances or self.decode_instances) is not None

    def resolve(self, mode: str | None, policy: Policy, context: int | None = None) -> Resolved:
        """Load what is named, and describe where misses come from (they are replayed when asked
        for, at `context` tokens; None: the prompt and half of the output). `mode` None: that of the
        engine.

        Raises ValueError (ProfileError among them) for unknown names and weights that do not fit,
        TraceError for a bad trace or miss curve, or one that does not count tokens.
        """
        from hisparse_sim.simulator.serving.models import load_model, profile_name
        from hisparse_sim.simulator.serving.prediction import Setting, own_mode
        from hisparse_sim.simulator.serving.profiles import ProfileError
        from hisparse_sim.simulator.serving.scenario_misses import misses_for, trace_and_drafts
        from hisparse_sim.simulator.serving.step_source import steps_for

        trace, speculation = trace_and_drafts(
            self.trace,
            self.miss_curve,
            self.stated,
        )
        own = "" if trace is None else profile_name(trace.metadata.model, self.profiles)
        model = load_model(self.model or own or DEFAULT_MODEL, self.profiles)
        deployment = deployment_of(
            model,
            self.hardware,
            self.layout,
            kv_dtype=self.kv_dtype,
            mem_fraction_static=self.mem_fraction_static,
            device_pool_gib=self.device_pool_gib,
            max_total_tokens=self.max_total_tokens,
            host_gib=self.host_gib,
            host_memory_gib=self.host_memory_gib,
            engine=self.engine,
            profiles=self.profiles,
        )
        deployment = replace(deployment, draft_layers=int(speculation is not None))
        machine, model = deployment.hardware, deployment.model
        steps, no_steps = None, ""
        try:
            steps = steps_for(model, machine, self.layout, self.kv_dtype, self.step_times)
        except ProfileError as error:
            if self.step_times is not None:
                raise
            no_steps = str(error)  # memory is answered, rates are not
        context = min(context or self.prompt + self.output_len // 2, model.context)
        given, origin, said = misses_for(
            model,
            policy,
            context,
            trace,
            self.miss_curve,
            "direct" if self.apart else "staged",
            speculation,
        )
        notes = (*((f"rates are not known: {no_steps}",) if no_steps else ()), *said)
        setting = Setting(
            deployment,
            steps,
            mode or own_mode(deployment, speculation),
            disaggregated=self.apart,
            prefill_instances=self.prefill_instances or 1,
            decode_instances=self.decode_instances or 1,
            transfer_gb_s=self.transfer_gb_s,
            max_running_requests=self.max_running_requests,
            chunked_prefill_size=self.chunked_prefill_size,
            ignore_eos=not self.early_stops,
            kernel=self.kernel,
            profiles=self.profiles,
            speculation=speculation,
            guess=self.guess,
            no_steps=no_steps,
        )
        return Resolved(setting, given, origin, notes)

    def in_other_layouts(self, mode: str, policy: Policy) -> tuple[Setting, ...]:
        """The setting in every other layout that the machine takes and whose times are known."""
        from hisparse_sim.simulator.serving.steptimes import LAYOUTS

        found = []
        for name in LAYOUTS:
            if name != self.layout:
                with suppress(ValueError):
                    found.append(replace(self, layout=name).resolve(mode, policy).setting)
        return tuple(one for one in found if one.steps is not None)


def deployment_of(
    model: Model,
    hardware: str = Scenario.hardware,
    layout: str = Scenario.layout,
    *,
    kv_dtype: str = Scenario.kv_dtype,
    mem_fraction_static: float = Scenario.mem_fraction_static,
    device_pool_gib: float | None = None,
    max_total_tokens: int | None = None,
    host_gib: float | None = None,
    host_memory_gib: float | None = None,
    engine: str = NEWEST.name,
    profiles: str | Path | None = None,
) -> Deployment:
    """A model on a machine, the arguments as the fields of `Scenario`.

    Raises ValueError (ProfileError among them) for unknown names, weights that do not fit and more
    memory than the machine has.
    """
    from hisparse_sim.simulator.serving.deployment import Deployment
    from hisparse_sim.simulator.serving.hardware import load_hardware
    from hisparse_sim.simulator.serving.steptimes import LAYOUTS

    if None not in (host_gib, host_memory_gib):
        raise ValueError(_BOTH)
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}")
    machine = load_hardware(hardware, profiles)
    if host_memory_gib is not None:
        machine = replace(machine, node_host_bytes=round(host_memory_gib * GIB))
    shape = LAYOUTS[layout]
    deployment = Deployment(
        model.on_ranks(shape.attention_tp),
        machine,
        shape,
        kv_dtype,
        mem_fraction_static,
        None if device_pool_gib is None else round(device_pool_gib * GIB),
        None if host_gib is None else round(host_gib * GIB),
        engine=load_engine(engine, memory=True),
        max_total_tokens=max_total_tokens,
    )
    deployment.check_weights()
    deployment.check_machine()
    return deployment


class Resolved(NamedTuple):
    """The parts that a scenario names, loaded."""

    setting: Setting  # at the default buffer and ratio
    misses_of: MissesOf
    origin: Origin  # of the misses
    notes: tuple[str, ...]  # for the reader of the result, a sentence each


def scenario_of(options: Mapping[str, Any]) -> Scenario:
    """Return the scenario that keyword arguments describe; TypeError names an unknown one."""
    known = [field.name for field in fields(Scenario)]
    for name in options:
        if name not in known:
            raise TypeError(f"unknown argument {name!r}; a scenario has {', '.join(known)}")
    return Scenario(**options)


def takes_scenario(function: Function) -> Function:
    """Let help and completion show the fields of `Scenario` in place of `**scenario`."""
    own = signature(function)
    kept = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    more = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(Scenario)
    ]
    function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
    return function


def several(given: Value | Iterable[Value] | None) -> tuple[Value, ...] | None:
    """Return the values of an argument that takes one or several."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        return (given,)
    return tuple(given)
