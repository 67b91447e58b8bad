"""Toy layouts: blocks that take a written-down time on machines with written-down links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.mesh import LayoutRun, layout_scene, prepare, run_layout
from sim.spec.hardware import Hardware
from sim.spec.layer import Layer
from sim.spec.parallel import Parallel
from sim.spec.workload import Workload
from sim.training.layouts.play import play
from sim.training.layouts.scene import LayoutScene, PlayedLayout
from tests.harness import layer, machine, toy_workload
from tests.parallel.layouts import parallel

FORWARD, BACKWARD = 0.01, 0.02
SLOT = FORWARD + BACKWARD
MESH: Mapping[str, Any] = {"framework": "fsdp2", "source": "test"}


def with_parallel(workload: Workload, parallel: Parallel, **training: object) -> Workload:
    """Return *workload* in another layout, with other fields of its ``training`` as well."""
    changed = {"parallel": parallel, **training}
    return workload.with_training(**changed)


def block(number: int, forward: float = FORWARD, backward: float = BACKWARD, elements: int = 1000, **keys: Any) -> Layer:
    return layer(forward, backward, elements, name=f"layers.{number}.product", read="4 B", write="4 B", **keys)


def blocks(count: int, forward: float = FORWARD, backward: float = BACKWARD, elements: int = 1000, **keys: Any) -> list[Layer]:
    return [block(number, forward, backward, elements, **keys) for number in range(count)]


def split_block(number: int, elements: int = 1000) -> list[Layer]:
    """A block with a plan: a column and a row product, which each take half."""
    shares = ("colwise", "rowwise")
    return [
        layer(
            FORWARD / 2, BACKWARD / 2, elements, name=f"layers.{number}.{share}", share=share, read="4 kB", write="4 kB",
            tokens=8, channels=(8, 8),
        )
        for share in shares
    ]  # fmt: skip


def workload(
    layers: list[Layer],
    stack: Mapping[str, Any] | None = None,
    mesh: Mapping[str, Any] | None = None,
    micro_batches: int = 1,
    **fields: Any,
) -> Workload:
    """Return a workload of *layers* with *fields* of ``parallel``; the optimizer takes no time."""
    toy = toy_workload(
        layers,
        stack={"mesh": MESH | dict(mesh or {}), "gradient_clipping": False} | dict(stack or {}),
        accumulation=micro_batches,
        optimizer="none",
        noise=0.0,
    )
    return with_parallel(toy, parallel(**fields))


def free(gpus: int, nodes: int = 1, **keys: Any) -> Hardware:
    """Return a machine on which messages take no time to speak of."""
    return machine(gpus, nodes, **{"nvlink": 1e18, "nic": 1e18, "pcie": 1e18, "dram": 1e19} | keys)


def run(hardware: Hardware, given: Workload, steps: int = 0) -> LayoutRun:
    return run_layout(hardware, given, steps=steps)


def played(hardware: Hardware, given: Workload, steps: int = 0) -> tuple[LayoutScene, PlayedLayout]:
    """Return the simulation with the loads of links."""
    scene = layout_scene(hardware, given, prepare(hardware, given))
    return scene, play(scene, steps, keep_rates=True)


def with_memory(hardware: Hardware, bandwidth: float) -> Hardware:
    """Return *hardware* with GPUs of that memory bandwidth."""
    (group,) = hardware.groups
    node = group.node.model_copy(update={"gpu": group.node.gpu.model_copy(update={"memory_bandwidth": bandwidth})})
    return hardware.model_copy(update={"groups": (group.model_copy(update={"node": node}),)})
