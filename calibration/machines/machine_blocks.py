"""How are the parts around the device described from records? Host, disk, links and network, with or without a reference machine.

With a reference machine (``--hardware``), measured values replace its values and everything else stays. Without one, the description has
the processors and memory that the record lists, with all ranks on one host bridge, and everything else is marked as an estimate. If
ranks ran on several machines, the description is a cluster of equal machines with the network that their collectives measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from calibration.machines.gloo_fit import BETWEEN, INSIDE, gloo_class
from calibration.machines.layer_factors import NETWORK_PRODUCTS as PRODUCTS
from calibration.machines.machine_fit import RATE, Fit, MergedRecords, median_time
from calibration.machines.machine_yaml import FREE_COPY, Block, Sources, interval, rate_text, stack_block
from calibration.machines.nccl_fit import NCCL, record_blocks
from sim.spec.hardware import Node
from sim.spec.input import Dataset
from sim.spec.library import load_hardware, load_part
from sim.spec.yaml import SpecError

REFERENCE_DATASET: Final = "imagenet-1k"
"""The data set that the decoded pictures represent; the reference core needs its ``prep`` time per sample."""


def describe_machine(
    records: MergedRecords, fitted: Mapping[str, Fit], device: Block, name: str, hardware: str | None, reference: str = ""
) -> tuple[Block, Block | None]:
    """Return the description of the machine *name* with its *device*, and its software stack.

    The description extends *hardware* if specified, else it is built from the records only. *reference* is the path by which the
    description refers to *hardware* if that is a file. Raise SpecError if the records are insufficient.
    """
    node: Block = {"gpu": device}
    if (storage := storage_block(records, fitted)) is not None:
        node["storage"] = storage
    if hardware is not None:
        block: Block = {"name": name, "extends": reference or hardware, "node": node | _replacements(records, fitted, hardware)}
    else:
        block = _from_records(records, fitted, name, node)
    return block, stack_block(records, fitted)


def _replacements(records: MergedRecords, fitted: Mapping[str, Fit], hardware: str) -> Block:
    """Return the measured values that replace those of *hardware*: host, PCIe and, with NCCL, transport classes."""
    node: Node = load_hardware(hardware).spec.groups[0].node
    count = len(records.machine["gpus"])
    if count and count != node.gpu_count:
        raise SpecError(f"--hardware {hardware}: has {node.gpu_count} GPUs, but the record {count}; name the machine that was measured")
    if bool(count) != (not node.gpu.host_cores):
        measured = f"{count} GPUs" if count else "ranks on CPU cores"
        raise SpecError(f"--hardware {hardware}: has {node.gpu.name}s, but the record {measured}; name the machine that was measured")
    block: Block = {}
    if "loading" in fitted:
        block["host"] = {"cpu": {"extends": node.host.cpu.name, **_speed(records, fitted)}}
    if "pinned copy to device" in fitted:
        block["topology"] = {"pcie": _pcie(records, fitted["pinned copy to device"], node)}
    return block | (record_blocks(records, fitted[NCCL], load_hardware(hardware).spec) if NCCL in fitted else {})


def _pcie(records: MergedRecords, copy: Fit, node: Node) -> Block:
    rate, sources = 1.0 / copy[RATE].value, Sources(records)
    sources.fitted("efficiency", "host_copy", f"pinned, to the device: {interval(copy[RATE], 1e-9, 'GB/s', inverse=True)}")
    return {
        "extends": node.topology.pcie.name,
        "efficiency": round(min(1.0, rate / node.topology.pcie.bandwidth), 4),
        "source": sources.texts,
    }


def _speed(records: MergedRecords, fitted: Mapping[str, Fit]) -> Block:
    """Return the block with the speed of a core at preparing pictures relative to the reference core, and its SMT gain."""
    sources = Sources(records)
    reference = load_part(Dataset, REFERENCE_DATASET).prep
    each = fitted["loading"][RATE]
    sources.fitted(
        "speed", "loading", f"{interval(each, 1e3, 'ms')} a picture and core, against {1e3 * reference:g} ms on the reference core"
    )
    block: Block = {"speed": float(f"{reference / each.value:.4g}")}
    if (gain := threads_gain(records)) is not None:
        block["smt_gain"] = round(gain, 3)
        sources.fitted("smt_gain", "loading", "rate with a worker for each hardware thread over that with one for each core")
    return block | {"source": sources.texts}


def threads_gain(records: MergedRecords) -> float | None:
    """Return the factor, at least 1, by which second hardware threads raise the rate of loaders.

    Return None if there are no second threads or one of the two rates was not measured.
    """
    cores, threads = records.machine["physical_cores"], records.machine["vcpus"]
    times = {row["workers"]: median_time(row) for row in records.rows("loading") if row["stage"] == "loader"}
    if threads <= cores or cores not in times or threads not in times:
        return None
    return max(1.0, times[cores] / times[threads])


def storage_block(records: MergedRecords, fitted: Mapping[str, Fit]) -> Block | None:
    """Return the description of the measured disk; None if no disk was measured."""
    if not {"disk bytes", "disk latency", "disk I/Os"} <= set(fitted):
        return None
    sources = Sources(records)
    rate, single, concurrent = (fitted[name][RATE] for name in ("disk bytes", "disk latency", "disk I/Os"))
    iops = f"{1 / concurrent.value:.4g} IOPS"
    cache = records.rows("disk")[0]["cache"]
    how = {"dropped": "page cache emptied", "direct": "O_DIRECT", "advised": "page cache possibly not emptied"}[cache]
    sources.fitted("bandwidth", "disk", f"sequential, {how}: {interval(rate, 1e-9, 'GB/s', inverse=True)}")
    for key in ("baseline_iops", "max_iops"):
        sources.fitted(key, "disk", f"4 KiB by eight threads: {interval(concurrent, 1.0, 'IOPS', inverse=True)}")
    sources.fitted("latency", "disk", f"4 KiB by one thread: {interval(single, 1e3, 'ms')}")
    sources.estimate("size", "not measured; no effect on rates")
    sources.estimate("io_size", "Linux reads ahead 128 KiB")
    volume = {
        "name": f"disk-of-{records.name}",
        "size": "1 TB",
        "bandwidth": rate_text(rate),
        "io_size": "128 KiB",
        "baseline_iops": iops,
        "max_iops": iops,
        "latency": f"{1e3 * single.value:.4g} ms",
        "source": sources.texts,
    }
    return {"volume": volume, "source": f"{', '.join(records.files)}, probe disk, {records.date}"}


def _from_records(records: MergedRecords, fitted: Mapping[str, Fit], name: str, node: Block) -> Block:
    facts = records.machine
    count = len(facts["gpus"]) or records.neighbors
    if len(facts["gpus"]) > 1:
        raise SpecError(
            f"{records.files[0]}: {count} GPUs, but the record does not contain their links (no nvidia-smi); name the machine with "
            "--hardware, from the catalog or created by 'python -m sim new'"
        )
    kind = f"{count} ranks of {facts['vcpus']} cores" if not facts["gpus"] else facts["gpus"][0]["name"]
    storage = {"volume": {"extends": "gp2", "assumed": True}, "source": "estimate (not measured; profile --only disk)"}
    described_node = {
        **node,
        "gpu_count": count,
        "topology": _topology(records, fitted, count),
        "host": _host(records, fitted),
        "nic": nic_block(records, fitted),
        "storage": node.get("storage", storage),
        "peer_transport": "pcie-peer",
        "host_transport": "host-staged",
    }
    head = {
        "name": name,
        "description": (f"{records.nodes} times " if records.nodes > 1 else "") + f"{kind}, measured {records.date}",
        "note": "" if facts["gpus"] else "A GPU of this description is one rank, which computes on its share of the cores.",
    }
    if records.nodes == 1:
        return head | {"node": described_node}
    return head | {"groups": [{"node": described_node, "count": records.nodes}], "fabric": fabric_block(records, fitted)}


def nic_block(records: MergedRecords, fitted: Mapping[str, Fit]) -> Block:
    """Return the NIC: the rate of Gloo's ring between machines over the payload share of the line rate, or an estimate if unmeasured."""
    if (fit := fitted.get(BETWEEN)) is None or not fit[RATE].identified:
        alone = "not measured on a single machine; profile under torchrun on two"
        reason = alone if records.nodes == 1 else "not determined by the measurements; profile --only all_reduce --again"
        return {"bandwidth": "10 Gbps", "transport": "tcp", "source": f"estimate ({reason})"}
    sources = Sources(records)
    payload = gloo_class().total_efficiency
    carried = interval(fit[RATE], 1e-9, "GB/s", inverse=True)
    sources.fitted(
        "bandwidth", "all_reduce", f"a ring between machines carried {carried}, {payload:.3g} of the line; the card may be faster"
    )
    sources.estimate("*", "one socket between neighbors, as Gloo has")
    return {"bandwidth": f"{8e-9 / fit[RATE].value / payload:.4g} Gbps", "transport": gloo_class().name, "source": sources.texts}


