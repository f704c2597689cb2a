"""We test these aspects of `partage run`: the program's exit code and signals are its own; it runs under the library
and the share it was promised, never without; a card is never promised twice; a dead process's memory returns to its
peers; several runs share a card; what is left behind is swept away."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from partage.run import handover
from partage.run.handover import HandOver
from partage.run.libraries import find_library

from .conftest import HOLDER, WAIT_S

GIB = 1 << 30
OUT_OF_MEMORY = 2


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_the_exit_code_is_the_programs_own(machine, script, code):
    result = machine.partage("run", "--memory", "1Gi", "--", "sh", "-c", script)
    assert (result.returncode, result.stderr) == (code, "")
    assert machine.hand_overs() == []


def test_standard_streams_and_arguments_are_untouched(machine):
    script = 'cat; echo "$@" >&2'
    command = [sys.executable, "-m", "partage", "run", "--memory", "1Gi", "sh", "-c", script, "-", "-x", "--", "a b"]
    result = subprocess.run(
        command, input="in", capture_output=True, text=True, env=machine.environment, timeout=WAIT_S, check=False
    )
    assert (result.stdout, result.stderr, result.returncode) == ("in", "-x -- a b\n", 0)


def test_the_program_gets_library_hand_over_and_devices(machine):
    program = machine.start("--memory", "1Gi", LD_PRELOAD="", LD_LIBRARY_PATH="/nowhere")
    environment = program.environment()
    assert environment["LD_PRELOAD"] == str(find_library())
    assert environment["LD_LIBRARY_PATH"].endswith(":/nowhere")
    assert environment["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    assert Path(environment["PARTAGE_DIR"]).stat().st_mode & 0o777 == 0o700
    assert str(find_library()) in Path(f"/proc/{program.pid}/maps").read_text()


def test_the_users_own_preload_stays_behind_ours(machine):
    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libm.so" in line)
    program = machine.start("--memory", "1Gi", LD_PRELOAD=libc)
    assert program.environment()["LD_PRELOAD"] == f"{find_library()}:{libc}"


def test_the_limit_is_exact_and_shown_as_total(machine):
    program = machine.start("--memory", "4Gi")
    assert program.ask("info") == [4 * GIB, 4 * GIB]
    assert program.ask("alloc", 4 * GIB) == 0
    assert program.ask("alloc", 1) == OUT_OF_MEMORY
    assert program.ask("info") == [0, 4 * GIB]


def test_two_runs_share_a_card_and_neither_feels_the_other(machine):
    first, second = machine.start("--memory", "24Gi"), machine.start("--memory", "48Gi")
    assert first.ask("alloc", 24 * GIB) == 0
    assert first.ask("alloc", 2 << 20) == OUT_OF_MEMORY
    assert second.ask("alloc", 48 * GIB) == 0
    assert second.ask("alloc", 2 << 20) == OUT_OF_MEMORY
    assert first.ask("free") == 0
    assert first.ask("alloc", 24 * GIB) == 0


def test_a_card_is_never_promised_twice(machine):
    first = machine.start("--memory", "60Gi", "--cores", "80%")
    for share, word in ((("--memory", "30Gi"), "memory"), (("--memory", "1Gi", "--cores", "21%"), "cores")):
        refused = machine.partage("run", *share, "--", "true")
        assert refused.returncode == 3
        assert f"{word} " in refused.stderr
        assert "free (held by python" in refused.stderr
    assert machine.partage("run", "--memory", "20Gi", "--cores", "20%", "--", "true").returncode == 0
    first.stop()
    assert machine.partage("run", "--memory", "80Gi", "--", "true").returncode == 0


def test_many_runs_at_once_get_no_more_than_the_card(machine):
    command = [sys.executable, "-m", "partage", "run", "--memory", "30Gi", "--", "sh", "-c", "echo in; read _"]
    started = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=machine.environment
        )
        for _ in range(5)
    ]
    answers = [process.stdout.readline() for process in started]
    for process in started:
        process.communicate(b"\n", timeout=WAIT_S)
    assert answers.count(b"in\n") == 2
    assert sorted(process.returncode for process in started) == [0, 0, 3, 3, 3]


def test_a_dead_process_gives_its_memory_back_to_its_peers(machine):
    first = machine.start("--memory", "4Gi", narrated=True)
    second = machine.join(first)
    assert second.ask("alloc", 3 * GIB) == 0
    assert first.ask("alloc", 2 * GIB) == OUT_OF_MEMORY
    entry = HandOver(Path(first.environment()["PARTAGE_DIR"]))
    os.kill(second.pid, signal.SIGKILL)
    second.process.wait(WAIT_S)
    first.until(lambda: [slot.pid for slot in entry.ledger().slots] == [first.pid])
    snapshot = entry.ledger()
    assert snapshot.devices[0].used == 0
    assert snapshot.reclaimed == 1, "the watcher did it: no process asked for memory in between"
    assert first.ask("alloc", 4 * GIB) == 0


def test_exec_does_not_lose_or_keep_memory(machine):
    program = machine.start("--memory", "4Gi")
    assert program.ask("alloc", 3 * GIB) == 0
    assert program.ask("exec") == {"pid": program.pid}
    assert program.ask("alloc", 4 * GIB) == 0


def test_a_program_that_becomes_another_one_holds_nothing(machine):
    program = machine.start("--memory", "4Gi", narrated=True)
    peer = machine.join(program)
    assert program.ask("alloc", 3 * GIB) == 0
    entry = HandOver(Path(program.environment()["PARTAGE_DIR"]))  # it has none to be read for a moment of its exec
    assert program.ask("become", "sh", "-c", "echo 1; exec cat") == 1
    program.until(lambda: entry.ledger().devices[0].used == 0)
    assert peer.ask("info") == [4 * GIB, 4 * GIB]
    assert program.ask("still there") == ["still there"]


def test_signals_reach_the_program(machine):
    script = 'trap "echo got; exit 9" TERM; echo "{\\"pid\\": $$}"; while :; do read _; done'
    program = machine.start("--memory", "1Gi", program=("sh", "-c", script))
    program.process.send_signal(signal.SIGTERM)
    code, _ = program.finish()
    assert code == 9


# Waits for the signal itself: a shell's `read` may miss one that comes right before it blocks.
INTERRUPTED = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
signal.sigwait({signal.SIGINT})
open(sys.argv[1] + ".heard", "w").close()
print("heard", flush=True)
sys.stdin.readline()
open(sys.argv[1], "w").write("twice" if signal.SIGINT in signal.sigpending() else "once")
sys.exit(4)
"""


