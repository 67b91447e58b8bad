"""How is each suggested command run? In a folder with the files that it names, with something for each name that is filled in."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import os
import shlex
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryDirectory

from calibration.cli import main as calibrator
from sim.cli import main as simulator
from sim.terminal import INTERRUPTED
from tests.fuzz.typed_values import files as typed_files

ROOT = Path(__file__).resolve().parents[2]
STANDS_FOR = {
    "HW": "p3.8xlarge", "WL": "alexnet", "DIR": "results", "N": "4", "HOST:8786": "localhost:8786", "A": "before.json", "B": "after.json",
    "JOBS": "resnet18-and-vgg16", "RECORD": "my-machine.json", "MODULE:CALLABLE": "my_model.py:build", "FILE.csv": "my-runs.csv",
    "MY-CLUSTER": "my-two-kinds.yaml", "MY-ARRAY": "256x-tpu-v2-v3", "dask://HOST:8786": "dask://localhost:8786",
    "rank*.json": "rank0.json",
}  # fmt: skip
INSTANCES: Mapping[str, str] = {
    "calibration blind X -o predicted.csv": "calibration blind hgx-h200 -o predicted.csv",
    "calibration blind FILE.csv": "calibration blind predicted.csv",
    "calibration blind HW": "calibration blind hgx-h200 -o predicted.csv",
    "calibration lab --layouts": "calibration lab --layouts --list",
    "calibration validate FILE.csv --hardware-dir DIR": "calibration validate my-runs.csv --hardware-dir my-machines",
    "calibration import-trace FILE": "calibration import-trace trace.json",
    "calibration fit RECORD": "calibration fit my-machine.json -o my-machine.yaml",
    "sim batches HW WL": "sim batches my-two-kinds.yaml alexnet",
    "sim share HW JOBS": "sim share p3.16xlarge four-on-eight-gpus",
    "sim check FILE -v": "sim check my-box.yaml -v",
    "sim extract MODULE:CALLABLE": "sim extract my_model.py:build --input 3x64x64",
    "sim extract net.py:Net --input input_ids=2048:int64": "sim extract my_model.py:build --input 3x64x64",
    "sim extract X:FUNCTION --input 3x224x224 -o model.yaml": "sim extract my_file.py:my_model --input 3x224x224 -o model.yaml",
    "sim goodput HW WL": "sim goodput p3.8xlarge alexnet --days 3",
    "sim list X": "sim list stacks",
    "sim list hardware --where gpu=X": "sim list hardware --where gpu=H100",
    "sim list hardware --where provider=X": "sim list hardware --where provider=aws",
    "sim new workload": "sim new workload --help",
    "sim new workload X": "sim new workload config.json",
    "sim new workload X -o mine.yaml": "sim new workload config.json -o mine.yaml",
    "sim new workload net.py:Net X -o X.yaml": "sim new workload my_model.py:build --input 3x64x64 -o t5.yaml",
    "sim new workload {file} -o mine.yaml": "sim new workload config.json -o mine.yaml",
    "sim plan HW WL": "sim plan hgx-h100 llama-3.2-1b",
    "sim plan X X --nodes X": "sim plan hgx-h100 llama-3.2-1b --nodes 1",
    "sim recommend": "sim recommend p3.2xlarge alexnet --budget-hours 1",
    "sim run HW WL -o X": "sim run p3.8xlarge alexnet -o results",
    "sim run HW X": "sim run p3.8xlarge my-job.yaml",
    "sim run hgx-h100 traces/allreduce.et": "sim run hgx-h100 traces/allreduce.et --gpus 4",
    "sim run X X --nodes 8": "sim run p3.16xlarge my-job.yaml --nodes 8",
    "sim run X XXXX": "sim run p3.8xlarge my-job.yaml --nodes 2",
    "sim run X alexnetX": "sim run my-box.yaml alexnet",
    "sim run X resnet50X": "sim run my-box.yaml resnet50 --nodes 2",
    "sim run p4d.24xlarge X --batch 16 --precision amp_bf16": "sim run p4d.24xlarge my-model.yaml --batch 16 --precision amp_bf16",
    "sim run p4d.24xlarge {file}": "sim run p4d.24xlarge my-job.yaml",
    "sim schema -o X": "sim schema -o schemas",
    "sim spot HW WL": "sim spot p3.2xlarge alexnet --epochs 1",
    "sim spot simulates them": "sim spot p3.2xlarge alexnet --epochs 1",
    "sim sweep HW WL --output FILE": "sim sweep p3.8xlarge alexnet --vary batch=8,16 --output table.csv",
    "sim whatif tries more": "sim whatif p3.8xlarge alexnet",
}
"""What a command is, whose text is filled with a name, or whose name and arguments alone are in a text."""
CANNOT: Mapping[str, str] = {
    "calibration profile -o my-machine.json": "measures for three minutes: `tests/calibration/measure/test_profile_run.py` does, quickly",
    "calibration blind predicted.csv --measure -o measured.csv": "needs an NVIDIA GPU",
    "calibration lab --layouts -o my-layouts.csv --limit 600": "needs root, and measures for ten minutes",
    "calibration lab calibration/lab/plans/two-cores.yaml -o my-lab.csv --limit 300": "needs root, and measures for five minutes",
    "calibration lab my-plan.yaml -o my-lab.csv --limit 300": "needs root, and measures for five minutes",
    "calibration collectives --write": "writes into this repository: `make validated`",
    "calibration validate -o validated": "takes 5 to 10 minutes: `tests/calibration/validate/test_published.py` does the same",
    "calibration longrun --seed 1 --json": "takes minutes: `tests/calibration/test_longrun.py` makes the same document",
    "sim study stash2022 --html stash2022.html": "takes minutes: -o stash2022 writes the same page",
    "sim study stash2022 -o DIR": "takes minutes: -o stash2022 does the same",
    "sim extract transformers:X --input XX": "needs the package transformers",
    "sim sweep p3.8xlarge resnet50 --vary 'batch=16,32,64' --nodes 1..4 -o grid.csv --cluster dask://HOST:8786":
        "needs a dask scheduler: `tests/study/test_dask.py` starts one",
}  # fmt: skip
"""What a test cannot run, and why."""

_BOX = "extends: p3.8xlarge\nname: my-box\n"
_JOB = "extends: resnet18\nname: my-job\n"
_MODULE = """import torch


