"""Train lightning indexers on a long-context copy of a small model, and capture what they select.

    python benchmarks/train_indexer.py --text FILE... -o FOLDER     # one GPU

The bundled sample came about like this; here it is in our own code, from the model to the figures:

1. stretch the model: a larger rotary base, then all weights are trained on texts of the new length;
2. train an indexer per layer on the frozen model (the dense warm-up), on the same texts;
3. evaluate it on texts held out: KL, attention mass at top_k, overlap with the best top_k;
4. capture one held-out text twice, by the indexer and by the attention itself;
5. replay both and write everything to `FOLDER/result.json`.

With `--keep-ranks 4096` the capture is that of docs/policy-study.md instead: all held-out texts, by
the indexer, best first, with scores and the positions ranked behind top_k.

Texts are plain files, or JSONL, JSON, Parquet or Arrow of LongBench v2 (its contexts are taken);
every text counts as one document, and the last ones are held out as documents.
"""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from machine import describe_machine, describe_versions

from hisparse_sim.traces.capture import models
from hisparse_sim.traces.capture.huggingface import Prompt, Settings, capture
from hisparse_sim.traces.capture.indexer import Indexers, Shape, TrainedIndexer, save
from hisparse_sim.traces.capture.indexer_training import average, evaluate, pieces, train
from hisparse_sim.traces.capture.longbench import load_longbench
from hisparse_sim.traces.capture.oracle import AttentionOracle
from hisparse_sim.traces.capture.taps import Tap
from hisparse_sim.traces.errors import TraceError

Tokens = Sequence[int]


@dataclass(frozen=True)
class Texts:
    """Token sequences of one length; documents lie on one side only."""

    training: list[Tokens]
    held_out: list[Tokens]


def read(path: Path) -> list[str]:
    """Return the documents of a file."""
    if path.suffix in (".json", ".jsonl", ".parquet", ".arrow"):
        return list({item.context: None for item in load_longbench(path)})
    return [path.read_text(encoding="utf-8")]


def cut(documents: Sequence[Tokens], length: int, held_out: int, seed: int) -> Texts:
    """Cut documents into sequences; the last documents that fill one each are held out.

    Training sequences come in random order, so that few steps see many documents.
    """
    long = [document for document in documents if len(document) >= length]
    if len(long) <= held_out:
        raise TraceError(
            f"{len(long)} texts have {length} tokens, and {held_out} are held out: give more texts"
        )
    training = pieces(long[:-held_out], length)
    random.Random(seed).shuffle(training)
    return Texts(training, [document[:length] for document in long[-held_out:]])


