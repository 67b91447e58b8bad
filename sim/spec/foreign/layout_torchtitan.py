"""How is a layout written for torchtitan? As the TOML file of its trainer; layouts that it does not support are rejected."""

from __future__ import annotations

import json
from itertools import accumulate
from math import ceil
from typing import Any, Final

from sim.spec.foreign.launch_torchtitan import TORCHTITAN_MODELS
from sim.spec.foreign.layout_launch import EXCHANGES, Launch, blocks_of, fields_with_defaults, refuse_four_bits, require_shape
from sim.spec.library import load_part
from sim.spec.model import Model
from sim.spec.parallel import even_blocks
from sim.spec.yaml import SpecError

_NAMES: Final = {name: key for key, name in TORCHTITAN_MODELS.items()}
_SCHEDULES: Final = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved_1f1b": "Interleaved1F1B", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
_RECOMPUTES: Final = {"none": "none", "model": "none", "blocks": "full", "selective": "selective", "operators": "selective"}
_PRECISIONS: Final = {
    **dict.fromkeys(("bf16", "amp_bf16", "fp8"), "bfloat16"), **dict.fromkeys(("fp32", "tf32"), "float32"),
}  # fmt: skip
_FLEX: Final = ("deepseek_v3", "llama4")
"""Models of torchtitan whose flavors in the catalog have ``attn_type`` flex (torchtitan/models/*/__init__.py, model/args.py)."""


def torchtitan_toml(launch: Launch) -> str:
    """Return the TOML for torchtitan. Raise SpecError for anything that torchtitan does not support."""
    parallel, name = launch.parallel, _name(launch)
    refuse_four_bits(launch, "torchtitan")
    if parallel.shard not in ("none", "parameters"):
        raise SpecError(f"torchtitan supports shard: parameters or none, not {parallel.shard}")
    if parallel.pipeline > 1 and parallel.schedule not in (None, *_SCHEDULES):
        raise SpecError(f"torchtitan has no schedule {parallel.schedule}")
    if launch.precision not in _PRECISIONS:
        raise SpecError(f"torchtitan trains in {', '.join(_PRECISIONS)}, not {launch.precision}")
    _check_supported(launch, name)
    if parallel.order:
        raise SpecError("torchtitan has a fixed order of axes: pp, dp_replicate, dp_shard, cp, tp")
    sharded = parallel.shard == "parameters"
    replicate = parallel.replicate if sharded else launch.data
    freed = parallel.reshard_after_forward if sharded else None  # not a number, which is refused above
    reshard = "default" if freed is None else "always" if freed else "never"
    piped = parallel.pipeline > 1
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": launch.data // replicate,
        "fsdp_reshard_after_forward": reshard,
        "tensor_parallel_degree": parallel.tensor,
        "context_parallel_degree": parallel.context,
        "pipeline_parallel_degree": parallel.pipeline,
        "expert_parallel_degree": parallel.expert,
    }
    if parallel.context > 1:
        parallelism["context_parallel_rotate_method"] = EXCHANGES[parallel.context_exchange]
    if piped:
        default_schedule = "1f1b" if parallel.virtual_stages == 1 else "interleaved_1f1b"
        parallelism["pipeline_parallel_schedule"] = _SCHEDULES[parallel.schedule or default_schedule]
        parallelism["pipeline_parallel_microbatch_size"] = launch.batch
        parallelism |= _stages(launch)
    training = {
        "local_batch_size": launch.batch * (launch.micro_batches if piped else 1),
        "global_batch_size": launch.global_batch,
        "seq_len": launch.sequence,
        "mixed_precision_param": _PRECISIONS[launch.precision],
    } | ({"dtype": _PRECISIONS[launch.precision]} if is_unmixed(launch) else {})
    model, mode = {"name": name[0], "flavor": name[1]}, _RECOMPUTES[launch.checkpointing]
    quantized = _quantized(launch)
    blocks: dict[str, dict[str, Any]] = {
        "model": model | ({"converters": [*quantized]} if quantized else {}), **quantized, "training": training, "parallelism": parallelism,
        "activation_checkpoint": {"mode": mode} | ({"selective_ac_option": "op"} if mode == "selective" else {}),
        "compile": {"enable": not _is_eager(launch)},
    }  # fmt: skip
    return "\n".join(
        f"[{block}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items()) for block, rows in blocks.items()
    )


