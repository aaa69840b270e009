// Reasoning and tool calls inside an answer, each folded away: which token of a pass belongs to which of them.

import { make } from "./dom.js";

const TITLES = { reasoning: () => "Reasoning", call: (name) => `Call to ${name}` };

/** What a chunk's delta says, piece by piece: what was said, reasoned, called. */
export function pieces(delta) {
  const found = [];
  const thought = delta?.reasoning ?? delta?.reasoning_content;
  if (thought) found.push({ kind: "reasoning", text: thought });
  if (delta?.content) found.push({ kind: "content", text: delta.content });
  for (const call of delta?.tool_calls ?? [])
    found.push({ kind: "call", name: call.function?.name ?? null, text: call.function?.arguments ?? "" });
  return found;
}

/** The folds of one answer, and the tokens whose place is not known yet: a format's own marks. */
export class Folds {
  constructor(tokens) {
    this.outside = this.place = tokens;
    this.kind = "content";
    this.waiting = [];
  }

  /** Put the tokens of a pass where its pieces belong; the marks before and after a fold go into it. */
  put(elements, said) {
    const whole = elements.map((element) => element.textContent).join("");
    let from = 0;
    const starts = said.map(({ text }) => {
      const found = text ? whole.indexOf(text, from) : from;
      const start = found < 0 ? from : found;
      from = start + text.length;
      return [start, from];
    });
    let at = 0;
    let piece = -1;
    for (const element of elements) {
      while (piece + 1 < said.length && at >= this.opens(said, starts, piece + 1)) this.enter(said[++piece]);
      if (piece < 0 || at >= starts[piece][1]) this.waiting.push(element);
      else this.place.append(element);
      at += element.textContent.length;
    }
    while (piece + 1 < said.length) this.enter(said[++piece]);
  }

  /** Where a piece begins to own tokens: a fold from the end of the piece before it, text from its first letter. */
  opens(said, starts, i) {
    return said[i].kind === "content" ? starts[i][0] : (starts[i - 1]?.[1] ?? 0);
  }

  enter({ kind, name }) {
    const begins = kind !== this.kind || (kind === "call" && name !== null);
    const goesOut = begins && kind === "content";
    if (goesOut) this.flush();
    if (begins) this.place = kind === "content" ? this.outside : this.fold(kind, name);
    this.kind = kind;
    if (!goesOut) this.flush();
  }

  fold(kind, name) {
    const body = make("div", { className: "folded-text" });
    const summary = make("summary", { textContent: TITLES[kind](name ?? "a tool") });
    this.outside.append(make("details", { className: `folded ${kind}` }, summary, body));
    return body;
  }

  /** Put the waiting tokens into the current place: nothing more will say where they belong. */
  flush() {
    this.place.append(...this.waiting.splice(0));
  }
}
