"""What are the defaults of a workload? The stack of every workload; data, batch and precision of a decoder.

By default, a decoder (a model with ``transformer``) is trained on a stream of tokens in one memory-mapped file, one sequence per GPU, in
bfloat16 with Adam. The stack is torch's DistributedDataParallel, or torchtitan for layouts other than plain data parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from sim.spec.parallel import Parallel

REPLICATED_STACK: Final = "torch-2.x-ddp"
PARALLEL_STACK: Final = "torchtitan-2.x"
SHARDED_STACK: Final = "torch-2.x-fsdp2"
"""torch's FSDP2 with the kernels and the optimizer of `REPLICATED_STACK`."""
EAGER_STACK: Final = "torchtitan-2.x-eager"
"""The same without torch.compile: operators run one by one."""
SHARDED_TRANSFORMERS: Final = "hf-fsdp1"
"""The modeling code of Hugging Face transformers, operator by operator, in torch's first FSDP (Accelerate, the Trainer)."""
SHARDED_FUSED: Final = "torch-fsdp1"
"""The same FSDP with fused kernels, such as Liger's."""
ZERO_TRANSFORMERS: Final = "hf-deepspeed"
"""The same under DeepSpeed's ZeRO."""
TOKENS: Final = "tokens"
"""The data set of decoders."""
LOADER: Final[Mapping[str, Any]] = {
    "num_workers": 1,
    "source": "estimate (slices of one memory-mapped file; one worker collates them, as the data loaders of torchtitan and nanoGPT)",
}
DECODER_TRAINING: Final[Mapping[str, Any]] = {
    "batch": 1,
    "precision": "bf16",
    "optimizer": {"name": "adam"},
    "source": "estimate (one sequence a GPU and micro-batch, all in bfloat16)",
}


def missing_defaults(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults for what is missing in *workload*: blocks by key, and keys of ``training``.

    *workload* is plain data in which the references of the model have been resolved.
    """
    model, training = workload.get("model"), workload.get("training")
    decoder = isinstance(model, Mapping) and model.get("transformer") is not None
    if training is None and not decoder:
        return {}
    settings = training if isinstance(training, Mapping) else {}
    stack = _part_or_extension(settings.get("stack"), stack_of(settings), "name")
    if not decoder:
        return {"training": {"stack": stack}}
    dataset = _part_or_extension(workload.get("dataset"), TOKENS, "sample")
    model = {"name": workload.get("name", "model"), "source": "the user's choice"}
    return {"model": model, "training": {**DECODER_TRAINING, "stack": stack}, "dataset": dataset, "input": dict(LOADER)}


def _part_or_extension(block: Any, name: str, needed: str) -> Any:
    """Return the part *name*, or a block that extends it if *block* is a block without the key *needed*, which changes only some keys."""
    return {"extends": name} if isinstance(block, Mapping) and needed not in block else name


def stack_of(training: Mapping[str, Any]) -> str:
    """Return the default stack of a workload with *training* that does not specify one."""
    parallel = training.get("parallel") or {}
    layout = {key: value for key, value in parallel.items() if key != "micro_batches"} if isinstance(parallel, Mapping) else parallel
    try:
        trivial = Parallel.model_validate(layout).is_trivial
    except ValidationError:  # reported when the whole workload is validated
        return REPLICATED_STACK
    return REPLICATED_STACK if trivial else PARALLEL_STACK
