"""Augury's plugin in the real modules of a release: `python hooks.py WHEEL_FOLDER` prints what holds as JSON.

No GPU is needed: the configuration is built, and the verification of both runners is called where it stands, with
draws that are known beforehand.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from draws import v2_draws_alike
from drive import COMPILED, prepare


def checks() -> dict[str, bool | None]:
    """Every hook, by name; None where vLLM's module cannot be imported without its compiled parts."""
    logging.disable(logging.NOTSET)
    from augury.plugins.vllm import register
    from augury.plugins.vllm.coupled import COUPLED
    from augury.plugins.vllm.noise_v1 import ByOffset

    register()
    from vllm.v1.sample import rejection_sampler as v1
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler as v2

    said = {value: _taken(value) for value in ("standard", "coupled", "synthetic", "nonsense")}
    return {
        "the rule is taken": said["coupled"],
        "the others are": said["standard"],
        "nonsense is not": not said["nonsense"],
        "V1 switches": isinstance(_switched(v1.RejectionSampler, "synthetic_mode"), ByOffset),
        "V2 switches": _switched(v2.RejectionSampler, "use_block_verification") is COUPLED,
        "V1 refuses a CPU it does not know": _refused(v1.RejectionSampler),
        "V2 draws as plain decoding": v2_draws_alike(),
        "metrics are counted": _counts(),
        "drafts are cut": _unless_compiled(_cuts),
    }


def _unless_compiled(check: Callable[[], bool]) -> bool | None:
    try:
        return check()
    except AttributeError as error:
        if COMPILED not in str(error):
            raise
        return None


def _counts() -> bool:
    """Two drafts of three and one token, of which three and none are right."""
    from prometheus_client import REGISTRY
    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.spec_decode.metrics import SpecDecodingStats

    from augury.plugins.vllm.stats import SpeculationStats

    seen = SpecDecodingStats.new(3)
    seen.observe_draft(3, 3)
    seen.observe_draft(3, 0)
    stats = SpeculationStats(SimpleNamespace(model_config=SimpleNamespace(served_model_name="m")))
    stats.record(SimpleNamespace(spec_decoding_stats=seen), None)
    named = {"model_name": "m", "engine": "0"}

    def value(name: str, **more: str) -> float | None:
        return REGISTRY.get_sample_value(f"augury:{name}", {**named, **more})

    return isinstance(stats, StatLoggerBase) and (
        value("spec_decode_num_draft_tokens_per_pos_total", position="2"),
        value("spec_decode_num_rejected_tokens_total"),
        value("acceptance_length"),
    ) == (2.0, 3.0, 2.5)


def _cuts() -> bool:
    """A request that asks for one token has its placeholders and its drafts cut to one."""
    from augury.plugins.vllm.budget import BudgetScheduler, SyncBudgetScheduler

    request = SimpleNamespace(
        request_id="a",
        spec_token_ids=[-1, -1, -1],
        sampling_params=SimpleNamespace(extra_args={"num_speculative_tokens": 1}),
    )
    cut = []
    for scheduler, method in (
        (BudgetScheduler, "_update_after_schedule"),
        (SyncBudgetScheduler, "update_draft_token_ids"),
    ):
        theirs = scheduler.__mro__[2]
        assert callable(getattr(theirs, method)) and callable(theirs.update_from_output)
        made = scheduler.__new__(scheduler)
        vars(made).update(requests={"a": request}, num_spec_tokens=3, _row_cost=0.0, _known={})
        given = SimpleNamespace(num_scheduled_tokens={"a": 4}, req_ids=["a"], draft_token_ids=[[5, 6, 7]])
        with patch.object(theirs, method, lambda self, output: None):
            getattr(made, method)(given)
        cut.append(request.spec_token_ids if method.startswith("_") else given.draft_token_ids[0])
    return cut == [[-1], [5]]


def _config(value: str) -> Any:
    from vllm.config.speculative import SpeculativeConfig

    given = {"synthetic_acceptance_length": 2.0} if value == "synthetic" else {}
    return SpeculativeConfig(method="ngram", num_speculative_tokens=3, rejection_sample_method=value, **given)


def _taken(value: str) -> bool:
    try:
        return bool(_config(value).rejection_sample_method == value)
    except Exception:  # every refusal counts
        return False


def _switched(sampler: type, name: str) -> Any:
    """What a sampler that is built from a configuration with the rule passes on."""
    inner = SimpleNamespace(logprobs_mode="raw_logprobs", use_fp64_gumbel=False, watermark_key=None)
    return getattr(sampler(inner, _config("coupled"), "cuda"), name)


def _refused(sampler: type) -> bool:
    """A draw that moves a generator in a way we do not know, so that the rule is refused before a request comes."""
    inner = SimpleNamespace(logprobs_mode="raw_logprobs", use_fp64_gumbel=False, topk_topp_sampler=lambda *_: None)
    try:
        sampler(inner, _config("coupled"), "cpu")
    except ValueError:
        return True
    return False


if __name__ == "__main__":
    os.environ.setdefault("TRITON_INTERPRET", "1")
    import interpreter  # kernels run on a CPU
    import numpy as np
    from triton.backends import backends
    from triton.language.extra import libdevice

    libdevice.log1p = interpreter._elementwise(np.log1p)  # of V2's noise up to 0.30
    for name, backend in backends.items():  # vLLM does without Triton where no driver of a GPU answers
        backend.driver.is_active = staticmethod(lambda name=name: name == "nvidia")
    prepare(Path(sys.argv[1]))
    found = checks()
    print(json.dumps(found))
    sys.exit(False in found.values())
