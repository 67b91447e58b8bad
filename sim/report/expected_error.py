"""How far off may this run be? The errors that predictions of measured runs showed, for this GPU, its network and the software stack.

The summary (`sim.report.validated`) is written by ``make validated`` from the measured runs that come with `calibration`: relative errors
of step times predicted from the descriptions alone, as a run predicts them. The nearest group that was measured answers: the same GPU,
network and stack; then GPU and network; then the network; then everything, and more is added for a GPU that was never measured. GPUs of
a node that cannot address each other exchange through host memory, which is a network of its own. A GPU or network of which no run was
measured extrapolates, as do more GPUs or nodes. Of ranks that compute on processor cores only runs on the same processor answer. Where
no decoder is in the group, errors of a decoder are no smaller than those of decoders with layouts (`sim.report.layouts.layout_error`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from sim.cluster.topology import node_graph
from sim.report.layouts.layout_error import decoder_error
from sim.report.validated import validated_groups
from sim.simulate import Run
from sim.spec.hardware import Node
from sim.spec.workload import Model
from sim.training.job import Job
from sim.units import show

SIMILAR = 1.5
"""How many times as large as the largest measured model a model may be that is called like those measured: estimate."""
SHORTER = 5.0
"""How many times as short as the shortest measured step a step may be, likewise: estimate."""
_UNMEASURED = {"median": 0.09, "p90": 0.25}
"""Errors of steps on one GPU of a chip that was left out of the fit: 620 rows, calibration/catalogue/compute.py
(docs/trust/validation.md)."""
_TO_95 = 1.96 / 1.645
"""From what nine in ten stay below to what 19 in 20 do, of normal errors."""
EVERYTHING = "all runs"
"""The group that every run on GPUs belongs to."""


def groups_of(node: Node, job: Job) -> list[str]:
    """Return the groups of runs that *job* on nodes like *node* belongs to, the nearest first."""
    network, gpu, stack = traffic(node, job), node.gpu.name, job.workload.training.stack.name
    of_gpus = [] if node.gpu.host_cores else [network, EVERYTHING]
    return [f"{gpu}, {network}, {stack}", f"{gpu}, {network}", *of_gpus]


def traffic(node: Node, job: Job) -> str:
    """Return in words what gradients of *job* cross: the slowest kind of link on the way."""
    if job.ranks == 1:
        return "one GPU"
    if len(job.placement) > 1:
        return f"{node.nic.transport.name} between nodes"
    if node.topology.isolated == "nic":
        return f"{node.nic.transport.name} inside a node"
    if node.topology.isolated == "none" and node.nvlink is not None:
        return "NVLink"
    graph = node_graph(node)
    return "host memory" if any(graph.route(*pair).staged for pair in permutations(job.placement[0].gpus, 2)) else "PCIe"


def expected_error(run: Run, number: int) -> dict[str, Any] | None:
    """Return the validated error (fractions) of job *number* of *run*, and what it rests on; None where nothing was validated.

    Of nodes that differ the kind with the largest error answers for all.
    """
    job, step = run.jobs[number].job, run.jobs[number].warm.step_time
    kinds = {tuple(groups_of(node, job)): node for node in run.nodes(number)}
    answers = [answer for groups, node in kinds.items() if (answer := _of_kind(groups, node, job, step)) is not None]
    if len(answers) < len(kinds):
        return None
    worst = max(answers, key=lambda answer: float(answer["p90"]))
    if len(kinds) > 1:
        worst["basis"] += f"; the largest of the errors of {len(kinds)} kinds of node, which were not measured together"
    return worst


def interval_text(error: Mapping[str, Any], step: float) -> str:
    """Return in words where 95% of measured steps lay about predictions such as *step* (s), by an `expected_error`."""
    ends = error["measured_over_predicted_95"]
    low, high = ends["low"], ends["high"]
    here = f"{show(low * step, 'time')} to {show(high * step, 'time')}"
    return f"95% of measured steps were {low:.2g} to {high:.2g} times the prediction: here {here}"


def _of_kind(groups: Sequence[str], node: Node, job: Job, step: float) -> dict[str, Any] | None:
    validated = validated_groups()
    name = next((name for name in groups if name in validated), None)
    if name is None:
        return None
    new = not any(group.startswith(f"{node.gpu.name}, ") for group in validated) and not node.gpu.host_cores
    unlike = [f"no run was on {node.gpu.name} over {traffic(node, job)}" if job.ranks > 1 else f"no run was on {node.gpu.name}"]
    errors = _of_new_gpu(validated[name]) if new else validated[name]
    answer = _answer(name, errors, [*_beyond(errors, job, step), *(unlike if name in groups[2:] else [])])
    model = job.workload.model
    if model.transformer is None or family_of(model) in errors["families"]:
        return answer
    return _no_less_than(answer, decoder_error(model.transformer, node.gpu.name))


def _no_less_than(answer: dict[str, Any], other: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return *answer*, of models of another family, with the errors of *other*, of the same family, where those are larger."""
    if other is None:
        return answer
    ends, others = answer["measured_over_predicted_95"], other["measured_over_predicted_95"]
    return answer | {
        "median": max(answer["median"], other["median"]),
        "p90": max(answer["p90"], other["p90"]),
        "basis": f"{answer['basis']}; no smaller than the errors of {other['basis'].partition('; ')[0]}",
        "measured_over_predicted_95": {"low": min(ends["low"], others["low"]), "high": max(ends["high"], others["high"])},
    }


