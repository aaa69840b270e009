"""Fields that ask for something that is not done here: refused by name, never ignored."""

from __future__ import annotations

from typing import Any

from augury.serve.errors import ApiError

BEAMS = "beam search is not done here; leave it out, or ask for n sampled answers"
# Each with the values that ask for nothing, and what to say about others.
FIELDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_beam_search": ((None, False), BEAMS),
    "length_penalty": ((None, 1, 1.0), BEAMS),
    "early_stopping": ((None, False), BEAMS),
    "echo": ((None, False), "only /v1/completions repeats its prompt"),
    "prompt_embeds": ((None,), "prompts are texts or token ids"),
    "truncate_prompt_tokens": ((None,), "nothing is cut; shorten the prompt"),
    "documents": ((None, []), "give them in chat_template_kwargs, for a template that writes them"),
    "mm_processor_kwargs": ((None, {}), "only text is read"),
    "modalities": ((None, [], ["text"]), "answers are text"),
    "audio": ((None,), "answers are text"),
    "web_search_options": ((None,), "nothing is searched here; give a tool and search yourself"),
    "logits_processors": ((None, []), "client code is not run here; use logit_bias, bad_words or a structure"),
    "vllm_xargs": ((None, {}), "there is nothing here that reads it"),
    "logprob_token_ids": ((None, []), "ask for the likeliest with logprobs"),
    "return_tokens_as_token_ids": ((None, False), "ask for return_token_ids"),
    "thinking_token_budget": ((None,), "reasoning has no limit of its own; use max_tokens"),
    "repetition_detection": ((None,), "answers end at stop, stop_token_ids and max_tokens alone"),
    "priority": ((None, 0), "clients take turns; priorities are not supported"),
    "best_of": ((None, 1), "it is not supported; leave it out, or ask for n"),
    "functions": ((None, []), "OpenAI has replaced it; use tools"),
    "function_call": ((None, "auto", "none"), "OpenAI has replaced it; use tool_choice"),
}


def check_unsupported(extra: dict[str, Any]) -> None:
    """Refuse fields of a request that are not supported."""
    for name, (nothing, why) in FIELDS.items():
        if name in extra and extra[name] not in nothing:
            raise ApiError(400, f"{name}: {why}.", name)
