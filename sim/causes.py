"""Which color, which words and which resources does each cause have? One row a cause, for all tables, plots, traces, pages and studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sim.events import Cause

Resource = Literal["disk", "cpu", "decode", "copy", "nvlink", "pcie", "network", "launch", "spread", "gpu"]
"""What can be freed or made faster in a description."""


@dataclass(frozen=True, kw_only=True)
class CauseTraits:
    """How a cause is shown, and what shortens its time."""

    color: str
    dark: str = ""
    """Replacement for a color that is too dark in dark mode."""
    meaning: str
    """What a rank does, or waits for, during the time of the cause."""
    brief: str = ""
    """The same in fewer words, next to bars in a terminal; empty if *meaning* is brief."""
    in_graph: str = ""
    """The same for a rank of a trace; empty if it is *meaning*."""
    blamed: tuple[Resource, ...] = ()
    """Resources to free for such a stall; the first is named if only stalls were measured."""
    faster: tuple[Resource, ...] = ()
    """Resources that shorten such time in proportion."""


CAUSES: Final[Mapping[Cause, CauseTraits]] = {
    Cause.COMPUTE: CauseTraits(
        color="#4477aa",
        meaning="GPU kernels, optimizer, gradient copies",
        brief="GPU kernels and optimizer",
        in_graph="GPU kernels",
        faster=("gpu",),
    ),
    Cause.FETCH: CauseTraits(color="#aa3377", dark="#cf5a9c", meaning="waiting for disk", blamed=("disk",), faster=("disk",)),
    Cause.PREP: CauseTraits(
        color="#ee6677",
        meaning="waiting for decode and augmentation",
        brief="waiting for prepared samples",
        blamed=("cpu", "decode"),
        faster=("cpu",),
    ),
    Cause.COPY: CauseTraits(
        color="#ccbb44",
        meaning="host-to-device copies",
        in_graph="loads and stores of memory",
        blamed=("copy", "pcie"),
        faster=("copy", "pcie"),
    ),
    Cause.INTERCONNECT: CauseTraits(
        color="#228833",
        meaning="gradient exchange inside the node",
        brief="messages inside the node",
        in_graph="messages inside the node",
        blamed=("nvlink", "pcie"),
        faster=("pcie",),
    ),
    Cause.NETWORK: CauseTraits(
        color="#66ccee",
        meaning="gradient exchange between nodes",
        brief="messages between nodes",
        in_graph="messages between nodes",
        blamed=("network",),
        faster=("network",),
    ),
    Cause.STRAGGLER: CauseTraits(
        color="#bbbbbb",
        meaning="waiting for the slowest rank",
        in_graph="waiting for other ranks",
        blamed=("spread",),
        faster=("spread", "gpu"),
    ),
    Cause.LAUNCH: CauseTraits(
        color="#775522",
        dark="#b8863f",
        meaning="host launching kernels",
        in_graph="operations of the host",
        blamed=("launch",),
        faster=("launch",),
    ),
    Cause.PIPELINE: CauseTraits(
        color="#dddd88",
        meaning="pipeline bubble: waiting for other stages",
        in_graph="waiting for messages that are not sent yet",
    ),
}
"""By cause, in the order of the stall table. The colors are Paul Tol's bright scheme, which color-blind readers can distinguish, with
brown added for launch and light yellow for pipeline."""

COLORS: Final[Mapping[Cause, str]] = {cause: traits.color for cause, traits in CAUSES.items()}
MEANINGS: Final[Mapping[Cause, str]] = {cause: traits.meaning for cause, traits in CAUSES.items()}
BRIEF: Final[Mapping[Cause, str]] = {cause: traits.brief or traits.meaning for cause, traits in CAUSES.items()}
GRAPH_MEANINGS: Final[Mapping[Cause, str]] = {cause: traits.in_graph or traits.meaning for cause, traits in CAUSES.items()}
