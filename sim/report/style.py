"""Which colour and order has each cause, everywhere? One palette for tables, plots, traces and pages."""

from __future__ import annotations

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
}
"""Paul Tol's bright scheme, which stays distinct for colour-blind readers, and brown for launch."""
