"""Export: the files say what the trace says, and libCacheSim reads them."""

from pathlib import Path

import make_traces
import numpy as np
import pandas as pd
import pytest

from hisparse_sim.traces import Demand, Trace, TraceError, open_trace
from hisparse_sim.traces.file.export import FORMS, ORACLE_GENERAL, export

ROWS = [[3, 1], [1, 4, 3], [], [1]]


def trace_of(tmp_path: Path, *demands: Demand) -> Trace:
    return open_trace(make_traces.write(tmp_path / "trace.parquet", demands))


def test_oracle_general_by_hand(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        make_traces.demand(ROWS, 9, first_step=7),
        make_traces.demand([[1]], 9, layer=2),
    )
    path = tmp_path / "trace.oracleGeneral"
    assert export(trace, path, "oraclegeneral") == 7
    assert path.stat().st_size == 7 * 24
    found = np.fromfile(path, ORACLE_GENERAL)
    assert found["time"].tolist() == [7, 7, 8, 8, 8, 10, 0]
    assert found["object"].tolist() == [3, 1, 1, 4, 3, 1, (1 << 32) + 1]
    assert found["size"].tolist() == [1] * 7
    assert found["next_access"].tolist() == [4, 2, 5, -1, -1, -1, -1]


def test_csv_by_hand(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, make_traces.demand(ROWS, 9, request='a,"b', first_step=7, layer=3))
    export(trace, tmp_path / "t.csv", "csv", steps=(8, 99))
    found = pd.read_csv(tmp_path / "t.csv")
    assert found.to_dict("list") == {
        "time": [8, 8, 8, 10],
        "object": [1, 4, 3, 1],
        "size": [1] * 4,
        "request": ['a,"b'] * 4,
        "layer": [3] * 4,
        "step": [8, 8, 8, 10],
        "seq_len": [10, 10, 10, 12],
        "position": [1, 4, 3, 1],
    }


def test_round_trip(tmp_path: Path) -> None:
    demands = make_traces.several(shuffled=True, ragged=True)
    trace = trace_of(tmp_path, *demands)
    calls: list[tuple[int, int]] = []
    export(trace, tmp_path / "t.bin", "oraclegeneral", progress=lambda *c: calls.append(c))
    export(trace, tmp_path / "t.csv", "csv")
    positions = np.concatenate([demand.positions for demand in demands])
    found = np.fromfile(tmp_path / "t.bin", ORACLE_GENERAL)
    table = pd.read_csv(tmp_path / "t.csv")
    assert ((found["object"] & (2**32 - 1)) == positions).all()
    assert (table["position"] == positions).all()
    assert (table["object"] == found["object"]).all()
    for at, following in enumerate(found["next_access"].tolist()):
        later = np.flatnonzero(found["object"][at + 1 :] == found["object"][at])
        assert following == (at + 1 + later[0] if len(later) else -1)
    assert calls[-1] == (9, 9)


def test_refusals(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, make_traces.demand(ROWS, 9))
    with pytest.raises(ValueError, match="unknown form 'x'"):
        export(trace, tmp_path / "t", "x")
    with pytest.raises(TraceError, match="no positions are in these steps"):
        export(trace, tmp_path / "t", "csv", steps=(2, 3))
    with pytest.raises(TraceError, match="has no layer 5"):
        export(trace, tmp_path / "t", "csv", layers=[5])
    assert not (tmp_path / "t").exists()


def test_libcachesim_reads_it(tmp_path: Path) -> None:
    """Its LRU and Belady on our file miss as often as textbook ones on the same accesses."""
    lcs = pytest.importorskip("libcachesim")
    demand = make_traces.drift(steps=200, top_k=8, first_seq_len=60, keep=0.6, seed=3)
    path = tmp_path / "trace.oracleGeneral"
    export(trace_of(tmp_path, demand), path, "oraclegeneral")
    accesses = demand.positions.tolist()
    for name, expected in (("LRU", textbook_lru(accesses, 16)), ("Belady", optimum(accesses, 16))):
        reader = lcs.TraceReader(str(path), lcs.TraceType.ORACLE_GENERAL_TRACE)
        ratio, _ = getattr(lcs, name)(cache_size=16).process_trace(reader)
        assert round(ratio * len(accesses)) == expected, name


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_is_one_plain_sentence(tmp_path: Path, form: str) -> None:
    trace = trace_of(tmp_path, make_traces.demand(ROWS, 9))
    with pytest.raises(TraceError, match=r"^/dev/full cannot be written: No space left on device$"):
        export(trace, "/dev/full", form)


def textbook_lru(accesses: list[int], size: int) -> int:
    held: dict[int, None] = {}
    misses = 0
    for each in accesses:
        if each in held:
            del held[each]
        else:
            misses += 1
            if len(held) == size:
                del held[next(iter(held))]
        held[each] = None
    return misses


def optimum(accesses: list[int], size: int) -> int:
    """Evict what is needed farthest in the future, always making room for the access."""
    held: dict[int, float] = {}
    misses = 0
    for at, each in enumerate(accesses):
        if each not in held:
            misses += 1
            if len(held) == size:
                del held[max(held, key=held.__getitem__)]
        rest = accesses[at + 1 :]
        held[each] = at + 1 + rest.index(each) if each in rest else float("inf")
    return misses
