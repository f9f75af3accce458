"""TOML and JSON of the user's own, as hostile as can be: one sentence each, soon, in little memory.

Every loader gets every document: broken ones of its language, sound ones with one value that cannot
be, and paths that are no file.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

from hisparse_sim.cli import cli
from hisparse_sim.simulator.serving import profiles
from hisparse_sim.simulator.serving.steptimes import load_step_times
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.documents import MOST_BYTES, parse_json, parse_toml, read_json

SECONDS = 5  # the slowest take one of a quiet core
MEMORY_KIB = 120 << 10  # more than a small document that is refused

# In TOML's words; none is what a positive figure can be.
WRONG_FIGURES = (
    "inf", "-inf", "nan", "1e400", "-1e400", "-1", "-0.0", "0", "1e-320", "true", '"4"', '""', "[]",
    "[4]", "[[4]]", "{}", "{a = 4}", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z",
    "9223372036854775808", "1e19", "9" * 5000, "0x" + "f" * 5000, "[" * 10_000, "{a = " * 10_000,
)  # fmt: skip
TOML: dict[str, bytes] = {
    "nothing": b"",
    "no TOML": b"{",
    "binary": bytes(range(256)),
    "UTF-16": "a = 1".encode("utf-16"),
    "cut UTF-8": b'a = "\xe2\x82',
    "NUL": b"a = 1\0",
    "bare CR": b"a = 1\rb = 2",
    "open text": b'a = "' + b"x" * 50_000,
    "open escapes": b'a = "' + b'\\"' * 50_000,
    "open long text": b'a = """' + b'""x' * 30_000,
    "deep arrays": b"a = " + b"[" * 10_000 + b"]" * 10_000,
    "deep tables": b"a = " + b"{a = " * 10_000 + b"1" + b"}" * 10_000,
    "90 levels": b"a = " + b"[" * 90 + b"]" * 90,
    "dotted key": b"a" + b".a" * 50_000 + b" = 1",
    "dotted key, spaced": b"a" + b" . a" * 30_000 + b" = 1",
    "dotted key, quoted": b'"a"' + b'."a"' * 30_000 + b" = 1",
    "dotted key, behind a text": b'b = """x""""#\\\n' + b"a" + b".a" * 50_000 + b" = 1",
    "dotted header": b"[a" + b".a" * 50_000 + b"]",
    "dotted key inside": b"a = {a" + b".a" * 50_000 + b" = 1}",
    "many dotted keys": b"".join(b"a%d%s = 1\n" % (i, b".a" * 99) for i in range(600)),
    "many headers": b"".join(b"[a%d%s]\n" % (i, b".a" * 50) for i in range(1000)),
    "growing headers": b"".join(b"[a%s]\n" % (b".a" * i) for i in range(400)),
    "long key": b"a" * 100_000 + b" = 1",
    "many tables": b"[[links]]\n" * 12_000,
    "large": b"#" * 3_000_000,
    "large array": b"a = [" + b"{}," * 1_000_000 + b"]",
    "twice": b"[models.own]\n[models.own]\n",
    "overwritten": b"models = 1\n[models.own]\n",
    "no date": b"a = 0000-99-99",
    "digits": b"a = " + b"9" * 100_000,
    "unknown section": b"[model.own]\n",
    "section is a number": b"models = 1\nhardware = 1\nlinks = 1\n",
    "section is a list": b"models = []\nhardware = []\nlinks = []\n",
    "section holds numbers": b"models.own = 1\nhardware.own = 1\nlinks.own = 1\n",
    "sections of tables": b"[[models]]\n[[hardware]]\n[[links]]\n",
    "unprintable name": b'[models."a\\nb"]\n[hardware."a\\u001bb"]\n[links."a\\u0000b"]\n',
}
# Of one section; OWN stands for its name.
TABLES: dict[str, str] = {
    "no figures": "[OWN]\n",
    "figures is a table": "[OWN.figures]\n",
    "figures is a number": "[OWN]\nfigures = 5\n",
    "figures is a list of numbers": "[OWN]\nfigures = [5]\n",
    "aliases is a number": "[OWN]\naliases = 5\n",
    "aliases is a text": '[OWN]\naliases = "own"\n',
    "aliases are numbers": "[OWN]\naliases = [5]\n",
    "figure outside": "[OWN]\nlayers = 5\n",
    "label is a list": "[OWN]\ndescription = []\n",
    "label of lines": '[OWN]\ndescription = "a\\nb"\n',
    "no kind": '[[OWN.figures]]\nsource = "x"\n',
    "kind is a list": '[[OWN.figures]]\nkind = ["measured"]\nsource = "x"\n',
    "kind is a table": '[[OWN.figures]]\nkind = {a = 1}\nsource = "x"\n',
    "no source": '[[OWN.figures]]\nkind = "measured"\n',
    "source is a number": '[[OWN.figures]]\nkind = "measured"\nsource = 5\n',
    "figure twice": '[[OWN.figures]]\nkind = "measured"\nsource = "x"\na = 1\n' * 2,
}
JSON: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "binary": bytes(range(256)),
    "UTF-16": "[]".encode("utf-16"),
    "cut UTF-8": b'"\xe2\x82',
    "list": b"[]",
    "null": b"null",
    "true": b"true",
    "number": b"1",
    "text": b'"x"',
    "NaN": b"NaN",
    "Infinity": b'{"a": Infinity}',
    "1e400": b'{"index_topk": 1e400}',
    "digits": b'{"a": ' + b"9" * 100_000 + b"}",
    "65 bits": b'{"a": 99999999999999999999}',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep and whole": b"[" * 10_000 + b"]" * 10_000,
    "90 levels": b"[" * 90 + b"]" * 90,
    "large": b" " * 20_000_000,
    "many lists": b"[" + b"[]," * 600_000 + b"[]]",
    "many objects": b"[" + b"{}," * 600_000 + b"{}]",
    "many keys": b"{" + b",".join(b'"%d":[]' % i for i in range(120_000)) + b"}",
    "large text": b'"' + b"x" * 2_000_000 + b'"',
    "open text": b'"' + b"\\" * 1_000_000,
    "surrogate": b'{"\\ud800": "\\ud800"}',
    "control": b'{"\\u001b[2J\\n": 1}',
    "two documents": b"{} {}",
}
# Values in place of one that is sound.
WRONG_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, -0.0, 1.5, 2**31, 2**63, 10**30, "4", "", [], [4], [[]], {}, {"a": 1},
)  # fmt: skip


