"""The process that outlives its owner: waits for the end of its standard input, then undoes the cluster.

Started by `state.py` as `python -m tests.cluster.keeper DIRECTORY`; the owner holds the other end of the pipe, so the
kernel tells the keeper when the owner ends, by whatever way. It inherits the owner's locks and so holds them until all
is undone. Exit code 1, with the remains on standard error, where something could not be undone.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.cluster.cleanup import clean_up


def main(directory: Path) -> int:
    """Wait, then undo; 1 where something is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a stopped session must not stop its own clean-up
    while sys.stdin.buffer.read(4096):
        continue
    left = clean_up(directory)
    for what in left:
        print(f"cluster: {directory}: left behind: {what}", file=sys.stderr, flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
