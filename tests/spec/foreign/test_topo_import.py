"""Topology prints read: real pastes, made-up trees found again from their classes, and everything that is not one refused."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.spec.foreign.topo_import import MAX_BYTES, parse_topology, read_topology
from sim.spec.wiring import CLASSES, Lanes, Processor, Wiring
from sim.spec.yaml import SpecError
from tests.spec import topologies
from tests.spec.topologies import DGX_1V, FILES, FOUR_ON_NVSWITCH, MATRICES, XML_DGX_1V_QUAD, XML_H100, XML_P4D, printed

TEXTS = {name: text for name, (text, _) in {**MATRICES, **FILES}.items()}


def chains(wiring: Wiring) -> list[list[str]]:
    """What lies above each GPU, nearest first."""
    parents = {branch.name: branch.parent for branch in wiring.branches}
    holders = {gpu: branch.name for branch in wiring.branches for gpu in branch.gpus}
    holders |= {gpu: f"socket{index}" for index, domain in enumerate(wiring.domains) for gpu in domain.gpus}
    by_gpu = []
    for gpu in range(wiring.gpus):
        chain = [holders[gpu]]
        while chain[-1] in parents:
            chain.append(parents[chain[-1]])
        by_gpu.append(chain)
    return by_gpu


def class_in_tree(one: list[str], other: list[str]) -> str:
    shared = next((name for name in one if name in other), None)
    if shared is None:
        return "SYS"
    if shared.startswith("socket"):
        return "PHB"
    return "PIX" if shared == one[0] == other[0] else "PXB"


def matrix_of(text: str) -> list[list[str]]:
    """The cells of a print, by hand."""
    rows = [line.split() for line in text.splitlines() if re.match(r"GPU\d+\s", line)]
    return [row[1 : len(rows) + 1] for row in rows]


@pytest.mark.parametrize("name", MATRICES)
def test_real_matrices_come_back(name):
    """Oracle: every cell of the print, split by hand; NVn is a number of links, any other class that of the tree."""
    wiring = parse_topology(TEXTS[name])
    cells, above = matrix_of(TEXTS[name]), chains(wiring)
    assert wiring.gpus == len(cells)
    for one, other in combinations(range(wiring.gpus), 2):
        cell = cells[one][other]
        if cell.startswith("NV"):
            assert wiring.nvlinks[one, other] == int(cell[2:])
            assert (one, other) not in wiring.classes
        else:
            assert (one, other) not in wiring.nvlinks
            assert class_in_tree(above[one], above[other]) == CLASSES[cell] == wiring.classes[one, other]


@st.composite
def machines(draw):
    """A PCIe tree as it is printed: devices with socket, root switch and switch, and which pairs of GPUs have NVLink."""
    gpus, nics = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    places = []
    for device in range(gpus + nics):
        socket = draw(st.integers(0, 2))
        root = draw(st.sampled_from(["", "a", "b"]))
        inner = draw(st.sampled_from(["", "x", "y"])) if root else ""
        places.append((socket, f"{socket}{root}" if root else f"bare{device}", f"{socket}{root}{inner}" if root else f"bare{device}"))
    linked = draw(st.sets(st.sampled_from(list(combinations(range(gpus), 2)) or [(0, 0)])))
    return gpus, nics, places, linked


def symbol_of(places, linked, one: int, other: int) -> str:
    if (one, other) in linked:
        return "NV2"
    (socket, root, switch), (socket2, root2, switch2) = places[one], places[other]
    if socket != socket2:
        return "SYS"
    if root != root2:
        return "NODE" if (one + other) % 2 else "PHB"
    return "PIX" if switch == switch2 else "PXB"


@given(machines())
def test_a_tree_is_found_from_its_classes(machine):
    """Oracle: the tree that the classes were computed from; its classes and NVLinks come back for every pair of GPUs."""
    gpus, nics, places, linked = machine
    names = [f"GPU{gpu}" for gpu in range(gpus)] + [f"NIC{nic}" for nic in range(nics)]
    tails = [f"0-{places[gpu][0]}\t{places[gpu][0]}" for gpu in range(gpus)]
    wiring = parse_topology(printed(names, lambda one, other: symbol_of(places, linked, one, other), tails))
    above = chains(wiring)
    for one, other in combinations(range(gpus), 2):
        printed_class = symbol_of(places, linked, one, other)
        assert ((one, other) in wiring.nvlinks) == (printed_class == "NV2")
        if printed_class == "NV2":
            assert (class_in_tree(above[one], above[other]) == "SYS") == (places[one][0] != places[other][0])  # by NUMA affinity
        else:
            assert class_in_tree(above[one], above[other]) == CLASSES[printed_class]
    held = [nic for holder in (*wiring.domains, *wiring.branches) for nic in holder.nics]
    assert sorted(held) == list(range(nics)) and len(wiring.cards) == nics


LAYOUTS = {
    "spaces for tabs": lambda text: text.expandtabs(8),
    "indented": lambda text: "\n".join("    " + line for line in text.splitlines()),
    "quoted": lambda text: "\n".join("> " + line for line in text.splitlines()),
    "fenced": lambda text: f"```\n{text}```\n",
    "prompt": lambda text: f"user@host:~$ nvidia-smi topo -m\n{text}user@host:~$ exit\n",
    "underlined": lambda text: re.sub(r"(GPU\d)(?=\t)", "\x1b[4m\\1\x1b[0m", text),
    "Windows lines": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "no legend": lambda text: text.partition("\nLegend")[0],
    "two machines": lambda text: text + "\n" + text,
    "lower case": lambda text: re.sub(r"\t(NV\d+|SYS|NODE|PHB|PXB|PIX)", lambda match: match[0].lower(), text),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["dgx-1v", "cube-with-cards", "dgx-a100", "eight-4090"])
def test_layout_does_not_matter(name, layout, tmp_path):
    """Invariance: the same matrix, pasted otherwise, says the same."""
    path = tmp_path / "topo.txt"
    path.write_bytes(LAYOUTS[layout](TEXTS[name]).encode())
    assert read_topology(path) == parse_topology(TEXTS[name])


@given(st.sampled_from(["dgx-1v", "cube-with-cards", "dgx-a100"]), st.integers(30, 200))
def test_wrapped_lines_are_joined(name, width):
    """Invariance: a terminal of *width* columns wraps rows and header between words."""
    lines = []
    for line in TEXTS[name].partition("\nLegend")[0].expandtabs(8).splitlines():
        while len(line) > width and " " in line[1:width]:
            cut = line.rindex(" ", 1, width)
            lines.append(line[:cut])
            line = line[cut:]
        lines.append(line)
    assert parse_topology("\n".join(lines)) == parse_topology(TEXTS[name])


def test_what_stands_beside_the_matrix():
    """By hand: names of GPUs (nvidia-smi -L), of cards (NIC Legend), hardware threads and NUMA nodes."""
    wiring = parse_topology(FOUR_ON_NVSWITCH)
    assert wiring.gpu_names == ("NVIDIA A100-SXM4-80GB",)
    assert [card.name for card in wiring.cards] == ["rocep49s0"]
    assert (wiring.vcpus, wiring.numa_nodes) == (64, 1)
    assert [(domain.gpus, domain.nics) for domain in wiring.domains] == [((0, 1, 2, 3), ()), ((), (0,))]
    dgx = parse_topology(topologies.DGX_A100)
    assert (dgx.vcpus, dgx.numa_nodes, len(dgx.domains)) == (128, 4, 4)


def test_sockets_without_affinity_follow_the_classes():
    """By hand: SYS keeps 4..7 away from 0..3, although NVLink joins 0-4; where classes and NUMA nodes disagree, a note says so."""
    bare = parse_topology(re.sub(r"\t[-\d,]+$", "", DGX_1V, flags=re.MULTILINE))
    assert [domain.gpus for domain in bare.domains] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert bare.vcpus is None
    assert any("disagree" in note for note in parse_topology(topologies.EIGHT_4090).notes)


# --- NCCL's file -----------------------------------------------------------------------------------------------------


def test_the_two_forms_agree():
    """Independent description: the quad of a DGX-1 in NCCL's file has the NVLinks of the matrix."""
    xml, matrix = parse_topology(XML_DGX_1V_QUAD), parse_topology(DGX_1V)
    assert xml.nvlinks == {pair: count for pair, count in matrix.nvlinks.items() if max(pair) < 4}
    assert xml.classes == {(0, 1): "PIX", (2, 3): "PIX", **dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], "PHB")}
    assert (xml.lanes, xml.vcpus, xml.processor) == (Lanes(8, 16), 40, Processor("GenuineIntel", 6, 79))
    assert (xml.compute_capability, xml.devices) == ("7.0", (0x1DB5,))
    assert any("2 NVLink ends" in note for note in xml.notes)  # GPU 4 is not in the file
    card = xml.cards[0]
    assert (card.speed, card.kind, card.gpudirect) == (12.5e9, "infiniband", True)


