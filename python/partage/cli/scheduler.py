"""`partage scheduler`: the extender of kube-scheduler and its books, as a long-running program.

Its flags are its settings' and are read by the program itself, which also says what is wrong with them.
"""

from __future__ import annotations

import click


@click.command(
    "scheduler",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    short_help="Place pods on shares of cards, beside a kube-scheduler.",
)
@click.argument("settings", nargs=-1, type=click.UNPROCESSED, metavar="[--KEY VALUE]...")
def scheduler(settings: tuple[str, ...]) -> int:
    """Place pods on shares of cards: the extender of kube-scheduler, and its books.

    `--help` lists every setting; the file /etc/partage/scheduler.yaml and variables PARTAGE_SCHEDULER_... say the same.
    Runs until SIGTERM; logs are JSON on standard error.
    """
    from partage.scheduler.program import run  # noqa: PLC0415 -- the other commands need none of it

    return run(settings)
