"""What the gates of trained heads share: a target's text and its streams by transformers; fitting is augury.train's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from stepping import whole_step
from torch import Tensor

from augury import LLM, SamplingParams
from augury.train.export import export
from augury.train.fit import fit as overfit

__all__ = ["Studied", "export", "first_blocks", "overfit", "write"]


class Studied:
    """The toy target with transformers, not with the engine that augury.train.study asks: greedy texts, streams."""

    def __init__(self, directory: Path, prompts: list[list[int]], length: int) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(directory).eval().requires_grad_(False)
        self.config = self.model.config
        self.texts = [self._continued(prompt, length) for prompt in prompts]

    @torch.no_grad()
    def _continued(self, prompt: list[int], length: int) -> list[int]:
        ids = list(prompt)
        while len(ids) < len(prompt) + length:
            ids.append(int(self.model(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids

    @torch.no_grad()
    def streams(self, ids: list[int], layers: tuple[int, ...]) -> Tensor:
        """Residual streams side by side [T, n * H]: id j after j layers, -1 after the final norm."""
        kept: dict[int, Tensor] = {}
        inner = self.model.model
        hooks = [
            inner.layers[0].register_forward_pre_hook(
                lambda m, a, k: kept.__setitem__(0, (a[0] if a else k["hidden_states"])[0]), with_kwargs=True
            )
        ]
        for i, layer in enumerate(inner.layers):
            hooks.append(
                layer.register_forward_hook(
                    lambda m, a, out, i=i: kept.__setitem__(i + 1, (out if isinstance(out, Tensor) else out[0])[0])
                )
            )
        hooks.append(inner.norm.register_forward_hook(lambda m, a, out: kept.__setitem__(-1, out[0])))
        self.model(torch.tensor([ids]))
        for hook in hooks:
            hook.remove()
        return torch.cat([kept[i] for i in layers], dim=1)

    def embed(self, ids: list[int] | Tensor) -> Tensor:
        return self.model.get_input_embeddings()(torch.as_tensor(ids))

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden)


def write(directory: Path, tensors: dict[str, Tensor], config: dict[str, Any], file: str = "model.safetensors") -> Path:
    """A head's directory: its config and its weights, as safetensors or as a pickle."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file, {"format": "pt"})
    else:
        torch.save(tensors, directory / file)
    return directory


def first_blocks(llm: LLM, studied: Studied) -> list[int]:
    """Tokens accepted of the first draft on each text the head was trained on; the answers must be those texts."""
    gains: list[int] = []
    for text, start in zip(studied.texts, (4, 3), strict=True):
        request = llm._requests("x", text[:start], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))[0]
        llm.engine.add(request)
        whole_step(llm.engine)
        gains.append(whole_step(llm.engine)[0].accepted)
        while llm.engine.busy:
            whole_step(llm.engine)
        assert request.tokens == text
    return gains
