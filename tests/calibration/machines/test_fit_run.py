"""Does a record become a description that runs? Oracles: the constants it was made from; what `sim check` and `sim run` say of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from calibration.cli import main
from calibration.measure.machine_record import MachineRecord, ProbeRecord, read_record, write_record
from sim import cli
from sim.spec.library import load, load_hardware
from sim.spec.stack import Stack
from tests.calibration.machine_records import cpu_record, gpu_record, over_two_machines
from tests.spec.topologies import DGX_1V

RECORD = Path("calibration/records/machines/epyc-2-cores.json")
Capture = pytest.CaptureFixture[str]


def fitted(folder: Path, record: MachineRecord, *arguments: str) -> Path:
    write_record(folder / "record.json", record)
    assert main(["fit", str(folder / "record.json"), "-o", str(folder / "box.yaml"), *arguments]) == 0
    return folder / "box.yaml"


def refused(capsys: Capture, *arguments: str) -> str:
    assert main(["fit", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "Traceback" not in output.err
    return output.err


def test_a_measured_cpu_runs(tmp_path: Path, capsys: Capture) -> None:
    """Constants of the record stand in the files; the machine passes check and runs on its own stack."""
    path = fitted(tmp_path, cpu_record(0.01))
    node = load_hardware(str(path)).spec.groups[0].node
    assert node.gpu_count == 2 and node.host.physical_cores == 4
    assert node.gpu.memory_bandwidth == pytest.approx(20e9, rel=0.05) and node.gpu.peak["fp32"] == pytest.approx(80e9, rel=0.05)
    assert node.storage is not None and node.storage.volume.bandwidth == pytest.approx(2e9, rel=0.05)
    assert node.gpu.compute_cv == pytest.approx(0.02, rel=0.01)
    assert node.host.cpu.speed == pytest.approx(7.47 / 5.0, rel=0.05)  # of ImageNet's 7.47 ms on the reference core
    stack = load(Stack, tmp_path / "box-stack.yaml").spec
    assert stack.library.gloo_transport is not None and stack.library.gloo_transport.flow_cap == pytest.approx(0.9e9, rel=0.1)
    assert node.gpu.host_cores == 2 and stack.exchange.overlap_slowdown == 1.0  # what shares cores is simulated
    assert stack.library.gloo_transport.cpu_time_per_byte == pytest.approx(0.4e-9, rel=0.05)
    assert cli.main(["check", str(path)]) == 0
    capsys.readouterr()
    assert cli.main(["run", str(path), "resnet18", "--stack", str(tmp_path / "box-stack.yaml"), "--batch", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["gpus"], document["collective"]["algorithm"]) == (2, "Gloo ring")
    assert document["step_time_s"] > 3 * 3.6e9 * 4 / 80e9  # 3.6 GFLOP a picture forward, twice that backward, at the peak


WITHOUT_TORCH = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
from calibration.cli import main

sys.exit(main(sys.argv[1:]))
"""
LAYOUT = {"model": "calibration.measure.decoder:decoder", "inputs": ["32:int64"], "arguments": ["width=128", "depth=2", "vocabulary=512"]}


def test_a_record_is_fitted_where_torch_is_missing(tmp_path: Path, capsys: Capture) -> None:
    """The description equals that of a fit with torch, also from whole layers, steps and layouts; what needs torch has a note."""
    rows = json.loads(RECORD.read_text())["probes"]
    record = read_record(RECORD)
    layout = LAYOUT | {"batch": 2, "ranks": 2, "layout": {"tensor": 2}, "times_by_rank_s": [[0.1, 0.1], [0.1, 0.1]]}
    record.probes["layouts"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=[layout])
    own = {**rows["layers"]["rows"][0], "model": "calibration.measure.probes.small_nets:deep", "inputs": ["3x32x32"], "layers": []}
    record.probes["layers"].rows.append(own)
    write_record(tmp_path / "r.json", record)
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
    assert main(["fit", str(tmp_path / "r.json"), "-o", str(tmp_path / "with/box.yaml")]) == 0
    table = capsys.readouterr().out
    words = ["fit", str(tmp_path / "r.json"), "-o", str(tmp_path / "without/box.yaml")]
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == table and "decoder, tensor 2" in table
    for name in ("box.yaml", "box-stack.yaml"):
        assert (tmp_path / "with" / name).read_text() == (tmp_path / "without" / name).read_text()
    assert "small_nets:deep: the times of its layers are not used: extract needs torch" in run.stderr


def test_every_number_says_where_it_is_from(tmp_path: Path) -> None:
    fitted(tmp_path, cpu_record(0.01))
    text = (tmp_path / "box.yaml").read_text() + (tmp_path / "box-stack.yaml").read_text()
    for probe in ("memory", "gemm and convolution", "launch", "disk", "loading", "all_reduce"):
        assert f"record.json, probe {probe}, 2026-01-02: " in text
    assert "95%" in text and "estimate (not measured on a single machine" in text


