"""What a program says on a pipe, as events: a test waits until something holds that the program tells of once it has
done it (`partage -vv run` says what its watcher does), without looking again and again."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WATCHDOG_S = 200  # stands for "never"


class Narration:
    """Reads a pipe to its end, so that the program at `write_end` never waits for its reader."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._heard = threading.Condition()
        self._words: list[bytes] = []
        self._over = False
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def begin(self) -> None:
        """Listen; called once the program has the other end."""
        os.close(self.write_end)
        self._thread.start()

    def _listen(self) -> None:
        with open(self._read_end, "rb", buffering=0) as pipe:  # noqa: PTH123 -- a descriptor
            while not self._over:
                words = pipe.read(1 << 16)
                with self._heard:
                    self._words.append(words)
                    self._over = not words
                    self._heard.notify_all()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds: asked at once and after everything that is said; fails where no more will be said."""
        fulfilled = False

        def is_decided() -> bool:
            nonlocal fulfilled
            over = self._over  # read first: the last words may have made it true
            fulfilled = holds()
            return fulfilled or over

        with self._heard:
            self._heard.wait_for(is_decided, WATCHDOG_S)
            words = b"".join(self._words).decode(errors="replace")
        assert fulfilled, f"did not happen; said was: {words}"

    def words(self) -> str:
        """Return all that was said, once it is over."""
        self._thread.join(WATCHDOG_S)
        assert not self._thread.is_alive(), "somebody still holds the pipe"
        return b"".join(self._words).decode(errors="replace")
