"""vLLM's side, in a process of its own: `python drive.py WHEEL_FOLDER`, cases as JSON lines in, verdicts as lines out.

With `-` instead of a folder the vLLM that is installed answers, on the device it was built for, with nothing stood in.

The class is vLLM's own, and so is everything it calls; stood in for are a GPU, and what vLLM learns of a model by
importing its code, which would need the compiled parts.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from stand_ins import install

QUIET = {"VLLM_LOGGING_LEVEL": "CRITICAL", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": ""}
INSTALLED = "-"  # as in wheel.py
COMPILED = "'_OpNamespace'"
MODEL_INFO = {  # what a decoder that writes text answers; every other question of the registry is answered with no
    "is_text_generation_model": True,
    "supports_pp": True,
    "attn_type": "decoder",
    "score_type": "bi-encoder",
    "default_pooling_type": "LAST",
    "default_seq_pooling_type": "LAST",
    "default_tok_pooling_type": "ALL",
    "supported_video_pruning_methods": (),
}


def prepare(root: Path) -> None:
    """Everything that must be in place before the first question."""
    os.environ.update(QUIET)
    os.environ["VLLM_CACHE_ROOT"] = os.environ["VLLM_CONFIG_ROOT"] = str(root / ".cache")
    install(root)
    logging.disable(logging.CRITICAL)
    import vllm.config.speculative
    import vllm.config.vllm  # what cannot be imported is a fault of the oracle, and shows here
    from vllm import platforms
    from vllm.model_executor.models import registry

    platforms._current_platform = _gpu()
    vllm.config.speculative.has_arctic_inference = lambda: True  # suffix asks for it before anything else
    vllm.config.vllm.HAS_TRITON = True  # it looks for a driver, and takes its old model runner without one
    registry._LazyRegisteredModel.inspect_model_cls = _inspected


def _inspected(model: Any) -> Any:
    from vllm.model_executor.models.registry import _ModelInfo

    said = {field.name: MODEL_INFO.get(field.name, False) for field in dataclasses.fields(_ModelInfo)}
    return _ModelInfo(**{**said, "architecture": model.class_name})


def _gpu() -> Any:
    """A machine with eight H100s, as far as vLLM asks."""
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Gpu(NonNvmlCudaPlatform):  # type: ignore[misc]
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
        get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H100")
        get_device_total_memory = classmethod(lambda cls, device_id=0: 80 << 30)
        device_count = classmethod(lambda cls: 8)
        is_fully_connected = classmethod(lambda cls, ids: True)
        check_if_supports_dtype = classmethod(lambda cls, dtype: None)

    return Gpu()


def verdict(case: dict[str, Any]) -> dict[str, Any]:
    """What vLLM makes of one case."""
    for stage, ask in (("class", _built), ("engine", _engine)):
        try:
            config = ask(case)
        except Exception as error:  # every refusal counts, whatever its type
            if COMPILED in str(error):  # the engine went on to its kernels, which are not here: nothing was refused
                break
            return {"accepted": False, "by": stage, "error": type(error).__name__, "words": _words(error)}
    found = {"accepted": True, "method": config.method, "tokens": config.num_speculative_tokens}
    slots = getattr(config, "max_num_new_slots_for_drafting", None)
    return {**found, "slots": slots} if isinstance(slots, int) else found


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # pydantic puts a count first and a link last; what it was is between
    kept = [line for line in lines if "validation error" not in line and "For further information" not in line]
    return " ".join(kept or lines)[:240]


def _built(case: dict[str, Any]) -> Any:
    from vllm.config import ModelConfig, ParallelConfig
    from vllm.config.speculative import SpeculativeConfig

    named = {"max_model_len": case["max_model_len"]} if case.get("max_model_len") else {}
    target = ModelConfig(model=case["target"], tokenizer=case["target"], dtype="bfloat16", **named)
    parallel = ParallelConfig(tensor_parallel_size=case.get("tp") or 1)
    return SpeculativeConfig(
        target_model_config=target, target_parallel_config=parallel, **copy.deepcopy(case["given"])
    )


def _engine(case: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    named = {"max_model_len": case["max_model_len"]} if case.get("max_model_len") else {}
    args = EngineArgs(
        model=case["target"],
        speculative_config=copy.deepcopy(case["given"]),
        dtype="bfloat16",
        tensor_parallel_size=case.get("tp") or 1,
        **named,
        **(case.get("engine") or {}),
    )
    return args.create_engine_config().speculative_config


def main() -> None:
    """Answer line by line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints must not stand between the answers
    if sys.argv[1] == INSTALLED:
        os.environ.update(QUIET)
        logging.disable(logging.CRITICAL)
    else:
        prepare(Path(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
