"""We test these aspects of `partage doctor`: each finding is there when its condition is made for real, and is gone or
fine without it; every kind of finding has a test; the exit code follows the worst; a dead driver cannot hold it.

What it says of variables is in `test_doctor_variables.py`.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec
import pytest

from partage import locks
from partage._abi import lib
from partage.cli.checks import arbiters, places, shares
from partage.cli.checks.finding import KINDS, Severity, finding
from partage.cli.doctor import guarded
from partage.locks import locked
from partage.run import handover
from partage.run.libraries import find_library
from partage.shm import Policy, PolicyDevice, PolicyFile, create_ledger, create_turns
from tests.cli.examined import DOCTOR, Report, inside
from tests.shm.conftest import Tenant, write_line, write_turn

GIB = 1 << 30
NOBODY = 65534
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0,
    reason="making a mount namespace needs root",
)


def in_mounts(script: str) -> tuple[str, ...]:
    """Return what comes before a command that shall see other mounts, which `script` makes."""
    return ("unshare", "-m", "sh", "-ec", f'{script}\nexec "$@"', "sh")


def as_nobody(look) -> list[dict[str, str]]:
    """Return the findings of a check that a process of another user makes."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(writer, json.dumps([[found.id, found.value] for found in look()]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return json.loads(text)


# ---- the whole -------------------------------------------------------------------------------------------------------


def test_a_sound_machine_has_no_trouble(examine, machine):
    report = examine()
    assert (report.code, report.troubles) == (0, set())
    assert {
        "partage",
        "kernel",
        "container",
        "cgroup",
        "user",
        "library",
        "preload",
        "driver",
        "device",
    } <= report.of_severity("ok")
    assert {"driver-simulated", "machine-none"} <= report.of_severity("note")
    assert machine.partage("sim", "create", "zero").returncode == 0
    assert "machine" in examine()
    assert "machine-none" not in examine()


@pytest.fixture
def open_place():
    """A directory that others may read; not below pytest's own, which each session closes for them when it starts."""
    with tempfile.TemporaryDirectory(prefix="partage-open-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        yield place


@pytest.fixture
def place_of_nobody(open_place):
    """A directory of another user."""
    os.chown(open_place, NOBODY, NOBODY)
    return open_place


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_it_needs_no_rights(machine, place_of_nobody):
    place = place_of_nobody
    packages = {str(Path(module.__file__).parents[1]) for module in (click, msgspec)}
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": ":".join([machine.environment["PYTHONPATH"], *packages]),
        "XDG_RUNTIME_DIR": str(place),
        "PARTAGE_SIM_DIR": str(place),
    }

    def as_user(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, cwd="/", user=NOBODY, group=NOBODY, capture_output=True, text=True, check=False
        )

    needed = "import partage._abi, pynvml, click, msgspec"
    interpreters = [sys.executable, "/usr/bin/python3"]  # the first may lie where only root may look
    usable = [one for one in interpreters if os.access(one, os.X_OK) and runs(as_user, one, "-c", needed)]
    if not usable:
        pytest.skip("no Python that another user may run and that has what partage needs")
    report = Report(as_user(usable[0], *DOCTOR[1:]))
    assert (report.code, report.troubles) == (0, set())
    assert report["user"]["value"].startswith(f"uid {NOBODY}")


def runs(start, *command: str) -> bool:
    try:
        return start(*command).returncode == 0
    except OSError:
        return False


def test_every_kind_of_finding_has_a_test():
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_doctor*.py"))
    assert {kind for kind in KINDS if f'"{kind}"' not in text} == set()


def test_a_check_that_the_system_refuses_does_not_end_the_others():
    def refused():
        yield finding("user", "user", "uid 1")
        Path("/no/such/file").read_text()

    found = list(guarded("something", refused()))
    assert [one.id for one in found] == ["user", "check-failed"]
    assert "/no/such/file" in found[1].value


def test_every_trouble_has_a_remedy():
    assert {name for name, kind in KINDS.items() if kind.severity >= Severity.WARNING and not kind.remedy} == set()
    assert all(kind.meaning for kind in KINDS.values())


def test_the_exit_code_follows_the_worst(examine, machine, tmp_path):
    assert examine().code == 0
    warned = examine(XDG_RUNTIME_DIR="nowhere")
    assert (warned.code, warned.worst) == (7, "warning")
    assert machine.partage("doctor", XDG_RUNTIME_DIR="nowhere").returncode == 7
    failed = examine(XDG_RUNTIME_DIR="nowhere", PARTAGE_LIBRARY=str(tmp_path / "none"))
    assert (failed.code, failed.worst) == (1, "fault")


