"""Where the API server is and who we are: a kubeconfig, or the pod's own service account.

$KUBECONFIG may name several files, as for kubectl: of two that say the same the first counts. A service account's token
is short-lived and kubelet renews its file, so the file is read again once a minute and at every 401. What can go wrong:
no configuration at all, one that cannot be read, or a login that does not work; KubeError says which file or program.
Both kinds of clients, lightkube's and `poster.py`'s, are made of what `connection` returns.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2
import msgspec
import yaml
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from partage.kube.clock import Clock, SystemClock
from partage.kube.exec_login import ExecLogin
from partage.model import KubeError

if TYPE_CHECKING:
    from collections.abc import Generator

    from lightkube.config.client_adapter import ConnectionParams

TOKEN_LIVES_S: Final = 60.0
CONNECT_S: Final = 5.0
ANSWER_S: Final = 10.0  # between two pieces of an answer
POOL_S: Final = 10.0
#: What lightkube, YAML and OpenSSL raise for a file that is not what it should be.
_UNREADABLE: Final = (
    ConfigError,
    OSError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    RecursionError,
    msgspec.ValidationError,
    yaml.YAMLError,
)


def load_config(
    kubeconfig: str | Path | None = None, context: str | None = None, account: str | Path = SERVICE_ACCOUNT
) -> SingleConfig:
    """Return the configuration: of `kubeconfig` where given, else the pod's, else of $KUBECONFIG or ~/.kube/config.

    Raises KubeError.
    """
    inside = kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and (Path(account) / "token").exists()
    source = str(account if inside else kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")
    try:
        found = KubeConfig.from_service_account(source) if inside else _merged(source, several=kubeconfig is None)
        single = found.get(context)
    except _UNREADABLE as error:
        limit = "a kubeconfig, or a service account's directory"
        raise KubeError(source, _said(error), limit, "name the right file with --kubeconfig") from error
    if single is None:
        raise KubeError(source, "no current context", "one context must be current", "add `current-context`")
    return single if single.user else single._replace(user=User())


def _merged(source: str, *, several: bool) -> KubeConfig:
    """Return what the file says, or (`several`) the files of a list as kubectl has it: those not there are left out."""
    names = [name for name in source.split(os.pathsep) if name] if several else [source]
    there = [name for name in names if Path(name).expanduser().is_file()]
    files = [KubeConfig.from_file(name) for name in there or names]
    found = files[0]
    for other in files[1:]:
        found.clusters = {**other.clusters, **found.clusters}
        found.users = {**other.users, **found.users}
        if found.current_context is None or found.current_context not in found.contexts:
            found.fname = other.fname  # relative paths begin where the context in use stands
        found.contexts = {**other.contexts, **found.contexts}
        found.current_context = found.current_context or other.current_context
    return found


def _said(error: Exception) -> str:
    """Return what an error of others means: their own words where those are for people."""
    if isinstance(error, AttributeError | KeyError | TypeError):
        return f"is something else ({error!r})"
    return str(error) if isinstance(error, ConfigError | OSError) else repr(error)


class TokenFile(httpx2.Auth):
    """Sends the bearer token of a file, read again once a minute and where the server no longer takes it."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = Path(path)
        self._clock = clock
        self._read_at = float("-inf")
        self._token = ""

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Sign a request; once more with the file's token of now where that one was refused."""
        if self._clock.now() - self._read_at >= TOKEN_LIVES_S:
            self._read()
        sent = self._sign(request)
        response = yield request
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            self._read()
            if self._sign(request) != sent:
                yield request

    def _sign(self, request: httpx2.Request) -> str:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return self._token

    def _read(self) -> None:
        """Take the file's token; the one at hand stays where the file cannot be read, for kubelet may be at it."""
        try:
            self._token = self._path.read_text().strip()
            self._read_at = self._clock.now()
        except OSError as error:
            if not self._token:
                step = "mount a service account's token there"
                raise KubeError(str(self._path), error.strerror, "a token that can be read", step) from error


def connection(config: SingleConfig, parameters: ConnectionParams) -> dict[str, Any]:
    """Return what an HTTP client needs of a configuration, by httpx2's names: `base_url`, `verify`, `auth` and limits.

    Raises KubeError, which names the kubeconfig and its context.
    """
    try:
        settings = parameters.httpx_params(config)
    except _UNREADABLE as error:
        subject = f"kubeconfig {config.fname or ''}, context {config.context_name}"
        limit, step = "certificates and a login that can be used", "correct it, or name another context with --context"
        raise KubeError(subject, _said(error), limit, step) from error
    user = config.user
    if user is not None and user.token_file is not None:
        settings["auth"] = TokenFile(str(config.abs_file(user.token_file)), SystemClock())
    elif user is not None and user.exec is not None and user.token is None:
        settings["auth"] = ExecLogin(user.exec, config.fname.parent if config.fname else None)
    return settings


def http_client(config: SingleConfig, conn_parameters: ConnectionParams) -> httpx2.AsyncClient:
    """Return lightkube's HTTP client for a configuration; raises KubeError as `connection` does."""
    return httpx2.AsyncClient(**connection(config, conn_parameters))


def time_limits(quiet_s: float = ANSWER_S) -> httpx2.Timeout:
    """Return a request's: to connect, to get a connection, and `quiet_s` between two pieces of the answer."""
    return httpx2.Timeout(connect=CONNECT_S, read=quiet_s, write=ANSWER_S, pool=POOL_S)
