"""What an engine puts aside from collections comes back, and what somebody else has put aside stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from augury.observe import collection
from augury.observe.collection import set_aside


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """conftest.py has frozen, too."""
    monkeypatch.setattr(collection, "_others", False)
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def test_ours_comes_back_also_from_one_within_another() -> None:
    for _ in range(2):
        with set_aside():
            with set_aside():
                assert gc.get_freeze_count() > 1000
            assert gc.get_freeze_count() > 1000
        assert gc.get_freeze_count() == 0


def test_what_others_have_frozen_stays() -> None:
    gc.freeze()
    for _ in range(2):
        with set_aside():
            pass
        assert gc.get_freeze_count() > 1000


def test_an_error_leaves_nothing_aside() -> None:
    with pytest.raises(ValueError, match="in the midst"), set_aside():
        raise ValueError("in the midst")
    assert gc.get_freeze_count() == 0
