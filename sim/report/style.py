"""Which color and which words does each cause have? One palette for all tables, plots, traces and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.events import Cause

COLOURS: dict[Cause, str] = {
    Cause.COMPUTE: "#4477aa",
    Cause.FETCH: "#aa3377",
    Cause.PREP: "#ee6677",
    Cause.COPY: "#ccbb44",
    Cause.INTERCONNECT: "#228833",
    Cause.NETWORK: "#66ccee",
    Cause.STRAGGLER: "#bbbbbb",
    Cause.LAUNCH: "#775522",
    Cause.PIPELINE: "#dddd88",
}
"""Paul Tol's bright scheme, which color-blind readers can distinguish, with brown added for launch and light yellow for pipeline."""

MEANINGS: dict[Cause, str] = {
    Cause.COMPUTE: "GPU kernels, optimizer, gradient copies",
    Cause.FETCH: "waiting for disk",
    Cause.PREP: "waiting for decode and augmentation",
    Cause.COPY: "host-to-device copies",
    Cause.INTERCONNECT: "gradient exchange inside the node",
    Cause.NETWORK: "gradient exchange between nodes",
    Cause.STRAGGLER: "waiting for the slowest rank",
    Cause.LAUNCH: "host launching kernels",
    Cause.PIPELINE: "pipeline bubble: waiting for other stages",
}
"""What a rank does, or waits for, during the time of each cause."""
BRIEF: Final[Mapping[Cause, str]] = MEANINGS | {
    Cause.COMPUTE: "GPU kernels and optimizer",
    Cause.PREP: "waiting for prepared samples",
    Cause.INTERCONNECT: "messages inside the node",
    Cause.NETWORK: "messages between nodes",
}
"""The same in fewer words, next to bars in a terminal."""