@pytest.mark.parametrize("name", FILES)
def test_classes_are_those_of_the_tree(name):
    """Oracle: classes counted on the returned tree."""
    wiring = parse_topology(TEXTS[name])
    above = chains(wiring)
    assert wiring.classes == {pair: class_in_tree(above[pair[0]], above[pair[1]]) for pair in combinations(range(wiring.gpus), 2)}


def test_a_virtual_machine_in_ncclls_file():
    """By hand: links to NVSwitches add up, a bridge of 2.5 GT/s x1 is no link, width 0 is 16 lanes, the slow port goes."""
    wiring = parse_topology(XML_H100)
    assert (wiring.switch_links, wiring.nvlinks, wiring.lanes) == (18, {}, Lanes(32, 16))
    assert [branch.lanes for branch in wiring.branches] == [None, None]
    assert [card.name for card in wiring.cards] == ["mlx5_7", "mlx5_3"]
    assert any("eth0" in note for note in wiring.notes)
    assert wiring.vcpus == 160


def test_devices_by_class_only():
    """By hand: AWS's file names neither GPUs nor ports."""
    wiring = parse_topology(XML_P4D)
    assert (wiring.gpus, len(wiring.cards), wiring.nvlink_known) == (4, 2, False)
    assert [(branch.gpus, branch.nics) for branch in wiring.branches] == [((0, 1), (0,)), ((2, 3), (1,))]


