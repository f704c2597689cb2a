"""`partage webhook`: admission of pods that ask for shares, as a long-running program.

Its flags are its settings' and are read by the program itself, which also says what is wrong with them.
"""

from __future__ import annotations

import click


@click.command(
    "webhook",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    short_help="Admit pods that ask for shares.",
)
@click.argument("settings", nargs=-1, type=click.UNPROCESSED, metavar="[--KEY VALUE]...")
def webhook(settings: tuple[str, ...]) -> int:
    """Admit pods that ask for shares: fill in defaults, refuse what has no meaning, guard grants.

    `--help` lists every setting; the file /etc/partage/webhook.yaml and variables PARTAGE_WEBHOOK_... say the same.
    Runs until SIGTERM; logs are JSON on standard error.
    """
    from partage.admission.program import run  # noqa: PLC0415 -- the other commands need none of it

    return run(settings)
