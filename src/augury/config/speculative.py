"""speculative_config: every key of vLLM 0.32, those it has dropped, and ours.

The class declares the keys; `resolve` (config/resolve.py) turns what a user wrote into it, and notes every decision.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PrivateAttr

from augury.config.keys import OWN, key
from augury.config.objects import RejectionSampler, TreeConfig
from augury.config.schedule import Schedule
from augury.config.values import LOSSY, MOE_SINCE, NO_TYPICAL, RULES_SINCE, KVCacheType, MoeBackend, SampleMethod
from augury.methods.notes import Note
from augury.methods.registry import METHODS
from augury.methods.spec import Method


class SpeculativeConfig(BaseModel):
    """How to speculate, resolved; build it with `resolve`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=(), arbitrary_types_allowed=True
    )

    method: str = key("", "How drafts are made; inferred from `model` if left out.", accepts="a method's name, or null")
    model: str | None = key(None, "The drafter: a directory or hub id; for custom_class an import path.", min_length=1)
    drafters: list[dict[str, Any]] | None = key(
        None,
        "For hybrid: the drafters, each a configuration of its own; a bare list of them means the same.",
        since=OWN,
        accepts="a list of objects, or null",
    )
    num_speculative_tokens: int = key(0, "K: most tokens a draft may have.", gt=0)
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]] | None = key(
        None,
        "K by the number of running requests: [first, last, K] ranges from 1 on; K=0 pauses drafting.",
        since="0.24",
        accepts="a list of [first, last, K], or null",
    )
    adaptive: bool = key(
        False,
        "Choose every step how much each request drafts, 0 to K, by what it costs here and what is accepted; "
        'what num_speculative_tokens "auto" means.',
        since=OWN,
    )
    plain_pass_every: int = key(
        64, "With adaptive: one pass in so many is plain, to measure the speed-up against it; 0: none.", since=OWN, ge=0
    )
    prompt_lookup_max: int | None = key(None, "Longest n-gram looked up (5 if both are left out).", ge=1)
    prompt_lookup_min: int | None = key(None, "Shortest n-gram looked up (5 if both are left out).", ge=1)
    prompt_lookup_match: Literal["earliest", "latest"] = key(
        "earliest",
        "Which earlier occurrence to copy from: vLLM's old runner takes the earliest, its new the latest.",
        since=OWN,
    )
    suffix_decoding_max_tree_depth: int = key(24, "Longest match and draft together.", since="0.11.1", ge=1)
    suffix_decoding_max_cached_requests: int = key(
        10_000, "Past answers kept for matching; 0 keeps none.", since="0.11.1", ge=0
    )
    suffix_decoding_max_spec_factor: float = key(
        1.0, "Draft at most this many times the matched length.", since="0.11.1", ge=0
    )
    suffix_decoding_min_token_prob: float = key(
        0.1, "Stop drafting where a token's estimated probability falls below.", since="0.11.1", ge=0, le=1
    )
    suffix_decoding_max_cached_bytes: int | None = key(
        None, "Most memory the suffix cache may take; the oldest answers go first.", since=OWN, ge=1
    )
    suffix_decoding_cache_path: str | None = key(
        None, "Start from a suffix cache saved by `augury suffix build`.", since=OWN, min_length=1
    )
    suffix_decoding_save_path: str | None = key(
        None, "Save the suffix cache here when the engine ends, and start from it where it is.", since=OWN, min_length=1
    )
    parallel_drafting: bool = key(
        False, "Draft all tokens in one pass: P-EAGLE with eagle3, PARD with draft_model.", since="0.16"
    )
    draft_sample_method: Literal["greedy", "probabilistic"] = key(
        "greedy",
        "Draft the likeliest tokens, or sampled ones.",
        since="0.21",
        values={"gumbel": ("0.21", "0.22"), "probabilistic": ("0.22", None)},
    )
    rejection_sample_method: SampleMethod = key(
        "coupled",
        "The rule that accepts drafts; typical, entropy, ascend_block and synthetic change the output.",
        since="0.18",
        values=RULES_SINCE,
    )
    synthetic_acceptance_rates: list[float] | None = key(
        None,
        "For synthetic: the share of drafts accepted up to each position, falling.",
        since="0.20",
        accepts="a list of K falling numbers in [0, 1], or null",
    )
    synthetic_acceptance_length: float | None = key(
        None, "For synthetic: tokens a step to aim at, from 1 to K+1; turned into rates.", since="0.20", ge=1
    )
    rejection_sampler_config: RejectionSampler | None = key(
        None, "vllm-ascend's block and entropy verification (there under additional_config). Lossy.", since=OWN
    )
    posterior_threshold: float | None = key(
        None,
        "For typical: upper bound of the acceptance threshold (0.09).",
        until="0.10",
        gt=0,
        le=1,
        instead=NO_TYPICAL,
    )
    posterior_alpha: float | None = key(
        None, "For typical: how strongly entropy lowers the threshold (0.3).", until="0.10", ge=0, instead=NO_TYPICAL
    )
    tree: TreeConfig | None = key(None, "Draft a tree, grown by path probability, instead of a chain.", since=OWN)
    speculative_token_tree: str | None = key(
        None,
        "Draft a tree of this shape: a list of paths such as '[(0,), (0, 0), (1,)]'.",
        since="0.9",
        until="0.21",
        instead="remove it: vLLM has no trees any more; Augury still runs it",
    )
    use_heterogeneous_vocab: bool = key(
        False, "Let a draft_model have another vocabulary: drafts use the tokens both share.", since="0.25"
    )
    draft_tensor_parallel_size: int | None = key(
        None, "Ranks that divide the drafter: 1 (every rank has it whole) or the target's.", ge=1
    )
    max_model_len: int | None = key(
        None, "Longest context for the drafter; longer requests continue without drafts.", ge=1
    )
    quantization: str | None = key(None, "How the drafter's weights are quantised.", min_length=1, runs=False)
    kv_cache_dtype: KVCacheType | None = key(
        None,
        "Type of the drafter's KV cache.",
        since="0.26",
        runs=False,
        values={"nvfp4_4over6": ("0.28", None), "nvfp4_ds_mla": ("0.30", None), "ultraquant_4bit": ("0.32", None)},
    )
    attention_backend: str | None = key(
        None, "The drafter's attention kernels.", since="0.21", min_length=1, runs=False
    )
    moe_backend: MoeBackend | None = key(
        None, "The drafter's mixture-of-experts kernels.", since="0.19", runs=False, values=MOE_SINCE
    )
    enforce_eager: bool | None = key(None, "Run the drafter without CUDA graphs.", since="0.11", runs=False)
    revision: str | None = key(None, "The drafter's revision on the hub.", min_length=1)
    code_revision: str | None = key(None, "Revision of the drafter's code on the hub.", min_length=1, runs=False)
    draft_load_config: dict[str, Any] | None = key(
        None, "How the drafter's weights are read (vLLM's LoadConfig).", since="0.17", runs=False
    )
    draft_model_config: dict[str, Any] | None = key(
        None, "For extract_hidden_states: {'hf_config': {'eagle_aux_hidden_state_layer_ids': [...]}}.", since="0.17"
    )
    disable_padded_drafter_batch: bool = key(
        False, "vLLM: do not pad the drafter's inputs to one length.", since="0.11", runs=False
    )
    disable_eagle_block_drop: bool = key(
        False, "vLLM: keep the last prefix-cache block with EAGLE-like drafters.", since="0.30", runs=False
    )
    use_local_argmax_reduction: bool = key(
        False, "vLLM: pick greedy draft tokens within each tensor-parallel shard.", since="0.17", runs=False
    )
    enable_adaptive_verification: bool = key(
        False, "vLLM: verify only as many drafted tokens as pay.", since="0.28", runs=False
    )
    index_share_for_mtp_iteration: bool | None = key(
        None, "vLLM: MTP passes after the first reuse its sparse-attention indices.", since="0.29", runs=False
    )
    dspark_draft_topk: int | None = key(
        None, "For dspark: correct only this many of the likeliest tokens.", since="0.28", ge=1
    )

    _notes: tuple[Note, ...] = PrivateAttr(default=())
    _lookahead: int | None = PrivateAttr(default=None)  # where the checkpoint says more than the card
    _modules: int = PrivateAttr(default=1)  # layers that draft one after another
    _parts: tuple[SpeculativeConfig, ...] = PrivateAttr(default=())

    @property
    def notes(self) -> tuple[Note, ...]:
        """Every decision made on the user's behalf."""
        return self._notes

    @property
    def parts(self) -> tuple[SpeculativeConfig, ...]:
        """The drafters of a hybrid, resolved; empty for every other method."""
        return self._parts

    @property
    def card(self) -> Method:
        """The method's card."""
        return METHODS[self.method]

    @property
    def samples_drafts(self) -> bool:
        """Whether drafts are sampled from the drafter's distribution, rather than its likeliest tokens."""
        sampled = self.draft_sample_method == "probabilistic" and "draft_sample_method" in self.card.keys
        return sampled and not self.drafts_trees  # a tree takes the likeliest children

    @property
    def rule(self) -> str:
        """The rule that runs: on drafts that are not sampled, no rejection rule accepts more than `coupled` does."""
        served = self.rejection_sample_method in ("standard", "block") and not self.samples_drafts
        return "coupled" if served else self.rejection_sample_method

    @property
    def keeps_probs(self) -> bool:
        """Whether the rule needs the distributions that drafts were sampled from."""
        return self.samples_drafts and self.rule not in ("coupled", "synthetic")

    @property
    def lossless(self) -> bool:
        """Whether the text is the target's own, whatever is drafted."""
        return self.rejection_sample_method not in LOSSY

    @property
    def continues_hidden_states(self) -> bool:
        """Whether the drafter carries the target's hidden states on from token to token (vLLM's `use_eagle`)."""
        return self.card.continues_target

    @property
    def reads_auxiliary_layers(self) -> bool:
        """Whether the target must return hidden states of several layers."""
        return self.card.features == "auxiliary"

    @property
    def drafts_trees(self) -> bool:
        """Whether a token may be given more than one continuation."""
        return (self.tree is not None or self.speculative_token_tree is not None) and "tree" in self.card.keys

    @property
    def max_nodes(self) -> int:
        """Most draft tokens a request may have at once: the nodes of its tree, or the length of its chain."""
        return self.tree.max_nodes if self.tree and "tree" in self.card.keys else self.num_speculative_tokens

    @property
    def extra_slots(self) -> int:
        """Input rows a request takes for drafting beyond the target's own."""
        return self.card.extra_slots(self.num_speculative_tokens, self.parallel_drafting)

    @property
    def kv_lookahead(self) -> int:
        """KV cache rows that a request writes beyond its known tokens."""
        if self._parts:
            return max(part.kv_lookahead for part in self._parts)
        ahead = self.card.lookahead if self._lookahead is None else self._lookahead
        return 0 if ahead == 0 else max(self.num_speculative_tokens, self.max_nodes, self._tree_rows) + ahead - 1

    @property
    def _tree_rows(self) -> int:
        """Rows a drafter runs to grow a tree: as many as may have children, level by level."""
        return (self.num_speculative_tokens - 1) * self.tree.top_k if self.tree and self.drafts_trees else 0

    @property
    def prefill_lookahead(self) -> int:
        """Prompt tokens the drafter must see past the end of a chunk."""
        several = min(self._modules, self.num_speculative_tokens) > 1
        return self.num_speculative_tokens if several else self.card.prefill_lookahead

    @property
    def rows_per_step(self) -> int:
        """Rows of one decoding request: its last token and the draft."""
        return 1 + self.max_nodes

    @property
    def schedule(self) -> Schedule | None:
        """K by batch size, where the user gave a table."""
        table = self.num_speculative_tokens_per_batch_size
        return Schedule.read(table, self.num_speculative_tokens) if table else None

    def to_dict(self) -> dict[str, Any]:
        """The keys that differ from their defaults, as JSON has them; parsing it again gives the same configuration."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def compute_hash(self) -> str:
        """A hash of the keys that differ from their defaults."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        """Hash the keys, consistently with equality."""
        return hash(self.compute_hash())

    def __eq__(self, other: object) -> bool:
        """Compare the keys; notes do not count."""
        return isinstance(other, SpeculativeConfig) and self.model_dump() == other.model_dump()

    def __repr__(self) -> str:
        """As vLLM prints it."""
        card = METHODS.get(self.method)
        model = self.model if card and card.has_weights else None
        return (
            f"SpeculativeConfig(method={self.method!r}, model={model!r}, num_spec_tokens={self.num_speculative_tokens})"
        )

    __str__ = __repr__
