"""AdmissionReviews as the API server sends them, and a webhook that runs behind TLS as a process of its own."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import trustme

REMOVED = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "disable_mqa_scorer": true}'
GOOD = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def container(spec: str, **more: Any) -> dict[str, Any]:
    """A container with vLLM's own image."""
    args = ["--model", "Qwen/Qwen3-8B", "--speculative-config", spec]
    return {"name": "vllm", "image": "vllm/vllm-openai:v0.28.0", "args": args, **more}


def pod(spec: str, **more: Any) -> dict[str, Any]:
    """A pod as `kubectl run` makes one."""
    meta = {"name": "qwen", "namespace": "llms"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container(spec, **more)]}}


def review(new: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    """A whole review; the fields are those of the Kubernetes documentation's example."""
    kind = new.get("kind", "Pod") if isinstance(new, dict) else "Pod"
    group, _, version = (new.get("apiVersion", "v1") if isinstance(new, dict) else "v1").rpartition("/")
    gvk = {"group": group, "version": version, "kind": kind}
    request = {
        "uid": UID,
        "kind": gvk,
        "resource": {"group": group, "version": version, "resource": f"{kind.lower()}s"},
        "requestKind": gvk,
        "name": "qwen",
        "namespace": "llms",
        "operation": "CREATE" if old is None else "UPDATE",
        "userInfo": {"username": "admin", "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
        "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request | more}


@dataclass
class Running:
    """A webhook's port and what it takes to trust it."""

    port: int
    trust: ssl.SSLContext
    process: subprocess.Popen[str]

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """One request over TLS, whose certificate is checked by name."""
        connection = HTTPSConnection("localhost", self.port, context=self.trust, timeout=60)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def validate(self, new: Any, old: Any = None, **more: Any) -> dict[str, Any]:
        """The response to a review of an object."""
        status, body = self.ask("POST", "/validate?timeout=10s", json.dumps(review(new, old, **more)).encode())
        assert status == 200, body
        told = json.loads(body)
        assert told["kind"] == "AdmissionReview" and told["apiVersion"] == "admission.k8s.io/v1"
        response: dict[str, Any] = told["response"]
        assert response["uid"] == UID
        return response


def certificate(directory: Path) -> tuple[Path, Path, ssl.SSLContext]:
    """A certificate for localhost, its key, and a context that trusts its authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "augury-doctor.augury.svc")
    cert, key = directory / "tls.crt", directory / "tls.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    return cert, key, trust


@contextmanager
def webhook(directory: Path, *options: str) -> Iterator[Running]:
    """`augury doctor serve` on a free port, until it is no longer needed."""
    cert, key, trust = certificate(directory)
    words = ["doctor", "serve", "--host", "127.0.0.1", "--port", "0", "--tls-cert", str(cert), "--tls-key", str(key)]
    process = subprocess.Popen(
        [sys.executable, "-m", "augury", *words, "--workers", "1", *options], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"https://127.0.0.1:(\d+)/validate", line)
        assert found, line
        yield Running(int(found[1]), trust, process)
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()
