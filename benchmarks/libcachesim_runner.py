"""Run libCacheSim's own C loop on the accesses of a replay: unit sizes, one cache per stream.

A stream is written once as a binary oracleGeneral file, which libCacheSim maps and walks without
returning to Python; that is the fastest way it can be driven from Python. The file also carries
the next access that its Belady needs. https://github.com/1a1a11a/libCacheSim, PyPI `libcachesim`.
"""

from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import libcachesim
import numpy as np
from numpy.typing import ArrayLike, NDArray

DEFAULT_HASHPOWER = 24
NEVER = np.iinfo(np.int64).max

CACHES = {
    "lru": libcachesim.LRU,
    "fifo": libcachesim.FIFO,
    "clock": libcachesim.Clock,
    "clock-pro": libcachesim.ClockPro,
    "arc": libcachesim.ARC,
    "lecar": libcachesim.LeCaR,
    "lfu": libcachesim.LFU,
    "belady": libcachesim.Belady,
    "2q": libcachesim.TwoQ,
    "hyperbolic": libcachesim.Hyperbolic,
    "lfuda": libcachesim.LFUDA,
    "lhd": libcachesim.LHD,
    "lirs": libcachesim.LIRS,
    "lru-k": libcachesim.LRUK,
    "s3-fifo": libcachesim.S3FIFO,
    "sieve": libcachesim.Sieve,
    "slru": libcachesim.SLRU,
    "w-tinylfu": libcachesim.WTinyLFU,
}

_RECORD = np.dtype(
    [("time", "<u4"), ("key", "<u8"), ("size", "<u4"), ("next_access", "<i8")]
)  # packed: 24 bytes


@dataclass(frozen=True)
class Run:
    """One stream through one cache."""

    misses: int
    seconds: float  # processor time of libCacheSim's loop; cache and reader exist before


def write_oracle_general(path: Path, keys: ArrayLike) -> None:
    """Write accesses, one key each, in order, as an oracleGeneral file."""
    keys = np.asarray(keys, np.int64)
    records = np.zeros(len(keys), _RECORD)
    records["key"] = keys
    records["size"] = 1
    records["next_access"] = next_accesses(keys)
    records.tofile(path)


def next_accesses(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for every access the index of the next one to the same key, or NEVER."""
    by_key = np.argsort(keys, kind="stable")
    again = keys[by_key][1:] == keys[by_key][:-1]
    found = np.full(len(keys), NEVER)
    found[by_key[:-1][again]] = by_key[1:][again]
    return found


def run(
    policy: str, path: Path, slots: int, hashpower: int = DEFAULT_HASHPOWER, **parameters: Any
) -> Run:
    """Replay a file from an empty cache of `slots` objects, with parameters as libCacheSim's."""
    reader = libcachesim.TraceReader(
        str(path),
        libcachesim.TraceType.ORACLE_GENERAL_TRACE,
        libcachesim.ReaderInitParam(ignore_obj_size=True),
    )
    cache = CACHES[policy](cache_size=slots, hashpower=hashpower, **parameters)
    begin = process_time()
    miss_ratio, _ = cache.process_trace(reader)
    seconds = process_time() - begin
    return Run(round(miss_ratio * reader.get_num_of_req()), seconds)
