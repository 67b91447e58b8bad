"""What does a collective cost on a toy network by an algorithm that NCCL might not choose?"""

from __future__ import annotations

from tests.harness import Rig


def cost(toys, nbytes, algorithm, protocol="Simple", op="all_reduce"):
    """Return what *op* costs by a given algorithm, whether NCCL would choose it or not."""
    rig = Rig(toys, fold=True)
    return rig.plan.cost_of(nbytes, algorithm, protocol, 1, op)
