"""We test these aspects of looking at processes: who uses a directory is seen at every moment, also while it changes
from one program to the next, while it leaves its work to a child, and after its first thread has ended; a look ends,
whatever processes do, and what it could not find out counts as used."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from partage.run import processes
from partage.run.processes import used_of

RESTLESS = {
    "changes programs": 'test -e "$STOP" || exec "$0"',
    "leaves its work to a child": 'test -e "$STOP" || { "$0" & }',
    "does both": 'test -e "$STOP" || { setsid -f "$0" & }',
}


@pytest.mark.parametrize("how", RESTLESS)
def test_a_process_that_never_stays_the_same_is_seen_at_every_look(tmp_path, how):
    program, stop = tmp_path / "program", tmp_path / "stop"
    program.write_text(f"#!/bin/sh\n{RESTLESS[how]}\n")
    program.chmod(0o755)
    environment = {"PARTAGE_DIR": str(tmp_path), "PATH": os.defpath, "STOP": str(stop)}
    first = subprocess.Popen([program], env=environment)
    try:
        assert [look for look in range(60) if not used_of([tmp_path])] == []
    finally:
        stop.touch()
        first.wait()
        while used_of([tmp_path]):
            pass


def test_a_program_without_environment_and_the_dead_are_not_waited_for(tmp_path):
    empty = subprocess.Popen(["sleep", "60"], env={})
    dead = subprocess.Popen(["true"])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert used_of([tmp_path]) == frozenset()
    empty.kill()
    empty.wait()
    dead.wait()


def test_a_process_whose_first_thread_has_ended_is_seen(tmp_path):
    script = """
import ctypes, os, sys, threading
def last(main):
    while open(f"/proc/self/task/{main}/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    os.write(1, b"alone\\n")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=last, args=(os.getpid(),)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    environment = os.environ | {"PARTAGE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"alone\n"
    assert used_of([tmp_path])
    process.communicate(b"x")


def test_a_process_that_never_comes_out_of_execve_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_environment", lambda pid: None if pid == os.getpid() else b"")
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.0)
    assert used_of([tmp_path]) == {tmp_path}


def test_processes_that_never_cease_to_come_are_not_waited_for(tmp_path, monkeypatch):
    numbers = itertools.count(1 << 30)  # beyond all pids
    monkeypatch.setattr(processes, "_all", lambda: [next(numbers)])
    assert used_of([tmp_path]) == {tmp_path}