def test_gpus_are_numbered_by_dev_or_address():
    """By hand: dev wins over the order of the file; without it the PCI address does, as CUDA numbers equal GPUs."""
    swapped = parse_topology(XML_H100.replace('dev="0" sm', 'dev="5" sm'))
    assert swapped.domains[1].gpus == () and swapped.branches[1].gpus == (0,)
    assert any("only GPUs 1, 5" in note for note in swapped.notes)
    assert parse_topology(XML_P4D.replace("0000:10:1c", "0000:ff:1c")).branches[0].gpus == (0, 3)


def test_empty_switches_go():
    extra = '<pci busid="0000:ee:00.0" class="0x060400"><pci busid="0000:ef:00.0" class="0x010802"/></pci>'
    assert parse_topology(XML_P4D.replace("</cpu>", extra + "</cpu>", 1)).branches == parse_topology(XML_P4D).branches


# --- refused ---------------------------------------------------------------------------------------------------------


def without_line(text: str, start: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(start))


BAD_MATRICES = [
    ("", "1: empty; expected the output of 'nvidia-smi topo -m'"),
    ("hello\nworld\n", "1: no topology matrix: no line starts with GPU0"),
    ("bash: nvidia-smi: command not found\n", "1: no topology matrix"),
    (without_line(DGX_1V, "\tGPU0"), "1: the line of column names is missing"),
    (without_line(DGX_1V, "GPU3"), "5: row GPU3 is missing: 8 columns, 3 rows"),
    (DGX_1V[: DGX_1V.index("GPU4\tNV2") + 16], "6: row GPU4 has 3 entries for 8 columns; paste the whole output"),
    (DGX_1V.partition("GPU6\tSYS")[0], "7: row GPU6 is missing: 8 columns, 6 rows"),
    (DGX_1V.replace("GPU7\tCPU", "CPU"), "2: row GPU0 has more entries than there are columns"),
    (DGX_1V.replace("\tGPU7\t", "\tGPU7\tGPU8\t"), "2: row GPU0 has 8 entries for 9 columns"),
    (DGX_1V.replace("\tGPU6", "\tGPU9"), "1: the columns are not GPU0, GPU1"),
    (DGX_1V.replace("\tGPU7\t", "\tGPU6\t"), "1: column 'GPU6' appears twice"),
    (DGX_1V.replace("NV2", "NVX", 1), "2: row GPU0, column GPU3: 'NVX' is not a path type; write X, NV1"),
    (DGX_1V.replace("NV2", "NV0", 1), "2: row GPU0, column GPU3: 'NV0' is not a path type"),
    (DGX_1V.replace("NV1", "NV2", 1), "3: not symmetric: row GPU1, column GPU0 is NV1, but line 2 has NV2"),
    (DGX_1V.replace(" X ", "SYS", 1), "2: row GPU0, column GPU0: found SYS, expected X"),
    (DGX_1V.replace("SYS", " X "), "2: GPU0 and GPU5: found X between two devices"),
    (DGX_1V.replace("0-13,28-41\n", "lots\n", 1), "2: row GPU0 ends with 'lots'; expected CPUs"),
    (DGX_1V + "GPU8\tSYS\tSYS\n", "10: row 'GPU8' has no column"),
    ("\t" + "\t".join(f"GPU{k}" for k in range(200)), "1: more than 128 columns"),
    ("GPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tSYS\nGPU1\tPIX\tX\tPIX\nGPU2\tSYS\tPIX\tX\n", "2: GPU0 and GPU2 are SYS, but must be PIX, because"),
    ("GPU0\tGPU1\tGPU2\nGPU0\tX\tPXB\tNODE\nGPU1\tPXB\tX\tPIX\nGPU2\tNODE\tPIX\tX\n", "2: GPU0 and GPU2 are NODE, but must be PXB"),
    ("GPU0\tGPU1\tGPU2\nGPU0\tX\tSYS\tNODE\nGPU1\tSYS\tX\tPHB\nGPU2\tNODE\tPHB\tX\n", "2: GPU0 and GPU1 are SYS, but must be NODE"),
    ("a\n\x00\x01", "2: not plain text"),
]


