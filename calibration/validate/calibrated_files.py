"""Which hardware file gives `sim run` the constants that a validation calibrated? One that extends the cluster's and replaces them.

How fast a job computes is no constant of the machine: a comment in the file shows the options that set it, for each measured job. The loss
of a ring of two nodes (`calibration.clusters.network_parameters`) applies to two nodes only, so no file has it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from calibration import HARDWARE
from calibration.clusters.cluster_fit import ClusterModel
from calibration.clusters.network_parameters import NIC, moved_node, path_factors, transports
from calibration.questions import Folders, RunQuestion, file_named, machine_named
from calibration.validate.validation import ClusterOutcome, Validation
from sim.spec.catalog import file_of
from sim.spec.hardware import Node, Transport
from sim.spec.transport import CHANNEL_RATES
from sim.spec.yaml import SpecError
from sim.units import pluralized

_TIMES: Final = ("hop_latency", "hop_latency_ll", "launch")
_TOPOLOGY: Final = ("nvlink", "bridged", "peer_to_peer", "socket_copy_bandwidth")
_MOST_JOBS: Final = 12
"""Most jobs whose commands a comment shows."""


def calibrated_files(validation: Validation, folders: Folders, output: Path) -> dict[str, str]:
    """Return, by name, a hardware file in *output* for each cluster whose constants were changed by its network rows."""
    files = {}
    for cluster in validation.clusters:
        questions = [each for each in validation.questions if each.record.hardware == cluster.name]
        if text := _calibrated(cluster, questions, folders, output):
            files[f"{_stem(cluster)}.yaml"] = text
    return files


def _stem(cluster: ClusterOutcome) -> str:
    return f"{Path(cluster.name).stem if cluster.name.endswith('.yaml') else cluster.name}-calibrated"


def _calibrated(cluster: ClusterOutcome, questions: Sequence[RunQuestion], folders: Folders, output: Path) -> str:
    """Return the file for *cluster*; empty if nothing of its hardware was changed, or if it has several kinds of nodes."""
    model = cluster.calibrated
    try:
        machine = machine_named(cluster.name, (), folders.hardware)
        extended = file_named(cluster.name, "hardware", (folders.hardware, HARDWARE))
    except SpecError:  # a machine that stands for a GPU
        return ""
    nodes = [group.node for group in machine.worker_groups]
    changed = _changes(nodes[0], _moved(nodes[0], model)) if len(nodes) == 1 else {}
    if not changed:
        return ""
    rows = pluralized(len(cluster.network_rows), "network row")
    source = f"calibrated on {rows} of {_tables(questions)}"
    lines = [
        f"# {cluster.name}, {source}.",
        "# How fast a job computes was measured as well:",
        *(f"#   {command}" for command in _commands(cluster, questions, output)),
        f"extends: {cluster.name if extended == file_of(cluster.name, 'hardware') else os.path.relpath(extended, output)}",
        f"name: {_stem(cluster)}",
        "node:",
        *_block(changed, source, "  "),
    ]
    return "\n".join(lines) + "\n"


def _tables(questions: Sequence[RunQuestion]) -> str:
    return ", ".join(dict.fromkeys(Path(question.record.file).name for question in questions))


def _moved(node: Node, model: ClusterModel) -> Node:
    factors = (*zip(model.parameters, model.values, strict=True), *path_factors(model.path))
    moves = {(parameter.place, parameter.constant): value for parameter, value in factors if value != 0.0}
    moves.pop((NIC, "pair"), None)
    return moved_node(node, moves)


def _changes(before: Node, after: Node) -> dict[str, Any]:
    """Return the fields of *after* that differ from *before*, as text for a YAML file, by key."""
    changed: dict[str, Any] = {}
    for (place, old), (_, new) in zip(transports(before), transports(after), strict=True):
        if block := _transport_changes(old, new):
            changed |= {NIC: {"transport": block}} if place == NIC else {place: block}
    topology = {
        name: getattr(after.topology, name) for name in _TOPOLOGY if getattr(after.topology, name) != getattr(before.topology, name)
    }
    if topology:
        changed["topology"] = {name: _text(value, "B/s") for name, value in topology.items()}
    if after.gpu.compute_cv != before.gpu.compute_cv:
        changed["gpu"] = {"compute_cv": f"{after.gpu.compute_cv:.6g}"}
    return changed


def _transport_changes(old: Transport, new: Transport) -> dict[str, str]:
    changed = {}
    for name in (*_TIMES, *CHANNEL_RATES, "total_efficiency"):
        if (value := getattr(new, name)) != getattr(old, name):
            changed[name] = _text(value, "s" if name in _TIMES else "" if name == "total_efficiency" else "B/s")
    if new.efficiency != old.efficiency:
        (first, *others) = new.efficiency
        points = ", ".join(f"[{size:.9g} B, {share:.6g}]" for size, share in new.efficiency)
        changed["efficiency"] = f"[{points}]" if others else f"{first[1]:.6g}"
    return changed


def _text(value: object, unit: str) -> str:
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.6g} {unit}".strip() if isinstance(value, float) else str(value)


def _block(block: Mapping[str, Any], source: str, indent: str) -> Iterator[str]:
    """Yield the lines of *block*; a block of values has their *source*."""
    for key, value in block.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _block(value, source, indent + "  ")
        else:
            yield f"{indent}{key}: {value}"
    if values := [key for key, value in block.items() if not isinstance(value, dict)]:
        yield f"{indent}source:"
        yield from (f'{indent}  {key}: "{source}"' for key in values)


def _placed(question: RunQuestion) -> tuple[str, str]:
    """Return the option that places the job of *question*: all GPUs of its nodes, or as many of each as it used."""
    lent, gpu_count = [len(part.gpus) for part in question.job.placement], question.hardware.worker_groups[0].node.gpu_count
    if all(count == gpu_count for count in lent):
        return "--nodes", str(len(lent))
    return "--placement", "+".join(map(str, lent))


def _commands(cluster: ClusterOutcome, questions: Sequence[RunQuestion], output: Path) -> list[str]:
    """Return a command for each measured job of *questions* that predicts it with its measured compute."""
    command_of: dict[tuple[object, ...], str] = {}
    for question in questions:
        training, scale = question.workload.training, cluster.calibrated.simulated_case(question).compute_scale
        job = (question.record.workload, training.stack.name, training.precision, question.batch)
        launch = training.stack.kernels.launch_cpu * scale
        words = [
            "python", "-m", "sim", "run", str(output / f"{_stem(cluster)}.yaml"), question.record.workload, "--stack", training.stack.name,
            "--precision", training.precision, "--batch", str(question.batch), *_placed(question),
            "--set", f"training.compute_factor={training.compute_factor * scale:.6g}", "--set", f"training.stack.launch_cpu={launch:.6g} s",
            *(("--set", "input.loader=synthetic") if question.workload.input.loader == "synthetic" else ()),
            *(word for text in question.record.overrides.split(";") if text.strip() for word in ("--set", text.strip())),
        ]  # fmt: skip
        command_of[job] = shlex.join(words)
    commands = list(command_of.values())
    more = len(commands) - _MOST_JOBS
    return commands if more <= 0 else [*commands[:_MOST_JOBS], f"and {more:,} more"]
