"""Which values would somebody type? Some for each option that are right for small jobs, and a start of each command to build on.

What is not listed follows from the parser: completions, a choice written ``a|b``, or the type. Values of long jobs are bounded, so that
what is typed takes seconds where the program does what it says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tests.calibration.test_nccl_tests import output as nccl_output
from tests.fuzz.readers import ROOT, readers

PAGES, TABLES, FOLDERS, DESCRIPTIONS = ("out.html", "page.htm"), ("out.csv", "results.csv"), ("results", "new/folder"), ("made.yaml",)
VALUES: Mapping[str, Sequence[str]] = {
    # the job
    "--batch": ("1", "4", "16", "max"), "--global-batch": ("16", "64", "256"), "--sequence": ("128", "1024"),
    "--precision": ("fp32", "amp_fp16", "bf16", "amp_bf16", "fp8"), "--stack": ("torch-2.x-ddp", "torchtitan-2.x", "megatron-core"),
    "--epochs": ("1", "0.5", "90"), "--hours": ("1", "12.5"), "--tokens": ("1B", "300B", "2e9", "5000000"), "--days": ("1", "3", "54"),
    "--steps": ("100", "5000"), "--evaluation": ("0", "0.1", "1"), "--seed": ("0", "7"), "--shares": ("3,1,1,1", "1,1/1,3"),
    "--op": ("all_reduce", "all_gather", "all_to_all", "send_recv", "broadcast", "parameter_server"),
    "--bytes": ("1MiB", "1MiB..64MiB", "1KiB..1MiB:3", "4 B"), "--compute-time": ("100 ms", "2 s"),
    "--input": ("8", "x=8", "8x8:int64", "t=scalar:int64"), "--example": ("net:inputs", "net.py:inputs"), "--arg": ("width=4", "width=8"),
    "--from": ("config.json", "job.sbatch", "train.toml", "ds.json", "accelerate.yaml", "net.py:Net", "llama-3.2-1b"),
    "--name": ("mine", "my-model"), "--models": ("alexnet", "alexnet,vgg11"), "--model": ("net:Net",), "--workload": ("alexnet",
    "job.yaml"),
    "--dataset": ("imagenet", "text"),
    # layout
    "--tp": ("2", "4", "8"), "--pp": ("2", "4"), "--cp": ("2",), "--ep": ("2",), "--replicate": ("2",), "--micro-batches": ("2", "8"),
    "--wrap": ("layer*", "layer*.*+head", "min_params=1M"), "--stage": ("0", "1"),
    "--parallel": ("tp=8", "tp=2,pp=2", "shard=parameters", "cp=2,tp=2", "virtual_stages=2,pp=2", "reshard_after_forward=true"),
    "--fix": ("tp=8", "pp=2", "shard=optimizer", "tp=2,pp=2", "recompute=none", "micro_batches=4", "batch=1", "schedule=1f1b"),
    "--allow": ("fp8", "zero_bubble", "no-recompute", "gpipe,selective", "wide_tensor"),
    # the machine
    "--nodes": ("1", "2", "4", "1..2", "1,2", "1..3:2"), "--gpus": ("1", "4", "8", "1..8"), "--placement": ("1", "2", "1+2", "4+4"),
    "--power-cap": ("300 W", "500W"), "--workers": ("4", "16"), "--where": ("gpus=1", "provider=aws", "gpu=V100*", "gpus=1..2"),
    "--hardware": ("p3.2xlarge", "hgx-h100", "box.yaml"), "--hardware-dir": (".", "folder"), "--workload-dir": (".", "folder"),
    "--twin": ("p3.8xlarge", "none"), "--from-topo": ("topo.txt", "topo.xml"), "--gpu": ("V100-SXM2-16GB", "A100-SXM4-40GB"),
    "--nic-bandwidth": ("200 Gbps", "25 Gbps"), "--transport": ("tcp", "infiniband", "efa"), "--memory": ("1 TiB", "244 GiB"),
    "--algo": ("Ring", "Tree", "Ring,Tree", "^Tree"), "--proto": ("Simple", "LL", "^LL128"), "--channels": ("1", "8"),
    "--per-process": ("2",), "--nccl": ("2.3", "2.10", "2.30"), "--device": ("cpu",), "--ranks": ("1", "2"), "--folder": (".", "folder"),
    # money
    "--price": ("p3.2xlarge=2 USD/h", "p3.8xlarge='14.90 USD/h'"), "--prices": ("mine",), "--budget-hours": ("1", "24", "0.5"),
    "--budget-usd": ("10", "250.5"), "--today": ("2026-11-25", "2027-01-31"), "--refresh": ("lists", "folder"), "--date": ("2026-07-20",),
    "--region": ("us-east-1", "europe-north1", "FRA"),
    # failures
    "--mean-lifetime": ("20h", "3 d"), "--reliability": ("low", "middle", "high", "rates.yaml"), "--failure-rate": ("0.0038 /d", "1 /d"),
    "--checkpoint-interval": ("auto", "30 min", "none"), "--spares": ("0", "1", "2"), "--trials": ("2", "20"),
    "--store": ("object-store", "disk", "store.yaml"),
    # the search
    "--objective": ("time", "cost", "energy"), "--max-memory": ("70GiB", "16 GiB"), "--simulate": ("1", "2"), "--sobol": ("2", "4"),
    "--vary": (
        "batch=8,16", "nodes=1..4", "node.nic.bandwidth=10..100 Gbps:3", "precision=fp32,amp_fp16", "training.batch=1..8:log2", "gpus=1,2",
    ),
    "--policy": ("even", "greedy", "wait", "shrink"), "--sort": ("time", "cost", "step", "name"), "--jobs": ("1", "2"),
    "--cluster": ("dask://localhost:1",), "--predictor": ("closed-form", "both", "simulator"), "--left-out": ("source", "nodes,source"),
    "--only": ("disk", "disk,loading"), "--limit": ("1",),
    # output
    "--html": PAGES, "--trace": ("t.json", "t.json.gz", "traces"), "--export": FOLDERS, "--chakra": FOLDERS,
    "--journal": ("saved.journal",),
    "--output": ("results", "out.csv", "made.yaml"), "--comm-groups": ("comm_group.json",), "--plot": ("out.png", "out.svg"),
    "--record": ("runs.csv",), "--fail-if": ("overall.calibrated.median>0.1", "overall.rows<1"), "--workload-out": DESCRIPTIONS,
    "--hardware-out": DESCRIPTIONS, "--by": ("nodes", "gpus,workload"), "--port": ("0", "8421"),
}  # fmt: skip
"""By option; a name means the same in every command."""
OF_COMMAND: Mapping[tuple[str, str], Sequence[str]] = {
    ("sim sweep", "--output"): TABLES, ("sim extract", "--output"): DESCRIPTIONS, ("sim new", "--output"): DESCRIPTIONS,
    **{(f"sim {name}", "--output"): FOLDERS for name in ["run", "compare", "recommend", "plan", "spot", "share", "goodput", "whatif",
    "diff", "collective", "profile"]},
    ("sim show", "--output"): FOLDERS, ("sim schema", "--output"): FOLDERS,
    ("calibration fit", "--output"): DESCRIPTIONS, ("calibration profile", "--output"): ("record.json", "new.json"),
    **{(f"calibration {name}", "--output"): TABLES for name in ["lab", "blind", "collectives"]},
    ("calibration validate", "--output"): FOLDERS, ("calibration validate", "--jobs"): ("1",), ("calibration validate",
    "--memory"): ("llm.csv",),
    ("sim spot", "--policy"): ("wait", "shrink", "replace"), ("sim share", "--policy"): ("even", "proportional", "greedy"),
    ("sim goodput", "--nodes"): ("1", "4", "64"), ("sim plan", "--gpus"): ("4", "8"), ("sim plan", "--nodes"): ("1",),
    ("sim whatif", "--nodes"): ("1", "2"), ("sim profile", "--nodes"): ("1", "2"), ("sim goodput", "--gpus"): ("4", "8"),
    ("sim whatif", "--gpus"): ("2", "4"), ("sim collective", "--gpus"): ("2", "4"), ("sim collective", "--nodes"): ("1", "2"),
    ("sim show", "--nodes"): ("1",), ("sim compare", "--batch"): ("1", "16"), ("sim recommend", "--batch"): ("1", "16"),
    ("calibration fit", "--hardware"): ("p3.2xlarge", "box.yaml"), ("sim goodput", "--reliability"): ("low", "high", "rates.yaml"),
}  # fmt: skip
"""Where a command takes less, or names another thing."""

STARTS: Mapping[str, Sequence[str]] = {
    "sim": ("",),
    "sim run": (
        "p3.2xlarge alexnet --fast", "p3.8xlarge resnet18 --fast", "box.yaml job.yaml --fast", "hgx-h100 llama-3.2-1b --fast",
        "hgx-h100 qwen2.5-0.5b --tp 2", "hgx-h100 llama-3.2-1b --shard parameters", "p3.2xlarge toy.0.et",
    ),
    "sim compare": ("alexnet p3.2xlarge g5.xlarge --jobs 1", "qwen2.5-0.5b gpu_1x_h100_sxm5 --jobs 1"),
    "sim recommend": (
        "alexnet p3.2xlarge --budget-hours 9 --nodes 1 --jobs 1", "alexnet p3.2xlarge --budget-usd 100 --nodes 1..2 --jobs 1",
        "resnet18 p3.2xlarge --budget-hours 4 --nodes 1 --jobs 1",
    ),
    "sim plan": ("hgx-h100 llama-3.2-1b --gpus 2 --simulate 1 --jobs 1", "hgx-h100 qwen2.5-0.5b --gpus 4 --simulate 2 --jobs 1 --fix tp=2"),
    "sim batches": ("two-kinds.yaml alexnet --simulate 5", "two-kinds.yaml resnet18 --global-batch 64 --simulate 5"),
    "sim goodput": (
        "p3.8xlarge alexnet --days 3 --trials 20 --fast", "hgx-h100 gpt2 --tokens 1B --trials 10 --fast --nodes 2",
        "hgx-h100 llama-3.2-1b --days 2 --trials 5 --fast --shard parameters",
    ),
    "sim spot": ("p3.2xlarge alexnet --epochs 1 --trials 20 --jobs 1", "p3.8xlarge resnet18 --steps 1000 --trials 10 --jobs 1"),
    "sim sweep": ("p3.2xlarge alexnet --vary batch=8,16 -o out.csv --jobs 1", "p3.2xlarge alexnet --nodes 1,2 -o out.csv --jobs 1"),
    "sim whatif": ("p3.2xlarge alexnet", "hgx-h100 qwen2.5-0.5b --tp 2"),
    "sim profile": ("p3.2xlarge alexnet", "hgx-h100 qwen2.5-0.5b --shard parameters"),
    "sim share": ("p3.16xlarge resnet18-and-vgg16", "p3.8xlarge jobs.yaml"),
    "sim collective": ("p3.8xlarge --bytes 1MiB", "hgx-h100 --tp 2 --group tp --bytes 1MiB",
    "p3.8xlarge --op parameter_server --bytes 1MiB"),
    "sim diff": ("run.json after.json", "run.json run.json"),
    "sim list": ("hardware", "workloads", "gpus", ""),
    "sim show": ("alexnet", "alexnet resnet18 --hardware p3.8xlarge", "job.yaml --hardware p3.2xlarge"),
    "sim check": ("box.yaml", "alexnet p3.2xlarge", "job.yaml model.yaml"),
    "sim new": (
        "--from-topo topo.txt -o made.yaml --gpu V100-SXM2-16GB", "hardware --from-topo topo.xml -o made.yaml",
        "workload config.json -o made.yaml",
        "workload config.json ds.json -o made.yaml", "workload job.sbatch -o made.yaml", "workload train.toml -o made.yaml",
        "workload llama-3.2-1b ds.json -o made.yaml",
    ),
    "sim extract": ("net.py:Net --input 8 -o made.yaml", "net.py:Net --example net.py:inputs -o made.yaml", "net.pt2 -o made.yaml"),
    "sim prices": ("", "aws H100", "p3.2xlarge", "--refresh lists"),
    "sim schema": ("",),
    "sim ui": ("--port 0", "p3.2xlarge alexnet --port 0", "hgx-h100 llama-3.2-1b --port 0"),
    "sim study accpar": ("--models alexnet --jobs 1",),
    "sim study stash2022": ("-o job.yaml",),
    "calibration": ("",),
    "calibration profile": ("--list", "--device x", "--device cuda --list"),
    "calibration lab": ("--list", "plan.yaml --list", "lab.csv --score"),
    "calibration fit": ("record.json -o made.yaml",),
    "calibration import-trace": ("trace.json --hardware p3.2xlarge --batch 8", "sim.json", "trace.json"),
    "calibration validate": ("my-runs.csv --jobs 1", "runs.csv --jobs 1", "llm.csv --jobs 1 --predictor closed-form"),
    "calibration blind": ("predicted.csv", "predicted.csv --measure -o out.csv"),
    "calibration records": ("my-runs.csv", "runs.csv"),
    "calibration collectives": ("collectives.csv", "all_reduce_perf.txt --hardware hgx-h100"),
    "calibration kernels": ("--json", ""),
    "calibration servers": ("",),
    "calibration longrun": ("--absent", "extra"),
    "calibration energy": ("",),
}  # fmt: skip
"""By command, what to begin with; that of a command that is not here follows from its arguments."""
ARGUMENTS: Mapping[str, Sequence[str]] = {
    "HW": ("p3.2xlarge", "p3.8xlarge", "hgx-h100", "box.yaml"), "WL": ("alexnet", "gpt2", "job.yaml"), "JOBS": ("resnet18-and-vgg16",),
    "FILE": ("job.yaml", "box.yaml"), "KIND": ("hardware", "gpus"), "NAME": ("alexnet", "p3.2xlarge"), "A": ("run.json",),
    "B": ("after.json",),
    "RECORD": ("record.json",), "FILE.csv": ("my-runs.csv",), "MODULE:CALLABLE": ("net.py:Net",),
}  # fmt: skip
"""By the name of an argument, without brackets."""

_MODULE = """import torch