def test_findings_carry_object_value_limit_and_step(examine):
    found = examine(CUDA_DEVICE_MEMORY_LIMIT="4 gigs")["variable-invalid"]
    assert found["object"] == "CUDA_DEVICE_MEMORY_LIMIT"
    assert "4 gigs" in found["value"]
    assert "24Gi" in found["limit"]
    assert found["step"] == KINDS["variable-invalid"].remedy


def test_text_says_the_same(machine):
    done = machine.partage("doctor", CUDA_DEVICE_MEMORY_LIMIT="4 gigs")
    assert done.returncode == 1
    line, step = done.stdout[done.stdout.index("FAULT") :].splitlines()[:2]
    assert line.startswith("FAULT CUDA_DEVICE_MEMORY_LIMIT: '4 gigs'")
    assert line.endswith("[variable-invalid]")
    assert step == f"      -> {KINDS['variable-invalid'].remedy}"
    assert "1 fault, " in done.stdout.splitlines()[-1]


# ---- the system ------------------------------------------------------------------------------------------------------

FILTERED = {"x86_64": (72, 434, 449, 324), "aarch64": (25, 434, 449, 283)}
LOAD, JUMP_EQUAL, RETURN, ERRNO, ALLOW = 0x20, 0x15, 0x06, 0x00050000, 0x7FFF0000
FILTER = """
import ctypes, os, sys
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
libc, code = ctypes.CDLL(None), bytes.fromhex(sys.argv[1])
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0) == 0
os.execvp(sys.argv[2], sys.argv[2:])
"""


def without_calls(rules: list[tuple[int, int | None]]) -> tuple[str, ...]:
    """Return what comes before a command that shall lack system calls: (number, second argument or any)."""
    code = b""
    for number, argument in rules:
        code += struct.pack("<HBBI", LOAD, 0, 0, 0)
        if argument is None:
            code += struct.pack("<HBBI", JUMP_EQUAL, 0, 1, number)
        else:  # seccomp_data: number, architecture, address, then the arguments
            code += struct.pack("<HBBI", JUMP_EQUAL, 0, 3, number) + struct.pack("<HBBI", LOAD, 0, 0, 16 + 8)
            code += struct.pack("<HBBI", JUMP_EQUAL, 0, 1, argument)
        code += struct.pack("<HBBI", RETURN, 0, 0, ERRNO | errno.ENOSYS)
    code += struct.pack("<HBBI", RETURN, 0, 0, ALLOW)
    return (sys.executable, "-c", FILTER, code.hex())


@pytest.mark.skipif(platform.machine() not in FILTERED, reason="system call numbers of this machine are not known")
def test_what_the_kernel_lacks(examine):
    fcntl, pidfd_open, futex_waitv, membarrier = FILTERED[platform.machine()]
    report = examine(before=without_calls([(futex_waitv, None), (membarrier, None)]))
    assert (report.code, report["kernel-lacks"]["value"]) == (0, "no futex_waitv, membarrier")
    assert "kernel" in report
    report = examine(before=without_calls([(pidfd_open, None), (fcntl, 36)]))  # 36: F_OFD_GETLK
    assert (report.code, report["kernel-too-old"]["value"]) == (1, "no OFD locks, pidfds")
    assert "kernel" not in report


def test_the_control_groups_memory_for_devices(examine):
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    there = controllers.exists() and "dmem" in controllers.read_text().split()
    assert ("cgroup-no-dmem" in examine()) != there


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"cgroup.controllers": "cpuset cpu io memory pids dmem\n"}, ("v2", True)),
        ({"cgroup.controllers": "cpuset cpu io memory pids\n", "kubepods.slice/cpu.max": "max"}, ("v2", False)),
        ({"memory/tasks": "", "unified/cgroup.controllers": "dmem\n"}, ("hybrid", True)),
        ({"memory/tasks": "", "unified/cgroup.controllers": ""}, ("hybrid", False)),
        ({"pids/tasks": ""}, ("v1", False)),
        ({}, ("none", False)),
    ],
    ids=["v2-dmem", "v2", "hybrid-dmem", "hybrid", "v1", "none"],
)
def test_the_version_of_the_control_groups(tmp_path, files, found):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert places.control_groups(tmp_path) == found


POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0_1.slice/cri-containerd-0123.scope"
MOUNTED = "{root} {point} rw,relatime - ext4 /dev/vda rw\n"


@pytest.mark.parametrize(
    ("groups", "root", "kinds"),
    [
        ("12:pids:/kubepods/besteffort/pod0-1/0123\n", "/", {"kubepods"}),
        (f"0::{POD}\n", "/", {"kubepods", "containerd"}),
        ("0::/\n", "/var/lib/kubelet/pods/0-1/etc-hosts", {"Kubernetes"}),
        ("0::/../../pod0-1/0123\n", "/var/lib/kubelet/pods/0-1/etc-hosts", {"Kubernetes"}),
        ("0::/\n", "/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/0123/hostname", {"containerd"}),
        ("0::/\n", "/var/lib/docker/containers/0123/hostname", {"docker"}),
        ("0::/\n", "/containers/storage/overlay-containers/0123/userdata/hosts", {"podman"}),
        ("0::/user.slice/user-0.slice/session-1.scope\n", "/", {"none"}),
    ],
    ids=["v1", "v2", "v2-namespace", "v2-above", "v2-containerd", "v2-docker", "v2-podman", "v2-host"],
)
def test_a_container_is_told_whatever_its_control_groups_say(tmp_path, monkeypatch, groups, root, kinds):
    monkeypatch.delenv("container", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(places, "_MARKS", {})
    (tmp_path / "cgroup").write_text(groups)
    volume = "/var/lib/kubelet/pods/0-1/volumes/a"
    other = MOUNTED.format(root=volume, point=f"{volume}-subpaths")
    mounts = [f"40 30 254:0 {MOUNTED.format(root=root, point='/etc/hosts')}", f"41 30 254:0 {other}"]
    (tmp_path / "mountinfo").write_text("".join(mounts))
    assert set(places.container_kind(tmp_path).split(", ")) == kinds


def test_a_container_is_told_by_its_marks(monkeypatch):
    monkeypatch.setenv("container", "podman")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert places.container_kind().startswith("podman")
    assert "Kubernetes" in places.container_kind()


def test_a_runtime_directory_that_cannot_be_used(examine):
    report = examine(XDG_RUNTIME_DIR="relative/path")
    assert report["runtime-directory-ignored"]["value"] == "relative/path"


def test_a_directory_of_hand_overs_that_others_may_write(examine, machine):
    machine.root.mkdir(mode=0o700)
    machine.root.chmod(0o777)
    report = examine()
    assert report.code == 1
    assert str(machine.root) in report["shared-directory-refused"]["object"]


@needs_mounts
def test_little_shared_memory(examine):
    report = examine(before=in_mounts("mount -t tmpfs -o size=1m none /dev/shm"))
    assert report["shared-memory-small"]["value"] == "1 MiB"
    assert "shared-memory-small" not in examine(before=in_mounts("mount -t tmpfs -o size=2g none /dev/shm"))


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_device_nodes(open_place):
    assert [found.id for found in places.check_nodes(open_place, open_place / "none")] == []
    assert [found.id for found in places.check_nodes(open_place, open_place)] == ["device-nodes-absent"]
    for name, mode in (("nvidia0", 0o600), ("nvidiactl", 0o666)):
        (open_place / name).touch()
        (open_place / name).chmod(mode)
    found = as_nobody(lambda: places.check_nodes(open_place, open_place))
    assert [kind for kind, _ in found] == ["device-node-closed", "device-node"]
    assert "0600" in found[0][1]


# ---- the library -----------------------------------------------------------------------------------------------------


def compile_library(path: Path, source: str, *options: str) -> Path:
    compiler = shutil.which("cc")
    assert compiler, "building this project needs a C compiler too"
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-w", "-x", "c", *options, "-o", str(path), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_a_library_that_is_not_there_or_cannot_be_loaded(examine, tmp_path):
    assert "library-missing" in examine(PARTAGE_LIBRARY=str(tmp_path / "none"))
    place = tmp_path / "with blank"
    place.mkdir()
    shutil.copy(find_library(), place)
    assert "library-unusable" in examine(PARTAGE_LIBRARY=str(place / "libvgpu.so"))
    (tmp_path / "libvgpu.so").write_bytes(b"\x7fELF nonsense")
    report = examine(PARTAGE_LIBRARY=str(tmp_path / "libvgpu.so"))
    assert (report.code, report["preload-fails"]["object"]) == (1, "preload")


def test_a_library_for_a_newer_libc(examine, tmp_path):
    data = find_library().read_bytes()
    assert b"GLIBC_2.4\0" in data or b"GLIBC_2.14\0" in data
    name = b"GLIBC_2.14\0" if b"GLIBC_2.14\0" in data else b"GLIBC_2.4\0"
    (tmp_path / "libvgpu.so").write_bytes(data.replace(name, name.replace(b"2.", b"9.")))
    assert "GLIBC_9." in examine(PARTAGE_LIBRARY=str(tmp_path / "libvgpu.so"))["preload-fails"]["value"]


@needs_mounts
def test_a_library_on_a_file_system_without_code(examine, tmp_path):
    place = tmp_path / "noexec"
    place.mkdir()
    script = f"mount -t tmpfs -o noexec none {place}; cp {find_library()} {place}/libvgpu.so"
    report = examine(before=in_mounts(script), PARTAGE_LIBRARY=str(place / "libvgpu.so"))
    assert (report.code, "noexec" in report["library-noexec"]["step"]) == (1, True)


def test_preloads_beside_ours(examine, tmp_path):
    other = str(compile_library(tmp_path / "libother.so", "int other;"))
    ours = str(find_library())
    assert examine(LD_PRELOAD=other)["preload-others"]["value"] == other
    behind = examine(LD_PRELOAD=f"{other} {ours}")
    assert (behind.code, behind["preload-not-first"]["value"]) == (7, f"behind {other}")
    assert "preload-here" in behind
    assert "preload-not-first" not in examine(LD_PRELOAD=f"{ours}:{other}")
    assert "/no/such.so" in examine(LD_PRELOAD="/no/such.so")["preload-dead-entry"]["value"]


@needs_mounts
@pytest.mark.parametrize("ours", [True, False])
def test_the_systems_own_preload_file(examine, tmp_path, ours):
    entry = find_library() if ours else compile_library(tmp_path / "libother.so", "int other;")
    shutil.copytree("/etc", tmp_path / "etc", symlinks=True, ignore=shutil.ignore_patterns("ssl", "alternatives"))
    (tmp_path / "etc" / "ld.so.preload").write_text(f"{entry}\n")
    report = examine(before=in_mounts(f"mount --bind {tmp_path}/etc /etc"))
    assert ("preload-file" in report, "preload-file-others" in report) == (ours, not ours)
    assert ("preload-here" in report) == ours


def test_a_share_without_the_library(examine, tmp_path):
    make_hand_over(tmp_path / "share")
    report = examine(PARTAGE_DIR=str(tmp_path / "share"))
    assert (report.code, "partage run" in report["preload-missing-here"]["step"]) == (1, True)


# ---- the driver ------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_driver(tmp_path):
    """Make a driver in a bad state and return the variable that lets partage use it."""

    def make(*options: str, version: int = 13000, init: int = 0, nvml: int = 0) -> dict[str, str]:
        place = tmp_path / "driver"
        source = Path(__file__).with_name("fake_driver.c").read_text()
        defines = (f"-DVERSION={version}", f"-DINIT={init}", f"-DNVML={nvml}", *options)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            compile_library(place / name, source, *defines)
        return {"PARTAGE_SIM_LIBRARIES": str(place)}

    return make


def test_a_driver_that_never_answers_costs_a_bounded_time(examine, fake_driver):
    for seconds in (5, 20, 80):  # in the first of which a busy machine may not have come to the driver
        report = examine("--timeout", str(seconds), **fake_driver("-DHANG"))
        if report["driver-hangs"]["value"] == "no answer to cuInit":
            break
    assert report.code == 1
    assert report["driver-hangs"]["value"] == "no answer to cuInit"
    assert "dmesg" in report["driver-hangs"]["step"]


def test_a_driver_that_ends_its_caller(examine, fake_driver):
    report = examine(**fake_driver("-DCRASH"))
    assert (report.code, report["driver-crashes"]["value"]) == (1, f"signal {int(signal.SIGSEGV)} in cuInit")


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ({"init": 999}, "driver-refuses", "999 (CUDA_ERROR_UNKNOWN)"),
        ({"init": 100}, "driver-refuses", "100 (CUDA_ERROR_NO_DEVICE)"),
        ({"init": 803}, "driver-mismatch", "803"),
        ({"nvml": 18}, "driver-mismatch", "mismatch"),
        ({"nvml": 999}, "driver-refuses", "Unknown"),
        ({"version": 11080}, "driver-old", "CUDA 11.8"),
        ({"version": 14000}, "driver-new", "CUDA 14.0"),
        ({}, "devices-none", "none"),
    ],
)
def test_what_a_driver_says(examine, fake_driver, state, kind, words):
    report = examine(**fake_driver(**state))
    assert words in report[kind]["value"]
    assert report.code == 1, "there is no device"


