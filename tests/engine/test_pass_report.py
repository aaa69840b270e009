"""Names for the columns of a pass's report, in the order in which Runner.decide puts them beside each other."""

from hypothesis import given
from hypothesis import strategies as st

from augury.engine.report import GroupReport, read

TOKENS = st.integers(0, 9)


@given(st.data(), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_every_column_has_its_name(data: st.DataObject, most: int, width: int, drafted: bool) -> None:
    told, lines = [], []
    for _ in range(3):
        emitted = data.draw(st.lists(TOKENS, max_size=most))
        draft = [data.draw(st.lists(TOKENS, min_size=width, max_size=width)) for _ in range(2)]
        counts = data.draw(st.tuples(TOKENS, TOKENS, TOKENS))
        line = [len(emitted) // 2, len(emitted), *emitted, *[99] * (most - len(emitted))]
        lines.append([*line, *draft[0], *draft[1], *counts] if drafted else line)
        told.append(GroupReport(line[0], emitted, *counts, *draft) if drafted else GroupReport(line[0], emitted))
    assert read(lines, drafted, width) == told
