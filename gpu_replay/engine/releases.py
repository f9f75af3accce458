"""What the plugin relies on in SGLang, release by release, read from the wheels.

The mechanism is the engine's own: packages that offer an entry point of the group
`sglang.srt.plugins` are loaded in every process (`srt/plugins`), and `HookRegistry` wraps functions
and methods. Wrapped are those below. Their arguments are read from the installed source, without
importing it, and a release that is not known, or whose source differs from what is known of it, is
refused. `benchmarks/in_engine/known_releases.py` compares this table with unpacked wheels.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

COORDINATOR = "sglang.srt.managers.hisparse_coordinator"
CLASS = "HiSparseCoordinator"
PLUGINS = "srt/plugins/hook_registry.py"

_KERNEL = tuple(
    "top_k_tokens device_buffer_tokens host_cache_locs device_buffer_locs host_cache device_buffer "
    "top_k_device_locs req_pool_indices seq_lens lru_slots item_size_bytes num_top_k "
    "hot_buffer_size page_size block_size num_real_reqs".split()
)
_PLAN = ("miss_src", "miss_dst", "miss_count", "skip_io")
_OLD_KERNEL, _KERNEL_FILE = "jit_kernel/hisparse.py", "kernels/ops/kvcache/hisparse.py"

# Wrapped methods of the coordinator and their arguments behind self: the same in all releases.
METHODS: Mapping[str, tuple[str, ...]] = {
    "swap_in_selected_pages": (
        "req_pool_indices", "compressed_seq_lens", "top_k_result", "layer_id",
    ),
    "alloc_device_buffer": ("req",),
    "admit_request_direct": ("req",),
    "request_finished": ("req",),
}  # fmt: skip

# Attributes of the coordinator that are read.
ATTRIBUTES = (
    "device", "device_buffer_size", "is_dsv4_hisparse", "item_size_bytes", "mem_pool_device",
    "num_real_reqs", "req_device_buffer_tokens", "top_k", "tp_group",
)  # fmt: skip


@dataclass(frozen=True)
class Release:
    """What a release has beside METHODS and ATTRIBUTES.

    Attributes
    ----------
    kernel_file
        Where the swap-in's Python function is, below the package.
    kernel
        Its arguments.
    row
        Where a request keeps its row in the coordinator's tables.
    plans
        Whether shared layers may copy by a recorded plan (`copy_cache_planned_mla`): where the
        coordinator is made with `shared_index_layers` and says `enable_prefetch`.
    """

    kernel_file: str = _KERNEL_FILE
    kernel: tuple[str, ...] = field(default=(*_KERNEL, *_PLAN))
    row: str = "kv.req_pool_idx"
    plans: bool = True


_FIRST = Release(_OLD_KERNEL, _KERNEL, "req_pool_idx", plans=False)
_SINCE_17 = Release(kernel=_KERNEL, row="req_pool_idx", plans=False)
_SINCE_18 = Release(row="req_pool_idx")
_SINCE_19 = Release()
RELEASES: Mapping[str, Release] = {
    **dict.fromkeys((f"0.5.{patch}" for patch in range(12, 17)), _FIRST),
    "0.5.17": _SINCE_17,
    "0.5.18": _SINCE_18,
    **dict.fromkeys((f"0.5.{patch}" for patch in range(19, 24)), _SINCE_19),
}


class EngineError(RuntimeError):
    """The engine cannot be watched, or what was recorded cannot be used; one clear sentence."""


def known_release(version: str) -> Release:
    """What is known of a release; a local part (`+cu130`) or `.post1` changes nothing.

    Raises EngineError for one that is not known.
    """
    plain = version.split("+")[0].split(".post")[0]
    if plain not in RELEASES:
        names = list(RELEASES)
        raise EngineError(
            f"SGLang {version} is not known here: {names[0]} to {names[-1]} are; run the server "
            "without `hisparse-sim engine run`, or install a known release"
        )
    return RELEASES[plain]


def check_package(package: Path, version: str) -> Release:
    """Compare an installed sglang package with what is known of its release; imports nothing.

    Raises EngineError naming the first difference.
    """
    release = known_release(version)
    if not (package / PLUGINS).is_file():
        raise _differs(version, f"has no {PLUGINS}")
    coordinator = COORDINATOR.removeprefix("sglang.").replace(".", "/") + ".py"
    methods, attributes = _class_of(_parsed(package / coordinator, version), version)
    for name, arguments in METHODS.items():
        _same(f"{CLASS}.{name}", methods.get(name), ("self", *arguments), version)
    for name in (*ATTRIBUTES, *(["enable_prefetch"] if release.plans else [])):
        if name not in attributes:
            raise _differs(version, f"has no {CLASS}.{name}")
    functions = _functions(_parsed(package / release.kernel_file, version))
    name = "load_cache_to_device_buffer_mla"
    _same(name, functions.get(name), release.kernel, version)
    if ("copy_cache_planned_mla" in functions) != release.plans:
        raise _differs(version, "has another copy_cache_planned_mla than it had")
    return release


def _parsed(path: Path, version: str) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        raise _differs(version, f"has no {path.name} that can be read") from None


def _class_of(module: ast.Module, version: str) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Methods of the coordinator with their arguments, and the attributes that it sets."""
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == CLASS:
            attributes = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            }
            return _functions(node), attributes
    raise _differs(version, f"has no {CLASS}")


def _functions(node: ast.Module | ast.ClassDef) -> dict[str, tuple[str, ...]]:
    return {
        each.name: tuple(arg.arg for arg in (*each.args.args, *each.args.kwonlyargs))
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    }


def _same(name: str, found: tuple[str, ...] | None, wanted: tuple[str, ...], version: str) -> None:
    if found is None:
        raise _differs(version, f"has no {name}")
    if found != wanted:
        shown = ", ".join(found)
        raise _differs(version, f"has {name}({shown}) in place of ({', '.join(wanted)})")


def _differs(version: str, what: str) -> EngineError:
    return EngineError(
        f"the installed SGLang {version} {what}: it is not the release that is known here under "
        "that number, so nothing of it is wrapped"
    )
