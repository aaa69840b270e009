// The engine's figures, fetched every second while the page is visible.

import { live } from "./api.js";

const SECOND = 1000;

/** Fetches the figures for its listeners; null stands for a server that does not answer. */
export class Pulse {
  constructor(settings) {
    this.settings = settings;
    this.listeners = [];
    this.latest = null;
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  /** Fetch now, and again every second. */
  async run() {
    for (;;) {
      if (!document.hidden) await this.beat();
      await new Promise((resolve) => setTimeout(resolve, SECOND));
    }
  }

  async beat() {
    try {
      this.latest = await live(this.settings.key, AbortSignal.timeout(5 * SECOND));
    } catch {
      this.latest = null;
    }
    for (const listener of this.listeners) listener(this.latest);
  }
}
