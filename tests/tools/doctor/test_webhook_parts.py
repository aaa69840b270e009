"""The parts of the webhook: which objects it reads, what it answers, and what ends a process that takes too long."""

from __future__ import annotations

import json
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from augury.config.errors import ConfigError
from augury.tools.doctor.webhook.app import Webhook
from augury.tools.doctor.webhook.judge import AdmissionCase, ToldFinding, judge
from augury.tools.doctor.webhook.objects import written
from augury.tools.doctor.webhook.review import answer, read_review, within_limits
from augury.tools.doctor.webhook.workers import NotJudged, Workers

REMOVED = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "disable_mqa_scorer": true}'
ARGS = ["--model", "m", "--speculative-config", REMOVED]
VLLM = {"name": "vllm", "image": "vllm/vllm-openai:v0.28.0", "args": ARGS}
SCRIPT = f"ray start --head; vllm serve m --speculative-config '{REMOVED}'"
LINE = f"vllm serve m --speculative-config '{REMOVED}'"
SERVE_V2 = """applications:
- name: llms
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: m}
      engine_kwargs:
        speculative_config: {method: ngram, num_speculative_tokens: 4, disable_mqa_scorer: true}
"""


def template(**more: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{**VLLM, **more}]}}}


def leader(**more: Any) -> Any:
    return template(**more)["template"]


