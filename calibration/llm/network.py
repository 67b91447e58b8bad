"""How fast is the network in a table's cell, per GPU? The cell has Gbit/s in words, or the name of an InfiniBand generation."""

from __future__ import annotations

import re
from typing import Final

from calibration.llm.chips import Chip

GENERATIONS: Final = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0, "fdr": 56.0, "slingshot11": 200.0, "slingshot10": 100.0}
"""Gbit/s of a link of four lanes (InfiniBand Trade Association's roadmap; HPE's Slingshot data sheet)."""
WHOLE_NODE: Final = 1000.0
"""Gbit/s from which a bare figure is that of a whole node: NICs are sold with up to 800 Gbit/s."""
ONE_NIC: Final = 100.0
"""Gbit/s up to which a bare figure is that of a node's only NIC: estimate (faster NICs come one per GPU or two)."""

EFA_TOTALS: Final = "100|400"
"""Gbit/s that are a whole instance's where the network is EFA: p3dn's and p4d's (AWS's table of instances)."""
MOST_GIGABYTES: Final = 50.0
"""GB/s of a NIC with 400 Gbit/s: tables also write ``GB/s`` after larger rates of links, and mean Gbit/s."""
_GIGABITS: Final = r"(\d+(?:\.\d+)?)\s*(?:gbps|gbits?/s|gbit|gb/s(?:ec)?|gbe?|g)(?![a-z])"
_IN_NODE: Final = r"(?:nv-?link|nv-?switch|xgmi|infinity fabric)"
"""Names of what joins the GPUs of a node; their rates are no network's."""
_PRODUCTS: Final = r"\b(connectx|cx|bluefield|bf|quantum|slingshot|gen|version)\s+(\d{1,2})\b"
"""Names of products with a number, which is no number of NICs."""


def nic_of(text: str, chip: Chip, stated: float | None, gpus_per_node: int = 8) -> tuple[float, bool]:
    """Return the bytes/s of the network per GPU, and whether *stated* (Gbit/s, from a source's scripts) or *text* specifies them.

    *gpus_per_node* GPUs share the NICs of a node, but one GPU gets no more than its machine usually gives it, or than one NIC has.
    """
    if stated is not None:
        return stated * 1e9 / 8, True
    words = _with_digits(text.split("in node")[0])
    rate, usual = (_in_words(words, node, chip.nic * 8 / 1e9) for node in (gpus_per_node, max(gpus_per_node, chip.usual_gpus)))
    if rate is None or usual is None:
        return chip.nic, False
    return min(rate * 1e9 / 8, max(usual * 1e9 / 8, chip.nic)), True


def _with_digits(text: str) -> str:
    """Return *text* without a node's fabric, with rates in Gbit/s, numbers as digits, and a node's number of cards before their rate."""
    for number, word in enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight"), 1):
        text = re.sub(rf"\b{word}\b", f"{number}", text, flags=re.IGNORECASE)
    text = re.sub(_PRODUCTS, r"\1-\2", text, flags=re.IGNORECASE)
    text = _without_fabric(text)
    text = re.sub(r"(\d+(?:\.\d+)?)\s*tb(?:ps|/s|it/s)", lambda rate: f"{float(rate.group(1)) * 1000:g} Gbps", text, flags=re.IGNORECASE)
    if not re.search("ethernet", text, re.IGNORECASE):
        text = re.sub(r"(\d+(?:\.\d+)?)\s*(?:GB/s|GBps)\b", _as_gigabits, text)
    cards = re.search(r"(?<![.\d])(\d{1,2}) (?:\w+ )?per node", text)
    return f"{cards.group(1)}x {text.replace(cards.group(), '')}" if cards else text


def _without_fabric(text: str) -> str:
    """Return *text* without the fabric inside a node, and its rate before or after its name."""
    rate = r"\d+(?:\.\d+)?\s*[gt](?:b(?:ps|/s|it/s))"
    network = r"\band\b|infini|\bib\b|eth|roce|efa|[,;+&|]"
    text = re.sub(rf"{rate}\s*{_IN_NODE}\w*|{_IN_NODE}(?:(?!{network}).)*?{rate}", "", text, flags=re.IGNORECASE)
    return re.sub(rf"^\s*(?:{_IN_NODE}\w*\s*)?[,;+&|]", "", text, flags=re.IGNORECASE)


