"""Numbers that are none, or that nothing can have: refused by every option that takes numbers."""

import inspect
import math
from collections.abc import Callable, Iterator

import click
import pytest
from click.testing import CliRunner

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.traces.commands.values import Number, Real

NO_NUMBERS = (
    "nan", "NaN", "inf", "-inf", "Infinity", "1e400", "-1e400", "1e309", "9" * 5000, "9" * 400,
    "-" + "9" * 400, "9" * 25, "0x10", "1e", "", " ", "--1", "1,5;3", "true", "None", "½", "1 2",
)  # fmt: skip
NO_AMOUNTS = ("1e-320", "1e-300", "1e19", "1e300", "-1", "-1e-9")
NO_COUNTS = ("1.5", "1e3", "2147483648", "-1")


def commands(
    group: click.Group, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*prefix, name))
        else:
            yield (*prefix, name), command


def kind(option: click.Parameter) -> type | None:
    """float or int if the option takes such numbers."""
    if isinstance(option.type, click.types.FloatParamType):
        return float
    if isinstance(option.type, click.types.IntParamType):
        return int
    if inspect.isfunction(option.callback):
        found = inspect.getclosurevars(option.callback).nonlocals.get("kind")
        return found if found in (int, float) else None
    return None


OPTIONS = [
    (names, option.opts[-1], kind(option))
    for names, command in commands(cli)
    for option in command.params
    if isinstance(option, click.Option) and not option.is_flag and kind(option) is not None
]
# Numbers within a text of the option's own.
TEXTS = {
    "--steps": ("nan:", "0:inf", "0:1e400", "0:" + "9" * 5000, "5:5", "-" + "9" * 400 + ":"),
    "--host-memory": ("nanGiB", "infTB", "1e400GB", "9" * 400 + "TB", "-1GB", "0GB", "5"),
}


def refused(*arguments: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2, result.output
    lines = result.output.rstrip("\n").split("\n")
    assert [line for line in lines if line.startswith("Error: ")] == lines[-1:]
    assert lines[-1].isprintable()
    assert len(lines[-1]) < 600


@pytest.mark.parametrize(
    ("names", "option", "takes"), OPTIONS, ids=[" ".join((*n, o)) for n, o, _ in OPTIONS]
)
def test_every_option(names: tuple[str, ...], option: str, takes: type) -> None:
    for value in NO_NUMBERS + (NO_AMOUNTS if takes is float else NO_COUNTS):
        if (option, value) in (("--seed", "2147483648"), ("--layer", "-1")):
            continue  # a seed, and a layer that no trace has
        refused(*names, f"{option}={value}")


def test_numbers_are_checked_types() -> None:
    """Click's own take nan and any size: no option has them."""
    for names, command in commands(cli):
        for option in command.params:
            plain = isinstance(
                option.type, click.types.FloatParamType | click.types.IntParamType
            ) and not isinstance(option.type, Number | Real)
            assert not plain, (names, option.name)
    assert len(OPTIONS) > 80


@pytest.mark.parametrize(
    ("names", "option"),
    [
        (names, option.opts[-1])
        for names, command in commands(cli)
        for option in command.params
        if option.opts[-1] in TEXTS and kind(option) is None
    ],
)
def test_numbers_within_texts(names: tuple[str, ...], option: str) -> None:
    for value in TEXTS[option]:
        refused(*names, f"{option}={value}")


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1e300, 1e-320, 0.0, -1.0, 10**400, -(10**400)]
)
@pytest.mark.parametrize(
    "name",
    ["device_pool_gib", "host_gib", "host_memory_gib", "mem_fraction_static", "rate", "max_tpot_ms",
     "max_ttft_s", "gpu_hour", "range_ratio", "max_miss_rate", "prompt", "output_len",
     "max_running_requests", "requests"],
)  # fmt: skip
def test_functions(name: str, value: float) -> None:
    """The functions behind the commands refuse them, too."""
    if (name, value) in (
        ("max_miss_rate", 0.0),
        ("max_miss_rate", 1e-320),
        ("range_ratio", 1e-320),
    ):
        return  # these can be
    targets = ("max_tpot_ms", "max_ttft_s", "max_miss_rate", "gpu_hour")
    call = hs.plan if name in targets else hs.serve
    with pytest.raises(ValueError, match=r"."):
        call(**{name: value})


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        *((hs.serve, "max_total_tokens", each) for each in (math.nan, 1.5, 0, True)),
        *((hs.serve, "chunked_prefill_size", each) for each in (math.nan, 1.5, 0, -1)),
        *((hs.serve, name, "no") for name in ("disaggregated", "early_stops", "no_prefix_cache")),
        *((hs.serve, name, 1.5) for name in ("prompt", "output_len", "max_running_requests")),
        *((hs.serve, name, 1.5) for name in ("prefill_instances", "seed", "requests", "ratio")),
        (hs.serve, "concurrency", 2.5),
        (hs.serve, "buffer", math.nan),
        (hs.plan, "concurrency", 2.5),
        (hs.plan, "concurrency", 0),
        (hs.plan, "buffers", [math.nan]),
        (hs.plan, "ratios", [2.5]),
        (hs.plan, "candidates", "no"),
    ],
)
def test_counts_are_whole_and_switches_on_or_off(
    call: Callable[..., object], name: str, value: object
) -> None:
    given = {"concurrencies" if (call, name) == (hs.serve, "concurrency") else name: value}
    with pytest.raises(ValueError, match=f"^{name} must be "):
        call(**given)
