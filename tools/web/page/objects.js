// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The objects of a device: contexts, protection domains, memory, queues, queue pairs, counters.

import { counted, bytes, el, fact, hex, reconcile, say, searching, short, size, sparkline, svg } from "./dom.js";
import { ask, now, ofDevice, ofQp, peerOf, series } from "./state.js";
import { failureTable } from "./failures.js";

/** Milliseconds between requests for objects that are not part of the state. */
const INTERVAL = 2000;
/** Milliseconds for which an access is shown, and how many accesses are kept. */
const HOT = 10000;
const MOST_ACCESSES = 20000;
/** How many rows of a table are shown. */
const SHOWN = 500;

/**
 * States of a queue pair: their places in the picture, and the transitions by ibv_modify_qp or by the device itself.
 */
const STATES = { RESET: [50, 40], INIT: [170, 40], RTR: [290, 40], RTS: [410, 40], SQD: [410, 110], SQE: [290, 110], ERR: [170, 110] };
const MOVES = [["RESET", "INIT"], ["INIT", "RTR"], ["RTR", "RTS"], ["RTS", "SQD"], ["SQD", "RTS"], ["RTS", "SQE"], ["SQE", "RTS"], ["RTS", "ERR"]];
const MEANING = {
  RESET: "new: nothing can be posted", INIT: "receives can be posted", RTR: "ready to receive: answers its peer",
  RTS: "ready to send: fully usable", SQD: "send queue drains: no new send begins", SQE: "send queue error: sends are flushed",
  ERR: "error: everything is flushed",
};

function stateMachine() {
  const nodes = {};
  const marker = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    svg("path", { d: "M0 0 8 4 0 8z" }));
  const lines = MOVES.map(([from, to]) => {
    const [[x1, y1], [x2, y2]] = [STATES[from], STATES[to]];
    const length = Math.hypot(x2 - x1, y2 - y1);
    const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
    // Draw the two directions between the same states side by side.
    const both = MOVES.some(([other, back]) => other === to && back === from);
    const [sx, sy] = both ? [-uy * 5, ux * 5] : [0, 0];
    const reach = (dx, dy) => Math.min(Math.abs(dx) > 0.01 ? 38 / Math.abs(dx) : 99, Math.abs(dy) > 0.01 ? 17 / Math.abs(dy) : 99);
    const r = reach(ux, uy);
    return svg("line", { x1: x1 + ux * r + sx, y1: y1 + uy * r + sy, x2: x2 - ux * r + sx, y2: y2 - uy * r + sy, "marker-end": "url(#arrow)" });
  });
  const boxes = Object.entries(STATES).map(([name, [x, y]]) => {
    nodes[name] = svg("g", {}, svg("rect", { x: x - 36, y: y - 15, width: 72, height: 30, rx: 8 }),
      svg("text", { x, y: y + 4.5, "text-anchor": "middle" }, name));
    return nodes[name];
  });
  const picture = svg("svg", { class: "machine", viewBox: "0 0 462 140", role: "img" }, marker, ...lines, ...boxes);
  const meaning = el("p", { class: "dim" });
  return {
    element: el("figure", {}, picture, el("figcaption", {}, meaning)),
    update(state) {
      for (const [name, node] of Object.entries(nodes)) node.setAttribute("class", name === state ? "lit" : "");
      picture.setAttribute("aria-label", `State machine of a queue pair; the state is ${state}`);
      say(meaning, `${state}: ${MEANING[state] ?? ""}. From every state ibv_modify_qp can also go to ERR or RESET.`);
    },
  };
}

function bar(value, most, label) {
  const meter = el("meter", { min: 0, max: Math.max(most, 1), value, "aria-label": label });
  return el("span", { class: "bar" }, meter, ` ${value} of ${most}`);
}

const known = (value, show) => (value === null || value === undefined ? "unknown" : show(value));

/** Makes a table from columns [heading, function that makes the cell of an item, class]. */
function table(caption, columns, key, quiet = false) {
  const body = el("tbody");
  const more = el("p", { class: "dim" });
  const head = el("tr", {}, ...columns.map(([name]) => el("th", { scope: "col" }, name)));
  const box = el("div", { class: "scroll" }, el("table", {}, el("caption", quiet ? { class: "unseen" } : {}, caption), el("thead", {}, head), body), more);
  return {
    element: box,
    update(items) {
      say(more, items.length > SHOWN ? `${items.length - SHOWN} more are not shown.` : "");
      reconcile(body, items.slice(0, SHOWN), key, () => el("tr", {}, ...columns.map(([, , kind]) => el("td", kind ? { class: kind } : {}))),
        (row, item) => columns.forEach(([, show], index) => {
          const cell = show(item);
          if (typeof cell === "string" || typeof cell === "number") say(row.children[index], `${cell}`);
          else row.children[index].replaceChildren(cell);
        }));
    },
  };
}

