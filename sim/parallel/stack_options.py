"""How does the stack of a workload run layouts, and why does it not run this one?"""

from __future__ import annotations

from sim.parallel.split import split
from sim.parallel.stages import stages_of
from sim.spec.model import Model
from sim.spec.parallel import MeshOptions, Parallel
from sim.spec.stack import ServerExchange
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError


def mesh_options(workload: Workload) -> MeshOptions:
    """Return how the workload's stack runs layouts. Raise SpecError if it does not, or not this one, with what else the model lacks."""
    try:
        return _options_of_stack(workload)
    except SpecError as error:
        raise SpecError([*error.problems, *_lacks(workload.model, workload.training.parallel)]) from None


def _lacks(model: Model, parallel: Parallel) -> list[str]:
    """Return why *model* cannot be divided as in *parallel*, whatever its stack runs."""
    try:
        stages_of(split(model, parallel), parallel)
    except SpecError as error:
        return error.problems
    return []


def _options_of_stack(workload: Workload) -> MeshOptions:
    """Return how the workload's stack runs layouts. Raise SpecError if it does not, or not this one."""
    stack, loader = workload.training.stack, workload.input.own_loader
    if loader is not None:
        raise SpecError(f"input.own_loader: layouts do not support {loader}, only torch's loader; leave it out")
    if (exchange := stack.exchange.own_exchange) is not None:
        raise SpecError(
            f"training.stack.own_exchange: {exchange} applies only to plain data parallelism; layouts exchange gradients as "
            "their framework does; leave it out"
        )
    if isinstance(stack.exchange, ServerExchange):
        raise SpecError(
            f"training.stack: {stack.name} uses parameter servers, which cannot be combined with training.parallel; "
            "use --stack torchtitan-2.x or megatron-core"
        )
    if stack.unpadded and workload.model.transformer is not None:
        raise SpecError(
            "training.stack.unpadded: works only on a layer table; for a decoder write padding: unpadded and lengths in the model"
        )
    mesh = workload.training.mesh
    if mesh is None:
        raise SpecError(
            f"training.stack: {stack.name} supports plain data parallelism only; for a layout use --stack torchtitan-2.x or megatron-core"
        )
    if lacking := mesh.lacks(workload.training.parallel):
        raise SpecError(
            f"training.stack: {stack.name} does not support {lacking}; leave it out, or use --stack torchtitan-2.x or megatron-core"
        )
    return mesh
