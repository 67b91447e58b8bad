"""A layout in the user's workload file: do messages name its place, and does what they advise run? Oracle: the advised command itself."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sim.cli import main

JOB = "extends: llama-3.1-8b\nname: my-job\ntraining: {batch: 1, stack: torchtitan-2.x, parallel: {%s}}\n"
FSDP = "shard: parameters, reshard_after_forward: true, wrap: ['layers.*']"


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What *words* print; they fail with one sentence."""
    assert main([*words]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a workload file in the current folder, not written yet."""
    monkeypatch.chdir(tmp_path)
    return Path("job.yaml")


@pytest.mark.parametrize(
    ("layout", "says", "mended"),
    [
        ("tensor: 3", "job.yaml:3:56: training.parallel.tensor: 3 ranks do not divide 32 attention heads; use 2 or 4", "tensor: 4"),
        (
            "pipeline: 5",
            "job.yaml:3:45: training.parallel: tensor 1 x context 1 x pipeline 5 = 5 ranks do not divide 8 GPUs",
            "pipeline: 4",
        ),
    ],
)
def test_a_problem_of_a_layout_has_its_place(file: Path, layout: str, says: str, mended: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(JOB % layout)
    for command in ("run", "whatif", "profile"):
        assert refusal(capsys, command, "hgx-h100", str(file)).startswith(says)
    file.write_text(JOB % f"{mended}, shard: optimizer")
    assert main(["run", "hgx-h100", str(file), "--set", "training.activation_checkpointing=blocks", "--micro-batches", "4"]) == 0


def test_a_layout_that_options_set_has_no_place(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(JOB % "shard: parameters")
    assert refusal(capsys, "run", "hgx-h100", str(file), "--tp", "3").startswith("training.parallel.tensor: 3 ranks")


@pytest.mark.parametrize(
    "command", ["run", "whatif", "profile", "spot --mean-lifetime 20h --epochs 1e-5 --trials 9", "goodput --days 1 --trials 9"]
)
def test_what_would_fit_fits_in_the_command_that_says_so(file: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``spot`` had no options of a layout, but advised them."""
    file.write_text(JOB % "shard: parameters")
    name, *options = command.split()
    said = refusal(capsys, name, "p4d.24xlarge", str(file), *options)
    advice = re.search(r"; (--.*) would fit$", said)
    assert said.startswith("my-job does not fit: each GPU needs ") and advice
    assert main([name, "p4d.24xlarge", str(file), *options, *shlex.split(advice[1])]) == 0


def test_micro_batches_that_would_fit_are_the_largest(capsys: pytest.CaptureFixture[str]) -> None:
    """The samples of a step are the same, and twice the micro-batch does not fit; a micro-batch of 1 had been advised."""
    words = ["run", "p3.16xlarge", "vgg16", "--stack", "torchtitan-2.x", "--shard", "parameters", "--batch"]
    assert main([*words, "512"]) == 2
    assert capsys.readouterr().err.endswith("; --batch 128 --micro-batches 4 would fit\n")
    assert main([*words, "256", "--micro-batches", "2"]) == 2
    assert main([*words, "128", "--micro-batches", "4"]) == 0


def test_fsdp_with_sharded_gradients_is_told_all_that_contradicts_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of the three ways out that the sentence names runs."""
    file.write_text(JOB % FSDP)
    assert refusal(capsys, "run", "hgx-h100", str(file), "--shard", "gradients") == (
        "job.yaml:3:45: training.parallel: reshard_after_forward and wrap are for sharded parameters (FSDP), but shard is gradients; write "
        "shard: parameters (with reshard_after_forward: false for FSDP's SHARD_GRAD_OP), or leave reshard_after_forward and wrap out"
    )
    for layout in (FSDP, FSDP.replace("true", "false"), "shard: gradients"):
        file.write_text(JOB % layout)
        assert main(["run", "hgx-h100", str(file), "--set", "training.activation_checkpointing=blocks"]) == 0


def test_batches_refuses_a_layout_before_memory(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(JOB % "shard: parameters")
    said = refusal(capsys, "batches", "256x-tpu-v2-v3", str(file))
    assert said.endswith("; leave the layout out, with --set training.parallel={}")


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ("--wrap layers.*", "--shard parameters"),
        ("--replicate 2", "--shard parameters"),
        ("--pp 2 --micro-batches 4 --schedule interleaved_1f1b", "--parallel virtual_stages=2"),
    ],
)
def test_a_problem_of_an_option_is_mended_by_an_option(options: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "hgx-h100", "llama-3.2-1b", *options.split()]
    assert f"; write {remedy}, or " in refusal(capsys, *command)
    assert main([*command, *remedy.split()]) == 0
