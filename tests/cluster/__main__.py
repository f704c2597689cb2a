"""`python -m tests.cluster prepare | up | down`: what `make test-cluster`, `make cluster` and `make cluster-down` call.

`prepare` installs packages and builds the programs, and says what the layer will be skipped for; `up` leaves a cluster
running until `down`. What can go wrong: see binaries.py, packages.py and state.py; `prepare` ends with 0 all the same,
since the layer's tests then say why they are skipped.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from tests.cluster import images, packages
from tests.cluster.binaries import CHART_TOOLS, UnavailableError, obtain
from tests.cluster.cluster import Cluster
from tests.cluster.state import TOP, clusters

RUNNING: Final = "standing"  # file in the clusters' directory: process id of the cluster that `up` left running


def prepare() -> int:
    """Have everything that the layer needs, or say what it lacks; 0 in any case."""
    packages.install()
    try:
        found = obtain()
        obtain(CHART_TOOLS)
    except UnavailableError as error:
        print(f"cluster: the layer will be skipped: {error}", file=sys.stderr)
        return 0
    print(f"cluster: Kubernetes {found.kubernetes} is here; {packages.reason() or 'a node can be run'}")
    return 0


def up() -> int:
    """Start a process that holds a cluster, and return once it is ready; 1 where it is not."""
    reason = packages.reason()
    if reason:
        print(f"cluster: {reason}", file=sys.stderr)
        return 1
    holder = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster", "hold"],
        cwd=TOP,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert holder.stdout is not None
    for line in holder.stdout:
        print(line, end="", flush=True)
    return 0 if holder.poll() is None else 1


def hold() -> int:
    """Run a cluster until told to end; prints how to reach it, then closes its standard output."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    cluster = Cluster.open(obtain(), node=True)
    try:
        cluster.image(images.BOX, images.CLIENT, images.BARE)
        note = clusters() / RUNNING
        note.write_text(str(os.getpid()))
        print(f"export KUBECONFIG={cluster.kubeconfig}")
        print(f"alias kubectl={cluster.binaries['kubectl']}")
        print(f"# images, with imagePullPolicy Never: {images.BOX} {images.CLIENT} {images.BARE}")
        print(f"# logs: {cluster.state.directory}/logs")
        print("# make cluster-down ends it", flush=True)
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        ended.wait()
        note.unlink(missing_ok=True)
    finally:
        cluster.close()
    return 0


def down() -> int:
    """End the cluster that `up` left, and wait until nothing of it is left; 1 where there is none."""
    note = clusters() / RUNNING
    try:
        holder = os.pidfd_open(int(note.read_text()))
    except (FileNotFoundError, ProcessLookupError):
        print("cluster: none is running", file=sys.stderr)
        return 1
    signal.pidfd_send_signal(holder, signal.SIGTERM)
    select.select([holder], [], [])
    return 0


COMMANDS: Final = {"prepare": prepare, "up": up, "hold": hold, "down": down}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("command", choices=COMMANDS)
    sys.exit(COMMANDS[parser.parse_args().command]())
