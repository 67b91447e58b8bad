"""Which files does the program read, and what reads them? For each kind a valid one, small, and the function that takes its path."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from calibration.blind import table as blind_table
from calibration.blind.table import score_rows
from calibration.collectives.records import COLLECTIVE_TIMES, read_collectives
from calibration.lab.plan import read_plan
from calibration.lab.records import read_lines, rows_text
from calibration.llm.table import is_llm_table
from calibration.llm.table import read_table as read_llm_table
from calibration.machines.machine_fit import fits, merge_records
from calibration.measure.machine_record import record_text
from calibration.run_records import read_records, read_table
from calibration.traces.import_trace import import_traces
from calibration.traces.trace_report import trace_document, trace_record, trace_table
from sim import check
from sim.documents import document
from sim.extract.archive import check_archive
from sim.report.difference import difference, difference_text, read_document
from sim.report.page.difference import difference_page
from sim.spec import price_files
from sim.spec.foreign.chakra_files import read_groups, read_trace
from sim.spec.foreign.topo_import import read_topology
from sim.spec.library import load_hardware, load_model_alone, load_workload
from sim.study.journal import Journal
from sim.study.new.workload import new_workload
from sim.study.scenario import Scenario
from sim.study.whole_job import plan_of
from tests.calibration.machine_records import cpu_record
from tests.calibration.traces.test_import_trace import step
from tests.spec import topologies
from tests.spec.foreign.test_chakra_wire import ALL_REDUCE
from tests.spec.foreign.test_chakra_wire import JSON as CHAKRA_JSON

ROOT = Path(__file__).resolve().parents[2]


class Reader(NamedTuple):
    """The name of a file of one kind, its content, and what reads it."""

    file: str
    content: bytes
    read: Callable[[Path], object]


def readers() -> Mapping[str, Reader]:
    """Return every reader by kind."""
    return {
        "hardware": Reader("box.yaml", (ROOT / "hardware/p3.8xlarge.yaml").read_bytes(), _hardware),
        "gpu": Reader("gpu.yaml", (ROOT / "hardware/parts/gpus/l4.yaml").read_bytes(), _gpu),
        "workload": Reader("job.yaml", (ROOT / "workloads/alexnet.yaml").read_bytes(), _workload),
        "model": Reader("model.yaml", (ROOT / "workloads/models/alexnet.yaml").read_bytes(), load_model_alone),
        "topology xml": Reader("topo.xml", topologies.XML_NC_A100.encode(), read_topology),
        "topology matrix": Reader("topo.txt", topologies.P3_8XLARGE.encode(), read_topology),
        "trace": Reader("trace.json", _trace(), _imported),
        "simulated trace": Reader("sim.json", _trace(stallsim={"ranks": [{"pid": 0, "rank": 0, "stands_for": 2, "nodes": 1}]}), _imported),
        "machine record": Reader("record.json", record_text(cpu_record()).encode(), _fitted),
        "run records": Reader("runs.csv", _head(ROOT / "calibration/records/runs.csv", 12), read_records),
        "collectives": Reader("collectives.csv", _head(COLLECTIVE_TIMES, 12), read_collectives),
        "laboratory": Reader("lab.jsonl", _head(ROOT / "calibration/records/lab.jsonl", 2), _laboratory),
        "plan": Reader("plan.yaml", (ROOT / "calibration/lab/plans/two-cores.yaml").read_bytes(), read_plan),
        "journal": Reader("t.csv.journal", _journal(), _kept),
        "document": Reader("run.json", _run_document(), _compared),
        "configuration": Reader("config.json", json.dumps(_CONFIGURATION).encode(), _made),
        "batch script": Reader("job.sbatch", _SCRIPT.encode(), _made),
        "torchtitan": Reader("train.toml", _TORCHTITAN.encode(), _made),
        "deepspeed": Reader("ds.json", json.dumps(_DEEPSPEED).encode(), _laid_out),
        "accelerate": Reader("accelerate.yaml", _ACCELERATE.encode(), _laid_out),
        "table of runs": Reader("my-runs.csv", _RUNS.encode(), read_table),
        "prices": Reader("vms.csv", _PRICES.encode(), price_files.skypilot_offers),
        "generated prices": Reader("zz_generated.pricing_aws.go", _GENERATED.encode(), price_files.generated_offers),
        "regional prices": Reader("initial-prices.json", json.dumps(_REGIONAL).encode(), price_files.regional_offers),
        "transformer runs": Reader("llm.csv", _TRANSFORMER_RUNS.encode(), _transformer_runs),
        "blind table": Reader("predicted.csv", _BLIND.encode(), lambda path: score_rows(blind_table.read_table(path))),
        "chakra": Reader("toy.0.et", ALL_REDUCE, lambda path: read_trace(str(path))),
        "chakra json": Reader("toy.0.et.json", CHAKRA_JSON.encode(), lambda path: read_trace(str(path))),
        "communicators": Reader("comm_group.json", b'{"1": [0, 1], "2": [1]}', lambda path: read_groups(path, 2)),
        "archive": Reader("net.pt2", _archive(), check_archive),
    }


_SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:h100:8
srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 train.py --per_device_train_batch_size 2 --bf16 True --fsdp full_shard \\
    --gradient_accumulation_steps 4 --num-layers 2 --hidden-size 64 --num-attention-heads 4 --padded-vocab-size 1024 --seq-length 128 \\
    --position-embedding-type rope
"""
_TORCHTITAN = """[job]
description = "a test"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
global_batch_size = 16
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
"""
_DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
}  # fmt: skip
_ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_activation_checkpointing: true}
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
_RUNS = """machine,model,nodes,tp,zero_stage,strategy,seq_len,batch_size_per_gpu,step_time_ms
p3.8xlarge,resnet18,1,1,0,ddp,,32,100
hgx-h100,llama-3.2-1b,2,8,3,fsdp,4096,1,400
"""


