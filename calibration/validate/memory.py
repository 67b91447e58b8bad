"""Which measured runs are predicted not to fit into GPU memory? Rows that ran are evidence, so they are scored, with a note.

The estimate is that of `run`, which would reject these batches: the memory of rows that ran is 4% and 9% above the GPU's in the only two
jobs of the published rows, so a row that is far above it is more likely a mistake in the row, such as the batch of all GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calibration.questions import RunQuestion
from sim.analysis.memory import gpu_memory
from sim.units import pluralized, show

MOST_ROWS: Final = 5
"""Most rows that the note lists; the rest are counted."""


def without_room(questions: Sequence[RunQuestion]) -> list[str]:
    """Return a note on those *questions* whose step is predicted to need more than the memory of their GPU; none if all fit."""
    needs = [(row, gpu_memory(row.workload, row.gpu, ranks=row.job.ranks).total) for row in questions]
    larger = [(row, nbytes) for row, nbytes in needs if nbytes > row.gpu.memory]
    if not larger:
        return []
    listed = [
        f"{row.record.where} (batch {row.batch} per GPU needs {show(nbytes, 'binary size')}, {row.gpu.name} has "
        f"{show(row.gpu.memory, 'binary size')})"
        for row, nbytes in larger[:MOST_ROWS]
    ]
    more = f" and {len(larger) - MOST_ROWS:,} more" if len(larger) > MOST_ROWS else ""
    are = "is" if len(larger) == 1 else "are"
    return [
        f"{len(larger):,} of {pluralized(len(questions), 'row')} {are} predicted not to fit into GPU memory, but scored, because a "
        f"measured run did fit: {', '.join(listed)}{more}; check the batch, which is per GPU"
    ]
