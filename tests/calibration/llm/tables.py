"""A few rows of a table of training runs, for tests."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PLAIN: Final = {
    "source": "someone/runs@1:table.md", "set": "first", "model": "Llama 3.1 8B", "params": "8e9", "layers": "32", "hidden": "4096",
    "heads": "32", "kv_heads": "8", "ffn_hidden": "14336", "vocab": "128256", "experts": "", "topk": "", "seq_len": "8192", "gpu": "H100",
    "node_type": "DGX H100", "nodes": "1", "gpus": "8", "network": "InfiniBand 400 Gbps per GPU", "framework": "NeMo/Megatron-Core",
    "framework_version": "", "precision": "bf16", "dp": "8", "tp": "1", "sp": "", "pp": "1", "virtual_pp": "", "cp": "1", "ep": "",
    "zero_stage": "1", "fsdp_mode": "", "micro_batch": "1", "global_batch": "128", "grad_accum": "16", "activation_checkpointing": "none",
    "flash_attention": "yes", "offload": "", "compile": "", "step_time_s": "14.0", "step_time_basis": "logged", "tokens_per_s_per_gpu": "",
    "tflops_per_gpu_reported": "", "mfu_reported": "", "hfu_reported": "", "memory_peak_GiB_reported": "", "status": "ok", "class": "dense",
    "notes": "",
}  # fmt: skip
"""Pre-training of Llama 3.1 8B on one node, from a source that is not in the records."""


def table(folder: Path, rows: Sequence[dict[str, str]], without: Sequence[str] = (), name: str = "runs.csv") -> Path:
    """Write `PLAIN` changed by each of *rows* to a file in *folder*, leaving out the columns *without*."""
    columns = [column for column in PLAIN if column not in without]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**PLAIN, **row} for row in rows)
    path = folder / name
    path.write_text(out.getvalue(), encoding="utf-8")
    return path
