"""From a configuration to a running engine: device, weights, cache size, slots."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.drafters.base import Drafter, DrafterSetup
from augury.engine.adaptive import adaptive_budget
from augury.engine.aside import may_rest
from augury.engine.blocks import BlockPool
from augury.engine.budget import Budget, FixedBudget, ScheduledBudget
from augury.engine.cache_size import cache_bytes, cache_type, num_blocks
from augury.engine.cost_file import cost_file
from augury.engine.engine import Engine
from augury.engine.judge import make_judge
from augury.engine.mirror import Leader
from augury.engine.offload import Offload
from augury.engine.offload_room import make_offload
from augury.engine.parallel_checks import check_saver, divides_drafter, drafts_here
from augury.engine.predict import room
from augury.engine.runner import Runner
from augury.engine.saved_states import SavedStates
from augury.engine.scheduler import Scheduler
from augury.engine.state import SlotState
from augury.engine.state_room import StateRoom, most_slots, state_room
from augury.engine.team import Team
from augury.engine.warm_up import capture_graphs, warm_up, warm_up_prompts
from augury.kernels.faces import face
from augury.methods.registry import drafter_class
from augury.model.dense import Dense
from augury.model.layers import Mixture
from augury.model.load import load_target
from augury.model.lora import Adapters
from augury.model.memory import let_go
from augury.model.split import Split
from augury.model.states import States
from augury.model.target import KVCache, Target
from augury.observe.collection import set_aside, uncollected
from augury.observe.stats import EngineStats
from augury.parallel.ranks import Ranks

GRAPH_BYTES = 2 << 30
IMPLEMENTATIONS = {"vllm": "dense", "transformers": "adapter"}  # vLLM's words for model_impl
DTYPES = {"half": "float16", "float": "float32"}


def build_engine(
    config: EngineConfig, directory: Path, loaded: Target | None = None, team: Team | None = None
) -> Engine:
    """Load the target and lay out everything around it; choices left open in `config` are written back to it.

    A target that is already `loaded` shares its weights; the cache is this engine's own. With a `team` the model is
    divided among its ranks, of which this is the first.
    """
    if team is None:
        built = build_runner(config, directory, loaded)
    else:
        built = team.build(config, directory, partial(build_runner, config, directory, None, team.ranks))
    runner, drafter = built.runner, built.runner.drafter
    if team is not None:
        runner.state.leader = Leader(team.ranks)
    assert config.max_num_seqs and config.max_num_batched_tokens
    with set_aside():
        warm_up(runner, (1, 2) if runner.target.any_size else (1, 8))
        if drafter is not None:
            drafter.warm_up(runner.target.device)
        if runner.on_gpu:
            warm_up_prompts(runner, config.max_num_seqs, config.max_num_batched_tokens)
    spec = config.speculative_config
    if spec is not None and (spec.adaptive or spec.schedule):
        may_rest(runner, spec.card.one_pass or spec.parallel_drafting)
    capture_graphs(runner, config.max_num_seqs, GRAPH_BYTES)
    depth = int(runner.target.device.type == "cuda")
    if runner.target.device.type == "cpu":
        let_go()
    return Engine(runner, built.scheduler, _budget(config, runner, directory), built.stats, depth)


class Built(NamedTuple):
    """The parts of an engine."""

    runner: Runner
    scheduler: Scheduler
    stats: EngineStats


@uncollected(lasting=True)
def build_runner(
    config: EngineConfig, directory: Path, loaded: Target | None = None, ranks: Ranks | None = None
) -> Built:
    """Build an engine's device side, or this rank's part of it if there are several, and its scheduler."""
    device = _device(config.device) if ranks is None else ranks.device
    config.device = device.type if ranks is not None else str(device)
    split = None if ranks is None else Split(ranks, gathers=device.type == "cpu" or config.exact)
    target = copy(loaded) if loaded is not None else _load(config, directory, device, split)
    if split is not None:
        whole = not divides_drafter(config)
        target.draft_split = None if whole else replace(split, field="speculative_config.draft_tensor_parallel_size")
    if loaded is None and config.enable_lora:
        _make_room_for_adapters(config, target)
    _choose_sizes(config, target)
    drafter = build_drafter(config, target, directory) if drafts_here(config, ranks) else None
    check_exact(config, device, drafter)
    check_saver(drafter, ranks)
    blocks, states_room = _allocate(config, target, drafter)
    state, stats = _state(config, target, device), EngineStats()
    offload = make_offload(config, target, drafter, blocks, stats)
    scheduler = _scheduler(config, blocks, stats, target.cache.states, states_room, target.switch_length, offload)
    on_gpu = device.type == "cuda"
    state.tracks = on_gpu  # as the engine sets it; already here, because graphs are captured before that
    judge = make_judge(config.speculative_config, device, target)
    if face(device) == "triton" and ranks is None and judge.keeps_masks:
        state.make_masks()
    runner = Runner(
        target,
        state,
        judge,
        drafter,
        config.block_size,
        scheduler.lookahead,
        capture=on_gpu and target.capturable and not config.enforce_eager,
        nodes=config.speculative_config.max_nodes if config.speculative_config else None,
    )
    if offload is not None:
        offload.copied = runner.copied
    return Built(runner, scheduler, stats)


def _allocate(config: EngineConfig, target: Target, drafter: Drafter | None) -> tuple[int, StateRoom]:
    """Allocate the caches of target and drafter; returns the number of blocks and the room for recurrent states."""
    nodes, slots = room(config.speculative_config, target.device), config.max_num_seqs
    assert slots
    states_room = state_room(config, target, nodes, cache_bytes(config, target))
    blocks = num_blocks(config, target, drafter, states_room.num_bytes)
    tokens = blocks * config.block_size
    target.cache = KVCache.allocate(target.layer_shapes, tokens, cache_type(config, target), target.device)
    if target.state_shapes:
        target.cache.states = States.allocate(target.state_shapes, slots + 1, nodes, states_room.lines, target.device)
    if drafter is not None:
        drafter.allocate(tokens, config.block_size)
    return blocks, states_room


def _make_room_for_adapters(config: EngineConfig, target: Target) -> None:
    if not isinstance(target, Dense):
        raise ConfigError(
            "enable_lora needs our own model code, and this model runs through transformers; leave it out."
        )
    if any(isinstance(layer.mlp, Mixture) for layer in target.layers):
        raise ConfigError("enable_lora: adapters of a model with mixtures of experts are not supported; leave it out.")
    target.adapters = Adapters(target, config.lora_places, config.max_lora_rank)


def _scheduler(
    config: EngineConfig,
    blocks: int,
    stats: EngineStats,
    states: States | None,
    states_room: StateRoom,
    switch_length: int,
    offload: Offload | None,
) -> Scheduler:
    assert config.max_num_seqs and config.max_num_batched_tokens
    spec, pool = config.speculative_config, BlockPool(blocks)
    saved = None
    if states is not None:
        lines = range(states.first_saved, states.first_saved + states.num_saved)
        saved = SavedStates(pool, config.block_size, lines, states_room.every)
    return Scheduler(
        pool,
        config.max_num_seqs,
        config.block_size,
        config.max_num_batched_tokens,
        _chunk(config),
        config.enable_prefix_caching,
        stats,
        spec.kv_lookahead if spec else 0,
        saved,
        switch_length,
        offload,
    )


def check_exact(config: EngineConfig, device: torch.device, drafter: Drafter | None) -> None:
    """Refuse trees in exact mode on a GPU, where a tree's accepted nodes are summed in another order."""
    if config.exact and device.type == "cuda" and drafter is not None and drafter.branching:
        raise ConfigError("exact=True covers chains of drafts on a GPU, not trees; leave out exact or the tree.")


