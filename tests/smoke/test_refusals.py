"""Does every wrong input get one clear sentence that names the place, the cause, and what would be right? Oracle: judged by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from calibration.cli import main as calibrate
from sim.cli import main
from tests.smoke.refused import refusal

RUN = ["run", "p3.16xlarge", "vgg16", "--fast"]
STACKS = "'python -m sim list stacks' lists all "

OPTIONS = {
    "nodes empty": (["--nodes", ""], "--nodes '': write a number such as 4"),
    "nodes zero": (["--nodes", "0"], "--nodes 0: write 1 or more"),
    "nodes a word": (["--nodes", "four"], "--nodes four: write a number such as 4"),
    "nodes down": (["--nodes", "4..1"], "--nodes 4..1: a range goes up; write 1..4"),
    "nodes to nothing": (["--nodes", "1..0"], "--nodes 1..0: a range goes up from 1 or more"),
    "evaluation of no job": (["--evaluation", "0.5"], "--evaluation: belongs to a whole job; add --epochs, --hours or --tokens as well"),
    "nodes absurd": (["--nodes", "9000000"], "--nodes 9000000: write 100,000 or less"),
    "nodes against placement": (["--nodes", "4", "--placement", "1+2"], "leave --nodes out"),
    "gpus empty": (["--gpus", ""], "--gpus '': write a number such as 4"),
    "gpus too many": (["--gpus", "9"], "--gpus 9: 1 x p3.16xlarge has 8 GPUs; write at most 8, or add --nodes 3"),
    "gpus uneven": (["--gpus", "9", "--nodes", "2"], "--gpus 9: does not divide evenly over 2 nodes"),
    "both ranges": (["--gpus", "1..8", "--nodes", "1..8"], "varies --nodes or --gpus, not both"),
    "placement empty": (["--placement", ""], "--placement '': write the GPUs of each node"),
    "placement too many": (["--placement", "9"], "--placement 8 would fit"),
    "placement a word": (["--placement", "one"], "--placement one: write the GPUs of each node"),
    "placement and gpus": (["--placement", "2", "--gpus", "2"], "write one of the two"),
    "batch too large": (["--batch", "512"], "--batch 512: batch 512 per GPU needs"),
    "batch absurd": (["--batch", "100000000000"], "--batch 100000000000: 100000000000 samples per GPU exceed the 1281167 of the data set"),
    "global batch too large": (["--global-batch", "8192"], "--global-batch 8192: batch 1024 per GPU needs"),
    "global batch uneven": (["--global-batch", "1001"], "--global-batch 1001: does not divide evenly over 8 GPUs; write 952"),
    "both batches": (["--batch", "8", "--global-batch", "64"], "write one of the two"),
    "stack unknown": (["--stack", "nope"], f"--stack nope: nope is not in the catalog (workloads/stacks/); {STACKS}"),
    "stack of torch": (["--stack", "PyTorch"], f"PyTorch is not in the catalog (workloads/stacks/); did you mean torch-2.x-ddp? {STACKS}"),
    "stack of DDP": (["--stack", "ddp"], f"ddp is not in the catalog (workloads/stacks/); did you mean torch-2.x-ddp? {STACKS}"),
    "stack of a framework": (["--stack", "tensorflow"], "; did you mean tensorflow-2.3 or tensorflow-2.3-xla?\n"),
    "stack empty": (["--stack", ""], f"--stack '': '' is not in the catalog (workloads/stacks/); {STACKS}"),
    "precision unknown": (["--precision", "fp99"], "--precision fp99: found 'fp99'; write one of fp32"),
    "precision without units": (["--precision", "bf16"], "--precision bf16: V100-SXM2-16GB has no bf16 units"),
    "set empty": (["--set", ""], "--set '': write KEY=VALUE"),
    "set without value": (["--set", "node.nic.bandwidth"], "--set node.nic.bandwidth: write KEY=VALUE"),
    "set of nothing known": (["--set", "foo=1"], "unknown key 'foo'; keys start with one of coordinated_prep, dataset"),
    "set nearly known": (["--set", "trainings.batch=1"], "did you mean 'training'?"),
    "set without unit": (["--set", "node.nic.bandwidth=100"], "no unit"),
    "set in another case": (["--set", "node.nic.bandwidth=25 gbps"], "unknown unit 'gbps' (did you mean Gbps?), expected a bandwidth"),
    "set bytes as bits": (["--set", "node.nic.bandwidth=25 GBps"], "unknown unit 'GBps' (did you mean GB/s?), expected a bandwidth"),
    "set another program's word": (["--set", "training.optimizer.name=adamax"], "found 'adamax'; did you mean adam? write one of none"),
    "precision of torch": (["--precision", "bfloat16"], "found 'bfloat16'; did you mean bf16 or amp_bf16? write one of"),
    "shard of another program": (["--shard", "zero3"], "found 'zero3'; did you mean parameters? write one of"),
    "set negative": (["--set", "training.batch=-1"], "-1 is too small; write a whole number, 1 or more"),
    "set absurd": (["--set", "node.gpu.memory=1 EB"], "is implausible; write 1 GB to 10 TB"),
    "no disk": (["--set", "node.storage=null"], "is missing, but the loader 'pytorch' reads imagenet-1k"),
    "batch beyond the data": (["--set", "dataset.samples=10"], "64 samples per GPU exceed the 10 of the data set"),
    "json and csv": (["--json", "--csv"], "write one of the two"),
    "seed negative": (["--seed", "-1"], "--seed -1: write 0 or more"),
    "name empty": (["--set", "name="], "--set name=: is empty; write a name"),
    "name blank": (["--set", "name='  '"], "is empty; write a name"),
    "name long": (["--set", f"name={'x' * 5000}"], "has 5,000 characters; write a name of at most 200"),
    "page empty": (["--html", ""], "--html '': write the path of an HTML page, or leave it out"),
    "trace empty": (["--trace="], "--trace '': write the path of a file, or leave it out"),
    "output empty": (["-o", ""], "--output '': write the path of a folder, or leave it out"),
    "placement of nothing": (
        ["--placement", "0+1"],
        "--placement 0+1: 0 ranks on node 0, but each node listed needs one or more; write --placement 1+1",
    ),
    "capability whole": (["--set", "node.gpu.compute_capability=0"], "found '0'; write major.minor, such as 8.0"),
    "output is a file": (["-o", "/dev/null/x"], "/dev/null/x: cannot be written"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_wrong_option_is_named(capsys: pytest.CaptureFixture[str], case: str) -> None:
    options, says = OPTIONS[case]
    said = refusal(capsys, *RUN, *options)
    assert says in said
    assert said.count("\n") == 1


SWEEP = ["sweep", "p3.16xlarge", "vgg16", "-o", "s.csv"]
COMMANDS = {
    "seed of a sweep": ([*SWEEP, "--vary", "batch=1..8", "--seed", "-1"], "--seed -1: write 0 or more"),
    "a value twice": ([*SWEEP, "--vary", "batch=1,1.0"], "--vary batch=1,1.0: 1 appears twice"),
    "a range to nothing": ([*SWEEP, "--vary", "batch=1..0"], "a range goes up, and without a number of values after ':' it starts above 0"),
    "a range of one": ([*SWEEP, "--vary", "batch=4..4"], "a range needs two different ends; for one value, write 4"),
    "a range down": ([*SWEEP, "--vary", "node.nic.bandwidth=4..2 Gbps"], "a range goes up; write 2..4 Gbps"),
    "nodes twice": ([*SWEEP, "--vary", "nodes=1,2", "--nodes", "1..8"], "--vary nodes: appears twice"),
    "spot machines": (["spot", "p3.2xlarge", "vgg16", "--epochs", "1", "--workers", "1000000"], "--workers 1000000: write 100,000 or less"),
    "jobs unknown": (["share", "p3.16xlarge", "nosuch"], "nosuch is not in the catalog (workloads/jobs/); known: four-on-eight-gpus"),
    "option of machines": (["new", "workload", "llama-3.2-1b", "--gpu", "A100"], "--gpu: does not apply to new workload; leave it out"),
    "option of models": (["new", "--from-topo", "topo.txt", "--batch", "2"], "--batch: does not apply to new hardware; leave it out"),
    "name of a workload": (["new", "workload", "llama-3.2-1b", "--name", ""], "--name '': write a name, or leave it out"),
    "a table there already": (["extract", "net.py:f", "-o", "mine.yaml"], "mine.yaml: already exists; write another name, or overwrite it"),
    "providers as machines": (["compare", "vgg16", "aws"], "and compare and recommend take them with --where provider=aws"),
    "providers joined": (["compare", "vgg16", "--where", "provider=aws|gcp"], "provider=aws|gcp; write provider=aws,gcp for any of them"),
    "no code": (["extract", "nosuch.py:f"], "nosuch.py: no such file"),
    "no callable": (["extract", "notes.txt"], "notes.txt: write module:callable or file.py:callable"),
    "a result": (["run", "p3.16xlarge", "run.json"], "run.json:1:1: is a result of this program; expected a workload file"),
    "a link in a circle": (["run", "loop", "vgg16"], "loop: this link leads to no file; write the path of a YAML file"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_wrong_command_is_named(case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("precious: true\n")
    (tmp_path / "run.json").write_text('{"schema": 1, "hardware": "p3.16xlarge", "workload": "vgg16", "nodes": 1}')
    (tmp_path / "loop").symlink_to("loop")
    words, says = COMMANDS[case]
    said = refusal(capsys, *words)
    assert says in said and said.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["loop", "mine.yaml", "run.json"]
    assert (tmp_path / "mine.yaml").read_text() == "precious: true\n"


@pytest.mark.parametrize(
    "options", [
        ["--precision", "nf4"], ["--set", "model.lora={rank: 16, weights: nf4}"], ["--set", "model.lora={rank: 16, load_in_4bit: true}"],
        ["--set", "model.quantization=nf4"], ["--set", "training.precision=QLoRA"],
    ],
)  # fmt: skip
def test_weights_of_four_bits_are_refused_with_what_to_do_instead(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    said = refusal(capsys, "run", "hgx-h100", "llama-3.2-1b", *options)
    assert "weights of 4 bits (NF4, QLoRA) are not simulated; write precision: bf16 and model.lora: {rank: 16}" in said
    assert said.count("\n") == 1 and "nvfp4" not in said and main(
        ["run", "hgx-h100", "llama-3.2-1b", "--fast", "--precision", "bf16", "--set", "model.lora={rank: 16}"]
    ) == 0  # fmt: skip


BOMB = b"a: &a [1, 1]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (letter, letter, letter - 1, letter - 1) for letter in range(98, 122))
FILES = {
    "binary": (b"\x00\xff\xfe", "not a text file"),
    "not YAML": (b"name: [", ":1:8: not valid YAML"),
    "a list": (b"- 1\n", "write a block of keys"),
    "empty": (b"", "file is empty; write a description"),
    "another kind": (b"extends: vgg16\n", "vgg16 is not in the catalog (hardware/); it is a workload (workloads/), not a machine"),
    "a name of two lines": (b'extends: p3.16xlarge\nname: "a\\nb"\n', ":2:1: name: has a line break"),
    "a key twice": (b"extends: p3.16xlarge\nname: a\nname: b\n", ":3:1: name: "),
    "a misspelled key": (b"extends: p3.16xlarge\nnode: {gpu_cont: 4}\n", ":2:8: node.gpu_cont: unknown key; did you mean 'gpu_count'?"),
    "a wrong unit": (b"extends: p3.16xlarge\nnode: {nic: {bandwidth: 25 GiB}}\n", ":2:14: node.nic.bandwidth: 'GiB' is a unit of size"),
    "a bare number": (b"extends: p3.16xlarge\nnode: {nic: {bandwidth: 25}}\n", ":2:14: node.nic.bandwidth: the number 25 has no unit"),
    "cut off GPUs": (
        b"extends: p3.16xlarge\nnode: {gpu_count: 9}\n",
        "disconnected: gpu_count is 9, but GPU 8 is not attached to any socket",
    ),
    "a bomb": (
        b"a: &a [1, 1]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (n, n, n - 1, n - 1) for n in range(98, 122)),
        "values once aliases are expanded",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_file_is_named_with_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str) -> None:
    content, says = FILES[case]
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    said = refusal(capsys, "run", str(path), "vgg16", "-o", str(tmp_path / "out"))
    assert str(path) in said or case == "cut off GPUs"  # the link graph stands in the file that is extended
    assert says in said
    assert os.listdir(tmp_path) == ["mine.yaml"]


def test_names_of_the_wrong_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert "vgg16 and alexnet are workloads; write a machine too, such as p3.16xlarge: run HW WL" in refusal(
        capsys, "run", "vgg16", "alexnet"
    )
    assert "did you mean gpus?" in refusal(capsys, "list", "gpu")
    assert "found 4090; did you mean rtx4090? write a block (" in refusal(capsys, "run", "hgx-h100", "vgg16", "--set", "node.gpu=4090")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.slurm", "#!/bin/bash\n#SBATCH -N 2\ntorchrun train.py\n"),
        ("run.sh", "torchrun train.py\n"),
        ("train.toml", "[model]\nname = 'llama3'\n"),
        ("ds.json", '{"zero_optimization": {"stage": 3}}'),
    ],
)
def test_a_launch_file_is_no_workload(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    said = refusal(capsys, "run", "hgx-h100", str(tmp_path / name))
    assert f"{name}: is a launch file; create a workload from it: python -m sim new workload " in said
    (tmp_path / name).write_text("")
    assert f"{name}: is empty" in refusal(capsys, "new", "workload", str(tmp_path / name), "-o", str(tmp_path / "mine.yaml")) or name in (
        "train.toml",
        "ds.json",
    )


def test_an_example_follows_the_help_and_errors_once(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert "".join(capsys.readouterr()).count("Examples:") == 1
    assert main(["run"]) == 2
    assert "".join(capsys.readouterr()).count("Examples:") == 1


def test_a_value_behind_an_option_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, *RUN, "--json", "out.json")
    assert "--json out.json: --json takes no value; it prints to stdout; to write a file, add > FILE after the command" in said
    assert "--exact 3: --exact takes no value; leave the value out" in refusal(capsys, *RUN, "--exact", "3")


def test_what_diff_compares_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "diff", "p3.16xlarge", "p3.8xlarge")
    assert "p3.16xlarge: no such file; diff compares the documents of two runs: write one with: python -m sim run HW WL --json" in said


def test_a_machine_is_found_by_its_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean bm.gpu.mi300x.8, mi300x-platform or nd96isr_mi300x_v5?" in refusal(capsys, "run", "hgx-mi300x", "vgg16")
    assert "did you mean hgx-h100, " in refusal(capsys, "run", "hgy-h100", "vgg16")


def test_more_micro_batches_than_a_step_can_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Each would be simulated; whether an option gives their number or the global batch does."""
    said = refusal(capsys, "run", "hgx-h100", "llama-3.1-8b", "--shard", "parameters", "--global-batch", "80000000000")
    assert "10000000000 micro-batches per step are implausible; a step has at most 100,000" in said


