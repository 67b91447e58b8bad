"""How long does torch compare a collective between its ranks before it runs? The host time of TORCH_DISTRIBUTED_DEBUG=DETAIL.

torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, ``runCollectiveChecks``: a monitored barrier and two ring all-gathers of a fingerprint,
over Gloo. A message of Gloo starts when the notice of its posted receive has arrived (gloo/transport/tcp/pair.cc), which is a message, too.
"""

from __future__ import annotations

from typing import Final

BARRIER: Final = 3
"""Sequential messages of the barrier (ProcessGroupGloo.cpp, ``monitoredBarrier``): notices of the first rank's receives, which it posts
together, what the others send, and its replies, whose receives had been posted with the sends."""
STEP: Final = 2
"""Sequential messages of one step of a ring: the notice of a receive, and the data."""
GATHERS: Final = 2
"""All-gathers of a check: of the shape of the fingerprint, and of the fingerprint."""


def check_time(ranks: int, message: float) -> float:
    """Return the host time (s) to compare one collective among *ranks* ranks if a socket message takes *message* seconds."""
    return (BARRIER + GATHERS * STEP * (ranks - 1)) * message if ranks > 1 else 0.0
