"""A rack whose NVLink spans 72 GPUs is one node: exchanges inside it never touch a NIC."""

from __future__ import annotations

from sim.layout_result import simulate_layout


def test_gradients_of_64_gpus_of_a_rack_stay_on_nvlink() -> None:
    inside = simulate_layout("gb200-nvl72", "llama-3.2-1b", {"shard": "parameters"}, gpus=64)
    links = inside.run.played.log.capacity
    assert any("nvs" in link for link in links)
    assert not any("nic" in link for link in links)


def test_two_racks_meet_over_their_nics() -> None:
    between = simulate_layout("gb200-nvl72", "llama-3.2-1b", {"shard": "parameters"}, nodes=2, gpus=128)
    assert any("nic" in link for link in between.run.played.log.capacity)