def _of_new_gpu(errors: Mapping[str, Any]) -> dict[str, Any]:
    """Return *errors* of a network with what a chip adds that nobody measured: independent errors, added in squares."""
    wider = math.log1p(_UNMEASURED["p90"]) * _TO_95
    ends = {end: math.exp(sign * math.hypot(max(0.0, sign * math.log(errors[end])), wider)) for end, sign in (("low", -1), ("high", 1))}
    return {**errors, **{name: math.hypot(errors[name], error) for name, error in _UNMEASURED.items()}, **ends}


def _answer(name: str, errors: Mapping[str, Any], beyond: Sequence[str]) -> dict[str, Any]:
    reach = f"extrapolated: {', '.join(beyond)}" if beyond else "within the sizes measured"
    which = f"all {errors['points']} measured runs" if name == EVERYTHING else f"{errors['points']} measured runs on {name}"
    step = {"low": errors["low"], "high": errors["high"]}
    return {
        "median": errors["median"],
        "p90": errors["p90"],
        "basis": f"based on {which} ({', '.join(errors['sources'])}); {reach}",
        "extrapolates": bool(beyond),
        "measured_over_predicted_95": step,
    }


def _beyond(errors: Mapping[str, Any], job: Job, step: float) -> list[str]:
    """Return in words what of *job* lies outside the runs measured: sizes, the model's family, its parameters, how short its *step* is.

    What a short step waits for, the host mostly, takes a small part of those measured.
    """
    sizes: Sequence[tuple[str, int, int]] = (("nodes", len(job.placement), errors["most_nodes"]), ("GPUs", job.ranks, errors["most_gpus"]))
    beyond = [f"{here} {what}, measured up to {most}" for what, here, most in sizes if here > most]
    model = job.workload.model
    if (family := family_of(model)) not in errors["families"]:
        beyond.append(f"no run was of {family}")
    if model.parameters > SIMILAR * errors["most_parameters"]:
        beyond.append(f"{_billions(model.parameters)} parameters, measured up to {_billions(errors['most_parameters'])}")
    if SHORTER * step < errors["shortest_step_s"]:
        beyond.append(f"a step of {show(step, 'time')}, measured from {show(errors['shortest_step_s'], 'time')}")
    return beyond


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:.2g} B" if parameters >= 1e8 else f"{parameters / 1e6:.0f} M"


def family_of(model: Model) -> str:
    """Return which kind of model this is: kinds differ in the operators that take their time."""
    ops = {layer.op for layer in model.layers}
    if model.transformer is not None:
        return "a decoder"
    if "rnn" in ops:
        return "a recurrent model"
    if "attention" in ops or ("softmax" in ops and "conv" not in ops):
        return "a transformer"
    if ops & {"conv", "pointwise_conv", "direct_conv", "depthwise_conv"}:
        return "a convolutional network"
    return "a recommender or perceptron"
