"""What the tests of advice share: the measured anchors, a profile, and a question."""

from __future__ import annotations

from typing import Any

from augury.tools.advise.candidates import AdviceInputs
from augury.tools.advise.gpus import find_gpu
from augury.tools.advise.roofline import Roofline
from augury.tools.advise.shape import shape_of
from augury.tools.advise.target import find_target
from augury.tools.advise.traffic import Traffic
from augury.tools.shared.profile import make_profile

BATCHES = (1, 8, 32, 64, 128)
# Measured on one H200 with vLLM 0.26: 8B in bf16, 128 prompt tokens, 512 new ones, tokens a second over all requests.
PLAIN = (200, 1497, 5357, 9482, 14688)
EAGLE3_K3, EAGLE3_K5 = (451, 3359, 11114, 16100, 18812), (458, 3307, 10016, 13392, 9527)
DRAFT_MODEL = (253, 1672, 6195, 9231, 7346)
# The config.json of a published EAGLE-3 head for Llama-3.1-8B.
EAGLE3_HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
}
PROFILE = make_profile("eagle3", 3, [800, 600, 400], 1000, [200, 200, 200, 400], 2.8, {})


def ask(name: str = "llama-3.1-8b", gpu: str = "H200", **changes: Any) -> AdviceInputs:
    facts = find_target(name)
    shape = shape_of(facts)
    return AdviceInputs(facts, shape, Roofline(shape, find_gpu(gpu), changes.pop("tp", 1)), Traffic(), **changes)
