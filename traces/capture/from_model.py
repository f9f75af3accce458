"""Capture from a model of the Hugging Face library by plain names, for the command
`trace capture hf` and for Python."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hisparse_sim.traces.capture import huggingface, models
from hisparse_sim.traces.capture.forward import Sampling
from hisparse_sim.traces.capture.indexer import TrainedIndexer, load, save
from hisparse_sim.traces.capture.indexer_training import cut, learn
from hisparse_sim.traces.capture.oracle import AttentionOracle
from hisparse_sim.traces.capture.prompts import read_prompts
from hisparse_sim.traces.capture.taps import Tap, default_tap, default_top_k
from hisparse_sim.traces.capture.texts import prepare, python_reference
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.reader import Trace, open_trace

TRAIN = "train"


def capture_hf(
    output: str | Path,
    *,
    model: str,
    text: str | None = None,
    prompts: str | Path | None = None,
    longbench: str | Path | None = None,
    domains: Sequence[str] | None = None,
    lengths: Sequence[str] | None = None,
    count: int | None = None,
    seed: int = 0,
    prompt_len: int | None = None,
    steps: int = 256,
    draft_tokens: int = 1,
    top_k: int | None = None,
    layers: Sequence[int] | None = None,
    keep_ranks: int | None = None,
    scores: bool = False,
    order: str = "position",
    sample: bool = False,
    temperature: float = 1.0,
    indexer: str | Path | None = None,
    train_steps: int = 200,
    train_len: int | None = None,
    save_indexer: str | Path | None = None,
    dtype: str = "bfloat16",
    device: str | None = None,
    random_weights: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Trace:
    """Run a model on this machine and write the positions that it selects to the trace file
    `output`.

    For DeepSeek-V3.2 and GLM-5 models these are the positions that their indexers select; for other
    models the top-k of the attention (provenance `attention-oracle`), or of an indexer trained to
    imitate it. Needs the extra [hf].

    Parameters
    ----------
    model
        smollm2, a folder, a .gguf file, or an id of the Hugging Face hub.
    text, prompts, longbench
        The prompt itself, a file of prompts, or LongBench v2 ("hub" or a local file), which
        `domains`, `lengths`, `count` and `seed` choose from; none of them: Python's language
        reference.
    prompt_len
        Tokens of the prompt; None: as many as fit.
    steps
        Decode steps. They follow the text, or with `sample` tokens sampled at `temperature`.
    draft_tokens
        Above 1: queries of a step, which verifies a token and drafts looked up in the text so far.
    top_k
        None: the indexer's own, else a sixteenth of the prompt, at most 2048.
    layers
        Only these layers.
    keep_ranks, scores, order
        Also store the ranks below top_k, to this one; the score of every position; rows sorted by
        "position" or best first ("indexer").
    indexer
        Select by an indexer: "train" for one trained now on the rest of the text (`train_steps`
        steps on `train_len` tokens, kept in `save_indexer`), or the file of a saved one.
    dtype, device, random_weights
        bfloat16, float16 or float32; cpu, cuda, ..., auto; weights drawn by `seed`.
    say, progress
        Called with the next action, and with its progress (what, done, all).

    Returns the trace. Raises TraceError for what cannot be captured, if possible before the weights
    are loaded; ValueError for arguments that exclude each other.
    """
    if text is not None and (prompts or longbench):
        raise ValueError("give the prompt by one of `text`, `prompts` and `longbench`")
    if save_indexer is not None and indexer != TRAIN:
        raise ValueError(f"`save_indexer` belongs to `indexer` {TRAIN}")
    if not 0 <= seed < 2**63:
        raise ValueError("`seed` is a whole number from 0 to 2^63 - 1")
    if indexer not in (None, TRAIN) and not Path(indexer or "").exists():
        raise TraceError(f"{indexer} does not exist: give `{TRAIN}`, or a file that it saved")
    if text is not None:
        texts, dataset = [("text", text)], "a given text"
    elif prompts or longbench:
        texts, dataset = read_prompts(prompts, longbench, domains, lengths, count, seed)
    else:
        found, dataset = python_reference()
        texts = [("python-reference", found)]
    # Read when torch is loaded. On a machine that has other work, threads that spin while they wait
    # starve each other: twice to five times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    say(f"loading {model}: its configuration and tokenizer")
    known = models.outline(model, device=device)
    prepared, rests = prepare(
        texts, known, steps=steps * draft_tokens, prompt_len=prompt_len, sampled=sample
    )
    shortest = min(prompt.prompt_len for prompt in prepared)
    settings = huggingface.Settings(
        steps=steps,
        top_k=top_k or default_top_k(known, shortest),
        keep_ranks=keep_ranks,
        scores=scores,
        layers=frozenset(layers) if layers else None,
        order=order,
        sampling=Sampling(temperature, seed) if sample else None,
        draft_tokens=draft_tokens,
    )
    length = train_len or prepared[0].prompt_len + steps
    # Checks that need no weights, which take long to load.
    tap: Tap = default_tap(known) if indexer is None else AttentionOracle()
    huggingface.check(known, tap, prepared, settings)
    if indexer == TRAIN:
        cut(known, rests, length)
    elif indexer is not None:
        load(indexer, known)
    say(f"loading {model}: its weights")
    loaded = models.load(
        model, dtype=dtype, device=device, random_seed=seed if random_weights else None, known=known
    )
    notes = {}
    if indexer == TRAIN:
        trained = learn(
            loaded,
            rests,
            length=length,
            steps=train_steps,
            top_k=settings.top_k,
            seed=seed,
            progress=progress,
        )
        quality = trained.about["quality"]
        say(
            f"on unseen text: KL {quality['kl']:.3f}, its top {settings.top_k} keep "
            f"{quality['mass']:.3f} of the attention, the best {quality['oracle_mass']:.3f}; "
            f"{quality['overlap']:.3f} of them in common"
        )
        if save_indexer is not None:
            save(save_indexer, trained)
            say(f"wrote {save_indexer}")
        tap, notes = TrainedIndexer(trained), {"indexer": trained.about}
    elif indexer is not None:
        saved = load(indexer, loaded)
        tap, notes = TrainedIndexer(saved), {"indexer": saved.about}
    huggingface.capture(
        output, loaded, tap, prepared, settings, dataset=dataset, notes=notes, progress=progress
    )
    return open_trace(output)
