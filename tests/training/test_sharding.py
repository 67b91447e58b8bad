"""Which server keeps what? Oracles: TensorFlow's rule by hand, conservation, and CM-DARE's models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.spec.library import load_part, load_workload
from sim.spec.model import Model
from sim.spec.sections import with_fields
from sim.spec.stack import ServerExchange
from sim.spec.workload import Workload
from sim.training.sharding import owners, shards


def workload(name: str, **servers: object) -> Workload:
    loaded = load_workload(name, ["training.stack=tf-parameter-server"]).spec
    exchange = loaded.training.stack.exchange
    assert isinstance(exchange, ServerExchange)
    stack = with_fields(loaded.training.stack, servers=exchange.servers.model_copy(update=servers))
    return loaded.with_training(stack=stack)


def dealt(name: str, **servers: object) -> list[tuple[float, float]]:
    """Bytes and updates of each server, all buckets together."""
    loaded = workload(name, **servers)
    exchange = loaded.training.stack.exchange
    assert isinstance(exchange, ServerExchange)
    every = zip(*shards(loaded, exchange.servers), strict=True)
    return [(sum(part.nbytes for part in parts), sum(part.updates for part in parts)) for parts in every]


def test_variables_are_dealt_in_the_order_of_their_creation() -> None:
    """ResNet-15 begins with a convolution without bias (1 variable), a norm (2 trained, 2 moving) and a ReLU."""
    first = owners(load_part(Model, "resnet15-cifar"), 3)
    assert first[:4] == [(0,), (1, 2), (), (2, 0)]  # the moving statistics took turns 0 and 1


def test_a_model_without_moving_statistics_skips_nobody() -> None:
    assert [server for layer in owners(load_part(Model, "vgg11"), 2) for server in layer] == [0, 1] * 11


@pytest.mark.parametrize(("name", "share"), [("shake-shake-big", 0.99), ("shake-shake-small", 0.99), ("resnet32-cifar", 0.51)])
def test_a_convolution_with_bias_and_norm_gives_every_kernel_to_one_of_two_servers(name: str, share: float) -> None:
    """Six variables each: all kernels have the same parity. Without a bias there are five, and kernels alternate."""
    (one, _), (two, _) = dealt(name, count=2)
    assert max(one, two) / (one + two) == pytest.approx(share, abs=0.012)


@given(st.integers(1, 9), st.sampled_from(["variables", "chunks"]), st.sampled_from(["resnet15-cifar", "alexnet"]))
def test_every_byte_goes_to_one_server(count: int, sharding: str, name: str) -> None:
    parameters = load_workload(name).spec.model.parameters
    shares = dealt(name, count=count, sharding=sharding)
    assert len(shares) == count
    assert sum(nbytes for nbytes, _ in shares) == pytest.approx(4 * parameters)


def test_chunks_are_dealt_evenly_and_counted_whole() -> None:
    """2,775,272 bytes are 84.7 chunks of 32 KiB."""
    assert dealt("resnet15-cifar", count=4, sharding="chunks") == [(693_818.0, 85 / 4)] * 4
