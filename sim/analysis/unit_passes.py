"""How many bytes does one pass over a unit of the model allocate on a rank, and how many remain?

Forward keeps activations. Backward allocates what it recomputes and the gradients of weights that are not sharded, layer by layer.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.analysis.kept_activations import activation_bytes, checkpointed_bytes, loss_bytes, recomputed_bytes, saved_bytes
from sim.parallel.checkpointing import checkpointed_share
from sim.parallel.lower.layouts import Layout
from sim.parallel.split import Unit
from sim.spec.layer import Layer
from sim.spec.workload import Workload


class UnitPass(NamedTuple):
    """One pass over a unit, in bytes relative to the start: what remains, the peak, and the gradients *made* (included) at the peak."""

    net: float
    peak: float
    made: float


def unit_pass(layout: Layout, workload: Workload, unit: Unit, forward: bool) -> UnitPass:
    """Return what one pass over *unit* keeps and its peak; if only some blocks are checkpointed, the mean kept and the larger peak."""
    training = workload.training
    if unit.kind != "block" or training.activation_checkpointing not in ("blocks", "operators"):
        return _one_pass(layout, workload, unit, forward, checkpointed=False)
    share = checkpointed_share(training, layout.units, layout.mesh.stages)
    recomputed = _one_pass(layout, workload, unit, forward, checkpointed=True)
    if share == 1.0:
        return recomputed
    plain = _one_pass(layout, workload, unit, forward, checkpointed=False)
    fuller = max(recomputed, plain, key=lambda each: each.peak)
    return fuller._replace(net=share * recomputed.net + (1.0 - share) * plain.net)


def _one_pass(layout: Layout, workload: Workload, unit: Unit, forward: bool, checkpointed: bool) -> UnitPass:
    kept = [saved_bytes(piece.layer, workload) for piece in unit.pieces]
    scratch = [_scratch(piece.layer, workload) for piece in unit.pieces]
    entering = checkpointed_bytes(unit, workload) if checkpointed else 0.0
    total, again = sum(kept), recomputed_bytes(unit, workload)
    if forward:
        done = 0.0
        peaks = []
        for own, temporary in zip(kept, scratch, strict=True):
            peaks.append(done + temporary)
            done += 0.0 if checkpointed else own
        return UnitPass(entering if checkpointed else total - again, max(peaks, default=0.0), 0.0)
    left, made = (total if checkpointed else again), 0.0
    fullest = (0.0, 0.0)
    for piece, own, temporary in zip(reversed(unit.pieces), reversed(kept), reversed(scratch), strict=True):
        made += sum(piece.layer.gradients) * layout.gathered_width if layout.shards_parameters else 0.0
        fullest = max(fullest, (left + made + temporary, made))
        left -= own
    return UnitPass(-(entering if checkpointed else total - again), *fullest)


def _scratch(layer: Layer, workload: Workload) -> float:
    """Return the temporary bytes of one pass over *layer*, beyond those it keeps; for the loss, of its backward, which needs most."""
    if layer.op != "loss":
        return activation_bytes(layer, layer.read + layer.write, workload)
    return loss_bytes(layer, workload) - saved_bytes(layer, workload)


def freed_logit_bytes(unit: Unit, workload: Workload) -> float:
    """Return the bytes of logits in blocks that *unit* frees and that later allocations cannot reuse; 0 without a loss."""
    each = workload.training.stack.kernels.freed_logit_bytes / 4.0 * workload.training.batch
    return max((each * piece.layer.read for piece in unit.pieces if piece.layer.op == "loss"), default=0.0)