def fabric_block(records: MergedRecords, fitted: Mapping[str, Fit]) -> Block:
    """Return the network: half the latency by which a ring step between machines exceeds one inside a machine."""
    across, inside = fitted.get(BETWEEN), fitted.get(INSIDE)
    if across is None or inside is None or not (across["hop_latency"].identified and inside["hop_latency"].identified):
        return {"latency": "0 us", "source": "estimate (part of a socket's latency; not measured separately)"}
    extra = 0.5 * max(0.0, across["hop_latency"].value - inside["hop_latency"].value)
    sources = Sources(records)
    steps = f"{interval(across['hop_latency'], 1e6, 'us')} between machines, {interval(inside['hop_latency'], 1e6, 'us')} inside one"
    sources.fitted("*", "all_reduce", f"half of the extra time of a ring step: {steps}")
    return {"latency": f"{1e6 * extra:.4g} us", "source": sources.texts}


def _topology(records: MergedRecords, fitted: Mapping[str, Fit], count: int) -> Block:
    copy, sources = fitted.get("pinned copy to device"), Sources(records)
    if records.machine["device"] == "cpu":
        sources.estimate("*", "tensors of a CPU are in host memory: nothing is copied, so the rate has no effect")
        rate: str = FREE_COPY
    elif copy is not None:
        sources.fitted("*", "host_copy", f"pinned, to the device: {interval(copy[RATE], 1e-9, 'GB/s', inverse=True)}")
        rate = rate_text(copy[RATE])
    else:
        sources.estimate("*", "PCIe 3 x16; not measured, profile --only host_copy")
        rate = "15.75 GB/s"
    link: Block = {
        "name": f"copies-of-{records.name}",
        "bandwidth": rate,
        "efficiency": 1.0,
        "nccl_bandwidth": rate,
        "source": sources.texts,
    }
    sockets: list[Any] = [{"gpus": list(range(count)), "nics": [0]}, *({} for _ in range(records.machine["sockets"] - 1))]
    return {"pcie": link, "sockets": sockets, "peer_to_peer": "none", "source": "estimate (ranks side by side on one host bridge)"}


