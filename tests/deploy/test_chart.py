"""The Helm chart: rendered by a template engine of its own kind, held to Kubernetes' schemas and to our own options."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from command_record import commands

from augury.tools.doctor.examine import examine

pytest.importorskip("gotpl", reason="gotpl is not installed: pip install 'augury[dev]'")
kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is not installed: pip install 'augury[dev]'"
)
jsonschema = pytest.importorskip("jsonschema")
charts = pytest.importorskip("charts")
CHART, rendered, values = charts.CHART, charts.rendered, charts.values

EVERYTHING: dict[str, Any] = {
    "gpu": {"enabled": True, "count": 2, "runtimeClassName": "nvidia"},
    "apiKey": {"value": "secret"},
    "modelVolume": {"create": True, "storageClassName": "fast", "size": "1Ti"},
    "autoscaling": {"enabled": True},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "podDisruptionBudget": {"enabled": True},
    "maxModelLen": 131072,
    "imagePullSecrets": ["registry"],
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "nodeSelector": {"gpu": "h200"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "extraArgs": ["--max-num-seqs=64"],
    "extraEnv": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
    "service": {"type": "LoadBalancer", "annotations": {"e": "f"}},
    "serviceAccount": {"annotations": {"g": "h"}},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "everything": EVERYTHING,
    "a claim that is there": {"modelVolume": {"existingClaim": "models"}, "apiKey": {"existingSecret": "keys"}},
    "plain": {"speculativeConfig": None, "serviceAccount": {"create": False}},
}
OURS = ("ServiceMonitor",)  # of the Prometheus operator: Kubernetes has no schema of it


def container(objects: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("release", ["1.28", "1.37"])
@pytest.mark.parametrize("name", VARIANTS)
def test_kubernetes_takes_every_object(name: str, release: str) -> None:
    objects = rendered(**VARIANTS[name])
    assert {"Deployment", "Service"} <= set(objects)
    for kind, one in objects.items():
        if kind not in OURS:
            kubernetes_validate.validate(one, release, strict=True)
        assert one["metadata"]["namespace"] == "llms"


def test_a_wrong_object_is_seen() -> None:
    """The check above would pass if nothing were checked."""
    wrong = rendered()["Deployment"]
    wrong["spec"]["template"]["spec"]["containers"][0]["argz"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_command_is_one_that_augury_takes(name: str) -> None:
    """By its own options, and by its own doctor."""
    args = container(rendered(**VARIANTS[name]))["args"]
    taken = {word for names in commands()["augury serve"]["parameters"] for word in names.split()}
    assert args[0] == "serve" and {word.partition("=")[0] for word in args if word.startswith("-")} <= taken
    text = json.dumps({"command": ["augury"], "args": args})
    [command] = examine(text, "chart.json").commands
    assert command.program == "augury serve" and [one.id for one in command.findings if one.severity != "note"] == []


def test_who_is_selected_is_who_runs() -> None:
    objects = rendered(**EVERYTHING)
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selected = [objects["Deployment"]["spec"]["selector"]["matchLabels"], objects["Service"]["spec"]["selector"]]
    selected.append(objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])
    assert all(one.items() <= labels.items() for one in selected)
    monitored = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= objects["Service"]["metadata"]["labels"].items()
    assert objects["ServiceMonitor"]["spec"]["endpoints"][0]["port"] == objects["Service"]["spec"]["ports"][0]["name"]
    assert (
        objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
        == objects["Deployment"]["metadata"]["name"]
    )
    assert "replicas" not in objects["Deployment"]["spec"], "the autoscaler's number would be overwritten"


def test_gpus_are_asked_for_only_where_they_are_used() -> None:
    on, off = container(rendered(**EVERYTHING)), container(rendered())
    assert on["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "2"} and on["image"] == "augury:0.1.0-cuda"
    assert off["resources"]["limits"] == {"memory": "8Gi"} and off["image"] == "augury:0.1.0-cpu"
    assert "--device=cuda" in on["args"] and "--device=cpu" in off["args"]


def test_probes_ask_the_servers_health() -> None:
    one = container(rendered())
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert one[probe]["httpGet"] == {"path": "/health", "port": "http"}


def test_a_key_is_never_an_argument() -> None:
    objects = rendered(**EVERYTHING)
    assert base64.b64decode(objects["Secret"]["data"]["api-key"]) == b"secret"
    assert "secret" not in json.dumps(container(objects)["args"])
    [key] = [one for one in container(objects)["env"] if one["name"] == "AUGURY_API_KEY"]
    assert key["valueFrom"]["secretKeyRef"] == {"name": "rel-augury", "key": "api-key"}
    assert "Secret" not in rendered(**VARIANTS["a claim that is there"])
    with pytest.raises(Exception, match="existingSecret or value, not both"):
        rendered(apiKey={"value": "a", "existingSecret": "b"})


def test_models_come_from_the_claim() -> None:
    objects = rendered(**EVERYTHING)
    [volume] = [one for one in objects["Deployment"]["spec"]["template"]["spec"]["volumes"] if one["name"] == "models"]
    assert volume["persistentVolumeClaim"]["claimName"] == objects["PersistentVolumeClaim"]["metadata"]["name"]
    there = rendered(**VARIANTS["a claim that is there"])
    assert "PersistentVolumeClaim" not in there and "claimName': 'models'" in str(there["Deployment"])


def test_a_release_name_that_has_the_charts_is_not_said_twice() -> None:
    assert rendered("augury")["Service"]["metadata"]["name"] == "augury"
    assert len(rendered("a" * 60)["Service"]["metadata"]["name"]) <= 63


@pytest.mark.parametrize("name", VARIANTS)
def test_the_values_schema_takes_what_the_chart_takes(name: str) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values(**VARIANTS[name]), schema)


@pytest.mark.parametrize(
    "wrong", [{"replicas": 2}, {"gpu": {"count": 0}}, {"model": ""}, {"service": {"port": 0}}, {"probes": {"live": {}}}]
)
def test_the_values_schema_refuses_what_the_chart_does_not_know(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values(**wrong), json.loads((CHART / "values.schema.json").read_text()))
