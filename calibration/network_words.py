"""How fast is the network in a table's cell, per GPU or by its NICs? The cell has Gbit/s in words, or an InfiniBand generation."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Protocol

GENERATIONS: Final = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0, "fdr": 56.0, "slingshot11": 200.0, "slingshot10": 100.0}
"""Gbit/s of a link of four lanes (InfiniBand Trade Association's roadmap; HPE's Slingshot data sheet)."""
WHOLE_NODE: Final = 1000.0
"""Gbit/s from which a bare figure is that of a whole node: NICs are sold with up to 800 Gbit/s."""
ONE_NIC: Final = 100.0
"""Gbit/s up to which a bare figure is that of a node's only NIC: estimate (faster NICs come one per GPU or two)."""

EFA_TOTALS: Final = (100.0, 400.0)
"""Gbit/s that are a whole instance's where the network is EFA: p3dn's and p4d's (AWS's table of instances)."""
LARGEST: Final = 800.0
"""Largest Gbit/s per GPU: that of the fastest NIC (NVIDIA's data sheet of ConnectX-8); what is read as more is not taken for a network."""
_NUMBERS: Final = {
    "one": 1, "single": 1, "two": 2, "dual": 2, "three": 3, "four": 4, "quad": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
}  # fmt: skip
_IN_NODE: Final = re.compile(r"nvlink|nvswitch|nvl\d|xgmi|infinity fabric", re.IGNORECASE)
_OF_NICS: Final = re.compile(r"infiniband|\bib\b|ethernet|gbe\b|roce|rdma|efa\b|slingshot|connectx|\bcx-?\d|[xnhef]dr", re.IGNORECASE)
_BUS: Final = re.compile(r"\bpcie?(?:[- ]?(?:gen)?[- ]?\d(?:\.0)?)?(?: ?x ?\d+)?\b", re.IGNORECASE)
"""The slot of a card, whose number of lanes is no number of cards."""
_NOT_FOR_TRAINING: Final = re.compile(r"storage|management|\bmgmt\b|front-?end|in-band", re.IGNORECASE)
_PRODUCTS: Final = r"\b(connectx|cx|bluefield|bf|quantum|slingshot|gen|version)\s+(\d{1,2})\b"
"""Names of products with a number, which is no number of cards."""
_WIDTH: Final = r"\b([xnhef]dr)[- ]?4x\b(?!\s*\d)"
"""A generation with its usual width of four lanes, which is no number of cards."""
_OMNI_PATH: Final = r"\b(?:omni[- ]?path|opa)[- ]?(100|400)\b(?!\s*g)"
"""Omni-Path's generations, which are named by their Gbit/s (Intel's and Cornelis Networks' data sheets)."""
_COUNT: Final = r"(?<![-.\w])(\d{1,2})"
_GBPS: Final = r"(?:gbps|gbit/s|gb/s|gb/sec|gbe|gb|g)\b"
_ALL: Final = r"(?:[a-z][\w-]*\s+){0,2}?(?:(?:per|/|each)\s*(?:node|host|server|machine|instance|\d gpus|(?:gpu )?pair)\b|(?:in )?total\b)"
_CARDS: Final = r"(?:rails?|nics?|ports?|hcas?|cards?)\b"
_BESIDE: Final = (
    r"(?:(?:connectx|cx|bluefield|bf|thor|slingshot|e?cx)[- ]?\d*|mellanox|nvidia|broadcom|intel|infiniband|ib|roce|rdma|efa|ethernet|hca|"
    r"(?:dual|single|1|2)[- ]port|ports?(?: of)?)\s+"
)
"""Words between the number of NICs and their rate."""
_LINK: Final = r"(?:(?P<generation>[xnhef]dr|slingshot[- ]?1[01])[- ]?(?P<lanes>\d{3}(?!\d))?)"
_OF_GPUS: Final = re.compile(
    r"\d+ ?(?:x )?(?:of \d+ )?(?:gpus?|(?:nvidia |amd )?[a-z]{1,3}\d+\w*)(?: [a-z]+)?,? (?:per|a|each|/) ?node", re.IGNORECASE
)
"""GPUs of a node, whose number is not that of its NICs."""
_OF_ALL_NODES: Final = re.compile(
    r"(?:\b\d+ ?(?:nodes?|hosts?|servers?|machines?)?\s*)[x\u00d7*] ?\d+ (?:nvidia |amd |tesla |geforce )?"
    r"(?:gpus?\b|(?:rtx|gtx|titan|quadro) ?\w+|(?!cx|bf|[xnhef]dr)[a-z]{1,3}\d+\w*)",
    re.IGNORECASE,
)
"""Nodes times GPUs, such as ``16 nodes x 8 H100``."""


class StatedNics(NamedTuple):
    """What a text says about the NICs of a node: their number or that beside each GPU, and the Gbit/s of one, or of all; 0: nothing."""

    nics: int = 0
    per_gpu: int = 0
    gbps: float = 0.0
    in_total: bool = False


