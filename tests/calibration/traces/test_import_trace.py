"""Is a profile read as it should be? Oracle: traces made by hand in Kineto's layout, whose stalls are written down; torch's own profiler.

Round trips of simulated traces stand in tests/report/trace/test_run_trace.py.
"""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from calibration.cli import main
from calibration.run_records import read_records
from calibration.traces.import_trace import import_traces, kernel_times
from sim.events import Cause
from sim.spec.yaml import SpecError

Event = dict[str, Any]
STEP = 100_000.0
"""Microseconds of a step of `profile`."""


def event(category: str, name: str, start: float, end: float, **arguments: Any) -> Event:
    """A complete event, in microseconds, as Kineto writes it: CPU events under the process, GPU events under device and stream."""
    on_gpu = category in ("kernel", "gpu_memcpy")
    where = {"pid": 0, "tid": arguments["stream"]} if on_gpu else {"pid": 4242, "tid": 4242}
    return {"ph": "X", "cat": category, "name": name, **where, "ts": 7e12 + start, "dur": end - start, "args": arguments}


def gpu(
    number: int, launch: tuple[float, float], span: tuple[float, float], name: str, stream: int, category: str = "kernel"
) -> list[Event]:
    """A kernel or copy and its launch."""
    call = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel"
    return [
        event("cuda_runtime", call, *launch, correlation=number, **{"External id": number}),
        event(category, name, *span, stream=stream, device=0, correlation=number),
    ]


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step(number: int, late: float = 0.0) -> list[Event]:
    """One step of 100 ms on a rank that comes *late* (us) to its collective, which always ends at 95 ms.

    0-10 ms loader, 10-14 copy, 14-16 the host launches, 16-46 forward, 46-76 backward (+ late) with the bucket's kernel launched
    at its end, collective from there to 95, optimizer 95-100 launched early.
    """
    at = number * STEP
    ready = at + 76_000 + late
    ident = 100 * number
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, at + STEP),
        event("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, at + 10_000),
        event("cpu_op", "aten::copy_", at + 10_000, at + 14_000),
        *gpu(ident + 1, (at + 10_000, at + 14_000), (at + 10_000, at + 14_000), "Memcpy HtoD (Pageable -> Device)", 7, "gpu_memcpy"),
        event("cpu_op", "aten::conv2d", at + 14_000, at + 16_000),
        *gpu(ident + 2, (at + 15_000, at + 16_000), (at + 16_000, at + 46_000), "sm80_xmma_fprop", 7),
        *gpu(ident + 3, (at + 17_000, at + 17_500), (at + 46_000, ready), "sm80_xmma_dgrad", 7),
        *gpu(ident + 4, (at + 18_000, at + 18_500), (ready, at + 95_000), NCCL, 20),
        *gpu(ident + 5, (at + 19_000, at + 19_500), (at + 95_000, at + 100_000), "multi_tensor_apply_kernel", 7),
    ]


def profile(
    folder: Path, rank: int = 0, world_size: int = 1, events: Sequence[Event] | None = None, late: float = 0.0, **keys: Any
) -> Path:
    """Write the profile of one rank over three steps."""
    document = {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}], "host_name": "box",
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "traceEvents": [
            {"ph": "M", "name": "process_name", "ts": 0, "pid": 4242, "tid": 0, "args": {"name": "python"}},
            *(events if events is not None else [trace_event for number in range(3, 6) for trace_event in step(number, late)]),
        ],
    }  # fmt: skip
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({key: value for key, value in (document | keys).items() if value is not None}))
    return path


def milliseconds(files: Sequence[Path]) -> dict[str, float]:
    return {cause.value: pytest.approx(1e3 * seconds, abs=1e-3) for cause, seconds in import_traces(files).stalls.items() if seconds > 1e-7}


EXPECTED_MS = {"compute": 65, "prep": 10, "copy": 4, "interconnect": 19, "launch": 2}
"""Milliseconds of `step` by cause."""