@pytest.mark.parametrize(("text", "words"), BAD_MATRICES, ids=[str(number) for number in range(len(BAD_MATRICES))])
def test_bad_matrices_are_refused_at_their_line(text, words):
    with pytest.raises(SpecError, match=f"^box.txt:{words}"):
        parse_topology(text, "box.txt")


BOMB = '<?xml version="1.0"?>\n<!DOCTYPE system [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>\n<system><cpu numaid="&b;"/></system>'
GPU1 = 'dev="1" sm="90"'

BAD_FILES = [
    (BOMB, "2: found a document type"),
    ('<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology/>', "2: found a document type.* hwloc"),
    ("<graphs version='1'/>", "1: <'graphs'> is not NCCL's topology .this file is from NCCL_GRAPH_DUMP_FILE"),
    ("<html><body>404</body></html>", "1: <'html'> is not NCCL's topology"),
    ("\n<system>\n<cpu>", "3: incomplete XML .no element found."),
    ("<system>\n<cpu></system>", "2: incomplete XML .mismatched tag."),
    ("<system>&b;</system>", "1: incomplete XML .undefined entity."),
    ("<<<", "1: incomplete XML"),
    ("<system/>", "1: no <cpu> found"),
    ("<system><cpu><pci busid='0000:00:16.0'/></cpu></system>", "1: no GPU found"),
    ("<system>" + "<cpu>" * 50, "1: more than 20000 elements or 40 levels"),
    ("<system>" + "<cpu/>" * 20_001 + "</system>", "1: more than 20000 elements"),
    (XML_H100.replace('host_hash="0xa5"', 'host_hash="0xa6"', 1), "1: 2 machines in one file"),
    (XML_H100.replace('numaid="1"', 'numaid="0"'), "18: NUMA node '0' appears twice"),
    (XML_H100.replace(GPU1, 'dev="0" sm="90"'), "23: GPU dev=0 appears twice"),
    (XML_H100.replace(GPU1, 'dev="one" sm="90"'), "24: gpu dev='one' is not a whole number"),
    (XML_H100.replace(GPU1, 'dev="1" sm="80"'), r"7: GPUs of several kinds .sm 80, 90."),
    (XML_H100.replace('count="18"', 'count="9"'), "24: GPU 1 has 9 NVLinks to NVSwitches, others have 18"),
    (XML_H100.replace('count="18"', 'count="-1"'), "24: nvlink count='-1'; write the number of links"),
    (XML_H100.replace('speed="200000"', 'speed="fast"', 1), "5: net speed='fast' is not a whole number"),
    (XML_DGX_1V_QUAD.replace('0b:00.0" count="2"', '0b:00.0" count="1"', 1), "5: GPU 0 has 1 NVLinks to GPU 3, but GPU 3 has 2 to GPU 0"),
    (XML_H100.replace('<gpu dev="1"', '<gpu dev="2" sm="90"/><gpu dev="1"'), "24: a second <gpu> at one PCI address"),
]