def nics_stated(text: str) -> StatedNics | None:
    """Return what *text* says about the NICs of a node, in the part that has a rate or a generation; None if no part has."""
    plain = re.sub(r"(?<=\d) ?Gi?B(?!\w|/s)", "gib", text)
    plain = _about_nics(_with_digits(_OF_ALL_NODES.sub(" ", _OF_GPUS.sub(" ", plain)))).lower()
    parts = [part for part in re.split(r"[,;()+]", re.sub(r"\d+gib\b", " ", plain)) if part.strip()]
    stated = next((stated for part in parts if (stated := _nics_in(part)) is not None), None)
    if stated is None or stated.nics or stated.per_gpu:
        return stated
    cards = next((match for part in parts if (match := re.search(rf"{_COUNT}\s*x?\s*(?:rdma\s+)?{_CARDS}", part))), None)
    if cards is None:
        return stated
    count = int(cards.group(1))
    return StatedNics(nics=count, gbps=stated.gbps / count if stated.in_total else stated.gbps)


def _nics_in(part: str) -> StatedNics | None:
    """Return what one *part* of a text says about NICs; None if it has neither a rate nor a generation."""
    rate, link = re.search(rf"(\d{{2,4}}(?:\.\d+)?)\s*{_GBPS}|\d\s*x\s*(\d{{2,3}})(?!\d)", part), re.search(_LINK, part)
    if rate is None and link is None:
        return None
    gbps = float(rate.group(1) or rate.group(2)) if rate else _of_link(link)
    beside = rf"{_COUNT}(?:\s*x\s*|\s+)(?:{_BESIDE}){{0,4}}(?:[xnhef]dr|slingshot|\d{{2,4}}(?:\.\d+)?\s*{_GBPS}|\d{{2,3}}(?![\d.]))"
    among = rf"{_COUNT}\s*x?\s*(?:[\w-]+\s+){{0,3}}?{_CARDS}|{_COUNT}-rail"
    behind = r"(?<![-\w])x\s*(\d{1,2})\b(?!\s*x|\s*\d)"  # HDR x8
    match = next((match for pattern in (beside, among, behind) if (match := re.search(pattern, part))), None)
    counted = next(filter(None, match.groups()), None) if match else None
    ports = 2 if re.search(r"\b2[- ]port", part) else 1
    count = int(counted) * ports if counted else ports if ports > 1 else 0
    if re.search(r"(?:per|/|an?|each)\s*gpu\b", part):
        return StatedNics(per_gpu=count or 1, gbps=gbps)
    if not count and (gbps >= WHOLE_NODE or re.search(rf"{_GBPS}\s*{_ALL}", part)):
        return StatedNics(gbps=gbps, in_total=True)
    return StatedNics(nics=count, gbps=gbps)


def _of_link(link: re.Match[str] | None) -> float:
    """Return the Gbit/s of one link of a generation; ``hdr100`` and ``ndr200`` are links of two lanes."""
    if link is None:
        return 0.0
    return float(link["lanes"]) if link["lanes"] else GENERATIONS[re.sub("[- ]", "", link["generation"])]


class UsualNetwork(Protocol):
    """What the network of machines with one GPU usually is."""

    @property
    def nic(self) -> float:
        """Return the bytes/s of the network per GPU."""

    @property
    def slot(self) -> float:
        """Return the bytes/s of the slot of a NIC: no NIC is faster."""

    @property
    def dies(self) -> int:
        """Return how many GPUs, as software counts them, are on one card or share one NIC."""

    @property
    def usual_gpus(self) -> int:
        """Return how many GPUs a node usually has."""


def nic_of(text: str, chip: UsualNetwork, stated: float | None, gpus_per_node: int = 8) -> tuple[float, bool]:
    """Return the bytes/s of the network per GPU, and whether *stated* (Gbit/s, from a source's scripts) or *text* specifies them.

    *gpus_per_node* GPUs share the NICs of a node, but one GPU gets no more than its machine usually gives it, or than one NIC has.
    """
    if stated is not None:
        return stated * 1e9 / 8, True
    words = _about_nics(_with_digits(text.split("in node")[0]))
    rate, usual = (_in_words(words, node, chip) for node in (gpus_per_node, max(gpus_per_node, chip.usual_gpus)))
    if rate is None or usual is None or usual > LARGEST:
        return chip.nic, False
    return min(rate * 1e9 / 8, max(usual * 1e9 / 8, chip.nic)), True


