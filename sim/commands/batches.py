"""``batches``: how different machines share a batch."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands.app import app
from sim.commands.options import Hw, JsonOption, Sets, Wl, takes_options
from sim.study.options import DescriptionOptions, GlobalBatchOptions
from sim.terminal import messages, print_json, show_text


@app.command(
    epilog="Examples:\n"
    "  python -m sim batches my-two-kinds.yaml resnet50 --global-batch 512\n"
    "  python -m sim batches 256x-tpu-v2-v3 resnet50 --global-batch 65536 --precision amp_bf16"
)
@takes_options
def batches(
    hardware: Hw,
    workload: Wl,
    options: DescriptionOptions,
    size: GlobalBatchOptions,
    simulate: Annotated[int, typer.Option(min=2, help="maximum number of simulated steps")] = 400,
    sets: Sets = [],
    as_json: JsonOption = False,
) -> None:
    """Balance the batches of different machines in one data-parallel job, for the shortest step.

    HW has several groups of workers. DDP, Horovod and synchronous parameter servers are simulated with each division of the batch.
    """
    from sim.report.batches import batches_document, batches_text
    from sim.study.batches import batches as searched
    from sim.study.scenario import Scenario

    scenario = Scenario(hardware, workload, tuple(sets), **options)
    answer = searched(scenario, size["global_batch"], simulate, messages.progress)
    messages.progress("")
    document = batches_document(answer)
    print_json(document) if as_json else show_text(batches_text(document))
