"""The tokenizer inside a GGUF file, rebuilt with the `tokenizers` library.

GGUF keeps the vocabulary and only the *name* of the rules that cut text into words, so those rules are written here,
for the classes that have been checked against the published tokenizers. An unknown class is an error: a tokenizer that
is nearly right silently makes the model worse.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.model.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from augury.model.gguf_file import GGUFFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "▁"  # how SentencePiece writes a space

# Tokens that end a turn or a text whatever `eos_token_id` says: instruction-tuned models end with more than one.
END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<EOT>",
)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
)
CJK = "[一-龥ࠀ-一가-퟿]+"


@dataclass(frozen=True, slots=True)
class Rules:
    """How a class of byte-level tokenizers cuts text into words: each pattern splits what the one before left."""

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False  # a word that is a token is taken whole
    add_bos: bool = False  # where the file does not say


DIGITS_SINGLY = Rules((r"\p{N}", GPT2))
CLASSES = {
    # llama.cpp's own fallback, and what files mean that say "default"
    "default": Rules((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": Rules((GPT2,)),
    "smollm": DIGITS_SINGLY,
    "starcoder": DIGITS_SINGLY,
    "refact": DIGITS_SINGLY,
    "llama-bpe": Rules((LLAMA3,), ignore_merges=True, add_bos=True),
    "llama3": Rules((LLAMA3,), ignore_merges=True, add_bos=True),
    "llama-v3": Rules((LLAMA3,), ignore_merges=True, add_bos=True),
    "qwen2": Rules((QWEN2,), nfc=True),
    "deepseek-r1-qwen": Rules((QWEN2,)),
    "deepseek-coder": Rules((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}")),
    "tekken": Rules((TEKKEN,), ignore_merges=True, add_bos=True),
}


def write_tokenizer(file: GGUFFile, target: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json for the vocabulary of a GGUF file."""
    build_tokenizer(file).save(str(target / "tokenizer.json"))
    bos, eos = _adds(file)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bos,
        "add_eos_token": eos,
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = special_id(file, key)
        if token is not None:
            config[f"{role}_token"] = _texts(file)[token]
    if "tokenizer.chat_template" in file.metadata:
        config["chat_template"] = file.metadata["tokenizer.chat_template"]
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """The tokenizer of a GGUF file, special tokens and bos/eos included."""
    kind = file.need("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(file)
    elif kind == "llama":
        tokenizer = _sentencepiece(file)
    else:
        raise ModelError(
            f"{file.path}: tokenizer model {kind!r} is not supported; supported: 'gpt2' (BPE), 'llama' (SPM)."
        )
    _add_special_tokens(tokenizer, file)
    _add_post_processor(tokenizer, file)
    return tokenizer


def special_id(file: GGUFFile, role: str) -> int | None:
    """The id of the bos, eos, eot, eom, unknown or padding token; None where the file names none."""
    token = file.metadata.get(f"tokenizer.ggml.{role}_token_id")
    if token is None:
        return None
    if not 0 <= token < len(file.need("tokenizer.ggml.tokens")):
        raise ModelError(f"{file.path}: {role} token id {token} is outside the vocabulary; the file is broken.")
    return int(token)


def end_ids(file: GGUFFile) -> list[int]:
    """Every token that ends a text, the file's own eos first."""
    named = [special_id(file, role) for role in ("eos", "eot", "eom")]
    types = file.metadata.get("tokenizer.ggml.token_type", [])
    known = [i for i, text in enumerate(_texts(file)) if text in END_TOKENS and i < len(types) and types[i] == CONTROL]
    return list(dict.fromkeys(token for token in (*named, *known) if token is not None))


def _texts(file: GGUFFile) -> list[str]:
    """Token texts by id, without the unused entries that pad the end of the embedding matrix."""
    texts = file.need("tokenizer.ggml.tokens")
    types = file.metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(texts))
    end = len(texts)
    while end and types[end - 1] == UNUSED:
        end -= 1
    return [text or f"[EMPTY_{i}]" for i, text in enumerate(texts[:end])]


