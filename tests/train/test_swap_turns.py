"""Two `augury drafter swap` at one server: what each of them may take back."""

from __future__ import annotations

from typing import Any

import pytest

from augury.tools.shared.http import Server, Unreadable
from augury.tools.train.swap import _after


def test_what_another_swap_has_put_in_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def idle(*_: Any) -> None:
        raise Unreadable("idle", "no drafts")

    monkeypatch.setattr("augury.tools.train.swap.count", idle)
    monkeypatch.setattr(Server, "json", lambda *_, **__: {"drafter": "of the other"})
    monkeypatch.setattr(Server, "post", lambda self, path, *_: asked.append(path))
    server = Server("http://127.0.0.1:1")
    with pytest.raises(Unreadable, match="another swap happened in between"):
        _after(server, "mine", 500, 1.0, lambda *_: None)
    assert not asked
    with pytest.raises(Unreadable, match="no drafts"):
        _after(server, "of the other", 500, 1.0, lambda *_: None)
    assert asked == ["/augury/drafter/undo"]
