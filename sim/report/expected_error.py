"""How far off may this run be? The errors of predictions for measured runs with the same GPU, network and software stack.

``make validated`` writes the summary (`sim.report.validated`) from the measured runs that come with `calibration`. It holds relative
errors of step times that were predicted from the descriptions alone, as in any run. The errors are those of the nearest measured group:
the same GPU, network and stack; else GPU and network; else the network; else all runs. A GPU that was never measured adds an error of
its own. GPUs of a node that cannot address each other communicate through host memory, which counts as a network of its own. A run
extrapolates if its GPU or network was never measured, or if it has more GPUs or nodes than the measured runs. For ranks that compute on
CPU cores, only runs on the same processor count. If a group has no decoder, errors of a decoder are at least those of decoders with
layouts (`sim.report.layouts.layout_error`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from sim.cluster.topology import node_graph
from sim.report.layouts.layout_error import decoder_error
from sim.report.validated import ExpectedError, spread_text, validated_groups
from sim.simulate import Run
from sim.spec.fields import CONVOLUTIONS
from sim.spec.hardware import Gpu, Node
from sim.spec.library import load_part
from sim.spec.model import Model
from sim.spec.stack import Stack
from sim.training.job import Job
from sim.units import show

SIMILAR = 1.5
"""A model extrapolates if it has more than this many times the parameters of the largest measured model (estimate)."""
SHORTER = 5.0
"""A step extrapolates if it is more than this many times shorter than the shortest measured step (estimate)."""
_UNMEASURED = {"median": 0.09, "p90": 0.25}
"""Errors of steps on a single GPU of a type that was left out of the fit: 620 rows, calibration/catalog/compute.py
(docs/trust/validation.md)."""
_TO_95 = 1.96 / 1.645
"""Converts the 90th percentile of the absolute error to the 95th, for normally distributed errors."""
_OF_LAYOUTS = "megatron-core"
"""A stack with the factor on compute that stacks of layouts have."""
EVERYTHING = "all runs"
"""The group of all runs on GPUs."""


def groups_of(node: Node, job: Job) -> list[str]:
    """Return the groups of runs that *job* on nodes like *node* belongs to, nearest first."""
    network, gpu, stack = traffic(node, job), node.gpu.name, job.workload.training.stack.name
    of_gpus = [] if node.gpu.host_cores else [network, EVERYTHING]
    return [f"{gpu}, {network}, {stack}", f"{gpu}, {network}", *of_gpus]


def traffic(node: Node, job: Job) -> str:
    """Return the name of the network that gradients of *job* cross: the slowest kind of link on their way."""
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


def expected_error(run: Run, number: int) -> ExpectedError | None:
    """Return the validated error (fractions) of job *number* of *run*, and its basis; None if nothing was validated.

    If the nodes differ, the kind of node with the largest error determines the result.
    """
    return expected_job_error(run.jobs[number].job, run.nodes(number), run.jobs[number].warm.step_time)


def expected_job_error(job: Job, nodes: Sequence[Node], step: float) -> ExpectedError | None:
    """Return the `expected_error` of a *step* (s) of *job*, which runs on *nodes*, one of each kind."""
    kinds = {tuple(groups_of(node, job)): node for node in nodes}
    answers = [answer for groups, node in kinds.items() if (answer := _of_kind(groups, node, job, step)) is not None]
    if len(answers) < len(kinds):
        return None
    worst = max(answers, key=lambda answer: answer["p90"])
    if len(kinds) > 1:
        worst["basis"] += f"; the largest error of {len(kinds)} kinds of nodes, which were not measured together"
    return worst


def error_sentence(error: ExpectedError | None) -> str:
    """Return the expected *error* of a step as a sentence, with the reason if it extrapolates."""
    if error is None:
        return "Expected error of a step: unknown, because no similar run was measured."
    reason = extrapolation_reason(error)
    widened = f"; extrapolated: {reason}" if reason else ""
    return f"Expected error of a step: {spread_text(error)}{widened}."


def extrapolation_reason(error: ExpectedError) -> str:
    """Return in what, first of all, a run is beyond those from which its *error* is known; empty if it is not."""
    return next(iter(error["beyond"]), "")


def interval_text(error: ExpectedError, step: float) -> str:
    """Return text with the range of 95% of measured steps around a predicted *step* (s), from an `expected_error`.

    If all of it is on one side of the prediction, the text says so.
    """
    ends = error["measured_over_predicted_95"]
    low, high = ends["low"], ends["high"]
    interval = f"{show(low * step, 'time')} to {show(high * step, 'time')}"
    side = "longer" if low > 1 else "shorter" if high < 1 else ""
    outside = f", so expect a {side} step than predicted" if side else ""
    digits = 3 if side else 2  # 1.02 must not be shown as 1
    if error.get("for_new_source"):
        times = f"{low:.{digits}g} to {high:.{digits}g} times the prediction"
        return f"95% interval for a cluster that was not measured: {times}, {interval}{outside}"
    return f"95% of measured steps were {low:.{digits}g} to {high:.{digits}g} times the prediction: here {interval}{outside}"


def _of_kind(groups: Sequence[str], node: Node, job: Job, step: float) -> ExpectedError | None:
    validated = validated_groups()
    name = next((name for name in groups if name in validated), None)
    if name is None:
        return None
    new = not any(group.startswith(f"{node.gpu.name}, ") for group in validated) and not node.gpu.host_cores
    unlike = [f"no measured run on {node.gpu.name} over {traffic(node, job)}" if job.ranks > 1 else f"no measured run on {node.gpu.name}"]
    errors = _of_new_gpu(validated[name]) if new else validated[name]
    answer = _answer(name, errors, [*_beyond(name, errors, job, step), *(unlike if name in groups[2:] else [])])
    model = job.workload.model
    if model.transformer is None or family_of(model) in errors["families"]:
        return answer
    stack = job.workload.training.stack
    return _widen_to(answer, decoder_error(model.transformer, node.gpu.name), missing_factor(stack, node.gpu), stack.name)


def missing_factor(stack: Stack, gpu: Gpu) -> float:
    """Return the factor on compute with which errors of decoders with layouts were measured, if *stack* has none for *gpu*; else 1.

    Stacks of layouts have factors fitted to whole steps, and the GPU's generation has one relative to Hopper. Nothing says which part of
    them other stacks need, unless a factor was fitted to their own runs.
    """
    if stack.kernels.factor_by_kernels or stack.kernels.compute_factor != 1.0:
        return 1.0
    fitted = load_part(Stack, _OF_LAYOUTS).kernels
    return fitted.compute_factor * (gpu.kernels.whole_steps if gpu.kernels is not None else 1.0)


def _widen_to(answer: ExpectedError, other: ExpectedError | None, factor: float, stack: str) -> ExpectedError:
    """Return *answer*, from models of another family, with its errors raised to those of *other*, from the same family.

    If *stack* lacks a *factor* that the predictions of *other* have, the interval also holds steps that are longer by it.
    """
    if other is None:
        return answer
    ends, others = answer["measured_over_predicted_95"], other["measured_over_predicted_95"]
    low, high = min(1.0, factor) * others["low"], max(1.0, factor) * others["high"]
    with_factor = f", with {factor:.2f} times the compute that {stack} has" if factor != 1.0 else ""
    return {
        "median": max(answer["median"], other["median"]),
        "p90": max(answer["p90"], other["p90"]),
        "basis": f"{answer['basis']}; at least the errors of {other['basis'].partition('; ')[0]}{with_factor}",
        "extrapolates": answer["extrapolates"],
        "beyond": answer["beyond"],
        "measured_over_predicted_95": {"low": min(ends["low"], round(low, 4)), "high": max(ends["high"], round(high, 4))},
    }


def _of_new_gpu(errors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *errors* of a network, widened for an unmeasured GPU: independent errors, added in quadrature."""
    wider = math.log1p(_UNMEASURED["p90"]) * _TO_95
    ends = {end: math.exp(sign * math.hypot(max(0.0, sign * math.log(errors[end])), wider)) for end, sign in (("low", -1), ("high", 1))}
    return {**errors, **{name: math.hypot(errors[name], error) for name, error in _UNMEASURED.items()}, **ends}