def test_a_driver_that_cannot_be_loaded_or_is_not_there(examine, tmp_path):
    report = examine(PARTAGE_SIM_LIBRARIES=str(tmp_path))
    assert (report.code, "make build" in report["driver-absent"]["step"]) == (1, True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).write_text("no library")
    assert examine(PARTAGE_SIM_LIBRARIES=str(tmp_path)).of_severity("fault") >= {"driver-libraries-absent"}


def test_what_the_loader_finds_without_us(examine, fake_driver, tmp_path):
    assert "loader-finds-none" in examine() or "loader-finds" in examine()
    place = fake_driver()["PARTAGE_SIM_LIBRARIES"]
    assert examine(LD_LIBRARY_PATH=place)["loader-finds"]["value"] == f"{place}/libcuda.so.1"
    shutil.move(place, tmp_path / "stubs")
    assert "driver-stub" in examine(LD_LIBRARY_PATH=str(tmp_path / "stubs"))


def test_cards_in_mig_mode(examine):
    assert examine(PARTAGE_SIM="a100-mig")["device-mig"]["object"] == "device 0"


def test_a_device_that_does_not_answer(examine, machine):
    assert machine.partage("sim", "create", "zero2").returncode == 0
    assert machine.partage("sim", "fault", "lose", "0").returncode == 0
    report = examine(PARTAGE_SIM=None)
    assert (report.code, report["device-fails"]["object"]) == (1, "device 0")
    assert "device" in report, "the other one goes on"


