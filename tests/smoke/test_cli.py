"""Does every command run at all, on real input, and refuse bad input in one clear sentence?"""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from sim.cli import main
from sim.events import STALLS
from tests.smoke.refused import refusal

Capture = pytest.CaptureFixture[str]

MAIN_JOB = ["run", "p3.16xlarge", "vgg16"]


def document(capsys: Capture, *arguments: str) -> dict:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_the_whole_contract(capsys: Capture) -> None:
    contents = document(capsys, *MAIN_JOB)
    assert list(contents) == [
        "schema", "hardware", "workload", "stack", "nodes", "gpus", "batch_per_gpu", "global_batch", "precision", "step_time_s",
        "throughput_samples_per_s", "epoch_time_s", "cost_per_epoch_usd", "price", "stalls_s", "first_epoch",
        "gpu_memory_bytes", "energy", "burst_credits_end", "collective", "expected_error", "assumptions", "warnings", "seed", "version",
        "inputs_sha256",
        "inputs", "step_time_spread_s", "step_time_half_width_s", "verdict", "tied_resources", "tied_doubled_step_time_s",
        "freed_step_time_s",
        "without_buffer_broadcast_step_time_s", "whole_job",
    ]  # fmt: skip
    assert list(contents["stalls_s"]) == [cause.value for cause in STALLS]
    assert math.isclose(sum(contents["stalls_s"].values()), contents["step_time_s"], rel_tol=1e-9)
    first = contents["first_epoch"]
    assert math.isclose(sum(first["stalls_s"].values()), first["step_time_s"], rel_tol=1e-9)
    assert contents["gpus"] == 8
    assert contents["throughput_samples_per_s"] == pytest.approx(8 * contents["batch_per_gpu"] / contents["step_time_s"])
    assert contents["cost_per_epoch_usd"] == pytest.approx(24.48 / 3600 * contents["epoch_time_s"])
    assert set(contents["inputs_sha256"]) == {"hardware", "workload", "stack", "records"}


def test_same_inputs_same_bytes(capsys: Capture) -> None:
    main([*MAIN_JOB, "--json"])
    once = capsys.readouterr().out
    main([*MAIN_JOB, "--json"])
    assert capsys.readouterr().out == once


def test_path_and_name_mean_the_same(capsys: Capture) -> None:
    root = Path(__file__).resolve().parents[2]
    by_path = document(capsys, "run", str(root / "hardware/p3.16xlarge.yaml"), str(root / "workloads/vgg16.yaml"))
    assert by_path == document(capsys, *MAIN_JOB)


def test_report_names_the_bottleneck(capsys: Capture) -> None:
    assert main(["run", "p3.16xlarge", "resnet18"]) == 0
    assert "32 workers deliver" in capsys.readouterr().out


def test_report_says_how_far_it_may_be_off(capsys: Capture) -> None:
    """The figures are those of the JSON document."""
    assert main([*MAIN_JOB, "--fast"]) == 0
    text = capsys.readouterr().out
    error = document(capsys, *MAIN_JOB, "--fast")["expected_error"]
    assert f"expected error: median {100 * error['median']:.0f}%, one in ten above {100 * error['p90']:.0f}%" in text
    assert error["basis"].split("; ")[0] in text


def test_jobs_share_the_page_cache(capsys: Capture, tmp_path: Path) -> None:
    """Closed form: two sets of 141 GB in 0.85 x 250 GiB leave c = 0.81 cached, of which half LRU hit 0.49 and half never evict 0.81."""
    jobs = tmp_path / "two.yaml"
    other = "{extends: resnet18, dataset: {extends: imagenet-1k, name: another}}"
    for second, cached in (("resnet18", "100%"), (other, "65%")):
        jobs.write_text(f"jobs:\n  - {{workload: resnet18, placement: '4'}}\n  - {{workload: {second}, placement: '4'}}\n")
        contents = document(capsys, "run", "p3.16xlarge", str(jobs), "--fast", "--set", "node.host.memory=250 GiB")
        for job in contents["jobs"]:
            shown = next(text for text in job["assumptions"] if "page cache" in text)
            assert cached in shown


