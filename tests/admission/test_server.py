"""The webhook's doors and pages, and its settings: errors are answers, figures say what happened, unknown keys are
named with the nearest known one."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from partage.admission import server
from partage.admission.options import AdmissionOptions
from partage.admission.server import Pages, Tally, application, pages
from partage.admission.settings import LAYOUT, load
from partage.model import UsageError
from tests.admission.support import container, pod_of, review_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from partage.admission.review import Answer, Request

GPU = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
MANIFEST = Path(__file__).resolve().parents[2] / "deploy" / "webhook" / "2-deployment.yaml"


def with_server(use: Callable[[TestClient, Tally], Awaitable[None]]) -> Tally:  # type: ignore[type-arg]
    tally = Tally()

    async def run() -> None:
        async with TestClient(TestServer(application(AdmissionOptions, tally))) as client:
            await use(client, tally)

    asyncio.run(run())
    return tally


def test_an_answer_on_the_wire() -> None:
    async def use(client: TestClient, _: Tally) -> None:  # type: ignore[type-arg]
        response = await client.post("/mutate", data=review_of(pod_of(container(limits=GPU))))
        assert response.status == 200
        told = await response.json()
        assert (told["apiVersion"], told["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert {key: told["response"][key] for key in ("uid", "allowed", "patchType")} == {
            "uid": "u-1",
            "allowed": True,
            "patchType": "JSONPatch",
        }
        assert json.loads(base64.b64decode(told["response"]["patch"]))[0]["path"] == "/spec/schedulerName"
        judged = await (await client.post("/validate", data=review_of(pod_of(container(limits=GPU))))).json()
        assert judged["response"] == {"uid": "u-1", "allowed": True}
        wrong = await (
            await client.post("/mutate", data=review_of(pod_of(container(limits={"nvidia.com/gpu": 99}))))
        ).json()
        assert (wrong["response"]["allowed"], wrong["response"]["status"]["code"]) == (False, 422)
        left = pod_of(container(limits=GPU), schedulerName="volcano")
        assert (await (await client.post("/mutate", data=review_of(left))).json())["response"]["warnings"]

    tally = with_server(use)
    assert tally.verdicts == {
        ("mutate", "changed"): 1,
        ("validate", "unchanged"): 1,
        ("mutate", "refused"): 1,
        ("mutate", "warned"): 1,
    }


def test_errors_are_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """K20: not even a defect of ours is an admission, or the end."""

    def defect(request: Request, options: AdmissionOptions, *, changes: bool) -> Answer:
        raise ZeroDivisionError

    async def use(client: TestClient, _: Tally) -> None:  # type: ignore[type-arg]
        assert (await client.post("/mutate", data=b"{")).status == 400
        assert (await client.post("/mutate", data=io.BytesIO(b"x" * (server.BODY_MAX + 1)))).status == 413
        assert (await client.get("/mutate")).status == 405
        with monkeypatch.context() as patched:
            patched.setattr(server, "decide", defect)
            failed = await client.post("/mutate", data=review_of(pod_of()))
            assert failed.status == 500
            assert "ZeroDivision" not in await failed.text()
        assert (await client.post("/mutate", data=review_of(pod_of()))).status == 200

    tally = with_server(use)
    assert tally.verdicts == {("mutate", "unreadable"): 1, ("mutate", "failed"): 1, ("mutate", "unchanged"): 1}


def test_pages() -> None:
    reasons = ["no certificate yet"]
    tally = Tally(expires=lambda: 1.8e9)
    for seconds in (0.0001, 0.002, 0.3):
        tally.add("mutate", "changed", seconds)

    async def run() -> None:
        async with TestClient(TestServer(pages(Pages(tally, lambda: reasons[0])))) as client:
            assert (await client.get("/healthz")).status == 200
            unready = await client.get("/readyz")
            assert (unready.status, await unready.text()) == (503, "no certificate yet\n")
            reasons[0] = ""
            assert (await client.get("/readyz")).status == 200
            text = await (await client.get("/metrics")).text()
        samples = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert samples["partage_webhook_reviews_total", "changed", "mutate"] == 3
        assert samples["partage_webhook_reviews_total", "failed", "validate"] == 0
        assert samples["partage_webhook_review_seconds_bucket", "0.0025"] == 2
        assert samples["partage_webhook_review_seconds_bucket", "+Inf"] == 3
        assert samples[("partage_webhook_review_seconds_count",)] == 3
        assert samples[("partage_webhook_certificate_expiry_timestamp_seconds",)] == 1.8e9

    asyncio.run(run())


# ---- settings --------------------------------------------------------------------------------------------------------


def test_settings_from_file_variables_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "webhook.yaml"
    file.write_text("kind: WebhookConfiguration\nruntimeClass: a\nscheduler: b\nask: {memoryFactor: 4}\n")
    environ = {
        "PARTAGE_WEBHOOK_CONFIG": str(file),
        "PARTAGE_WEBHOOK_SCHEDULER": "c",
        "PARTAGE_WEBHOOK_NCCL_SECONDS": "5",
    }
    settings = load(["--nccl-seconds=6", "--ask-default-cards", "0"], environ)
    options = settings.options()
    assert (options.runtime_class, options.scheduler, options.nccl_seconds) == ("a", "c", 6)
    assert (options.ask.memory_factor, options.ask.default_cards) == (4, 0)
    assert load([], {}).options() == AdmissionOptions(), "the defaults are the same in both places"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("runtimClass: x", "the nearest is 'runtimeClass'"),
        ("ask: {memory: 2}", "ask.memory"),
        ("ask: {memoryFactor: 0}", "ask.memoryFactor"),
        ("ask: {corePolicy: forced}", "ask.corePolicy"),
        ("tls: {certificate: /a}", "certificate and privateKey belong together"),
        ("kind: AgentConfiguration", "kind"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "webhook.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(["--config", str(file)], {})
    assert told in str(caught.value)


def test_the_configuration_as_shipped_is_taken(tmp_path: Path) -> None:
    (found,) = [each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "ConfigMap"]
    file = tmp_path / Path(LAYOUT.file).name
    file.write_text(found["data"][file.name])
    shipped, plain = load(["--config", str(file)], {}), load([], {})
    assert (shipped.ask, shipped.tls, shipped.writers) == (plain.ask, plain.tls, plain.writers)
