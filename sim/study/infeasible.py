"""What is raised where a job is well described, but cannot run on so many nodes and GPUs?"""

from __future__ import annotations

from collections.abc import Sequence

from sim.spec.yaml import SpecError
from sim.study.memory_fit import Shortage


class Infeasible(SpecError):
    """Raised for a valid question that cannot run on this number of nodes and GPUs; *brief* is the reason for a cell of a table.

    With *shortage*, data parallelism needs more memory than the first kind of GPU that is too small has.
    """

    def __init__(
        self,
        problems: Sequence[str],
        nodes: int,
        gpus: int,
        brief: str = "",
        nothing_qualifies: bool = False,
        shortage: Shortage | None = None,
    ) -> None:
        super().__init__(list(problems), nothing_qualifies)
        self.nodes = nodes
        self.gpus = gpus
        self.brief = brief or self.problems[0]
        self.shortage = shortage