# ---- the simulated machine -------------------------------------------------------------------------------------------


def test_the_simulated_machine(examine, machine):
    assert machine.partage("sim", "create", "zero").returncode == 0
    assert machine.partage("sim", "fault", "call", "cuMemAlloc_v2", "CUDA_ERROR_UNKNOWN").returncode == 0
    assert "cuMemAlloc_v2" in examine()["machine-faults"]["value"]
    assert machine.partage("sim", "fault", "clear").returncode == 0
    assert "machine-faults" not in examine()
    with Path(machine.environment["PARTAGE_SIM_DIR"], "machine").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff")
    report = examine()
    assert (report.code, "partage sim create" in report["machine-damaged"]["step"]) == (1, True)


@needs_mounts
def test_a_simulated_driver_beside_a_real_one(examine, tmp_path):
    place = tmp_path / "dev"
    place.mkdir()
    script = (
        f"mount -t tmpfs none {place}; cp -a /dev/null /dev/zero /dev/urandom /dev/random {place}; mkdir {place}/shm;"
        f"cp -a /dev/null {place}/nvidiactl; mount --move {place} /dev"
    )
    assert "machine-beside-real" in examine(before=in_mounts(script), PARTAGE_SIM_FORCE="1")
    assert "machine-beside-real" not in examine()


# ---- the own share ---------------------------------------------------------------------------------------------------


def make_hand_over(place: Path, **changes: object) -> None:
    """Make a hand-over by hand: 1 GiB of a device."""
    place.mkdir()
    create_turns(place / "turns", 1)
    create_ledger(place / "ledger", ["GPU-a"])
    policy = Policy(devices=(PolicyDevice(uuid="GPU-a", memory=GIB, physical=2 * GIB),), **changes)
    PolicyFile.create(place / "policy", policy).close()


def test_under_a_share_all_is_well(examine):
    report = examine(command=inside())
    assert (report.code, report.troubles) == (0, set())
    assert "1 GiB of GPU-" in report["share"]["value"]
    assert "preload-here" in report
    assert "share of 1024 MiB" in report["device"]["value"]


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("rm $PARTAGE_DIR/policy", "share-policy-broken"),
        ("truncate -s 100 $PARTAGE_DIR/ledger", "share-ledger-broken"),
        ("rm $PARTAGE_DIR/turns", "share-turns-broken"),
    ],
)
def test_damage_to_the_own_share(examine, damage, kind):
    report = examine(command=inside(damage))
    assert kind in report
    assert report.code == (7 if kind == "share-turns-broken" else 1)


