"""The images that tests run: pause, box, client, bare, musl, and the same as other users.

`box` is a busybox with the C tenants. `client` has this environment's Python; its standard library and site-packages
are mounted from the host (`client_mounts`), so third-party CUDA clients run in it unmodified. `bare` is what distroless
images are: one dynamic C program, libc, nothing else; `musl` has another C library, as Alpine's images. None has a
driver or the product's library: those come to a container as they do in production. What can go wrong: no busybox, no
static libc, no musl; the set-up installs them.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.cluster import product
from tests.cluster.image import Image, Tree, compile_c

if TYPE_CHECKING:
    from collections.abc import Callable

TOP: Final = Path(__file__).resolve().parents[2]
BUILD: Final = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))
PROGRAMS: Final = Path(__file__).parent / "programs"
PAUSE: Final = "partage.test/pause:1"
BOX: Final = "partage.test/box:1"
BOX_USER: Final = "partage.test/box-user:1"
CLIENT: Final = "partage.test/client:1"
CLIENT_USER: Final = "partage.test/client-user:1"
BARE: Final = "partage.test/bare:1"
BARE_USER: Final = "partage.test/bare-user:1"
MUSL: Final = "partage.test/musl:1"
#: The dynamic loader, at the path that programs name.
LOADER: Final = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}[os.uname().machine]
#: Applets that tests call; busybox has a link for each.
APPLETS: Final = [
    "sh",
    "sleep",
    "cat",
    "ls",
    "env",
    "mount",
    "umount",
    "id",
    "echo",
    "grep",
    "ps",
    "kill",
    "true",
    "false",
    "date",
    "touch",
    "rm",
    "mkdir",
    "stat",
    "wget",
    "su",
    "unshare",
]
ACCOUNTS: Final = (
    "root:x:0:0:root:/root:/bin/sh\ntenant:x:1000:1000:tenant:/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
)


def base(tree: Tree) -> Tree:
    """Add what every root file system has, /lib and /bin in /usr and /var/run as distributions have them."""
    for name in ("bin", "lib", "lib64"):
        tree.directory(f"usr/{name}").link(name, f"usr/{name}")
    tree.directory("proc", "sys", "dev", "etc", "root", "run", "var").directory("tmp", mode=0o1777)
    tree.link("var/run", "../run")
    return tree.file("etc/passwd", ACCOUNTS).file("etc/group", "root:x:0:\ntenant:x:1000:\nnobody:x:65534:\n")


def box(tree: Tree) -> Tree:
    """Add busybox with its applets."""
    busybox = shutil.which("busybox", path="/bin:/usr/bin:/usr/local/bin")
    if busybox is None:
        raise FileNotFoundError("busybox is not installed: apt-get install busybox-static")
    tree.program("bin/busybox", Path(busybox))
    for applet in APPLETS:
        tree.link(f"bin/{applet}", "busybox")
    return tree


def greedy(tree: Tree, work: Path) -> Tree:
    """Add the C tenant at /greedy, dynamically linked to libc alone."""
    return tree.program("greedy", compile_c(PROGRAMS / "greedy.c", work / "greedy-program", "-ldl"))


def tenants(tree: Tree, work: Path) -> Tree:
    """Add all C tenants: greedy, busy, a library that opens the driver itself, a program that carries it in itself."""
    greedy(tree, work).program("busy", compile_c(PROGRAMS / "busy.c", work / "busy-program", "-ldl"))
    library = compile_c(TOP / "tests/c/entry/deep_library.c", work / "deep.so", "-shared", "-fPIC", "-ldl")
    archive = str(BUILD / "sim/libcuda_static.a")
    flags = ("-static", archive, "-lpthread", "-lm")
    static = compile_c(TOP / "tests/sim/programs/static_tenant.c", work / "static-program", *flags)
    triplet = library_directories()[0]  # where the loader looks for itself, for a namespace of its own
    tree.link(str(triplet / Path(LOADER).name), LOADER)
    return tree.file("deep.so", library, mode=0o755).file("static", static, mode=0o755)


def musl(tree: Tree, work: Path) -> Tree:
    """Add the C tenant as another C library's, with that library and its loader."""
    program = compile_c(PROGRAMS / "greedy.c", work / "greedy-musl", compiler="musl-gcc")
    loader = Path("/lib") / f"ld-musl-{os.uname().machine}.so.1"
    return tree.file("greedy", program, mode=0o755).file(f"usr{loader}", loader.resolve(), mode=0o755)