# A parent that a busy machine does not run between the program's start and its own next line.
LATE = """
import os
def spawn(*arguments, before=os.posix_spawn, **options):
    pid = before(*arguments, **options)
    while not os.path.exists(os.environ["TEST_HEARD"]):
        os.sched_yield()
    return pid
os.posix_spawn = spawn
"""


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("is_late", [False, True], ids=["", "late"])
def test_ctrl_c_reaches_the_program_once(machine, tmp_path, is_late):
    log = tmp_path / "log"
    environment = machine.environment | {"TEST_HEARD": f"{log}.heard"}
    if is_late:
        (tmp_path / "sitecustomize.py").write_text(LATE)
        environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    child, terminal = pty.fork()
    if child == 0:
        program = [sys.executable, "-S", "-c", INTERRUPTED, str(log)]
        command = [sys.executable, "-m", "partage", "-v", "run", "--memory", "1Gi", "--", *program]
        os.execve(command[0], command, environment)  # noqa: S606
    said = b""
    for words, answer in (((b"ready",), b"\x03"), ((b"heard", b"running"), b"\n")):
        while not all(word in said for word in words):
            said += os.read(terminal, 4096)
        os.write(terminal, answer)
    with contextlib.suppress(OSError):  # the terminal goes with its last user
        while os.read(terminal, 4096):
            pass
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 4
    assert log.read_text() == "once"


def test_shares_do_not_nest(machine):
    inner = f"{sys.executable} -m partage run --memory 1Gi true"
    result = machine.partage("run", "--memory", "2Gi", "--", "sh", "-c", inner)
    assert result.returncode == 125
    assert "do not nest" in result.stderr


