"""Captures the positions that models of the Hugging Face library select while they decode.

The prompt is prefilled at once, then every decode step selects top-k of the tokens so far. They are
read by a *tap*: the model's own lightning indexer where it has one (`taps.IndexerTap`), the
attention itself (`oracle.AttentionOracle`), or an indexer trained on it (`indexer.TrainedIndexer`).
"""

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from hisparse_sim.traces.capture.drafting import MEANS, verified, verify
from hisparse_sim.traces.capture.forward import Draw, Forward, Sampling
from hisparse_sim.traces.capture.models import Loaded, running
from hisparse_sim.traces.capture.recorder import Recorder
from hisparse_sim.traces.capture.taps import IndexerTap, Tap, grouped, indexers
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.captured import MOST_TOKENS, checked_id
from hisparse_sim.traces.file.metadata import MOST_QUERIES, Metadata
from hisparse_sim.traces.file.spool import Spool
from hisparse_sim.traces.file.units import TOKEN, plural, tokens_of
from hisparse_sim.traces.file.writer import TraceWriter
from hisparse_sim.traces.files import refuse_unwritable


@dataclass(frozen=True)
class Prompt:
    """One request: the prompt, then the text that decode follows (unless tokens are sampled)."""

    request: str
    ids: tuple[int, ...]
    prompt_len: int  # tokens; the rest of `ids` is for decode


@dataclass(frozen=True)
class Settings:
    """What to capture."""

    steps: int
    top_k: int
    keep_ranks: int | None = None  # last rank kept; above top_k they go to `next_positions`
    scores: bool = False
    layers: frozenset[int] | None = None  # None = all
    order: str = "position"  # or "indexer": best first
    sampling: Sampling | None = None  # None = teacher-forced
    draft_tokens: int = 1  # queries of a step, of which all but the first are of drafts

    @property
    def tokens(self) -> int:
        """Tokens that are decoded at most."""
        return self.steps * self.draft_tokens


def check(loaded: Loaded, tap: Tap, prompts: Sequence[Prompt], settings: Settings) -> None:
    """Raise TraceError for what cannot be captured, before anything runs."""
    if settings.steps < 1 or settings.top_k < 1:
        raise TraceError("steps and top_k must be at least 1")
    if max(settings.top_k, settings.keep_ranks or 0) > MOST_TOKENS:
        raise TraceError(f"top_k and the ranks kept are at most {MOST_TOKENS}")
    if settings.keep_ranks is not None and settings.keep_ranks <= settings.top_k:
        raise TraceError(
            f"ranks are kept up to {settings.keep_ranks}, which is not above top_k "
            f"{settings.top_k}: ask for more, or for none"
        )
    if settings.scores and tap.score is None:
        raise TraceError("the indexers of transformers give positions without scores")
    count = loaded.config.num_hidden_layers
    for layer in settings.layers or ():
        if not 0 <= layer < count:
            raise TraceError(f"there is no layer {layer}: {loaded.name} has {count}")
    own = {indexer.index_topk for indexer in indexers(loaded.model).values()}
    if isinstance(tap, IndexerTap) and own != {settings.top_k}:
        raise TraceError(
            f"top_k is {settings.top_k}, but the indexers of {loaded.name} select "
            f"{', '.join(map(str, own)) or 'nothing: it has none'}"
        )
    sampling = settings.sampling
    if sampling is not None and not 0 <= sampling.temperature < math.inf:
        raise TraceError(f"the temperature is {sampling.temperature}, expected a number from 0 on")
    if not 1 <= settings.draft_tokens <= MOST_QUERIES:
        raise TraceError(
            f"draft_tokens is {settings.draft_tokens}, expected a number from 1 to {MOST_QUERIES}"
        )
    if settings.draft_tokens > 1 and tap.unit != TOKEN:
        raise TraceError(f"{loaded.name} selects {plural(tap.unit)}, and drafts are of tokens")
    if settings.draft_tokens > 1 and sampling is not None and sampling.temperature > 0:
        raise TraceError(
            "drafts are compared with the most likely token: sample at temperature 0, or follow "
            "the text"
        )
    names = [checked_id(prompt.request, "the id of a prompt") for prompt in prompts]
    if not prompts or len(set(names)) < len(names):
        raise TraceError("there is no prompt" if not prompts else "two prompts have the same id")
    context = loaded.context
    for prompt in prompts:
        follows = len(prompt.ids) - prompt.prompt_len
        place = f"request {prompt.request!r}"
        if prompt.prompt_len < 1:
            raise TraceError(f"{place}: the prompt is empty")
        if settings.sampling is None and follows < settings.tokens:
            raise TraceError(
                f"{place}: the text has {len(prompt.ids):,} tokens, the capture needs "
                f"{prompt.prompt_len + settings.tokens:,} (a prompt of {prompt.prompt_len:,}, and "
                f"{settings.tokens:,} that decode follows): take a longer text, a shorter prompt, "
                "fewer steps, or sample"
            )
        if context is not None and prompt.prompt_len + settings.tokens > context:
            raise TraceError(
                f"{place}: {prompt.prompt_len:,} tokens and {settings.tokens:,} decoded do not fit "
                f"into the {context:,} tokens that {loaded.name} was made for: shorten one of them"
            )


