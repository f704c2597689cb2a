"""For all tests: examples that hypothesis makes have no limit in time, since a busy machine is no defect."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