def my_model() -> torch.nn.Module:
    return build()


def build(width: int = 8) -> torch.nn.Module:
    layers = torch.nn.Conv2d(3, width, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width, 10)
    return torch.nn.Sequential(*layers)
"""
_TWO_KINDS = "name: my-two-kinds\nsource: a test\ngroups:\n  - {node: p3.8xlarge, count: 1}\n  - {node: g4dn.12xlarge, count: 1}\n"
_CLUSTER = "name: my-cluster\nsource: a test\ngroups:\n  - {node: hgx-h100, count: 2}\n"
_PHOTOS = "extends: resnet50\nname: my-photos\n"
_LORA = "extends: llama-3.1-8b\nname: lora-8b\nmodel: {extends: llama-3.1-8b, lora: {rank: 16}}\n"
_RUNS = "machine,model,nodes,batch_size_per_gpu,step_time_ms\np3.8xlarge,resnet18,1,32,100\np3.8xlarge,resnet18,2,32,120\n"


def _profile() -> bytes:
    """Return the trace of a simulated job on all GPUs of a p3.16xlarge, whose gradients a replay finds."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        words = f"run p3.16xlarge resnet50 --batch 64 --fast --trace {path}".split()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert simulator(words) == 0
        return path.read_bytes()


@cache
def files() -> Mapping[str, bytes]:
    """Return the files that suggested commands name."""
    own = typed_files()
    records = ROOT / "calibration" / "records"
    text = {
        "my-box.yaml": _BOX, "my.yaml": "extends: p3.16xlarge\nname: my\n", "my-machine.yaml": "extends: hgx-h100\nname: my-machine\n",
        "my-machines/my-box.yaml": _BOX,
        "my-job.yaml": _JOB, "mine.yaml": _JOB, "my_file.py": _MODULE, "my_model.py": _MODULE, "my-two-kinds.yaml": _TWO_KINDS,
        "my-cluster.yaml": _CLUSTER, "my-photos.yaml": _PHOTOS, "lora-8b.yaml": _LORA, "my-runs.csv": _RUNS,
    }  # fmt: skip
    return {name: content.encode() for name, content in text.items()} | {
        "my-model.yaml": (ROOT / "workloads/models/resnet50.yaml").read_bytes(), "topo.txt": own["topo.txt"],
        "config.json": own["config.json"], "ds_config.json": own["ds.json"], "before.json": own["run.json"],
        "after.json": own["after.json"],
        "before/run.json": own["run.json"], "after/run.json": own["after.json"], "my-collectives.csv": own["collectives.csv"],
        "all_reduce_perf.txt": own["all_reduce_perf.txt"], "my-machine.json": own["record.json"], "my-llm-runs.csv": own["llm.csv"],
        "my-lab.csv": (records / "lab.csv").read_bytes(), "my-layouts.jsonl": (records / "lab-layouts.jsonl").read_bytes(),
        "my-plan.yaml": own["plan.yaml"],
        "runs.csv": own["runs.csv"], "trace.json": own["trace.json"], "trace.json.gz": gzip.compress(own["trace.json"]),
        "rank0.json": _profile(),
        "predicted.csv": own["predicted.csv"],
    }  # fmt: skip