def test_killing_the_parent_leaves_the_limit_and_the_promise(machine):
    program = machine.start("--memory", "60Gi")
    program.process.kill()
    program.process.wait(WAIT_S)
    assert program.ask("alloc", 60 * GIB) == 0
    assert program.ask("alloc", 2 << 20) == OUT_OF_MEMORY
    assert machine.partage("run", "--memory", "30Gi", "--", "true").returncode == 3, "its process still holds the share"
    pidfd = os.pidfd_open(program.pid)
    os.kill(program.pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], WAIT_S)[0]
    os.close(pidfd)
    assert machine.partage("run", "--memory", "30Gi", "--", "true").returncode == 0
    assert machine.hand_overs() == [], "the dead one was swept away"


def test_a_process_left_behind_keeps_the_share_until_it_ends(machine):
    script = f"exec 3<&0; {sys.executable} {HOLDER} <&3 & wait"
    program = machine.start("--memory", "60Gi", program=("sh", "-c", script))
    assert program.ask("alloc", 50 * GIB) == 0
    status = Path(f"/proc/{program.pid}/status").read_text().splitlines()
    shell = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
    os.kill(shell, signal.SIGKILL)
    assert program.process.wait(WAIT_S) == 137
    assert len(machine.hand_overs()) == 1
    assert machine.partage("run", "--memory", "30Gi", "--", "true").returncode == 3
    os.kill(program.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def static_program(tmp_path_factory):
    path = tmp_path_factory.mktemp("static") / "static"
    source = path.with_suffix(".c")
    source.write_text("int main(void) { return 0; }\n")
    built = subprocess.run(["cc", "-static", source, "-o", path], capture_output=True, check=False)
    if built.returncode:
        pytest.skip("no static libc to build with")
    return path


def test_a_program_that_cannot_carry_the_library_is_refused(machine, static_program):
    result = machine.partage("run", "--memory", "1Gi", "--", str(static_program))
    assert result.returncode == 125
    assert "statically linked" in result.stderr


def test_a_library_that_the_loader_leaves_out_stops_the_program(machine, tmp_path):
    broken = tmp_path / "libvgpu.so"
    broken.write_bytes(b"not a library, which ld.so says once and then ignores" * 100)
    result = machine.partage("run", "--memory", "1Gi", "--", "sleep", "60", PARTAGE_LIBRARY=str(broken))
    assert result.returncode == 125
    assert "was not loaded" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--memory", "4x", "true"], 2, "accepted: bytes"),
        (["true"], 2, "--memory"),
        (["--memory", "1Gi"], 2, "PROGRAM"),
        (["--memory", "1Gi", "--nosuch", "true"], 2, "--nosuch"),
        (["--memory", "1Gi", "--device", "0,,1", "true"], 2, "device ''"),
        (["--memory", "1Gi", "--class", "fast", "true"], 2, "best-effort"),
        (["--memory", "1Gi", "/etc"], 125, "not executable"),
        (["--memory", "1Gi", "--device", "7", "true"], 2, "there are: 0 = GPU-"),
        (["--memory", "1Gi", "--cores", "30.55", "true"], 2, "accepted: 30"),
        (["--memory", "1Gi", "--class", "fixed", "true"], 2, "add --cores"),
        (["--memory", "1Gi", "--priority", "P9", "true"], 2, "P0 (first)"),
        (["--memory", "81Gi", "true"], 3, "the card has"),
        (["--memory", "1Gi", "--sim", "nosuch", "true"], 2, "nosuch"),
        (["--memory", "1Gi", "no-such-program"], 125, "not found"),
    ],
)
def test_each_refusal_says_why_in_one_line(machine, arguments, code, words):
    result = machine.partage("run", *arguments)
    assert result.returncode == code
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert machine.hand_overs() == []


