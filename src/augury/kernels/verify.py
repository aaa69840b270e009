"""Draw the target's own token at every line (row of logits), and walk the drafts with them: the reference, in torch.

Shapes are static and nothing waits for the host, so it can be captured in a CUDA graph. Reductions over a row are
maxima or sums of integers, which do not depend on order: a line's token does not depend on other lines, on padding or
on how the device splits the work.
"""

from __future__ import annotations

import torch
from torch import Tensor

from augury.kernels.faces import face
from augury.methods.spec import MAX_NODES
from augury.verify.noise import TARGET, gumbel
from augury.verify.rules import VerifyOps
from augury.verify.sampling import Draws, Masks, Outcome, SlotSampling
from augury.verify.tree import Draft, first_of_siblings, listed, rooted

NEVER = float("-inf")
LARGEST = torch.finfo(torch.float32).max
MASS_UNIT = 2.0**40  # probabilities are summed as integers, in units of 2**-40 of the likeliest token's
UNUSED = -1  # pads stops and bad words
WORD_BITS = 32  # tokens in a word of a grammar's mask
BEFORE_START = -2  # stands where the history has no token; no word holds it


def choose(device: torch.device | str) -> VerifyOps:
    """The fastest face for a device."""
    kind = face(torch.device(device))
    if kind == "numba":
        from augury.kernels import verify_numba  # numba and Triton are imported only where they are used

        return VerifyOps(verify_numba.draw, verify_numba.walk)
    if kind == "triton":
        from augury.kernels import draw_triton

        return VerifyOps(draw_triton.draw, walk)
    return VerifyOps(draw, walk)


def tree_depths(draft: Draft) -> Tensor:
    """How deep each tree goes, int64 [G]: in one kernel where there is one."""
    kind = face(draft.parents.device)
    if kind == "numba":
        from augury.kernels import walk_numba

        return walk_numba.depths(draft)
    if kind == "triton":
        from augury.kernels import walk_triton

        return walk_triton.depths(draft)
    return draft.depth()


