"""Logs in by the program that a kubeconfig names (`exec`), as kubectl does: clouds have one each.

It prints a token, which serves until the API server refuses it. Its standard error and input stay the terminal's, for
some ask there. Called by `config.py`. What can go wrong: it is not there, it fails, or it prints something else;
KubeError names it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

import httpx2
import msgspec

from partage.model import KubeError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from lightkube.config.models import UserExec

GROUP: Final = "client.authentication.k8s.io/"
VERSIONS: Final = ("v1", "v1beta1")
_ACCEPTED: Final = "a program that prints an ExecCredential with a token"


class _Status(msgspec.Struct, frozen=True):
    token: str = ""


class _Credential(msgspec.Struct, frozen=True):
    """What it prints, as far as it is read."""

    status: _Status | None = None


class ExecLogin(httpx2.Auth):
    """Signs requests with the token that a program prints; it runs at the first request and at every 401."""

    def __init__(self, login: UserExec, directory: Path | None) -> None:
        """`directory`: of the kubeconfig, where a relative path begins."""
        self._login = login
        command = login.command
        self._command = str(directory / command) if directory and os.sep in command else command
        self._token = ""
        self._asking = asyncio.Lock()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Sign a request; once more with a new token where that one was refused."""
        known = self._token
        token = known or await self._another(known)
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == httpx2.codes.UNAUTHORIZED and known:
            request.headers["Authorization"] = f"Bearer {await self._another(token)}"
            yield request

    async def _another(self, refused: str) -> str:
        """Return another token than this: of many requests at once one asks, for somebody may have to answer."""
        async with self._asking:
            if self._token == refused:
                self._token = await self._ask()
            return self._token

    async def _ask(self) -> str:
        version = self._login.apiVersion
        if version.removeprefix(GROUP) not in VERSIONS:
            raise self._problem(f"version {version}", f"{GROUP}{' or '.join(VERSIONS)}")
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": os.isatty(0)}}
        more = {pair.name: pair.value for pair in self._login.env or ()}
        environ = {**os.environ, **more, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        arguments = self._login.args or []
        try:
            program = await asyncio.create_subprocess_exec(
                self._command, *arguments, stdout=asyncio.subprocess.PIPE, env=environ
            )
        except OSError as error:
            raise self._problem(error.strerror or str(error)) from error
        told, _ = await program.communicate()
        if program.returncode:
            raise self._problem(f"ended with {program.returncode}")
        try:
            found = msgspec.json.decode(told, type=_Credential).status
        except (msgspec.DecodeError, UnicodeError) as error:
            raise self._problem(f"printed something else ({error})") from error
        if found is None or not found.token:
            raise self._problem("printed no token")
        return found.token

    def _problem(self, value: str, accepted: str = _ACCEPTED) -> KubeError:
        step = self._login.installHint or "run it by hand, or name another context with --context"
        return KubeError(f"kubeconfig's login program {self._login.command}", value, accepted, " ".join(step.split()))
