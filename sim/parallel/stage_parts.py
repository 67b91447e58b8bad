"""What do tensor ranks do with activations that stages send in parts (``mesh.stage_parts``)? Gathers, and the copies around them.

Without sequence parallelism, all tensor ranks hold the same activations, so each sends a part, and the receiving ranks gather the parts:
Megatron-LM of 2021 and 2022 (p2p_communication.py, ``scatter_gather_tensors_in_pipeline``) and DeepSpeed (runtime/pipe/engine.py).
"""

from __future__ import annotations

from sim.spec.parallel import MeshOptions


def sends_parts(options: MeshOptions, tensor: int, sequence_parallel: bool) -> bool:
    """Return whether each of *tensor* ranks sends a part of what all of them hold, unless they are *sequence_parallel*."""
    return options.stage_parts and tensor > 1 and not sequence_parallel


def part_gathers(options: MeshOptions, backward: bool) -> int:
    """Return the number of gathers at the beginning of a stage's pass.

    DeepSpeed's backward gathers the stage's own output as well, of which it has kept a part (``_exec_backward_pass``).
    """
    return 2 if backward and options.framework == "deepspeed" else 1


def copy_passes(options: MeshOptions) -> float:
    """Return the memory passes over each gathered tensor: out of the flat buffer in which torch's ``all_gather`` of a list receives it.

    DeepSpeed writes zeros before and copies all of it afterwards (runtime/utils.py, ``PartitionedTensor.full``).
    """
    return 5.0 if options.framework == "deepspeed" else 2.0