def _with_digits(text: str) -> str:
    """Return *text* with rates in Gbit/s, number words as digits, and the number of cards of a node before their rate."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(_PRODUCTS, r"\1-\2", text, flags=re.IGNORECASE)
    text = re.sub(_OMNI_PATH, r"Omni-Path \1 Gbps", text, flags=re.IGNORECASE)
    text = re.sub(r"\s*[\u00d7*]\s*", "x", text)
    text = re.sub(_WIDTH, r"\1", text, flags=re.IGNORECASE)
    for word, number in _NUMBERS.items():
        text = re.sub(rf"\b{word}(?=[- ]\w)(?! node)", f"{number}", text, flags=re.IGNORECASE)
    text = re.sub(r"(\d+(?:\.\d+)?)\s*GB(?:/s|/sec|ps)\b", lambda rate: f"{float(rate.group(1)) * 8:g} Gbps", text)
    text = re.sub(
        r"(\d+(?:\.\d+)?)\s*t(?:b(?:ps|/s|it/s))?\b", lambda rate: f"{float(rate.group(1)) * 1000:g} Gbps", text, flags=re.IGNORECASE
    )
    cards = re.search(r"(?<![.\d])(\d{1,2}) (?:\w+ )?per node", text)
    return f"{cards.group(1)}x {text.replace(cards.group(), '')}" if cards else text


def _about_nics(text: str) -> str:
    """Return *text* without what it says on links inside nodes, and on networks for other purposes."""
    parts = re.split(r"([,;]| \+ )", _BUS.sub("PCIe", text))
    is_other = [
        bool(_IN_NODE.search(part) and not _OF_NICS.search(part)) or bool(_NOT_FOR_TRAINING.search(part) and "compute" not in part.lower())
        for part in parts[::2]
    ]
    kept = ["" if other else part for part, other in zip(parts[::2], is_other, strict=True)]
    return "".join(each for pair in zip(kept, [*parts[1::2], ""], strict=True) for each in pair).strip(" ,;+")


def _in_words(text: str, node: int, chip: UsualNetwork) -> float | None:
    """Return the Gbit/s per GPU in *text* for a node of *node* GPUs, of which *chip* says what is usual; None if it has none."""
    each = re.search(rf"(?:{_COUNT}\s*x\s*)?(\d+(?:\.\d+)?)\s*{_GBPS}[^,;]*(?:per |/ ?)gpu(?! pair)", text, re.IGNORECASE)
    if each:
        one, both = float(each.group(2)), float(each.group(2)) * float(each.group(1) or 1)
        return both if both <= LARGEST else one  # else the number is that of a node
    shared = re.search(r"(?:per|/)\s*(?:(\d) gpus|(?:gpu )?pair)", text, re.IGNORECASE)
    node = int(shared.group(1) or 2) if shared else node
    of_cards = rf"{_COUNT}[- ](?:[\w-]+ )?{_CARDS} (?:of|at|with) (\d{{2,3}})\s*{_GBPS}"
    bare = (r"\b(\d+)\s*x\s*(\d{2,3})\b", rf"{_COUNT} (\d{{2,3}})\s*g")
    patterns = (rf"{_COUNT}\s*x\s*[^,;]*?(?<!\d)(\d{{2,3}})\s*{_GBPS}", of_cards, *bare)
    several = next((match for pattern in patterns if (match := re.search(pattern, text, re.IGNORECASE))), None)
    if several:
        return float(several.group(1)) * float(several.group(2)) / node
    total = re.search(rf"(\d+(?:\.\d+)?)\s*{_GBPS}\s*{_ALL}", text, re.IGNORECASE)
    if total:
        return float(total.group(1)) / node
    return None if ";" in text else _bare(text.lower(), node, chip)


def _bare(text: str, node: int, chip: UsualNetwork) -> float | None:
    """Return the Gbit/s per GPU from a bare rate or an InfiniBand generation in *text*; None if it has neither.

    The rate is that of one NIC for its GPUs, unless the text states the number of NICs. A rate up to `ONE_NIC` or from `WHOLE_NODE` is
    that of the whole node. So is one from twice the usual rate, unless it is that of an InfiniBand or Slingshot link, and one that no NIC
    in a slot beside these GPUs has, unless the generation of its links is named.
    """
    named = re.search(r"(xdr|ndr|hdr|edr|fdr)[- ]?(\d{3}(?!\d))?|slingshot[- ]?1[01]", text)
    figure = re.search(rf"(\d+(?:\.\d+)?)\s*{_GBPS}", text)
    rate = float(figure.group(1)) if figure else _of_generation(named) if named else None
    if rate is None:
        return None
    if rate >= WHOLE_NODE:
        return rate / node
    count = re.search(rf"{_COUNT}\s*x(?:\b|(?=[xnhef]dr))|(?<![-\w])x\s*(\d{{1,2}})\b|{_COUNT}[- ](?:[\w-]+ )?{_CARDS}", text)
    if count:
        return float(next(group for group in count.groups() if group)) * rate / node
    is_of_link = named is not None or re.search(r"infini|\bib\b|slingshot", text) is not None
    nic, slot = (each * 8 / 1e9 for each in (chip.nic, chip.slot))
    is_total = rate <= ONE_NIC or ("efa" in text and rate in EFA_TOTALS) or (rate >= 2 * nic and not is_of_link)
    return rate / (node if is_total or (rate > slot and named is None) else chip.dies)


def _of_generation(named: re.Match[str]) -> float:
    """Return the Gbit/s of one link of a generation; ``HDR100`` and ``NDR200`` are links of two lanes."""
    return float(named.group(2)) if named.group(2) else GENERATIONS[named.group(1) or re.sub("[- ]", "", named.group())]
