"""How many ranks of a layout are simulated? One per stage if the nodes of each stage are equal, otherwise one per class of equal ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sim.training.layouts.run import DRAWN_STEPS, MakeStage, Simulation, Stage
from sim.training.layouts.scene import LayoutScene, PlayedLayout
from sim.training.layouts.unfolded import Unfolded, node_classes

MOST_RANKS: Final = 4096
"""Maximum number of ranks for which classes are computed. With more, all nodes of a stage are simulated as if equal to its first."""
MOST_CLASSES: Final = 256
"""Maximum number of classes of ranks, counted as if all ranks of a node differed; with more, as above. That is quicker even if most do not:
4 s in place of 25 s for 288 GB200 in nine stages, with a step that is 0.04% longer."""


def play(scene: LayoutScene, steps: int = 0, keep_rates: bool = False, exact: bool = False, make_stage: MakeStage = Stage) -> PlayedLayout:
    """Simulate *steps* steps (0: as many as needed to reach a steady step) and return the last. *keep_rates* logs the load of links.

    *exact* computes classes of ranks also if only the distribution of a stage over switches is uneven, which takes about ten times as long.
    *make_stage* is for stages that do not play every instruction.
    """
    mesh = scene.layout.mesh
    if not ((mesh.is_even and (scene.prices.even_below_switches or not exact)) or mesh.gpus > MOST_RANKS):
        by_rank = _by_rank(scene, steps, keep_rates, make_stage)
        if by_rank is not None:
            return by_rank
    chosen = (steps or (2 if scene.layout.clips_gradients or mesh.stages == 1 else 4)) + (DRAWN_STEPS - 1 if scene.noise.draws else 0)
    played = _played(Simulation(scene, chosen, keep_rates, False, make_stage))
    if _starves(scene, played):
        played = _played(Simulation(scene, chosen, keep_rates, True, make_stage))
    return replace(played, exact=mesh.is_even and scene.prices.even_below_switches)


def _by_rank(scene: LayoutScene, steps: int, keep_rates: bool, make_stage: MakeStage) -> PlayedLayout | None:
    """Return the last step of a simulation by classes of ranks, or None if there are too many classes."""
    if scene.layout.mesh.gpus > MOST_CLASSES and node_classes(scene) > MOST_CLASSES:
        return None
    steps = (steps or 4) + (DRAWN_STEPS - 1 if scene.noise.draws else 0)
    played = _played(Unfolded(scene, steps, keep_rates, folds=True, make_stage=make_stage))
    if _starves(scene, played):
        return _played(Unfolded(scene, steps, keep_rates, starved=True, folds=True, make_stage=make_stage))
    return played


def _played(simulation: Simulation) -> PlayedLayout:
    try:
        return simulation.run()
    finally:
        simulation.close()


def _starves(scene: LayoutScene, played: PlayedLayout) -> bool:
    """Return whether loaders are slower than steps, so that batches built ahead are soon used up."""
    return scene.feed is not None and scene.feed.interval * scene.layout.micro_batches > played.time
