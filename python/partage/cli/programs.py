"""`partage scheduler` and `partage webhook`: the long-running programs.

Their flags are their settings' and are read by the programs themselves, which also say what is wrong with them. Each
program is imported when it is started: the other commands need none of it.
"""

from __future__ import annotations

import importlib

import click


def _program(name: str, room: str, short: str, about: str) -> click.Command:
    """Return the command that runs `partage.<room>.program` with whatever is given."""

    def start(settings: tuple[str, ...]) -> int:
        return int(importlib.import_module(f"partage.{room}.program").run(settings))

    rest = click.Argument(["settings"], nargs=-1, type=click.UNPROCESSED, metavar="[--KEY VALUE]...")
    how = (
        f"`--help` lists every setting; the file /etc/partage/{name}.yaml and variables PARTAGE_{name.upper()}_... say "
        "the same.\nRuns until SIGTERM; logs are JSON on standard error."
    )
    return click.Command(
        name,
        callback=start,
        params=[rest],
        help=f"{about}\n\n{how}",
        short_help=short,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )


scheduler = _program(
    "scheduler",
    "scheduler",
    "Place pods on shares of cards, beside a kube-scheduler.",
    "Place pods on shares of cards: the extender of kube-scheduler, and its books.",
)
webhook = _program(
    "webhook",
    "admission",
    "Admit pods that ask for shares.",
    "Admit pods that ask for shares: fill in defaults, refuse what has no meaning, guard grants.",
)