def test_a_policy_of_garbage(examine, tmp_path):
    make_hand_over(tmp_path / "share")  # of no writer, who would repair it
    with (tmp_path / "share" / "policy").open("r+b") as file:
        file.seek(100)
        file.write(b"x")
    report = examine(PARTAGE_DIR=str(tmp_path / "share"))
    assert (report.code, "share-policy-broken" in report) == (1, True)


@needs_mounts
def test_a_ledger_that_may_not_be_written(examine):
    damage = (
        'exec unshare -m sh -ec \'mount --bind "$PARTAGE_DIR" "$PARTAGE_DIR"; mount -o remount,bind,ro "$PARTAGE_DIR";'
        'exec "$@"\' sh "$@"'
    )
    report = examine(command=inside(damage))
    assert (report.code, "Read-only" in report["share-ledger-read-only"]["value"]) == (1, True)
    assert "read-only" in report["share"]["value"]


def test_a_closed_share(examine, tmp_path):
    make_hand_over(tmp_path / "share", is_open=False)
    assert "share-closed" in examine(PARTAGE_DIR=str(tmp_path / "share"))


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_policy_that_its_tenant_may_write(open_place, monkeypatch):
    make_hand_over(open_place / "share")
    (open_place / "share").chmod(0o755)
    monkeypatch.setenv("PARTAGE_DIR", str(open_place / "share"))
    assert "share-policy-writable" not in dict(as_nobody(shares.check_own))
    os.chown(open_place / "share" / "policy", NOBODY, NOBODY)
    assert "share-policy-writable" in dict(as_nobody(shares.check_own))


# ---- shares that run -------------------------------------------------------------------------------------------------


def test_running_shares_that_are_well(examine, machine):
    machine.start("--memory", "4Gi")
    report = examine()
    assert (report.code, report.troubles) == (0, set())
    assert any("1 in use" in found["value"] for found in report.findings if found["id"] == "shares")


def test_broken_files_of_running_shares(examine, machine):
    program = machine.start("--memory", "4Gi")
    assert program.ask("alloc", 4096) == 0
    program.process.kill()  # its watcher would repair the policy
    program.process.wait()
    (name,) = machine.hand_overs()
    with (machine.root / name / "policy").open("r+b") as file:
        file.seek(100)
        file.write(b"x")
    report = examine()
    assert (report.code, "running-policy-broken" in report) == (1, True)
    os.truncate(machine.root / name / "ledger", 100)
    assert "running-ledger-broken" in examine()


def test_shares_that_add_up_to_more_than_the_card(examine, machine):
    machine.start("--memory", "4Gi")
    machine.start("--memory", "4Gi")
    first, second = machine.hand_overs()
    file = PolicyFile.open(machine.root / first / "policy")
    file.update(lambda policy: policy.changed(policy.devices[0].uuid, memory=policy.devices[0].physical))
    file.close()
    report = examine()
    assert report.code == 1
    assert first in report["running-over-card"]["value"]
    assert second in report["running-over-card"]["value"]


def test_a_share_that_was_shrunk_below_its_use(examine, machine):
    program = machine.start("--memory", "4Gi")
    assert program.ask("alloc", 2 * GIB) == 0
    (name,) = machine.hand_overs()
    assert machine.partage("resize", name, "--memory", "1Gi").returncode == 0
    report = examine()
    assert (report.code, report["running-over-limit"]["limit"]) == (7, "1 GiB")


def test_a_share_of_a_device_that_is_gone(examine, machine):
    machine.start("--memory", "4Gi")
    assert machine.partage("sim", "fault", "lose", "0").returncode == 0
    report = examine()
    assert "device-fails" in report
    assert "running-device-gone" not in report, "no device answers: nothing is known about sums"


def test_a_share_of_one_device_that_is_gone(examine, make_machine, machine):
    assert machine.partage("sim", "create", "zero2").returncode == 0
    machine.start("--memory", "4Gi", PARTAGE_SIM="zero2")
    assert machine.partage("sim", "fault", "lose", "0").returncode == 0
    assert "running-device-gone" in examine(PARTAGE_SIM=None)