_TRANSFORMER_RUNS = """# measured by us
model,seq_len,gpu,gpus,dp,global_batch,tokens_per_s_per_gpu
Llama 3.1 8B,8192,H100,8,8,64,9500
"""
_BLIND = ",".join(blind_table.COLUMNS) + "\nstep,resnet50,fp16,64,s,0.1,0.09,0.11,0.105,\n"
_PRICES = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
p5.48xlarge,H100,8.0,192,2048,"{'Gpus': [{'Name': 'H100', 'Count': 8.0}]}",55.04,20.67,us-east-1,us-east-1a
"""
_GENERATED = """package pricing
// generated at 2026-07-20T13:23:24Z for us-east-1
var InitialOnDemandPricesAWS = map[string]map[ec2types.InstanceType]float64{
\t"us-east-1": {
\t\t"p5.48xlarge": 55.040000, "p5.4xlarge": 6.880000,
\t},
}
"""
_REGIONAL = {"prices": {"us-central1": {"on_demand": {"a3-highgpu-8g": 88.49}, "spot": {"a3-highgpu-8g": 50.6}}}}


def _head(path: Path, lines: int) -> bytes:
    """Return the first *lines* of *path* that are no comments."""
    return b"".join([line for line in path.read_bytes().splitlines(keepends=True) if not line.startswith(b"#")][:lines])


def _trace(**more: object) -> bytes:
    events = [{**event, "pid": 0} for number in range(3, 6) for event in step(number)]
    ranks = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2 if more else 1}}
    return json.dumps({"deviceProperties": [{"name": "V100"}], **ranks, **more, "traceEvents": events}).encode()


def _journal() -> bytes:
    lines = []
    for key in "ab":
        text = json.dumps({"key": key, "figures": {"step_time_s": 1.0, "problem": ""}})[:-1]
        lines.append(f'{text}, "sum": "{sha256(text.encode()).hexdigest()[:16]}"}}\n')
    return "".join(lines).encode()


def _archive() -> bytes:
    content = BytesIO()
    listed = {"config": {"weight": {"path_name": "weight_0", "is_param": True, "use_pickle": False}}}
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("model/data/weights/model_weights_config.json", json.dumps(listed))
        file.writestr("model/data/weights/weight_0", bytes(4))
    return content.getvalue()


def _run_document() -> bytes:
    return json.dumps(document(Scenario("p3.8xlarge", "alexnet", plan=plan_of(2, None)))).encode()


# --- what reads them -------------------------------------------------------------------------------------------------


def _hardware(path: Path) -> None:
    loaded = load_hardware(str(path))
    check.check_hardware(loaded.spec, loaded.document)
    check.count_estimates(loaded.spec, loaded.document)


def _gpu(path: Path) -> None:
    loaded = load_hardware("p3.2xlarge", [f"node.gpu={path}"])
    check.check_hardware(loaded.spec, loaded.document)


def _workload(path: Path) -> None:
    loaded = load_workload(str(path))
    check.check_workload(loaded.spec, loaded.document)


def _imported(path: Path) -> None:
    job = import_traces([path])
    row = trace_record(job)
    json.dumps(trace_document(job, row), allow_nan=False)
    trace_table(job)


def _fitted(path: Path) -> None:
    fits(merge_records([path]))


def _transformer_runs(path: Path) -> None:
    if is_llm_table(path):
        read_llm_table(path)


def _laboratory(path: Path) -> None:
    rows_text(read_plan(ROOT / "calibration/lab/plans/two-cores.yaml"), read_lines(path))


def _kept(path: Path) -> None:
    with Journal(path) as journal:
        for key in ("a", "b"):
            if key in journal:
                dict(journal[key])
        journal.note("c", {"step_time_s": 2.0})
        assert journal["c"] == {"step_time_s": 2.0}


def _compared(path: Path) -> None:
    before = read_document(path)
    for old, new in ((before, _PLAIN), (_PLAIN, before)):
        changes = difference(old, new)
        json.dumps(changes, allow_nan=False)
        difference_text(changes, old, new)
        difference_page(changes, old, new)


_CONFIGURATION: Mapping[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 512, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def _made(path: Path) -> None:
    new_workload([str(path)], path.with_name("made.yaml"), overwrite=True)


def _laid_out(path: Path) -> None:
    new_workload(["llama-3.2-1b", str(path)], path.with_name("made.yaml"), overwrite=True)


_PLAIN: Mapping[str, Any] = json.loads(_run_document())
