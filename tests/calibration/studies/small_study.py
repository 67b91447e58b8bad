"""A small part of the Stash study, made once for all tests of a process: AlexNet on P3, and four networks of the micro study."""

from __future__ import annotations

from functools import cache

import pytest

from calibration.studies.stash2022 import study as module
from calibration.studies.stash2022.study import P3, InstanceFamily, StashStudy, stash2022

SMALL_P3 = InstanceFamily(
    "P3", {name: threads for name, threads in P3.machines.items() if name != "p3.8xlarge-mixed-quad"}, P3.twins, {"alexnet": (32, 128)}
)
SMALL_MICRO = ("resnet10", "resnet10_nobn", "resnet34", "vgg11")


@cache
def small_study() -> StashStudy:
    """The study of `SMALL_P3` and `SMALL_MICRO`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("FAMILIES", (SMALL_P3,)), ("P3", SMALL_P3), ("MICRO_MODELS", SMALL_MICRO)):
            patch.setattr(module, name, value)
        return stash2022(processes=1)
