"""Can a new user get from a model to a decision in at most four commands and one file? And are mistakes reported clearly?

The commands run as typed, in an empty folder; each must succeed without a word that begins with "error" or names an exception.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sim.cli import main
from tests.shown import ROOT

UNET = '''
"""A small U-Net for segmentation."""

import torch
from torch import nn


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, width=16, classes=21):
        super().__init__()
        sizes = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *sizes], sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(sizes, sizes[1:]))
        self.merge = nn.ModuleList(block(2 * a, a) for a in sizes[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        kept = []
        for number, step in enumerate(self.down):
            x = step(x if number == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x = self.merge[level](torch.cat([kept[level], self.up[level](x)], dim=1))
        return self.head(x)
'''
JOB = """name: segmentation
model: unet.yaml
dataset: {extends: imagenet-1k, samples: 20000}
training: {batch: 16, precision: amp_fp16, optimizer: {name: adam}}
"""
CONFIG = """{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
 "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
 "hidden_act": "silu", "tie_word_embeddings": true, "torch_dtype": "bfloat16"}
"""


def typed(capsys: pytest.CaptureFixture[str], *commands: str) -> list[str]:
    """What each of *commands* prints; all succeed, and there are at most four."""
    assert len(commands) <= 4
    said = []
    for command in commands:
        code = main(command.split())
        shown = capsys.readouterr()
        assert code == 0, f"{command}: {shown.err}"
        assert not re.search(r"\b(internal error|Traceback|\w+Error)\b", shown.out + shown.err), command
        said.append(shown.out + shown.err)
    return said


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.needs("torch")
def test_an_own_unet_in_three_commands_and_one_file(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "unet.py").write_text(UNET)  # theirs before
    (desk / "job.yaml").write_text(JOB)  # the one file that is written by hand
    extracted, run, chosen = typed(
        capsys,
        "extract unet.py:UNet --input 3x64x64 -o unet.yaml",
        "run p3.2xlarge job.yaml",
        "recommend job.yaml p3.2xlarge p3.8xlarge g5.xlarge --nodes 1 --epochs 100 --budget-hours 24",
    )
    assert (
        "python -m sim run p4d.24xlarge unet.yaml" in extracted
        and "write a workload that uses it" in extracted
        and "model: unet.yaml" in extracted
    )
    assert re.search(r"^  step .+ samples/s$", run, re.MULTILINE) and "expected error" in run
    assert chosen.startswith("Rent 1 x ")


@pytest.mark.needs("torch")
def test_from_a_fresh_clone_to_a_decision_for_an_own_unet_in_four_commands_and_no_file(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them install: README's `make run`, which CI runs in a clone, and the one that the program suggests where torch is missing."""
    (desk / "unet.py").write_text(UNET)  # theirs before
    describe = "new workload unet.py:UNet --input 3x64x64 -o mine.yaml"
    with monkeypatch.context() as without_torch:
        for module in [name for name in sys.modules if name.startswith("sim.extract.")]:  # imported by other tests, with torch
            without_torch.delitem(sys.modules, module)
        without_torch.setitem(sys.modules, "torch", None)
        assert main(describe.split()) == 2
    suggestion = re.search(r"needs torch, which is not installed: (pip install torch)$", capsys.readouterr().err.strip())
    assert suggestion
    assert re.search(r"^make run +#", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    commands = [describe, "recommend mine.yaml p3.2xlarge p3.8xlarge g5.xlarge --nodes 1 --epochs 10 --budget-hours 24"]
    assert len(["make run", suggestion[1], *commands]) <= 4
    described, chosen = typed(capsys, *commands)
    assert "wrote mine.yaml: 238,501 parameters" in described and chosen.startswith("Rent 1 x ")
    assert {path.name for path in desk.iterdir()} - {"__pycache__"} == {"unet.py", "mine.yaml"}


@pytest.mark.needs("torch")
def test_commands_suggested_for_files_with_spaces_run_as_they_are_shown(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the shell's own splitting of what is suggested."""
    (desk / "my net.py").write_text(UNET)
    (desk / "my config.json").write_text(CONFIG)
    suggested = []
    for words in (["extract", "my net.py:UNet", "--input", "3x64x64", "-o", "my table.yaml"], ["new", "workload", "my config.json"]):
        assert main(words) == 0
        suggested += re.findall(r"^next: python -m sim (.+)$", capsys.readouterr().err, re.MULTILINE)
    for file in ("my net.py", "my config.json"):
        assert main(["run", "p3.2xlarge", file]) == 2
        suggested += re.findall(r"python -m sim (.+)$", capsys.readouterr().err, re.MULTILINE)
    assert len(suggested) == 4
    for command in suggested:
        words = shlex.split(command.replace(":FUNCTION", ":UNet").replace("224x224", "64x64").replace("mine.yaml", "other.yaml"))
        assert main(words) == 0, command


def test_a_configuration_of_hugging_face_in_two_commands(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "config.json").write_text(CONFIG)
    made, chosen, compared = typed(
        capsys,
        "new workload config.json -o mine.yaml",
        "recommend mine.yaml p4d.24xlarge --nodes 1 --tokens 10B --budget-hours 720",
        "compare mine.yaml p4d.24xlarge",
    )
    assert "1.24 billion parameters" in made and "name: mine\n" in (desk / "mine.yaml").read_text()
    assert chosen.startswith("Rent 1 x p4d.24xlarge") and "10 billion tokens of mine in" in chosen
    assert re.search(r"headroom: the time budget is \d+ times what the job needs", chosen)
    assert compared.startswith("mine: 1 machine\n") and not re.search(r"\de\+\d", compared + chosen)


def test_many_machines_of_a_note_are_counted_and_a_price_given_by_hand_has_no_region(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (chosen,) = typed(capsys, "recommend alexnet --where provider=gcp --budget-usd 50 --nodes 1 --batch 8")
    notes = [line for line in chosen.split("\n") if "interruption data" in line]
    assert notes and all(re.search(r", [\w.-]+ and \d+ more: no interruption data", note) for note in notes)
    assert main(["recommend", "alexnet", "hgx-h100", "--budget-usd", "50", "--nodes", "1", "--set", "price.on_demand=10 USD/h"]) == 0
    assert "  - Prices on demand: hgx-h100; --set price.on_demand" in capsys.readouterr().out


WRONG = {
    "run H100 vgg16": "it is a GPU",
    "run 8xH100 vgg16": "--where gpu=H100' lists the machines with it",
    "run H100x8 vgg16": "--where gpu=H100' lists the machines with it",
    "run Lambda vgg16": "it is a provider: 'python -m sim list hardware --where provider=lambda' lists its machines",
    "run p3.2xlarge unet.py": "python -m sim extract unet.py:FUNCTION",
    "run p3.2xlarge config.json": "python -m sim new workload config.json -o mine.yaml",
    "run p3.2xlarge my-8b.json": "python -m sim new workload my-8b.json -o mine.yaml",
    "run p3.2xlarge .": ". is a folder",
    "run p3.2xlarge empty.yaml": "file is empty; write a description",
    "run table.yaml vgg16": "expected a hardware file",
    "run p3.2xlarge table.yaml": "table.yaml",
    "run p3.2xlarge folder": "folder is a folder",
    "run hgx-h100 llama-3.1-70b": "workloads/llama-3.1-70b.yaml:1:1: training.batch",
    "extract unet.py:build --input 3x64x64": "it has block, UNet",
    "run p3.2xlarge missing.yaml": "missing.yaml: no such file",
    "run p3.2xlarge vgg61": "did you mean vgg",
    "run p3.2xlarge vgg16 --stack fsdp": "use --shard parameters",
    "run p3.2xlarge vgg16 --batch many": "write the samples per GPU",
    "run p3.2xlarge vgg16 --nodes 0": "write 1 or more",
    "run p3.2xlarge vgg16 --nodes 1..1000000000": "",
    "run p3.2xlarge vgg16 --set training.bach=3": "did you mean 'batch'",
    "run p3.2xlarge vgg16 --bach 3": "--batch",
    "run p3.2xlarge": "Missing argument 'WL'",
    "recommennd vgg16": "Did you mean 'recommend'",
    "recommend vgg16": "--budget-hours or --budget-usd",
    "recommend vgg16 p3.2xlrge --budget-hours 3": "did you mean p3.2xlarge",
    "recommend vgg16 --budget-usd ten": "--budget-usd ten: write a number",
    "extract unet.py --input 3x64x64": "such as unet.py:UNet",
    "new workload table.yaml": "is a layer table",
    "new workload job.yaml": "is already a workload",
    "new workload nothing.json": "no such file or folder",
    "new": "python -m sim new workload config.json -o mine.yaml",
    "new --from-topo nothing.txt -o x.yaml": "nothing.txt: no such file",
    "new workload /dev/zero": "/dev/zero: is not a regular file",
    "new workload empty.json": "empty.json: model_type, the family of the layers, is missing; docs/how-to/my-model.md lists all",
    "diff a.json b.json": "a.json: no such file",
    "compare resnet50 --sort price": "--sort price: write one of time",
    "list hardwares": "",
    "extract config.json": "config.json: is not a Python file; to turn a decoder's configuration into a workload: python -m sim new",
    "extract table.yaml --input 3x4x4": "runs directly: python -m sim run p4d.24xlarge table.yaml",
    "new --from-topo unet.py": "--from-topo unet.py: set the file for the description, such as -o unet.yaml",
    "sweep p3.2xlarge alexnet --vary batch=8,16 -o folder": "folder: is a folder; expected a file, such as folder/result.csv",
    "new workload config.json -o folder": "folder: is a folder; expected a file, such as folder/result.yaml",
    "new workload meta-llama/Llama-3.1-9B": "meta-llama/Llama-3.1-9B: no such file or folder; to look it up on the hub",
    "run p3.2xlarge tble.yaml": "tble.yaml: no such file; did you mean table.yaml?",
    "run p3.2xlarge typo.yaml": "typo.yaml:2:1: model: tble.yaml: no such file; did you mean table.yaml?\n",
    "run p3.2xlarge nameless.yaml": "nameless.yaml:1:23: model.transformer.layers: 'two' is not a whole number",
    "run p3.2xlarge word.yaml": "training.optimizer: found 'adam'; write a block, such as {name: adam}",
    "recommend vgg16 p3.2xlarge --budget-hours inf": "--budget-hours inf: write a finite number",
    "run p3.2xlarge size.yaml": "size.yaml:2:12: training.batch_size: unknown key; did you mean 'batch'?",
    "run p3.2xlarge loop.yaml": "loop.yaml: this link leads to no file",
    "extract built.py:net --input 3x64x64": "built.py:net: is a model, not code that builds it; name its class, such as built.py:UNet",
    "goodput hgx-h100 gpt2-xl --days 9 --price 16": "here, use --set price.on_demand='10 USD/h'",
    "run hgx-h100 llama-3.1-8b --lora-rank 16": "here, use --set model.lora.rank=N",
    "new workload axolotl.yaml": "YAML files of other programs are not read, but their command lines are",
    "run p3.2xlarge vgg16 --gpus 2": "1 x p3.2xlarge has 1 GPU; write at most 1, or add --nodes 2",
    "run gpu_1x_h100_sxm5 llama-3.1-8b --tp 2": "= 2 ranks do not divide 1 GPU; use 2 GPUs",
    "run fewer.yaml vgg16": "places GPUs up to 7, but gpu_count is 4; to use fewer GPUs of a node keep gpu_count and run with --gpus N",
    "sweep p3.2xlarge vgg16 --batch 16,32 -o grid.csv": "write a whole number; for several values, write --vary batch=16,32",
}
"""What newcomers typed, and what the answer says."""


def test_wrong_inputs_are_answered_in_one_sentence(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "unet.py": UNET,
        "config.json": CONFIG,
        "my-8b.json": CONFIG,
        "job.yaml": JOB,
        "empty.yaml": "",
        "empty.json": "{}",
        "table.yaml": "name: x\nparameters: 1\nlayers: []\n",
        "typo.yaml": "name: x\nmodel: tble.yaml\ntraining: {batch: 1}\n",
        "nameless.yaml": "model: {transformer: {layers: two, hidden: 64, heads: 2, ffn: 128, vocab: 256}, sequence: 8}\n",
        "fewer.yaml": "extends: hgx-h100\nname: fewer\nnode: {gpu_count: 4}\n",
        "size.yaml": "extends: vgg16\ntraining: {batch_size: 8}\n",
        "axolotl.yaml": "base_model: Qwen/Qwen2.5-7B\nadapter: qlora\nlora_r: 16\n",
        "built.py": f"{UNET}\n\nnet = UNet()\n",
        "word.yaml": "extends: vgg16\ntraining: {optimizer: adam}\n",
    }
    for name, text in files.items():
        (desk / name).write_text(text)
    (desk / "folder").mkdir()
    (desk / "loop.yaml").symlink_to("loop.yaml")
    wrong = []
    for command, answer in WRONG.items():
        code = main(command.split())
        shown = capsys.readouterr()
        if code != 2 or shown.out or answer not in shown.err or "Traceback" in shown.err or "internal error" in shown.err:
            wrong.append(f"{command}: {code}: {shown.out[:100]}{shown.err[:300]}")
    assert not wrong, "\n".join(wrong)
    assert {path.name for path in desk.iterdir()} - {"__pycache__"} == {
        *files,
        "folder",
        "loop.yaml",
    }  # which Python leaves beside an imported file


def test_a_python_without_the_packages_gets_a_sentence() -> None:
    """As after `make run` in a terminal that was not told of .venv: -S hides all that is installed."""
    done = subprocess.run([sys.executable, "-S", "-m", "sim", "list"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "stallsim is not installed for it; run '. .venv/bin/activate'" in done.stderr


def test_written_files_tell_editors_their_schema(desk: Path) -> None:
    """Oracle: the YAML language server's line, and the file that `sim schema` writes."""
    (desk / "config.json").write_text(CONFIG)
    (desk / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNODE\nGPU1\tNODE\t X \n")
    assert main(["new", "workload", "config.json", "-o", "mine.yaml"]) == 0
    assert main(["new", "--from-topo", "topo.txt", "--gpu", "A10", "-o", "box.yaml"]) == 0
    assert main(["schema", "-o", "schemas"]) == 0
    for file in ("mine.yaml", "box.yaml"):
        first = (desk / file).read_text(encoding="utf-8").splitlines()[0]
        schema = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
        assert schema and (desk / schema[1]).is_file(), first
