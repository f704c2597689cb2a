"""We test these aspects: a policy or ledger that is scribbled on, also while programs use it, never makes a program of
that container crash, hang or get more than a policy grants; whoever reads or watches from outside gets an error of ours
or a reading; the neighbour on the same card notices nothing. A file that is cut short while mapped may cost the
offender's own processes their life (SIGBUS), and nobody else's."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from partage._abi import ffi, lib
from partage.model import LedgerError, PartageError
from partage.run.handover import HandOver
from partage.shm import WatchedLedger, read_ledger, read_policy

from .conftest import WATCHDOG_S, Stage, Tenant, full

MIB = 1 << 20
LIMIT = 32 * MIB
OUT_OF_MEMORY = 2

LEDGER, POLICY = "struct ptg_ledger", "struct ptg_policy"
SLOT = ffi.sizeof("struct ptg_slot")
#: Where nine of ten mutations go: headers, the device's own lines, the first two slots (those that are in use).
HOT = {
    "policy": [(0, 64), (64, 64 + ffi.sizeof("struct ptg_policy_device"))],
    "ledger": [
        (0, 64),
        (ffi.offsetof(LEDGER, "doorbell"), ffi.offsetof(LEDGER, "doorbell") + 4),
        (ffi.offsetof(LEDGER, "reclaimed"), ffi.offsetof(LEDGER, "high") + 4),
        (ffi.offsetof(LEDGER, "uuid"), ffi.offsetof(LEDGER, "uuid") + 64),
        (ffi.offsetof(LEDGER, "device"), ffi.offsetof(LEDGER, "device") + ffi.sizeof("struct ptg_ledger_device")),
        *((ffi.offsetof(LEDGER, "slot") + i * SLOT, ffi.offsetof(LEDGER, "slot") + i * SLOT + 128) for i in (0, 1)),
    ],
}
SIZE = {"policy": ffi.sizeof(POLICY), "ledger": ffi.sizeof(LEDGER)}


@dataclass(frozen=True)
class Mutation:
    """One change of one file; `cut` is its new length, or None."""

    file: str
    offset: int
    data: bytes
    cut: int | None
    reseal: bool


def draw(choice: random.Random) -> Mutation:
    """Draw a mutation: one in twenty cuts the file, one policy in five gets a checksum that fits."""
    file = choice.choice(["policy", "ledger"])
    begin, end = choice.choice(HOT[file]) if choice.random() < 0.9 else (0, SIZE[file])
    offset = choice.randrange(begin, end)
    length = min(choice.choice([1, 1, 4, 8, 8, 64]), end - offset)
    data = choice.choice([choice.randbytes(length), b"\0" * length, b"\xff" * length, b"\x7f".rjust(length, b"\xff")])
    cut = choice.choice([0, offset, 4096, SIZE[file] - 1]) if choice.random() < 0.05 else None
    return Mutation(file, offset, data, cut, file == "policy" and choice.random() < 0.2)


def apply(mutation: Mutation, entry: HandOver) -> None:
    """Scribble on the file in place, as any process that may write it can."""
    path = entry.path / mutation.file
    fd = os.open(path, os.O_RDWR)
    try:
        if mutation.cut is not None:
            os.ftruncate(fd, mutation.cut)
            return
        os.pwrite(fd, mutation.data, mutation.offset)
        if mutation.reseal:
            image = ffi.new("struct ptg_policy *")
            ffi.memmove(image, os.pread(fd, SIZE["policy"], 0), SIZE["policy"])
            image.crc32c = lib.ptg_policy_crc(image)
            os.pwrite(fd, bytes(ffi.buffer(image)), 0)
    finally:
        os.close(fd)


def check_alive(tenant: Tenant, command: str, mutation: Mutation) -> list[int] | None:
    """Let a tenant work; it must answer, or have been ended by the cut file alone."""
    answer = tenant.ask(command)
    if answer is None:
        code = tenant.end()
        assert mutation.cut is not None, f"{command}: ended with {code}"
        assert code in (-signal.SIGBUS, 128 + signal.SIGBUS), f"{command}: ended with {code}"
    return answer


def check_readers(entry: HandOver) -> None:
    """Whoever reads or watches gets a reading or an error of ours."""
    for read, path in ((read_policy, entry.policy_path), (read_ledger, entry.ledger_path)):
        try:
            read(path)
        except PartageError:
            continue
    reclaim_all(entry.ledger_path)


def reclaim_all(path: Path) -> None:
    """Watch the ledger once, as `partage run` does when processes have ended."""
    try:
        watched = WatchedLedger(path)
    except LedgerError:
        return
    try:
        for slot in watched.read().slots:
            watched.reclaim(slot.index)
        watched.read()
    except LedgerError:
        pass
    finally:
        watched.close()


def offend(stage: Stage, entry: HandOver, mutation: Mutation) -> int:
    """Play one scene: a program that runs while its file changes, one that starts after; bytes the second one got."""
    early, late = stage.tenant(entry), stage.tenant(entry)
    assert early.ask("init")[0] == 0
    assert early.ask("churn 20") is not None
    apply(mutation, entry)
    live = check_alive(early, "churn 40", mutation)
    begun = check_alive(late, "init", mutation)
    worked = check_alive(late, "churn 20", mutation) if begun and begun[0] == 0 else None
    for tenant in (early, late):
        if tenant.process.poll() is None:
            assert tenant.end() in {0, -signal.SIGBUS if mutation.cut is not None else 0}
    stage.tenants.clear()
    if mutation.file == "policy" and not mutation.reseal and live is not None:
        assert live[3] <= LIMIT, f"{live[3]} bytes under a limit of {LIMIT}"
    return worked[3] if worked else 0


@pytest.mark.timeout(3600)
def test_scribbled_files_hurt_nobody_else(stage: Stage) -> None:
    neighbour = Tenant(stage.inside(stage.share("neighbour", LIMIT)))
    try:
        assert neighbour.ask("init")[0] == 0
        for seed in range(1000 if full() else 100):
            mutation = draw(random.Random(seed))
            entry = stage.share(f"share-{seed}", LIMIT)
            try:
                got = offend(stage, entry, mutation)
                check_readers(entry)
            except (AssertionError, PartageError) as error:
                raise AssertionError(f"seed {seed}, {mutation}") from error
            if mutation.file == "policy" and not mutation.reseal:
                assert got <= LIMIT, f"seed {seed}: {got} bytes after {mutation}"
            given, refused, other, most = neighbour.ask("churn 40")
            assert other == 0
            assert given + refused == 40
            assert most <= LIMIT
        neighbour.ask("drop")
        assert neighbour.ask(f"alloc {LIMIT}") == [0], "the neighbour's share is not whole"
        assert neighbour.ask("alloc 1") == [OUT_OF_MEMORY]
    finally:
        assert neighbour.end() == 0


RUN = (sys.executable, "-m", "partage", "run", "--memory", "32Mi", "--")


def hand_overs(stage: Stage) -> list[Path]:
    """Directories of the shares that run now."""
    return sorted(path.parent for path in Path(stage.environment["XDG_RUNTIME_DIR"]).rglob("policy"))


def top(environment: dict[str, str]) -> list[str]:
    """Ask `partage top` once; the names of the programs that it shows."""
    command = [sys.executable, "-m", "partage", "top", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return [share["name"] for share in json.loads(done.stdout)["shares"]]


@pytest.mark.timeout(3600)
def test_the_parent_of_partage_run_and_top_survive(stage: Stage) -> None:
    """The parent watches a ledger that its program scribbles on, and ends with the program's own exit code."""
    neighbour = Tenant(stage.environment, *RUN)
    try:
        assert neighbour.ask("init")[0] == 0
        (own,) = hand_overs(stage)
        for seed in range(100 if full() else 8):
            mutation = draw(random.Random(10_000 + seed))
            victim = Tenant(stage.environment, *RUN)
            stage.tenants.append(victim)
            assert victim.ask("init")[0] == 0
            (entry,) = (HandOver(path) for path in hand_overs(stage) if path != own)
            apply(mutation, entry)
            check_alive(victim, "churn 40", mutation)
            assert own.name in top(stage.environment), f"seed {seed}: {mutation}"
            if victim.process.poll() is None:
                assert victim.end() in ({0, 128 + signal.SIGBUS} if mutation.cut is not None else {0})
            assert hand_overs(stage) == [own], "the parent left something behind"
            stage.tenants.clear()
            assert neighbour.ask("churn 40")[2] == 0, f"seed {seed}: {mutation}"
    finally:
        assert neighbour.end() == 0
