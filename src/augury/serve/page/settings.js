// What the user has set. Kept in this browser; the API key only as long as the tab lives.

import { byId } from "./dom.js";

const STORE = "augury.settings";
const KEY = "augury.key";
const MORE = "more"; // further fields of a request, as JSON
const NUMBERS = { k: "k", temperature: "temperature", maxTokens: "max-tokens", seed: "seed" };

/** The controls below the question. */
export class Settings {
  constructor() {
    this.values = { speculation: true, k: null, temperature: 0, maxTokens: 256, seed: null, more: "", ...stored() };
    this.loaded = null; // tokens that the server may draft; null until that is known
    byId("key").value = sessionStorage.getItem(KEY) ?? "";
    byId("key").addEventListener("input", () => sessionStorage.setItem(KEY, byId("key").value));
    byId("settings").open = matchMedia("(min-width: 961px)").matches;
    byId("settings").addEventListener("input", () => this.read());
    this.write();
  }

  /** Limit what can be asked for to what the server has loaded. */
  bound(tokens) {
    if (tokens === this.loaded) return;
    this.loaded = tokens;
    byId("k").max = tokens || 1;
    byId("k").placeholder = String(tokens || 0);
    byId("speculation").disabled = byId("k").disabled = !tokens;
    this.write();
  }

  read() {
    this.values.speculation = byId("speculation").checked;
    for (const [name, id] of Object.entries(NUMBERS)) {
      const field = byId(id);
      if (field.validity.valid) this.values[name] = field.value === "" ? null : field.valueAsNumber;
    }
    const more = byId(MORE);
    more.setCustomValidity(object(more.value) ? "" : "a JSON object, please");
    if (more.validity.valid) this.values.more = more.value;
    localStorage.setItem(STORE, JSON.stringify(this.values));
    byId("settings-words").textContent = this.words();
  }

  write() {
    byId("speculation").checked = this.values.speculation && this.loaded !== 0;
    for (const [name, id] of Object.entries(NUMBERS)) byId(id).value = this.values[name] ?? "";
    byId(MORE).value = this.values.more;
    byId("settings-words").textContent = this.words();
  }

  words() {
    const { speculation, temperature, maxTokens, seed } = this.values;
    const seeded = seed === null ? "" : `, seed ${seed}`;
    const drafts = speculation && this.loaded ? `drafts up to ${this.k}` : "plain";
    return `· ${drafts}, temperature ${temperature ?? 0}, ${maxTokens ?? 256} tokens${seeded}`;
  }

  get k() {
    return Math.min(this.values.k ?? this.loaded ?? 0, this.loaded ?? 0);
  }

  get key() {
    return byId("key").value.trim();
  }

  /** The fields of a request; every one asks to see its steps. */
  request(speculation = this.values.speculation) {
    const { temperature, maxTokens, seed } = this.values;
    const wish = { trace: true };
    if (!speculation) wish.enabled = false;
    else if (this.loaded && this.k < this.loaded) wish.num_speculative_tokens = this.k;
    return {
      temperature: temperature ?? 0,
      max_tokens: maxTokens ?? 256,
      ...(seed !== null && { seed }),
      ...object(this.values.more),
      speculative: wish,
    };
  }
}

/** Parse a JSON object, {} if the text is empty; null for anything else. */
function object(words) {
  try {
    const value = words.trim() ? JSON.parse(words) : {};
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}
