"""Several GPUs of one host: processes that go together, what is dealt to whom, what comes out."""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import gpu_tasks
import make_traces
import numpy as np
import pytest
from click.testing import CliRunner

from hisparse_sim.cli import cli
from hisparse_sim.gpu_replay.bench import together
from hisparse_sim.gpu_replay.bench.lines import together_line
from hisparse_sim.gpu_replay.bench.results import read_rows
from hisparse_sim.gpu_replay.bench.together import Grid, measure_together, merge_parts
from hisparse_sim.gpu_replay.harness import several
from hisparse_sim.gpu_replay.harness.batch import make_batch
from hisparse_sim.gpu_replay.harness.host_memory import cpus_of, numa_node, shared_file, used_bytes
from hisparse_sim.gpu_replay.harness.several import choose_devices, run_together
from hisparse_sim.gpu_replay.harness.trace_replay import GpuReplay, _tabulate, merge_replays
from hisparse_sim.gpu_replay.kernels.build import GpuError
from hisparse_sim.simulator.serving.deployment import Deployment
from hisparse_sim.simulator.serving.hardware import hardware_names, load_hardware
from hisparse_sim.simulator.serving.latency import load_link, swap_in_us
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.steptimes import LAYOUTS
from hisparse_sim.traces import open_trace

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def test_devices_are_one_each_unless_shared_on_purpose():
    assert choose_devices(2, 8) == [0, 1]
    assert choose_devices(4, 2, oversubscribe=True) == [0, 1, 0, 1]
    with pytest.raises(GpuError, match="3 GPUs were asked for and this machine shows 2"):
        choose_devices(3, 2)
    with pytest.raises(ValueError, match="at least one GPU"):
        choose_devices(0, 2)


def test_processes_go_round_by_round():
    rounds = list(run_together([5, 3], gpu_tasks.report, 3))
    assert [[value[:3] for value in values] for values in rounds] == [
        [(i, 0, 5), (i, 1, 3)] for i in range(3)
    ]
    for before, after in itertools.pairwise(rounds):  # nobody starts a round ahead of the others
        assert max(value[3] for value in before) < min(value[3] for value in after)


@pytest.mark.parametrize(
    ("task", "kind", "message"),
    [
        (gpu_tasks.refuse, ValueError, "^a batch of 1 cannot be dealt$"),
        (gpu_tasks.fail, GpuError, "GPU 4: KeyError: 'plan'"),
        (gpu_tasks.die, GpuError, "process 1 ended in the middle of its work, exit code 9"),
    ],
)
def test_one_failure_ends_all(task, kind, message):
    with pytest.raises(kind, match=message):
        list(run_together([0, 4], task))


def test_processes_see_one_memory():
    with shared_file(4096) as path:
        assert list(run_together([0, 1], gpu_tasks.write_shared, path)) == [[b"\7\10\0"] * 2]
    assert not os.path.exists(path)


def test_memory_and_numa(tmp_path):
    assert used_bytes() > 0
    device = tmp_path / "bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    node = tmp_path / "devices/system/node/node1"
    node.mkdir(parents=True)
    (node / "cpulist").write_text("4-6,12\n")
    assert numa_node("0000:1B:00.0", tmp_path) == 1
    assert cpus_of(1, tmp_path) == {4, 5, 6, 12}
    (device / "numa_node").write_text("-1\n")
    assert numa_node("0000:1b:00.0", tmp_path) is None
    assert numa_node("0000:ff:00.0", tmp_path) is None


def part(start, end, us, **more):
    times = {"us": us, "low_us": us, "high_us": us, "gb_s": 1000 / us, "replays": 5}
    return {"batch": 8, **times, "start_ns": start, "end_ns": end, **more}


def test_parts_become_one_row():
    row = merge_parts([part(0, 90, 20.0), part(10, 100, 25.0), {"batch": 8}])
    assert row["gpus"] == 2  # the third was idle
    assert (row["gb_s"], row["sum_gb_s"], row["overlap"]) == ([50.0, 40.0], 90.0, 0.8)
    assert (row["batch"], row["us"]) == (8, [20.0, 25.0])
    assert merge_parts([part(0, 10, 1.0), part(20, 30, 1.0)])["overlap"] == 0


