"""Does a description make sense as a whole? Checks beyond single keys: ranges, the link graph, and whether a job fits its machine.

`check_run` raises all problems of a run at once and returns warnings. `check_hardware`, `check_workload` and `check_job` return
problems, each a sentence with its place in the file, and `require` raises them. `validate` checks files, as `sim check` does.
"""

from __future__ import annotations

from sim.check.checks import check_hardware, check_jobs, check_part, check_workload, require
from sim.check.estimates import Estimate, count_estimates
from sim.check.files import Verdict, validate, validate_path
from sim.check.job import (
    check_job,
    check_run,
    domain_warnings,
    job_warnings,
    layout_stack_warnings,
    precision_problems,
    prep_warnings,
    recipe_warnings,
    user_part_warnings,
)
from sim.check.price_copies import copied_prices

__all__ = [
    "Estimate",
    "Verdict",
    "check_hardware",
    "check_job",
    "check_jobs",
    "check_part",
    "check_run",
    "check_workload",
    "copied_prices",
    "count_estimates",
    "domain_warnings",
    "job_warnings",
    "layout_stack_warnings",
    "precision_problems",
    "prep_warnings",
    "recipe_warnings",
    "require",
    "user_part_warnings",
    "validate",
    "validate_path",
]
