"""How fast is the network in a table's cell, per GPU? The cell has Gbit/s in words, or the name of an InfiniBand generation."""

from __future__ import annotations

import re
from typing import Final

from calibration.llm.chips import Chip

GENERATIONS: Final = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0, "fdr": 56.0}
"""Gbit/s of a link of four lanes (InfiniBand Trade Association's roadmap)."""
WHOLE_NODE: Final = 1000.0
"""Gbit/s from which a bare figure is that of a whole node: NICs are sold with up to 800 Gbit/s."""
ONE_NIC: Final = 100.0
"""Gbit/s up to which a bare figure is that of a node's only NIC: estimate (faster NICs come one per GPU or two)."""


def nic_of(text: str, chip: Chip, stated: float | None) -> tuple[float, bool]:
    """Return the bytes/s of the network per GPU, and whether *stated* (Gbit/s, from a source's scripts) or *text* specifies them."""
    node = min(chip.domain, 8) if chip.domain < 72 else 4
    if stated is None:
        stated = _in_words(text.split("in node")[0], node)
    return (stated * 1e9 / 8, True) if stated is not None else (chip.nic, False)


def _in_words(text: str, node: int) -> float | None:
    """Return the Gbit/s per GPU that *text* specifies for a node of *node* GPUs; None if it specifies none."""
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
    """Return the same for a text with a bare figure or an InfiniBand generation: that of one NIC per GPU, unless it states their number.

    Figures up to `ONE_NIC` and from `WHOLE_NODE` are those of the whole node.
    """
    named = re.search(r"(xdr|ndr|hdr|edr|fdr)", text)
    figure = re.search(r"(\d+(?:\.\d+)?)\s*(?:gbps|gbit/s|gb/s|gbe|gb|g\b)", text)
    rate = float(figure.group(1)) if figure else GENERATIONS[named.group(1)] if named else None
    if rate is None:
        return None
    count = re.search(r"(\d+)\s*x\b|\bx\s*(\d+)|(\d+)\s*(?:rails|nics|ports|hcas)", text)
    if count:
        return float(next(group for group in count.groups() if group)) * rate / node
    return rate / node if rate >= WHOLE_NODE or rate <= ONE_NIC else rate
