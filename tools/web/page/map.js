// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The map: VMs with their RNICs, connections, and the switch.

import { bytes, counted, el, fact, reconcile, say, short, sparkline, svg } from "./dom.js";
import { now, ofDevice, ofPort, ofQp, peerOf, rate, series } from "./state.js";

const [WIDTH, CARD, CARD_HEIGHT, GAP] = [960, 250, 132, 20];
/** Frame of a VM: the margins at the sides of its RNICs and above them, and the space between two frames. */
const [PAD, HEAD, SPACE] = [12, 28, 18];
const LOSSES = ["retransmitted_pkts", "rx_dropped", "rnr_nak_sent", "out_of_sequence", "completion_errors"];

/** Returns the address of a device in the view of objects. */
const linkTo = (device, ...more) => `#objects/${[device.name, ...more].map(encodeURIComponent).join("/")}`;

/**
 * Returns where each device is, and the frames of the VMs. There are two columns, so that connections pass between
 * them. RNICs of a VM are together; one without a driver has no VM yet, and no frame.
 */
export function layout(devices) {
  const vms = new Map();
  for (const device of devices) {
    const vm = device.vm ?? device.name;
    if (!vms.has(vm)) vms.set(vm, []);
    vms.get(vm).push(device);
  }
  const places = new Map();
  const frames = [];
  const ends = [0, 0];
  for (const [vm, own] of vms) {
    const column = ends[0] <= ends[1] ? 0 : 1;
    const [x, y] = [column === 0 ? 0 : WIDTH - CARD - 2 * PAD, ends[column]];
    own.forEach((device, row) => places.set(device.name, { x: x + PAD, y: y + HEAD + row * (CARD_HEIGHT + GAP), column }));
    const height = HEAD + own.length * (CARD_HEIGHT + GAP) - GAP + PAD;
    if (typeof vm === "number") frames.push({ vm, x, y, height });
    ends[column] += height + SPACE;
  }
  return { places, frames, height: Math.max(...ends) - SPACE };
}

function makeFrame({ vm }) {
  return svg("g", { class: "vm" }, svg("rect", { x: 1, y: 1, width: CARD + 2 * PAD - 2, rx: 16 }), svg("text", { x: PAD + 4, y: 20 }, `VM ${vm}`));
}

function updateFrame(frame, { x, y, height }) {
  frame.setAttribute("transform", `translate(${x} ${y})`);
  frame.firstChild.setAttribute("height", height - 2);
}

/** Returns the connected pairs of devices, with the number, the rate and the errors of their connections. */
function pairs() {
  const all = new Map();
  for (const device of now.devices) {
    for (const qp of device.qp_list) {
      const peer = peerOf(qp);
      if (!peer) continue;
      const [one, other] = [device.name, peer.device.name].sort();
      const key = JSON.stringify([one, other]);
      if (!all.has(key)) all.set(key, { key, one, other, count: 0, rate: 0, broken: 0 });
      const pair = all.get(key);
      // Each connection is counted at both ends.
      pair.count += 0.5;
      pair.rate += ofQp(device, qp.qpn);
      pair.broken += qp.state === "ERR" || qp.state === "SQE" ? 1 : 0;
    }
  }
  return [...all.values()];
}

function makeCard(device) {
  const text = (y, className, x = 16) => svg("text", { x, y, class: className });
  const parts = {
    name: text(30, "name"), state: text(30, "state", CARD - 16), objects: text(54, "dim"), rates: text(80, "rates"),
    losses: text(120, "dim"), line: svg("g", { transform: `translate(16 86)` }),
  };
  parts.state.setAttribute("text-anchor", "end");
  const card = svg("a", { class: "card", href: linkTo(device) },
    svg("rect", { width: CARD, height: CARD_HEIGHT, rx: 12 }), svg("rect", { class: "lamp", x: 0, y: 14, width: 5, height: CARD_HEIGHT - 28, rx: 2 }),
    ...Object.values(parts));
  card.parts = parts;
  return card;
}