def client(tree: Tree) -> Tree:
    """Add this environment's Python, and the machine's shared libraries that its packages and modules load."""
    standard = Path(sysconfig.get_path("stdlib"))
    extensions = [path for path in (standard / "lib-dynload").glob("*.so") if not path.name.startswith("_tkinter")]
    interpreter = Path(sys.executable).resolve()
    tree.program(str(interpreter), interpreter).libraries_of(*extensions)
    for name in ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0"):
        found = next((d / name for d in library_directories() if (d / name).exists()), None)
        if found:  # what wheels expect of a machine (manylinux), where this one has it
            tree.file(str(found), found, mode=0o755)
    return tree


def library_directories() -> list[Path]:
    """Return where the machine keeps shared libraries."""
    triplet = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    return [Path("/lib", triplet), Path("/usr/lib", triplet), Path("/lib64"), Path("/usr/lib64"), Path("/usr/lib")]


def client_mounts() -> list[Path]:
    """Return the host directories that a container of a client image needs, read-only and at their own paths."""
    environment, installation = Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    return sorted({environment, standard if installation == Path("/usr") else installation})


def pause(tree: Tree, work: Path) -> Tree:
    """Add the static pause program alone."""
    program = compile_c(PROGRAMS / "pause.c", work / "pause-program", "-static", "-Os", "-s")
    return tree.file("pause", program, mode=0o755)


@dataclass(frozen=True)
class Recipe:
    """How an image is made: what fills its tree (given the tree and a work directory) and what it runs."""

    image: Image
    fill: Callable[[Tree, Path], Any]


def recipes() -> dict[str, Recipe]:
    """Return every image that tests may name, by reference."""
    loop = ["/bin/sh", "-c", "trap exit TERM; while :; do sleep 3600 & wait $!; done"]

    def full(tree: Tree, work: Path) -> Tree:
        return client(tenants(box(base(tree)), work))

    python = Path(sys.prefix).resolve() / "bin" / "python"
    search = {"PATH": f"{python.parent}:/bin"}
    made = [
        Recipe(Image(PAUSE, ["/pause"]), pause),
        Recipe(Image(BOX, loop), lambda tree, work: tenants(box(base(tree)), work)),
        Recipe(Image(BOX_USER, loop, user="1000:1000"), lambda tree, work: tenants(box(base(tree)), work)),
        Recipe(Image(CLIENT, [str(python)], environment=search), full),
        Recipe(Image(CLIENT_USER, [str(python)], user="tenant", environment=search), full),
        Recipe(Image(BARE, ["/greedy"]), lambda tree, work: greedy(base(tree), work)),
        Recipe(Image(BARE_USER, ["/greedy"], user="65534"), lambda tree, work: greedy(base(tree), work)),
        Recipe(Image(MUSL, loop), lambda tree, work: musl(box(base(tree)), work)),
    ]
    return {recipe.image.reference: recipe for recipe in made}


def make(reference: str, work: Path) -> Path:
    """Make one of the images below `work` and return its tar; the product's own lie in the build directory."""
    for role in product.roles():
        if reference == product.reference(role):
            return product.tar(role)
    recipe = recipes()[reference]
    name = reference.rpartition("/")[2].replace(":", "-")
    tree = Tree(work / name)
    tree.root.mkdir(parents=True)
    recipe.fill(tree, work / f"{name}.work")
    return recipe.image.write(tree, work / f"{name}.tar")
