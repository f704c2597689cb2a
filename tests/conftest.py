"""For all tests: examples that hypothesis makes have no limit in time, since a busy machine is no defect, and are the
same each time: what fails fails again. `PARTAGE_EXAMPLES=random` looks for new ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("PARTAGE_EXAMPLES") != "random",
)
settings.load_profile("tests")