/** How many parts a region is divided into, to show where peers access it. */
const CELLS = 64;

/** Returns how often peers accessed each part of a region recently, from accesses [key, address, bytes]. */
function heat(mr, accesses) {
  const cells = new Array(CELLS).fill(0);
  if (mr.length === null || typeof mr.iova !== "number") return cells;
  for (const [key, address, length] of accesses) {
    if (key !== mr.key || typeof address !== "number") continue;
    const [first, last] = [address - mr.iova, address - mr.iova + Math.max(length, 1) - 1];
    if (first < 0 || last >= mr.length) continue;
    const cell = (offset) => Math.floor((offset / mr.length) * CELLS);
    for (let at = cell(first); at <= cell(last); at += 1) cells[at] += 1;
  }
  return cells;
}

/**
 * Draws a region as a bar, with its windows below and above it how often peers accessed each part. Returns null if
 * there is nothing to show.
 */
function extent(mr, windows, accesses) {
  const cells = heat(mr, accesses);
  const most = Math.max(...cells);
  if (most === 0 && windows.length === 0) return null;
  const width = 320;
  const picture = svg("svg", { class: "extent-map", viewBox: `0 0 ${width} 34`, preserveAspectRatio: "none", role: "img", "aria-label":
    `${windows.length} windows; peers accessed ${cells.filter(Boolean).length} of ${CELLS} parts lately, the hottest ${most} times` },
    svg("rect", { class: "region", x: 0, y: 12, width, height: 10, rx: 2 }));
  cells.forEach((count, at) => {
    if (count === 0) return;
    const height = 2 + (count / most) * 20;
    picture.append(svg("rect", { class: "hot", x: (at * width) / CELLS, y: 22 - height, width: width / CELLS - 0.5, height }));
  });
  for (const { bound } of windows) {
    if (mr.length === null || typeof bound.iova !== "number") continue;
    // The addresses of a window may begin at 0.
    const offset = bound.iova >= mr.iova ? bound.iova - mr.iova : bound.iova;
    picture.append(svg("rect", { class: "window", x: (offset / mr.length) * width, y: 25, width: Math.max((bound.length / mr.length) * width, 2), height: 6, rx: 2 }));
  }
  return picture;
}

/** Describes a window in words. */
const windowText = ({ key, kind, bound }) =>
  `window ${hex(key, 8)} (type ${kind}): ${size(bound.length)} at ${hex(bound.iova)}, ${bound.access.join(", ")}${bound.qpn ? `, of QP ${bound.qpn}` : ""}`;

/** Makes a list of regions in the order of their addresses. Gaps between regions are left out. */
function memoryMap() {
  const list = el("ol", { class: "memory" });
  return {
    element: list,
    update(mrs, mws, accesses) {
      const sorted = [...mrs].sort((one, other) => one.iova - other.iova).slice(0, SHOWN);
      const most = Math.max(...sorted.map((mr) => Math.log2((mr.length ?? 2 ** 48) + 2)), 1);
      reconcile(list, sorted, (mr) => mr.key, () => {
        const parts = {
          bar: el("span", { class: "extent", "aria-hidden": "true" }), key: el("code"), where: el("span", { class: "number" }),
          size: el("strong"), pd: el("span", { class: "dim" }), rights: el("span", { class: "chips" }),
          map: el("span", { class: "wide" }), windows: el("ul", { class: "windows" }),
        };
        const item = el("li", {}, ...Object.values(parts));
        item.parts = parts;
        return item;
      }, (item, mr) => {
        const { parts } = item;
        parts.bar.style.width = `${(100 * Math.log2((mr.length ?? 2 ** 48) + 2)) / most}%`;
        parts.bar.classList.toggle("remote", mr.access.some((right) => right.startsWith("remote")));
        say(parts.key, hex(mr.key, 8));
        say(parts.where, hex(mr.iova));
        say(parts.size, size(mr.length));
        say(parts.pd, `PD ${mr.pd}, ${counted(mr.translations, "range")}`);
        const rights = mr.access.length ? mr.access : ["local read"];
        const chip = (right) => el("span", { class: right.startsWith("remote") ? "chip remote" : "chip", text: right });
        reconcile(parts.rights, rights, (right) => right, chip, () => {});
        const windows = mws.filter((mw) => mw.bound?.region === mr.key);
        parts.map.replaceChildren(...[extent(mr, windows, accesses)].filter(Boolean));
        reconcile(parts.windows, windows, (mw) => mw.key, () => el("li"), (line, mw) => say(line, windowText(mw)));
      });
    },
  };
}