class Net(torch.nn.Sequential):
    def __init__(self, width: int = 4) -> None:
        super().__init__(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))


def inputs(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.zeros(batch, 8),)
"""
_JOBS = """name: two
jobs:
  - {workload: alexnet, placement: "1", epochs: 0.1}
  - {workload: resnet18, placement: "1", start: 1 min, epochs: 0.1}
"""
_TWO_KINDS = """name: two-kinds
source: a test
groups:
  - {node: p3.2xlarge, count: 1}
  - {node: g4dn.xlarge, count: 1}
"""
_RATES = "extends: middle\nname: mine\n"
_STORE = "extends: object-store\nname: mine\nbandwidth: 10 GB/s\nsource: {bandwidth: a test}\n"
_PRICE_LIST = (
    b"InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
    b"zz-none.48xlarge,H100,8.0,192,2048,,55.04,20.67,us-east-1,us-east-1a\n"
)
"""Of no machine of the catalog: its prices must not change."""


@cache
def files() -> Mapping[str, bytes]:
    """Return the files that may be named, and what is in each."""
    own = {reader.file: reader.content for reader in readers().values()}
    document: Any = json.loads(own["run.json"])
    after = json.dumps({**document, "step_time_s": 2 * document["step_time_s"]}).encode()
    return own | {
        "job.yaml": b"extends: alexnet\nname: job\n", "empty.yaml": b"", "net.py": _MODULE.encode(), "jobs.yaml": _JOBS.encode(),
        "two-kinds.yaml": _TWO_KINDS.encode(), "rates.yaml": _RATES.encode(), "store.yaml": _STORE.encode(), "after.json": after,
        "all_reduce_perf.txt": nccl_output().encode(), "folder/box.yaml": own["box.yaml"], "lists/aws/vms.csv": _PRICE_LIST,
        "lab.csv": b"".join((ROOT / "calibration/records/lab.csv").read_bytes().splitlines(keepends=True)[:12]),
    }  # fmt: skip