def test_host_pool_holds_the_largest_set():
    grid = Grid((1, 64), (512,), (4096,), (656, 1152), (1, 2))
    assert grid.host_bytes() == 64 * 32768 * 1152
    with pytest.raises(ValueError, match=r"2 processes cannot measure \[1, 4\] GPUs"):
        next(measure_together(Grid((1,), (8,), (4096,), (656,), (1, 4)), [0, 1]))


def test_a_batch_is_dealt_round_robin(tmp_path):
    path = make_traces.write(tmp_path / "t.parquet", make_traces.several(requests=3, layers=(0, 1)))
    batch = make_batch(open_trace(path), 3, 2)
    parts = [batch.dealt(rank, 2) for rank in range(2)]
    assert [[cell.request for cell in part.cells[1]] for part in parts] == [
        ["request-0", "request-2"],
        ["request-1"],
    ]
    assert {part.steps for part in parts} == {batch.steps}
    with pytest.raises(ValueError, match="a batch of 3 cannot be distributed over 4 GPUs"):
        batch.dealt(0, 4)


def test_replays_of_parts_become_one():
    misses = np.arange(2 * 1 * 5, dtype=np.int32).reshape(2, 1, 5)  # [steps, layers, rows]
    times = np.array([[10.0, 40.0], [20.0, 30.0]])  # [gpus, steps]
    parts = [
        GpuReplay(
            _tabulate(misses[:, :, rank::2], 100, times[rank]),
            {"entry_bytes": 100}, False, "note", misses[:, :, rank::2],
        )
        for rank in range(2)
    ]  # fmt: skip
    whole = merge_replays(parts)
    assert (whole.misses == misses).all()
    assert whole.steps["misses"].tolist() == [10, 35]
    assert whole.steps["us"].tolist() == [20.0, 40.0]  # the slowest
    assert whole.steps["fastest_us"].tolist() == [10.0, 30.0]
    assert whole.parameters["gpus"] == 2


def run(*arguments):
    return CliRunner().invoke(cli, ["gpu", *arguments])


def test_options_of_several_gpus():
    for option in ("--share-host-pool", "--pin-numa", "--oversubscribe"):
        result = run("bench", option)
        assert result.exit_code == 2
        assert "go with --gpus" in result.output
    assert "is not a whole number" in run("bench", "--gpus", "two").output