MACHINES: Mapping[str, Mapping[str, str]] = {"sim run mine.yaml resnet50 --nodes 4": {"mine.yaml": _BOX}}
"""Commands that mean another file by a name than the others do."""


def words_of(line: str) -> list[str]:
    """Return the words of the suggested *line*, with something for each placeholder."""
    return [STANDS_FOR.get(word, word) for word in shlex.split(INSTANCES.get(line, line))]


@contextmanager
def _folder(place: Path, line: str, words: list[str]) -> Iterator[None]:
    """Work in *place*, with the files that *line* reads; those that it writes are not there yet."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    outputs = {word for before, word in itertools.pairwise(words) if before in ("-o", "--output", "--hardware-out", "--workload-out")}
    for name, content in (files() | {name: text.encode() for name, text in MACHINES.get(line, {}).items()}).items():
        if name not in outputs or words[:2] == ["calibration", "fit"]:
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(content)
    for folder in ("hardware", "workloads", "examples", "calibration"):
        (place / folder).symlink_to(ROOT / folder)
    (place / "traces").mkdir()
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


def _stop_serving(number: int, frame: object) -> None:
    signal.raise_signal(signal.SIGINT)


def run(line: str, place: Path) -> str:
    """Run the suggested *line* in *place*; return what went wrong, empty if nothing did: its result may be that nothing qualifies (1)."""
    words = words_of(line)
    words += ["--help"] if line.count(" ") < 2 else []  # named, not typed: "see python -m sim list"
    program = {"sim": simulator, "calibration": calibrator}[words[0]]
    serves = words[:2] == ["sim", "ui"] and "--help" not in words
    stdout, stderr = io.StringIO(), io.StringIO()
    with _folder(place, line, words), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        if any(word.startswith("traces/allreduce") for word in words):
            for trace in (ROOT / "examples/chakra").glob("*.et"):
                shutil.copy(trace, Path("traces") / trace.name.replace("two-layers", "allreduce"))
        elif "traces/" in words and "--chakra" not in words:
            assert (
                simulator(["run", "hgx-h100", "llama-3.2-1b", "--parallel", "shard=parameters", "--nodes", "2", "--chakra", "traces/"]) == 0
            )
        before = signal.signal(signal.SIGALRM, _stop_serving)
        try:
            signal.setitimer(signal.ITIMER_REAL, 2.0 if serves else 0.0, 3.0)  # again, where the first is lost in an import
            code = program(words[1:])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            for process in active_children() if serves else ():
                if process.pid is not None:  # joblib's processes have no kill that works
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
    if code in ((0, 1, INTERRUPTED) if serves else (0, 1)) and "Traceback" not in stderr.getvalue():
        return ""
    return f"{shlex.join(words)}: ends with {code}: {stderr.getvalue()[-600:]}"