def _host(records: MergedRecords, fitted: Mapping[str, Fit]) -> Block:
    facts, sources = records.machine, Sources(records)
    sources.facts("*")
    sources.estimate("socket_link", "one link between sockets, where there are two")
    cpu: Block = {
        "name": facts["cpu"],
        "vendor": facts["vendor"],
        "clock": f"{(facts['clock_hz'] or 2.5e9) / 1e9:.4g} GHz",
        "speed": 1.0,
        "smt_gain": 1.0,
        "memory_bandwidth": _host_bandwidth(records, sources),
        "socket_link": "upi-skylake",
    }
    speed = _speed(records, fitted) if "loading" in fitted else {"source": {"speed": "estimate (not measured; profile --only loading)"}}
    speed_sources = {"smt_gain": "estimate (not measured, or no second hardware threads)"} | sources.texts | speed["source"]
    return {
        "cpu": cpu | speed | {"source": speed_sources},
        "sockets": facts["sockets"],
        "physical_cores": facts["physical_cores"],
        "vcpus": facts["vcpus"],
        "memory": f"{facts['memory_bytes'] / 2**30:.4g} GiB",
        "source": f"{', '.join(records.files)}: as reported by the machine",
    }


def _host_bandwidth(records: MergedRecords, sources: Sources) -> str:
    """Return the memory bandwidth of a socket: the combined rate of all ranks if it was measured, else an estimate."""
    concurrent = next((row for row in records.rows("memory") if "together" in row), None)
    if concurrent is None:
        sources.estimate("memory_bandwidth", "not measured: a share of one socket of a server")
        return "100 GB/s"
    rate = concurrent["bytes"] * concurrent["together"] / median_time(concurrent) / records.machine["sockets"]
    sources.fitted("memory_bandwidth", "memory", f"scaled sums by {concurrent['together']} ranks at once; more ranks might reach more")
    return f"{rate / 1e9:.4g} GB/s"


WANTED_SUBJECTS: Final = {
    "launch by the device": "launch",
    "memory": "memory",
    "gemm fp32": "gemm",
    "conv fp32": "convolution",
    "disk bytes": "disk",
    "loading": "loading",
}
"""Subjects that every record should determine, with the probe that measures each."""


def undetermined_subjects(records: MergedRecords, fitted: Mapping[str, Fit], untraced: Collection[str] = ()) -> list[str]:
    """Return the subjects and parameters that the records do not determine, with the command that would measure each.

    The layers of the models *untraced* were measured, and measuring them again would not help.
    """
    wanted = WANTED_SUBJECTS | ({"pinned copy to device": "host_copy"} if records.machine["gpus"] else {})
    gloo = {(BETWEEN if records.nodes > 1 else INSIDE): "all_reduce"}
    wanted |= gloo if records.machine["backend"] == "gloo" else {}
    traced = any(row["model"] not in untraced for row in records.rows("layers"))
    wanted |= {PRODUCTS: "layers,convolution"} if "torch" in records.versions and traced else {}
    missing = [f"{subject}: profile --only {probe}" for subject, probe in wanted.items() if subject not in fitted]
    weak = [(fit, estimate) for fit in fitted.values() for estimate in fit.posterior.estimates if not estimate.identified]
    return missing + [f"{fit.subject}, {estimate.name}: {_identifying_command(fit, estimate.name)}" for fit, estimate in weak]


def _identifying_command(fit: Fit, name: str) -> str:
    """Return the command that would identify the parameter *name* of *fit*."""
    if fit.subject in (INSIDE, BETWEEN) and name in ("launch", "hop_latency"):
        return "profile --only all_reduce with another number of ranks (--ranks 4) into a separate record, and fit both"
    return f"profile --only {fit.probe} --again without --quick, while nothing else runs: more sizes, less scatter"
