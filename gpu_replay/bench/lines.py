"""How measurements look on a terminal, a line each."""

from typing import Any


def together_line(row: dict[str, Any]) -> str:
    """One measurement on several GPUs, or the memory of the host pools."""
    if row["what"] == "pools":
        size, used = (row[name] / 1e9 for name in ("pool_bytes", "used_bytes"))
        return (
            f"{row['host_pool']} host pools: {row['pools']} of {size:.2f} GB take {used:.2f} GB of "
            f"host memory, pinned in {row['pin_s']:.1f} s"
        )
    place = ""
    if "batch" in row:
        place = f"entry {row['entry_bytes']} buffer {row['buffer']} batch {row['batch']} "
        place += f"misses {row['misses']}"
    each = " ".join(f"{rate:.1f}" for rate in row["gb_s"])
    return (
        f"{row['what']:6} {place:44} {row['gpus']} at once: {row['sum_gb_s']:7.1f} GB/s ({each}), "
        f"{max(row['us']):.1f} us, overlap {row['overlap']:.2f}"
    )


_VLLM = ("vllm", "vllm_plan")
_NAMES = ("sglang", "native", "sglang_plan", "native_plan", *_VLLM, "gather")


def heading(row: dict[str, Any]) -> str:
    """The columns of points like this one."""
    return "bytes buffer batch misses " + "".join(f"{n:>12}" for n in _names(row)) + "   ratio"


def point_line(row: dict[str, Any]) -> str:
    """One point, us each; `ratio` is the engine's time over ours."""
    names = _names(row)
    times = "".join(f"{row[f'{n}_us']:12.1f}" if f"{n}_us" in row else f"{'':12}" for n in names)
    place = f"{row['entry_bytes']:<5} {row['buffer']:6} {row['batch']:5} {row['misses']:6} "
    both = "sglang_us" in row and "native_us" in row
    return place + times + (f"{row['sglang_us'] / row['native_us']:8.2f}" if both else "")


def _names(row: dict[str, Any]) -> list[str]:
    return [name for name in _NAMES if name not in _VLLM or f"{name}_us" in row]
