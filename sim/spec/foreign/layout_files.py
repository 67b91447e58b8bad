"""Which files start a run with a given layout? One for each program that can run it, torchrun's line, a SkyPilot task and the command.

They contain the fields that decide the layout and the batch; data, checkpoints and optimizer settings are left to the user. Layouts that a
program cannot express are rejected with a message. Each module ``layout_*`` writes the file of one program, ``launch_*`` reads it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sim.spec.foreign.layout_accelerate import accelerate_yaml
from sim.spec.foreign.layout_deepspeed import deepspeed_json
from sim.spec.foreign.layout_launch import Launch
from sim.spec.foreign.layout_megatron import megatron_arguments
from sim.spec.foreign.layout_megatron_model import megatron_notes
from sim.spec.foreign.layout_torchtitan import is_unmixed, torchtitan_toml
from sim.spec.yaml import SpecError


class LayoutText(NamedTuple):
    """Launch files of one run."""

    files: dict[str, str]
    """Text of each file, by name."""
    left_out: dict[str, str]
    """The reason for each file that was not written, by name."""
    notes: list[str]
    """Notes on settings that the files do not contain."""


def launch_files(launch: Launch, command: str) -> LayoutText:
    """Return the files that express *launch*; *command* is the corresponding ``sim run``."""
    writers = {
        "torchtitan.toml": torchtitan_toml, "megatron.args": megatron_arguments,
        "deepspeed.json": deepspeed_json, "accelerate.yaml": accelerate_yaml,
    }  # fmt: skip
    files: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, write in writers.items():
        try:
            files[name] = write(launch)
        except SpecError as error:
            left_out[name] = error.problems[0]
    program = "-m torchtitan.train --job.config-file torchtitan.toml" if "torchtitan.toml" in files else "train.py"
    if "torchtitan.toml" not in files and "megatron.args" in files:
        program = "pretrain_gpt.py $(cat megatron.args)"
    line = torchrun_line(launch, program)
    notes = [f"megatron.args: {note}" for note in megatron_notes(launch.shape)] if launch.shape and "megatron.args" in files else []
    notes += _omission_notes(launch, files)
    return LayoutText(
        {**files, "torchrun.sh": line, "skypilot.yaml": skypilot_yaml(launch, line), "sim.sh": command + "\n"}, left_out, notes
    )


def _omission_notes(launch: Launch, files: Mapping[str, str]) -> list[str]:
    """Return notes on parts of the layout that *files* cannot express and the training program must set itself."""
    notes = []
    if "torchtitan.toml" in files and is_unmixed(launch) and launch.precision not in ("fp32", "tf32"):
        notes.append(
            "torchtitan.toml: weights and optimizer states are in 16 bits as well (dtype), which takes less memory than predicted here"
        )
    if "accelerate.yaml" in files:
        notes.append(
            f"accelerate.yaml: your program must set micro-batches of {launch.batch} and accumulate gradients over {launch.micro_batches}"
        )
    if "deepspeed.json" in files and launch.checkpointing not in ("none", "model"):
        notes.append(f"deepspeed.json: your program must set what is recomputed (activation_checkpointing: {launch.checkpointing})")
    return notes


def torchrun_line(launch: Launch, arguments: str) -> str:
    """Return the line that starts one node's processes; $NODE_RANK is the number of the node, $HEAD the address of the first one."""
    return (
        f"torchrun --nnodes {launch.nodes} --nproc-per-node {launch.gpus_per_node} --node-rank $NODE_RANK "
        f"--rdzv-backend c10d --rdzv-endpoint $HEAD:29500 {arguments}\n"
    )


def skypilot_yaml(launch: Launch, run: str) -> str:
    """Return a SkyPilot task that starts *run* on every node, in a copy of the folder where it is launched, with the files beside it."""
    import yaml

    script = f'export HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\nexport NODE_RANK=$SKYPILOT_NODE_RANK\n{run}'
    task = {
        "name": launch.name.replace(".", "-"),
        "num_nodes": launch.nodes,
        "workdir": ".",
        "resources": {"accelerators": f"{launch.accelerator}:{launch.gpus_per_node}"},
        "run": script,
    }
    return str(yaml.safe_dump(task, sort_keys=False))
