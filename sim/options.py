"""Which options do several commands share? Their types, names and help, written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.report.files import file_due, folder_due

Hw = Annotated[str, typer.Argument(metavar="HW", help="hardware: a YAML file or a catalogue name such as p3.16xlarge")]
Wl = Annotated[str, typer.Argument(metavar="WL", help="workload: a YAML file or a catalogue name such as vgg16")]
Sets = Annotated[
    list[str], typer.Option("--set", metavar="K=V", help="override any field, for example node.nic.bandwidth='100 Gbps'; repeatable")
]
Where = Annotated[list[str], typer.Option("--where", metavar="COND", help="machines of the catalogue, for example gpus=8; repeatable")]
Count = Annotated[str | None, typer.Option("--nodes", metavar="N", help="number of nodes (machines)")]
Nodes = Annotated[str | None, typer.Option(metavar="N|A..B", help="nodes of the only group; 1..8 tries 1, 2, 4 and 8; 1..4:4 four numbers")]
Batch = Annotated[int | None, typer.Option(min=1, help="samples per GPU")]
GlobalBatch = Annotated[int | None, typer.Option(min=1, help="samples of all GPUs together (strong scaling)")]
Precision = Annotated[str | None, typer.Option(help="fp32, tf32, amp_fp16, amp_bf16, fp16, bf16 or fp8")]
Stack = Annotated[str | None, typer.Option(help="software stack: a file or a name in workloads/stacks/")]
Market = Annotated[
    str, typer.Option(metavar="on-demand|spot", help="whose prices time is paid at; spot prices are known of few (sim list hardware)")
]
MeanLifetime = Annotated[
    str | None,
    typer.Option("--mean-lifetime", metavar="TIME", help="revocations at random with this mean, instead of measured lives"),
]
Processes = Annotated[int | None, typer.Option("--jobs", min=1, help="processes; all cores by default")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document, and nothing else, on stdout")]
Csv = Annotated[bool, typer.Option("--csv", help="print CSV on stdout")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", callback=file_due, help="also write the result as one page that opens offline")]
Folder = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", callback=folder_due, help="also write the table, JSON, CSV, page and plots there"),
]
Epochs = Annotated[float | None, typer.Option(help="epochs of the whole job: its time and cost from start-up to the end")]
Hours = Annotated[float | None, typer.Option(help="hours of the whole job: the epochs it does in them, and its cost")]
Evaluation = Annotated[float, typer.Option(help="samples evaluated after each epoch of the job, as a share of the training samples")]
Checkpoints = Annotated[bool, typer.Option(help="whether the job writes a checkpoint after each epoch")]


def trace_due(path: Path | None) -> Path | None:
    """Return *path*, where a trace can be written: a file, or a folder where its name has no ending. Raise SpecError otherwise."""
    return file_due(path) if path is not None and path.suffix else folder_due(path)