def _answer(name: str, errors: Mapping[str, Any], beyond: Sequence[str]) -> ExpectedError:
    reach = f"extrapolated: {'; '.join(beyond)}" if beyond else "within the sizes measured"
    which = f"all {errors['points']:,} measured runs" if name == EVERYTHING else f"{errors['points']:,} measured runs on {name}"
    return {
        "median": errors["median"],
        "p90": errors["p90"],
        "basis": f"based on {which} ({', '.join(errors['sources'])}); {reach}",
        "extrapolates": bool(beyond),
        "beyond": list(beyond),
        "measured_over_predicted_95": {"low": errors["low"], "high": errors["high"]},
    }


def _beyond(name: str, errors: Mapping[str, Any], job: Job, step: float) -> list[str]:
    """Return descriptions of how *job* lies outside the measured runs of group *name*: sizes, model family, parameters, or a short *step*.

    A short step mostly waits for the host, which takes only a small part of the measured steps.
    """
    sizes: Sequence[tuple[str, int, int]] = (("nodes", len(job.placement), errors["most_nodes"]), ("GPUs", job.ranks, errors["most_gpus"]))
    beyond = [f"{value:,} {noun}, measured up to {most:,}" for noun, value, most in sizes if value > most]
    model = job.workload.model
    if (family := family_of(model)) not in errors["families"]:
        among = " without a layout" if model.transformer is not None else f" on {name}" if name != EVERYTHING else ""
        beyond.append(f"no measured run of {family}{among}")
    if model.parameters > SIMILAR * errors["most_parameters"]:
        beyond.append(f"{_count(model.parameters)} parameters, measured up to {_count(errors['most_parameters'])}")
    if SHORTER * step < errors["shortest_step_s"]:
        beyond.append(f"a step of {show(step, 'time')}, measured from {show(errors['shortest_step_s'], 'time')}")
    return beyond


def _count(parameters: float) -> str:
    if parameters >= 999.5e9:
        return f"{parameters / 1e12:.3g} trillion"
    return f"{parameters / 1e9:.3g} billion" if parameters >= 1e9 else f"{parameters / 1e6:.0f} million"


def family_of(model: Model) -> str:
    """Return the family of *model*; families differ in the operators that take most of the time."""
    ops = {layer.op for layer in model.layers}
    if model.transformer is not None:
        return "a decoder"
    if "rnn" in ops:
        return "a recurrent model"
    if "attention" in ops or ("softmax" in ops and "conv" not in ops):
        return "a transformer"
    if not ops.isdisjoint(CONVOLUTIONS):
        return "a convolutional network"
    return "a recommender or perceptron"
