"""Stop strings are found where they end, whatever they are made of, and at a cost that nobody else notices."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from augury.engine.text import TextStream


def decode(ids: list[int]) -> str:
    return "".join(("a", "b", "ab", "ba\u0301", "aaa")[token] for token in ids)


def plain(pieces: list[str], stops: list[str], watched: list[bool]) -> tuple[str, str | None]:
    """The text up to the stop string that ends first in a watched piece, and which it is."""
    text = ""
    for piece, watch in zip(pieces, watched, strict=True):
        for letter in piece:
            text += letter
            if watch and (hit := next((stop for stop in stops if text.endswith(stop)), None)) is not None:
                return text[: len(text) - len(hit)], hit
    return text, None


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=30),
    st.lists(st.text("ab\u0301", min_size=1, max_size=5), min_size=1, max_size=6),
    st.booleans(),
)
def test_the_first_to_end_cuts_the_text(said: list[tuple[int, bool]], stops: list[str], keep: bool) -> None:
    stream, found = TextStream(decode, [], stops, keep), None
    for token, watch in said:
        if (found := stream.push(token, watch)) is not None:
            break
    text, stop = plain([decode([token]) for token, _ in said], stops, [watch for _, watch in said])
    assert found == stop and stream.text == text + (stop or "") * keep


def test_strings_that_nearly_match_everywhere_are_not_searched_for() -> None:
    """64 of them took ten milliseconds for each token of each request: of n answers, a second of everybody's time."""
    looked = []

    class Text(str):
        __slots__ = ()

        def find(self, *given: object) -> int:  # type: ignore[override]
            raise AssertionError("a search tries every place again")

        def endswith(self, *given: object) -> bool:  # type: ignore[override]
            looked.append(given)
            return super().endswith(*given)  # type: ignore[arg-type]

        def __add__(self, other: str) -> Text:
            return Text(str(self) + other)

    stream = TextStream(lambda ids: "a" * len(ids), [], ["a" * 300 + "b" + "a" * 300, "a" * 999 + "b"])
    stream.text = Text()
    for _ in range(1000):
        assert stream.push(0) is None
    assert len(looked) == 2 * 1000
