"""The demo's prompts: two edits, whose answers are largely in the prompt, and an open question.

They were chosen by trying: the embedded model has 135 million weights, and these it answers well. Asked to change one
value in a JSON file it copies the file unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

_CODE = """```python
class Stack:
    # start empty
    def __init__(self):
        self.items = []

    # put on top
    def push(self, item):
        self.items.append(item)

    # take from the top
    def pop(self):
        return self.items.pop()
```"""

_JSON = (
    '{"name": "Ada Lovelace", "role": "engineer", "city": "London", "email": "ada@example.com", '
    '"phone": "555-0142", "active": true, "team": "engines"}'
)


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A question, and what to call it."""

    title: str
    question: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The question as a conversation."""
        return [{"role": "user", "content": self.question}]


PROMPTS = (
    DemoPrompt("Edit code", f"Remove the comments from this code:\n{_CODE}"),
    DemoPrompt("Rewrite JSON", f"Format this JSON with one field on each line:\n{_JSON}"),
    DemoPrompt("Open question", "Explain photosynthesis in two sentences."),
)
