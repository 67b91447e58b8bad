"""How long does torch compare a collective between its ranks before it runs? What TORCH_DISTRIBUTED_DEBUG=DETAIL costs the host.

torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, ``runCollectiveChecks``: a monitored barrier, in which the first rank hears from and
answers every other in turn, and two ring all-gathers of a fingerprint over Gloo: four socket messages a rank, one after the other.
"""

from __future__ import annotations

from typing import Final

_MESSAGES: Final = 4.0
"""Messages of each rank but one."""


def check_time(ranks: int, message: float) -> float:
    """Return the host's seconds to compare one collective of *ranks*, where a socket message takes *message* seconds."""
    return _MESSAGES * (ranks - 1) * message
