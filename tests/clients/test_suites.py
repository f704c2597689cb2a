"""We test these aspects: numba-cuda's own tests of its driver layer, as published, run and pass under a share, but for
those that compare what a kernel computed; the shim changes the outcome of none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partage.run.libraries import find_sim

from .conftest import PROGRAMS, TOOLS, need, shared

SUITE = "numba.cuda.tests.cudadrv"
HERE = Path(__file__).parent
LEAST_RUN = 0.6


def read_excluded() -> dict[str, str]:
    """Return test id and reason of each line of the list; both must be there, and no test twice."""
    excluded: dict[str, str] = {}
    for line in (HERE / "numba_excluded.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        test, blanks, reason = line.partition("  ")
        assert blanks, f"numba_excluded.txt: {line!r}: two blanks and a reason are missing"
        assert reason.strip(), f"numba_excluded.txt: {test}: the reason is missing"
        assert test not in excluded, f"numba_excluded.txt: {test}: twice"
        excluded[test] = reason
    return excluded


def start_suite(environment: dict[str, str], where: Path, share: str | None) -> subprocess.Popen[str]:
    """Start the suite on a new machine, through ``partage run`` with a share of each card or on the bare cards."""
    (where / "sim").mkdir(parents=True, mode=0o700)
    environment = {**environment, "PARTAGE_SIM_DIR": str(where / "sim")}
    create = [str(TOOLS / "partage"), "sim", "create", str(HERE / "two-small.toml")]
    subprocess.run(create, env=environment, check=True, capture_output=True, timeout=60)
    command = [sys.executable, str(PROGRAMS / "run_suite.py"), str(where / "result.json"), SUITE]
    if share:
        command = shared(*command, memory=share, sim=None, devices=(0, 1))
    else:
        environment["LD_LIBRARY_PATH"] = str(find_sim())
        environment["CUDA_VISIBLE_DEVICES"] = "0,1"  # as partage run sets it: one of the tests asks
    with (where / "log").open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True, cwd=where)


def outcomes(suite: subprocess.Popen[str], where: Path, *, preloaded: bool) -> dict[str, dict[str, str]]:
    """Wait for a run and return what became of each test."""
    suite.wait(timeout=800)
    assert (where / "result.json").exists(), (where / "log").read_text()[-4000:]
    result = json.loads((where / "result.json").read_text())
    names = {Path(path).name for path in result["libraries"]}
    assert "libcuda.so.1" in names
    assert ("libvgpu.so" in names) == preloaded
    return dict(result["tests"])


@pytest.mark.timeout(900)
def test_numba_cuda_passes_its_own_tests_with_and_without_the_shim(
    clean_environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("numba")
    need("filecheck")
    excluded = read_excluded()
    runs = {"with": "3Gi", "without": None}
    started = {name: start_suite(clean_environment, tmp_path / name, share) for name, share in runs.items()}
    tests, bare = (
        outcomes(started[name], tmp_path / name, preloaded=share is not None) for name, share in runs.items()
    )
    run = {test for test in tests if test not in excluded and tests[test]["outcome"] != "skipped"}
    passed = {test for test in run if tests[test]["outcome"] == "passed"}
    with capsys.disabled():
        counts = f"chosen {len(tests)}, excluded {len(excluded)}, run {len(run)}, passed {len(passed)}"
        print(f"\n{SUITE}: {counts} ({len(passed) / len(tests):.0%} of all run and passed)")
    assert not excluded.keys() - tests.keys(), "excluded, but no such test"
    assert not [test for test in excluded if tests[test]["outcome"] == "passed"], "excluded, but passes"
    assert not {test: tests[test]["reason"] for test in run - passed}
    assert len(run) / len(tests) >= LEAST_RUN
    assert {t: r["outcome"] for t, r in tests.items()} == {t: r["outcome"] for t, r in bare.items()}
