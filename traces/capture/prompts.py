"""Prompts: from LongBench, or the user's own as JSON lines or one plain text."""

import json
from collections.abc import Sequence
from pathlib import Path

from hisparse_sim.traces.capture.longbench import HUB_ID, load_longbench, select
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.captured import checked_id
from hisparse_sim.traces.files import opened
from hisparse_sim.traces.terminal import printable


def read_prompt_file(path: Path) -> list[tuple[str, str]]:
    """Return (request, text) pairs.

    A `.jsonl` file holds one object a line with `text` and, if wanted, `request`, which else is
    the number of the line; any other file is one prompt, called like the file.

    Raises TraceError naming file and line, also for an id that came before.
    """
    with opened(path) as file:
        raw = file.read()
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not UTF-8 text (byte {error.start})") from None
    if path.suffix.lower() != ".jsonl":
        if not content.strip():
            raise TraceError(f"{path} is empty")
        return [(printable(path.stem), content)]
    found: list[tuple[str, str]] = []
    seen: dict[str, int] = {}  # request -> line
    # Not splitlines: other separators may stand inside a JSON string.
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path}, line {number} is not JSON ({error})") from None
        text = prompt.get("text") if isinstance(prompt, dict) else None
        if not isinstance(text, str) or not text:
            raise TraceError(f"{path}, line {number} has no text")
        request = prompt.get("request", number)
        name = str(request) if type(request) is int else request
        if checked_id(name, f"{path}, line {number}: request") in seen:
            raise TraceError(
                f"{path}, line {number} has the request {name!r}, which line {seen[name]} has too"
            )
        seen[name] = number
        found.append((name, text))
    if not found:
        raise TraceError(f"{path} holds no prompts")
    return found


def read_prompts(
    prompts: str | Path | None = None,
    longbench: str | Path | None = None,
    domains: Sequence[str] | None = None,
    lengths: Sequence[str] | None = None,
    count: int | None = None,
    seed: int = 0,
) -> tuple[list[tuple[str, str]], str]:
    """Return (request, text) pairs of a file or of LongBench v2, and what to call the data set.

    `longbench`: "hub", or a local file. `domains` and `lengths` (short, medium, long) select its
    items; `count` chooses so many at random by `seed`, or takes so many of the file's first.

    Raises ValueError for neither or both, TraceError for what cannot be read.
    """
    if (prompts is None) == (longbench is None):
        raise ValueError("give the prompts by either `prompts` or `longbench`")
    if longbench is not None:
        items = load_longbench(HUB_ID if longbench == "hub" else longbench)
        chosen = select(items, domains=domains, lengths=lengths, count=count, seed=seed)
        return [(item.id, item.prompt()) for item in chosen], "LongBench v2"
    assert prompts is not None
    return read_prompt_file(Path(prompts))[:count], printable(Path(prompts).name)
