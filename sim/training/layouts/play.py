"""Which simulation does a layout get? One rank for each stage where the nodes of a stage are alike, else every rank by itself."""

from __future__ import annotations

from typing import Final

from sim.training.layouts.run import Simulation
from sim.training.layouts.scene import Played, Scene
from sim.training.layouts.unfolded import Unfolded

MOST_RANKS: Final = 64
"""Ranks that are simulated one by one at most; a larger mesh is simulated as if all nodes of a stage were like its first."""


def play(scene: Scene, steps: int = 0, keep_rates: bool = False) -> Played:
    """Simulate *steps* steps (0: as many as it takes for one to repeat) and return the last. *keep_rates* logs the load of links."""
    mesh = scene.layout.mesh
    even = mesh.even or mesh.gpus > MOST_RANKS
    chosen = steps or (2 if even and (scene.layout.clips or mesh.stages == 1) else 4)
    simulated = Simulation if even else Unfolded
    found = simulated(scene, chosen, keep_rates).run()
    if scene.feed is not None and scene.feed.interval * scene.layout.micro_batches > found.time:  # what is built ahead is soon used up
        return simulated(scene, chosen, keep_rates, starved=True).run()
    return found