class Loader(NamedTuple):
    """A command that reads one document, and what is put into it."""

    arguments: list[str]  # PATH is the file's, TEXT its text
    documents: dict[str, bytes]


def _own(section: str, change: str = "", value: str = "") -> str:
    """A sound profile of that section, called own, with one figure changed."""
    source = {"models": "glm-5.1", "hardware": "h200", "links": "h200-pcie5"}[section]
    figures = dict(profiles.read_profiles(section)[source].figures)
    lines = [f"{key} = {json.dumps(each)}" for key, each in figures.items() if key != change]
    head = f'[[{section}.own.figures]]\nkind = "modelled"\nsource = "x"\n'
    return head + "\n".join([*lines, f"{change} = {value}" if change else ""])


def _profiles(section: str, arguments: str, *figures: str) -> Loader:
    documents = dict(TOML)
    documents |= {n: t.replace("OWN", f"{section}.own").encode() for n, t in TABLES.items()}
    for figure in figures:
        for value in WRONG_FIGURES:
            documents[f"{figure} = {value[:20]}"] = _own(section, figure, value).encode()
    return Loader([*arguments.split(), "--profiles", "PATH"], documents)


def _json(arguments: str, sound: dict[str, Any], *keys: str, allowed: Any = ()) -> Loader:
    documents = dict(JSON)
    for key in keys:
        for value in WRONG_VALUES:
            if not any(value is each for each in allowed):
                name = f"{key} = {json.dumps(value)[:20]}"
                documents[name] = json.dumps({**sound, key: value}).encode()
        for value in ("NaN", "-Infinity", "1e400", "9" * 5000):
            text = json.dumps({**sound, key: "HERE"}).replace('"HERE"', value)
            documents[f"{key} = {value[:20]}"] = text.encode()
    return Loader(arguments.split(), documents)