def _types(file: GGUFFile) -> list[int]:
    """Token types by id, as many as there are texts."""
    count = len(_texts(file))
    return list(file.metadata.get("tokenizer.ggml.token_type", [NORMAL] * count)[:count])


def _byte_level(file: GGUFFile) -> Tokenizer:
    """A byte-level BPE tokenizer with the word rules of its class."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    rules = _rules(file)
    merges = [tuple(merge.split(" ")) for merge in file.need("tokenizer.ggml.merges")]
    vocabulary = {text: i for i, text in enumerate(_texts(file))}
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=rules.ignore_merges))
    except Exception as error:  # the library raises bare Exception for a merge whose parts are no tokens
        raise ModelError(f"{file.path}: the vocabulary is broken ({error}); download the file again.") from error
    if rules.nfc:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _rules(file: GGUFFile) -> Rules:
    """The word rules that the file names."""
    name = file.metadata.get("tokenizer.ggml.pre")
    if name is None:
        raise ModelError(
            f"{file.path}: no 'tokenizer.ggml.pre' says how text is cut into words; "
            "an old converter made this file: take a newer one."
        )
    if name not in CLASSES:
        raise ModelError(f"{file.path}: pre-tokenizer {name!r} is not supported; supported: {', '.join(CLASSES)}.")
    return CLASSES[name]


def _sentencepiece(file: GGUFFile) -> Tokenizer:
    """A SentencePiece BPE tokenizer, with scores turned into merges as transformers does it."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    texts, types = _texts(file), _types(file)
    unknown = special_id(file, "unknown")
    model = models.BPE(
        {text: i for i, text in enumerate(texts)},
        _merges(texts, types, file.need("tokenizer.ggml.scores")),
        unk_token=None if unknown is None else texts[unknown],
        fuse_unk=True,
        byte_fallback=BYTE in types,
    )
    tokenizer = Tokenizer(model)
    prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    replace = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if prefix else replace
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _merges(texts: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, best score first, longer left part first."""
    usable = {text for text, kind in zip(texts, types, strict=True) if kind in (NORMAL, USER_DEFINED)}
    found: list[tuple[float, int, int, str, str]] = []
    for i, text in enumerate(texts):
        if text not in usable:
            continue
        for cut in range(len(text) - 1, 0, -1):
            left, right = text[:cut], text[cut:]
            if left in usable and right in usable:
                found.append((-scores[i], -cut, cut - len(text), left, right))
    found.sort(key=lambda merge: merge[:3])
    return [merge[3:] for merge in found]


def _add_special_tokens(tokenizer: Tokenizer, file: GGUFFile) -> None:
    """Make control tokens special, and user-defined ones indivisible."""
    from tokenizers import AddedToken

    special = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
    found = [
        AddedToken(text, special=special[kind], normalized=False)
        for text, kind in zip(_texts(file), _types(file), strict=True)
        if kind in special
    ]
    tokenizer.add_tokens(found)


def _adds(file: GGUFFile) -> tuple[bool, bool]:
    """Whether texts begin with bos and end with eos."""
    if file.metadata["tokenizer.ggml.model"] == "llama":
        default = True
    else:
        default = _rules(file).add_bos
    bos = file.metadata.get("tokenizer.ggml.add_bos_token", default) and special_id(file, "bos") is not None
    eos = file.metadata.get("tokenizer.ggml.add_eos_token", False) and special_id(file, "eos") is not None
    return bool(bos), bool(eos)


def _add_post_processor(tokenizer: Tokenizer, file: GGUFFile) -> None:
    """Put bos before and eos after every text, if the file says so."""
    from tokenizers.processors import TemplateProcessing

    adds_bos, adds_eos = _adds(file)
    if not (adds_bos or adds_eos):
        return
    used = [(role, special_id(file, role)) for role, on in (("bos", adds_bos), ("eos", adds_eos)) if on]
    text = {role: _texts(file)[token] for role, token in used if token is not None}
    before = [text["bos"]] if adds_bos else []
    after = [text["eos"]] if adds_eos else []
    tokenizer.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *[f"{t}:1" for t in before], "$B:1", *[f"{t}:1" for t in after]],
        special_tokens=[(_texts(file)[token], token) for _, token in used if token is not None],
    )
