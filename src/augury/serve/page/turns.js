// A request that retries where it makes sense: with servers that are busy, shutting down or silent.

import { answer, Trouble } from "./api.js";

/** Stream one answer into `into`; `say` gets a message about what is in the way, or null once nothing is. */
export async function stream(body, key, into, signal, { say, step }) {
  for (;;) {
    try {
      for await (const chunk of answer(body, key, signal)) {
        say(null);
        step(into.add(chunk));
      }
      return;
    } catch (error) {
      if (signal.aborted || !(error instanceof Trouble) || error.again === null || into.steps.length) throw error;
      say(error.message);
      await pause(error.again, signal);
    }
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}
