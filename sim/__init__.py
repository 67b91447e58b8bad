"""Where does the time of a training job go? Predict it from a hardware and a workload description.

Nothing is imported here, so that ``import sim`` costs nothing; see README.md for a reading order of the source.
"""

__version__ = "0.1.0"