function updateCard(card, device, { x, y }) {
  const { parts } = card;
  card.setAttribute("transform", `translate(${x} ${y})`);
  const key = ofDevice(device);
  const [tx, rx] = [rate(key, "tx_bytes"), rate(key, "rx_bytes")];
  const losses = LOSSES.map((name) => [name, rate(key, name)]).filter(([, value]) => value > 0);
  const status = device.state !== "up" ? device.state : device.link !== "up" ? "link down" : "up";
  card.dataset.status = status === "up" ? "up" : ["failed", "removed"].includes(device.state) ? "failed" : "down";
  card.setAttribute("aria-label",
    `RNIC ${device.name}${device.vm === null ? "" : ` of VM ${device.vm}`}, ${status}, ${counted(device.qps, "QP")}, sends ${bytes(tx)} per second, receives ${bytes(rx)} per second`);
  say(parts.name, device.name);
  say(parts.state, status);
  say(parts.objects, [[device.qps, "QP"], [device.cqs, "CQ"], [device.mrs, "MR"]].map((one) => counted(...one)).join(" · "));
  say(parts.rates, `↑ ${bytes(tx)}/s   ↓ ${bytes(rx)}/s`);
  say(parts.losses, losses.length ? losses.map(([name, value]) => `${name} ${short(value)}/s`).join(", ") : "nothing lost");
  parts.losses.setAttribute("class", losses.length ? "bad" : "dim");
  const line = sparkline(series(key, "tx_bytes"), "");
  line.setAttribute("width", CARD - 32);
  line.setAttribute("height", 20);
  line.setAttribute("preserveAspectRatio", "none");
  line.setAttribute("aria-hidden", "true");
  parts.line.replaceChildren(line);
}

function makeEdge() {
  const path = svg("path", { class: "wire" });
  const flow = svg("path", { class: "flow" });
  const label = svg("text", { class: "label", "text-anchor": "middle" });
  const edge = svg("a", { class: "edge" }, path, flow, label);
  edge.parts = { path, flow, label };
  return edge;
}

function updateEdge(edge, pair, places) {
  const [a, b] = [places.get(pair.one), places.get(pair.other)];
  const side = (place) => (place.column === 0 ? place.x + CARD : place.x);
  const [x1, y1, x2, y2] = [side(a), a.y + CARD_HEIGHT / 2, side(b), b.y + CARD_HEIGHT / 2];
  // Within a column or a device, the line makes a bow towards the middle.
  const bow = a.column === b.column ? (a.column === 0 ? 160 : -160) : 0;
  const [c1, c2] = bow ? [x1 + bow, x2 + bow] : [x1 + (x2 - x1) * 0.4, x1 + (x2 - x1) * 0.6];
  const spread = pair.one === pair.other ? 28 : 0;
  const line = `M ${x1} ${y1 - spread} C ${c1} ${y1 - spread}, ${c2} ${y2 + spread}, ${x2} ${y2 + spread}`;
  const { path, flow, label } = edge.parts;
  path.setAttribute("d", line);
  flow.setAttribute("d", line);
  const wide = Math.min(2 + Math.log2(1 + pair.rate) / 2, 10);
  path.setAttribute("stroke-width", wide);
  flow.setAttribute("class", pair.rate > 0 ? "flow on" : "flow");
  edge.dataset.broken = pair.broken > 0;
  label.setAttribute("x", bow ? x1 + bow * 0.75 : (x1 + x2) / 2);
  label.setAttribute("y", (y1 + y2) / 2 - 10);
  const count = counted(pair.count, "connection");
  const broken = pair.broken ? `, ${pair.broken} in error` : "";
  const text = `${count} · ${short(pair.rate)} packets/s${broken}`;
  say(label, text);
  edge.setAttribute("href", `#objects/${encodeURIComponent(pair.one)}`);
  edge.setAttribute("aria-label", `${pair.one} and ${pair.other}: ${text}`);
}

function makePort(port) {
  const parts = {
    name: el("h3", { text: port.name }), behind: el("p", { class: "dim" }), facts: el("dl", { class: "facts" }),
    drops: el("p"),
  };
  const box = el("li", { class: "panel" }, ...Object.values(parts));
  box.parts = parts;
  return box;
}