/** Makes the panel of one queue pair. */
function qpPanel() {
  const title = el("h2");
  const machine = stateMachine();
  const facts = el("dl", { class: "facts" });
  const failures = failureTable("Failures of this queue pair");
  const gone = el("p", { class: "empty", text: "This queue pair does not exist any more." });
  const body = el("div", { class: "columns" }, machine.element, facts);
  const element = el("section", { class: "panel", id: "qp" }, title, gone, body, failures.element);
  return {
    element,
    update(device, qpn) {
      const qp = device.by_qpn.get(qpn);
      say(title, `QP ${qpn} of ${device.name}`);
      gone.hidden = !!qp;
      body.hidden = !qp;
      failures.update(({ device: other, told }) => other === device && told.object === qpn && told.object_kind === "QP");
      if (!qp) return;
      machine.update(qp.state);
      const peer = peerOf(qp);
      const peerText = peer?.qp
        ? el("a", { href: `#objects/${encodeURIComponent(peer.device.name)}/${qp.peer_qpn}` }, `QP ${qp.peer_qpn} of ${peer.device.name}`)
        : qp.peer_gid ? `QP ${qp.peer_qpn} of ${qp.peer_gid}` : "not connected";
      const connection = peer?.qp ? `${device.name} QP ${qpn} – ${peer.device.name} QP ${qp.peer_qpn}` : "";
      const timeline = connection ? el("a", { href: `#timeline/${encodeURIComponent(connection)}` }, "show its steps")
        : "only for a connection between these RNICs";
      facts.replaceChildren(
        fact("type", qp.kind), fact("timeline", timeline), fact("peer", peerText), fact("path MTU", `${qp.mtu}`), fact("packets/s", short(ofQp(device, qpn))),
        fact("next PSN to send", `${qp.send_psn}`), fact("oldest unacknowledged", `${qp.unacknowledged_psn}`), fact("next PSN expected", `${qp.receive_psn}`),
        fact("sends posted", known(qp.sends_posted, (value) => bar(value, qp.send_entries, "sends posted"))),
        fact("sends in flight", `${qp.sends_in_flight}`),
        fact("receives posted", qp.srqn !== null ? `SRQ ${qp.srqn}` : known(qp.receives_posted, (value) => bar(value, qp.receive_entries, "receives posted"))),
        fact("responses to send", `${qp.responses_waiting}`),
        fact("rate limit", qp.rate_limit_kbps === null ? "none" : `${qp.rate_limit_kbps} kbit/s`),
        fact("CQs", `${qp.send_cqn} (sends), ${qp.receive_cqn} (receives)`), fact("context, PD", `${qp.context}, ${qp.pd}`));
    },
  };
}

/** Returns the contexts, the protection domains of each, and how many objects they own. */
function owners(device, extra) {
  const contexts = new Map();
  const of = (number) => {
    if (!contexts.has(number)) contexts.set(number, { number, pds: new Set(), qps: 0, cqs: 0, srqs: 0, mrs: 0 });
    return contexts.get(number);
  };
  const contextOfPd = new Map();
  for (const object of [...device.qp_list, ...(extra?.srqs ?? [])]) {
    // The target QP of an extended reliable connection belongs to no context.
    if (object.context === 0) continue;
    contextOfPd.set(object.pd, object.context);
    of(object.context).pds.add(object.pd);
    if (object.qpn !== undefined) of(object.context).qps += 1;
    else of(object.context).srqs += 1;
  }
  for (const cq of extra?.cqs ?? []) of(cq.context).cqs += 1;
  for (const mr of extra?.mrs ?? []) {
    if (contextOfPd.has(mr.pd)) of(contextOfPd.get(mr.pd)).mrs += 1;
  }
  return [...contexts.values()].sort((one, other) => one.number - other.number);
}

