"""How long does a training step of a decoder take under torchtitan? With its own model, blocks and loss on one rank.

A step is torchtitan's: forward and backward in bfloat16 under FSDP2 (over one rank, so gathers are casts and copies), the loss over 32-bit
logits, gradient clipping, and fused AdamW. Limits: random tokens; no data loader; it needs torchtitan 0.2 and torchao, which are not among
the project's requirements.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from calibration.blind.questions import TITAN, BlindTraining
from calibration.measure.team import join_alone


def titan_step(run: BlindTraining) -> Callable[[], None]:
    """Return a function that runs one step of *run* on this process's GPU."""
    import torch

    settings = run.settings
    family, _, size = run.model.removeprefix(TITAN).partition("/")
    spec = importlib.import_module(f"torchtitan.models.{family}").get_train_spec()
    job = _job(settings, run)
    dims = _dimensions()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    join_alone(device.type)
    shape = replace(spec.model_args[size], n_layers=int(settings["layers"]))
    shape.update_from_config(job)
    with torch.device("meta"):
        model = spec.model_cls(shape)
    if settings["recipe"]:
        _convert_to_fp8(model, job, dims)
    spec.parallelize_fn(model, dims, job)
    _shard(model, family, device)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights(buffer_device=device)
    model.train()
    return _step(model, spec.build_loss_fn(job), run, shape.vocab_size, device)


def _job(settings: dict[str, str], run: BlindTraining) -> Any:
    """Return torchtitan's configuration: its defaults with the settings of *run*; blocks and loss are compiled if there is a GPU."""
    import torch

    job = importlib.import_module("torchtitan.config").JobConfig()
    job.training.seq_len, job.training.local_batch_size = run.sequence, run.batch
    job.compile.enable = torch.cuda.is_available()
    job.activation_checkpoint.mode = settings["recompute"]
    job.quantize.linear.float8.filter_fqns = ["output"]
    if settings["recipe"] == "rowwise":
        job.quantize.linear.float8.recipe_name = "rowwise"
    return job


def _dimensions() -> Any:
    dimensions = importlib.import_module("torchtitan.distributed").ParallelDims
    return dimensions(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=1)


def _convert_to_fp8(model: Any, job: Any, dims: Any) -> None:
    importlib.import_module("torchtitan.components.quantization.float8").Float8LinearConverter(job, dims).convert(model)


def _shard(model: Any, family: str, device: Any) -> None:
    """Shard *model* over one rank as torchtitan does over several: one unit per block, gathered in bfloat16, reduced in 32 bits."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (1,), mesh_dim_names=("fsdp",))
    source = "llama3" if family == "llama3" else "llama4"  # the other families use Llama 4's plan
    importlib.import_module(f"torchtitan.models.{source}.infra.parallelize").apply_fsdp(model, mesh, torch.bfloat16, torch.float32, False)


def _step(model: Any, loss_of: Any, run: BlindTraining, vocabulary: int, device: Any) -> Callable[[], None]:
    import torch

    clip = importlib.import_module("torchtitan.distributed.utils").clip_grad_norm_
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True)
    tokens = torch.randint(0, vocabulary, (run.batch, run.sequence), device=device)
    labels = torch.randint(0, vocabulary, (run.batch, run.sequence), device=device)

    def step() -> None:
        optimizer.zero_grad()
        scores = model(tokens)
        loss = loss_of(scores, labels) / labels.numel()
        del scores  # freed before backward, as in torchtitan's trainer
        loss.backward()
        clip(parameters, 1.0, foreach=True)
        optimizer.step()

    return step
