"""What the gates of trained heads share: a target's text, its streams, and a head overfitted to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn


class Studied:
    """The toy target with transformers, for training: its greedy texts and the streams behind every token."""

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


def overfit(module: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float = 3e-3) -> float:
    """Plain Adam until the loss is small or the steps are spent; gives the last loss."""
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    value = torch.tensor(9.0)
    for _ in range(steps):
        optimiser.zero_grad()
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        if value.item() < 0.01:
            break
    return float(value.item())


def export(module: nn.Module, config: dict[str, Any], directory: Path, rename: Callable[[str], str] = str) -> Path:
    """A checkpoint of the module's own names."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {rename(name): tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    return directory
