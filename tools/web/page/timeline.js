// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The timeline: what the two queue pairs of a connection did, as a sequence diagram.

import { bytes, button, counted, el, fact, hex, say, searching, svg } from "./dom.js";
import { headerTable } from "./headers.js";
import { ask, isPaused, newestDevices, now, peerOf } from "./state.js";

/** Milliseconds between requests for new steps. */
const INTERVAL = 250;
/** How many steps of a device are kept. */
const KEPT = 10000;
/** Height of a step when steps are drawn in order. */
const ROW = 28;
/** Largest height of a picture that is drawn to scale. */
const TALL = 2e6;
/** How many steps are drawn at most. */
const DRAWN = 250;
/**
 * Width of the picture, and the places of the four lines: program and RNIC on the left, RNIC and program on the right.
 */
const WIDE = { WIDTH: 1100, LANES: { left: { program: 90, rnic: 330 }, right: { rnic: 770, program: 1010 } } };
/** The same for a timeline next to a text. */
const NARROW = { WIDTH: 820, LANES: { left: { program: 60, rnic: 250 }, right: { rnic: 570, program: 760 } } };
/** Nanoseconds per pixel. */
const SCALES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7];

/** Kinds of steps that have a colour. */
const LEGEND = [
  ["request", "request"], ["packet", "packet"], ["answer", "acknowledgement or response"],
  ["completion", "completion"], ["event", "event"], ["bad", "NAK or error"],
];

/** Formats a time with the unit that fits. */
function duration(nanoseconds) {
  for (const [unit, length] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (Math.abs(nanoseconds) >= length) return `${(nanoseconds / length).toFixed(3)} ${unit}`;
  }
  return `${nanoseconds} ns`;
}

/** Name of the event by which a device asks the driver for pages. */
const PAGE_FAULT = "page fault";

/** Returns whether a step reports an error. */
const isBad = (step) => step.negative === true || (step.status !== undefined && step.status !== "IBV_WC_SUCCESS");

const wrong = (count) => counted(count, "NAK or error", "NAKs and errors");

/** Returns whether a step completes a send request. The wr_ids of receives may be the same as those of sends. */
const endsRequest = (step) => step.act === "completed" && !step.opcode.startsWith("RECV");

/** Returns the label of a step, and how it is drawn. */
function describe(step) {
  switch (step.act) {
    case "fetched": return { label: `${step.opcode} ${hex(step.wr_id)}, ${bytes(step.length)}`, kind: "request", to: "rnic" };
    case "took_receive": return { label: `receive ${hex(step.wr_id)}${step.srqn === null ? "" : ` of SRQ ${step.srqn}`}`, kind: "receive", to: "rnic" };
    case "completed": {
      return { label: `CQE ${step.opcode} ${hex(step.wr_id)}: ${step.status}`, kind: isBad(step) ? "bad" : "completion", to: "program" };
    }
    case "notified": return { label: `event of CQ ${step.cqn}`, kind: "event", to: "program" };
    case "raised": {
      const about = step.event === PAGE_FAULT ? `, key ${hex(step.number)}` : "";
      return { label: `event ${step.event}${about}`, kind: "event", to: "program" };
    }
    case "moved": return { label: `${step.from} → ${step.to}`, kind: step.to === "ERR" || step.to === "SQE" ? "bad" : "state", to: "itself" };
    default: {
      const key = step.rkey === null ? "" : `, rkey ${hex(step.rkey)}`;
      const comma = step.negative ? "," : "";
      const size = step.length ? `, ${bytes(step.length)}` : "";
      const what = step.syndrome && step.negative ? step.syndrome : step.opcode;
      const fault = step.fault ? ` [${step.fault}]` : "";
      return {
        label: `${what}${comma} PSN ${step.psn}${size}${key}${fault}`, to: "peer",
        kind: step.negative ? "bad" : step.syndrome ? "answer" : "packet",
      };
    }
  }
}

