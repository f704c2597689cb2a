#!/usr/bin/env python3
"""Write the generated pages of docs/reference, or say which are not current: reference.py [--check].

`cli.md` from the commands themselves, `agent.md`, `scheduler.md` and `webhook.md` from the programs' settings,
`entry-points.md` from the class tables of hook/include/partage, `abi.md` from the headers beside them, `reasons.md`
and `errors.md` from what says and raises them, `metrics.md` from the programs' own pages, `simulator-support.md` from
the build's own list; and the schema of the chart's values, from all settings. Called by `make docs`; a test calls it
with `--check`. What can go wrong: nothing was built, and then there is no list of what the simulator supports.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import reference_abi
import reference_agent
import reference_errors
import reference_metrics
import reference_reasons
import reference_scheduler
import reference_webhook
from chart_schema import schema_text

from partage.cli.app import cli
from partage.cli.exit_codes import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = TOP / "docs" / "reference"
VALUES_SCHEMA: Final = TOP / "deploy" / "chart" / "partage" / "values.schema.json"
BUILD: Final = Path(os.environ.get("PARTAGE_BUILD", TOP / "build"))
NOTE: Final = "<!-- Written by `make docs`; do not edit. -->"
DOES: Final = {
    "METERED": "takes or frees device memory: charged before the driver is called",
    "GATED": "starts work on the device: waits for a turn where compute is shared, copies and fills only if large",
    "VIRTUALISED": "answers about the share instead of the card",
    "REFUSED": "could give memory that is not metered: `NOT_SUPPORTED` under a limit, the driver's own answer without",
    "FORWARDED": "goes to the driver, on purpose",
    "HARMLESS": "goes to the driver; takes no device memory to speak of and tells nothing about others",
}


#: Classes whose names each need a reason that a user accepts: what waits, what is refused, what is let through.
EXPLAINED: Final = ("GATED", "REFUSED", "FORWARDED")


def cell(text: str) -> str:
    """Return text that can stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def value_of(option: click.Option) -> str:
    """Return how an option's value is written, empty for a flag."""
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return " " + "\\|".join(map(str, option.type.choices))
    return f" {(option.metavar or option.type.name).upper()}"


def option_row(option: click.Option) -> str:
    """Return one option as a row of a table."""
    names = ", ".join(f"`{name}`" for name in option.opts)
    notes = [option.help or ""]
    if option.required:
        notes.append("Required.")
    if option.show_default and isinstance(option.default, str | int | float):
        notes.append(f"Default: {option.default}.")
    return f"| {names}{value_of(option)} | {cell(' '.join(dict.fromkeys(filter(None, notes))))} |"


def command_pages(command: click.Command, path: str, parent: click.Context | None) -> Iterator[str]:
    """Yield a command's section and those of its subcommands."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"## {path}\n\n    {path} {pieces}".rstrip()
    yield re.sub(r"\\?\x08\n?", "", inspect.cleandoc(command.help or "")).strip()
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    if options:
        yield "\n".join(["| option | meaning |", "|---|---|", *map(option_row, options)])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from command_pages(below, f"{path} {name}", context)


def cli_page() -> str:
    """Return the page of all commands, with the exit codes at its end."""
    codes = [f"| {code.value} | {cell(meaning)} |" for code, meaning in MEANINGS.items()]
    codes.append("| n | `run`: the program's own code; 128 + s where signal s ended it |")
    parts = [
        "# Command line",
        NOTE,
        "`-h` and `--help` work everywhere. Errors go to stderr in one line: object; value; limit; next step.",
        *command_pages(cli, "partage", None),
        "## Exit codes",
        "\n".join(["| code | meaning |", "|---|---|", *codes]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def read_table(name: str) -> dict[str, list[str]]:
    """Return class -> entry points of one class table."""
    found: dict[str, list[str]] = {kind: [] for kind in DOES}
    for match in re.finditer(r"^API\((\w+), (\w+)\)", (TOP / "hook/include/partage" / name).read_text(), re.MULTILINE):
        found[match[2]].append(match[1])
    return found


def reasons(name: str, kind: str) -> Iterator[tuple[str, list[str]]]:
    """Yield why a class table puts names into a class, and which, in its order."""
    text = (TOP / "hook/include/partage" / name).read_text()
    for match in re.finditer(rf"/\* {kind}: (.*?)\*/((?:\nAPI\(\w+, {kind}\))+)", text, re.DOTALL):
        yield " ".join(match[1].replace("\n *", " ").split()), re.findall(r"API\((\w+)", match[2])


def entry_points_page() -> str:
    """Return the page that says what happens to each public name of cuda.h and nvml.h."""
    parts = [
        "# What the library does about each entry point",
        NOTE,
        (
            "Every public name of `cuda.h` and `nvml.h`, CUDA 12 and 13, from `hook/include/partage/cuda_api.def` and\n"
            "`nvml_api.def`, which also say why. A device that was not granted does not exist for any of them."
        ),
    ]
    for title, file in (("cuda.h", "cuda_api.def"), ("nvml.h", "nvml_api.def")):
        table = read_table(file)
        parts.append(f"## {title}: {sum(map(len, table.values()))} names")
        for kind, names in table.items():
            if not names:
                continue
            parts += [f"### {kind.lower()}: {len(names)}", f"{DOES[kind]}."]
            groups = list(reasons(file, kind)) if kind in EXPLAINED else [("", names)]
            parts += ["- " + f"{why}: " * bool(why) + ", ".join(f"`{n}`" for n in group) for why, group in groups]
    return "\n\n".join(parts) + "\n"


def support_page() -> str:
    """Return the build's own list; SystemExit where nothing was built."""
    source = BUILD / "generated" / "sim_support.md"
    if not source.is_file():
        raise SystemExit(f"reference: no {source}; run `make build`")
    title, _, rest = source.read_text().partition("\n")
    return f"{title}\n\n{NOTE}\n{rest}"


def main(*, check: bool) -> int:
    """Write pages and schema, or with `check` name those that are not current; 1 where there are some."""
    stale = []
    pages = {
        "cli.md": cli_page(),
        "entry-points.md": entry_points_page(),
        "abi.md": reference_abi.page(NOTE),
        "agent.md": reference_agent.page(NOTE),
        "scheduler.md": reference_scheduler.page(NOTE),
        "webhook.md": reference_webhook.page(NOTE),
        "errors.md": reference_errors.page(NOTE),
        "metrics.md": reference_metrics.page(NOTE),
        "reasons.md": reference_reasons.page(NOTE),
        "simulator-support.md": support_page(),
    }
    files = {REFERENCE / name: text for name, text in pages.items()}
    files[VALUES_SCHEMA] = schema_text()
    for path, text in files.items():
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(TOP)))
        if not check:
            path.write_text(text)
    if check and stale:
        print(f"{', '.join(stale)} not current: run `make docs` and commit the result")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
