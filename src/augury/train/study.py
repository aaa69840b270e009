"""A target's answers to some prompts, with the residual streams of every token: what heads are trained on.

Both come from the engine: `extract_hidden_states` saves the streams of every request, prompt and answer, so a head
learns from what it will read when it drafts.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.drafters.hidden_files import load_hidden_states
from augury.engine.llm import LLM
from augury.model.checkpoint import Checkpoint, read_config
from augury.model.load import has_plain_layers
from augury.model.target import NORMED


@dataclass(frozen=True, slots=True)
class Lesson:
    """One prompt with its answer."""

    tokens: Tensor  # int64 [T]
    start: int  # where the answer begins
    streams: dict[int, Tensor]  # layer id -> float32 [T - 1, H]; the last token was sampled and never run


class Study:
    """The target's greedy answers, its embeddings and its output matrix, ready for training."""

    def __init__(self, directory: Path, config: Any, lessons: list[Lesson]) -> None:
        self.directory, self.config, self.lessons = directory, config, lessons
        with Checkpoint(directory) as checkpoint:
            self.embedding = checkpoint.tensor("model.embed_tokens.weight").float()
            tied = config.tie_word_embeddings
            self.head = self.embedding if tied else checkpoint.tensor("lm_head.weight").float()
        #: tokens of the answers, sorted: the words a head with a vocabulary of its own needs
        self.words = torch.cat([lesson.tokens[lesson.start :] for lesson in lessons]).unique()

    @classmethod
    def of(cls, directory: Path, prompts: list[list[int]], length: int, dtype: str = "float32") -> Study:
        """Have the prompts answered with exactly `length` tokens each, whether a text ends before that or not."""
        config = read_config(directory)
        if not has_plain_layers(config):
            raise ConfigError(
                f"gate heads cannot be trained for {config.model_type!r}: its layers are not Llama's; "
                "use a model of the Llama, Mistral, Qwen2 or Qwen3 family."
            )
        layers = sorted({*stream_layers(config.num_hidden_layers), *block_layers(config.num_hidden_layers)})
        found = _answers(directory, prompts, length, layers, dtype)
        with Checkpoint(directory) as checkpoint:
            norm = checkpoint.tensor("model.norm.weight").float()
        lessons = []
        for prompt, saved in zip(prompts, found, strict=True):
            streams = dict(zip(layers, saved["hidden_states"].float().unbind(1), strict=True))
            last = streams[config.num_hidden_layers]
            streams[NORMED] = F.rms_norm(last, norm.shape, norm, config.rms_norm_eps)
            lessons.append(Lesson(saved["token_ids"], len(prompt), streams))
        return cls(directory, config, lessons)

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's embeddings of tokens."""
        return F.embedding(tokens, self.embedding)


def stream_layers(layers: int) -> tuple[int, ...]:
    """The streams an EAGLE-3 head reads of a target with this many layers: early, middle, late."""
    return (2, layers // 2, layers - 3) if layers > 5 else (0, layers // 2, layers)


def block_layers(layers: int) -> tuple[int, int]:
    """The streams a DFlash head reads."""
    return layers // 2, layers


def _answers(
    directory: Path, prompts: list[list[int]], length: int, layers: list[int], dtype: str
) -> list[dict[str, Tensor]]:
    """token_ids [T] and hidden_states [T - 1, layers, H] of each prompt and its answer."""
    wish = {"kv_transfer_params": {"include_output_tokens": True}}
    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, extra_args=wish)
    with tempfile.TemporaryDirectory(prefix="augury-study-") as folder:
        llm = LLM(
            str(directory),
            device="cpu",
            dtype=dtype,
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}},
            },
            kv_transfer_config={
                "kv_connector": "ExampleHiddenStatesConnector",
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"shared_storage_path": folder},
            },
        )
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        found = []
        for prompt, output in zip(prompts, outputs, strict=True):
            saved = load_hidden_states(output.kv_transfer_params["hidden_states_path"])  # type: ignore[index]
            whole = [*prompt, *output.outputs[0].token_ids]
            found.append({"token_ids": torch.tensor(whole), "hidden_states": saved["hidden_states"]})
    return found