def test_one_rank_by_itself(tmp_path: Path) -> None:
    job = import_traces([profile(tmp_path)])
    assert job.step_time == pytest.approx(0.1)
    assert milliseconds([profile(tmp_path)]) == EXPECTED_MS


def test_a_late_rank_makes_the_others_wait(tmp_path: Path) -> None:
    """Rank 1 joins 4 ms later: rank 0 waits 4 ms for it, and both wait 15 ms for the exchange."""
    files = [profile(tmp_path, 0, 2), profile(tmp_path, 1, 2, late=4000.0)]
    first, second = import_traces(files).by_rank
    assert first[Cause.STRAGGLER] == pytest.approx(4e-3, abs=1e-6)
    assert [first[Cause.INTERCONNECT], second[Cause.INTERCONNECT]] == pytest.approx([15e-3] * 2, abs=1e-6)
    assert second[Cause.STRAGGLER] == 0
    assert second[Cause.COMPUTE] == pytest.approx(69e-3, abs=1e-6)


def test_another_host_s_clock_is_set_by_its_collectives(tmp_path: Path) -> None:
    """The second host's clock is 3 s ahead; what it waits for stays, and the exchange is the network's."""
    ahead = [{**trace_event, "ts": trace_event["ts"] + 3e6} for number in range(3, 6) for trace_event in step(number, 4000.0)]
    files = [profile(tmp_path, 0, 2), profile(tmp_path, 1, 2, ahead, host_name="other")]
    first, second = import_traces(files).by_rank
    assert first[Cause.STRAGGLER] == pytest.approx(4e-3, abs=1e-6)
    assert [first[Cause.NETWORK], second[Cause.NETWORK]] == pytest.approx([15e-3] * 2, abs=1e-6)


def test_overlapped_exchange_and_copies_are_no_stall(tmp_path: Path) -> None:
    hidden = [
        trace_event
        for number in range(3, 6)
        for trace_event in [
            *step(number),
            *gpu(100 * number + 6, (number * STEP + 19_600,) * 2, (number * STEP + 20_000, number * STEP + 40_000), NCCL, 20),
            *gpu(
                100 * number + 7,
                (number * STEP + 19_700,) * 2,
                (number * STEP + 20_000, number * STEP + 30_000),
                "Memcpy HtoD (Pinned -> Device)",
                22,
                "gpu_memcpy",
            ),
        ]
    ]
    assert milliseconds([profile(tmp_path, events=hidden)]) == EXPECTED_MS


def test_a_host_that_runs_ahead_does_not_shorten_the_step(tmp_path: Path) -> None:
    """CPU marks 60 ms before the GPU's: steps end when the GPU has done what was launched in them."""
    early = [
        {**trace_event, "ts": trace_event["ts"] - 60_000}
        if trace_event["cat"] in ("user_annotation", "cuda_runtime", "cpu_op")
        else trace_event
        for number in range(3, 9)
        for trace_event in step(number)
        if "DataLoader" not in trace_event["name"]
    ]
    job = import_traces([profile(tmp_path, events=early)])
    assert job.step_time == pytest.approx(0.1, rel=1e-6)
    assert job.windows[0].steps == 5, "the first one lacks the 60 ms in which the GPU did what was not recorded"
    assert job.stalls[Cause.COMPUTE] == pytest.approx(0.065, rel=1e-6)


def test_a_host_blocked_on_the_gpu_launches_nothing(tmp_path: Path) -> None:
    """loss.item() under the collective: an operator is open, but what it waits for is the exchange."""
    blocked = [
        trace_event
        for number in range(3, 6)
        for trace_event in [
            *(made for made in step(number) if made["args"].get("correlation") != 100 * number + 5),
            event("cpu_op", "aten::item", number * STEP + 80_000, number * STEP + 95_000),
            event("cuda_runtime", "cudaStreamSynchronize", number * STEP + 80_000, number * STEP + 95_000, correlation=100 * number + 8),
            *gpu(100 * number + 5, (number * STEP + 95_000,) * 2, (number * STEP + 95_000, number * STEP + 100_000), "adam", 7),
        ]
    ]
    assert milliseconds([profile(tmp_path, events=blocked)]) == EXPECTED_MS


