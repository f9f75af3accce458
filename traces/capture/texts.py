"""From texts to prompts: tokens, the end of the prompt, and the text that decode follows."""

from collections.abc import Sequence

from hisparse_sim.traces.capture.huggingface import Prompt
from hisparse_sim.traces.capture.longbench import truncate_middle
from hisparse_sim.traces.capture.models import Loaded
from hisparse_sim.traces.errors import TraceError

LEAST_TOKENS = 2  # of a prompt: behind a single one there is nothing to choose from


def python_reference() -> tuple[str, str]:
    """Return a text that comes with Python, and its description.

    The topics of `help()`: chapters of the language reference, 110,000 tokens of prose and code.
    """
    import platform

    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise TraceError(
            "this Python comes without its help topics: give a text with `prompts`"
        ) from None
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return text, f"language reference of Python {platform.python_version()} (pydoc_data.topics)"


def prepare(
    texts: Sequence[tuple[str, str]],
    loaded: Loaded,
    *,
    steps: int,
    prompt_len: int | None,
    sampled: bool,
) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    """Return the prompts, and per prompt the tokens of its text that it does not use.

    `prompt_len` None = as long as text and model allow. A prompt that decode follows along the text
    is the beginning of the text; a sampled one is the whole text, cut in the middle if too long.

    Raises TraceError if a text leaves no room for a prompt.
    """
    prompts: list[Prompt] = []
    rests: list[tuple[int, ...]] = []
    for request, text in texts:
        ids = tuple(loaded.tokenizer(text)["input_ids"])
        context = loaded.context or len(ids) + steps
        if context < steps + LEAST_TOKENS:
            raise TraceError(
                f"{steps:,} steps leave no room for a prompt in the {context:,} tokens of"
                f" {loaded.name}"
            )
        least = prompt_len or LEAST_TOKENS
        if sampled:
            if len(ids) < LEAST_TOKENS:
                raise TraceError(
                    f"request {request!r}: the text has {len(ids):,} tokens, a prompt needs "
                    f"{LEAST_TOKENS:,}: take a longer text"
                )
            ids = tuple(truncate_middle(ids, prompt_len or context - steps))
            prompts.append(Prompt(request, ids, len(ids)))
            rests.append(())
            continue
        if len(ids) < least + steps:
            raise TraceError(
                f"request {request!r}: the text has {len(ids):,} tokens, the capture needs "
                f"{least + steps:,} (a prompt of {least:,}{'' if prompt_len else ' at least'}, and "
                f"{steps:,} that decode follows): take a longer text, fewer steps or a shorter "
                f"prompt, or let the model continue (`sample`)"
            )
        length = prompt_len or min(len(ids), context) - steps
        prompts.append(Prompt(request, ids[: length + steps], length))
        rests.append(ids[length + steps :])
    return prompts, rests