def test_the_sentence_names_what_would_help(capsys: Capture) -> None:
    """Oracle: relieving the resource that is named shortens the step, relieving the other does not."""
    scene = ["run", "p4d.24xlarge", "vgg16", "--precision", "amp_fp16", "--fast", "--set", "node.host.memory=40 GiB"]
    assert main(scene) == 0
    assert "Disk fetch" in capsys.readouterr().out
    step = document(capsys, *scene)["step_time_s"]
    assert document(capsys, *scene, "--set", "node.host.cpu.speed=100")["step_time_s"] == pytest.approx(step, rel=1e-3)
    fast = "node.storage.volume.bandwidth=2 GB/s;node.storage.volume.baseline_iops=80000 IOPS;node.storage.volume.max_iops=80000 IOPS"
    assert document(capsys, *scene, "--set", fast)["step_time_s"] < 0.9 * step


def test_an_alias_says_what_it_means(capsys: Capture) -> None:
    """The paper's p3.24xlarge was never sold under that name."""
    assert "p3.24xlarge means p3dn.24xlarge" in document(capsys, "run", "p3.24xlarge", "vgg16", "--fast")["warnings"][0]


@pytest.mark.parametrize("layout", [[], ["--shard", "parameters", "--stack", "torchtitan-2.x"]])
def test_nodes_that_a_cluster_does_not_have_are_said(capsys: Capture, layout: list[str]) -> None:
    """A file of two nodes can be simulated with four; one node is a machine, of which any number can be rented."""
    job = ["gpt2", "--precision", "amp_fp16", *layout, "--batch", "1", "--fast"]
    said = "2x-p3.8xlarge has 2 nodes; 4 are simulated: 2 more like them"
    assert said in document(capsys, "run", "2x-p3.8xlarge", *job, "--nodes", "4")["warnings"]
    for hardware, nodes in (("2x-p3.8xlarge", "2"), ("2x-p3.8xlarge", "1"), ("p3.8xlarge", "4")):
        assert not [text for text in document(capsys, "run", hardware, *job, "--nodes", nodes)["warnings"] if "are simulated" in text]


def test_the_batch_that_the_refusal_names_fits(capsys: Capture) -> None:
    said = refusal(capsys, "run", "p4d.24xlarge", "vgg16", "--batch", "5000")
    largest = said.rsplit("the largest batch that fits is ", 1)[1].split()[0].rstrip(".;")
    contents = document(capsys, "run", "p4d.24xlarge", "vgg16", "--fast", "--batch", largest)
    assert contents["gpu_memory_bytes"]["total"] <= 40 * 2**30