def _is_eager(launch: Launch) -> bool:
    """Return whether a stack of FSDP2 was simulated whose blocks are not compiled."""
    mesh = launch.stack.mesh if launch.stack is not None else None
    return launch.stack is not None and mesh is not None and mesh.framework == "fsdp2" and not any(launch.stack.kernels.compilation)


def _quantized(launch: Launch) -> dict[str, dict[str, Any]]:
    """Return the block of the converter to FP8. Raise SpecError for a recipe that torchtitan does not have."""
    if launch.precision != "fp8":
        return {}
    if launch.fp8_recipe == "mxfp8":
        return {"quantize.linear.mx": {"recipe_name": "mxfp8_cublas"}}
    if launch.fp8_recipe not in ("tensorwise", "rowwise"):
        raise SpecError(f"torchtitan has the fp8 recipes tensorwise, rowwise and mxfp8, not {launch.fp8_recipe}")
    return {"quantize.linear.float8": {"recipe_name": launch.fp8_recipe}}


def _check_supported(launch: Launch, name: tuple[str, str]) -> None:
    """Raise SpecError if torchtitan cannot replicate, split, wrap or cut the model *name* as *launch* does."""
    parallel = launch.parallel
    if parallel.shard == "none" and parallel.context > 1:
        raise SpecError("torchtitan always shards parameters over context ranks; use shard: parameters")
    if parallel.shard == "none" and launch.data > 1 and parallel.model_ranks * parallel.expert > 1:
        raise SpecError(
            "torchtitan cannot combine replicas with other axes (DDP has not supported > 1D parallelism); use shard: parameters"
        )
    if parallel.expert > 1 and (launch.data // parallel.replicate * parallel.context * parallel.tensor) % parallel.expert:
        raise SpecError("torchtitan takes expert ranks from the tensor, context and data ranks of one replica")
    if parallel.tensor > 1 and not parallel.sequence_parallel:
        raise SpecError("torchtitan's tensor ranks always split sequences; use sequence_parallel: true")
    if parallel.context > 1 and name[0] in _FLEX:
        raise SpecError(f"torchtitan's {' '.join(name)} uses flex attention, which does not support context ranks")
    if type(parallel.reshard_after_forward) is int:
        raise SpecError("torchtitan frees gathered weights after forward or keeps them; it has no reshard_after_forward in groups of ranks")
    if parallel.wrap is not None:
        raise SpecError("torchtitan always wraps whole blocks; leave wrap out")
    if parallel.cuts:
        raise SpecError("torchtitan's stages begin at block boundaries, not at training.parallel.cuts")


def is_unmixed(launch: Launch) -> bool:
    """Return whether torchtitan uses no mixed precision: if it neither shards parameters nor replicates (``mixed_precision_param``)."""
    return launch.parallel.shard == "none" and launch.parallel.model_ranks > 1


def _stages(launch: Launch) -> dict[str, Any]:
    """Return the options for the blocks in each chunk, if they differ from torchtitan's default: their number, or their names.

    By default, torchtitan has one or two chunks on each rank, and counts the embedding and the head as one block each
    (torchtitan/distributed/pipeline_parallel.py).
    """
    parallel, counts = launch.parallel, blocks_of(launch, 1)
    blocks, chunks = sum(counts), len(counts)
    if counts == even_blocks(blocks, chunks, 1, 1):
        if parallel.chunks <= 2:
            return {}
        if (most := next((each for each in range(1, blocks + 3) if ceil((blocks + 2) / each) == chunks), None)) is not None:
            return {"pipeline_parallel_layers_per_stage": most}
    named = [[f"layers.{layer}" for layer in range(end - count, end)] for end, count in zip(accumulate(counts), counts, strict=True)]
    return {"module_fqns_per_model_part": [["tok_embeddings", *named[0]], *named[1:-1], [*named[-1], "norm", "output"]]}


def _name(launch: Launch) -> tuple[str, str]:
    """Return torchtitan's name and flavor of the model. Raise SpecError if its sizes differ from torchtitan's."""
    shape, name = require_shape(launch, "torchtitan"), _NAMES.get(launch.model)
    if name is None:
        raise SpecError(f"torchtitan has no configuration for {launch.model}")
    meant, own = fields_with_defaults(shape), load_part(Model, launch.model).transformer
    assert own is not None
    if unlike := [field for field, value in fields_with_defaults(own).items() if meant[field] != value]:
        raise SpecError(f"torchtitan's {' '.join(name)} differs from this {launch.model} in {', '.join(unlike)}")
    return name
