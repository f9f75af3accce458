"""What a recording keeps and loses: a watch on a load in this process, and what follows it."""

import errno
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_load import Load, Running

torch = pytest.importorskip("torch")

from hisparse_sim.gpu_replay.engine import events, recording, watching  # noqa: E402
from hisparse_sim.gpu_replay.engine.launching import Follower  # noqa: E402
from hisparse_sim.gpu_replay.engine.options import Options  # noqa: E402
from hisparse_sim.gpu_replay.engine.recording import Budget, Source  # noqa: E402
from hisparse_sim.gpu_replay.engine.releases import RELEASES  # noqa: E402
from hisparse_sim.gpu_replay.engine.summary import sum_up  # noqa: E402
from hisparse_sim.simulator.replay import replay  # noqa: E402
from hisparse_sim.traces import open_trace  # noqa: E402
from hisparse_sim.traces.file.spool import Spool  # noqa: E402


class Played:
    """A load on a watch in this process, and the recorder that would be in another."""

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int | None = None,
        release: str = "0.5.17",
        shared_index_layers: list[bool] | None = None,
        **options: Any,
    ) -> None:
        sizes = {"device_ring_bytes": 4096, "host_ring_bytes": 4096}
        self.load = Load(seed=3, context=200)
        self.tables = self.load.coordinator()
        self.faults: list[Any] = []
        self.watch = watching.Watch(
            self.tables,
            RELEASES[release],
            Options(str(folder), **{"record": True, **sizes, **options}),
            lambda *fault: self.faults.append(fault),
            release,
            shared_index_layers,
        )
        self.watch._reader.start = lambda: None  # type: ignore[method-assign]  # we step it
        self.follower = Follower(folder, Source("m", "sglang"), Budget(most_bytes))
        self.requests: list[Running] = []

    def play(self, steps: int, *, follow: bool = True, requests: int = 2) -> None:
        for _ in range(requests - len(self.load.running)):
            request = self.load.joining(self.tables)
            assert request is not None
            self.requests.append(request)
            self.watch.admit(request)
        for _ in range(steps):
            for layer, rows, lengths, top_k in self.load.step(self.tables):
                self.watch.swapped_in(rows, lengths, top_k, layer)
            self.watch._reader.step()
            if follow:
                self.follower.work()

    def end(self) -> dict[str, Any]:
        """All requests end, then the server; returns what was recorded."""
        while request := self.load.leaving(self.tables):
            self.watch.released(request.req_pool_idx)
            self.watch._reader.step()
            self.follower.work()
        self.watch._reader.step()
        self.follower.close("the server ended")
        follower = self.follower
        recordings = list(follower.recordings.values())
        summary = sum_up({}, follower.processes, [], recordings, follower.budget, [])
        found: dict[str, Any] = summary["recorded"]
        return found

    def kept(self, folder: Path) -> int:
        """Steps in the files, each compared with what was demanded and with its replay."""
        by_name = {request.rid: request for request in self.requests}
        steps = 0
        for path in sorted(folder.glob("request-*.parquet")):
            trace = open_trace(path)
            misses = replay(trace, "lru", self.load.buffer).misses
            at = 0
            for part in trace.parts:
                demand, request = trace.read(part), by_name[part.request]
                for step in range(demand.rows):
                    assert np.array_equal(demand.row(step), request.listed[step][part.layer])
                    assert misses[at + step] == request.misses[step][part.layer]
                at += demand.rows
            steps += trace.parts[0].rows
        return steps


