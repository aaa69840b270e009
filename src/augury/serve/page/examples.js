// Questions to begin with: two whose answers repeat their prompt, where look-up drafts shine, and an open one.

const CODE = `class Stack:
    # start empty
    def __init__(self):
        self.items = []

    # put on top
    def push(self, item):
        self.items.append(item)

    # take from the top
    def pop(self):
        return self.items.pop()`;

const JSON_LINE =
  '{"name": "Ada Lovelace", "role": "engineer", "city": "London", "email": "ada@example.com", ' +
  '"phone": "555-0142", "active": true, "team": "engines"}';

export const EXAMPLES = [
  {
    title: "Edit code",
    words: "most of the answer is in the question",
    text: "Remove the comments from this code:\n```python\n" + CODE + "\n```",
  },
  {
    title: "Rewrite JSON",
    words: "the same fields, one a line",
    text: `Format this JSON with one field on each line:\n${JSON_LINE}`,
  },
  { title: "Open question", words: "little to guess from", text: "Explain photosynthesis in two sentences." },
];
