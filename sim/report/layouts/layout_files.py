"""How is a layout of a plan run? With the command that simulates it again, or with launch files for other programs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Final, cast

from sim.cluster.quantizing import recipe_of
from sim.mesh import worker_node
from sim.parallel.units import wrapping
from sim.spec.fields import Precision
from sim.spec.foreign.layout_files import LayoutText, launch_files
from sim.spec.foreign.layout_launch import Launch
from sim.spec.parallel import Parallel
from sim.study.plan.question import LayoutPlan
from sim.study.plan.refine import PlacedLayout
from sim.study.plan.search import Outcome

_DECIDED: Final = frozenset(f"training.{name}" for name in ("batch", "gradient_accumulation_steps", "precision", "stack"))
"""Fields that a plan decides and that options of the command set."""


def run_command(plan: LayoutPlan, placed_layout: PlacedLayout) -> str:
    """Return the `sim run` command of *placed_layout*; if an override and the plan set the same field, with the plan's value."""
    scenario, candidate, setting = plan.question.scenario, placed_layout.candidate, placed_layout.setting
    own = setting.workload_in(candidate).training.parallel
    words = ["python", "-m", "sim", "run", scenario.hardware, scenario.workload, "--nodes", str(setting.nodes)]
    if setting.gpus_per_node != worker_node(setting.hardware).gpu_count:
        words += ["--gpus", str(setting.nodes * setting.gpus_per_node)]
    words += ["--stack", candidate.stack]
    sets: dict[str, str] = {"training.activation_checkpointing": candidate.checkpointing}
    if setting.workload.training.parallel == Parallel():
        words += ["--parallel", ",".join(_axes(own))] if own != Parallel() else []
        if own.reshard_after_forward is not None:
            sets["training.parallel.reshard_after_forward"] = str(own.reshard_after_forward).lower()
        if own.order:
            sets["training.parallel.order"] = f"[{', '.join(own.order)}]"
    else:  # replaces the workload's own layout; the fields of it that the plan keeps are included
        sets["training.parallel"] = json.dumps(own.model_dump(mode="json", exclude_defaults=True))
    words += ["--batch", str(candidate.batch), "--micro-batches", str(candidate.micro_batches)]
    words += ["--precision", candidate.precision]
    words += ["--fp8-recipe", scenario.fp8_recipe] if scenario.fp8_recipe is not None and candidate.precision == "fp8" else []
    words += ["--sequence", str(scenario.sequence)] if scenario.sequence is not None else []
    words += ["--power-cap", plan.question.limits.power_cap] if plan.question.limits.power_cap is not None else []
    undecided = (text for text in scenario.overrides if not _decides(text.partition("=")[0].strip(), sets))
    for text in (*(f"{key}={value}" for key, value in sets.items()), *undecided):
        words += ["--set", text]
    return shlex.join(words)


def _decides(key: str, sets: Mapping[str, str]) -> bool:
    """Return whether a plan decides the field *key*, or the command sets it in *sets*."""
    return key in _DECIDED or key in sets or (key.startswith("training.parallel.") and "training.parallel" in sets)


def _axes(own: Parallel) -> list[str]:
    """Return the items of ``--parallel`` for the layout *own*."""
    layout = {
        "tp": own.tensor, "pp": own.pipeline, "cp": own.context, "ep": own.expert, "replicate": own.replicate,
        "virtual_stages": own.virtual_stages,
    }  # fmt: skip
    items = [f"{name}={size}" for name, size in layout.items() if size > 1]
    items += [f"shard={own.shard}"] if own.shard != "none" else []
    usual = "1f1b" if own.virtual_stages == 1 else "interleaved_1f1b"
    items += [f"schedule={own.schedule}"] if own.schedule not in (None, usual) else []
    return items + (["sequence=false"] if own.sequence is False and (own.tensor > 1 or not items) else [])


def launch_of(plan: LayoutPlan, outcome: Outcome) -> Launch:
    """Return the values of *outcome* that launch files contain."""
    candidate, setting = outcome.placed_layout.candidate, outcome.placed_layout.setting
    model, training = setting.workload.model, setting.workload_in(candidate).training
    return Launch(
        name=setting.workload.name,
        model=model.name,
        shape=model.transformer,
        adapters=model.lora is not None or bool(model.frozen),
        sequence=plan.sequence,
        parallel=training.parallel.model_copy(update={"wrap": wrapping(model, training.parallel)}),
        data=candidate.data,
        batch=candidate.batch,
        micro_batches=candidate.micro_batches,
        checkpointing=candidate.checkpointing,
        precision=candidate.precision,
        fp8_recipe=recipe_of(cast(Precision, candidate.precision), setting.workload.layer_stack.kernels, outcome.run.node.gpu),
        nodes=setting.nodes,
        gpus_per_node=setting.gpus_per_node,
        accelerator=_accelerator(outcome.run.node.gpu.name),
        stack=training.stack,
        recompute_blocks=training.recompute_blocks,
        recompute_modules=training.recompute_modules,
        recompute_saves=training.recompute_saves,
        is_spot=plan.question.scenario.market == "spot",
    )


def _accelerator(name: str) -> str:
    """Return SkyPilot's name of a GPU: the model, with the memory if there are two sizes."""
    model = name.split("-")[0]
    return f"{model}-80GB" if model == "A100" and "80GB" in name else model


def export_files(plan: LayoutPlan) -> LayoutText:
    """Return the launch files of the best layout of *plan*."""
    outcome = plan.tally.outcomes[0]
    return launch_files(launch_of(plan, outcome), run_command(plan, outcome.placed_layout))
