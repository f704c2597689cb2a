"""We test these aspects: what three clients' authors test of the driver's layer, as published, runs and passes under a
share, but for tests that are listed with the reason; the shim changes the outcome of none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from partage.run.libraries import find_sim

from .conftest import CUDA_LIBRARIES, PROGRAMS, TOOLS, made, need, shared

HERE = Path(__file__).parent
LEAST_PASSED = 0.8  # of all tests that the authors have in the area and do not give up themselves
#: Timings of this host that its load can reverse: run, but not compared.
UNSTABLE = {
    "driver::safe::core::tests::test_pinned_copy_is_faster": "compares two copies by the host's clock; both are memcpy",
    "driver::safe::core::tests::test_default_pinned_host_reads_are_faster_than_write_combined": (
        "compares reads of two kinds of host memory by the host's clock; both are the same kind here"
    ),
}


@dataclass(frozen=True)
class Suite:
    """A published suite: the area that is chosen, the command that runs it, the library that it must have mapped."""

    name: str
    area: str
    command: tuple[str, ...]
    library: str = "libcuda.so.1"


def numba_cuda() -> Suite:
    """All of numba-cuda's tests of its driver layer; its other packages test what kernels compute."""
    need("numba")
    need("filecheck")
    area = "numba.cuda.tests.cudadrv"
    return Suite("numba-cuda", area, (str(PROGRAMS / "run_suite.py"), "RESULT", area))


def cudarc() -> Suite:
    """All unit tests of cudarc's driver room; its other rooms are about libraries that need NVIDIA's runtime."""
    area = "driver::"
    return Suite("cudarc", area, (str(PROGRAMS / "run_rust.py"), "RESULT", str(made("cudarc") / "tests"), area))


def pynvml() -> Suite:
    """All tests of pynvml: of nvidia-ml-py's functions and of its own `nvidia_smi` over them."""
    need("pynvml")
    files = [f"pynvml_utils/tests/test_{name}.py" for name in ("nvml", "smi")]
    command = (str(PROGRAMS / "run_pytest.py"), "RESULT", str(made("pynvml")), *files)
    return Suite("pynvml", "pynvml_utils/tests", command, "libnvidia-ml.so.1")


def read_excluded(suite: str) -> dict[str, str]:
    """Return test id and reason of each line of the list; both must be there, and no test twice."""
    excluded: dict[str, str] = {}
    for line in (HERE / "excluded" / f"{suite}.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        test, blanks, reason = line.partition("  ")
        assert blanks, f"{suite}.txt: {line!r}: two blanks and a reason are missing"
        assert reason.strip(), f"{suite}.txt: {test}: the reason is missing"
        assert test not in excluded, f"{suite}.txt: {test}: twice"
        excluded[test] = reason
    return excluded


def start_suite(suite: Suite, environment: dict[str, str], where: Path, share: str | None) -> subprocess.Popen[str]:
    """Start the suite on a new machine, through ``partage run`` with a share of each card or on the bare cards."""
    (where / "sim").mkdir(parents=True, mode=0o700)
    libraries = CUDA_LIBRARIES
    environment = {**environment, "PARTAGE_SIM_DIR": str(where / "sim"), "LD_LIBRARY_PATH": libraries}
    create = [str(TOOLS / "partage"), "sim", "create", str(HERE / "two-small.toml")]
    subprocess.run(create, env=environment, check=True, capture_output=True, timeout=200)
    command = [sys.executable, *(str(where / "result.json") if word == "RESULT" else word for word in suite.command)]
    if share:
        command = shared(*command, memory=share, sim=None, devices=(0, 1))
    else:
        environment["LD_LIBRARY_PATH"] = f"{find_sim()}:{libraries}"
        environment["CUDA_VISIBLE_DEVICES"] = "0,1"  # as partage run sets it: one of the tests asks
    with (where / "log").open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True, cwd=where)


def outcomes(suite: Suite, run: subprocess.Popen[str], where: Path, *, preloaded: bool) -> dict[str, dict[str, str]]:
    """Wait for a run and return what became of each test."""
    run.wait(timeout=800)
    assert (where / "result.json").exists(), (where / "log").read_text()[-4000:]
    result = json.loads((where / "result.json").read_text())
    names = {Path(path).name for path in result["libraries"]}
    assert suite.library in names
    assert ("libvgpu.so" in names) == preloaded
    return dict(result["tests"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("choose", [numba_cuda, cudarc, pynvml])
def test_the_authors_own_tests_pass_with_and_without_the_shim(
    clean_environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], choose
) -> None:
    suite = choose()
    excluded = read_excluded(suite.name)
    runs = {"with": "3Gi", "without": None}
    started = {name: start_suite(suite, clean_environment, tmp_path / name, share) for name, share in runs.items()}
    tests, bare = (
        outcomes(suite, started[name], tmp_path / name, preloaded=share is not None) for name, share in runs.items()
    )
    own = {test for test in tests if tests[test]["outcome"] != "given up"}
    run = {test for test in own if test not in {*excluded, *UNSTABLE} and tests[test]["outcome"] != "skipped"}
    passed = {test for test in run if tests[test]["outcome"] == "passed"}
    with capsys.disabled():
        counts = f"{len(tests)} tests, {len(tests) - len(own)} given up by their authors, {len(excluded)} excluded"
        print(f"\n{suite.area}: {counts}, {len(passed)} passed ({len(passed) / len(own):.0%} of those not given up)")
    assert not excluded.keys() - tests.keys(), "excluded, but no such test"
    assert not [test for test in excluded if tests[test]["outcome"] == "passed"], "excluded, but passes"
    assert not {test: tests[test]["reason"] for test in run - passed}
    assert len(passed) / len(own) >= LEAST_PASSED
    compared = tests.keys() - UNSTABLE.keys()
    assert {t: tests[t]["outcome"] for t in compared} == {t: bare[t]["outcome"] for t in compared}
