"""Oracles: bytes over what store, NICs and workers carry; a store without limits is the disk alone; shards and buffers by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sim.cli import main
from sim.events import Cause
from sim.spec.library import load_workload
from sim.spec.stores import Store
from sim.spec.stream import Stream
from sim.spec.workload import Workload
from sim.training.layouts.stream import download_of, first_batch_time
from tests.training.layouts.test_loader import SAMPLE, SLOT, fed, on
from tests.training.layouts.toys import blocks, run, workload


def streamed(given: Workload, bandwidth: float, per_writer: float | None = None, **fields: Any) -> Workload:
    store = Store(name="toy", bandwidth=f"{bandwidth} B/s", per_writer=None if per_writer is None else f"{per_writer} B/s", source="test")
    stream = Stream.model_validate({"store": store, **fields})
    return given.model_copy(update={"input": given.input.model_copy(update={"stream": stream})})


def job(**options: Any) -> Workload:
    return fed(workload(blocks(1), shard="parameters", micro_batches=4), **options)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("compressed", [1.0, 0.5])
def test_a_store_that_all_nodes_share_bounds_the_step(nodes: int, compressed: float) -> None:
    bandwidth = SAMPLE / (4 * SLOT)
    layout_run = run(on(1e15, 2, nodes), streamed(job(), bandwidth, compressed=compressed))
    batch = layout_run.workload.training.batch
    assert layout_run.step_time == pytest.approx(4 * 2 * nodes * batch * compressed * SAMPLE / bandwidth, rel=1e-3)
    assert layout_run.stalls[Cause.FETCH] == pytest.approx(layout_run.step_time - layout_run.stalls[Cause.COMPUTE], rel=0.02)


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_download_side_by_side(workers: int) -> None:
    each = SAMPLE / (4 * workers * SLOT)
    layout_run = run(on(1e15), streamed(job(num_workers=workers), 1e15, each))
    assert layout_run.step_time == pytest.approx(4 * layout_run.workload.training.batch * SAMPLE / (workers * each), rel=1e-3)


def test_files_that_ranks_do_not_divide_are_read_by_all() -> None:
    bandwidth = SAMPLE / SLOT
    divided, repeated = (run(on(1e15, 4), streamed(job(), bandwidth, library="huggingface", files=files)).step_time for files in (8, 9))
    assert repeated == pytest.approx(4 * divided, rel=1e-3)


def test_a_store_without_limits_is_the_disk_alone() -> None:
    slow = SAMPLE / (4 * SLOT)
    from_disk, mosaic, past = (
        run(on(slow), given).step_time for given in (job(), streamed(job(), 1e17), streamed(job(), 1e17, library="huggingface"))
    )
    assert mosaic == pytest.approx(from_disk)  # shards are written to the disk
    assert past == pytest.approx(run(on(1e15), job()).step_time)


def test_the_first_micro_batch_waits_for_shards_or_buffers() -> None:
    given = job(num_workers=2)
    node, batch = on(1e15, 4).groups[0].node, given.training.batch
    mosaic = Stream.model_validate({"store": Store(name="toy", bandwidth="1 GB/s", start="3 s", source="test"), "shard": "64 MB"})
    download = download_of(mosaic, node, nodes=2, readers=4, ranks=8, workers=2)
    assert download.rate == 0.5e9
    assert first_batch_time(mosaic, download, given, 4, 2) == pytest.approx(3 + 4 * batch * 64e6 / 0.5e9)
    unshuffled = mosaic.model_copy(update={"shuffled": 1})
    assert first_batch_time(unshuffled, download, given, 4, 2) == pytest.approx(3 + 64e6 / 0.5e9)
    face = mosaic.model_copy(update={"library": "huggingface"})
    assert first_batch_time(face, download, given, 4, 2) == pytest.approx(3 + 4 * 2 * 1000 * SAMPLE / 0.5e9)


def test_nics_carry_what_is_downloaded() -> None:
    node = on(1e15, 4).groups[0].node
    narrow = node.model_copy(update={"nic": node.nic.model_copy(update={"bandwidth": 1e8, "count": 1})})
    stream = Stream.model_validate({"store": Store(name="toy", bandwidth="1 TB/s", source="test")})
    assert download_of(stream, narrow, 1, 4, 4, 2).rate == 1e8
    assert math.isfinite(download_of(stream, node, 1, 4, 4, 0).rate)


def test_a_store_is_named_and_slips_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    spec = load_workload("llama-3.2-1b", ["input.stream={store: object-store}"]).spec
    assert spec.input.stream is not None and spec.input.stream.store.name == "object-store"
    layout = ["run", "hgx-h100", "llama-3.2-1b", "--shard", "optimizer", "--stack", "megatron-core"]
    assert main([*layout, "--set", "input.stream={store: object-store}"]) == 0
    assert "samples are streamed (mosaic from object-store)" in capsys.readouterr().out
    for text, says in (
        ("{store: s4}", "s4"),
        ("{store: object-store, library: webdataset}", "mosaic"),
        ("{store: object-store, compressed: 2}", "input.stream.compressed"),
    ):
        assert main([*layout, "--set", f"input.stream={text}"]) == 2
        assert says in capsys.readouterr().err
    assert main(["run", "p3.16xlarge", "resnet50", "--set", "input.stream={store: object-store}"]) == 2
    assert "applies only to layouts" in capsys.readouterr().err
