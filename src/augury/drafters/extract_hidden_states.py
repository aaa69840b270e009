"""extract_hidden_states: no drafts; the target's hidden states of every request go to a file, to train drafters on.

They are kept in the cache rows of their tokens until the request ends. So prefill chunks, preemption and other requests
change nothing, and a prefix found again in the cache brings the states that were computed when its blocks were filled:
prefix caching stays on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from augury.config.sampling import SamplingParams
from augury.config.speculative import SpeculativeConfig
from augury.config.transfer import HiddenStatesStorage
from augury.drafters.base import Drafter, DrafterSetup, DraftInput, Needs
from augury.drafters.features import track_lengths, track_rows
from augury.drafters.hidden_files import HiddenStateFiles, wishes
from augury.drafters.rows import fresh_rows
from augury.drafters.saver import Ended, Saver
from augury.model.load import choose_head_dtype
from augury.verify.tree import Draft


class HiddenStatesDrafter(Drafter):
    """A Saver: collects, and writes at the end of each request."""

    name = "extract_hidden_states"
    on_host = False
    branching = False

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Take the layers; files go to the system's temporary folder unless `connect` says otherwise."""
        assert config.draft_model_config is not None  # its card requires the layers to be named
        ids = config.draft_model_config["hf_config"]["eagle_aux_hidden_state_layer_ids"]
        self.layers = tuple(sorted(set(ids)))  # as vLLM: in the order of the layers, each once
        self.needs = Needs(self.layers)
        self.target = setup.target
        self.dtype = choose_head_dtype(setup.dtype, setup.target)
        self.nodes = config.num_speculative_tokens
        self._block_size = 1
        self._states = torch.empty(0)  # [cache rows, layers, H]
        self._files: HiddenStateFiles | None = None

    @property
    def files(self) -> HiddenStateFiles:
        """What writes the files; made on first use."""
        if self._files is None:
            self.connect(HiddenStatesStorage())
        assert self._files is not None
        return self._files

    def connect(self, storage: HiddenStatesStorage) -> None:
        """Set where and how files are saved."""
        self._files = HiddenStateFiles(storage)

    @property
    def saver(self) -> Saver:
        """The drafter itself saves."""
        return self

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token's states, besides the target's cache."""
        return len(self.layers) * self.target.hidden_size * self.dtype.itemsize

    def allocate(self, rows: int, block_size: int) -> None:
        """Allocate room for the states of every cache row."""
        shape = (rows, len(self.layers), self.target.hidden_size)
        self._states = torch.zeros(shape, dtype=self.dtype, device=self.target.device)
        self._block_size = block_size

    @property
    def stores(self) -> list[Tensor]:
        """See Drafter.stores."""
        return [self._states]

    def propose(self, inputs: DraftInput) -> Draft:
        """Keep the states that this pass computed; drafts nothing."""
        fresh = fresh_rows(inputs, inputs.start, track_lengths(inputs))
        rows = track_rows(inputs, fresh.group, torch.where(fresh.live > 0, fresh.number, -1))
        states = torch.stack([stream[rows] for stream in inputs.features], dim=1)
        self._states[fresh.rows.write] = states.to(self.dtype)
        # vLLM's runner hands hidden states to a drafter that must draft, so there the method drafts the token just
        # drawn and discards the result; the text is plain decoding's either way, and so are the states.
        return Draft.empty(len(inputs.slots), self.nodes, self.target.device)

    def check(self, params: SamplingParams) -> None:
        """Refuse a request that asks for something it may not."""
        self.files.check(params)

    def finish(self, request: Ended) -> None:
        """Hand a finished request's states to a writer; one that was aborted leaves nothing."""
        if request.finish_reason in (None, "abort"):
            return
        # The last token was drawn and never run: it has no states.
        whole = wishes(request.params).get("include_output_tokens", False)
        count = len(request.tokens) - 1 if whole else request.prompt_len
        tokens = torch.tensor(request.tokens[:count], dtype=torch.int64)
        place = self.files.place(request.id, request.params)
        self.files.save(place, {"hidden_states": self._collected(request.blocks, count), "token_ids": tokens})

    def _collected(self, blocks: list[int], count: int) -> Tensor:
        size = self._block_size
        rows = (torch.tensor(blocks)[:, None] * size + torch.arange(size)).flatten()[:count]
        return self._states[rows.to(self._states.device)].cpu()

    def saved(self, request: Ended) -> dict[str, Any] | None:
        """The file of a finished request, once it is written, as `kv_transfer_params` has it."""
        if request.finish_reason in (None, "abort"):
            return None
        path = self.files.place(request.id, request.params)
        error = self.files.wait(path)
        return {"hidden_states_path": str(path)} if error is None else {"hidden_states_error": error}
