"""How fast is the network that a table's cell describes, for one GPU? Gbit/s in words, or the names of InfiniBand's generations."""

from __future__ import annotations

import re
from typing import Final

from calibration.llm.chips import Chip

GENERATIONS: Final = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0, "fdr": 56.0}
"""Gbit/s of a link of four lanes (InfiniBand Trade Association's roadmap)."""
WHOLE_NODE: Final = 1000.0
"""Gbit/s from which on a bare figure is a node's: NICs of up to 800 Gbit/s are sold."""
ONE_NIC: Final = 100.0
"""Gbit/s up to which a bare figure is that of a node's only NIC: faster ones come one a GPU or two: estimate."""


def nic_of(text: str, chip: Chip, stated: float | None) -> tuple[float, bool]:
    """Return the bytes/s of the network for one GPU, and whether someone said so: *stated* (Gbit/s) by a source's scripts, or *text*."""
    node = min(chip.domain, 8) if chip.domain < 72 else 4
    if stated is None:
        stated = _in_words(text.split("in node")[0], node)
    return (stated * 1e9 / 8, True) if stated is not None else (chip.nic, False)


def _in_words(text: str, node: int) -> float | None:
    """Return the Gbit/s of one of *node* GPUs that *text* tells of, if it does."""
    compute = re.search(r"compute:?\s*(.*)", text, re.IGNORECASE)
    text = compute.group(1).split("management")[0] if compute else text
    each = re.search(r"(\d+)\s*(?:gbps|gb/s|gbe?)\b[^,;]*per gpu", text, re.IGNORECASE)
    if each:
        return float(each.group(1))
    total = re.search(r"(\d+)\s*gbps per node", text, re.IGNORECASE)
    if total:
        return float(total.group(1)) / node
    several = re.search(r"(\d+)\s*x\s*[^,;]*?(\d{3})\s*gb", text, re.IGNORECASE)
    if several:
        return float(several.group(1)) * float(several.group(2)) / node
    return None if ";" in text else _bare(text.lower(), node)


def _bare(text: str, node: int) -> float | None:
    """Return the same of a text without a number of NICs, or with a generation of InfiniBand: one NIC a GPU, unless it says how many."""
    named = re.search(r"(xdr|ndr|hdr|edr|fdr)", text)
    figure = re.search(r"(\d+(?:\.\d+)?)\s*(?:gbps|gbit/s|gb/s|gbe|gb|g\b)", text)
    rate = float(figure.group(1)) if figure else GENERATIONS[named.group(1)] if named else None
    if rate is None:
        return None
    count = re.search(r"(\d+)\s*x\b|\bx\s*(\d+)|(\d+)\s*(?:rails|nics|ports|hcas)", text)
    if count:
        return float(next(group for group in count.groups() if group)) * rate / node
    return rate / node if rate >= WHOLE_NODE or rate <= ONE_NIC else rate
