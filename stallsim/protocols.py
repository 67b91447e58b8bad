"""What can users extend? The protocols of extensions, each with a page in docs/develop; a type checker checks yours against them.

`Queue` is a base class for loaders.

>>> from stallsim.protocols import PipelineSchedule
"""

from __future__ import annotations

from sim.analysis.failure_law import FailureLaw as FailureLaw
from sim.commands.app import Study as Study
from sim.parallel.lower.own_exchange import ExchangeStrategy as ExchangeStrategy
from sim.parallel.own_schedule import PipelineSchedule as PipelineSchedule
from sim.spec.catalog import StackFolder as StackFolder
from sim.spec.own_prices import PriceSource as PriceSource
from sim.training.collectives.price.own import CollectiveAlgorithm as CollectiveAlgorithm
from sim.training.input_pipeline import Queue as Queue
from sim.training.own_loader import Loader as Loader

__all__ = [
    "CollectiveAlgorithm", "ExchangeStrategy", "FailureLaw", "Loader", "PipelineSchedule", "PriceSource", "Queue", "StackFolder", "Study",
]  # fmt: skip
