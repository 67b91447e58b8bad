"""Which colour, and which words, has each cause, everywhere? One palette for tables, plots, traces and pages."""

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
"""Paul Tol's bright scheme, which stays distinct for colour-blind readers, and brown for launch."""

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
"""What a rank does, or waits for, meanwhile."""
BRIEF: Final[Mapping[Cause, str]] = MEANINGS | {
    Cause.COMPUTE: "GPU kernels and optimizer",
    Cause.PREP: "waiting for prepared samples",
    Cause.INTERCONNECT: "messages inside the node",
    Cause.NETWORK: "messages between nodes",
}
"""The same in few words, beside bars in a terminal."""
