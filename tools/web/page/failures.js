// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// What went wrong, and why, on both ends: the explanations of `vrnicctl explain`.

import { el, fact, hex, reconcile, say, searching, seconds } from "./dom.js";
import { now } from "./state.js";

/** How many failures are shown. */
const SHOWN = 300;

function makeRow({ device, told }) {
  const parts = {
    time: el("td", { class: "number" }), device: el("td", { text: device.name }), what: el("td"), why: el("td"),
    count: el("td", { class: "number" }),
  };
  const about = told.object ? `${told.object_kind} ${told.object}${told.peer_qpn ? ` (peer ${told.peer_qpn})` : ""}: ` : "";
  const details = el("dl", { class: "facts" });
  const open = el("details", {}, el("summary", { text: `${about}${told.what}` }), details);
  parts.what.append(open);
  if (told.packet) details.append(fact("packet", `${told.packet[0]}, PSN ${told.packet[1]}`));
  if (told.psn !== null) details.append(fact(told.packet && told.packet[1] !== told.psn ? "expected PSN" : "PSN", `${told.psn}`));
  if (told.wr_id !== null) details.append(fact("wr_id", hex(told.wr_id)));
  if (told.cause !== null) details.append(fact("vendor_err", hex(told.cause)));
  if (told.access) {
    details.append(fact("key", hex(told.access.key)), fact("address", `${told.access.length} bytes at ${hex(told.access.address)}`),
      fact("PD", `${told.access.pd}`), fact("needs", told.access.rights.join(", ") || "no right"));
  }
  if (told.object && told.object_kind === "QP") {
    const link = `#objects/${encodeURIComponent(device.name)}/${told.object}`;
    details.append(fact("queue pair", el("a", { href: link }, `QP ${told.object} as it is now`)));
  }
  const row = el("tr", {}, ...Object.values(parts));
  row.parts = parts;
  return row;
}

function updateRow(row, { told }) {
  say(row.parts.time, seconds(told.nanoseconds));
  say(row.parts.why, told.why ?? "");
  say(row.parts.count, told.count > 1 ? `${told.count}` : "");
}

/** Makes a table of failures. Its `update` shows those for which `wanted` returns true. */
export function failureTable(caption) {
  const body = el("tbody");
  const none = el("p", { class: "dim", text: "Nothing went wrong." });
  const table = el("table", {}, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...["seconds", "device", "what happened", "why", "times"].map((text) => el("th", { scope: "col" }, text)))), body);
  function update(wanted) {
    const all = now.devices.flatMap((device) => device.explanations.map((told) => ({ device, told }))).filter(wanted);
    all.sort((one, other) => other.told.nanoseconds - one.told.nanoseconds);
    all.length = Math.min(all.length, SHOWN);
    table.hidden = all.length === 0;
    none.hidden = all.length > 0;
    reconcile(body, all, ({ device, told }) => `${told.number} ${device.name}`, makeRow, updateRow);
  }
  return { element: el("div", { class: "scroll" }, none, table), update };
}

/** Makes the view. */
export function failuresView() {
  const table = failureTable("The newest failures of all devices first");
  const filter = el("input", { type: "search", id: "failure-filter", placeholder: "for example REM_ACCESS, QP 17 or 0x7", oninput: () => update() });
  const element = el("section", { class: "panel" }, el("h2", {}, "Failures"),
    el("p", { class: "tools" }, el("label", { for: "failure-filter" }, "Only with the words "), filter), table.element);
  function update() {
    const found = searching(filter.value);
    table.update(({ device, told }) => found(`${device.name} ${told.sentence}`));
  }
  return { element, update };
}
