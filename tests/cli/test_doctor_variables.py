"""We test these aspects of `partage doctor`: a variable that cannot be read, names nothing or has no effect is named,
outside of a share and under one; one that has its effect is not.

That every kind of finding has a test is tested in `test_doctor.py`.
"""

from __future__ import annotations

import pytest

from tests.cli.examined import inside


@pytest.mark.parametrize(
    ("variables", "kind", "words"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4Gi"}, "variable-without-effect", "not preloaded"),
        ({"CUDA_DEVICE_MEMORY_LIMIT_1": "4g"}, "variable-without-effect", "not preloaded"),
        ({"CUDA_DISABLE_CONTROL": "1"}, "variable-without-effect", "not preloaded"),
        ({"CUDA_DEVICE_SM_LIMIT": "30"}, "variable-without-effect", "run --cores"),
        ({"GPU_CORE_UTILIZATION_POLICY": "force"}, "variable-without-effect", "run --cores"),
        ({"MAX_GPU_MEM_MB": "4g"}, "variable-invalid", "'4g' is not a size"),
        ({"PARTAGE_CONTEXT_MEMORY": "much"}, "variable-invalid", "'much' is not a size"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, "variable-names-no-device", "'7' names no device of 1"),
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-nope"}, "variable-names-no-device", "'GPU-nope'"),
    ],
)
def test_variables_outside_of_a_share(examine, variables, kind, words):
    report = examine(**variables)
    assert words in report[kind]["value"]
    assert report[kind]["object"] in variables
    assert report.code == (1 if kind == "variable-invalid" else 7)


def test_a_profile_beside_another_machine(examine, machine):
    assert machine.partage("sim", "create", "zero").returncode == 0
    assert "is 'zero' already" in examine(PARTAGE_SIM="v100")["variable-without-effect"]["value"]
    assert "no-such" in examine(PARTAGE_SIM="no-such")["variable-without-effect"]["value"]


def test_variables_that_matter_only_elsewhere(examine):
    report = examine(PARTAGE_LOG_LEVEL="debug", PARTAGE_SIM_FORCE=None)
    assert (report.code, report["variable-idle"]["object"]) == (0, "PARTAGE_LOG_LEVEL")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CUDA_DISABLE_CONTROL", "1", "under a policy"),
        ("CUDA_OVERSUBSCRIBE", "true", "under a policy"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/x", "under a policy"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "4Gi", "1 GiB is not higher"),
        ("MAX_GPU_MEM_MB", "4096", "1 GiB is not higher"),
        ("CUDA_DEVICE_MEMORY_LIMIT_3", "1g", "grants 1 devices"),
    ],
)
def test_variables_under_a_share(examine, name, value, words):
    report = examine(command=inside(f"export {name}={value}"))
    assert words in report["variable-without-effect"]["value"]
    assert report.code == 7


def test_a_limit_that_is_lower_than_the_shares_counts(examine):
    assert "variable-without-effect" not in examine(command=inside("export CUDA_DEVICE_MEMORY_LIMIT=512m"))
