"""A toy that says the same line over and over: look-up drafts are accepted, and what it says is markup.

The toy of conftest.py hardly ever repeats itself. Here every byte has one likely successor, whatever came before: the
blocks of the network add nothing, and the output matrix holds the table of successors.
"""

from __future__ import annotations

from pathlib import Path

from conftest import byte_tokenizer

LINE = "<img src=x>abdefhjklnopqtuvwyz.\n"  # no byte twice
LIKELY = 8.0  # the successor's logit; all others have 0
# Whatever the question says after "ab" and "qt" is drafted there once, and wrong.
QUESTION = "abXY qtZ"


def cycling_model(directory: Path) -> Path:
    """Write the model to a directory."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=260, hidden_size=272, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=False, eos_token_id=256,
        bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(7)
    model = LlamaForCausalLM(config)
    ids: list[int] = tokenizer.encode(LINE)  # type: ignore[attr-defined]
    after = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(260, 272))
        model.lm_head.weight.zero_()
        for token in range(260):
            model.lm_head.weight[after.get(token, ids[0]), token] = LIKELY / 272**0.5
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)  # type: ignore[attr-defined]
    return directory
