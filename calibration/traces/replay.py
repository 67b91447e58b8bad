"""How long would this profiled job take elsewhere? Write a workload for ``sim run`` with the times that the profile shows for its layers.

With a layer table (a catalog workload, one of ``sim extract``, or the one that a simulated trace names) `table_times` distributes the
times of passes over its layers. Without one, `trace_layers` builds the table, which needs ``record_shapes=True``. For jobs that shard,
split or pipeline the model, `layout_passes` derives the times; they need a workload that specifies the layout.
Limits: if the GPU never waits for the host, a simulated trace does not show how far the host is ahead. A trace without a table has no
activations, so GPU memory is not counted, and no number of samples per epoch; its times are proportional to the batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from calibration.traces import layout_passes
from calibration.traces.import_trace import ImportedJob
from calibration.traces.job_description import JobDescription
from calibration.traces.kineto import CPU, RankTrace
from calibration.traces.late_ranks import WorkVariation, work_variation
from calibration.traces.optimizer_constants import optimizer_factor, with_launch_cost
from calibration.traces.pass_times import PassTimes, measure_passes
from calibration.traces.profiled_job import OPTIMIZERS, ProfiledJob, job_of, with_stack
from calibration.traces.seen_exchange import profiled_machine, seen_data_parallel, seen_sockets
from calibration.traces.shown_layout import require_layout
from calibration.traces.table_times import with_pass_times
from calibration.traces.trace_layers import build_layers
from calibration.traces.trace_report import LEAST_INPUT_SHARE
from calibration.traces.workload_text import workload_text
from sim.check import check_workload, require
from sim.mesh import prepare
from sim.parallel.mesh import Mesh
from sim.spec.catalog import locate
from sim.spec.defaults import LOADER, TOKENS
from sim.spec.library import SYNTHETIC, is_model, load, load_workload
from sim.spec.model import Model
from sim.spec.optimizer import Optimizer
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.new.file import write_new
from sim.training.step_plan import StepClocks

_SET_UP: Final = ("gradient_accumulation_steps", "activation_checkpointing")
"""Fields of the training that a simulated trace contains in addition to batch and precision."""
_STACKS: Final = {True: "gloo-ddp", False: "torch-2.x-ddp"}
"""Default stacks of jobs on CPUs (True) and on GPUs (False): those of torch's DistributedDataParallel."""
_OVER_GLOO: Final = {"backend": "gloo", "gloo_transport": "tcp-single-flow"}
"""Fields of the stack of a job on CPUs, the same as in ``gloo-ddp``: NCCL needs GPUs."""
_GLOO_MESH: Final = {"host_waits": "everything"}
"""And of its mesh: no device stream holds Gloo's collectives (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""
_SAMPLES: Final = 1_000_000
_SECONDS: Final = ("distributed_overhead", "launch_cpu")


def write_replay(profile: ImportedJob, job: JobDescription, path: Path) -> None:
    """Write a workload that replays the job of *profile* to *path*, after checking that it loads and is plausible."""

    def check(file: str) -> None:
        loaded = load_workload(file, (), job.folders.workloads)
        require(check_workload(loaded.spec, loaded.document))

    write_new(path, replay_text(profile, job, path), check)


def replay_text(profile: ImportedJob, description: JobDescription, path: Path) -> str:
    """Return the text of a workload, to be written to *path*, that replays the job of *profile*.

    Raise SpecError if *profile* and *description* lack facts that the workload needs, or if jobs of this kind cannot be replayed.
    """
    job = job_of(profile, description, path)
    if any(trace.layout_event and not trace.simulated for trace in profile.traces):
        return workload_text(_from_layout(job), job)
    return workload_text(_from_table(job) if job.description.workload else _from_trace(job), job)


def unseen_variation(profile: ImportedJob) -> list[str]:
    """Return what *profile* does not show of late ranks, for which a replay makes the others wait."""
    first = profile.traces[0]
    if first.simulated or first.world_size == 1:
        return []
    if len(profile.traces) == 1:
        return [
            f"{first.file}: is of one rank, so the replay knows how late ranks are only from how its steps vary; "
            "add the trace of another rank (of a pipeline, of the same stage)"
        ]
    if profile.windows[0].steps == 1:
        return [
            f"{first.file}: has one step after the first, so the replay does not know how ranks vary from step to step; "
            "profile several (active=5)"
        ]
    return []


def _from_table(job: ProfiledJob) -> dict[str, Any]:
    """Return the workload that the user named, with the measured times of the job in its layers."""
    described, machine, has_sockets = job.profile.traces[0].job_facts, job.machine, bool(job.description.stack)
    if job.profile.traces[0].gpu == CPU and not job.description.stack and job.workload().training.stack.library.backend != "gloo":
        job = replace(job, description=replace(job.description, stack=_STACKS[True]))  # NCCL, which the workload names, needs GPUs
    setup = {name: described[name] for name in _SET_UP if name in described}
    base = job.workload(*(f"training.{name}={value}" for name, value in setup.items()))
    measured = measure_passes(job.profile, base.training.stack.exchange.overlap_slowdown)
    factor = optimizer_factor(base, machine.gpu, measured, job.ranks)
    model = base.model.model_copy(update={"layers": with_pass_times(base, machine, measured, job.ranks), "measured": job.measured_on(base)})
    copies = {"gradient_copy_passes": 0.0} if job.profile.traces[0].gpu == CPU else {}  # operators, so that backward contains them
    draft = with_stack(base.model_copy(update={"model": model}), optimizer_factor=factor, **copies)
    draft = with_launch_cost(draft, machine, measured, job.ranks)
    fitted = copies | {"optimizer_factor": factor, "launch_cpu": f"{draft.training.stack.kernels.launch_cpu!r} s"}
    fitted |= seen_data_parallel(job, draft, has_sockets)
    return _extended(job, base, draft.model, fitted, setup | _noise(_pass_variation(measured)))


def _from_layout(job: ProfiledJob) -> dict[str, Any]:
    """Return the workload that the user named, which specifies the layout of the job's ranks, with measured times in its layers."""
    first = job.profile.traces[0]
    sockets = _fitted_sockets(job.description) if first.gpu == CPU else None
    if sockets is not None:
        job = replace(job, description=replace(job.description, stack=""))
    base = job.workload()
    parallel = base.training.parallel
    if parallel.is_trivial:
        raise SpecError(
            f"{job.description.workload}: training.parallel does not describe how the {job.ranks} ranks of {first.file} share the model; "
            "add, for example, --shard parameters, --tp 2 or --pp 2, or write it there"
        )
    fitted: dict[str, Any] = {}
    mesh: dict[str, Any] = {}
    if first.gpu == CPU and base.training.stack.library.backend != "gloo":
        fitted, mesh = dict(_OVER_GLOO), dict(_GLOO_MESH)
        base = job.workload(
            *(f"training.stack.{key}={value}" for key, value in (fitted | {f"mesh.{key}": mesh[key] for key in mesh}).items())
        )
    machine, per_node = profiled_machine(job)
    layout = prepare(machine, base, per_node)
    require_layout(job.profile.traces, layout, base.model)
    measured = layout_passes.stage_passes(layout_passes.rank_passes(job.profile), layout)
    on = job.measured_on(base).model_copy(update={"tensor": parallel.tensor})
    bare = layout_passes.without_copies(base)
    workload = layout_passes.with_measured_passes(machine, per_node, bare, measured, on, first.gpu != CPU)
    first_stage = slice(1)  # the last to finish its passes, so that the step ends with its update; the others' are hidden
    fitted["optimizer_factor"] = layout_passes.layout_optimizer_factor(machine, per_node, workload, measured[0].update, first_stage)
    if bare is not base:
        mesh["copies"] = False
    if sockets is not None:
        fitted["gloo_transport"] = sockets
    elif first.gpu == CPU and (constants := seen_sockets(job.profile, base, layout.mesh, machine)):
        extended = {"extends": fitted["gloo_transport"]} if "gloo_transport" in fitted else {}
        fitted["gloo_transport"] = extended | constants | {"source": dict.fromkeys(constants, job.source)}
    if mesh:
        fitted["mesh"] = mesh | {"source": dict.fromkeys(mesh, job.source)}
    groups: dict[object, list[RankTrace]] = defaultdict(list)
    for trace in job.profile.traces:
        groups[_met(layout.mesh, trace.rank)].append(trace)
    if layout.mesh.stages > 1 and layout.mesh.gpus == layout.mesh.stages:  # how ranks differ is in the times of the stages' layers
        by_rank = [[(trace.rank, passes) for passes in layout_passes.step_passes(trace)] for trace in job.profile.traces]
        by_step = [layout_passes.stage_passes(dict(step), layout) for step in zip(*by_rank, strict=True)]
        variation = WorkVariation(None, layout_passes.pipeline_cv(machine, per_node, bare, by_step, on, first.gpu != CPU))
    else:
        variation = work_variation([[layout_passes.rank_work(trace) for trace in group] for group in groups.values()])
    passes = layout.micro_batches * fmean(each.forward + each.backward for each in measured)
    if max(parallel.tensor * parallel.context, parallel.expert) > 1:
        variation = variation.of(passes)  # in the simulator, ranks that exchange inside units are not late in the optimizer
    return _extended(job, base, workload.model, fitted, _noise(variation, passes))