JOBS = {
    "no jobs": ("jobs: []\n", ":1:1: jobs: is empty"),
    "a misspelled key": ("jobs:\n  - {workload: vgg16, placements: '4'}\n", ":2:23: jobs.0.placements: unknown key; did you mean 'place"),
    "an unknown workload": ("jobs:\n  - {workload: vgg61}\n", ":2:6: jobs.0.workload: vgg61 is not in the catalog (workloads/)"),
    "both": ("jobs:\n  - {workload: vgg16, placement: '1', gpus: [0]}\n", ":2:39: jobs.0.gpus: cannot be combined with 'placement'"),
    "GPUs twice": ("jobs:\n  - {workload: vgg16, gpus: [1]}\n  - {workload: vgg16, gpus: [1]}\n", "jobs.1: GPU 1 of node 0 belongs to an"),
    "no such GPU": ("jobs:\n  - {workload: vgg16, gpus: [8]}\n", "jobs.0: there is no GPU 8 on node 0; it has GPUs 0 to 7"),
    "none free": ("jobs:\n  - {workload: vgg16}\n  - {workload: vgg16, placement: '1'}\n", "needs 1 free GPU on node 0, which has 0"),
    "no pattern": ("jobs:\n  - {workload: vgg16, placement: all}\n", "jobs.0: placement all: write the GPUs of each node"),
    "memory": (
        "jobs:\n  - {workload: {extends: vgg16, training: {batch: 512}}}\n",
        ":2:5: jobs.0: training.batch: batch 512 per GPU needs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JOBS)
def test_a_wrong_jobs_file_is_named_with_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str) -> None:
    content, says = JOBS[case]
    path = tmp_path / "jobs.yaml"
    path.write_text(content)
    said = refusal(capsys, "run", "p3.16xlarge", str(path))
    assert str(path) in said
    assert says in said


def test_options_that_a_jobs_file_says_itself(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "run", "p3.16xlarge", "resnet18-and-vgg16", "--batch", "8")
    assert "--batch 8: a jobs file sets this for each job" in said


@pytest.mark.parametrize(
    ("program", "words", "option"),
    [
        (main, "run p3.2xlarge vgg16 --batch 128 --batch 64", "--batch: appears twice"),
        (main, "run p3.2xlarge vgg16 --batch=1 --fast --batch 2 --batch 3", "--batch: appears 3 times"),
        (main, "goodput p3.2xlarge vgg16 --days 3 --repair --no-repair", "--repair: appears twice"),
        (main, "sweep p3.2xlarge vgg16 -o a.csv --output b.csv --vary batch=1,2", "--output: appears twice"),
        (calibrate, "fit a.json -o b.yaml -o c.yaml", "--output: appears twice"),
    ],
)
def test_an_option_with_one_value_appears_once(
    program: Callable[[list[str]], int], words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last value would win silently; switches and options that take several values may be repeated."""
    assert program(words.split()) == 2
    assert capsys.readouterr().err == f"{option}, but takes one value; write it once\n"


def test_switches_and_lists_may_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    command = "run p3.2xlarge alexnet --fast --fast --json --set training.batch=8 --set input.loader=synthetic"
    assert main(command.split()) == 0
    assert json.loads(capsys.readouterr().out)["batch_per_gpu"] == 8


def test_numbers_of_nodes_that_would_repeat_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """What is placed by hand stays where it is, so a scaling table would have the same row again and again."""
    message = refusal(capsys, "run", "p3.16xlarge", "resnet18-and-vgg16", "--fast", "--nodes", "1..4")
    assert "--nodes: the placement fixes the jobs' nodes" in message


def test_a_search_that_finds_nothing_is_no_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes: 1 ran, but nothing qualifies; 2 bad input, such as a single job that does not fit (DESIGN, contracts)."""
    large = ["hgx-h100", "llama-3.1-70b"]
    table = ["-o", str(tmp_path / "table.csv"), "--jobs", "1"]
    nothing = [
        ["plan", *large, "--nodes", "1", "--global-batch", "16"],
        ["plan", "hgx-h100", "llama-3.2-1b", "--max-memory", "1KiB"],
        ["run", *large, "--nodes", "1..2"],
        ["sweep", *large, "--vary", "batch=1,2", *table],
        ["recommend", "alexnet", "p3.2xlarge", "--epochs", "1", "--budget-usd", "0.0001", "--jobs", "1"],
    ]
    assert [(words[0], main(words)) for words in nothing] == [(words[0], 1) for words in nothing]
    said = capsys.readouterr().err
    assert "--nodes 2 would fit" in said and "on 8 H100-SXM5-80GB (1 KiB each)" in said
    bad = [["plan", *large, "--fix", "tp=3"], ["run", *large], ["whatif", *large], ["goodput", *large, "--tokens", "1T"]]
    assert [(words[0], main(words)) for words in bad] == [(words[0], 2) for words in bad]
