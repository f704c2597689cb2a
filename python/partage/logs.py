"""The log of a long-running program: one JSON object a line on standard error, the standard library's loggers included.

Called once by the agent's and the scheduler's start. Keys: `time` (RFC 3339, UTC), `level`, `logger`, `event`, and
whatever the line is about. Values whose key sounds like a secret are not written. Cannot fail.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from structlog.typing import Processor

LEVELS: Final = ("debug", "info", "warning", "error")
_SECRET: Final = ("token", "password", "secret", "authorization")


def configure_logs(level: str = "info", *, json: bool = True) -> None:
    """Send every log line to standard error; `json` off: as people read it, with colours on a terminal."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper("iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        without_secrets,
    ]
    last: Processor = (
        structlog.processors.JSONRenderer(serializer=_json)
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), timestamp_key="time")
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,  # first: a line that nobody will see is not made
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx2", "httpcore2", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def without_secrets(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Blank out what may be a secret."""
    for key in line:
        if any(word in key.lower() for word in _SECRET):
            line[key] = "..."
    return line


def _json(line: object, **_: object) -> str:
    return msgspec.json.encode(line, enc_hook=str).decode()