def _met(mesh: Mesh, rank: int) -> object:
    """Return a key that is equal for the ranks that *rank* meets most often."""
    if mesh.parallel.expert > mesh.parallel.tensor * mesh.parallel.context:
        return mesh.stage_of(rank), mesh.group(rank, "expert")
    inside = mesh.parallel.tensor * mesh.parallel.context > 1
    return mesh.stage_of(rank), mesh.coordinate(rank, "data") if inside else -1


def _fitted_sockets(description: JobDescription) -> Any:
    """Return the Gloo transport of the user's stack if that cannot run layouts, as it is written; else None.

    ``calibration fit`` writes such stacks. For a job that divides the model they say what its sockets cost; the rest comes from the
    workload's stack.
    """
    if not description.stack:
        return None
    stack = load(Stack, locate(description.stack, "workloads/stacks", description.folders.workloads))
    usable = stack.spec.mesh is None and stack.spec.library.backend == "gloo"
    return stack.document.value["gloo_transport"] if usable else None


def _extended(job: ProfiledJob, base: Workload, model: Model, fitted: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return *base* with the measured *model*, the *fitted* constants of its stack, and the trace's *settings* of the training."""
    stack = {
        "extends": job.reference(job.description.stack or base.training.stack.name, "workloads/stacks"),
        **fitted,
        "source": dict.fromkeys(fitted, job.source),
    }
    training = {"batch": base.training.batch, "precision": base.training.precision, "compute_factor": 1.0, "stack": stack}
    training |= _layout(job.description)
    fields = {"name": f"{base.name}-measured", "model": model.model_copy(update={"command": ""})}
    if is_model(job.description.workload, job.description.folders.workloads):
        return fields | _run_fields(base) | {"training": training | {"optimizer": {"name": base.training.optimizer.name}} | dict(settings)}
    return {
        "extends": job.reference(job.description.workload, "workloads"),
        **fields,
        "dropped": ("transformer", "sequence", "lora", "lengths", "frozen") if base.model.transformer is not None else (),
        "dataset": _token_dataset(base) if base.model.sequence is not None else None,
        "training": training | dict(settings),
    }


def _layout(description: JobDescription) -> dict[str, Any]:
    """Return the fields of a training that the user's options for its layout set."""
    fields: dict[str, Any] = {}
    for _, key, value in description.layout:
        block, _, name = key.rpartition(".")
        (fields.setdefault(block, {}) if block else fields)[name] = value
    return fields


def _run_fields(base: Workload) -> dict[str, Any]:
    """Return the fields that a run adds to a model file, because a workload cannot extend a model file."""
    if base.model.sequence is None:
        return {"dataset": {"extends": SYNTHETIC, "prepared": f"{base.dataset.prepared!r} B"}}
    return {"dataset": {"extends": TOKENS, **_token_dataset(base)}, "input": dict(LOADER)}


def _token_dataset(base: Workload) -> dict[str, Any]:
    """Return the data set of a token stream, cut into the samples of *base*; it says their length, which a table of layers does not."""
    data = base.dataset
    sizes = {"samples": data.samples, "sample": f"{data.sample!r} B", "prepared": f"{data.prepared!r} B", "prep": f"{data.prep!r} s"}
    return {"name": data.name, "sequence": data.sequence or base.sequence, **sizes, "source": data.source}


def _pass_variation(measured: PassTimes) -> WorkVariation:
    """Return the variation of data-parallel ranks as shares of forward and backward: in the simulator, no rank is late in the optimizer."""
    passes = measured.micro_batches * (measured.total("forward").seconds + measured.total("backward").seconds)
    return measured.variation.of(passes) if passes else measured.variation


def _noise(variation: WorkVariation, work: float = 0.0) -> dict[str, Any]:
    """Return *variation* as a training's noise, as far as it is known; jitter changes as often as it says in *work* seconds."""
    variations = {"compute_cv": variation.compute_cv, "persistent_cv": variation.persistent_cv}
    noise: dict[str, Any] = {name: round(min(1.0, value), 5) for name, value in variations.items() if value is not None}
    if variation.intervals > 1.0 and work:
        noise["compute_correlation"] = f"{work / variation.intervals!r} s"
    return {"noise": noise} if noise else {}


def _from_trace(job: ProfiledJob) -> dict[str, Any]:
    """Return a workload that is built from the trace only."""
    profile, options, machine = job.profile, job.description, job.machine
    on_cpu = profile.traces[0].gpu == CPU
    stack = options.stack or _STACKS[on_cpu]
    overrides = [f"training.batch={options.batch}", f"training.precision={options.precision or 'fp32'}"]
    overrides += [f"training.stack={stack}", "input.loader=synthetic"]
    base = load_workload("alexnet", overrides, options.folders.workloads).spec  # only for its setup: the model is replaced
    measured = measure_passes(profile, base.training.stack.exchange.overlap_slowdown)
    if any(gradient.elements < 0 for gradient in measured.gradients):
        raise SpecError(
            f"{profile.traces[0].file}: contains no gradient shapes; profile with record_shapes=True, or add --workload, whose layers "
            "have them"
        )
    layers = build_layers(measured, StepClocks(base.training.stack.kernels.launch_cpu / machine.launch_speed))
    copied = max(1, round(measured.copied_bytes / measured.micro_batches / base.training.batch))
    model = Model.model_validate({
        "name": "profiled", "parameters": sum(sum(layer.gradients) for layer in layers), "input": f"{copied} B", "layers": layers,
        "measured": job.measured_on(base), "source": f"{job.source}; built from the trace only",
    })  # fmt: skip
    changed: dict[str, Any] = {"gradient_copy_passes": 0.0, "distributed_overhead": 0.0} | ({"launch_cpu": 0.0} if on_cpu else {})
    changed_stack = with_fields(base.training.stack, **changed)
    rule = OPTIMIZERS.get(measured.optimizer, "sgd")
    update = {
        "stack": changed_stack,
        "gradient_accumulation_steps": measured.micro_batches,
        "optimizer": Optimizer.model_validate({"name": rule}),
    }
    draft = base.model_copy(update={"model": model, "training": base.training.model_copy(update=update)})
    changed["optimizer_factor"] = optimizer_factor(draft, machine.gpu, measured, job.ranks)
    batches = measured.micro_batches * base.training.batch
    prep = profile.step_time * machine.cpu_speed / batches if _input(profile, measured) else 0.0
    fitted = {name: f"{value} s" if name in _SECONDS else value for name, value in changed.items()}
    seen = seen_data_parallel(job, draft, bool(options.stack))
    sources = {"*": f"of {stack}", **dict.fromkeys(changed, "inside the measured layers, or measured"), **dict.fromkeys(seen, job.source)}
    return {
        "name": "profiled",
        "model": model,
        "dataset": {
            "name": "profiled", "samples": _SAMPLES, "sample": "1 kB", "prepared": f"{copied} B", "prep": f"{prep!r} s",
            "source": {"*": "estimate (a trace does not contain the samples of an epoch or their cost)", "prepared": "copies in the trace"},
        },
        "input": _input(profile, measured) or {"loader": "synthetic", "source": "no waits for input in the trace"},
        "training": {
            "batch": base.training.batch, "precision": base.training.precision, "gradient_accumulation_steps": measured.micro_batches,
            "optimizer": {"name": rule},
            "stack": {"extends": job.reference(stack, "workloads/stacks"), **fitted, **seen, "source": sources},
            **_noise(_pass_variation(measured)), "source": "the profiled job",
        },
    }  # fmt: skip


def _input(profile: ImportedJob, measured: PassTimes) -> dict[str, Any] | None:
    """Return a loader that needs the measured step time for a batch if the ranks waited for input; None if they did not."""
    if measured.input_wait <= LEAST_INPUT_SHARE * profile.step_time:
        return None
    return {
        "loader": "pytorch", "num_workers": 1, "compute_cv": 0.0,
        "source": "the trace: ranks wait for input, so a rank's loader workers together make one batch per step",
    }  # fmt: skip
