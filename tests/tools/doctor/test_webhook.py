"""The webhook as the API server meets it: a process of its own, AdmissionReview JSON, over TLS."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from admission import GOOD, REMOVED, Running, pod, review, webhook
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with webhook(tmp_path_factory.mktemp("tls"), "--time-limit", "25", "--skip-namespace", "kube-system") as found:
        yield found


def test_a_pod_with_a_removed_key_is_refused(running: Running) -> None:
    response = running.validate(pod(REMOVED))
    assert response["allowed"] is False
    status = response["status"]
    assert status["code"] == 422 and status["reason"] == "Invalid"
    assert (
        "spec.containers[0].args[3]: error[key-gone]" in status["message"] and "disable_mqa_scorer" in status["message"]
    )
    assert "Fix: " in status["message"] and "[vLLM 0.28.0]" in status["message"] and "\n" not in status["message"]
    [cause] = status["details"]["causes"]
    assert cause["field"] == "spec.containers[0].args[3]" and cause["reason"] == "key-gone"
    assert response["auditAnnotations"] == {"findings": "error:key-gone"}


def test_a_good_pod_passes(running: Running) -> None:
    assert set(running.validate(pod(GOOD))) == {"uid", "allowed"}
    assert running.validate(pod(GOOD))["allowed"] is True


def test_a_warning_is_shown_and_does_not_refuse(running: Running) -> None:
    spec = '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'
    response = running.validate(pod("", args=["--model", "zai-org/GLM-4.6", "-sc", spec]))
    assert response["allowed"] is True
    assert any(line.startswith("mtp-alias: ") for line in response["warnings"])
    assert all(len(line.encode()) <= 256 for line in response["warnings"])


def test_an_update_is_not_blocked_by_what_was_there_before(running: Running) -> None:
    """A controller that adds a finalizer to an old object must be able to."""
    old = pod(REMOVED)
    response = running.validate({**old, "metadata": {**old["metadata"], "finalizers": ["a/b"]}}, old)
    assert response["allowed"] is True and response["warnings"][0].startswith("key-gone: ")
    assert running.validate(pod(REMOVED), pod(GOOD))["allowed"] is False


@pytest.mark.parametrize("more", [{"operation": "DELETE"}, {"operation": "CONNECT"}, {"namespace": "kube-system"}])
def test_what_will_not_run_or_is_left_out_is_allowed(running: Running, more: dict[str, Any]) -> None:
    assert running.validate(pod(REMOVED), **more) == {"uid": review({})["request"]["uid"], "allowed": True}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", b"not JSON"),
        (b"[" * 100_000, b"not JSON"),
        (b"[]", b"not an AdmissionReview"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}', b"admissionReviewVersions"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', b"uid"),
        (json.dumps(review({}, uid=7)).encode(), b"uid"),
        (b"\xff\xfe{}", b"not JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", b"not JSON"),
    ],
)
def test_a_body_that_is_no_review_is_a_400(running: Running, body: bytes, said: bytes) -> None:
    status, answer = running.ask("POST", "/validate", body)
    assert status == 400 and said in answer


@pytest.mark.parametrize(
    "new", [None, [], "pod", 7, {}, {"spec": None}, {"kind": ["Pod"]}, {"spec": {"containers": "x"}}]
)
def test_an_object_of_any_shape_is_answered(running: Running, new: Any) -> None:
    body = json.dumps(review({}, object=new)).encode()
    status, answer = running.ask("POST", "/validate", body)
    assert status == 200 and json.loads(answer)["response"]["allowed"] is True


def test_what_cannot_be_checked_is_allowed_with_a_warning(running: Running) -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"a": deep}
    response = running.validate({"kind": "Pod", "spec": deep})
    assert response["allowed"] is True and "nested" in response["warnings"][0]


def test_health_and_metrics(running: Running) -> None:
    assert running.ask("GET", "/healthz") == (200, b"ok\n")
    assert running.ask("HEAD", "/healthz") == (200, b"")
    running.validate(pod(REMOVED))
    status, text = running.ask("GET", "/metrics")
    found = {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text.decode())
        for one in family.samples
    }
    assert status == 200 and found["augury:doctor_reviews_total", "refused", "Pod"] >= 1
    assert found["augury:doctor_findings_total", "key-gone", "error"] >= 1


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/validate", 405), ("PUT", "/metrics", 405), ("GET", "/", 404)]
)
def test_other_requests_are_refused(running: Running, method: str, path: str, status: int) -> None:
    assert running.ask(method, path)[0] == status


@pytest.mark.parametrize("sent", [b"\x16\x03\x01 not a handshake", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 70_000])
def test_what_is_not_tls_ends_its_connection_alone(running: Running, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as raw:
        raw.sendall(sent)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65_536):
            pass
    assert running.ask("GET", "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n", b"431"),
        (b"POST /validate HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999\r\n\r\n", b"413"),
        (b"POST /validate HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
    ],
)
def test_broken_http_is_answered_within_tls(running: Running, sent: bytes, status: bytes) -> None:
    address = ("127.0.0.1", running.port)
    with (
        socket.create_connection(address, timeout=60) as raw,
        running.trust.wrap_socket(raw, server_hostname="localhost") as inside,
    ):
        inside.sendall(sent)
        assert inside.recv(65_536).split(b" ")[1] == status
    assert running.ask("GET", "/healthz")[0] == 200


def test_a_client_that_writes_all_before_it_reads_is_told_too(running: Running) -> None:
    client = HTTPSConnection("localhost", running.port, context=running.trust, timeout=60)
    client.request("POST", "/validate", body=b"x" * 20_000_000)
    assert client.getresponse().status == 413
    client.close()


def test_old_tls_is_refused(running: Running, tmp_path: Path) -> None:
    old = ssl.create_default_context()
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as raw, pytest.raises(ssl.SSLError):
        old.wrap_socket(raw, server_hostname="localhost")


def test_it_ends_when_asked_though_a_connection_is_open(tmp_path: Path) -> None:
    """The API server keeps its connections; a rolling update must not wait for them."""
    with webhook(tmp_path, "--time-limit", "25") as found:
        kept = HTTPSConnection("localhost", found.port, context=found.trust, timeout=60)
        for _ in range(2):
            kept.request("GET", "/healthz")
            assert kept.getresponse().read() == b"ok\n"
        found.process.terminate()
        assert found.process.wait(60) == 0
        kept.close()