def test_several_devices_may_stand_in_one_option(make_machine):
    machine = make_machine("zero2")
    made = json.loads(machine.partage("run", "--memory", "1Gi", "true").stderr or "null")
    assert made is None
    uuids = [device["uuid"] for device in json.loads(machine.partage("sim", "show", "--json").stdout)["devices"]]
    script = "echo $CUDA_VISIBLE_DEVICES"
    for options, order in (
        (("--device", "1,0"), [1, 0]),
        (("--device", "1", "--device", "0,1"), [1, 0]),
        (("--device", f"{uuids[1]},0"), [1, 0]),
        (("--device", uuids[1][:12]), [1]),
    ):
        result = machine.partage("run", "--memory", "1Gi", *options, "sh", "-c", script)
        assert result.stdout.strip() == ",".join(uuids[index] for index in order), result.stderr


def test_a_program_that_uses_a_device_only_after_its_parent_ended_keeps_the_share(machine):
    script = """exec 3<&0; setsid sh -c 'read _; exec "$0" "$1"' "$@" <&3 & echo "{\\"pid\\": $!}" """
    program = machine.start("--memory", "60Gi", program=("sh", "-c", script, "-", sys.executable, str(HOLDER)))
    assert program.process.wait(WAIT_S) == 0
    assert machine.partage("run", "--memory", "30Gi", "--", "true").returncode == 3, "it was promised to the other"
    program.ask_nothing()
    program.greet()
    assert program.ask("info") == [60 * GIB, 60 * GIB]


@pytest.fixture
def _interruptible():
    """Let what is started here hear Ctrl-C: what a shell puts into the background ignores it, children included."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_is_heard_while_others_hold_the_registry_and_reaches_a_program_that_was_about_to_start(machine):
    machine.root.mkdir(mode=0o700)
    with handover.registry(machine.root):
        waiting = subprocess.Popen(
            [sys.executable, "-m", "partage", "-v", "run", "--memory", "1Gi", "--", "sleep", "60"],
            env=machine.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        words = ""
        while "waiting" not in words:
            words = waiting.stderr.readline()
            assert words, "it did not wait"
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(WAIT_S) == 130
        assert "Traceback" not in waiting.stderr.read()
        waiting.stderr.close()
    assert machine.hand_overs() == []


@pytest.mark.parametrize("how", ["noise", "empty", "half", "sparse", "fifo", "link", "directory", "gone", "full"])
def test_what_a_tenant_does_to_its_ledger_hurts_nobody_else(machine, how, tmp_path):
    tenant, other = machine.start("--memory", "4Gi"), machine.start("--memory", "4Gi")
    assert tenant.ask("alloc", GIB) == 0
    ledger = Path(tenant.environment()["PARTAGE_DIR"], "ledger")
    outside = tmp_path / "outside"
    outside.write_bytes(b"not yours")
    spoil(ledger, how, outside)
    shown = json.loads(machine.partage("top", "--json").stdout)
    assert {share["name"] for share in shown["shares"]} == {ledger.parent.name, hand_over_of(other)}
    resized = machine.partage("resize", ledger.parent.name, "--memory", "5Gi")
    assert (resized.returncode, resized.stderr) == (0, "")
    assert machine.partage("run", "--memory", "72Gi", "--", "true").returncode == 3, "5 and 4 GiB are promised"
    assert machine.partage("run", "--memory", "71Gi", "--", "true").returncode == 0
    assert other.ask("alloc", 4 * GIB) == 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(tenant.pid, signal.SIGKILL)
    code, words = tenant.finish()
    assert code == 137
    assert "Traceback" not in words
    assert outside.read_bytes() == b"not yours"


def hand_over_of(program) -> str:
    return Path(program.environment()["PARTAGE_DIR"]).name


def spoil(ledger: Path, how: str, outside: Path) -> None:
    if how in {"fifo", "link", "directory", "gone"}:
        ledger.unlink()
    size = 1056768
    match how:
        case "noise":
            with ledger.open("r+b") as file:
                file.write(bytes(position * 2654435761 >> 13 & 0xFF for position in range(size)))
        case "full":
            with ledger.open("r+b") as file:
                file.seek(4096)
                file.write(b"\xff" * (size - 4096))
        case "empty" | "half" | "sparse":
            os.truncate(ledger, {"empty": 0, "half": size // 2, "sparse": 1 << 42}[how])
        case "fifo":
            os.mkfifo(ledger)
        case "link":
            ledger.symlink_to(outside)
        case "directory":
            ledger.mkdir()