def test_bench_writes_as_it_goes(tmp_path, monkeypatch):
    seen = {}
    rows = [
        {"what": "pools", "host_pool": "shared", "pool_bytes": 10**9, "pools": 1,
         "used_bytes": 2 * 10**9, "pin_s": 0.5},
        {"what": "native", "host_pool": "shared", "gpus": 2, "sum_gb_s": 90.0, "overlap": 1.0,
         "gb_s": [50.0, 40.0], "us": [20.0, 25.0], "batch": 8, "misses": 64, "buffer": 4096,
         "entry_bytes": 656},
    ]  # fmt: skip
    output = tmp_path / "out.json"

    def measured(grid, devices, share):
        seen.update(grid=grid, devices=devices, share=share)
        yield {"machine": {"gpu": "fake"}, "gpus": [{"numa_node": None}, {"numa_node": None}]}
        yield rows[0]
        yield rows[1]
        assert read_rows(output) == rows  # both are safe before the next is measured

    monkeypatch.setattr(together, "measure_together", measured)
    torch = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 2))
    monkeypatch.setattr(several, "require_gpu", lambda: torch)
    result = run(
        "bench", "--gpus", "1,2", "--batch", "8", "--misses", "64", "--buffer", "4096",
        "--kv-entry-bytes", "656", "--kernel", "native", "--share-host-pool", "--pin-numa",
        "-o", str(output),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert seen["grid"] == Grid((8,), (64,), (4096,), (656,), (1, 2), ("native",), True)
    assert (seen["devices"], seen["share"]) == ([0, 1], True)
    assert "names no NUMA node" in result.stderr
    assert result.stdout.splitlines() == [together_line(row) for row in rows]
    assert "2 at once:    90.0 GB/s (50.0 40.0), 25.0 us" in together_line(rows[1])
    result = run("bench", "--gpus", "3")
    assert result.exit_code == 1
    assert "3 GPUs were asked for and this machine shows 2" in result.output


def test_the_hosts_ceiling_is_shared():
    link = load_link("h200-pcie5")
    alone = link.among(1)
    assert alone == link
    # 8 GPUs at 55.37 GB/s are 443: a host of 221.5 gives each half.
    half = link.limited(4 * link.bulk_gb_s).among(8)
    assert half.bulk_gb_s == pytest.approx(link.bulk_gb_s / 2)
    assert half.link_gb_s == pytest.approx(link.link_gb_s / 2)
    assert half.entry_ns == pytest.approx(link.entry_ns * 2)
    assert half.kernels == link.kernels
    slow, fast = (swap_in_us(which, "native", 64, 1024, 4096, 1152) for which in (half, link))
    assert slow / fast == pytest.approx(2, rel=0.01)  # all link
    unknown = link.limited(float("inf"))
    assert unknown.among(8) == unknown


def test_gpus_that_pull_at_once():
    model = load_model("glm-5.1")
    pulling = {
        name: Deployment(model, load_hardware(name), LAYOUTS["tp8"]).pulling_gpus
        for name in hardware_names()
    }
    assert (pulling["h200"], pulling["gh200"], pulling["gb200"]) == (8, 1, 2)


def test_shipped_ceilings():
    """Four H200 got 154.3 GB/s of 221 and eight are taken to get twice as much; a Grace gives its
    one GPU all, and two of them 167 each instead of 201."""
    link = load_link("h200-pcie5")
    [copy] = [
        row
        for row in read_rows(RESULTS / "several-gpus-h200x4-private.json")
        if row["what"] == "copy" and row["gpus"] == 4
    ]
    assert link.host_gb_s == pytest.approx(copy["sum_gb_s"], rel=0.001)
    assert link.among(2) == link
    assert link.among(4).bulk_gb_s == pytest.approx(154.3 / 4)
    assert link.among(8).bulk_gb_s == pytest.approx(154.3 / 4)
    assert link.limited(link.host_low_gb_s).among(8).bulk_gb_s == pytest.approx(154.3 / 8)
    assert link.limited(link.host_high_gb_s).among(8).bulk_gb_s == pytest.approx(441.3 / 8)
    assert load_link("gh200-c2c").among(1) == load_link("gh200-c2c")
    assert load_link("gb200-c2c").among(2).bulk_gb_s == pytest.approx(334 / 2)
    for name in hardware_names():
        assert load_link(load_hardware(name).link).host_gb_s < float("inf")


def test_two_gpus_measured_below_the_ceiling():
    link = load_link("h200-pcie5")
    for name in ("private", "shared", "sglang"):
        rows = read_rows(RESULTS / f"several-gpus-h200x2-{name}.json")
        both = [row for row in rows if row["what"] != "pools" and row["gpus"] == 2]
        assert len(both) == 7
        for row in both:
            assert row["overlap"] > 0.97
            assert row["sum_gb_s"] < 2 * link.bulk_gb_s < link.host_gb_s
            if row["what"] != "copy":
                point = [row[name] for name in ("batch", "misses", "buffer", "entry_bytes")]
                predicted = float(swap_in_us(link.among(2), row["what"], *point))
                assert predicted == pytest.approx(max(row["us"]), rel=0.12)


@pytest.mark.parametrize("pool", ["private", "shared"])
def test_four_gpus_share_what_the_host_gave(pool):
    """With the large copy's rate as the ceiling, the kernels' times of four at once follow."""
    rows = read_rows(RESULTS / f"several-gpus-h200x4-{pool}.json")
    four = [row for row in rows if row["what"] != "pools" and row["gpus"] == 4]
    [copy] = [row for row in four if row["what"] == "copy"]
    link = load_link("h200-pcie5")
    assert copy["sum_gb_s"] < 0.75 * 4 * link.bulk_gb_s
    shared = link.limited(copy["sum_gb_s"]).among(4)
    assert len(four) == 9
    for row in four:
        if row is not copy:
            point = [row[name] for name in ("batch", "misses", "buffer", "entry_bytes")]
            predicted = float(swap_in_us(shared, row["what"], *point))
            assert predicted == pytest.approx(max(row["us"]), rel=0.15)
