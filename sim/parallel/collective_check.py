"""How long does torch compare a collective between its ranks before it runs? The host time of TORCH_DISTRIBUTED_DEBUG=DETAIL.

torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, ``runCollectiveChecks``: a monitored barrier, in which the first rank receives from and
replies to every other rank in turn, and two ring all-gathers of a fingerprint over Gloo: four sequential socket messages per rank.
"""

from __future__ import annotations

from typing import Final

_MESSAGES: Final = 4.0
"""Sequential messages for each rank except one."""


def check_time(ranks: int, message: float) -> float:
    """Return the host time (s) to compare one collective among *ranks* ranks if a socket message takes *message* seconds."""
    return _MESSAGES * (ranks - 1) * message