def stretch(
    loaded: models.Loaded, sequences: Sequence[Tokens], base: float, steps: int, rate: float
) -> list[float]:
    """Raise the rotary base and train all weights on; return the loss of every step, in nats.

    AdamW on float32 copies of the weights; passes run in bfloat16 on a GPU.
    """
    import torch

    model, config = loaded.model, loaded.config
    config.rope_parameters = {**config.rope_parameters, "rope_theta": base}
    config.max_position_embeddings = max(config.max_position_embeddings, len(sequences[0]))
    decoder = model.get_decoder()
    decoder.rotary_emb = type(decoder.rotary_emb)(config).to(model.device)
    model.float().train()
    # Renamed in transformers 5.24 or a little before.
    checkpoint = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    getattr(model, f"{checkpoint}_checkpointing_enable")()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1, betas=(0.9, 0.95))
    losses = []
    for step in range(steps):
        warm = min(1.0, (step + 1) / max(1, steps // 20))
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * (1 - step / steps)
        ids = torch.tensor([sequences[step % len(sequences)]], device=model.device)
        with torch.autocast(model.device.type, torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        tell("stretching", step + 1, steps, f"loss {losses[-1]:.3f}")
    getattr(model, f"{checkpoint}_checkpointing_disable")()
    model.to(torch.bfloat16).eval()
    return losses


def loss_by_quarter(loaded: models.Loaded, sequences: Sequence[Tokens]) -> list[float]:
    """Return nats per token in each quarter of the context: far ones tell whether it is used."""
    import torch

    found = []
    for sequence in sequences:
        ids = torch.tensor([sequence], device=loaded.model.device)
        with torch.no_grad():
            hidden = loaded.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
            quarters = zip(hidden[0, :-1].chunk(4), ids[0, 1:].chunk(4), strict=True)
            head = loaded.model.get_output_embeddings()
            found.append([
                torch.nn.functional.cross_entropy(head(part).float(), target).item()
                for part, target in quarters
            ])  # fmt: skip
    return [sum(part) / len(part) for part in zip(*found, strict=True)]


def replayed(path: Path, top_k: int) -> dict[str, Any]:
    """Return overlap and miss rates (%) of a trace, buffers of 1, 2, 3 and 4 times top_k."""
    from hisparse_sim.simulator.replay import sweep
    from hisparse_sim.traces import open_trace
    from hisparse_sim.traces.locality.measure import adjacent_overlap

    trace = open_trace(path)
    overlaps = [adjacent_overlap(trace.read(part)) for part in trace.parts]
    policies = ("lru", "fifo", "random", "belady")
    rows = sweep([trace], policies, [top_k * times for times in (1, 2, 3, 4)]).rows
    columns = (rows[name].tolist() for name in ("policy", "buffer", "miss_rate"))
    misses = {
        f"{policy} {buffer}": round(100 * rate, 2)
        for policy, buffer, rate in zip(*columns, strict=True)
    }
    return {
        "adjacent_overlap": {
            "mean": sum(overlaps) / len(overlaps), "min": min(overlaps), "max": max(overlaps),
        },
        "miss_percent": misses,
    }  # fmt: skip


def describe_gpu() -> dict[str, Any]:
    """Return the GPU's name and the most memory that was in use; nothing without one."""
    import torch

    if not torch.cuda.is_available():
        return {}
    peak_gib = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return {"gpu": torch.cuda.get_device_name(), "peak_gpu_memory_gib": peak_gib}


def tell(what: str, done: int, total: int, more: str = "") -> None:
    """Say how far it is, on stderr: every step of short work, every tenth of long."""
    if total <= 20 or done % (total // 10) == 0 or done == total:
        click.echo(f"{time.strftime('%H:%M:%S')} {what} {done}/{total} {more}", err=True)


@click.command()
@click.option("--model", default="smollm2", show_default=True)
@click.option("--text", "paths", multiple=True, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="A folder.")
@click.option("--prompt-len", default=32_768, show_default=True)
@click.option("--steps", default=1024, show_default=True, help="Decode steps.")
@click.option("--top-k", default=2048, show_default=True)
@click.option("--rotary-base", default=1e6, show_default=True)
@click.option("--stretch-steps", default=410, show_default=True, help="0 = leave the model.")
@click.option("--stretch-rate", default=2e-4, show_default=True)
@click.option("--train-steps", default=724, show_default=True, help="Of the indexers.")
@click.option("--train-rows", default=256, show_default=True, help="Of each sequence.")
@click.option("--train-rate", default=1e-2, show_default=True)
@click.option("--heads", default=16, show_default=True)
@click.option("--head-dim", default=64, show_default=True)
@click.option("--held-out", default=4, show_default=True, help="Documents.")
@click.option("--keep-ranks", type=int, help="Last rank kept; captures all held-out texts.")
@click.option("--layers", help="To capture, separated by commas; all of them if not given.")
@click.option("--seed", default=0, show_default=True)
def main(paths: Sequence[Path], output: Path, **given: Any) -> None:
    """Stretch, train, evaluate, capture, replay."""
    import torch

    torch.manual_seed(given["seed"])
    torch.set_float32_matmul_precision("high")
    output.mkdir(parents=True, exist_ok=True)
    loaded = models.load(given["model"])
    length = given["prompt_len"] + given["steps"]
    documents = loaded.tokenizer([text for path in paths for text in read(path)])["input_ids"]
    texts = cut(documents, length, given["held_out"], given["seed"])
    tell("sequences", len(texts.training), len(texts.training), f"of {length} tokens")
    seconds = {}
    started = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal started
        seconds[name] = round(time.perf_counter() - started, 1)
        started = time.perf_counter()

    losses = []
    held_out_loss = {"given": loss_by_quarter(loaded, texts.held_out)}
    if given["stretch_steps"]:
        losses = stretch(
            loaded, texts.training, given["rotary_base"], given["stretch_steps"],
            given["stretch_rate"],
        )  # fmt: skip
        lap("stretch")
        held_out_loss["stretched"] = loss_by_quarter(loaded, texts.held_out)
    indexers = train(
        loaded,
        texts.training,
        Shape(given["heads"], given["head_dim"]),
        steps=given["train_steps"],
        rows=given["train_rows"],
        learning_rate=given["train_rate"],
        seed=given["seed"],
        progress=tell,
    )
    lap("train")
    quality = evaluate(loaded, indexers, texts.held_out, given["top_k"])
    lap("evaluate")
    done = Indexers(
        indexers.shape,
        indexers.layers,
        {**indexers.about, "quality": asdict(average(list(quality.values())))},
    )
    save(output / "indexer.safetensors", done)
    kept, layers = given["keep_ranks"], given["layers"]
    settings = Settings(
        steps=given["steps"],
        top_k=given["top_k"],
        keep_ranks=kept,
        scores=kept is not None,
        layers=frozenset(map(int, layers.split(","))) if layers else None,
        order="position" if kept is None else "indexer",
    )
    prompts = [
        Prompt(f"held-out-{i}" if i else "held-out", tuple(ids), given["prompt_len"])
        for i, ids in enumerate(texts.held_out)
    ]
    if kept is None:
        del prompts[1:]
    traces = {}
    taps: dict[str, Tap] = {"indexer": TrainedIndexer(done)}
    if kept is None:
        taps["oracle"] = AttentionOracle()
    for name, tap in taps.items():
        path = output / f"{name}.parquet"
        capture(
            path, loaded, tap, prompts, settings, progress=tell,
            dataset="a held-out text of the benchmark", notes={"trained": done.about},
        )  # fmt: skip
        lap(f"capture {name}")
        traces[name] = replayed(path, given["top_k"])
        lap(f"replay {name}")
    result = {
        "parameters": {**given, "model": loaded.title},
        "texts": [path.name for path in paths],
        "sequences": {"training": len(texts.training), "held_out": len(texts.held_out)},
        "loss": {"first": losses[0], "last": losses[-1]} if losses else None,
        "held_out_loss_by_quarter": held_out_loss,
        "quality": done.about["quality"],
        "quality_by_layer": {index: asdict(each) for index, each in quality.items()},
        "traces": traces,
        "seconds": seconds,
        "machine": describe_machine(),
        **describe_gpu(),
        "versions": describe_versions("torch", "transformers", "hisparse-sim"),
    }
    (output / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    click.echo(json.dumps({"quality": result["quality"], "traces": traces}, indent=2))


if __name__ == "__main__":
    main()
