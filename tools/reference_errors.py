"""The page of errors: every one that a user may see from the command line, the doctor and the library's log.

Called by reference.py. The command line's errors are read from the code that raises them, the doctor's from its own
list of kinds, the library's from its messages; `LOG` says what each of those means and what to do, and a test fails
where `LOG` and the messages in hook/shim differ.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage import model
from partage.cli import exit_codes
from partage.cli.checks.finding import KINDS
from partage.model import names, units

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP: Final = Path(__file__).resolve().parent.parent
GAP: Final = "…"  # stands for what differs from case to case
PROGRAM_SEES: Final = """\
A program under a limit sees no error of ours, only the driver's: `CUDA_ERROR_OUT_OF_MEMORY` for what does not fit or
while its share is closed, `CUDA_ERROR_NOT_SUPPORTED` for entry points that could give memory that is not metered
([the list](entry-points.md)), and for a device that was not granted what the driver says of one that does not exist.
Why, the library writes to its log."""

# ---- the library's log -----------------------------------------------------------------------------------------------

_LOOK: Final = "run `partage doctor` where the program runs"
_AGAIN: Final = "start the program again; find out who writes to the hand-over"
#: message (… for what differs) -> what it means, what to do
LOG: Final[dict[str, tuple[str, str]]] = {
    "no arbiter answers for device … of the grant: launches go by the share's own bucket": (
        "the process that gives turns has died or was stopped; each container keeps to its share by itself",
        "none; whoever started the share starts an arbiter again",
    ),
    "the arbiter answers again for device … of the grant: launches wait for turns": (
        "shares are given by turns again",
        "none",
    ),
    "allocations are refused: …": ("the process is closed for good; the reason is one of those below", _LOOK),
    "…; …": ("the policy changed into something that cannot be used; what is in force now follows", _LOOK),
    "refused … bytes: the device is not granted to this container": (
        "the program allocated on a device outside of its share",
        "use a granted device (`cuDeviceGetCount` counts no others), or ask for a share of that one",
    ),
    "refused … bytes on …: …": ("the process is closed; the reason is one of those below", _LOOK),
    "refused … bytes on …: … of … are used; free some, or ask for a larger share": (
        "the allocation does not fit into what is left of the limit; the program got CUDA_ERROR_OUT_OF_MEMORY",
        "free memory, or `partage resize`",
    ),
    "…=… is not a size; accepted: FORMS": ("a limit in the environment does not parse", "write it in one of the forms"),
    "MAX_GPU_MEM_MB=… is not a whole number of MiB": ("it takes digits only", "write a whole number"),
    "… is not a ledger; name another file or remove it": (
        "CUDA_DEVICE_MEMORY_SHARED_CACHE, or the hand-over, names a file of something else",
        "name another file",
    ),
    "ledger … has layout … of … bytes, this library needs layout … of …": (
        "programs of two versions of the library share one ledger",
        "use one version, or another ledger",
    ),
    "ledger … counts device … as …, the policy as …; it belongs to another grant": (
        "a policy was laid beside the ledger of another container",
        "give each container a hand-over of its own",
    ),
    "… cannot hold the ledger, it must be a directory of mode 0700 of user …: …": (
        "somebody else made the directory first, in /tmp anybody can, or its mode is too wide",
        "remove it, correct its mode, or set XDG_RUNTIME_DIR",
    ),
    "ledger … counts … devices, more than …": ("the ledger is damaged", _AGAIN),
    "ledger …: …": ("the system refused something with the ledger, in its own words", "correct that"),
    "ledger … cannot be read: …": ("the system's words follow", "correct that"),
    "ledger … has … bytes of …": ("the ledger is cut, or still being made", _AGAIN),
    "ledger …: no room for … bytes: …": ("its file system is full", "make room there, or name another file"),
    "ledger … cannot be opened for reading and writing: …": (
        "a ledger is written by every process of the container",
        "let this user write it; mount it read-write over the read-only directory",
    ),
    "ledger … is not a regular file": (
        "a directory, link or pipe lies in its place",
        "remove it, or name another file",
    ),
    "ledger … cannot be mapped: …": ("the system's words follow", "correct that"),
    "ledger …: its set-up lock was not to be had in 5 s": (
        "another process holds the lock that is held for microseconds: it is stopped, or no process of ours",
        "look who has the file open (`fuser`)",
    ),
    "ledger …: no line for device …, its allocations are refused": (
        "the ledger has counted its most devices already, others than this one",
        "use another ledger for another set of devices",
    ),
    "ledger …: slot … cannot be locked: …": ("the file system gives no OFD locks", "put the ledger on a local one"),
    "ledger …: all … slots are taken by living processes; end some of them": (
        "so many processes of the container use the device at once",
        "end some of them",
    ),
    "CUDA_DEVICE_MEMORY_SHARED_CACHE is longer than … bytes": ("the path does not fit", "use a shorter one"),
    "CUDA_DEVICE_MEMORY_LIMIT_<n>: NVML does not say which number … has; use CUDA_DEVICE_MEMORY_LIMIT": (
        "numbers count the machine's devices in PCI order, which NVML tells; it does not answer for this one",
        "set CUDA_DEVICE_MEMORY_LIMIT",
    ),
    "PARTAGE_DIR is longer than … bytes": ("the path does not fit", "use a shorter one"),
    "policy … cannot be used: …": ("it is missing, unreadable or no regular file of the right size", _AGAIN),
    "policy …/policy: …": ("what is wrong with it is one of those below", _LOOK),
    "policy …/policy: the node's agent has closed it": ("the share has been taken away", "ask whoever gave it"),
    "a device without a proper UUID": ("the policy is damaged", _AGAIN),
    "a device with a memory limit of 0": ("the policy is damaged: a limit is above 0", _AGAIN),
    "the same device twice": ("the policy is damaged", _AGAIN),
    "not a policy file": ("something else lies in its place", _AGAIN),
    "another layout than this library's; use the library of the agent's version": (
        "whoever wrote the policy is of another version than the library",
        "use one version of both",
    ),
    "wrong checksum": ("the policy is damaged, or half written by one that was killed", _AGAIN),
    "more devices than a policy can hold": ("the policy is damaged", _AGAIN),
    "an unknown state": ("the policy is damaged, or of a newer version", _AGAIN),
    "an unknown class": ("the policy is damaged, or of a newer version", _AGAIN),
    "being written and never finished": ("its writer was killed or stopped within", "let the writer write it again"),
    "changing all the time": ("somebody writes to the policy without end", "find out who"),
    "it names other devices than before": ("a policy may change amounts, not devices", _AGAIN),
}
_CALLS: Final = (
    r"vgpu_log\(\s*VGPU_LOG_\w+,\s*",
    r"\brefuse\(reason,\s*",
    r"snprintf\((?:s->)?reason,\s*(?:VGPU_REASON_MAX|sizeof (?:s->)?reason),\s*",
    r"(?:return|wrong =) (?=\"[a-z])",
)
_TEXT: Final = re.compile(r"(?:\s*(?:\"((?:[^\"\\]|\\.)*)\"|(VGPU_SIZE_FORMS)))+")
_PIECE: Final = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|(VGPU_SIZE_FORMS)")
_NUMBER: Final = re.compile(r"%[-.\d]*(?:hh|h|ll|l|z)?[a-zA-Z]")


def library_messages() -> dict[str, str]:
    """Return message -> name of the source that says it, for all of hook/shim."""
    found: dict[str, str] = {}
    for source in sorted((TOP / "hook" / "shim").glob("*.c")):
        text = source.read_text()
        for call in _CALLS if source.name in {"policy.c", "setup.c"} else _CALLS[:3]:
            for match in re.finditer(call, text):
                words = _TEXT.match(text, match.end())
                if words is not None:
                    pieces = (plain or "FORMS" for plain, _ in _PIECE.findall(words[0]))
                    found.setdefault(_NUMBER.sub(GAP, "".join(pieces)), source.name)
    return found


def log_rows() -> Iterator[str]:
    """Yield a row for each message of the library; one that `LOG` does not explain stands there bare."""
    messages = library_messages()
    for words in [*LOG, *sorted(messages.keys() - LOG.keys())]:
        meaning, remedy = LOG.get(words, ("", ""))
        yield f"| {cell(words)} | {cell(meaning)} | {cell(remedy)} |"


# ---- the command line ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Raised:
    """One place that raises an error of ours: the class and the four parts of its message."""

    kind: str
    parts: tuple[str, ...]
    source: str


#: Constants that modules import from each other and put into messages.
_SHARED: Final = {"MEMORY_FORMS": units.MEMORY_FORMS, "CORES_FORMS": units.CORES_FORMS}


class _Raises(ast.NodeVisitor):
    """Collects what a module raises; a module's own `_defect` helper stands for the class that it makes."""

    def __init__(self, source: str, helper: tuple[str, str] | None) -> None:
        self.source = source
        self.helper = helper
        self.found: list[Raised] = []
        self.texts: list[dict[str, ast.expr]] = [{}]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Remember what a function's own names stand for: parts of messages are often named first."""
        self.texts.append({})
        self.generic_visit(node)
        self.texts.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        """Remember `a = "..."` and `a, b = "...", "..."`."""
        for target in node.targets:
            pairs = (
                zip(target.elts, node.value.elts, strict=False)
                if (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple))
                else [(target, node.value)]
            )
            for name, value in pairs:
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant | ast.JoinedStr | ast.IfExp):
                    self.texts[-1][name.id] = value
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Remember constants of the module."""
        if isinstance(node.target, ast.Name) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            self.texts[-1][node.target.id] = node.value
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Take the calls that make one of our errors."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        error = getattr(model, name, None)
        if isinstance(error, type) and issubclass(error, model.PartageError) and len(node.args) == 4:
            self.found.append(Raised(name, tuple(map(self.words, node.args)), self.source))
        elif len(node.args) == 4 and (name == "Problem" or getattr(node.func, "attr", "") == "note"):
            self.found.append(Raised(model.AskError.__name__, tuple(map(self.words, node.args)), self.source))
        elif name == "_defect" and self.helper:
            parts = (*map(self.words, node.args), self.helper[1])
            self.found.append(Raised(self.helper[0], parts, self.source))
        self.generic_visit(node)

    def words(self, node: ast.expr) -> str:
        """Return an expression as it reads in a message."""
        text = GAP
        match node:
            case ast.Constant():
                text = str(node.value)
            case ast.JoinedStr():
                text = "".join(map(self.words, node.values))
            case ast.FormattedValue():
                text = self.words(node.value)
            case ast.Attribute(value=ast.Name(id="names")):
                text = str(getattr(names, node.attr, GAP))
            case ast.IfExp():
                text = f"{self.words(node.body)} / {self.words(node.orelse)}"
            case ast.Name():
                known = next((texts[node.id] for texts in reversed(self.texts) if node.id in texts), None)
                text = self.words(known) if known is not None else str(_SHARED.get(node.id, GAP))
            case ast.BoolOp():
                text = self.words(node.values[-1])
        return text


def raised() -> list[Raised]:
    """Return every error that the package raises, in the order of its modules."""
    found: list[Raised] = []
    for path in sorted((TOP / "python" / "partage").rglob("*.py")):
        text = path.read_text()
        made = re.search(r"def _defect\(.*?return (\w+)\((.*?)\)\n", text, re.DOTALL)
        helper = None
        if made:
            step = re.findall(r'"([^"]*)"', made[2])
            helper = (made[1], step[-1] if step else GAP)
        visitor = _Raises(str(path.relative_to(TOP / "python")), helper)
        tree = ast.parse(text)
        if made:
            tree.body = [n for n in tree.body if not (isinstance(n, ast.FunctionDef) and n.name == "_defect")]
        visitor.visit(tree)
        found += visitor.found
    return found


def command_rows() -> Iterator[str]:
    """Yield a section's table for each class of errors."""
    everything = raised()
    for name in sorted({found.kind for found in everything}):
        error = getattr(model, name)
        code = exit_codes.of_error(error.__new__(error))  # by its class alone
        yield f"### {name}: exit code {code.value}"
        yield " ".join((error.__doc__ or "").split())
        rows = ["| object | value | limit | next step |", "|---|---|---|---|"]
        rows += dict.fromkeys(
            "| " + " | ".join(map(cell, found.parts)) + " |" for found in everything if found.kind == name
        )
        yield "\n".join(rows)


