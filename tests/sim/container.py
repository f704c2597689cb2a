"""A container without a container runtime: an image of one program, namespaces, mounts as a CDI spec says them.

The image is as small as one can be: the program, the loader, the C library; no shell, no loader cache, no `/usr`. Its
root is read-only when the program starts, its /dev and /dev/shm are its own. Mount points are made first, as runc does.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partage.sim.tree import ContainerEdits

PROGRAMS = Path(__file__).parent / "programs"


def build_image(place: Path) -> Path:
    """Build the program and put it with what it needs below `place`; returns the image's root."""
    root = place / "image"
    root.mkdir()
    source = str(PROGRAMS / "tenant.c")
    subprocess.run(["cc", "-std=gnu11", "-O1", "-o", str(root / "tenant"), source, "-ldl"], check=True)
    listed = subprocess.run(["ldd", str(root / "tenant")], capture_output=True, text=True, check=True).stdout
    for path in {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}:
        copy = root / path.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(Path(path).read_bytes())
        copy.chmod(0o755)
    return root


def _mount_lines(root: Path, edits: ContainerEdits) -> Iterable[str]:
    for mount in (*edits.nodes, *edits.mounts):
        target = root / mount.target.lstrip("/")
        make = f"mkdir -p '{target}'" if mount.source.is_dir() else f"mkdir -p '{target.parent}'; : > '{target}'"
        # It may be a file of a directory that was mounted before, and cannot be made there.
        yield f"test -e '{target}' || {{ {make}; }}; mount --bind '{mount.source}' '{target}'"
        yield f"mount -o remount,bind,{','.join(mount.options)} '{target}'"


def can_link_statically(place: Path) -> bool:
    """Whether the C library is here as an archive, too."""
    command = ["cc", "-static", "-x", "c", "-", "-o", str(place / "tried")]
    return subprocess.run(command, input="int main(void){return 0;}", text=True, check=False).returncode == 0


def build_static_image(place: Path, archive: Path) -> Path:
    """Build the program that carries the driver in itself; there is nothing else in the image."""
    root = place / "image"
    root.mkdir()
    sources = (str(PROGRAMS / "static_tenant.c"), str(archive), "-lpthread", "-lm")
    subprocess.run(["cc", "-std=gnu11", "-O1", "-static", "-o", str(root / "tenant"), *sources], check=True)
    return root


class Container:
    """One running program; `lines` is what it said up to `ready`."""

    def __init__(self, image: Path, edits: ContainerEdits, *arguments: int, user_ns: bool = False) -> None:
        """Start the image's `/tenant` with these arguments and read what it says."""
        root = image.parent / "root"  # a mount of its own in each namespace
        root.mkdir(exist_ok=True)
        words = " ".join(map(str, arguments))
        env = " ".join(f"'{name}={value}'" for name, value in edits.env.items())
        script = "\n".join(
            (
                "set -e",
                "mount --make-rprivate /",
                f"mount -t tmpfs -o mode=755 none '{root}'",
                f"cp -a '{image}/.' '{root}'",
                f"mkdir -p '{root}/dev/shm' '{root}/proc'",
                f"mount -t tmpfs none '{root}/dev'",
                f"mkdir '{root}/dev/shm'",
                f"mount -t tmpfs none '{root}/dev/shm'",
                *_mount_lines(root, edits),
                f"mount -t proc none '{root}/proc'",
                f"mount -o remount,ro '{root}'",
                f"exec env -i {env} $(command -v chroot) '{root}' /tenant {words}",
            )
        )
        users = ["--user", "--map-root-user"] if user_ns else []
        command = ["unshare", *users, "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: dict[str, list[str]] = {}
        assert self.process.stdout
        for line in self.process.stdout:
            key, *values = line.split()
            self.lines[key] = values
            if key in ("ready", "error"):
                break

    @property
    def host_pid(self) -> int:
        """The program's pid outside: the only child of unshare."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def may_make() -> bool:
    """Whether namespaces can be made here as a container runtime makes them."""
    return (
        subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False).returncode
        == 0
    )
