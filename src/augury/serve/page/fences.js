// Code between lines of three backticks, which is set in a fixed width; everything else about the text stays as it is.

import { make } from "./dom.js";

const FENCE = "```";

/** Follows a text piece by piece. */
export class Fences {
  constructor() {
    this.inside = false;
    this.start = ""; // of the current line, as far as it may be a fence
  }

  /** Whether a piece is code, the fences themselves included. */
  read(piece) {
    let code = this.inside;
    for (const letter of piece) {
      if (letter === "\n") this.start = "";
      else if (this.start.length < FENCE.length) {
        this.start += letter;
        if (this.start === FENCE) this.inside = !this.inside;
      }
      code ||= this.inside;
    }
    return code;
  }
}

/** A whole text as strings and code elements. */
export function fenced(text) {
  const fences = new Fences();
  return text
    .split(/(?<=\n)/)
    .map((line) => (fences.read(line) ? make("span", { className: "code", textContent: line }) : line));
}