def test_kernels_are_counted_per_step(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in kernel_times(import_traces([profile(tmp_path)]))}
    assert rows["sm80_xmma_fprop"]["calls_per_step"] == 1
    assert rows["sm80_xmma_fprop"]["time_s"] == pytest.approx(0.03)
    assert rows[NCCL]["kind"] == "exchange"


# --- loud failures ---------------------------------------------------------------------------------------------------


def test_ranks_without_a_trace_are_like_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four ranks, rank 0 stands for itself and another one, rank 2 as well; a record of measured runs needs all."""
    files = [profile(tmp_path, 0, 4), profile(tmp_path, 2, 4, late=4000.0)]
    job = import_traces(files)
    assert [trace.size for trace in job.traces] == [2, 2] and job.traced_ranks == 2
    assert job.stalls == pytest.approx(import_traces([profile(tmp_path, 0, 2), profile(tmp_path, 1, 2, late=4000.0)]).stalls)
    assert main(["import-trace", str(profile(tmp_path, 2, 4))]) == 0
    shown = capsys.readouterr()
    assert "rank2.json: only rank 2 of 4 given; the others are taken to be like it" in shown.err and "1 of 4 GPUs on 1 node" in shown.out
    assert main(["import-trace", str(files[0]), "--record", str(tmp_path / "runs.csv")]) == 2
    assert "a record needs the traces of all 2 ranks" in capsys.readouterr().err


def without(*categories: str) -> list[Event]:
    return [trace_event for number in range(3, 6) for trace_event in step(number) if trace_event["cat"] not in categories]


BAD: dict[str, tuple[Callable[[Path], list[Path]], str]] = {
    "rank twice": (lambda folder: [profile(folder, 0, 2)] * 2, "rank 0 is already in .*"),
    "missing step": (lambda folder: [profile(folder, events=[*step(3), *step(5)])], "ProfilerStep#4 is missing between #3 and #5"),
    "other steps": (
        lambda folder: [profile(folder, 0, 2), profile(folder, 1, 2, [*step(3), *step(4)])],
        r"rank1\.json: lacks ProfilerStep#5, which .*rank0\.json has",
    ),
    "fewer collectives": (
        lambda folder: [
            profile(folder, 0, 2),
            profile(folder, 1, 2, [trace_event for trace_event in without() if trace_event["name"] != NCCL]),
        ],
        r"rank1\.json: shows 0 collectives, .*rank0\.json 3",
    ),
    "no GPU": (lambda folder: [profile(folder, events=without("kernel", "gpu_memcpy"))], r"holds no GPU kernels .* ProfilerActivity\.CUDA"),
    "no steps": (lambda folder: [profile(folder, events=without("user_annotation"))], r"holds no ProfilerStep#N .* prof\.step\(\)"),
    "no rank": (lambda folder: [profile(folder, distributedInfo={"backend": "nccl"})], "distributedInfo names no rank"),
    "odd event": (
        lambda folder: [profile(folder, events=[*step(3), {"ph": "X", "cat": "kernel", "name": "k"}])],
        "is invalid: ts: expected a time",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_missing_is_said(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, message = BAD[case]
    files = make(tmp_path)
    with pytest.raises(SpecError, match=message):
        import_traces(files)
    assert main(["import-trace", *map(str, files)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"traceEvents": [{"ph": "X", "cat"', r"trace\.json:1:\d+: the JSON is truncated or invalid"),
        (gzip.compress(b'{"traceEvents": []}' * 99, mtime=0)[:30], "the gzip file is truncated"),
        (b'{"events": []}', "is not a trace of PyTorch's profiler"),
        (b"[]", "is not a trace of PyTorch's profiler"),
        (b'{"traceEvents": [], "stallsim": 5}', "is not a trace that stallsim wrote"),
        (b"\xc3\x28", "is not UTF-8 text"),
    ],
)
def test_a_broken_file_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        import_traces([path])


def _document(folder: Path, **changes: object) -> dict[str, Any]:
    return {**json.loads(profile(folder).read_text()), **changes}


def _event(**changes: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        next(trace_event for trace_event in document["traceEvents"] if trace_event.get("cat") == "kernel").update(changes)

    return change


def _keys(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(changes)


ODD: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "NaN": (_event(ts=math.nan), "NaN is not a JSON number"),
    "Infinity": (_event(dur=math.inf), "Infinity is not a JSON number"),
    "a start that is not a time": (_event(ts="soon"), "ts: expected a time in microseconds"),
    "negative": (_event(dur=-1.0), "dur: expected a time of 0 or more"),
    "a thousand years": (_event(dur=1e17), "dur: expected a time of 0 or more"),
    "args is text": (_event(args="x"), "args: expected an object"),
    "a name of numbers": (_event(name=5), "name: expected text"),
    "a bucket of text": (_event(args={"bucket": "x"}), "args.bucket: expected a whole number"),
    "distributedInfo is a list": (_keys(distributedInfo=[1]), "distributedInfo names no rank"),
    "distributedInfo is text": (_keys(distributedInfo="x"), "distributedInfo names no rank"),
    "too many ranks": (_keys(distributedInfo={"rank": 0, "world_size": 10**12}), "distributedInfo names no rank"),
    "deviceProperties is an object": (_keys(deviceProperties={"name": "x"}), "deviceProperties: expected a list"),
    "a layout": (_keys(stallsim={"hardware": "hgx-h100"}), "is the trace of a simulated layout, which cannot be imported"),
    "no ranks": (_keys(stallsim={"ranks": []}), "is not a trace that stallsim wrote: stallsim: ranks"),
    "stands_for of text": (
        _keys(stallsim={"ranks": [{"pid": 0, "rank": 0, "stands_for": "8"}]}),
        "ranks.0.stands_for: expected an integer",
    ),
    "job of lists": (_keys(stallsim={"ranks": [{"pid": 0, "rank": 0, "job": []}]}), "ranks.0.job: expected an integer"),
    "no host": (_keys(host_name=[]), "host_name: expected a string"),
}


@pytest.mark.parametrize("case", ODD)
def test_a_field_of_another_type_is_named(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = ODD[case]
    document = _document(tmp_path)
    change(document)
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(document))
    assert main(["import-trace", str(path), "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and shown.err.startswith(f"{path}: ") and shown.err.count("\n") == 1


def test_no_arguments_are_as_null(tmp_path: Path) -> None:
    document = _document(tmp_path)
    step_time = import_traces([profile(tmp_path)]).step_time
    for trace_event in document["traceEvents"]:
        if trace_event.get("cat") == "user_annotation":
            trace_event["args"] = None
    path = tmp_path / "null.json"
    path.write_text(json.dumps(document))
    assert import_traces([path]).step_time == step_time


def test_what_would_take_all_memory_is_refused(tmp_path: Path) -> None:
    """Oracle: the most memory that Python objects take while the file is read. 40 MB of brackets once took 2.5 GB."""
    for number, text in enumerate((b"[" * 10**6 + b"]" * 10**6, b'{"traceEvents": [' + (b"[" + b"[]," * 30 + b"[]],") * 260_000 + b"[]]}")):
        path = tmp_path / f"{number}.json.gz"
        path.write_bytes(gzip.compress(text, 1))
        tracemalloc.start()
        with pytest.raises(SpecError, match=r"nested too deep|values, which is the limit"):
            import_traces([path])
        assert tracemalloc.get_traced_memory()[1] < 1e8
        tracemalloc.stop()


def test_an_event_takes_little_memory(tmp_path: Path) -> None:
    """Oracle: the most memory that Python objects take while 20,000 events of 240 bytes are read. An event once took 2 kB."""
    arguments = {"External id": 123456, "Record function id": 0, "Sequence number": 12345, "Fwd thread id": 0, "Ev Idx": 12345}
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::convolution_backward", "pid": 1, "tid": 1, "dur": 12.345, "args": arguments}
    events = [{**operator, "ts": 1.5 * number} for number in range(20_000)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    tracemalloc.start()
    with pytest.raises(SpecError, match="no ProfilerStep"):
        import_traces([path])
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 8e6 + 600 * len(events)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.json: no such file"):
        import_traces([tmp_path / "absent.json"])


# --- the command, and records ----------------------------------------------------------------------------------------


def test_the_command_prints_the_stalls_and_adds_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(profile(tmp_path, 0, 2)), str(profile(tmp_path, 1, 2, late=4000.0))]
    records = tmp_path / "runs.csv"
    options = ["--record", str(records), "--hardware", "dgx-a100", "--workload", "resnet50", "--batch", "128"]
    assert main(["import-trace", *files, "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(document["stalls_s"].values()) == pytest.approx(document["step_time_s"])
    assert document["gpus"] == 2 and document["nodes"] == 1 and document["steps"] == 2
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert main(["import-trace", *files, *options[:-1], "64"]) == 0
    assert "interconnect" in capsys.readouterr().out
    record_file = read_records(records).records
    assert [record.batch_per_gpu for record in record_file] == [128, 64]
    assert record_file[0].hardware == "dgx-a100" and record_file[0].gpus_per_node == 2 and record_file[0].batch_per_gpu == 128
    assert record_file[0].step_time == pytest.approx(document["step_time_s"])
    assert record_file[0].exposed_sync == pytest.approx(document["exposed_sync_s"]) == pytest.approx(0.017)
    assert record_file[0].role == "prediction", "a tenth of its step waits for data"


def test_a_job_that_does_not_wait_for_data_is_a_compute_record(tmp_path: Path) -> None:
    from calibration.traces.trace_report import trace_record

    fed = [trace_event for trace_event in without() if "DataLoader" not in trace_event["name"]]
    row = trace_record(import_traces([profile(tmp_path, events=fed)]), hardware="a", workload="b")
    assert row["role"] == "compute"
    assert row["step_time_s"] == pytest.approx(0.1) and row["exposed_sync_s"] == pytest.approx(0.019)


def test_a_record_needs_names_and_its_own_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, records = str(profile(tmp_path)), tmp_path / "runs.csv"
    assert main(["import-trace", trace, "--record", str(records)]) == 2
    assert "add --hardware" in capsys.readouterr().err
    assert not records.exists()
    records.write_text("name,value\na,1\n")
    named = ["--hardware", "dgx-a100", "--workload", "resnet50"]
    assert main(["import-trace", trace, "--record", str(records), *named, "--batch", "8"]) == 2
    assert "its columns differ from those of a run record" in capsys.readouterr().err
    assert records.read_text() == "name,value\na,1\n"


NAMED = {"--hardware": "dgx-a100", "--workload": "resnet50", "--batch": "128"}


def recorded(trace: Path, records: Path, *more: str, **other: str) -> int:
    """The exit code of recording *trace*, with *other* options in place of NAMED."""
    options = NAMED | {f"--{name}": value for name, value in other.items()}
    arguments = [text for option, value in options.items() if value for text in (option, value)]
    return main(["import-trace", str(trace), "--record", str(records), *arguments, *more])


@pytest.mark.parametrize("option", ["hardware", "workload", "stack"])
def test_an_unknown_name_is_an_error_even_if_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert main(["import-trace", str(profile(tmp_path)), f"--{option}", "nosuch"]) == 2
    assert capsys.readouterr().err.startswith(f"--{option} nosuch: nosuch is not in the catalog")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("hardware", "nosuch", "nosuch is not in the catalog (hardware/)"),
        ("workload", "nope", "nope is not in the catalog (workloads/)"),
        ("stack", "nostack", "nostack is not in the catalog (workloads/stacks/)"),
        ("precision", "fp99", "precision: 'fp99' is unknown"),
        ("batch", "", "the trace does not contain the record's batch_per_gpu; add --batch"),
    ],
)
def test_a_record_that_nothing_could_be_asked_for_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, said: str
) -> None:
    """Neither a new file nor a row more: what `validate` would refuse, or read with the workload's own batch."""
    trace, records = profile(tmp_path), tmp_path / "runs.csv"
    assert recorded(trace, records, **{option: value}) == 2
    shown = capsys.readouterr()
    begin = f"--{option} {value}: " if option in ("hardware", "workload", "stack") else f"--record {records}: "
    assert shown.err.startswith(begin) and said in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert not records.exists()
    assert recorded(trace, records) == 0
    before = records.read_text()
    assert recorded(trace, records, **{option: value}) == 2
    assert records.read_text() == before


