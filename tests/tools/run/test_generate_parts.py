"""What `augury generate` is made of: prompts from files, and pieces of text that carry their origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from augury.config.errors import ConfigError
from augury.engine.engine import Update
from augury.engine.text import TextStream
from augury.tools.shared.given_prompts import gather
from augury.tools.shared.runs import Piece, Pieces
from augury.tools.shared.terminal import UNSAFE, colored


def test_prompts_come_from_files(tmp_path: Path) -> None:
    plain = tmp_path / "prompts.txt"
    plain.write_text("one\n\n two \n")
    assert gather(None, plain) == ["one", " two "]
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "fine"}\n{"prompt": 3}\n')
    with pytest.raises(ConfigError, match="line 2"):
        gather(None, broken)


class _Request:
    """As much of a request as the terminal looks at."""

    def __init__(self, stop: list[str]) -> None:
        self.tokens, self.prompt_len, self.finish_reason = list(b"prompt"), 6, None
        self.text = TextStream(lambda ids: bytes(ids).decode(errors="replace"), [], stop)


def _said(steps: list[tuple[bytes, int]], stop: list[str]) -> tuple[list[Piece], str]:
    request, pieces, shown = _Request(stop), Pieces(lambda ids: bytes(ids).decode(errors="replace")), []
    for i, (tokens, accepted) in enumerate(steps, 1):
        ended = any(request.text.push(token) for token in tokens)
        if ended or i == len(steps):
            request.finish_reason = "stop"  # type: ignore[assignment]
            request.text.flush()
        shown += pieces.take(Update(request, list(tokens), accepted))  # type: ignore[arg-type]
    return shown, request.text.text


def test_pieces_carry_their_origin() -> None:
    shown, text = _said([(b"abc", 2), (b"d", 0)], [])
    assert shown == [Piece("a", True), Piece("b", True), Piece("c", False), Piece("d", False)]
    assert text == "abcd"


@pytest.mark.parametrize("stop", [[], ["STOP"]])
@pytest.mark.parametrize("text", ["plain", "naïve € café", "now STOP", "nearly STO", "half \U0001f600"])
def test_pieces_add_up_to_the_text(text: str, stop: list[str]) -> None:
    raw = text.encode()
    for cut in (raw, raw[:-1]):  # the second may end in half a character
        shown, said = _said([(cut[i : i + 3], 2) for i in range(0, len(cut), 3)], stop)
        assert "".join(piece.text for piece in shown) == said


def test_a_model_cannot_steer_the_terminal() -> None:
    assert colored([Piece("a\x1b[2Jb\tc\nd", False)], "green").plain == "a[2Jb\tc\nd"
    assert 27 in UNSAFE and 10 not in UNSAFE