def draw(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    """The target's token for every line of [L, V] logits, int64 [L].

    Bias, penalties and bars come first, then temperature, min-p, top-k and top-p; the token is the argmax of what is
    left plus the slot's noise for that position. A greedy slot takes the argmax of the tokens that are not banned. Ties
    go to the lowest token. A token is a function of its row, its slot's parameters, its position and its own path
    alone.
    """
    logits = logits.float()
    scores = ordered(logits if draws.plain else edited(logits, draws, sampling))
    top = scores.amax(1, keepdim=True)
    possible = top > NEVER
    chosen = scores.argmax(1)
    if not draws.greedy:
        temperature = sampling.temperature[draws.slots][:, None]
        sampled = temperature > 0
        z = (scores - torch.where(possible, top, 0.0)) / torch.where(sampled, temperature, 1.0)
        chosen = torch.where(sampled[:, 0], _race(z, draws, sampling), chosen)
    return torch.where(possible[:, 0], chosen, last_resort(logits, draws, sampling))


def ordered(scores: Tensor) -> Tensor:
    """Scores made comparable: NaN becomes -inf, +inf the largest number."""
    return scores.nan_to_num(nan=NEVER, posinf=LARGEST, neginf=NEVER)


def edited(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    """Logits after bias, penalties, bars and grammars, each line with the history of its own path."""
    scores, slots = logits, draws.slots
    if sampling.bias is not None:
        scores = scores + torch.where(sampling.biased[slots][:, None], sampling.bias[slots], 0.0)
    path = _path(draws.parents, max(min(len(slots), MAX_NODES), sampling.bad_words.shape[2] - 1))
    path_tokens = torch.where(path >= 0, draws.tokens[path.clamp(min=0)], UNUSED)
    scores = _penalized(scores, path_tokens, slots, sampling)
    barred = _barred(scores.shape[1], path, path_tokens, draws, sampling)
    if draws.masks is not None:
        barred = barred | ~_grammatical(draws.masks, scores.shape[1])
    return scores.masked_fill(barred, NEVER)


def unpacked(bits: Tensor, vocab: int) -> Tensor:
    """Masks of int32 words as bool [M, V]."""
    place = torch.arange(WORD_BITS, dtype=bits.dtype, device=bits.device)
    return (bits[:, :, None] >> place & 1).bool().flatten(1)[:, :vocab]


def _grammatical(masks: Masks, vocab: int) -> Tensor:
    """Tokens that the line's grammar allows, bool [L, V]; a free line allows all."""
    return unpacked(masks.bits, vocab)[masks.rows.clamp(min=0)] | (masks.rows < 0)[:, None]


def _path(parents: Tensor, depth: int) -> Tensor:
    """Lines from each line up to just below its root, [L, >= depth], padded with -1; by doubling."""
    lines = torch.arange(len(parents), device=parents.device)
    path = torch.where(parents >= 0, lines, -1)[:, None]
    up = parents
    while path.shape[1] < depth:
        above = up.clamp(min=0)
        path = torch.cat([path, torch.where(up[:, None] >= 0, path[above], -1)], dim=1)
        up = torch.where(up >= 0, up[above], -1)
    return path


def _penalized(scores: Tensor, path_tokens: Tensor, slots: Tensor, sampling: SlotSampling) -> Tensor:
    """Repetition over everything seen, frequency and presence over what was generated, the path included."""
    vocab = scores.shape[1]
    counts = scores.new_zeros(scores.shape, dtype=torch.int32) if sampling.counts is None else sampling.counts[slots]
    real = (path_tokens >= 0) & (path_tokens < vocab)
    counts = counts.scatter_add(1, path_tokens.clamp(0, vocab - 1), real.to(counts.dtype))
    generated = counts > 0
    seen = generated if sampling.in_prompt is None else generated | sampling.in_prompt[slots]
    repetition = sampling.repetition[slots][:, None]
    after = torch.where(seen, torch.where(scores > 0, scores / repetition, scores * repetition), scores)
    after = after - sampling.frequency[slots][:, None] * counts.to(torch.float32)
    after = torch.where(generated, after - sampling.presence[slots][:, None], after)
    return torch.where(sampling.penalized[slots][:, None], after, scores)


def _barred(vocab: int, path: Tensor, path_tokens: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    """Stops that come too early and tokens that would finish a bad word, bool [L, V]."""
    slots = draws.slots
    early = draws.positions < sampling.min_length[slots]
    stops = torch.where(early[:, None], sampling.stops[slots], UNUSED)
    words = sampling.bad_words[slots]
    prefix = words[..., :-1].flip(-1)
    tail = _tail(prefix.shape[-1], path, path_tokens, draws)
    complete = ((prefix == UNUSED) | (prefix == tail[:, None, :])).all(-1)
    tokens = torch.cat([stops, torch.where(complete, words[..., -1], UNUSED)], dim=1)
    # An extra column takes what is not a token.
    inside = (tokens >= 0) & (tokens < vocab)
    marks = torch.zeros(len(slots), vocab + 1, dtype=torch.bool, device=slots.device)
    return marks.scatter(1, torch.where(inside, tokens, vocab), True)[:, :vocab]


def _tail(width: int, path: Tensor, path_tokens: Tensor, draws: Draws) -> Tensor:
    """The last tokens of each line's history, its path included, newest first, int64 [L, width]."""
    at = draws.positions[:, None] - 1 - torch.arange(width, device=path.device)
    known = draws.history[draws.slots[:, None], at.clamp(0, draws.history.shape[1] - 1)]
    known = torch.where(at >= 0, known, BEFORE_START)
    return torch.where(path[:, :width] >= 0, path_tokens[:, :width], known)


def _race(z: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    noise = gumbel(sampling.seed[draws.slots], draws.positions, TARGET, z.shape[1])
    return torch.where(z >= lowest_allowed(z, draws.slots, sampling), z + noise, NEVER).argmax(1)


def lowest_allowed(z: Tensor, slots: Tensor, sampling: SlotSampling) -> Tensor:
    """The lowest z that min-p, top-k and top-p leave in, float32 [L, 1]; tokens at the floor stay in."""
    vocab = z.shape[1]
    top_k, top_p = sampling.top_k[slots][:, None], sampling.top_p[slots][:, None]
    falling = z.sort(dim=1, descending=True).values  # values only, so ties have no order to depend on
    limited = (top_k > 0) & (top_k < vocab)
    kth = falling.gather(1, torch.where(limited, top_k, vocab) - 1)
    floor = torch.maximum(sampling.min_p[slots][:, None].log(), torch.where(limited, kth, NEVER))
    mass = torch.where(falling >= floor, (falling.exp().double() * MASS_UNIT).to(torch.int64), 0)
    reached = mass.cumsum(1)
    total = reached[:, -1:]
    need = torch.minimum((top_p.double() * total.double()).ceil().to(torch.int64).clamp(min=1), total)
    last = falling.gather(1, (reached < need).sum(1, keepdim=True).clamp(max=vocab - 1))
    return torch.where(top_p < 1, last, floor)


def last_resort(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    """What to emit when everything is barred: the lowest token that the bias allows, else the highest logit.

    A grammar outranks the bias: where they allow no token together, the lowest that the grammar allows.
    """
    if draws.plain or (sampling.bias is None and draws.masks is None):
        return torch.zeros_like(draws.slots)
    allowed = torch.ones_like(logits, dtype=torch.bool)
    if sampling.bias is not None:
        allowed = ~sampling.biased[draws.slots][:, None] | (sampling.bias[draws.slots] > NEVER)
    if draws.masks is not None:
        grammatical = _grammatical(draws.masks, logits.shape[1])
        both = allowed & grammatical
        confined = (draws.masks.rows >= 0)[:, None] & ~both.any(1, keepdim=True)
        allowed = torch.where(confined, grammatical, both)
    return torch.where(allowed.any(1), allowed.to(torch.int8).argmax(1), ordered(logits).argmax(1))


def walk(drawn: Tensor, first: Tensor, draft: Draft) -> Outcome:
    """Follow the drawn tokens down each group's tree.

    Node i of group g has line first[g] + 1 + i of `drawn`, its root first[g], or -1 for an inactive group. While a
    child of the current node carries the token drawn there, descend (of several with that token, to the first); the
    last drawn token ends the walk.
    """
    nodes = draft.tokens.shape[1]
    index = torch.arange(nodes, device=drawn.device)
    active = (first >= 0)[:, None]
    lines = (first[:, None] + torch.arange(nodes + 1, device=drawn.device)).clamp(0, len(drawn) - 1)
    at_node = drawn[lines]  # column 0 is the root's
    real = active & (index < draft.count[:, None])
    agrees = real & (draft.tokens == at_node.gather(1, draft.parents + 1))  # no draw is -1, so no placeholder agrees
    # Children that agree with one draw carry the same token: twins.
    on_path = rooted(first_of_siblings(agrees, draft.parents), draft.parents)
    path = listed(on_path)
    accepted = on_path.sum(1)
    emitted = at_node.gather(1, torch.cat([torch.zeros_like(lines[:, :1]), path + 1], dim=1))
    kept = active & (torch.arange(nodes + 1, device=drawn.device) <= accepted[:, None])
    return Outcome(torch.where(kept, emitted, -1), torch.where(active[:, 0], accepted + 1, 0), accepted, path)
