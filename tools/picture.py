#!/usr/bin/env python3
"""Draw docs/demo.svg and docs/top.svg from what `partage demo` and `partage top` really print: picture.py DIRECTORY.

Called by `make picture`. The demo runs on a terminal of its own, so that it prints as a user sees it; for `top` the
demo's tenants are started once more and take memory. Nothing of the text is made up here. What can go wrong: the demo
misses a promise, and then no picture is drawn.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from partage.cli import demo, top
from partage.cli.look import look
from partage.devices.nvidia.nvml import Nvml
from partage.model.units import GI
from partage.run.libraries import find_sim

COLUMNS: Final = 132
LOOKS: Final = 20  # of `top`, so that its trend shows something
#: rich's own frame without the fonts that it would fetch from elsewhere.
FRAME: Final = (
    CONSOLE_SVG_FORMAT[: CONSOLE_SVG_FORMAT.index("@font-face")]
    + CONSOLE_SVG_FORMAT[CONSOLE_SVG_FORMAT.index(".{unique_id}-matrix") :]
)


def on_terminal(command: list[str]) -> str:
    """Run a command on a terminal of its own and return what it printed; RuntimeError where it fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
    environment |= {"TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        printed = bytearray()
        while True:
            try:
                printed += os.read(ours, 65536)
            except OSError:  # the terminal's other end is closed
                break
    os.close(ours)
    text = printed.decode()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text}")
    return text


def unindented(svg: str) -> str:
    """Turn leading blanks of a text into its position: some programs that draw SVG drop them."""
    pattern = r'x="([\d.]+)" (y="[\d.]+") textLength="([\d.]+)" (clip-path="[^"]*")>((?:&#160;)+)([^<]+)<'

    def moved(found: re.Match[str]) -> str:
        x, y, length, clip, blanks, text = found.groups()
        indent = blanks.count("&#160;")
        step = float(length) / (indent + len(html.unescape(text)))
        return f'x="{float(x) + indent * step:g}" {y} textLength="{float(length) - indent * step:g}" {clip}>{text}<'

    return re.sub(pattern, moved, svg)


def draw(title: str, path: Path, *parts: object) -> None:
    """Print the parts on a recorded console and write its picture."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        for part in parts:
            console.print(part, highlight=False)
    lines = unindented(console.export_svg(title=title, code_format=FRAME, unique_id=path.stem)).splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n")


def draw_demo(directory: Path) -> None:
    """Draw what `partage demo` prints, without its closing table, which says the same once more."""
    printed = on_terminal([str(Path(sys.executable).with_name("partage")), "demo"])
    lines = Text.from_ansi(printed.replace("\r\n", "\n")).split()
    table = next(number for number, line in enumerate(lines) if line.plain.startswith("asked and got"))
    draw("partage demo", directory / "demo.svg", *lines[:table], lines[-1])


def draw_top(directory: Path) -> None:
    """Start the demo's tenants, let them take memory and compute, and draw what `top` shows after some looks."""
    scratch = Path(tempfile.mkdtemp(prefix="partage-picture-"))
    demo.prepare(scratch)
    with Nvml(find_sim()) as nvml:
        stage = demo.Stage(nvml, nvml.devices()[0].uuid, lambda _: None)
        try:
            numba = stage.start("numba_tenant.py", "--memory", "24Gi", "--cores", "30%")
            bindings = stage.start("bindings_tenant.py", "--memory", "48Gi", "--cores", "70%")
            peer = stage.meet(bindings.join(sys.executable, str(demo.TENANTS / "bindings_tenant.py")))
            for player, size in ((numba, 9 * GI), (numba, 20 * GI), (bindings, 30 * GI), (peer, 5 * GI)):
                player.ask("hold", bytes=size)
                demo.settle(stage, player)
            for player in (numba, bindings):
                player.tell("compute")
            view = look()
            for _ in range(LOOKS):
                time.sleep(top.APART_S)
                view = look(view)
            draw("partage top", directory / "top.svg", top.render(view, COLUMNS))
        finally:
            for player in stage.players:
                player.stop()
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    draw_demo(Path(sys.argv[1]))
    draw_top(Path(sys.argv[1]))