STEPS = json.loads(json.dumps(asdict(load_step_times("glm-5.1", "h200"))))
CONFIG = {"num_hidden_layers": 2, "index_topk": 4}
MEASURED = {
    "machine": dict.fromkeys(("gpu", "pcie_generation", "pcie_width", "driver", "sglang"), "x")
    | {"host_to_device_gb_s": 50},
    "rows": [{"batch": 1, "misses": 1, "buffer": 1, "item_bytes": 1, "sglang_us": 1}],
}
LOADERS = {
    "models": _profiles("models", "plan --quiet --model own", "layers", "top_k", "weight_bytes"),
    "hardware": _profiles("hardware", "plan --quiet --hardware own", "gpus", "gpu_bytes"),
    "links": _profiles("links", "sweep --quiet --link own", "link_gb_s", "bulk_gb_s"),
    "step times": _json(
        "plan --quiet --step-times PATH", STEPS, "model", "batch", "attention_us", "rest_us",
        allowed=("4", ""),
    ),
    "hisparse-config": _json(
        "plan --quiet --config TEXT", {"top_k": 2048}, "top_k", "device_buffer_size",
        "swap_in_block_size",
    ),
    "config.json": _json(
        "trace convert rows.npy --provenance synthetic --prompt-len 9 -o out.parquet --config PATH",
        CONFIG, "num_hidden_layers", "index_topk", "index_topk_freq", allowed=(None,),
    ),
    "bench": _json("gpu calibrate -o out.toml --from PATH", MEASURED, "machine", "rows"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Numba and pandas take a second to import, once."""
    for command in ("plan", "sweep", "serve"):
        CliRunner().invoke(cli, [command, "--help"])
    CliRunner().invoke(cli, ["plan", "--config", "{}", "--quiet"])


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Run a command in a folder of its own; it must fail with one sentence, soon."""
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.arange(8, dtype=np.int32).reshape(1, 2, 4))

    def late(*_: Any) -> None:
        raise TimeoutError

    before = [signal.signal(each, late) for each in (signal.SIGPROF, signal.SIGALRM)]

    def stop() -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)

    def attempt(arguments: list[str], path: str, text: str = "") -> None:
        given = [each.replace("PATH", path).replace("TEXT", text) for each in arguments]
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of this process, however busy the machine
        signal.alarm(30)  # for one that waits
        result = CliRunner().invoke(cli, given)
        stop()
        assert isinstance(result.exception, SystemExit), repr(result.exception)
        assert result.exit_code in (1, 2)
        lines = result.output.rstrip("\n").split("\n")
        assert [line for line in lines if line.startswith("Error: ")] == lines[-1:] or (
            "TEXT" in arguments and "error" in result.output  # findings of --config, a table
        )
        assert lines[-1].isprintable()
        assert len(lines[-1]) < 1500
        assert not list(tmp_path.glob("out.*"))

    yield attempt
    stop()
    for each, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
        signal.signal(each, handler)


# Unknown keys are what the engine ignores: notes, not errors.
NOTED = [("hisparse-config", name) for name in ("many keys", "surrogate", "control")]
CASES = [
    (loader, name)
    for loader in LOADERS
    for name in LOADERS[loader].documents
    if (loader, name) not in NOTED
]


@pytest.mark.parametrize(("loader", "name"), CASES)
def test_documents(inside: Callable[..., None], loader: str, name: str) -> None:
    arguments, documents = LOADERS[loader]
    content = documents[name]
    Path("document").write_bytes(content)
    inside(arguments, "document", content.decode(errors="replace"))


