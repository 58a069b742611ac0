// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Elements, and numbers in readable form. Strings become text only: nothing here interprets a string as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Makes an HTML element. An attribute `onNAME` is a listener; `text` is the content. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Makes an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Sets the text of an element unless it is already the same. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Makes the children of `parent` correspond to `items`, in order. A child remains the same element as long as its key
 * remains, so focus and selection do too.
 */
export function reconcile(parent, items, key, create, update) {
  const known = parent.known ??= new Map();
  const wanted = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    if (wanted.has(name)) continue;
    wanted.add(name);
    let child = known.get(name);
    if (!child) known.set(name, child = create(item));
    update(child, item);
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
  for (const [name, child] of known) {
    if (wanted.has(name)) continue;
    child.remove();
    known.delete(name);
  }
}

/**
 * Returns a function that tells whether a text contains all words of a search. A number matches only as a whole word:
 * 0x1 does not find 0x168aa971, nor does 17 find 170.
 */
export function searching(search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean)
    .map((word) => (/^\d/.test(word) ? new RegExp(`(?<![0-9a-z])${word.replace(/[^0-9a-z]/g, "\\$&")}(?![0-9a-z])`) : word));
  return (text) => {
    const said = text.toLowerCase();
    return words.every((word) => (word instanceof RegExp ? word.test(said) : said.includes(word)));
  };
}

const UNITS = ["", "k", "M", "G", "T"];

/** Formats a number with three digits and a unit. */
export function short(number) {
  let unit = 0;
  while (Math.abs(number) >= 999.5 && unit < UNITS.length - 1) { number /= 1000; unit += 1; }
  const digits = Number.isInteger(number) || Math.abs(number) >= 99.5 ? 0 : Math.abs(number) >= 9.95 ? 1 : 2;
  return `${number.toFixed(digits)}${unit ? " " + UNITS[unit] : ""}`;
}

/** Formats a number of things. */
export const counted = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

/** Formats a number of bytes. */
export function bytes(number) {
  const text = short(number);
  return /[a-zA-Z]$/.test(text) ? `${text}B` : `${text} B`;
}

/** Formats a number of bytes with binary units. No number means all memory. */
export function size(number) {
  if (number === null || number === undefined) return "all memory";
  let unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${Number.isInteger(number) ? number : number.toFixed(1)} ${units[unit]}`;
}

/** Formats a number in hexadecimal digits. */
export function hex(number, digits = 0) {
  // The server sends numbers that are too large to be exact as text.
  return typeof number === "string" ? number : `0x${number.toString(16).padStart(digits, "0")}`;
}

/** Formats a time of the devices' clock, given in nanoseconds, as seconds. */
export function seconds(nanoseconds) {
  return (nanoseconds / 1e9).toFixed(6);
}

/** Makes a button that calls `act`. */
export function button(text, act, attributes = {}) {
  return el("button", { type: "button", onclick: act, ...attributes }, text);
}

/** Makes a row of a list of names and values. */
export function fact(name, value) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value));
}

/** Makes a small chart of the last values. `label` describes it for screen readers. */
export function sparkline(values, label) {
  const [width, height] = [120, 24];
  const most = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  const points = values.map((value, index) =>
    `${(index * step).toFixed(1)},${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": label },
    svg("polyline", { points: points.join(" ") }));
}