def test_a_share_that_nobody_watches(examine, machine):
    program = machine.start("--memory", "4Gi")
    assert program.ask("alloc", 4096) == 0
    program.process.kill()
    program.process.wait()
    ledger = Path(program.environment()["PARTAGE_DIR"], "ledger")
    with ledger.open("r+b") as file, locked(file.fileno(), lib.PTG_LOCK_WATCH):
        pass  # waits for the kernel to let the dead watcher's lock go
    assert "running-unwatched" in examine()


def test_hand_overs_that_nobody_uses(examine, machine):
    machine.root.mkdir(mode=0o700, exist_ok=True)
    make_hand_over(machine.root / "old-123456")
    report = examine()
    assert (report.code, report["shares-left-over"]["value"]) == (0, "1 that nobody uses")
    assert (machine.root / "old-123456").exists(), "the doctor changes nothing"


# ---- turns -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def asking(machine, monkeypatch):
    """Return a share by hand that lives and takes turns, with one process that waits, and no arbiter."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", machine.environment["XDG_RUNTIME_DIR"])
    place = handover.user_root() / "asking-1"
    place.mkdir()
    create_turns(place / "turns", 1)
    create_ledger(place / "ledger", ["GPU-a"])
    device = PolicyDevice(uuid="GPU-a", memory=GIB, physical=2 * GIB, cores=300, ceiling=300, gated=True)
    PolicyFile.create(place / "policy", Policy(devices=(device,), share_class="fixed")).close()
    tenant = Tenant(place / "ledger")
    tenant.take(0, name=b"patient")
    write_line(place / "ledger", 0, 0, want=1, want_ns=1)
    yield place
    tenant.close()


def held(path: Path, words: str) -> int:
    """Write a lock file as an arbiter does, and hold it while the descriptor is open."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.pwrite(fd, words.encode(), 0)
    assert locks.try_lock(fd, 0)
    return fd


def test_shares_that_take_turns_without_an_arbiter(examine, asking):
    report = examine()
    assert "arbiter-absent" in report
    assert "1 shares take turns" in report["arbiter-absent"]["value"]
    (asking.parent / ".arbiter.log").write_text("it ended\n")
    assert ".arbiter.log" in examine()["arbiter-absent"]["step"]
    PolicyFile.open(asking / "policy").update(lambda policy: policy.changed("GPU-a", gated=False))
    assert "arbiter-absent" not in examine()


def test_an_arbiter_that_serves_answers_or_is_silent(examine, asking):
    fd = held(asking.parent / ".arbiter", f"pid 4711 uid 0 start 1 root {asking.parent}\n")
    report = examine()
    assert "pid 4711" in report["arbiter"]["value"]
    assert asking.name in report["arbiter-silent"]["object"]
    write_turn(asking / "turns", 0, 4711, heartbeat_ns=time.monotonic_ns() + 3600 * 10**9)
    assert "arbiter-silent" not in examine()
    write_turn(asking / "turns", 0, 4711, heartbeat_ns=0)
    write_line(asking / "ledger", 0, 0, want=0)
    assert "arbiter-silent" not in examine(), "nobody waits, so it may sleep"
    os.close(fd)


def test_who_goes_by_a_private_bucket(examine, asking, monkeypatch):
    write_line(asking / "ledger", 0, 0, want=1, want_ns=1, degraded=1)
    assert f"pid {os.getpid()} patient" in examine()["running-degraded"]["value"]
    monkeypatch.setenv("PARTAGE_DIR", str(asking))
    assert [found.id for found in arbiters.check_arbiter()] == ["share-degraded"]


def test_a_device_that_somebody_else_arbitrates(examine, asking, machine):
    directory = Path(machine.environment["PARTAGE_SIM_DIR"])
    directory.mkdir(exist_ok=True)
    ours, other = f"pid 1 uid 0 start 1 root {asking.parent}\n", "pid 2 uid 7 start 1 root /\x1b[31mthere\n"
    for words, expected in ((ours, False), (other, True)):
        fd = held(directory / "partage-GPU-a.lock", words)
        report = examine()
        assert ("arbiter-elsewhere" in report) is expected
        os.ftruncate(fd, 0)
        os.close(fd)
    assert "root /?[31mthere" in report["arbiter-elsewhere"]["value"]
    assert "arbiter-elsewhere" not in examine(), "nobody holds it any more"
