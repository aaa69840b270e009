"""The demo's prompts: two edits, where much of the answer is already in the prompt, and an open question."""

from __future__ import annotations

from dataclasses import dataclass

_JSON = """{
  "name": "Ada Lovelace",
  "role": "engineer",
  "city": "London",
  "email": "ada@example.com",
  "active": true,
  "tags": ["math", "code"]
}"""

_CODE = """def area(width, height):
    return width * height

def volume(width, height, depth):
    return width * height * depth
"""


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A conversation, and what to call it."""

    title: str
    messages: list[dict[str, str]]

    @property
    def shown(self) -> str:
        """The question as the demo prints it."""
        return self.messages[-1]["content"]


def _ask(title: str, question: str) -> DemoPrompt:
    return DemoPrompt(title, [{"role": "user", "content": question}])


PROMPTS = (
    _ask("Edit JSON", f'Rewrite this JSON with "city" changed to "Paris":\n```json\n{_JSON}\n```'),
    _ask("Edit code", f"Add a docstring to each function and repeat the code:\n```python\n{_CODE}```"),
    _ask("Explain", "Why is the sky blue? Answer in two sentences."),
)
