"""The webhook's manifests: Kubernetes takes them, they agree with each other and with the command's own options."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_record import commands

from augury.tools.doctor.flags import SHORT, SPECULATIVE
from augury.tools.doctor.webhook.counts import KINDS

WEBHOOK = Path(__file__).parents[2] / "deploy" / "webhook"
NAME = "augury-doctor.augury-doctor.svc"


def objects() -> list[dict[str, Any]]:
    named = yaml.safe_load((WEBHOOK / "kustomization.yaml").read_text())["resources"]
    return [one for name in named for one in yaml.safe_load_all((WEBHOOK / name).read_text())]


def of_kind(kind: str) -> dict[str, Any]:
    [found] = [one for one in objects() if one["kind"] == kind]
    return found


@pytest.mark.parametrize("release", ["1.30", "1.37"])
def test_kubernetes_takes_every_object(release: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install 'augury[dev]'")
    seen = []
    for one in objects():
        if "cert-manager.io" not in one["apiVersion"]:
            kubernetes_validate.validate(one, release, strict=True)
            seen.append(one["kind"])
    assert {"Deployment", "Service", "ValidatingWebhookConfiguration"} <= set(seen)


def test_the_command_takes_its_arguments() -> None:
    [container] = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    taken = commands()["augury doctor serve"]["parameters"]
    assert container["args"][:2] == ["doctor", "serve"]
    assert {word.partition("=")[0] for word in container["args"][2:]} <= set(taken)
    assert container["ports"][0]["containerPort"] == taken["--port"]["default"]


def test_names_agree() -> None:
    [hook] = of_kind("ValidatingWebhookConfiguration")["webhooks"]
    service, certificate = of_kind("Service"), of_kind("Certificate")
    called = hook["clientConfig"]["service"]
    assert (called["name"], called["namespace"]) == (service["metadata"]["name"], service["metadata"]["namespace"])
    assert f"{called['name']}.{called['namespace']}.svc" == NAME and NAME in certificate["spec"]["dnsNames"]
    volumes = of_kind("Deployment")["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["secret"]["secretName"] == certificate["spec"]["secretName"]
    injected = of_kind("ValidatingWebhookConfiguration")["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    assert hook["admissionReviewVersions"] == ["v1"] and hook["sideEffects"] == "None"
    assert {"key": "augury/doctor", "operator": "NotIn", "values": ["off"]} in hook["namespaceSelector"][
        "matchExpressions"
    ]


def test_every_resource_is_of_a_kind_that_is_counted_by_name() -> None:
    [hook] = of_kind("ValidatingWebhookConfiguration")["webhooks"]
    resources = {one for rule in hook["rules"] for one in rule["resources"]}
    plural = {f"{kind.lower()}s" for kind in KINDS}
    assert len(resources) > 18 and resources - plural == {"modelservices"}


def test_config_maps_are_sent_under_every_spelling_of_the_option() -> None:
    """What the API server does not send is not read: `vllm serve -sc ...` in a script counts, too."""
    [hook] = of_kind("ValidatingWebhookConfiguration")["webhooks"]
    [condition] = hook["matchConditions"]
    words = re.findall(r"'([^']+)'", condition["expression"].partition("exists(key")[2])
    spellings = [*SPECULATIVE, *(short for short, name in SHORT.items() if name in SPECULATIVE)]
    assert {"speculative-config", "spec-method", "-sc"} <= set(spellings)
    assert all(any(word in spelling for word in words) for spelling in spellings)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_certificates_without_cert_manager_are_trusted_by_name(tmp_path: Path) -> None:
    """The script's own files in a handshake, as the API server would check them."""
    subprocess.run([WEBHOOK / "certs.sh", tmp_path / "tls"], check=True, capture_output=True)
    files = {path.name for path in (tmp_path / "tls").iterdir()}
    assert files == {"ca.crt", "tls.crt", "tls.key"} and os.stat(tmp_path / "tls" / "tls.key").st_mode & 0o77 == 0
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls" / "tls.crt", tmp_path / "tls" / "tls.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.crt"))
    handshake(server, client, NAME)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "other.augury-doctor.svc")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Both sides of one, in memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(back, there, server_hostname=name), server.wrap_bio(there, back, server_side=True)]
    waiting = list(sides)
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