OBJECTS: dict[str, tuple[dict[str, Any], str]] = {
    "Pod": ({"spec": {"containers": [VLLM]}}, "spec.containers[0].args[3]"),
    "Deployment": ({"spec": template()}, "spec.template.spec.containers[0].args[3]"),
    "CronJob": (
        {"spec": {"jobTemplate": {"spec": template(command=["vllm", "serve"])}}},
        "spec.jobTemplate.spec.template.spec.containers[0].args[3]",
    ),
    "LeaderWorkerSet": (
        {"spec": {"leaderWorkerTemplate": {"leaderTemplate": leader(command=["sh", "-c", SCRIPT], args=[])}}},
        "spec.leaderWorkerTemplate.leaderTemplate.spec.containers[0].command[2]",
    ),
    "InferenceService": (
        {"spec": {"predictor": {"model": {"runtime": "r", "args": [f"--speculative_config={REMOVED}"]}}}},
        "spec.predictor.model.args[0]",
    ),
    "LLMInferenceService": (
        {"spec": {"template": {"containers": [{"name": "main", "args": ARGS}]}}},
        "spec.template.containers[0].args[3]",
    ),
    "LLMInferenceService, by a variable": (
        {
            "spec": {
                "template": {
                    "containers": [
                        {
                            "name": "main",
                            "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": f"--speculative-config '{REMOVED}'"}],
                        }
                    ]
                }
            }
        },
        "spec.template.containers[0].env[0].value",
    ),
    "Workspace": ({"inference": template()}, "inference.template.spec.containers[0].args[3]"),
    "ConfigMap": (
        {"data": {"inference_config.yaml": f"vllm:\n  max-model-len: 2048\n  speculative-config: '{REMOVED}'\n"}},
        'data["inference_config.yaml"]',
    ),
    "RayService": ({"spec": {"serveConfigV2": SERVE_V2}}, "spec.serveConfigV2"),
    "RayCluster": (
        {"spec": {"headGroupSpec": template(image="rayproject/ray-llm:2.50", command=["bash", "-lc", LINE], args=[])}},
        "spec.headGroupSpec.template.spec.containers[0].command[2]",
    ),
    "RayJob": ({"spec": {"entrypoint": LINE}}, "spec.entrypoint"),
    "DynamoGraphDeployment": (
        {
            "spec": {
                "services": {
                    "VllmWorker": {
                        "extraPodSpec": {
                            "mainContainer": {
                                "image": "ai-dynamo/vllm-runtime:1.6.1",
                                "command": ["python3", "-m", "dynamo.vllm"],
                                "args": ARGS,
                            }
                        }
                    }
                }
            }
        },
        "spec.services.VllmWorker.extraPodSpec.mainContainer.args[3]",
    ),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_that_carry_commands(kind: str) -> None:
    value, field = OBJECTS[kind]
    whole = {"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "a"}, **value}
    [found] = judge(AdmissionCase(json.dumps(whole), release="0.30.0"))
    assert (found.id, found.severity, found.field) == ("key-gone", "error", field)
    assert found.release == ("0.28.0" if "v0.28.0" in json.dumps(value) else "0.30.0"), (
        "an image's own release counts more"
    )


def test_no_file_of_the_server_is_read(tmp_path: Path) -> None:
    """A drafter's directory would tell that it is no head of that method; a client must not learn it."""
    (tmp_path / "config.json").write_text('{"architectures": ["MedusaModel"], "model_type": "medusa"}')
    spec = json.dumps({"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 3})
    args = {**VLLM, "args": ["--model", str(tmp_path), "--speculative-config", spec]}
    (tmp_path / "other").mkdir()
    other = json.loads(json.dumps(args).replace(str(tmp_path), str(tmp_path / "other")))
    said = [
        [one.id for one in judge(AdmissionCase(json.dumps({"spec": {"containers": [one]}})))] for one in (args, other)
    ]
    assert said[0] == said[1]


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(TREES)
def test_a_written_object_is_the_object_in_yaml_and_in_json(value: Any) -> None:
    text = written(value)
    whole = json.loads(json.dumps(value).encode("utf-8", "replace"))
    assert json.loads(text.text.replace("\ufffd", "?")) == json.loads(json.dumps(whole).replace("\ufffd", "?"))
    assert len(text.paths) == len(text.text.splitlines()) == text.text.count("\n")
    list(yaml.compose_all(text.text, Loader=yaml.SafeLoader))


@given(st.lists(st.text(max_size=600), max_size=40))
def test_warnings_stay_within_the_api_servers_limits(lines: list[str]) -> None:
    kept = within_limits(lines)
    assert all(len(line.encode()) <= 256 and "\n" not in line for line in kept)
    assert sum(len(line.encode()) for line in kept) <= 4096
    assert bool(kept) == bool(lines)


def test_many_warnings_are_counted() -> None:
    kept = within_limits([f"{i} {'a' * 200}" for i in range(100)])
    assert kept[-1] == f"and {100 - len(kept) + 1} more warnings: augury doctor shows them all"


@pytest.mark.parametrize(
    ("severity", "fail_on", "passes"),
    [("error", "error", False), ("warning", "error", True), ("error", "warning", False), ("warning", "warning", False)],
)
def test_what_refuses(severity: str, fail_on: Any, passes: bool) -> None:
    told = [ToldFinding("an-id", severity, "it is wrong", "write it right", "spec", "0.32")]
    response = answer("u", told, fail_on)["response"]
    assert response["allowed"] is passes and ("warnings" in response) is passes
    assert (
        passes
        or response["status"]["message"] == f"spec: {severity}[an-id]: it is wrong. Fix: write it right [vLLM 0.32]"
    )


def test_a_message_has_no_control_characters() -> None:
    told = [ToldFinding("an-id", "error", "a\x1b[31m\r\nb", "c", "spec", "")]
    assert answer("u", told)["response"]["status"]["message"] == "spec: error[an-id]: a[31m b. Fix: c"


def hangs(pipe: Connection) -> None:
    """A process that answers nothing but its start, unless it is told to end."""
    pipe.send([])
    while pipe.recv().new != "end":
        time.sleep(3600)


def test_a_process_that_takes_too_long_is_ended_and_replaced() -> None:
    workers = Workers(1, 1.0, hangs)
    try:
        workers.wait()
        [first] = workers.all
        with pytest.raises(NotJudged, match="more than 1 s"):
            workers.judge(AdmissionCase("{}"))
        [second] = workers.all
        assert not first.process.is_alive() and second is not first and workers.idle.qsize() == 1
        second.wait(time.monotonic() + 60)
        with pytest.raises(NotJudged, match="ended"):
            workers.judge(AdmissionCase("end"))
    finally:
        workers.close()


def starts(pipe: Connection) -> None:
    """A process that is not ready until it is told something, and then answers that it found nothing."""
    pipe.recv()
    pipe.send([])
    while pipe.recv():
        pipe.send([])


def test_a_process_that_is_still_starting_is_not_ended() -> None:
    """Or a short limit would end each before it is ever ready."""
    workers = Workers(1, 0.1, starts)
    try:
        [first] = workers.all
        with pytest.raises(NotJudged, match="still starting"):
            workers.judge(AdmissionCase("{}"))
        assert workers.all == [first] and workers.idle.qsize() == 1
        first.pipe.send("go")
        assert first.wait(time.monotonic() + 60)
        workers.seconds = 60.0
        assert workers.judge(AdmissionCase("{}")) == []
    finally:
        workers.close()


class Failing:
    """Workers that judge nothing."""

    number, seconds = 1, 5.0

    def judge(self, case: AdmissionCase, until: float | None = None) -> list[ToldFinding]:
        raise NotJudged("it took more than 5 s.")


@pytest.mark.parametrize(("policy", "passes"), [("ignore", True), ("fail", False)])
def test_the_failure_policy_decides(policy: Any, passes: bool) -> None:
    hook = Webhook(Failing(), failure_policy=policy)  # type: ignore[arg-type]
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    body = json.dumps({**review, "request": {"uid": "u", "operation": "CREATE", "object": {}}}).encode()
    response = json.loads(hook.validated(body).body)["response"]
    assert response["allowed"] is passes
    assert "took more than 5 s" in (response["warnings"][0] if passes else response["status"]["message"])


@given(st.binary(max_size=200) | TREES.map(lambda one: json.dumps(one).encode()))
def test_no_body_makes_reading_fail_otherwise(body: bytes) -> None:
    with pytest.raises(ConfigError):
        read_review(body)