def test_what_is_recorded_is_what_was_demanded(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.play(20)
    found = played.end()
    assert found["steps"] == played.kept(tmp_path) == 40
    assert found["steps_dropped"] == 0
    assert found["bytes"] == sum(p.stat().st_size for p in tmp_path.glob("request-*.parquet"))


def test_a_slow_disk_loses_ends_of_requests_and_says_how_many_steps(tmp_path: Path) -> None:
    """Nobody takes anything out: both rings fill up."""
    played = Played(tmp_path)
    played.play(60, follow=False)
    found = played.end()
    assert found["steps"] == played.kept(tmp_path)
    assert 0 < found["steps"] < 120
    assert found["steps"] + found["steps_dropped"] == 120
    assert found["cut"] == {"the ring on the GPU was full": 2}
    assert not played.faults


def test_after_a_jam_new_requests_are_recorded(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.play(60, follow=False)
    while request := played.load.leaving(played.tables):
        played.watch.released(request.req_pool_idx)
    played.play(5)
    found = played.end()
    assert found["steps"] == played.kept(tmp_path)
    assert found["steps"] + found["steps_dropped"] == 130
    assert played.requests[-1].steps == 5


def test_a_recording_ends_while_it_can_still_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = 4 * 3 * 6  # bytes of a step: three layers of six positions
    played = Played(tmp_path)
    played.play(5)
    monkeypatch.setattr(recording, "free_bytes", lambda folder: 15 * one)
    played.play(5)
    found = played.end()
    assert found["steps"] == played.kept(tmp_path) == 15
    assert found["stopped"] == recording.NO_ROOM
    assert found["steps_dropped"] == 5


def test_a_disk_that_is_full_from_the_start_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recording, "Spool", full)
    played = Played(tmp_path)
    played.play(4)
    found = played.end()
    assert (found["steps"], found["steps_dropped"]) == (0, 8)
    assert found["stopped"] == "scratch files cannot be written: No space left on device"


def test_a_scratch_file_keeps_whole_steps_on_a_full_disk(tmp_path: Path) -> None:
    """As a full disk does, a limit on the size of files takes a part of a write."""
    steps = np.arange(30 * 2 * 500, dtype=np.int32).reshape(30, 2, 500)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Spool(tmp_path / "t", 500, scores=False) as spool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            spool.extend((0, 1), steps[:2])
            with pytest.raises(OSError, match="File too large"):
                spool.extend((0, 1), steps[2:4])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        spool.extend((0, 1), steps[2:3])
        for layer, demand in enumerate(spool.demands("r", 2000, 500, sort=False, following=False)):
            assert np.array_equal(demand.positions.reshape(3, 500), steps[:3, layer])


def test_events_wait_until_the_disk_takes_them(tmp_path: Path) -> None:
    writer = events.EventWriter(tmp_path, 1)
    assert writer.write(events.ENDED, epoch=1)
    reader = events.EventReader(events.events_path(tmp_path, 1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        assert not writer.write(events.ENDED, epoch=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each["epoch"] for each in reader.read()] == [1]
    writer.again()
    assert [each["epoch"] for each in reader.read()] == [2]


def test_a_full_disk_keeps_finished_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(tmp_path)
    played.play(10, requests=1)
    request = played.load.leaving(played.tables)
    assert request is not None
    played.watch.released(request.req_pool_idx)
    played.play(3)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Spool, "extend", full)
    played.play(3)
    found = played.end()
    # Both that were being recorded keep their beginnings.
    assert found["steps"] == played.kept(tmp_path) == 10 + 3 + 3
    assert found["steps_dropped"] == 3 + 3
    assert found["stopped"] == "scratch files cannot be written: No space left on device"
    assert len(found["files"]) == 3


def test_a_file_that_cannot_be_written_is_lost_alone_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(tmp_path)
    played.play(4)
    blocked = tmp_path / "request-00001.parquet"
    blocked.mkdir()
    found = played.end()
    assert found["steps_dropped"] == 4
    assert found["files"] == ["request-00002.parquet"]
    assert "request-00001.parquet cannot be written" in found["stopped"]


def test_a_cap_on_bytes_holds(tmp_path: Path) -> None:
    one = 4 * 3 * 6  # bytes of a step: three layers of six positions
    played = Played(tmp_path, most_bytes=9 * one)
    played.play(20)
    found = played.end()
    assert found["steps"] == played.kept(tmp_path) == 9
    assert found["steps_dropped"] == 40 - 9
    assert found["stopped"] == f"the cap of {9 * one:,} bytes is reached"


def test_requests_and_layers_are_chosen(tmp_path: Path) -> None:
    played = Played(tmp_path, layers=(0, 2), requests=1)
    played.play(5)
    found = played.end()
    assert (found["steps"], found["steps_dropped"]) == (5, 0)
    trace = open_trace(tmp_path / "request-00001.parquet")
    assert [part.layer for part in trace.parts] == [0, 2]
    assert played.kept(tmp_path) == 5


def test_layers_that_copy_by_a_plan_are_those_they_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in SGLang 0.5.18 and later, with a model that shares indexers."""
    monkeypatch.setattr(Load, "coordinator", with_prefetch(Load.coordinator))
    given = {"release": "0.5.23", "shared_index_layers": [False, False, True]}
    played = Played(tmp_path, **given)
    played.play(8)
    by_layer = played.watch.counted()["by_layer"]
    assert [layer["planned"] for layer in by_layer] == [False, False, True]
    assert by_layer[2] == by_layer[1] | {"layer": 2, "planned": True}
    played.end()
    trace = open_trace(tmp_path / "request-00001.parquet")
    assert [part.layer for part in trace.parts] == [0, 1]


def with_prefetch(coordinator: Any) -> Any:
    return lambda load: coordinator(load, enable_prefetch=True)


def test_a_share_of_the_requests_is_chosen_by_their_ids(tmp_path: Path) -> None:
    played = Played(tmp_path, share=0.25)
    chosen = [name for name in (f"r{i}" for i in range(4000)) if played.watch._chosen(name)]
    assert 0.2 < len(chosen) / 4000 < 0.3
    played.end()


def test_a_request_that_comes_back_is_another_one(tmp_path: Path) -> None:
    """As after a retraction: the same id, a longer prompt."""
    played = Played(tmp_path)
    played.play(4, requests=1)
    first = played.load.leaving(played.tables)
    assert first is not None
    played.watch.released(first.req_pool_idx)
    played.load._made = 0
    played.play(3, requests=1)
    played.end()
    names = [open_trace(p).parts[0].request for p in sorted(tmp_path.glob("request-*.parquet"))]
    assert names == ["r0", "r0.2"]


def test_events_are_read_as_they_come(tmp_path: Path) -> None:
    writer, path = events.EventWriter(tmp_path, 7), events.events_path(tmp_path, 7)
    writer.write("a", x=1)
    reader = events.EventReader(path)
    assert reader.read() == [{"kind": "a", "x": 1}]
    assert reader.read() == []
    with path.open("a") as file:
        file.write('{"kind": "b"')  # half a line
    assert reader.read() == []
    with path.open("a") as file:
        file.write("}\n")
    assert reader.read() == [{"kind": "b"}]