/** Describes an object that a step concerned, as it was then: its name, and a text. */
function objectThen(one) {
  const rights = (names) => (names.length ? names.join(", ") : "local read");
  const extent = (first, length) => (length === null ? "all memory" : `${counted(length, "byte")} at ${hex(first)}`);
  // Keys that differ only in the last byte name the same object; another last byte means an earlier or later use of it.
  const other = one.key === undefined || one.key === one.named ? "" : `, whose key is ${hex(one.key)}`;
  switch (one.object) {
    case "region":
      return [`key ${hex(one.named)}`, one.valid
        ? `memory region${other}: ${extent(one.iova, one.length)}, PD ${one.pd}, rights: ${rights(one.access)}`
        : `memory region${other}, PD ${one.pd}, not valid: no fast registration since it was made or invalidated`];
    case "window":
      return [`key ${hex(one.named)}`, one.bound
        ? `memory window${other}: ${extent(one.bound.iova, one.bound.length)} of region ${hex(one.bound.region)}, PD ${one.pd}, `
          + `bound by QP ${one.bound.qpn}, rights: ${rights(one.bound.access)}`
        : `memory window${other}, PD ${one.pd}, not valid: bound to no region`];
    case "no_key":
      return [`key ${hex(one.named)}`, one.removed ? "its region or window was removed" : "no region or window has this key"];
    case "cq": {
      const events = one.armed === null ? "" : one.armed ? ", armed" : ", not armed";
      return [`CQ ${one.cqn}`, `${one.exact ? "" : "at most "}${one.unread ?? "?"} of ${one.entries} not polled${events}${one.failed ? "; it overran, or lost its memory" : ""}`];
    }
    default:
      return [`SRQ ${one.srqn}`, `${one.exact ? "" : "at least "}${one.posted ?? "?"} of ${one.entries} receives left, `
        + `${one.limit ? `limit ${one.limit}` : "no limit armed"}${one.failed ? "; it failed" : ""}`];
  }
}

/**
 * Returns a label as it is drawn: without the prefix that all status names have, and with only the end of long wr_ids.
 * The description of the step has them in full.
 */
const drawn = (label) => label.replace("IBV_WC_", "").replace(/0x[0-9a-f]{5,}([0-9a-f]{4})/, "…$1");

/** Estimates the width of a text in the picture. */
const widthOf = (text) => text.length * 7.2;

/** Explains why a packet of a capture says nothing about the queue pairs. */
const PACKETS_ONLY = "A capture contains only packets. It does not show the states of the queue pairs, or why "
  + "a request was refused. A recording of a device (vrnicctl record) shows both.";

const packetKey = (step) => `${step.psn} ${step.opcode}`;

/**
 * Merges the steps of both sides into one order: by time, and at equal times with a packet's arrival after its sending.
 * The items of a packet that was sent and arrived refer to each other as `mate`, so that they become one arrow. Of a
 * packet that was sent twice, the first copy is assumed lost.
 */
function merge(left, right) {
  const all = [];
  const sides = { left: { steps: left, next: 0, sent: new Map() }, right: { steps: right, next: 0, sent: new Map() } };
  const other = { left: "right", right: "left" };
  const waits = (name) => {
    const step = sides[name].steps[sides[name].next];
    return step?.act === "arrived" && !sides[other[name]].sent.get(packetKey(step))?.length;
  };
  for (;;) {
    const [l, r] = [left[sides.left.next], right[sides.right.next]];
    if (!l && !r) return all;
    const name = !r ? "left" : !l ? "right" : l.at !== r.at ? (l.at < r.at ? "left" : "right")
      : waits("left") ? "right" : "left";
    const side = sides[name];
    const item = { step: side.steps[side.next++], side: name, index: all.length, mate: null };
    if (item.step.act === "sent") {
      const key = packetKey(item.step);
      if (!side.sent.has(key)) side.sent.set(key, []);
      side.sent.get(key).push(item);
    } else if (item.step.act === "arrived") {
      const mate = sides[other[name]].sent.get(packetKey(item.step))?.pop();
      if (mate) { item.mate = mate; mate.mate = item; }
    }
    all.push(item);
  }
}

/** Returns all connections between RNICs of this vrnicd, each once. */
function connections() {
  const all = new Map();
  for (const device of now.devices) {
    for (const qp of device.qp_list) {
      const peer = peerOf(qp);
      if (!peer?.qp) continue;
      const ends = [{ device: device.name, qp }, { device: peer.device.name, qp: peer.qp }];
      const names = ends.map((end) => `${end.device} QP ${end.qp.qpn}`);
      if (all.has(`${names[1]} – ${names[0]}`)) continue;
      all.set(`${names[0]} – ${names[1]}`, ends);
    }
  }
  return all;
}

/** Returns whether a step belongs to that end of the connection. */
function belongs(step, { qp }) {
  if (step.qpn) return step.qpn === qp.qpn;
  if (step.act === "notified") return step.cqn === qp.send_cqn || step.cqn === qp.receive_cqn;
  if (step.act !== "raised") return false;
  if (/^IBV_EVENT_SRQ/.test(step.event)) return step.number === qp.srqn;
  if (/^IBV_EVENT_CQ/.test(step.event)) return [qp.send_cqn, qp.receive_cqn].includes(step.number);
  return step.event === PAGE_FAULT || /^IBV_EVENT_(PORT|DEVICE|GID|PKEY)/.test(step.event);
}

/**
 * Returns the nanoseconds from when each request was taken until its completion was written, and the bytes that it
 * moved.
 */
