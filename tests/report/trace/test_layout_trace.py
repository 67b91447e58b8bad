"""Do traces of layouts name what is sent as PyTorch's profiler does? Oracles: torch's header, groups of the mesh, programs, HTA."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sim.mesh import LayoutRun, run_layout
from sim.parallel.lower.layouts import program
from sim.parallel.program import Receive, Send, Start
from sim.report.trace.layout_trace import write_layout_trace
from tests.late import torch
from tests.report.trace.test_run_trace import hta_python
from tests.training.layouts.toys import free, split_block, workload

_KEYS = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size")
KEYS = (*_KEYS, "Process Group Name", "Process Group Description", "Process Group Ranks", "Src Rank", "Dst Rank")
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor, pipeline, FSDP": {"tensor": 2, "pipeline": 2, "shard": "parameters", "micro_batches": 4},
    "HSDP": {"shard": "parameters", "replicate": 2},
    "pipeline, sharded optimizer": {"pipeline": 4, "shard": "optimizer", "micro_batches": 4},
}


@cache
def ran(name: str) -> LayoutRun:
    toy = [each for number in range(4) for each in split_block(number, 1000)]
    return run_layout(free(8), workload(toy, **LAYOUTS[name]))


def documents(name: str, folder: Path) -> list[dict[str, Any]]:
    write_layout_trace(ran(name), folder / "traces")
    return [json.loads((folder / "traces" / f"rank{rank}.json").read_text()) for rank in range(8)]


def kernels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [each["args"] for each in document["traceEvents"] if each.get("cat") == "kernel" and each["name"].startswith("nccl")]


@pytest.mark.needs("torch")
def test_arguments_are_those_of_torchs_profiler(tmp_path: Path) -> None:
    header = (Path(torch.version.__file__).parent / "include" / "torch" / "csrc" / "profiler" / "util.h").read_text()
    assert all(f'"{key}"' in header for key in KEYS)
    for document in documents("tensor, pipeline, FSDP", tmp_path):
        assert all(set(_KEYS) < set(args) <= {*KEYS, "stream", "device", "what", "resource", "bytes"} for args in kernels(document))


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_rank_has_all_it_sends_in_groups_that_its_peers_know(name: str, tmp_path: Path) -> None:
    """Oracles: the program's operations and bytes; ranks that name one group name the same ranks, themselves among them."""
    run, ranks_by_group = ran(name), dict[str, set[str]]()
    for rank, document in enumerate(documents(name, tmp_path)):
        kernel_args = kernels(document)
        for args in kernel_args:
            ranks = json.loads(args["Process Group Ranks"])
            assert rank in ranks
            assert len(ranks) == args["Group size"]
            ranks_by_group.setdefault(args["Process Group Name"], set()).add(args["Process Group Ranks"])
            if args["Collective name"] == "_allgather_base":
                assert args["Out msg nelems"] == args["In msg nelems"] * args["Group size"]
        configured = {each["pg_name"]: str(each["ranks"]) for each in document["distributedInfo"]["pg_config"]}
        assert all(configured[args["Process Group Name"]] == args["Process Group Ranks"] for args in kernel_args)
        made = program(run.layout, run.mesh.stage_of(rank))
        counts = [sum(isinstance(each, kind) for each in made) for kind in (Send, Receive)]
        assert [sum(args["Collective name"] == end for args in kernel_args) for end in ("send", "recv")] == counts
        gathered = sum(each.nbytes for each in made if isinstance(each, Start) and each.op == "all_gather")
        width = run.layout.gathered_width
        assert sum(args["Out msg nelems"] * width for args in kernel_args if args["Collective name"] == "_allgather_base") == pytest.approx(
            gathered
        )
    assert all(len(ranks) == 1 for ranks in ranks_by_group.values())


HTA = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
print(analysis.get_temporal_breakdown(visualize=False).set_index("rank").to_json(orient="index"))
"""


@pytest.mark.slow
def test_holistic_trace_analysis_opens_all_ranks(tmp_path: Path) -> None:
    """Oracle: HTA's own breakdown has every rank, all of a stage alike."""
    python = hta_python()
    if python is None:
        pytest.skip("HolisticTraceAnalysis with pandas before 3 is not installed: make oracles")
    documents("tensor, pipeline, FSDP", tmp_path)
    shown = subprocess.run([python, "-c", HTA, str(tmp_path / "traces")], capture_output=True, text=True, check=True, timeout=240).stdout
    breakdown = json.loads(shown.splitlines()[-1])
    assert sorted(map(int, breakdown)) == list(range(8))
    for stage in (0, 1):
        first, *others = (breakdown[str(rank)] for rank in range(8) if ran("tensor, pipeline, FSDP").mesh.stage_of(rank) == stage)
        assert all(other == first for other in others)
