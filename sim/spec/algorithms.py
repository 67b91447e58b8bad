"""Which algorithm, or release of NCCL, does a name mean? NCCL's own algorithms, those of other libraries, and user-defined ones."""

from __future__ import annotations

import re
from typing import Final

from sim.spec import extensions
from sim.units import shorten

NCCL_ALGORITHMS: Final = ("ring", "tree", "collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
"""Names of NCCL's own algorithms, in lower case."""

OTHER_ALGORITHMS: Final = ("Hierarchical", "RackHierarchical", "HalvingDoubling")
"""All-reduce algorithms that NCCL lacks (Horovod's, Gloo's and MPI's); ``nccl_algo`` may name one of them, on its own."""


def other_algorithm(text: str | None) -> str | None:
    """Return the algorithm that *text* names if it is not NCCL's but another library's or user-defined; else None."""
    name = (text or "").replace("_", "").lower()
    match = next((algorithm for algorithm in OTHER_ALGORITHMS if algorithm.lower() == name), None)
    if match is None and text and name not in NCCL_ALGORITHMS and text in extensions.names(extensions.COLLECTIVES):
        return text
    return match


def not_nccls() -> frozenset[str]:
    """Return the names of the algorithms that are not NCCL's: those of other libraries and user-defined ones."""
    return frozenset((*OTHER_ALGORITHMS, *extensions.names(extensions.COLLECTIVES)))


def minor_release(release: str) -> int | None:
    """Return the minor release of NCCL 2 that *release* means (``2.18``, ``2.18.5-1``, ``NCCL 21805``); None if it means none."""
    text = release.strip().lower()
    stated = re.fullmatch(r"(?:nccl\s*)?v?2\.(\d\d?)(?:\.\d+)*(?:-\d+)?", text) or re.fullmatch(r"(?:nccl\s*)?2(\d\d)\d\d", text)
    return int(stated.group(1)) if stated else None


def not_a_release(text: str) -> str:
    """Return the message for *text*, of which `minor_release` is None."""
    return f"{shorten(text)} is no release of NCCL 2; write one, such as 2.18 or 2.27.3"
