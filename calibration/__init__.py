"""Measures machines, fits parameters and validates predictions; imports `sim`, never the reverse."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
RECORDS: Final = FOLDER / "records"
"""Committed measurements."""
HARDWARE: Final = FOLDER / "hardware"
"""Descriptions of machines that records come from, searched before the catalog."""