def capture(
    path: str | os.PathLike[str],
    loaded: Loaded,
    tap: Tap,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    dataset: str = "",
    notes: Mapping[str, Any] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Metadata:
    """Run the prompts through the model and write the selected positions to a trace file.

    `progress(what, done, all)` is called with tokens of the prefill and steps of the decode. Memory
    is that of the model, its cache and one layer's demand. Returns the metadata written; on any
    exception, Ctrl-C included, no file is left behind.

    Raises TraceError for settings that do not fit, and if the file cannot be written.
    """
    check(loaded, tap, prompts, settings)
    refuse_unwritable(path)
    about = _metadata(loaded, tap, prompts, settings, dataset, notes or {})
    with TraceWriter(path, about) as writer:
        for prompt in prompts:
            # No step has more ranks than tokens.
            total = prompt.prompt_len + settings.tokens
            width = min(settings.keep_ranks or settings.top_k, total)
            with Spool(path, width, settings.scores) as spool, running(loaded):
                begun = _run(loaded, tap, prompt, settings, spool, progress)
                for demand in spool.demands(
                    prompt.request,
                    prompt.prompt_len,
                    settings.top_k,
                    sort=settings.order == "position",
                    following=settings.keep_ranks is not None,
                ):
                    if tap.unit != TOKEN:
                        demand = grouped(demand, tap.unit)
                    if settings.draft_tokens > 1:
                        demand = verified(demand, begun, settings.draft_tokens)
                    writer.write(demand)
    return about


def _run(
    loaded: Loaded,
    tap: Tap,
    prompt: Prompt,
    settings: Settings,
    spool: Spool,
    progress: Callable[[str, int, int], None] | None,
) -> list[int]:
    """Prefill, then decode into the spool; return the tokens before every pass."""
    import torch

    tell = progress or (lambda what, done, count: None)
    recorder = Recorder(spool.width, settings.layers, settings.scores)
    total = prompt.prompt_len + settings.tokens
    begun: list[int] = []
    with torch.inference_mode(), tap.tapped(loaded.model, recorder):
        forward = Forward(loaded.model)
        rows = tap.prefill_rows(loaded.config, total)
        logits = None
        for first in range(0, prompt.prompt_len, rows):
            tell("prefill", first, prompt.prompt_len)
            logits = forward(prompt.ids[first : min(first + rows, prompt.prompt_len)])
        tell("prefill", prompt.prompt_len, prompt.prompt_len)

        def decode(start: int, tokens: Sequence[int]) -> Any:
            recorder.expect(start + 1, len(tokens))
            found = forward(tokens, settings.draft_tokens)
            ranked = recorder.take()
            if not ranked:
                raise TraceError(
                    f"{loaded.name} gave nothing to rank in the chosen layers: they attend "
                    "in a way of their own, or share the selection of an earlier layer"
                )
            spool.append(ranked)
            begun.append(start)
            tell("decode", spool.steps // settings.draft_tokens, settings.steps)
            return found

        draw = None if settings.sampling is None else Draw(loaded, settings.sampling)
        if settings.draft_tokens > 1:
            asked = prompt.ids, prompt.prompt_len, settings.steps, settings.draft_tokens
            verify(forward, decode, draw, logits, *asked)
        else:
            rows = 1 if draw else tap.rows_at_once(loaded.config, total)
            _follow(decode, draw, logits, prompt, total, rows)
        if spool.steps == 0:
            raise TraceError(
                f"request {prompt.request!r}: the model ended its answer at once: choose another "
                "seed or prompt, or follow the text"
            )
    return begun


def _follow(
    decode: Callable[[int, Sequence[int]], Any],
    draw: Draw | None,
    logits: Any,
    prompt: Prompt,
    total: int,
    rows: int,
) -> None:
    """Decode a token a step, `rows` steps in a pass."""
    for start in range(prompt.prompt_len, total, rows):
        tokens: Sequence[int] = prompt.ids[start : min(start + rows, total)]
        if draw is not None:
            token = draw(logits)
            if token in draw.ends:
                break
            tokens = [token]
        logits = decode(start, tokens)


def _metadata(
    loaded: Loaded,
    tap: Tap,
    prompts: Sequence[Prompt],
    settings: Settings,
    dataset: str,
    notes: Mapping[str, Any],
) -> Metadata:
    config = loaded.config
    layer_types = None
    if isinstance(tap, IndexerTap) and tap.unit == TOKEN:
        full = indexers(loaded.model)
        layer_types = tuple(
            "full" if layer in full else "shared" for layer in range(config.num_hidden_layers)
        )
    ids = {p.request: np.asarray(p.ids, np.int64).tobytes() for p in prompts}
    about: dict[str, Any] = {
        "ranks": tap.means,
        "decode": "teacher-forced along the text"
        if settings.sampling is None
        else f"sampled, temperature {settings.sampling.temperature}, seed {settings.sampling.seed}",
        "weights": loaded.weights,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "device": loaded.model.device.type,
        "tokens_sha256": {name: hashlib.sha256(raw).hexdigest() for name, raw in ids.items()},
        **notes,
    }
    if settings.draft_tokens > 1:
        about["drafts"] = {"draft_tokens": settings.draft_tokens, "made": MEANS}
    if settings.scores:
        about["scores"] = tap.score
    if settings.keep_ranks is not None:
        about["ranks_kept"] = settings.keep_ranks
    versions = [f"{name} {_version(name)}" for name in ("transformers", "torch", "hisparse-sim")]
    return Metadata(
        model=loaded.title,
        provenance="synthetic" if loaded.random else tap.provenance,
        top_k=settings.top_k,
        num_layers=config.num_hidden_layers,
        source=", ".join(versions),
        dataset=dataset,
        layer_types=layer_types,
        unit=tap.unit,
        order=settings.order,
        draft_tokens=settings.draft_tokens,
        prompt_len={each.request: each.prompt_len // tokens_of(tap.unit) for each in prompts},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=about,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"
