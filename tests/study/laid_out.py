"""How do tests of runs with a layout name one?"""

from __future__ import annotations

from sim.study.layout_options import layout_of
from sim.study.scenario import Scenario

TITAN, MEGATRON = "torchtitan-2.x", "megatron-core"


def scenario(name: str, nodes: int = 1, stack: str | None = TITAN, gpus: int | None = None, **parallel: object) -> Scenario:
    micro_batches = parallel.pop("micro_batches", None)
    text = [",".join(f"{key}={value}" for key, value in parallel.items())] if parallel else []
    layout = layout_of(text, micro_batches=micro_batches)  # type: ignore[arg-type]
    return Scenario("hgx-h100", name, nodes=nodes if gpus is None else None, gpus=gpus, stack=stack, layout=layout)


LLAMA, MIXTRAL = "llama-3.2-1b", "mixtral-8x7b"
