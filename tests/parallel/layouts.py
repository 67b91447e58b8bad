"""Hand-made layouts of small models, whose programs can be checked without hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sim.parallel.lower.layouts import Layout, program
from sim.parallel.mesh import Mesh, mesh_of
from sim.parallel.program import Copy, Program, Start
from sim.parallel.split import split
from sim.parallel.stages import stages_of
from sim.spec.layer import Layer
from sim.spec.model import Model
from sim.spec.parallel import MeshOptions, Parallel, Schedule


def parallel(**fields: Any) -> Parallel:
    return Parallel.model_validate(fields)


def options(**fields: Any) -> MeshOptions:
    return MeshOptions.model_validate({"framework": "fsdp2", "source": "test"} | fields)


def model(layers: Iterable[Layer], name: str = "toy") -> Model:
    layers = tuple(layers)
    parameters = max(1, sum(sum(layer.gradients) + sum(layer.frozen) for layer in layers))
    return Model(name=name, parameters=parameters, input="1 B", layers=layers, source="test")


def block_model(sizes: Mapping[str, Sequence[int]], frozen: Sequence[str] = ()) -> Model:
    """Return a model with a layer for each name; those in *frozen* have no gradients, and those before the first other no backward."""
    first = next((index for index, name in enumerate(sizes) if name not in frozen), 0)
    rows = []
    for index, (name, elements) in enumerate(sizes.items()):
        passed = {} if index < first else {"backward": "1 FLOP"}
        rows.append(Layer.model_validate({"name": name, "op": "gemm", "frozen" if name in frozen else "gradients": elements} | passed))
    return model(rows)


def layout(
    model: Model,
    gpus: int,
    *,
    micro_batches: int = 1,
    synchronizes_each: bool = False,
    gathered: float = 2.0,
    reduced: float = 4.0,
    stack: Mapping[str, Any] | None = None,
    tied: float = 0.0,
    clips: bool = False,
    regathers: bool = True,
    **fields: Any,
) -> Layout:
    """Return the layout with these fields of ``parallel`` on one node of *gpus* GPUs."""
    own, chosen = parallel(**fields), options(**(stack or {}))
    mesh: Mesh = mesh_of(own, [gpus], chosen.order)
    schedule: Schedule = own.schedule or ("interleaved_1f1b" if own.virtual_stages > 1 else "1f1b")
    held = split(model, own, regathers)
    chunks = stages_of(held, own)
    return Layout(
        mesh=mesh, options=chosen, units=held, chunks=chunks, schedule=schedule, micro_batches=micro_batches, gathered_width=gathered,
        reduced_width=reduced, input_bytes=(1.0,) * len(chunks), clips_gradients=clips, tied_bytes=tied,
        synchronizes_each=synchronizes_each or own.shard == "gradients",
    )  # fmt: skip


def sent(layout: Layout, stage: int = 0) -> list[tuple[str, int, float]]:
    """Return the operations of one rank in their order: what, among how many ranks, bytes."""
    made: Program = program(layout, stage)
    return [(each.op, layout.mesh.group_size(each.axis), each.nbytes) for each in made if isinstance(each, Start)]


def copied(layout: Layout, stage: int = 0) -> dict[str, float]:
    """Return the bytes that one rank reads and writes in copies outside collectives in a step, by kind of copy."""
    totals: dict[str, float] = {}
    for each in program(layout, stage):
        if isinstance(each, Copy):
            totals[each.what] = totals.get(each.what, 0.0) + each.nbytes
        elif isinstance(each, Start) and each.copied_bytes:
            what = "shards" if each.op == "all_gather" else "divided"
            totals[what] = totals.get(what, 0.0) + each.copied_bytes
    return totals