/** Makes the view. */
export function objectsView() {
  const chooser = el("nav", { class: "chooser", "aria-label": "Devices" });
  const empty = el("p", { class: "empty", text: "There is no such device." });
  const qp = qpPanel();
  const summary = el("dl", { class: "facts wide" });
  const gids = el("p", { class: "dim" });
  const filter = el("input", { type: "search", id: "qp-filter", placeholder: "for example ERR, RC or 17", oninput: () => update(shownDetails) });
  let shownDetails = [];
  const qps = table("The busiest first", [
    ["QP", (one) => el("a", { href: `#objects/${encodeURIComponent(one.device.name)}/${one.qpn}` }, `${one.qpn}`)],
    ["type", (one) => one.kind], ["state", (one) => el("span", { class: `state ${one.state}` }, one.state)],
    ["peer", (one) => (one.peer_gid ? `${one.peer_qpn} of ${peerOf(one)?.device.name ?? one.peer_gid}` : "")],
    ["packets/s", (one) => short(ofQp(one.device, one.qpn)), "number"],
    ["sends", (one) => known(one.sends_posted, (value) => `${value} / ${one.send_entries}`), "number"],
    ["receives", (one) => (one.srqn !== null ? `SRQ ${one.srqn}` : known(one.receives_posted, (value) => `${value} / ${one.receive_entries}`)), "number"],
    ["next PSN", (one) => one.send_psn, "number"], ["unacknowledged", (one) => one.unacknowledged_psn, "number"],
    ["expected", (one) => one.receive_psn, "number"],
  ], (one) => one.qpn);
  const cqs = table("Completion queues", [
    ["CQ", (cq) => cq.cqn], ["unread", (cq) => known(cq.unread, (value) => bar(value, cq.entries, `unread completions of CQ ${cq.cqn}`))],
    ["armed", (cq) => known(cq.armed, (armed) => (armed ? "yes" : "no"))], ["vector", (cq) => cq.vector, "number"], ["QPs", (cq) => cq.queue_pairs, "number"],
    ["moderation", (cq) => (cq.moderation_count > 1 ? `${cq.moderation_count} or ${cq.moderation_period_us} µs` : "none")],
    ["context", (cq) => cq.context, "number"], ["", (cq) => (cq.failed ? "failed" : ""), "bad"],
  ], (cq) => cq.cqn, true);
  const srqs = table("Shared receive queues", [
    ["SRQ", (srq) => srq.srqn], ["receives", (srq) => known(srq.posted, (value) => bar(value, srq.entries, `receives of SRQ ${srq.srqn}`))],
    ["limit", (srq) => srq.limit || "none", "number"], ["QPs", (srq) => srq.queue_pairs, "number"], ["PD", (srq) => srq.pd, "number"],
    ["context", (srq) => srq.context, "number"], ["", (srq) => (srq.failed ? "failed" : ""), "bad"],
  ], (srq) => srq.srqn, true);
  const flows = table("Flows, in the order in which they are tried", [
    ["flow", (flow) => flow.flow], ["type", (flow) => flow.kind], ["priority", (flow) => flow.priority, "number"],
    ["frames with", (flow) => flow.fields.map(([name, text]) => `${name} ${text}`).join(", ") || "any fields"],
    ["to QP", (flow) => flow.qpn, "number"], ["frames", (flow) => flow.packets, "number"], ["", (flow) => (flow.drops ? "drops the frames" : flow.dont_trap ? "leaves the frames to others" : "")],
    ["tag", (flow) => flow.tag || ""],
  ], (flow) => flow.flow);
  const contexts = table("Contexts and what they own", [
    ["context", (one) => one.number], ["PDs", (one) => [...one.pds].sort((a, b) => a - b).join(", ")], ["QPs", (one) => one.qps, "number"],
    ["CQs", (one) => one.cqs, "number"], ["SRQs", (one) => one.srqs, "number"], ["MRs", (one) => one.mrs, "number"],
  ], (one) => one.number);
  const memory = memoryMap();
  const loose = el("p", { class: "dim" });
  const counters = el("ul", { class: "counters" });
  const failure = el("p", { class: "bad", role: "alert" });
  const section = (title, ...content) => el("section", { class: "panel" }, el("h2", {}, title), ...content);
  const srqSection = section("Shared receive queues", srqs.element);
  const flowSection = section("Flows", flows.element);
  const body = el("div", {},
    el("section", { class: "panel" }, summary, gids, failure), qp.element,
    section("Queue pairs", el("p", { class: "tools" }, el("label", { for: "qp-filter" }, "Only with "), filter), qps.element),
    section("Memory regions", el("p", { class: "dim" }, "By address. Bars above a region show what peers accessed in the last seconds. Windows are below their region."),
      memory.element, loose), section("Completion queues", cqs.element), srqSection, flowSection,
    section("Contexts", contexts.element), section("Counters", counters));
  const element = el("div", {}, chooser, empty, body);
  let extra = null;
  // Recent accesses by peers, from the traces of the devices: each with its time, its device, and [key, address,
  // bytes].
  let accesses = [];
  const next = new Map();
  let asked = 0;
  let asking = false;

  async function refresh(device) {
    if (asking || (extra?.device === device.name && Date.now() - asked < INTERVAL)) return;
    asking = true;
    try {
      extra = await ask(`/api/objects?device=${now.devices.indexOf(device)}`);
      await lookAtAccesses();
      say(failure, "");
    } catch (error) {
      say(failure, error.message);
    }
    asked = Date.now();
    asking = false;
    if (element.isConnected) update(shownDetails);
  }

  /** Fetches the packets with a remote address that arrived since the last call. */
  async function lookAtAccesses() {
    const from = now.devices.map((one) => next.get(one.name) ?? 0).join(",");
    const time = Date.now();
    for (const { device: name, first, steps } of (await ask(`/api/trace?from=${from}`)).devices) {
      next.set(name, first + steps.length);
      for (const step of steps) {
        if (step.act !== "arrived" || step.rkey === null) continue;
        accesses.push({ time, device: name, access: [step.rkey, step.address, step.message_length] });
      }
    }
    accesses = accesses.filter((one) => time - one.time < HOT).slice(-MOST_ACCESSES);
  }

  function updateCounters(device) {
    const key = ofDevice(device);
    const all = (device.port?.counters ?? []).filter(([, value]) => value > 0);
    reconcile(counters, all, ([name]) => name, ([name]) => {
      const parts = { name: el("code", { text: name }), value: el("strong"), rate: el("span", { class: "dim" }), line: el("span") };
      const item = el("li", {}, ...Object.values(parts));
      item.parts = parts;
      return item;
    }, (item, [name, value]) => {
      const values = series(key, name);
      const last = values.at(-1) ?? 0;
      const show = name.endsWith("_bytes") ? bytes : short;
      say(item.parts.value, show(value));
      say(item.parts.rate, last > 0 ? `${show(last)}/s` : "");
      item.parts.line.replaceChildren(sparkline(values, `${name}: now ${show(last)} per second, at most ${show(Math.max(...values, 0))}`));
    });
  }

  function update(details) {
    shownDetails = details;
    const device = details[0] === undefined ? now.devices[0] : now.devices.find((one) => one.name === details[0]);
    reconcile(chooser, now.devices, (one) => one.name, (one) => el("a", { href: `#objects/${encodeURIComponent(one.name)}`, text: one.name }),
      (link, one) => { if (one === device) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); });
    empty.hidden = !!device || now.at === null;
    body.hidden = !device;
    if (!device) return;
    refresh(device);
    const qpn = details[1] === undefined ? null : Number(details[1]);
    qp.element.hidden = qpn === null;
    if (qpn !== null) qp.update(device, qpn);
    summary.replaceChildren(
      fact("state", device.state), fact("link", device.link), fact("port", device.port?.state ?? "none"), fact("MTU", `${device.port?.mtu ?? ""}`),
      fact("MAC address", device.mac), fact("node GUID", device.node_guid), fact("contexts", `${device.contexts}`), fact("PDs", `${device.pds}`),
      fact("QPs", `${device.qps}`), fact("CQs", `${device.cqs}`), fact("SRQs", `${device.srqs}`), fact("MRs", `${device.mrs}`));
    say(gids, `GIDs: ${device.gid_table.map((gid) => `${gid.gid} (${gid.kind})`).join(", ") || "none"}`);
    const found = searching(filter.value);
    const chosen = device.qp_list.filter((one) => found(`${one.qpn} ${one.kind} ${one.state} ${one.peer_qpn}`));
    chosen.sort((one, other) => ofQp(device, other.qpn) - ofQp(device, one.qpn) || one.qpn - other.qpn);
    qps.update(chosen.map((one) => ({ ...one, device })));
    updateCounters(device);
    const mine = extra?.device === device.name ? extra : null;
    memory.update(mine?.mrs ?? [], mine?.mws ?? [], accesses.filter((one) => one.device === device.name).map((one) => one.access));
    const free = (mine?.mws ?? []).filter((mw) => mw.bound === null).length;
    say(loose, free ? `${free} memory windows are not bound.` : "");
    cqs.update(mine?.cqs ?? []);
    srqs.update(mine?.srqs ?? []);
    srqSection.hidden = !(mine?.srqs.length > 0);
    flows.update(mine?.flows ?? []);
    flowSection.hidden = !(mine?.flows.length > 0);
    contexts.update(owners(device, mine));
  }
  return { element, update };
}