def test_a_folder_of_machines_is_searched_as_validate_does(tmp_path: Path) -> None:
    machines = tmp_path / "machines"
    machines.mkdir()
    (machines / "my-box.yaml").write_text("extends: dgx-a100\nname: my-box\n")
    trace, records = profile(tmp_path), tmp_path / "runs.csv"
    assert recorded(trace, records, hardware="my-box") == 2
    assert recorded(trace, records, "--hardware-dir", str(machines), hardware="my-box") == 0
    assert [record.hardware for record in read_records(records).records] == ["my-box"]


def test_the_same_trace_is_added_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, records = profile(tmp_path), tmp_path / "runs.csv"
    assert recorded(trace, records) == 0
    before = records.read_text()
    capsys.readouterr()
    assert recorded(trace, records) == 2
    assert capsys.readouterr().err == f"{records}:2: already has an identical row for this job; a trace can be added only once\n"
    assert records.read_text() == before
    assert recorded(profile(tmp_path, late=4000.0), records) == 0
    assert len(read_records(records).records) == 2


# --- torch's own profiler --------------------------------------------------------------------------------------------


PROFILED = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
model = torch.nn.Linear(32, 32)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 32)), batch_size=8)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=3, repeat=1)) as profiler:
    for batch, in loader:
        model(batch).sum().backward()
        profiler.step()
        if profiler.step_num == 4:
            break