function requests(items) {
  const open = new Map();
  const done = { latencies: [], sizes: [] };
  for (const { step, side } of items) {
    const key = `${side} ${step.wr_id}`;
    if (step.act === "fetched") open.set(key, step);
    else if (endsRequest(step) && open.has(key)) {
      const taken = open.get(key);
      open.delete(key);
      done.latencies.push(step.at - taken.at);
      done.sizes.push(taken.length);
    }
  }
  return done;
}

/** Makes a chart of how often values occur, by powers of 2. */
function histogram(title, show) {
  const picture = svg("svg", { class: "histogram", viewBox: "0 0 420 110", role: "img" });
  const figure = el("figure", {}, el("figcaption", {}, title), picture);
  return {
    element: figure,
    update(values) {
      const buckets = new Map();
      for (const value of values) {
        const bucket = value < 1 ? 0 : Math.floor(Math.log2(value));
        buckets.set(bucket, (buckets.get(bucket) ?? 0) + 1);
      }
      figure.hidden = values.length === 0;
      if (values.length === 0) return;
      const [low, high] = [Math.min(...buckets.keys()), Math.max(...buckets.keys())];
      const most = Math.max(...buckets.values());
      const width = Math.min(420 / (high - low + 1), 70);
      const parts = [];
      for (let bucket = low; bucket <= high; bucket += 1) {
        const count = buckets.get(bucket) ?? 0;
        const x = (bucket - low) * width;
        const height = (count / most) * 62;
        parts.push(svg("rect", { x: x + 2, y: 80 - height, width: width - 4, height, rx: 2 }));
        if (count) parts.push(svg("text", { x: x + width / 2, y: 75 - height, "text-anchor": "middle" }, `${count}`));
        if (width > 40 || (bucket - low) % Math.ceil(45 / width) === 0) {
          parts.push(svg("text", { x: x + width / 2, y: 96, "text-anchor": "middle", class: "dim" }, `≥ ${show(2 ** bucket)}`));
        }
      }
      const sorted = [...values].sort((one, other) => one - other);
      picture.setAttribute("aria-label", `${title}: median ${show(sorted[sorted.length >> 1])}, at most ${show(sorted.at(-1))}`);
      picture.replaceChildren(...parts);
    },
  };
}

/** Returns the connections of a capture in the form of `connections`, with their steps. */
function ofFile(decoded) {
  const all = new Map();
  for (const { ends, steps } of decoded.connections) {
    const name = ends.map((end) => `${end.gid} QP ${end.qpn || "?"}`).join(" – ");
    all.set(name, { ends: ends.map((end) => ({ device: end.gid, qp: { qpn: end.qpn } })), steps });
  }
  return all;
}

/** Returns the fields of a step. Steps of a capture have the time of day. */
function facts(item, captured) {
  const { step } = item;
  const since = captured ? "since 1970" : "of the devices' clock";
  const rows = [["time", `${(step.nanoseconds / 1e9).toFixed(captured ? 6 : 9)} s ${since}`]];
  const add = (name, value) => { if (value !== null && value !== undefined && value !== "") rows.push([name, `${value}`]); };
  if (step.wr_id !== undefined) add("wr_id", hex(step.wr_id));
  add("opcode", step.opcode);
  if (step.psn !== undefined) {
    add("PSN (BTH)", step.psn);
    add("AckReq (BTH)", step.ack_request ? "yes" : "no");
    add("payload", `${step.length} bytes`);
    if (step.rkey !== null) {
      add("R_Key (RETH)", hex(step.rkey));
      add("virtual address (RETH)", hex(step.address));
      add("DMA length (RETH)", `${step.message_length} bytes`);
    }
    add("syndrome (AETH)", step.syndrome);
    add("MSN (AETH)", step.msn);
    if (step.immediate !== null) add("immediate", hex(step.immediate));
    add("fault", step.fault);
    if (item.mate) add("on its way", duration(Math.abs(item.mate.step.at - step.at)));
  } else {
    add("bytes", isBad(step) ? null : step.length);
  }
  add("status", step.status);
  if (step.vendor_error) add("vendor_err", hex(step.vendor_error));
  add("CQ", step.cqn);
  add("event", step.event);
  if (step.act === "moved") add("state", `from ${step.from} to ${step.to}`);
  return rows;
}

/**
 * Returns what is known of a queue pair at a step: its state before and after the call in which the device did the
 * step, and what was in progress. Everything is computed from `steps`, those of that side. `state` is the current
 * state, or null if unknown.
 */
