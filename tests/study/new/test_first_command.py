"""Which machine does the next command name? Oracle: the cheapest in the list of prices with as many of the GPU that the script asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.study.new.first_command import NextMachine, first_command, machine_for, machine_with


@pytest.mark.parametrize(
    ("gpu", "gpus", "machine"),
    [
        ("a10g", 1, "g5.xlarge"),
        ("t4", 1, "g4dn.xlarge"),
        ("nvidia_l4", 1, "g2-standard-4"),
        ("rtx_pro_6000", 4, "g7e.24xlarge"),  # a file that extends another, which names the GPU
        ("tesla_a100", 16, "a2-megagpu-16g"),
        ("gb200", 4, "coreweave-gb200-nvl72"),  # gb200-nvl72 has 72
    ],
)
def test_the_cheapest_machine_with_as_many_gpus_is_named(gpu: str, gpus: int, machine: str) -> None:
    assert machine_with(gpu, gpus) == NextMachine(machine, gpus)


def test_machines_without_a_provider_come_first_and_larger_ones_last() -> None:
    assert machine_with("h100", 8) == NextMachine("hgx-h100", 8)
    assert machine_with("gb200", None) == NextMachine("gb200-nvl72", 72)
    assert machine_with("l40s", 2) == NextMachine("g6e.12xlarge", 4)
    assert machine_with("a100", 17) is None


def test_data_types_that_hopper_lacks_need_blackwell() -> None:
    assert machine_for({"precision": "fp8", "fp8_recipe": "mxfp8"}) == machine_for({"precision": "nvfp4"}) == NextMachine("hgx-b200", 8)
    for training in ({"precision": "bf16"}, {"precision": "fp8"}, {"precision": "fp8", "fp8_recipe": "blockwise"}):
        assert machine_for(training) == NextMachine("hgx-h100", 8)


def test_a_search_is_suggested_on_enough_nodes_of_the_machine() -> None:
    """Oracle: 16 bytes for each of 8.03 billion parameters, in half of 4 x 22.4 GiB a node: 2.67 nodes, or the next power of two."""
    command = first_command("llama-3.1-8b", "own.yaml", gpus=2, machine=NextMachine("g5.12xlarge", 4))
    assert command == "python -m sim plan g5.12xlarge own.yaml --nodes 4"


def test_a_layout_gets_more_nodes_before_other_tensor_ranks(tmp_path: Path) -> None:
    """Oracle: 16 bytes for each of 32.8 billion parameters are 61 GiB on each of 8 GPUs, and 15 GiB on each of 32."""
    own = tmp_path / "own.yaml"
    training = "training: {batch: 1, precision: bf16, stack: torchtitan-2.x, parallel: {tensor: 2, shard: parameters}}"
    own.write_text(f"name: own\nmodel: {{extends: qwen3-32b, sequence: 8192}}\n{training}\n")
    command = first_command(str(own), "own.yaml")
    assert "--nodes " in command and "--tp" not in command