def test_a_known_gpu_keeps_its_data_sheet(tmp_path: Path) -> None:
    """Memory of 720 of 900 GB/s is an efficiency of 0.8; classes that were not measured keep the catalog's curves."""
    path = fitted(tmp_path, gpu_record())
    node = load_hardware(str(path)).spec.groups[0].node
    assert (node.gpu.name, node.gpu.memory_bandwidth, node.gpu.peak["fp16"]) == ("V100-SXM2-16GB", 900e9, 125e12)
    assert node.gpu.memory_efficiency == pytest.approx(0.8, rel=0.01)
    assert node.topology.pcie.bandwidth == pytest.approx(12e9, rel=0.01)
    assert "rnn" in node.gpu.efficiency and "pointwise_conv" in node.gpu.efficiency


def test_several_gpus_take_their_links_from_a_known_machine(tmp_path: Path, capsys: Capture) -> None:
    write_record(tmp_path / "record.json", gpu_record(8))
    record, output = str(tmp_path / "record.json"), str(tmp_path / "box.yaml")
    assert "name the machine with --hardware" in refused(capsys, record, "-o", output)
    assert "has 4 GPUs, but the record 8" in refused(capsys, record, "-o", output, "--hardware", "p3.8xlarge")
    write_record(tmp_path / "cores.json", cpu_record())
    cores = refused(capsys, str(tmp_path / "cores.json"), "-o", output, "--hardware", "p3.8xlarge")
    assert "has V100-SXM2-16GBs, but the record ranks on CPU cores" in cores
    assert "is the same record as" in refused(capsys, record, record, "-o", output, "--hardware", "p3.16xlarge")
    assert not (tmp_path / "box.yaml").exists()
    assert main(["fit", record, "-o", output, "--hardware", "p3.16xlarge"]) == 0
    node = load_hardware(output).spec.groups[0].node
    assert node.topology.nvlink is not None and node.gpu_count == 8
    assert node.topology.pcie.bandwidth * node.topology.pcie.efficiency == pytest.approx(12e9, rel=0.01)
    assert node.host.cpu.name == "xeon-e5-2686-v4" and node.host.cpu.speed == pytest.approx(7.47 / 5.0, rel=0.01)


def test_what_cannot_be_fitted_is_refused_and_nothing_is_written(tmp_path: Path, capsys: Capture) -> None:
    record, output = tmp_path / "record.json", tmp_path / "box.yaml"
    broken = cpu_record()
    del broken.probes["gemm"]
    write_record(record, broken)
    assert "do not contain gemm fp32: measure it with 'calibration profile --only gemm'" in refused(capsys, str(record), "-o", str(output))
    assert "ends in .yaml" in refused(capsys, str(record), "-o", str(tmp_path / "box.json"))
    assert "no such file" in refused(capsys, str(tmp_path / "absent.json"), "-o", str(output))
    for change, message in (
        (lambda rows: rows[2].update(times_s=[0.0]), r"probes.gemm.rows[2]: times_s.0: expected greater than 0, not 0.0"),
        (lambda rows: rows[1].pop("times_s"), r"probes.gemm.rows[1]: expected a list of times above zero"),
        (lambda rows: rows[0].update(shape=[64, 0, 64]), r"probes.gemm.rows[0]: shape.1: expected greater than 0, not 0"),
        (lambda rows: rows[2].update(flop=0), r"probes.gemm.rows[2]: flop: expected greater than 0, not 0"),
        (lambda rows: rows[2].update(flop="many"), r"probes.gemm.rows[2]: flop: expected a number, not 'many'"),
        (
            lambda rows: rows.__setitem__(slice(None), rows[-1:]),
            "do not contain gemm fp32: measure it with 'calibration profile --only gemm'",
        ),
    ):
        broken = cpu_record()
        change(broken.rows("gemm"))
        write_record(record, broken)
        assert message in refused(capsys, str(record), "-o", str(output))
    broken = cpu_record()
    del broken.machine["physical_cores"]
    write_record(record, broken)
    assert "machine.physical_cores is missing" in refused(capsys, str(record), "-o", str(output))
    record.write_text("{}")
    assert "is not a machine record" in refused(capsys, str(record), "-o", str(output))
    write_record(record, cpu_record())
    assert "cannot be written" in refused(capsys, str(record), "-o", str(tmp_path / "absent" / "box.yaml"))
    refusal = refused(capsys, str(record), "-o", str(output), "--plot", str(tmp_path / "x.foo"))
    assert "x.foo: a picture in a file '*.foo'; write .png or .svg" in refusal
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_what_is_not_told_names_the_run_that_would(tmp_path: Path, capsys: Capture) -> None:
    record = cpu_record()
    del record.probes["disk"], record.probes["loading"]
    record.probes["all_reduce"].rows = [row for row in record.rows("all_reduce") if (row["ranks"], row["op"]) == (2, "all_reduce")]
    fitted(tmp_path, record)
    output = capsys.readouterr().err
    assert "not measured: disk bytes: profile --only disk" in output and "not measured: loading: profile --only loading" in output
    assert "not measured: gloo, launch: profile --only all_reduce with another number of ranks" in output


