"""Which files start a run with a given layout? One for each program that can run it, torchrun's line, a SkyPilot task and the command.

They contain the fields that decide the layout and the batch; data, checkpoints and optimizer settings are left to the user. Layouts that a
program cannot express are rejected with a message; smaller differences are notes (`layout_notes`), in the files as well. Each module
``layout_*`` writes the file of one program, ``launch_*`` reads it back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sim.spec.foreign.layout_accelerate import accelerate_yaml
from sim.spec.foreign.layout_deepspeed import deepspeed_json
from sim.spec.foreign.layout_launch import Launch
from sim.spec.foreign.layout_megatron import megatron_arguments
from sim.spec.foreign.layout_megatron_model import megatron_notes
from sim.spec.foreign.layout_notes import is_own_program, layout_notes
from sim.spec.foreign.layout_torchtitan import torchtitan_toml
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
    start = torchrun_line(launch, _program(launch, files))
    notes = [f"megatron.args: {note}" for note in megatron_notes(launch.shape)] if launch.shape and "megatron.args" in files else []
    notes += layout_notes(launch, files)
    if start.endswith(" train.py\n"):
        notes.append("torchrun.sh: train.py stands for your own training script" + _library_file(files, launch))
    files = {name: _commented(name, text, notes) for name, text in files.items()}
    lines = [*(f"no {name}: {reason}" for name, reason in left_out.items()), *notes]
    notes_file = {"notes.txt": "".join(f"{line}\n" for line in lines)} if lines else {}
    starts = {"torchrun.sh": start, "skypilot.yaml": skypilot_yaml(launch, start), "sim.sh": command + "\n"}
    return LayoutText({**files, **starts, **notes_file}, left_out, notes)


def _program(launch: Launch, files: Collection[str]) -> str:
    """Return what torchrun starts: the program of one of *files* whose stack was simulated, else a training script."""
    programs = {
        "torchtitan.toml": "-m torchtitan.train --job.config-file torchtitan.toml", "megatron.args": "pretrain_gpt.py $(cat megatron.args)",
    }  # fmt: skip
    return next((start for name, start in programs.items() if name in files and is_own_program(name, launch)), "train.py")


def _library_file(files: Collection[str], launch: Launch) -> str:
    """Return how a script reads the file of a library, if there is one for the stack that was simulated."""
    ways = {
        "accelerate.yaml": "'accelerate launch' starts it instead, with accelerate.yaml as its config_file",
        "deepspeed.json": "with DeepSpeed, pass it deepspeed.json",
    }
    way = next((text for name, text in ways.items() if name in files and is_own_program(name, launch)), "")
    return f"; {way}" if way else ""


def _commented(name: str, text: str, notes: Sequence[str]) -> str:
    """Return *text* of the file *name* below its *notes*, if its format has comments."""
    own = [note.removeprefix(f"{name}: ") for note in notes if note.startswith(f"{name}: ")]
    return "".join(f"# {note}\n" for note in own) + text if name.endswith((".toml", ".yaml")) else text


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
        "resources": {"accelerators": f"{launch.accelerator}:{launch.gpus_per_node}"} | ({"use_spot": True} if launch.is_spot else {}),
        "run": script,
    }
    return str(yaml.safe_dump(task, sort_keys=False))
