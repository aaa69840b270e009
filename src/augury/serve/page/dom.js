// Elements made of properties and text. Nothing in these scripts ever reads text as markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** An HTML element; strings among its children become text. */
export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** An SVG element, whose properties are attributes. */
export function draw(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Show a message in an element, or hide the element if there is none. */
export function say(element, words) {
  element.textContent = words ?? "";
  element.hidden = !words;
}