def test_the_document_and_the_picture(tmp_path: Path, capsys: Capture) -> None:
    plot = tmp_path / "residuals.png"
    fitted(tmp_path, cpu_record(0.05), "--plot", str(plot), "--json")
    document = json.loads(capsys.readouterr().out)
    rows = {(row["subject"], row["parameter"]): row for row in document["parameters"]}
    assert rows["gemm fp32", "time per unit"]["low_s"] < 1 / 80e9 < rows["gemm fp32", "time per unit"]["high_s"]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("local", [1, 2])
def test_ranks_on_several_machines_become_a_cluster(tmp_path: Path, capsys: Capture, local: int) -> None:
    """Two machines at 1 Gbps, 300 us more a step than inside one: a card of 1 Gbps, and half of that as the network's latency."""
    path = fitted(tmp_path, over_two_machines(local=local))
    cluster = load_hardware(str(path)).spec
    [group] = cluster.groups
    assert (group.count, group.node.gpu_count, group.node.gpu.host_cores) == (2, local, 4 // local)
    assert group.node.nic.bandwidth == pytest.approx(125e6, rel=0.02)
    stack = load(Stack, tmp_path / "box-stack.yaml").spec
    assert stack.library.gloo_transport is not None
    step = stack.library.gloo_transport.hop_latency + 2 * cluster.fabric.latency
    assert step == pytest.approx(480e-6, rel=0.05) and (cluster.fabric.latency > 0) == (local > 1)
    capsys.readouterr()
    assert cli.main(["run", str(path), "resnet18", "--stack", str(tmp_path / "box-stack.yaml"), "--batch", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["nodes"], document["gpus"]) == (2, 2 * local)
    # 11.7 million gradients of 4 bytes, all but 1/n of them twice around a ring of n
    wire = 2 * (2 * local - 1) / (2 * local) * 4 * 11_689_512 / (0.956 * 125e6)
    assert document["step_time_s"] > wire


def test_convolutions_that_were_not_measured_are_a_guess_and_not_free(tmp_path: Path, capsys: Capture) -> None:
    record = cpu_record()
    del record.probes["convolution"]
    path = fitted(tmp_path, record)
    gpu = load_hardware(str(path)).spec.groups[0].node.gpu
    assert gpu.efficiency["conv"] == gpu.efficiency["gemm"]
    assert "conv and depthwise_conv as gemm: estimate" in path.read_text()
    assert "not measured: conv fp32: profile --only convolution" in capsys.readouterr().err


def test_attention_may_be_the_fastest_class(tmp_path: Path) -> None:
    """On a CPU without instructions for bf16, its products make 1 GFLOP/s, and its attention 30, which computes in fp32."""
    record = cpu_record()
    for probe, row, rate in (
        ("gemm", {"shape": [512, 512, 512]}, 1e9),
        ("attention", {"way": "forward", "shape": [12, 12, 128, 64], "causal": False}, 30e9),
    ):
        rows = record.probes[probe].rows if probe in record.probes else []
        rows = [*rows, *(row | {"precision": "bf16", "flop": flop, "times_s": [flop / rate] * 3} for flop in (1e8, 1e9, 1e10))]
        record.probes[probe] = ProbeRecord("done", "2026-11-20 12:00", rows=rows)
    gpu = load_hardware(str(fitted(tmp_path, record))).spec.groups[0].node.gpu
    assert gpu.peak["bf16"] == pytest.approx(30e9, rel=0.02)
    assert gpu.efficiency["gemm"]["bf16"][-1][1] == pytest.approx(1 / 30, rel=0.02)


def test_the_drivers_print_joins_several_gpus(tmp_path: Path) -> None:
    """What nvidia-smi printed of eight V100s: links as the import of such a print gives them, numbers as measured."""
    record = gpu_record(8)
    record.machine["topology"] = DGX_1V
    path = fitted(tmp_path, record)
    node, links = (load_hardware(str(name)).spec.groups[0].node for name in (path, tmp_path / "box-links.yaml"))
    assert (node.gpu_count, node.gpu.name) == (8, "V100-SXM2-16GB") and node.topology.nvlink == links.topology.nvlink
    assert node.topology.pcie.bandwidth * node.topology.pcie.efficiency == pytest.approx(12e9, rel=0.01)
    assert "extends: ./box-links.yaml" in path.read_text()
