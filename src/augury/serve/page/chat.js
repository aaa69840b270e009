// The conversation: questions, answers, and the messages that the model gets.

import { Answer } from "./answer.js";
import { byId, make } from "./dom.js";
import { fenced } from "./fences.js";
import { stream } from "./turns.js";

/** One chat. */
export class Chat {
  constructor(settings, inspector) {
    this.settings = settings;
    this.inspector = inspector;
    this.list = byId("conversation");
    this.clear();
    inspector.watch(this.list, (token) => this.answers.find((answer) => answer.tokens.contains(token)));
  }

  /** Start a new conversation. */
  clear() {
    this.messages = [];
    this.answers = [];
    this.inspector.release();
    this.list.replaceChildren();
    byId("welcome").hidden = false;
  }

  /** The question asked last, if any. */
  get latest() {
    return this.messages.findLast((message) => message.role === "user")?.content;
  }

  /** Ask, and show the answer as it comes. */
  async ask(question, signal, say) {
    const answer = new Answer();
    const asked = make("li", { className: "question" }, ...fenced(question));
    const item = make("li", {}, answer.element);
    byId("welcome").hidden = true;
    this.list.append(asked, item);
    item.scrollIntoView({ block: "nearest" });
    this.answers.push(answer);
    const messages = [...this.messages, { role: "user", content: question }];
    const voice = new Voice();
    const step = (fresh) => {
      voice.hear(fresh);
      this.inspector.follow(answer);
      stayAtEnd(answer);
    };
    try {
      await stream({ messages, ...this.settings.request() }, this.settings.key, answer, signal, { say, step });
    } catch (error) {
      if (!answer.text) this.forget(answer, asked, item);
      if (!signal.aborted || !answer.text) throw error;
    } finally {
      answer.close(signal.aborted);
      this.inspector.rest(answer);
      voice.finish();
      stayAtEnd(answer);
      if (answer.text) this.messages = [...messages, { role: "assistant", content: answer.text }];
    }
  }

  /** Take a question that got no answer, and its items, off the page. */
  forget(answer, ...items) {
    this.answers = this.answers.filter((other) => other !== answer);
    for (const item of items) item.remove();
    byId("welcome").hidden = this.answers.length > 0;
  }
}

/** Passes the answer to a screen reader sentence by sentence; token by token, it would stammer. */
class Voice {
  constructor() {
    this.waiting = "";
  }

  hear(fresh) {
    this.waiting += fresh;
    const end = this.waiting.search(/[.!?:]\s|\n/);
    if (end >= 0) this.speak(end + 1);
  }

  finish() {
    this.speak(this.waiting.length);
  }

  speak(length) {
    const words = this.waiting.slice(0, length).trim();
    this.waiting = this.waiting.slice(length);
    if (words) byId("spoken").textContent = words;
  }
}

/** Keep an answer's end above the question box, unless the reader has scrolled away from it. */
function stayAtEnd(answer) {
  const panel = byId("chat");
  const below = answer.figures.getBoundingClientRect().bottom + 8 - byId("ask").getBoundingClientRect().top;
  const scroller = panel.scrollHeight > panel.clientHeight + 1 ? panel : document.scrollingElement;
  if (below > 0 && below < 200) scroller.scrollBy(0, below);
}