@pytest.mark.parametrize(("loader", "name"), NOTED)
def test_unknown_keys_are_noted_in_few_lines(loader: str, name: str) -> None:
    text = LOADERS[loader].documents[name].decode()
    result = CliRunner().invoke(cli, ["plan", "--quiet", "--config", text])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert any("unknown key" in line for line in lines)
    assert len(lines) < 60
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("loader", [name for name in LOADERS if name != "hisparse-config"])
@pytest.mark.parametrize(
    "kind", ["absent", "folder", "pipe", "device", "link to itself", "long name", "below a file"]
)
def test_paths_that_are_no_file(inside: Callable[..., None], loader: str, kind: str) -> None:
    path = {"device": "/dev/zero", "long name": "x" * 300, "below a file": "rows.npy/x"}.get(
        kind, "document"
    )
    if kind == "folder":
        Path(path).mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to itself":
        Path(path).symlink_to(path)
    inside(LOADERS[loader].arguments, path)


# Not by ru_maxrss: a child inherits that of this process.
MEASURED_RUN = """
import atexit
from hisparse_sim.cli import cli
lines = lambda: open("/proc/self/status").readlines()
atexit.register(lambda: print(next(line for line in lines() if line.startswith("VmHWM"))))
cli()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the memory")
@pytest.mark.parametrize(
    ("loader", "name"),
    [
        ("models", "dotted key"),
        ("hardware", "dotted key, behind a text"),
        ("models", "many headers"),
        ("models", "large array"),
        ("step times", "many objects"),
        ("step times", "large"),
        ("config.json", "many lists"),
        ("models", "/dev/zero"),
    ],
)
def test_memory(tmp_path: Path, loader: str, name: str) -> None:
    _, documents = LOADERS[loader]
    if name in documents:
        (tmp_path / "document").write_bytes(documents[name])
    else:
        (tmp_path / "document").symlink_to(name)
    assert peak_kib(loader, tmp_path) - peak_of_a_small_document_kib(loader) < MEMORY_KIB


@cache
def peak_of_a_small_document_kib(loader: str) -> int:
    with TemporaryDirectory() as folder:
        (Path(folder) / "document").write_bytes(b"=")
        return peak_kib(loader, Path(folder))


def peak_kib(loader: str, folder: Path) -> int:
    """Return the memory that the refusal of the folder's document takes."""
    given = [each.replace("PATH", "document") for each in LOADERS[loader].arguments]
    np.save(folder / "rows.npy", np.zeros((1, 2, 4), np.int32))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED_RUN, *given], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode in (1, 2)
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr
    return int(done.stdout.split()[-2])


def test_bounds() -> None:
    """What is within them comes back as it is; the sentence names the place."""
    assert parse_toml('a.b = ["x.y.z", 1.5, -1, 9223372036854775807]', "p") == {
        "a": {"b": ["x.y.z", 1.5, -1, 2**63 - 1]}
    }
    assert parse_json('{"a": [0.0, -1e308, null, true]}', "p") == {"a": [0.0, -1e308, None, True]}
    for text, reason in (
        ('{"a": [1, {"b": 1e400}]}', "p: a[1].b holds inf, which is not a finite number"),
        ('{"a b": -Infinity}', "p: ['a b'] holds -inf, which is not a finite number"),
        ("NaN", "p holds nan, which is not a finite number"),
        ('{"a": 9223372036854775809}', "p: a holds a number of more than 64 bits"),
        (
            "[" * 64 + "]" * 64 + "]",
            "p is not valid JSON: Extra data: line 1 column 129 (char 128)",
        ),
        ("[" * 65 + "]" * 65, "p nests deeper than 64 levels"),
    ):
        with pytest.raises(TraceError) as caught:
            parse_json(text, "p")
        assert str(caught.value) == reason
    with pytest.raises(TraceError, match=r"^p, line 2 has more than 100 dots$"):
        parse_toml("a = 1\n" + "a." * 101 + "a = 1", "p")
    parse_toml("a." * 60 + "a = 1", "p")


def test_a_document_of_the_greatest_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG).ljust(MOST_BYTES))
    assert read_json(path) == CONFIG
    path.write_text(json.dumps(CONFIG).ljust(MOST_BYTES + 1))
    with pytest.raises(TraceError, match="has more than 1024 KiB"):
        read_json(path)
