// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// What the page may change, and the command lines that do the same.

import { button, el, reconcile, say } from "./dom.js";
import { ask, now } from "./state.js";

/** Examples of faults: what each does, and its description. */
const EXAMPLES = [
  ["lose the third packet that arrives", "drop type=rc nth=3"],
  ["lose an acknowledgement", "lost-ack type=rc nth=5"],
];

/** Quotes a word for a shell. */
function quote(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function commandLine(...words) {
  return ["vrnicctl", "--socket", now.socket, ...words].map(quote).join(" ");
}

/**
 * Makes an action: a button, and the command line that does the same. `make` returns the action and the words of the
 * command line.
 */
function action(title, make, report) {
  const code = el("code");
  const act = button(title, async () => {
    try {
      const answer = await ask("/api/action", { method: "POST", body: JSON.stringify(make().action) });
      report(answer.done, false);
    } catch (error) {
      report(error.message, true);
    }
  });
  const row = el("p", { class: "action" }, act, code);
  row.renew = () => {
    act.disabled = !now.actions;
    say(code, commandLine(...make().words));
  };
  row.renew();
  return row;
}

function makeDevice(device) {
  const said = el("p", { role: "status" });
  const report = (text, bad) => { said.className = bad ? "bad" : "dim"; say(said, text); };
  const id = `fault-${Math.random().toString(36).slice(2)}`;
  const list = el("datalist", { id: `${id}-list` }, ...EXAMPLES.map(([label, value]) => el("option", { value, label })));
  const fault = el("input", { id, class: "wide", list: `${id}-list`, value: EXAMPLES[0][1], oninput: () => rows.forEach((row) => row.renew()) });
  const { name } = device;
  const words = () => fault.value.split(/\s+/).filter(Boolean);
  const rows = [
    action("Take the link down", () => ({ action: { action: "link", device: name, up: false }, words: ["link", name, "down"] }), report),
    action("Bring the link up", () => ({ action: { action: "link", device: name, up: true }, words: ["link", name, "up"] }), report),
    action("Arm the fault", () => ({ action: { action: "fault", device: name, fault: fault.value }, words: ["fault", "add", "-d", name, ...words()] }), report),
    action("Clear all faults", () => ({ action: { action: "clear_faults", device: name }, words: ["fault", "clear", "-d", name] }), report),
  ];
  const capture = el("a", { class: "button", download: "vrnic.pcapng" }, "Capture for 5 seconds");
  const captureLine = el("code");
  const box = el("section", { class: "panel" }, el("h2", { text: `RNIC ${name}` }), rows[0], rows[1], el("p", { class: "action" }, capture, captureLine),
    el("p", { class: "action" }, el("label", { for: id }, "Fault "), fault, list), rows[2], rows[3], said);
  box.renew = () => {
    rows.forEach((row) => row.renew());
    say(captureLine, commandLine("capture", "start", "-d", name, "vrnic.pcapng"));
    if (now.actions) capture.setAttribute("href", `/api/capture?device=${now.devices.findIndex((one) => one.name === name)}&seconds=5`);
    else capture.removeAttribute("href");
  };
  return box;
}

/** Makes the view. */
export function actionsView() {
  const only = el("p", { class: "panel" }, "This page is read-only. To allow these actions, start ",
    el("code", {}, "vrnicctl web --allow-actions"), ". The command lines below do the same.");
  const devices = el("div");
  const said = el("p", { role: "status" });
  const report = (text, bad) => { said.className = bad ? "bad" : "dim"; say(said, text); };
  const filter = el("input", { id: "log-filter", class: "wide", value: "info", oninput: () => log.renew() });
  const log = action("Set the log filter", () => ({ action: { action: "log", filter: filter.value }, words: ["log", filter.value] }), report);
  const element = el("div", {}, only, devices, el("section", { class: "panel" }, el("h2", {}, "Log of vrnicd"),
    el("p", { class: "action" }, el("label", { for: "log-filter" }, "Filter "), filter), log, said));
  function update() {
    only.hidden = now.actions || now.at === null;
    reconcile(devices, now.devices, (device) => device.name, makeDevice, (box) => box.renew());
    log.renew();
  }
  return { element, update };
}