profiler.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_torch_s_own_trace_is_read(tmp_path: Path) -> None:
    """Oracle: torch.profiler. Without a GPU operators compute; with kernels added by hand, these do, steps and loader waits are torch's."""
    pytest.importorskip("torch")
    path = tmp_path / "cpu.json"
    profiled = subprocess.run([sys.executable, "-c", PROFILED, str(path)], capture_output=True, text=True, check=False, timeout=240)
    if profiled.returncode < 0:
        pytest.skip(f"torch's profiler died of signal {-profiled.returncode}")
    assert profiled.returncode == 0, profiled.stderr
    alone = import_traces([path])
    assert alone.traces[0].gpu == "CPU" and 0 < alone.stalls[Cause.COMPUTE] < alone.step_time
    document = json.loads(path.read_text())
    named = [trace_event for trace_event in document["traceEvents"] if trace_event.get("ph") == "X"]
    marks = sorted((mark["ts"], mark["ts"] + mark["dur"]) for mark in named if mark["name"].startswith("ProfilerStep#"))[1:]
    begin = marks[0][0]
    document["traceEvents"].append({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": begin, "dur": 1.0, "args": {}})
    path.write_text(json.dumps(document))
    job = import_traces([path])
    inside = [mark for mark in named if "__next__" in mark["name"] and any(start <= mark["ts"] < end for start, end in marks)]
    assert job.windows[0].steps == 2 and inside
    assert job.step_time == pytest.approx(1e-6 * (max(end for _, end in marks) - begin) / 2, abs=2e-9)
    assert job.stalls[Cause.COMPUTE] == pytest.approx(1e-6 / 2, rel=0.01)
    assert job.stalls[Cause.PREP] == pytest.approx(1e-6 * sum(mark["dur"] for mark in inside) / 2, rel=0.05, abs=2e-6)