function updatePort(box, port) {
  const { parts } = box;
  const behind = [port.device && `RNIC ${port.device}${port.rnic_up ? "" : " (no driver)"}`,
    port.medium && `${port.medium}${port.medium_up ? "" : " (not connected)"}`];
  say(parts.behind, behind.filter(Boolean).join(", ") || "nothing");
  const key = ofPort(port);
  parts.facts.replaceChildren(
    fact("in", `${bytes(rate(key, "rx_bytes"))}/s, ${short(rate(key, "rx_frames"))} frames/s`),
    fact("out", `${bytes(rate(key, "tx_bytes"))}/s, ${short(rate(key, "tx_frames"))} frames/s`),
    fact("VLANs", port.vlans), fact("waiting", `${port.waiting} frames`));
  const drops = port.counters.filter(([name, value]) => value > 0 && !/_(frames|bytes)$/.test(name));
  parts.drops.className = drops.length ? "bad" : "dim";
  say(parts.drops, drops.length ? `lost: ${drops.map(([name, value]) => `${name} ${short(value)}`).join(", ")}` : "no frame lost");
}

/** How many queue pairs are listed as the busiest. */
const BUSIEST = 5;

function makeTalker() {
  const parts = { link: el("a"), peer: el("span", { class: "dim" }), rate: el("strong", { class: "number" }), bar: el("meter", { min: 0 }) };
  const row = el("li", {}, ...Object.values(parts));
  row.parts = parts;
  return row;
}

function updateTalker(row, { device, qp, sent, most }) {
  const { parts } = row;
  const peer = peerOf(qp);
  parts.link.setAttribute("href", linkTo(device, `${qp.qpn}`));
  say(parts.link, `${device.name} QP ${qp.qpn}`);
  say(parts.peer, peer?.qp ? `to ${peer.device.name} QP ${qp.peer_qpn}` : qp.peer_gid ? `to QP ${qp.peer_qpn} of ${qp.peer_gid}` : "to any peer");
  say(parts.rate, `${short(sent)} packets/s`);
  parts.bar.max = most;
  parts.bar.value = sent;
  parts.bar.setAttribute("aria-label", `${short(sent)} of the busiest one's ${short(most)}`);
}

/** Returns the queue pairs of all devices that send most. */
function talkers() {
  const all = now.devices.flatMap((device) => device.qp_list.map((qp) => ({ device, qp, sent: ofQp(device, qp.qpn) }))).filter(({ sent }) => sent > 0);
  all.sort((one, other) => other.sent - one.sent || one.qp.qpn - other.qp.qpn);
  return all.slice(0, BUSIEST).map((one) => ({ ...one, most: all[0].sent }));
}

/** Makes the view. */
export function mapView() {
  const frames = svg("g");
  const edges = svg("g");
  const cards = svg("g");
  const picture = svg("svg", { class: "map", role: "group", "aria-label": "VMs, their RNICs, and connections" }, frames, edges, cards);
  const empty = el("p", { class: "empty" }, "There is no device.");
  const outside = el("p", { class: "dim" });
  const ports = el("ul", { class: "grid", "aria-label": "Ports of the switch" });
  const network = el("section", {}, el("h2", {}, "Switch"), ports);
  const busiest = el("ol", { class: "talkers", "aria-label": "The queue pairs that send most" });
  const idle = el("p", { class: "dim" }, "No queue pair sends.");
  const element = el("div", {}, el("section", { class: "panel" }, el("h2", {}, "VMs, RNICs and connections"), empty, picture, outside),
    el("section", { class: "panel" }, el("h2", {}, "Top talkers"), idle, busiest), network);
  function update() {
    empty.hidden = now.devices.length > 0 || now.at === null;
    const { places, frames: shown, height } = layout(now.devices);
    picture.setAttribute("viewBox", `0 0 ${WIDTH} ${Math.max(height, 10)}`);
    reconcile(frames, shown, (frame) => frame.vm, makeFrame, updateFrame);
    reconcile(edges, pairs(), (pair) => pair.key, makeEdge, (edge, pair) => updateEdge(edge, pair, places));
    reconcile(cards, now.devices, (device) => device.name, makeCard, (card, device) => updateCard(card, device, places.get(device.name)));
    const strangers = now.devices.flatMap((device) => device.qp_list).filter((qp) => qp.peer_gid && !peerOf(qp)).length;
    say(outside, strangers ? `${strangers} more queue pairs are connected to peers outside this vrnicd.` : "");
    const top = talkers();
    idle.hidden = top.length > 0;
    reconcile(busiest, top, ({ device, qp }) => `${qp.qpn} ${device.name}`, makeTalker, updateTalker);
    network.hidden = now.switch.length === 0;
    reconcile(ports, now.switch, (port) => port.name, makePort, updatePort);
  }
  return { element, update };
}