def _load(config: EngineConfig, directory: Path, device: torch.device, split: Split | None) -> Target:
    return load_target(
        directory,
        dtype=DTYPES.get(config.dtype, config.dtype),
        device=device,
        max_model_len=config.max_model_len,
        implementation=IMPLEMENTATIONS.get(config.model_impl, config.model_impl),
        packed=config.load_format != "safetensors",
        dummy=config.load_format == "dummy",
        exact=config.exact,
        fast=config.cpu_arithmetic == "fast",
        split=split,
        quantization=config.quantization,
    )


def _state(config: EngineConfig, target: Target, device: torch.device) -> SlotState:
    spec = config.speculative_config
    assert config.max_num_seqs and config.max_model_len
    state = SlotState.allocate(
        config.max_num_seqs,
        config.max_model_len,
        room(spec, device),
        config.block_size,
        target.vocab_size,
        device,
        spec.kv_lookahead if spec else 0,
    )
    if spec is not None and spec.keeps_probs:
        shape = (*state.draft.tokens.shape, target.vocab_size)
        state.draft.probs = torch.zeros(shape, dtype=torch.float32, device=device)
    if target.switch_length:
        state.long = torch.zeros(config.max_num_seqs + 1, dtype=torch.int64, device=device)
    if face(device) == "triton":
        state.make_tables()
    return state


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name!r} is unknown; use 'auto', 'cpu' or 'cuda'.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda' was asked for, but torch sees no GPU; use 'auto' or 'cpu'.")
    return device


def _choose_sizes(config: EngineConfig, target: Target) -> None:
    on_cpu = target.device.type == "cpu"
    if config.max_model_len is not None and config.max_model_len > target.max_position:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is more than the model's context of {target.max_position}; lower it."
        )
    if config.max_num_seqs is None:
        nodes = room(config.speculative_config, target.device)
        config.max_num_seqs = most_slots(target, nodes, cache_bytes(config, target), 64 if on_cpu else 256)
    budget = config.max_num_batched_tokens
    if budget is not None and budget < config.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens={budget} must be at least max_num_seqs={config.max_num_seqs}: "
            "every running request needs a row; raise it or lower max_num_seqs."
        )
    # On a CPU a large prefill chunk stalls running requests for long and is no faster per token.
    config.max_num_batched_tokens = budget or max(256 if on_cpu else 2048, config.max_num_seqs)


def _chunk(config: EngineConfig) -> int:
    return config.long_prefill_token_threshold if config.enable_chunked_prefill else 0


def _budget(config: EngineConfig, runner: Runner, directory: Path) -> Budget:
    spec = config.speculative_config
    assert config.max_num_seqs
    if spec is not None and spec.adaptive:
        kept = cost_file(config, directory, runner.target.device)
        return adaptive_budget(spec, config.max_num_seqs, runner, kept)
    if spec is not None and spec.schedule:
        return ScheduledBudget(spec.schedule.table(config.max_num_seqs))
    return FixedBudget(spec.max_nodes if spec else 1)


def build_drafter(config: EngineConfig, target: Target, directory: Path) -> Drafter | None:
    """The drafter of a configuration, without its cache; None where nothing is drafted."""
    spec = config.speculative_config
    if spec is None:
        return None
    build: Any = drafter_class(spec.card)
    assert config.max_num_seqs
    longest = config.max_model_len or target.max_position
    dummy = config.load_format == "dummy"
    drafter: Drafter = build(
        spec, DrafterSetup(target, config.max_num_seqs + 1, longest, config.dtype, directory, dummy)
    )
    return drafter
