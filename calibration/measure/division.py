"""How do the ranks of a measured step divide the model? Along one axis, with the field names of ``training.parallel``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import model_validator

from sim.spec.fields import Count, Spec

HEAD_DIM: Final = 64
"""Width of a head of the decoder whose layouts are measured; here, so that a fit needs no torch."""


class Division(Spec):
    """How ranks divide the model with torch's own libraries; field names are those of ``training.parallel``."""

    shard: Literal["none", "parameters"] = "none"
    """``fully_shard`` (FSDP2); the units are the embedding, each block, and norm with head."""
    reshard_after_forward: bool = True
    asynchronous: bool = False
    """Gathers are issued asynchronously (``_set_unshard_async_op``), so that in backward they overlap with compute."""
    tensor: Count = 1
    """``parallelize_module``, with the loss on sharded scores (``loss_parallel``)."""
    sequence: bool = False
    pipeline: Count = 1
    """``torch.distributed.pipelining``."""
    schedule: Literal["gpipe", "1f1b", "interleaved_1f1b"] = "1f1b"
    virtual_stages: Count = 1
    micro_batches: Count = 1

    @model_validator(mode="after")
    def _adds_up(self) -> Division:
        if (self.shard == "parameters") + (self.tensor > 1) + (self.pipeline > 1) != 1:
            raise ValueError("a measured layout must have one axis; write shard: parameters, tensor: 2 or pipeline: 2")
        if self.micro_batches > 1 and self.pipeline == 1:
            raise ValueError("micro_batches require a pipeline; write pipeline: 2, or leave them out")
        return self

    @property
    def text(self) -> str:
        """Return a short description of the layout."""
        if self.pipeline > 1:
            return f"pipeline {self.pipeline} {self.schedule}, {self.micro_batches} micro-batches"
        if self.tensor > 1:
            return f"tensor {self.tensor}" + " + sequence" * self.sequence
        return "FSDP2" + ("" if self.reshard_after_forward else ", no reshard") + ", asynchronous" * self.asynchronous

    @property
    def parallel(self) -> Mapping[str, object]:
        """Return the equivalent fields of ``training.parallel``."""
        if self.pipeline > 1:
            return {"pipeline": self.pipeline, "schedule": self.schedule, "virtual_stages": self.virtual_stages}
        if self.tensor > 1:
            return {"tensor": self.tensor, "sequence": self.sequence}
        return {"shard": "parameters"} | ({} if self.reshard_after_forward else {"reshard_after_forward": False})