def cell(text: str) -> str:
    """Return text that can stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


# ---- the page --------------------------------------------------------------------------------------------------------


def doctor_rows() -> Iterator[str]:
    """Yield a row for each kind of finding."""
    for name, kind in KINDS.items():
        yield f"| `{name}` | {kind.severity.name.lower()} | {cell(kind.meaning)} | {cell(kind.remedy)} |"


def page(note: str) -> str:
    """Return the whole page."""
    parts = [
        "# Errors",
        note,
        f"Everything that partage says when something is wrong. `{GAP}` stands for what differs from case to case.",
        "## What a CUDA program sees",
        PROGRAM_SEES,
        "## The library's log",
        (
            "Written where `PARTAGE_LOG` names a file or `stderr`, at the level `PARTAGE_LOG_LEVEL`\n"
            "([variables](environment.md)): `partage[pid] level: message`."
        ),
        "\n".join(["| message | meaning | next step |", "|---|---|---|", *log_rows()]),
        "## `partage doctor`",
        (
            "Each finding has an id, and in `--json` its severity, object, value, limit and next step. The exit code\n"
            "follows the worst: a fault 1, a warning 7, else 0."
        ),
        "\n".join(["| id | severity | meaning | next step |", "|---|---|---|---|", *doctor_rows()]),
        "## The command line",
        "One line on stderr, `partage: object: value; limit; next step`, and the class's exit code ([all](cli.md)).",
        *command_rows(),
    ]
    return "\n\n".join(parts) + "\n"
