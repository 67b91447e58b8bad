"""How many ranks of a layout are simulated? One per stage if the nodes of each stage are equal, otherwise one per class of equal ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sim.training.layouts.run import DRAWN_STEPS, Simulation
from sim.training.layouts.scene import LayoutScene, PlayedLayout
from sim.training.layouts.unfolded import Unfolded

MOST_RANKS: Final = 4096
"""Maximum number of ranks for which classes are computed. With more, all nodes of a stage are simulated as if equal to its first."""
MOST_CLASSES: Final = 256
"""Maximum number of classes of ranks that are simulated; with more, as above. 192 classes of a 16-stage pipeline take 3 s."""
Simulate = Callable[[LayoutScene, int, bool, bool], Simulation]
"""Returns a simulation, with the parameters of `Simulation`."""


def play(scene: LayoutScene, steps: int = 0, keep_rates: bool = False, exact: bool = False) -> PlayedLayout:
    """Simulate *steps* steps (0: as many as needed to reach a steady step) and return the last. *keep_rates* logs the load of links.

    *exact* computes classes of ranks also if only the distribution of a stage over switches is uneven, which takes about ten times as long.
    """
    if not plays_stages(scene, exact):
        by_rank = _by_rank(scene, steps, keep_rates)
        if by_rank is not None:
            return by_rank
    return play_stages(scene, steps, keep_rates)


def plays_stages(scene: LayoutScene, exact: bool = False) -> bool:
    """Return whether one rank of each stage is simulated, without computing classes of ranks."""
    mesh = scene.layout.mesh
    return (mesh.is_even and (scene.prices.even_below_switches or not exact)) or mesh.gpus > MOST_RANKS


def play_stages(scene: LayoutScene, steps: int = 0, keep_rates: bool = False, simulate: Simulate = Simulation) -> PlayedLayout:
    """Simulate one rank of each stage with *simulate*; see `play`."""
    mesh = scene.layout.mesh
    chosen = (steps or (2 if scene.layout.clips_gradients or mesh.stages == 1 else 4)) + (DRAWN_STEPS - 1 if scene.noise.draws else 0)
    played = simulate(scene, chosen, keep_rates, False).run()
    if _starves(scene, played):
        played = simulate(scene, chosen, keep_rates, True).run()
    return replace(played, exact=mesh.is_even and scene.prices.even_below_switches)


def _by_rank(scene: LayoutScene, steps: int, keep_rates: bool) -> PlayedLayout | None:
    """Return the last step of a simulation by classes of ranks, or None if there are too many classes."""
    steps = (steps or 4) + (DRAWN_STEPS - 1 if scene.noise.draws else 0)
    simulated = Unfolded(scene, steps, keep_rates, folds=True)
    if len(set(simulated.representatives)) > MOST_CLASSES:
        return None
    played = simulated.run()
    return Unfolded(scene, steps, keep_rates, starved=True, folds=True).run() if _starves(scene, played) else played


def _starves(scene: LayoutScene, played: PlayedLayout) -> bool:
    """Return whether loaders are slower than steps, so that batches built ahead are soon used up."""
    return scene.feed is not None and scene.feed.interval * scene.layout.micro_batches > played.time