@pytest.mark.parametrize(("text", "words"), BAD_FILES, ids=[str(number) for number in range(len(BAD_FILES))])
def test_bad_files_are_refused_at_their_line(text, words):
    with pytest.raises(SpecError, match=f"^box.xml:{words}"):
        parse_topology(text, "box.xml")


def test_files_that_are_no_text(tmp_path: Path):
    """Missing, a folder, binary, too large: one sentence each."""
    path = tmp_path / "topo.txt"
    with pytest.raises(SpecError, match="no such file"):
        read_topology(path)
    with pytest.raises(SpecError, match="is a folder; expected a file"):
        read_topology(tmp_path)
    path.write_bytes(b"GPU0\n\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"topo.txt:2: not a text file .byte 5 is not UTF-8."):
        read_topology(path)
    path.write_bytes(b"\xff\xfeG")
    with pytest.raises(SpecError, match=r"topo.txt:1: not a text file .byte 2 is not UTF-16."):
        read_topology(path)
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(SpecError, match="larger than"):
        read_topology(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_windows(encoding, tmp_path: Path):
    """Invariance: Notepad's and PowerShell's encodings say the same."""
    (tmp_path / "topo.txt").write_text(DGX_1V, encoding=encoding)
    assert read_topology(tmp_path / "topo.txt") == parse_topology(DGX_1V)


def read_or_refuse(text: str) -> None:
    """Anything but a wiring or a SpecError of one located sentence fails the test."""
    try:
        wiring = parse_topology(text, "box")
    except SpecError as error:
        assert re.match(r"box:\d+: .", str(error)) and "\n" not in str(error)
    else:
        assert len(chains(wiring)) == wiring.gpus > 0


@given(st.text(max_size=60) | st.text("GPU01 XNVSYPIHBO\n\t-,", max_size=200) | st.text("<>/=\"' systemcpugpu&;!\n", max_size=80))
def test_any_text_is_read_or_refused(text):
    read_or_refuse(text)


@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_damaged_prints_are_read_or_refused(name, data):
    """Real prints with pieces cut out, doubled, moved or replaced."""
    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 200)))
        piece = data.draw(
            st.sampled_from(["", text[start:end] * 2, "\n", "\t", "X", "NV4", "GPU1", "N/A", "9" * 30, "\u00e9", "-", "<pci>", '"'])
        )
        text = text[:start] + piece + text[end:]
    read_or_refuse(text)


def with_cards(*paths: tuple[str, str]) -> str:
    """Return the print of two GPUs joined by NVLink, and cards with these paths to them."""
    cards = [f"NIC{number}" for number in range(len(paths))]
    rows = ["\t".join(["", "GPU0", "GPU1", *cards, "CPU Affinity"])]
    for gpu, other in (("GPU0", [" X ", "NV4"]), ("GPU1", ["NV4", " X "])):
        rows.append("\t".join([gpu, *other, *(pair[gpu == "GPU1"] for pair in paths), "0-15"]))
    rows += [
        "\t".join([card, *pair, *(" X " if card == one else "NODE" for one in cards)]) for card, pair in zip(cards, paths, strict=True)
    ]
    return "\n".join(rows) + "\n"


def test_cards_far_from_gpus_are_told_if_others_are_near() -> None:
    """Cards for storage often hang from a host bridge of their own; in a machine where all cards do, none stands out."""
    near = (("PIX", "NODE"), ("NODE", "PIX"))
    some, none, all_near = (
        parse_topology(with_cards(*paths), "topo.txt").notes for paths in ((*near, ("NODE", "NODE")), 2 * (("NODE", "NODE"),), near)
    )
    assert any(note.startswith("NIC2 shares no PCIe switch with a GPU") for note in some)
    assert not any("shares no PCIe switch" in note for note in (*none, *all_near))


def test_the_path_that_nvlink_hides_is_no_news_if_cards_show_it() -> None:
    """Each GPU has a card below its switch; without one, the GPU is attached to its socket as a guess."""
    shown, hidden = (
        parse_topology(with_cards(*paths), "topo.txt").notes for paths in ((("PIX", "NODE"), ("NODE", "PIX")), (("PIX", "NODE"),))
    )
    assert not any("NVLink hides" in note for note in shown) and any("NVLink hides" in note for note in hidden)
