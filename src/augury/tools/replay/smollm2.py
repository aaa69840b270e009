"""The embedded model's tokenizer, so that traces can be tokenised without the model.

Byte-level BPE is defined by its list of merges: the tokens are 17 special ones, 235 single bytes and one per merge, in
that order. smollm2-merges.txt.gz (0.2 MB) holds them, from SmolLM2-135M-Instruct (Apache-2.0); a test compares the
result with the tokenizer in the model's own file.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

MERGES = Path(__file__).with_name("smollm2-merges.txt.gz")
SPECIAL = tuple(
    """
    <|endoftext|> <|im_start|> <|im_end|> <repo_name> <reponame> <file_sep> <filename> <gh_stars> <issue_start>
    <issue_comment> <issue_closed> <jupyter_start> <jupyter_text> <jupyter_code> <jupyter_output> <jupyter_script>
    <empty_output>
    """.split()
)
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # GPT-2's split
DIGITS = r"\p{N}"  # each digit by itself


def smollm2() -> Any:
    """The tokenizer as a `tokenizers.Tokenizer`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    text = gzip.decompress(MERGES.read_bytes()).decode()
    single, *lines = text.splitlines()
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    tokens = [*SPECIAL, *single, *(left + right for left, right in merges)]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in (DIGITS, WORDS)]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*cuts, whole])
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return made