function moment(steps, step, state) {
  const at = { before: state, after: state, requests: [], sent: null, acknowledged: null, arrived: null };
  const moves = steps.filter((one) => one.act === "moved");
  const next = moves.find((one) => one.at > step.at);
  if (next) at.before = at.after = next.from;
  const last = moves.findLast((one) => one.at <= step.at);
  if (last) at.before = at.after = last.to;
  // The change of state is the last step of its call.
  const same = moves.find((one) => one.nanoseconds === step.nanoseconds && one.at >= step.at);
  if (same && steps.includes(step)) { at.before = same.from; at.after = same.to; }
  const open = new Map();
  for (const one of steps) {
    if (one.at > step.at) break;
    if (one.act === "fetched") open.set(one.wr_id, one);
    else if (endsRequest(one)) open.delete(one.wr_id);
    else if (one.act === "sent" && one.syndrome === null) at.sent = one;
    else if (one.act === "arrived" && one.syndrome !== null && !one.negative) at.acknowledged = one;
    else if (one.act === "arrived" && one.syndrome === null) at.arrived = one;
    if (one === step) break;
  }
  at.requests = [...open.values()];
  return at;
}

/** Makes the view. With `embedded`, it is next to a text and shows only the connection that it is given. */
export function timelineView({ embedded = false } = {}) {
  const { WIDTH, LANES } = embedded ? NARROW : WIDE;
  const devices = new Map();
  let items = [];
  let missed = 0;
  let timer = null;
  let asking = false;
  let chosen = null;
  let toScale = false;
  let scale = 10;
  let follow = true;
  // Height of the visible part.
  let view = 0;
  let selected = null;
  let dirty = false;
  let ends = null;
  let file = null;
  // Steps of both ends of the connection, not filtered.
  let sides = null;

  const chooser = el("select", { id: "connection-choice", onchange: () => { location.hash = `timeline/${encodeURIComponent(chooser.value)}`; } });
  const filter = el("input", { type: "search", id: "timeline-filter", placeholder: "wr_id, PSN, opcode, status …", oninput: () => { rebuild(); } });
  const order = button("In order", () => setMode(false), { "aria-pressed": "true" });
  const scaled = button("To scale", () => setMode(true), { "aria-pressed": "false" });
  const out = button("−", () => zoom(1), { title: "Zoom out (key -)", "aria-label": "Zoom out" });
  const into = button("+", () => zoom(-1), { title: "Zoom in (key +)", "aria-label": "Zoom in" });
  const zoomText = el("span", { class: "dim", "aria-live": "polite" });
  const next = button("Next error", () => jump(), { title: "Next NAK or error (key e)" });
  const clear = button("Clear", () => { for (const kept of devices.values()) kept.steps = []; missed = 0; selected = null; rebuild(); });
  const picker = el("input", { type: "file", id: "capture-file", class: "unseen", onchange: () => {
    if (picker.files[0]) open(picker.files[0]);
    picker.value = "";
  } });
  const openFile = el("label", { for: "capture-file", class: "button" }, "Open a file");
  const live = button("Back to live", () => { file = null; chosen = null; update([]); });
  const status = el("p", { class: "dim", role: "status" });
  const trouble = el("p", { class: "bad", role: "alert" });
  const heads = svg("svg", { class: "lanes", viewBox: `0 0 ${WIDTH} 34`, "aria-hidden": "true" });
  const picture = svg("svg", { class: "sequence", role: "group", "aria-label": "Sequence diagram" });
  const spacer = el("div", { class: "spacer" }, picture);
  const scroller = el("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Steps of the connection" }, spacer);
  const details = el("section", { class: "panel", id: "step", "aria-live": "polite" },
    el("h2", {}, "No step is chosen"), el("p", { class: "dim" }, "Choose a step to see its fields, what both ends report about it, and the states of their queue pairs at that moment."));
  // Next to a text, there is room for the details only when there are some.
  details.hidden = embedded;
  const latencies = histogram("Time from taken to completed", (value) => duration(value).replace(/\.?0+ /, " "));
  const sizes = histogram("Size of requests", (value) => bytes(value));
  const charts = el("section", { class: "panel columns", "aria-label": "Requests of this connection" }, latencies.element, sizes.element);
  const legend = el("p", { class: "legend" }, ...LEGEND.map(([kind, text]) => el("span", { class: `key ${kind}` }, text)));
  const element = el("div", embedded ? { class: "embedded" } : {}, el("section", { class: "panel" },
    embedded ? null : el("p", { class: "tools" }, el("label", { for: "connection-choice" }, "Connection "), chooser, " ",
      el("label", { for: "timeline-filter" }, "only with "), filter),
    el("p", { class: "tools" }, order, scaled, " ", out, into, zoomText, " ", next, clear, ...(embedded ? [] : [picker, openFile, live])),
    status, trouble, legend, heads, scroller), details, embedded ? null : charts);

  scroller.addEventListener("scroll", () => {
    // After a change of the scroller's height the picture may no longer be at its end, although nobody scrolled.
    if (scroller.clientHeight === view) follow = scroller.scrollTop + view >= scroller.scrollHeight - 40;
    draw();
  });
  new ResizeObserver(() => {
    view = scroller.clientHeight;
    if (selected) show();
    else if (follow) scroller.scrollTop = height;
    draw();
  }).observe(scroller);
  element.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+") zoom(-1);
    else if (event.key === "-") zoom(1);
    else if (event.key === "e") jump();
  });

  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) open(event.dataTransfer.files[0]);
  });

  /** Shows a capture or recording instead of the live devices. */
  async function open(blob) {
    try {
      const decoded = await ask("/api/decode", { method: "POST", body: blob });
      file = { name: blob.name, connections: ofFile(decoded), recording: decoded.recording, others: decoded.others, more: decoded.more };
      chosen = null;
      follow = false;
      say(trouble, "");
      update([]);
      scroller.scrollTop = 0;
    } catch (error) {
      say(trouble, `${blob.name}: ${error.message}`);
    }
  }

  function setMode(on) {
    toScale = on;
    order.setAttribute("aria-pressed", String(!on));
    scaled.setAttribute("aria-pressed", String(on));
    rebuild();
  }

  function zoom(by) {
    if (!toScale) return setMode(true);
    const middle = timeAt(scroller.scrollTop + scroller.clientHeight / 2);
    scale = Math.min(Math.max(scale + by, 0), SCALES.length - 1);
    rebuild(middle);
  }

  /**
   * Time at which the picture begins. Its height is at most TALL pixels, so a deep zoom shows only the part around
   * `middle`.
   */
  let begin = 0;
  let height = 0;
  const timeAt = (y) => begin + y * SCALES[scale];
  function yOf(item) {
    return toScale ? (item.step.at - begin) / SCALES[scale] + ROW : item.row * ROW + ROW;
  }

  /** Returns the time of the step closest to `time`. */
  function nearest(time) {
    let best = items[0];
    for (const item of items) {
      if (Math.abs(item.step.at - time) < Math.abs(best.step.at - time)) best = item;
    }
    return best?.step.at ?? time;
  }

  function rebuild(middle) {
    sides = file ? file.connections.get(chosen)?.steps : ends?.map((end) => (devices.get(end.device)?.steps ?? []).filter((step) => belongs(step, end)));
    const all = sides ? merge(...sides) : [];
    const found = searching(filter.value);
    const text = ({ step }) => `${describe(step).label} ${step.wr_id ?? ""} psn ${step.psn ?? ""} ${step.act}`;
    items = filter.value.trim() ? all.filter((item) => found(text(item))) : all;
    items.forEach((item, row) => { item.row = row; });
    const [first, last] = [items[0]?.step.at ?? 0, items.at(-1)?.step.at ?? 0];
    // There may be long intervals without steps.
    if (middle !== undefined) middle = nearest(middle);
    if (toScale) {
      const span = TALL * SCALES[scale];
      begin = last - first <= span ? first : middle === undefined ? last - span : Math.max(first, Math.min(middle - span / 2, last - span));
      height = Math.min((last - begin) / SCALES[scale], TALL) + 3 * ROW;
    } else {
      height = (items.length + 2) * ROW;
    }
    spacer.style.height = `${Math.ceil(height)}px`;
    if (middle !== undefined) scroller.scrollTop = (middle - begin) / SCALES[scale] - scroller.clientHeight / 2;
    else if (follow) scroller.scrollTop = height;
    const done = requests(items);
    latencies.update(done.latencies);
    sizes.update(done.sizes);
    charts.hidden = done.sizes.length === 0;
    say(zoomText, toScale ? `a pixel is ${duration(SCALES[scale])}` : "");
    const errors = items.filter((item) => isBad(item.step) && !(item.step.act === "arrived" && item.mate)).length;
    next.disabled = errors === 0;
    say(status, summary(all.length, errors));
    draw();
  }

  /** Says in words what is shown. */
  function summary(total, errors) {
    const more = file?.more ? ", and more that was left out" : "";
    if (file?.recording) {
      return `${file.name}: ${counted(file.connections.size, "queue pair")}, ${counted(items.length, "step")} of this one, ${wrong(errors)}${more}.`;
    }
    if (file) {
      return `${file.name}: ${counted(file.connections.size, "connection")}, ${counted(items.length, "packet")} of this one, ${counted(errors, "NAK")}; `
        + `${counted(file.others, "other frame")}${more}.`;
    }
    if (!ends && embedded) return "The connection is being made.";
    if (!ends) return "No two queue pairs of this vrnicd are connected to each other.";
    const of = items.length < total ? ` of ${total}` : "";
    const lost = missed ? `; ${missed} were missed because there were too many` : "";
    return `${counted(items.length, "step")}${of}, ${wrong(errors)}${lost}.`;
  }

  /** Draws the visible part before the next frame. */
  function draw() {
    if (dirty) return;
    dirty = true;
    requestAnimationFrame(() => { dirty = false; paint(); });
  }

  function paint() {
    const view = scroller.clientHeight || 400;
    // There may be fewer steps than before: at the old place, the picture itself would keep the scroller from
    // shrinking.
    const top = Math.min(scroller.scrollTop, Math.max(height - view, 0));
    picture.setAttribute("viewBox", `0 ${top} ${WIDTH} ${view}`);
    picture.setAttribute("height", view);
    picture.style.top = `${top}px`;
    const parts = [];
    for (const side of ["left", "right"]) {
      // A capture has no programs, and a recording has only that of one side.
      const { rnic, program } = LANES[side];
      for (const x of file && !(file.recording && side === "left") ? [rnic] : [rnic, program]) parts.push(svg("line", { class: "lane", x1: x, x2: x, y1: top, y2: top + view }));
    }
    // Find the first visible item: items are sorted by place.
    let [low, high] = [0, items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (yOf(items[middle]) < top - 2 * ROW) low = middle + 1;
      else high = middle;
    }
    // Where the last text of each lane ends, and the texts, which are drawn above all arrows.
    const said = { texts: [] };
    let arrows = 0;
    let index = low;
    for (; index < items.length && arrows < DRAWN; index += 1) {
      const y = yOf(items[index]);
      if (y > top + view + ROW) break;
      const arrow = drawStep(items[index], y, said);
      if (arrow) { parts.push(arrow); arrows += 1; }
    }
    parts.push(...said.texts);
    if (arrows === DRAWN) {
      parts.push(svg("text", { x: WIDTH / 2, y: top + view - 10, class: "more", "text-anchor": "middle" },
        "There are too many steps here to show each: zoom in."));
    }
    const focus = document.activeElement?.dataset?.row;
    picture.replaceChildren(...parts);
    if (focus !== undefined) picture.querySelector(`[data-row="${Number(focus)}"]`)?.focus({ preventScroll: true });
  }

  /** Makes the group of a step, which can be chosen. */
  function stepGroup(item, kind, label) {
    return svg("g", {
      class: `step ${kind}${item === selected || item.mate && item.mate === selected ? " chosen" : ""}`, tabindex: 0, role: "button",
      "data-row": item.row, "aria-label": `${ends[item.side === "left" ? 0 : 1].device}: ${label}`,
      onclick: () => choose(item), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(item); } },
    });
  }

  /** Draws a change of state, which has no arrow. */
  function drawMove(item, label, kind, x, y) {
    const width = label.length * 7.5 + 18;
    const group = stepGroup(item, `${kind} move`, label);
    group.append(svg("rect", { x: x - width / 2, y: y - 10, width, height: 20, rx: 10 }),
      svg("text", { x, y: y + 4.5, "text-anchor": "middle" }, label));
    return group;
  }

  function drawStep(item, y, said) {
    const { step, side, mate } = item;
    // A packet's arrow is drawn where it was sent, or where it arrived if the sending was not seen.
    if (step.act === "arrived" && mate && items[mate.row] === mate) {
      if (yOf(mate) >= scroller.scrollTop - 2 * ROW) return null;
      return drawStep(mate, yOf(mate), said);
    }
    const { label, kind, to } = describe(step);
    const lanes = LANES[side];
    if (to === "itself") return drawMove(item, label, kind, lanes.rnic, y);
    const far = LANES[side === "left" ? "right" : "left"].rnic;
    let [x1, y1, x2, y2] = to === "rnic" ? [lanes.program, y, lanes.rnic, y] : [lanes.rnic, y, lanes.program, y];
    let lost = false;
    if (to === "peer") {
      const seen = mate && items[mate.row] === mate;
      if (step.act === "sent") {
        const arrived = seen ? yOf(mate) : y + ROW / 2;
        lost = !file && !mate && (items.length - item.row > 8 || /^(drop|lost)/.test(step.fault ?? ""));
        [x1, y1, x2, y2] = [lanes.rnic, y, seen || file ? far : lanes.rnic + (far - lanes.rnic) * (lost ? 0.55 : 0.9), file ? y : arrived];
      } else {
        [x1, y1, x2, y2] = [file ? far : far + (lanes.rnic - far) * 0.45, y, lanes.rnic, y];
      }
    }
    const group = stepGroup(item, kind, `${label}${lost ? ", lost" : ""}`);
    const direction = Math.sign(x2 - x1);
    group.append(svg("line", { class: "hit", x1, y1, x2, y2 }), svg("line", { class: "arrow", x1, y1, x2, y2 }));
    if (lost) group.append(svg("path", { class: "lost", d: `M ${x2 - 6} ${y2 - 6} l 12 12 m 0 -12 l -12 12` }));
    else {
      const angle = Math.atan2(y2 - y1, x2 - x1) * 180 / Math.PI;
      group.append(svg("path", { class: "head", d: "M 0 0 L -9 -4.5 L -9 4.5 z", transform: `translate(${x2} ${y2}) rotate(${angle})` }));
    }
    if (isBad(step)) group.append(svg("circle", { class: "mark", cx: x1 + direction * 9, cy: y1 + (y2 - y1) * 0.02, r: 5 }));
    const lane = to === "peer" ? "wire" : side;
    // The text of a packet is at the start of its arrow: arrows may be long and cross each other, but each starts in a
    // row of its own. Other texts are in the middle of the arrow. One that is too long for that begins at the RNIC and
    // extends past the program, or begins at the edge.
    const text = drawn(label);
    const [width, gap, room] = [widthOf(text), Math.abs(x2 - x1), side === "left" ? lanes.rnic : WIDTH - lanes.rnic];
    const [x, anchor] = to === "peer" ? [x1 + direction * (isBad(step) ? 20 : 10), direction > 0 ? "start" : "end"]
      : width < gap - 8 ? [(x1 + x2) / 2, "middle"]
      : width < room - 12 ? [lanes.rnic + (side === "left" ? -8 : 8), side === "left" ? "end" : "start"]
      : side === "left" ? [4, "start"] : [WIDTH - 4, "end"];
    const top = y1 - 6;
    // Texts that would cover each other are left out; the arrow still has its title.
    const hasRoom = said[lane] === undefined || top - said[lane] >= 13;
    if (hasRoom) {
      said[lane] = top;
      said.texts.push(svg("text", { x, y: top, "text-anchor": anchor, onclick: () => choose(item) }, text));
    }
    if (!hasRoom || text !== label) group.append(svg("title", {}, label));
    return group;
  }

  function choose(item) {
    selected = item;
    tell();
    // The description may take room from the picture.
    show();
    draw();
  }

  /** Scrolls to the chosen step. */
  function show() {
    const [y, top, view] = [yOf(selected), scroller.scrollTop, scroller.clientHeight];
    if (y < top || y > top + view - ROW) scroller.scrollTop = y - view / 2;
  }

  /** Describes the chosen step. Is called again later, since an explanation may arrive after the step. */
  function tell() {
    const item = selected;
    details.hidden = false;
    const end = ends[item.side === "left" ? 0 : 1];
    const both = (file && !file.recording ? [] : ends).map(({ device, qp }, index) => {
      if (file && sides[index].length === 0) return null;
      const found = newestDevices().find((one) => one.name === device);
      const current = found?.by_qpn.get(qp.qpn);
      const told = (found?.explanations ?? []).filter((one) => one.object === qp.qpn && one.object_kind === "QP")
        .sort((one, other) => Math.abs(one.nanoseconds - item.step.nanoseconds) - Math.abs(other.nanoseconds - item.step.nanoseconds)).slice(0, 3);
      const objects = concerned(item).filter((one) => one.side === (index === 0 ? "left" : "right")).flatMap((one) => one.step.objects ?? []);
      const state = stateThen(moment(sides[index], item.step, file ? null : current?.state ?? null), current, file, objects);
      const when = (one) => {
        const later = one.nanoseconds - item.step.nanoseconds;
        return later === 0 ? "at this step" : `${duration(Math.abs(later))} ${later > 0 ? "after" : "before"} this step`;
      };
      const why = told.length ? el("ul", { class: "told" }, ...told.map((one) => el("li", {}, `${when(one)}: ${one.sentence}`)))
        : file ? null : el("p", { class: "dim" }, "It has no recent failures.");
      return el("div", {}, el("h3", {}, `${device}: QP ${qp.qpn}`), state, why);
    });
    const all = el("div", {}, el("h2", {}, `${end.device}: ${describe(item.step).label}`),
      el("div", { class: "columns" },
        el("div", { class: "scroll" }, el("dl", { class: "facts" }, ...facts(item, file && !file.recording).map(([name, value]) => fact(name, value))),
          item.step.headers ? headerTable(item.step.headers) : null),
        el("div", {}, ...(both.length ? both : [el("p", { class: "dim" }, PACKETS_ONLY)]))));
    if (all.textContent !== details.textContent) details.replaceChildren(...all.childNodes);
  }

  /**
   * Returns the items whose objects concern an item: the item itself, the same packet at the other end, and, for a
   * failed completion, the NAK that caused it, which arrived in the same call.
   */
  function concerned(item) {
    const { step, side } = item;
    const found = [item, item.mate];
    if (isBad(step) && endsRequest(step)) {
      const nak = items.findLast((one) => one.side === side && one.step.act === "arrived" && one.step.negative && one.step.nanoseconds === step.nanoseconds);
      found.push(nak, nak?.mate);
    }
    return found.filter(Boolean);
  }

  /** Describes a queue pair: its state at a step, its state now, and the objects that the step concerned there. */
  function stateThen(then, current, file, objects) {
    const chip = (state) => (state === null ? "unknown" : el("span", { class: `state ${state}` }, state));
    const moves = then.before !== then.after;
    const list = (items) => (items.length === 0 ? "none" : `${items.length} (${items.slice(0, 4).map((one) => hex(one.wr_id)).join(", ")}${items.length > 4 ? ", …" : ""})`);
    return el("dl", { class: "facts" },
      fact("state then", moves ? el("span", {}, chip(then.before), " → ", chip(then.after)) : chip(then.after)),
      fact("requests under way", list(then.requests)),
      then.sent && fact("PSN sent last", `${then.sent.psn}`),
      then.acknowledged && fact("PSN acknowledged last", `${then.acknowledged.psn}`),
      then.arrived && fact("PSN arrived last", `${then.arrived.psn}`),
      ...objects.map((one) => fact(...objectThen(one))),
      file ? null : fact("state now", current ? chip(current.state) : "it does not exist any more"));
  }

  /** Goes to the next step that reports an error. */
  function jump() {
    const after = selected ? selected.row : -1;
    const bad = (item) => isBad(item.step) && !(item.step.act === "arrived" && item.mate);
    const item = items.find((one) => one.row > after && bad(one)) ?? items.find(bad);
    if (!item) return;
    if (!isPaused()) document.getElementById("pause").click();
    follow = false;
    if (toScale) rebuild(item.step.at);
    else scroller.scrollTop = yOf(item) - scroller.clientHeight / 2;
    choose(item);
  }

  async function poll() {
    if (file || asking || isPaused() || now.devices.length === 0) return;
    asking = true;
    try {
      const from = now.devices.map((device) => devices.get(device.name)?.next ?? 0).join(",");
      const answer = await ask(`/api/trace?from=${from}`);
      let any = false;
      for (const { device, first, steps } of answer.devices) {
        if (!devices.has(device)) devices.set(device, { next: first, steps: [] });
        const kept = devices.get(device);
        // After a reset of a device, its steps count from 0 again.
        if (first > kept.next) missed += first - kept.next;
        kept.next = first + steps.length;
        any ||= steps.length > 0;
        for (const step of steps) kept.steps.push(step);
        if (kept.steps.length > KEPT) kept.steps.splice(0, kept.steps.length - KEPT);
      }
      say(trouble, "");
      if (any) rebuild();
    } catch (error) {
      say(trouble, error.message);
    }
    asking = false;
  }

  function update([wanted]) {
    if (timer === null) {
      timer = setInterval(() => {
        if (element.isConnected) poll();
        else { clearInterval(timer); timer = null; }
      }, INTERVAL);
    }
    live.hidden = !file;
    const all = file ? file.connections : connections();
    const names = [...all.keys()];
    const turned = wanted?.split(" – ").reverse().join(" – ");
    const other = embedded ? undefined : chosen !== null && all.has(chosen) ? chosen : names[0];
    const name = wanted !== undefined && all.has(wanted) ? wanted : all.has(turned) ? turned : other;
    if (chooser.children.length !== names.length || names.some((text, index) => chooser.children[index].value !== text)) {
      chooser.replaceChildren(...names.map((text) => el("option", { value: text }, text)));
    }
    if (name !== undefined) {
      chooser.value = name;
      ends = file ? all.get(name).ends : all.get(name);
    } else if (embedded) ends = null;
    if (name !== chosen || name === undefined) {
      chosen = name ?? null;
      selected = null;
      details.hidden = embedded;
      const title = (text, x) => svg("text", { x, y: 22, "text-anchor": "middle" }, text);
      heads.replaceChildren(...(ends ?? []).flatMap((end, index) => {
        const lanes = LANES[index === 0 ? "left" : "right"];
        if (file?.recording && index === 0) return [title("program", lanes.program), title(`RNIC ${end.device}, QP ${end.qp.qpn}`, lanes.rnic)];
        if (file) return [title(`${end.device}, QP ${end.qp.qpn || "?"}`, lanes.rnic)];
        return [title(`program of ${end.device}`, lanes.program), title(`RNIC ${end.device}, QP ${end.qp.qpn}`, lanes.rnic)];
      }));
      rebuild();
    }
    if (selected && !file) tell();
  }
  return { element, update };
}
