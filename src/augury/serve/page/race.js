// Plain against speculative on one prompt: each alone, one after the other, the same seed; then the texts are compared.

import { Answer } from "./answer.js";
import { byId, make, say } from "./dom.js";
import { stream } from "./turns.js";

const SEED = 1; // where the user has set none: both must draw the same

/** One side of the race. */
class Lane {
  constructor(id, title) {
    this.answer = new Answer();
    this.clock = make("span", { className: "clock", textContent: "0.0 s" });
    this.bar = make("progress", { max: 1, value: 0 });
    this.bar.setAttribute("aria-label", `${title}: progress`);
    const head = make("div", { className: "lane-head" }, make("h2", { textContent: title }), this.clock);
    this.answer.tokens.classList.remove("waiting");
    byId(id).replaceChildren(head, this.bar, this.answer.element);
  }

  tick(of) {
    const { begun, seconds, ended } = this.answer;
    const now = begun && !ended ? performance.now() / 1000 - begun : seconds;
    this.clock.textContent = `${now.toFixed(1)} s`;
    this.bar.value = Math.min(1, this.answer.ids.length / of);
  }

  /** Set the bar to where it was `seconds` into this lane's run. */
  replay(seconds) {
    const { times, ids } = this.answer;
    const tokens = times.findLast(([at]) => at <= seconds)?.[1] ?? 0;
    this.bar.value = tokens / ids.length;
  }
}

/** The race. */
export class Race {
  constructor(settings, inspector) {
    this.settings = settings;
    this.lanes = [];
    this.inspector = inspector;
    inspector.watch(byId("race"), (token) =>
      this.lanes.map((lane) => lane.answer).find((answer) => answer.tokens.contains(token)),
    );
    this.clear();
  }

  clear() {
    this.inspector.release();
    this.lanes = [new Lane("lane-plain", "Plain"), new Lane("lane-speculative", "Speculative")];
    byId("verdict").replaceChildren();
    this.latest = null; // the prompt on show
    say(byId("raced"), null);
  }

  /** Run both and say who won. */
  async run(question, signal, notice) {
    this.clear();
    this.latest = question;
    say(byId("raced"), question);
    const [plain, fast] = this.lanes;
    await this.lane(plain, question, false, signal, notice);
    await this.lane(fast, question, true, signal, notice, plain);
    this.judge(plain.answer, fast.answer);
  }

  async lane(lane, question, speculation, signal, notice, rival = null) {
    const { answer } = lane;
    const body = { seed: SEED, ...this.settings.request(speculation), messages: [{ role: "user", content: question }] };
    const total = rival ? rival.answer.ids.length : body.max_tokens;
    answer.tokens.classList.add("waiting");
    const timer = setInterval(() => {
      lane.tick(total);
      if (rival) rival.replay(answer.begun ? performance.now() / 1000 - answer.begun : 0);
    }, 50);
    const step = () => {
      this.inspector.follow(answer);
      answer.tokens.scrollTop = answer.tokens.scrollHeight;
    };
    try {
      await stream(body, this.settings.key, answer, signal, { say: notice, step });
    } finally {
      clearInterval(timer);
      answer.ended ??= "stopped";
      answer.close(signal.aborted);
      this.inspector.rest(answer);
      lane.tick(rival ? total : answer.ids.length || 1);
      rival?.replay(Infinity);
    }
  }

  judge(plain, fast) {
    const ratio = fast.seconds > 0 ? plain.seconds / fast.seconds : 1;
    const at = difference(plain, fast);
    const equal = at < 0;
    const words = equal
      ? `The two texts are equal, all ${plain.ids.length} tokens.`
      : `The two texts differ from token ${at + 1} on.`;
    byId("verdict").classList.toggle("unequal", !equal);
    byId("verdict").dataset.equal = equal;
    byId("verdict").replaceChildren(
      make("strong", { textContent: `${ratio.toFixed(2)}×` }),
      ` as fast: ${plain.steps.length} passes plain, ${fast.steps.length} with drafts. ${words}`,
    );
  }
}

/** The first token in which two answers differ; -1 if none does. */
function difference(a, b) {
  const length = Math.max(a.ids.length, b.ids.length);
  for (let i = 0; i < length; i += 1) if (a.ids[i] !== b.ids[i]) return i;
  return a.text === b.text ? -1 : length;
}
