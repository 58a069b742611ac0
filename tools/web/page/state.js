// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// What the server said last, and rates made of it.

/** Samples that are kept of each counter. */
const KEPT = 90;

const listeners = new Set();
let source = null;
let paused = false;
// Steps come sooner than states: the state that belongs to those on the page when it is paused is the next one.
let catchesUp = false;
let waiting = null;

/** The state. `rates` has, by device or switch port and counter, changes per second, the newest last. */
export const now = {
  connected: false,
  closed: false,
  devices: [],
  switch: [],
  actions: false,
  lessons: false,
  socket: "",
  error: null,
  at: null,
  rates: new Map(),
  qps: new Map(),
};

/** Calls `listener` after each change. */
export function listen(listener) {
  listeners.add(listener);
}

function tell() {
  for (const listener of listeners) listener(now);
}

function sample(key, counters, seconds) {
  let history = now.rates.get(key);
  if (!history) now.rates.set(key, history = { last: new Map(), series: new Map() });
  for (const [name, value] of counters) {
    const before = history.last.get(name);
    history.last.set(name, value);
    if (before === undefined || seconds <= 0) continue;
    let series = history.series.get(name);
    if (!series) history.series.set(name, series = []);
    // After a reset of the device they count from 0.
    series.push(Math.max(value - before, 0) / seconds);
    if (series.length > KEPT) series.shift();
  }
}

/** The last changes per second of a counter. */
export function series(key, name) {
  return now.rates.get(key)?.series.get(name) ?? [];
}

/** Changes per second of a counter. */
export function rate(key, name) {
  return series(key, name).at(-1) ?? 0;
}

/** A counter. */
export function counter(counters, name) {
  return (counters ?? []).find(([known]) => known === name)?.[1] ?? 0;
}

/** Key of the rates of a device. */
export const ofDevice = (device) => `device ${device.name}`;
/** Key of the rates of a port of the switch. */
export const ofPort = (port) => `port ${port.name}`;
/** Packets per second that a queue pair sends, by what its PSN says. */
export const ofQp = (device, qpn) => now.qps.get(`${device.name} ${qpn}`)?.rate ?? 0;

function take(state) {
  const seconds = now.at === null ? 0 : (state.at_ms - now.at) / 1000;
  Object.assign(now, {
    devices: state.devices, switch: state.switch, actions: state.actions, lessons: state.lessons, socket: state.socket, error: state.error,
    at: state.at_ms,
  });
  const qps = new Map();
  for (const device of state.devices) {
    sample(ofDevice(device), device.port?.counters ?? [], seconds);
    for (const qp of device.qp_list) {
      const key = `${device.name} ${qp.qpn}`;
      const before = now.qps.get(key);
      // PSNs have 24 bits.
      const sent = before ? (qp.send_psn - before.psn + 0x1000000) % 0x1000000 : 0;
      qps.set(key, { psn: qp.send_psn, rate: seconds > 0 ? sent / seconds : 0 });
    }
  }
  now.qps = qps;
  for (const port of state.switch) sample(ofPort(port), port.counters, seconds);
}

/** Begins to listen to the server. */
export function connect() {
  source = new EventSource("/api/events");
  source.onmessage = (event) => {
    now.connected = true;
    const state = JSON.parse(event.data);
    for (const device of state.devices) device.by_qpn = new Map(device.qp_list.map((qp) => [qp.qpn, qp]));
    if (paused && !catchesUp) waiting = state;
    else take(state);
    catchesUp = false;
    tell();
  };
  source.onerror = () => {
    now.connected = false;
    // The server knows this page no longer: another one runs at its address.
    now.closed = source.readyState === EventSource.CLOSED;
    tell();
  };
}

/** The devices as the server last told of them, also while the page is paused. */
export const newestDevices = () => (waiting ?? now).devices;

/** Whether changes are kept back. */
export function isPaused() {
  return paused;
}

/** Keeps changes back, or no longer. */
export function pause(on) {
  paused = on;
  catchesUp = on;
  if (!on && waiting) { take(waiting); waiting = null; }
  tell();
}

/** The device that has a GID, if it is one of these. */
export function deviceOfGid(gid) {
  return now.devices.find((device) => device.gid_table.some((entry) => entry.gid === gid));
}

/** Device and queue pair at the other end. */
export function peerOf(qp) {
  const device = qp.peer_gid ? deviceOfGid(qp.peer_gid) : undefined;
  return device && { device, qp: device.by_qpn.get(qp.peer_qpn) };
}

/** Asks the server something. */
export async function ask(path, options = {}) {
  const response = await fetch(path, options);
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}