def test_csv_rows_have_units(capsys: Capture) -> None:
    assert main([*MAIN_JOB, "--nodes", "1..4", "--csv", "--fast"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["nodes"] for row in rows] == ["1", "2", "4"]
    assert float(rows[2]["network_s"]) > float(rows[0]["network_s"]) == 0


def test_scaling_by_gpus(capsys: Capture) -> None:
    assert main([*MAIN_JOB, "--gpus", "1..8", "--fast"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:5]] == ["1", "2", "4", "8"]


def test_sizes_that_a_layout_does_not_suit_state_why(capsys: Capture) -> None:
    """Oracle: one run of each size. A layout that no size suits is an error."""
    job = ["run", "hgx-h100", "llama-3.2-1b", "--shard", "parameters"]
    assert main([*job, "--cp", "16", "--nodes", "1..4"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert rows[0].split(None, 2) == ["1", "8", rows[0].split(None, 2)[2]] and "16 ranks do not divide 8 GPUs" in rows[0]
    assert [row.split()[1] for row in rows[1:]] == ["16", "32"]
    assert main([*job, "--gpus", "4..16"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["4", "8", "16"] and "has 8 GPUs; write at most 8" in rows[2]
    assert main([*job, "--cp", "3", "--nodes", "1..2"]) == 2
    assert capsys.readouterr().out == ""


def test_output_folder(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    assert main([*MAIN_JOB, "-o", str(folder)]) == 0
    pictures = ["stalls.png", "stalls.svg"]
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.txt", "run.csv", "run.json", *pictures]
    assert (folder / "stalls.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "stalls.svg").read_bytes().startswith(b"<?xml")
    assert json.loads((folder / "run.json").read_text())["workload"] == "vgg16"


def test_set_reaches_hardware_workload_and_stack(capsys: Capture) -> None:
    """A faster NIC, and everything else equal (smaller buckets may change the algorithm, so both runs have them)."""
    sets = ("--set", "input.num_workers=9;training.stack.bucket_cap=5 MiB")
    two = [*MAIN_JOB, "--nodes", "2", "--fast"]
    slow = document(capsys, *two, *sets)
    fast = document(capsys, *two, *sets, "--set", "node.nic.bandwidth=100 Gbps")
    assert fast["stalls_s"]["network"] < slow["stalls_s"]["network"]
    assert slow["stalls_s"]["network"] != document(capsys, *two)["stalls_s"]["network"]


def test_several_jobs(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("jobs:\n  - {workload: resnet18, placement: '4'}\n  - {workload: vgg16, placement: '4'}\n")
    contents = document(capsys, "run", "p3.16xlarge", str(tmp_path / "two.yaml"), "--fast")
    assert [job["workload"] for job in contents["jobs"]] == ["resnet18", "vgg16"]
    assert [job["gpus"] for job in contents["jobs"]] == [4, 4]


def test_what_all_jobs_share_is_said_once(capsys: Capture) -> None:
    """Eight equal trials: each note is listed once in the text, and no job's document has a note about another."""
    command = ("run", "p3.16xlarge", "hyperparameter-search")
    assert main(list(command)) == 0
    text = capsys.readouterr().out
    notes = [line for line in text.splitlines() if line.startswith("    - ")]
    assert len(notes) == len(set(notes)) > 4
    assert "would change the step time" in text[text.index("\nall jobs:\n") :]
    for number, job in enumerate(document(capsys, *command)["jobs"]):
        about = {warning.split(":")[0] for warning in job["warnings"] if warning.startswith("jobs.")}
        assert about == {f"jobs.{number}"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "p3.16xlarg", "vgg16"], "did you mean p3.16xlarge"),
        (["run", "p3.16xlarge", "nothing.yaml"], "nothing.yaml: no such file"),
        (["run", "p3.16xlarge", "vgg16", "--set", "node.nic.bandwith=1 Gbps"], "did you mean 'bandwidth'?"),
        (["run", "p3.16xlarge", "vgg16", "--set", "node.nic.bandwidth=100"], "no unit"),
        (["run", "p3.16xlarge", "vgg16", "--batch", "512"], "the largest batch that fits is"),
        (["run", "p3.16xlarge", "vgg16", "--gpus", "9"], "8 GPUs"),
        (["run", "p3.16xlarge", "vgg16", "--nodes", "4..1"], "a range goes up"),
        (["run", "p3.16xlarge", "vgg16", "--set", "node.storage=null"], "storage"),
        (["run", "p3.16xlarge", "vgg16", "--precision", "fp99"], "fp99"),
        (["list", "machines"], "write one of hardware, workloads"),
        (["run", "p3.16xlarge", "vgg16", "--gpus", "2", "--placement", "1+2"], "write one of the two"),
        (["run", "p3.16xlarge", "vgg16", "--json", "--csv"], "write one of the two"),
    ],
)
def test_refusals(capsys: Capture, arguments: list[str], says: str) -> None:
    assert says in refusal(capsys, *arguments)


def test_check_and_list_and_schema(capsys: Capture, tmp_path: Path) -> None:
    assert main(["check", "p3.16xlarge", "vgg16"]) == 0
    assert "2 files OK" in capsys.readouterr().out
    assert main(["list", "hardware", "--where", "provider=aws", "--where", "gpus=8"]) == 0
    assert "p3.16xlarge" in capsys.readouterr().out
    assert main(["schema", "-o", str(tmp_path)]) == 0
    assert (tmp_path / "hardware.schema.json").exists()
    assert (tmp_path / "jobs.schema.json").exists()


@pytest.mark.parametrize("kind", ["jobs", "gpus", "models", "datasets", "stacks", "links", "cpus", "transports", "volumes"])
def test_every_kind_of_part_is_listed(capsys: Capture, kind: str) -> None:
    """Oracle: the files of its folder."""
    root = Path(__file__).resolve().parents[2]
    files = [path for folder in (f"hardware/parts/{kind}", f"workloads/{kind}") for path in (root / folder).glob("*.yaml")]
    rows = document(capsys, "list", kind)[kind]
    assert len(rows) == len(files) > 0
    assert all(value is not None for row in rows for value in row.values())


def test_a_filter_without_match_says_so(capsys: Capture) -> None:
    assert main(["list", "--where", "gpu=V1"]) == 1
    assert "no row matches gpu=V1; did you mean V100-PCIe-16GB" in capsys.readouterr().err
    assert main(["list", "--where", "gpus=9"]) == 1
    assert "no row matches gpus=9; gpus ranges from 1 to 1,152" in capsys.readouterr().err
    assert main(["list", "hardware", "--where", "gpu=RTX4090"]) == 1
    said = "no row matches gpu=RTX4090; it is a GPU, but no machine in the catalog has it; put it into one, such as g5.12xlarge with "
    "--set node"
    assert said in capsys.readouterr().err


def test_check_suggests_a_name(capsys: Capture) -> None:
    assert main(["check", "p3.16xlrge"]) == 2
    assert "did you mean p3.16xlarge" in capsys.readouterr().err
    assert main(["check", "vgg61.yaml"]) == 2
    assert "did you mean vgg19" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nope", "nope.yaml", "zzz/nope.yaml"])
def test_check_of_a_name_like_none_lists_machines_as_well_as_workloads(capsys: Capture, name: str) -> None:
    said = f"{name}: no such file or catalog name; 'python -m sim list' shows all hardware and workloads\n"
    assert main(["check", name]) == 2
    assert capsys.readouterr().err == said


def test_help_shows_an_example(capsys: Capture) -> None:
    for command in ("run", "check", "list", "schema", "extract", "collective", "new"):
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "Examples:" in shown and f"\n  python -m sim {command} " in shown


def test_collective_table(capsys: Capture, tmp_path: Path) -> None:
    contents = document(capsys, "collective", "p3.16xlarge", "--bytes", "1MiB..8MiB", "-o", str(tmp_path))
    assert [row["bytes"] for row in contents["rows"]] == [2**20, 2**21, 2**22, 2**23]
    for row in contents["rows"]:
        assert row["algbw_bytes_per_s"] == pytest.approx(row["bytes"] / row["time_s"])
        assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * 2 * 7 / 8)
        assert (row["algorithm"], row["protocol"]) in {("Ring", "LL128"), ("Ring", "Simple")}
    assert (tmp_path / "collective.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "broadcast", "all_to_all"])
def test_other_collectives_on_two_nodes(capsys: Capture, op: str) -> None:
    """What crosses the NIC bounds them: no bus bandwidth above it, but all ranks of a node share it in an all-to-all."""
    rows = document(capsys, "collective", "p3.16xlarge", "--op", op, "--bytes", "1GiB", "--nodes", "2")["rows"]
    assert 0.6e9 < rows[0]["busbw_bytes_per_s"] < 25e9 / 8
    assert rows[0]["protocol"] == "Simple"


def test_forced_algorithms_and_protocols(capsys: Capture) -> None:
    """NCCL_ALGO and NCCL_PROTO as options; CSV has the columns of the JSON rows."""
    assert main(["collective", "p3.16xlarge", "--bytes", "1GiB", "--nodes", "2", "--algo", "ring", "--proto", "LL", "--csv"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.startswith("bytes,time_s,algbw_bytes_per_s,busbw_bytes_per_s,algorithm,protocol,channels")
    assert row.split(",")[4:6] == ["Ring", "LL"]
    hierarchical = document(capsys, "collective", "p3.16xlarge", "--bytes", "1GiB", "--nodes", "2", "--algo", "hierarchical")["rows"]
    assert hierarchical[0]["algorithm"] == "Hierarchical"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpus", "6", "--algo", "halving_doubling"], "use 4 or 8 ranks"),
        (["--channels", "65"], "NCCL has 1 to 64"),
        (["--algo", "NVLS"], "What can run here: Tree (LL, LL128, Simple), Ring"),
        (["--algo", "Rign"], "'Rign' is not known to NCCL 2.30"),
        (["--proto", "LL256"], "write any of LL, LL128, Simple"),
        (["--algo", "hierarchical", "--op", "broadcast"], "is an all-reduce"),
        (["--nccl", "1.0"], "'1.0' is no release of NCCL 2; write one, such as 2.18"),
        (["--op", "all_reduc"], "write one of all_reduce"),
        (["--bytes", "1GiB..1MiB"], "an ascending range"),
        (["--bytes", "100"], "no unit"),
        (["--gpus", "1"], "at least 2 ranks"),
    ],
)
def test_collective_refusals(capsys: Capture, arguments: list[str], says: str) -> None:
    assert says in refusal(capsys, "collective", "p3.16xlarge", *arguments)


def test_new_hardware_from_a_paste(capsys: Capture, tmp_path: Path) -> None:
    """Two GPUs on one NVLink: the written file is a machine that runs."""
    paste = tmp_path / "topo.txt"
    paste.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV2\t0-7\nGPU1\tNV2\tX\t0-7\n")
    made = tmp_path / "box.yaml"
    assert main(["new", "--from-topo", str(paste), "-o", str(made), "--gpu", "V100-SXM2-16GB"]) == 0
    capsys.readouterr()
    assert document(capsys, "run", str(made), "resnet50")["gpus"] == 2


def test_exit_codes_of_usage() -> None:
    assert main(["run"]) == 2
    assert main(["fly"]) == 2
    assert main(["--version"]) == 0
