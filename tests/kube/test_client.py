"""We test these aspects of requests: what is tried again, how often and after what wait; what an error says; lists by
pages; tokens that are renewed; configurations that cannot be read."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import httpx2
import pytest
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, Pod

from partage.kube import Backoff, Client, Retry, load_config
from partage.kube.config import TokenFile
from partage.kube.poster import Poster
from partage.model import KubeError
from tests.kube.api_server import ApiServer, Fault
from tests.kube.support import FakeClock, client_of, scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from lightkube.config.kubeconfig import SingleConfig

POD = "/api/v1/namespaces/default/pods/a"


def named(pod: Pod) -> str | None:
    assert pod.metadata
    return pod.metadata.name


@pytest.mark.parametrize(
    "faults",
    [[Fault(500)], [Fault(503)], [Fault(0)], [Fault(429, {"Retry-After": "2"})], [Fault(502, body="<html>"), Fault(0)]],
    ids=["500", "503", "cut", "429", "proxy, then cut"],
)
def test_a_get_is_tried_again(faults: list[Fault]) -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock(jumps=True)
        server.put_pod("a", "u1")
        server.faults.extend(faults)
        async with client_of(server, clock) as client:
            assert named(await client.get(Pod, "a", namespace="default")) == "a"
        assert server.count("GET") == len(faults) + 1
        assert len(clock.slept) == len(faults)

    scenario(play)


def test_who_may_write_only_for_a_while_is_asked_before_each_try() -> None:
    """A leader that was frozen between two tries sends nothing more; it may read on."""

    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        server.faults.append(Fault(500, matches=lambda request: request.method == "PATCH"))
        says = [True, False]

        async def holds() -> bool:
            return says.pop(0)

        async with client_of(server, FakeClock(jumps=True)) as client:
            with pytest.raises(KubeError, match="not sent") as caught:
                await client.guarded(holds).patch(Pod, "a", {"metadata": {"labels": {"x": "y"}}}, namespace="default")
            assert (caught.value.status, caught.value.reason) == (429, "NotNow")
            assert server.count("PATCH") == 1
            assert not says
            assert named(await client.guarded(holds).get(Pod, "a", namespace="default")) == "a"
            await client.patch(Pod, "a", {"metadata": {"labels": {"x": "y"}}}, namespace="default")  # the unguarded one

    scenario(play)


def test_retry_after_is_waited_for() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock(jumps=True)
        server.put_pod("a", "u1")
        server.faults.extend([Fault(429, {"Retry-After": "7"}), Fault(429, {"Retry-After": "soon"})])
        async with client_of(server, clock) as client:
            await client.get(Pod, "a", namespace="default")
        assert clock.slept[0] == 7
        assert 0.1 <= clock.slept[1] <= 0.2  # not a number of seconds: our own wait

    scenario(play)


def test_retries_are_bounded_and_the_last_answer_is_told() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock(jumps=True)
        server.faults.extend(Fault(500) for _ in range(20))
        async with client_of(server, clock, Retry(attempts=4, waits=Backoff(1, 100))) as client:
            with pytest.raises(KubeError, match="500 Fault: asked for by the test") as caught:
                await client.list(Pod)
        assert caught.value.status == 500
        assert server.count("LIST") == 4
        assert [0.5 * 2**n <= slept <= 2**n for n, slept in enumerate(clock.slept)] == [True] * 3

    scenario(play)


def test_a_request_ends_within_its_time() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock(jumps=True)
        server.faults.extend(Fault(429, {"Retry-After": "20"}) for _ in range(5))
        async with client_of(server, clock, Retry(total_s=30)) as client:
            with pytest.raises(KubeError) as caught:
                await client.get(Pod, "a", namespace="default")
        assert caught.value.status == 429
        assert clock.slept == [20]

    scenario(play)


def test_what_is_refused_is_not_tried_again_and_says_what_to_do() -> None:
    async def play(server: ApiServer) -> None:
        server.faults.append(Fault(403))
        clock = FakeClock()
        async with client_of(server, clock) as client:
            with pytest.raises(KubeError) as caught:
                await client.get(Node, "n1")
        assert str(caught.value) == (
            "GET api/v1/nodes/n1: 403 Fault: asked for by the test; the API server refuses; "
            "have a role give that user the right, or see which admission policy the message names"
        )
        assert (caught.value.status, caught.value.reason) == (403, "Fault")
        assert server.count("GET") + server.count("LIST") == 1

    scenario(play)


def test_a_create_whose_answer_was_lost_is_not_sent_twice() -> None:
    async def play(server: ApiServer) -> None:
        pod = Pod(metadata=ObjectMeta(name="b", namespace="default"), spec=PodSpec(containers=[Container(name="c")]))
        async with client_of(server, FakeClock(jumps=True)) as client:
            for status in (0, 500):
                server.faults.append(Fault(status, after=True))
                with pytest.raises(KubeError) as caught:
                    await client.create(pod)
                assert caught.value.status == status
            assert server.count("POST") == 2
            server.faults.append(Fault(429))  # not done, so it may be sent again
            with pytest.raises(KubeError, match="already exists"):
                await client.create(pod)
            assert server.count("POST") == 4

    scenario(play)


def test_an_eviction_that_a_budget_refuses_is_not_repeated() -> None:
    """No waiting of ours mends it; whoever asked hears that it was a budget."""
    said = {"reason": "TooManyRequests", "message": "it would", "details": {"causes": [{"reason": "DisruptionBudget"}]}}

    async def play(server: ApiServer) -> None:
        pod = Pod(metadata=ObjectMeta(name="b", namespace="default"), spec=PodSpec(containers=[Container(name="c")]))
        async with client_of(server, FakeClock(jumps=True)) as client:
            server.faults.append(Fault(429, {"Retry-After": "10"}, body=json.dumps(said)))
            with pytest.raises(KubeError, match="it would") as caught:
                await client.create(pod)
            assert (caught.value.status, caught.value.causes) == (429, frozenset({"DisruptionBudget"}))
            for details in (None, {}, {"causes": None}, {"causes": [{"message": "x"}]}):
                server.faults.append(Fault(403, body=json.dumps({**said, "details": details})))
                with pytest.raises(KubeError, match="it would") as caught:
                    await client.create(pod)
                assert caught.value.causes == frozenset()
            assert server.count("POST") == 5

    scenario(play)


def test_nobody_listens() -> None:
    async def play(server: ApiServer) -> None:
        clock = FakeClock(jumps=True)
        config = server.config()
        config = config._replace(cluster=type(config.cluster)(server="http://127.0.0.1:1"))
        async with Client.connect(config, manager="test", clock=clock, retry=Retry(attempts=2)) as client:
            with pytest.raises(KubeError, match="ConnectError") as caught:
                await client.get(Node, "n1")
        assert caught.value.status == 0
        assert len(clock.slept) == 1

    scenario(play)


def test_an_answer_of_something_else() -> None:
    async def play(server: ApiServer) -> None:
        server.faults.append(Fault(200, body="<html>Log in to the proxy</html>"))
        async with client_of(server, FakeClock()) as client:
            with pytest.raises(KubeError, match="not an answer of this API"):
                await client.get(Node, "n1")

    scenario(play)


def test_lists_come_by_pages() -> None:
    async def play(server: ApiServer) -> None:
        for number in range(1203):
            server.put_pod(f"p{number}", f"u{number}", node="n1" if number % 3 else "n2")
        async with client_of(server, FakeClock()) as client:
            everything = await client.list(Pod)
            here = await client.list(Pod, namespace="default", fields={"spec.nodeName": "n1"})
        assert len(everything.items) == 1203
        assert everything.version == str(server.version)
        assert len(here.items) == 802
        assert server.count("LIST") == 5
        assert server.requests[3][1] == "/api/v1/namespaces/default/pods"

    scenario(play)


def test_patch_and_delete() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1", annotations={"x": "1", "y": "2"})
        async with client_of(server, FakeClock()) as client:
            body = {"metadata": {"annotations": {"x": None, "z": "3"}}}
            pod = await client.patch(Pod, "a", body, namespace="default")
            assert pod.metadata
            assert pod.metadata.annotations == {"y": "2", "z": "3"}
            await client.delete(Pod, "a", namespace="default")
            with pytest.raises(KubeError) as caught:
                await client.delete(Pod, "a", namespace="default")
        assert caught.value.status == 404
        assert server.requests[0][2]["fieldManager"] == "test"

    scenario(play)


def test_a_renewed_token_is_read_again(tmp_path: Path) -> None:
    async def play(server: ApiServer) -> None:
        token = tmp_path / "token"
        token.write_text("first\n")
        server.put_pod("a", "u1")
        async with client_of(server, FakeClock(), token_file=str(token)) as client:
            await client.get(Pod, "a", namespace="default")
            token.write_text("second\n")
            await client.get(Pod, "a", namespace="default")
            server.refused_tokens.add("first")
            await client.get(Pod, "a", namespace="default")  # refused once, then with the file's
            assert server.tokens == ["first", "first", "first", "second"]
            server.refused_tokens.add("second")
            with pytest.raises(KubeError, match="token has expired") as caught:
                await client.get(Pod, "a", namespace="default")
        assert caught.value.status == 401
        assert server.tokens[4:] == ["second"]  # the file has no other: not sent again

    scenario(play)


def test_a_renewed_token_is_read_again_for_a_watch_by_the_poster(tmp_path: Path) -> None:
    async def play(server: ApiServer) -> None:
        token = tmp_path / "token"
        token.write_text("first\n")
        async with (
            Poster(server.config(str(token))) as poster,
            client_of(server, FakeClock(), streams=poster) as client,
        ):
            await poster.post("/api/v1/pods", b'{"metadata": {"name": "a"}}')
            token.write_text("second\n")
            server.refused_tokens.add("first")
            async with aclosing(client.watch(Pod, version="100")) as events:
                server.put_pod("b", "u2")
                assert (await anext(events)).object is not None
            server.refused_tokens.add("second")
            with pytest.raises(KubeError, match="token has expired"):
                await anext(client.watch(Pod, version="100"))
        assert server.tokens == ["first", "first", "second", "second"]

    scenario(play)


def test_a_token_is_read_once_a_minute_and_kept_while_the_file_is_away(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "token"
    auth = TokenFile(str(path), clock)

    def sent() -> str:
        return next(auth.auth_flow(httpx2.Request("GET", "http://a"))).headers["Authorization"]

    with pytest.raises(KubeError, match="mount a service account's token"):
        sent()
    path.write_text("one")
    assert sent() == "Bearer one"
    path.write_text("two")
    clock.advance(59)
    assert sent() == "Bearer one"
    clock.advance(1)
    assert sent() == "Bearer two"
    path.unlink()
    clock.advance(61)
    assert sent() == "Bearer two"


KUBECONFIG = """
current-context: a
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: a, context: {cluster: c}}, {name: b, context: {cluster: c, user: u, namespace: other}}]
users: [{name: u, user: {token: secret}}]
"""


def test_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    assert load_config(file).user is not None
    other = load_config(file, "b")
    assert other.namespace == "other"
    assert other.user is not None
    assert other.user.token == "secret"  # noqa: S105
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert load_config().context_name == "a"

    account = tmp_path / "account"
    account.mkdir()
    for name in ("token", "namespace", "ca.crt"):
        (account / name).write_text(name)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    inside = load_config(account=account)
    assert inside.cluster.server == "https://[fd00::1]:443"
    assert inside.user is not None
    assert inside.user.token_file == str(account / "token")
    assert load_config(file, account=account).context_name == "a"


def test_several_files_are_one_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for kubectl: the first that says something counts, and files that are not there are left out."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("clusters: []\nusers: [{name: u, user: {token: mine}}]\ncontexts: []\n")
    second.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{first}::{second}")
    assert load_config().context_name == "a"
    assert load_config().fname == second
    user = load_config(context="b").user
    assert user is not None
    assert user.token == "mine"  # noqa: S105
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{tmp_path / 'nor'}")
    with pytest.raises(KubeError, match="none not found"):
        load_config()


def _login(tmp_path: Path, script: str, version: str = "v1") -> SingleConfig:
    program = tmp_path / "login"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    login = {"apiVersion": f"client.authentication.k8s.io/{version}", "command": "./login", "args": ["tok"]}
    file = tmp_path / "config"
    file.write_text(KUBECONFIG.replace("token: secret", f"exec: {json.dumps(login)}"))
    return load_config(file, "b")


@pytest.mark.parametrize("by_poster", [False, True], ids=["client", "poster"])
def test_a_login_program_is_asked_once_and_when_its_token_is_refused(tmp_path: Path, by_poster: bool) -> None:
    """K25: how people reach the clusters of clouds. Four requests at once are one question to whoever sits there."""
    script = (
        'echo "$KUBERNETES_EXEC_INFO" >> asked; n=$(wc -l < asked)\necho "{\\"status\\": {\\"token\\": \\"$1$n\\"}}"'
    )
    config = _login(tmp_path, f"cd {tmp_path}; {script}")

    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        there = config._replace(cluster=server.config().cluster)
        async with Client.connect(there, manager="test") as client, Poster(there) as poster:

            def asks() -> Awaitable[object]:
                if by_poster:
                    return poster.post("/api/v1/pods", b"{}")
                return client.get(Pod, "a", namespace="default")

            await asyncio.gather(*(asks() for _ in range(4)))
            assert set(server.tokens) == {"tok1"}
            server.refused_tokens.add("tok1")
            await asyncio.gather(*(asks() for _ in range(4)))
            assert server.tokens[-1] == "tok2"
        asked = (tmp_path / "asked").read_text().splitlines()
        assert len(asked) == 2
        assert json.loads(asked[0])["kind"] == "ExecCredential"

    scenario(play)


@pytest.mark.parametrize(
    ("script", "version", "told"),
    [
        ("exit 3", "v1", "ended with 3"),
        ("echo hello", "v1beta1", "printed something else"),
        ("echo '{}'", "v1", "printed no token"),
        ("", "v7", "version client.authentication.k8s.io/v7; client.authentication.k8s.io/v1 or v1beta1"),
    ],
)
def test_a_login_program_that_helps_nobody_is_named(tmp_path: Path, script: str, version: str, told: str) -> None:
    config = _login(tmp_path, script, version)
    named = f"login program ./login: {told}"

    async def run() -> None:
        async with Client.connect(config, manager="test") as client:
            with pytest.raises(KubeError, match=named):
                await client.get(Pod, "a", namespace="default")
        async with Poster(config) as poster, Client.connect(config, manager="test", streams=poster) as client:
            answer = await poster.post(POD, b"{}")
            assert (answer.status, answer.is_sent, named in answer.message) == (0, False, True)
            with pytest.raises(KubeError, match=named):
                await anext(client.watch(Pod, version="1"))

    asyncio.run(run())


@pytest.mark.parametrize(
    "user",
    [
        "auth-provider: {name: gcp}",
        'client-certificate-data: "!!!", client-key-data: eA==',
        "client-certificate: /nope, client-key: /nope",
    ],
)
def test_what_cannot_be_used_to_connect_is_named(tmp_path: Path, user: str) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG.replace("token: secret", user))
    config, named = load_config(file, "b"), f"kubeconfig {file}, context b: .*; correct it"
    with pytest.raises(KubeError, match=named):
        Client.connect(config, manager="test")
    with pytest.raises(KubeError, match=named):
        Poster(config)


@pytest.mark.parametrize(
    "text",
    [None, "a: [", "x: 1", "[]", KUBECONFIG.replace("current-context: a", ""), "\udcff\udcfe", "a: " + "[" * 3000],
)
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(KubeError, match=f"{file}: .*; name the right file|{file}: .*current-context"):
        load_config(file)


def test_a_client_serves_many_tasks() -> None:
    async def play(server: ApiServer) -> None:
        server.put_pod("a", "u1")
        async with client_of(server, FakeClock()) as client:
            pods = await asyncio.gather(*(client.get(Pod, "a", namespace="default") for _ in range(50)))
        assert {named(pod) for pod in pods} == {"a"}

    scenario(play)


@pytest.mark.parametrize("text", ["root:x:0:0", "[1]", "{contexts: 1}"])
def test_a_file_of_something_else_is_told_in_words(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(KubeError, match=r"config: (is something else|.*no current context).*; ") as caught:
        load_config(file)
    assert "\n" not in str(caught.value)