def _as_gigabits(rate: re.Match[str]) -> str:
    """Return a rate in GB/s as Gbit/s, unless it is too much for a NIC."""
    return f"{float(rate.group(1)) * 8:g} Gbps" if float(rate.group(1)) <= MOST_GIGABYTES else rate.group()


def _in_words(text: str, node: int, nic: float) -> float | None:
    """Return the Gbit/s per GPU in *text* for a node of *node* GPUs, which usually have *nic* Gbit/s each; None if it has none."""
    compute = re.search(r"compute:?\s*(.*)", text, re.IGNORECASE)
    text = compute.group(1).split("management")[0] if compute else text
    each = re.search(rf"{_GIGABITS}[^,;]*?(?:\b(?:per|each|every|a)\s+|/\s*)(?:gpu(?! pair)|gcd|accelerator)\b", text, re.IGNORECASE)
    if each:
        return float(each.group(1))
    shared = re.search(r"(?:per|/)\s*(?:(\d) gpus|(?:gpu )?pair)", text, re.IGNORECASE)
    node = int(shared.group(1) or 2) if shared else node
    patterns = (r"(\d+)\s*x\s*[^,;]*?(?<!\d)(\d{3})\s*gb", r"\b(\d+)\s*x\s*(\d{2,3})\b", r"(?<![-.\w])(\d{1,2}) (\d{2,3})\s*g")
    several = next((match for pattern in patterns if (match := re.search(pattern, text, re.IGNORECASE))), None)
    if several:
        return float(several.group(1)) * float(several.group(2)) / node
    whole = r"(?:per|/|each)\s*(?:node|host|server|machine|instance|\d gpus|(?:gpu )?pair)\b|(?:in )?total\b"
    total = re.search(rf"{_GIGABITS}\s*(?:{whole})", text, re.IGNORECASE) or re.search(rf"\befa\D*({EFA_TOTALS})\s*g", text, re.IGNORECASE)
    if total:
        return float(total.group(1)) / node
    return None if ";" in text else _bare(text.lower(), node, nic)


def _bare(text: str, node: int, nic: float) -> float | None:
    """Return the Gbit/s per GPU from a bare rate or an InfiniBand generation in *text*; None if it has neither.

    The rate is that of one NIC per GPU, unless the text states the number of NICs. A rate up to `ONE_NIC` or from `WHOLE_NODE` is that of
    the whole node, and so is one from twice the usual *nic*, unless it is that of an InfiniBand link.
    """
    named = re.search(r"(xdr|ndr|hdr|edr|fdr)[- ]?(\d{2,3}(?!\d))?|slingshot[- ]?1[01]", text)
    figure = re.search(_GIGABITS, text)
    rate = float(figure.group(1)) if figure else _of_generation(named) if named else None
    if rate is None:
        return None
    if rate >= WHOLE_NODE:
        return rate / node
    too_fast = rate >= 2 * nic and named is None and not re.search(r"infini|\bib\b", text)
    cards = r"(?<![-.\w])(\d{1,2})[- ](?!g)(?:\w+ )?(?:rails?|nics?|ports?|hcas?)\b"
    count = re.search(rf"(\d+)\s*x\b|(?<!-)\bx\s*(\d{{1,2}})\b|(\d+)\s*(?:rails|nics|ports|hcas)|{cards}|(dual)", text)
    if count:
        number = next(group for group in count.groups() if group)
        return (2.0 if number == "dual" else float(number)) * rate / node
    return rate / node if rate <= ONE_NIC or too_fast else rate


def _of_generation(named: re.Match[str]) -> float:
    """Return the Gbit/s of one link of a generation; ``HDR100`` and ``NDR200`` are links of two lanes."""
    return float(named.group(2)) if named.group(2) else GENERATIONS[named.group(1) or re.sub("[- ]", "", named.group())]
