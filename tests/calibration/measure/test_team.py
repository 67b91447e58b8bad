"""Do ranks answer together, and is one that fails named? Oracles: what each returns, and ranks that end on purpose."""

from __future__ import annotations

import os
import signal

import pytest

from calibration.measure.team import SpawnedTeam, TeamRank, attempt, results
from sim.spec.yaml import SpecError

pytestmark = pytest.mark.needs("torch")


def total(rank: TeamRank, value: int) -> int:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([value + rank.rank])
    dist.all_reduce(tensor)
    return int(tensor.item())


def second_dies(rank: TeamRank) -> None:
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def second_dies_while_the_first_waits(rank: TeamRank) -> int:
    """The first says that its connection broke; it is the second that is to be named."""
    second_dies(rank)
    return total(rank, 1)


def second_fails(rank: TeamRank) -> int:
    if rank.rank == 1:
        raise ValueError("no memory")
    return 1


@pytest.mark.nightly
def test_ranks_answer_together_and_a_dead_one_is_named() -> None:
    """Sum of value + rank over two ranks: 2 value + 1; a team that lost a rank starts anew."""
    team = SpawnedTeam(2, "cpu", 1)
    try:
        assert team.ask(total, 10) == [21, 21]
        with pytest.raises(SpecError, match="rank 1 of 2 was killed by signal 9"):
            team.ask(second_dies)
        with pytest.raises(SpecError, match="rank 1 of 2 was killed by signal 9"):
            team.ask(second_dies_while_the_first_waits)
        with pytest.raises(SpecError, match="rank 1 of 2: ValueError: no memory"):
            team.ask(second_fails)
        assert team.ask(total, 1) == [3, 3]
    finally:
        team.close()


def test_the_first_rank_that_failed_is_told() -> None:
    here = TeamRank(0, 2, "cpu", 1)
    assert results([attempt(second_fails, here, ())]) == [1]
    with pytest.raises(SpecError, match="rank 1 of 2: ValueError: no memory"):
        results([(True, 1), attempt(second_fails, here._replace(rank=1), ())])
