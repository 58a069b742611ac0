// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The last state that the server sent, and rates computed from it.

/** How many samples of each counter are kept. */
const KEPT = 90;

const listeners = new Set();
let source = null;
let paused = false;
// Steps arrive sooner than states: on pause, the next state is still taken, since it belongs to the steps on the page.
let catchesUp = false;
let waiting = null;

/** The state. `rates` has the changes per second of each counter, newest last, by device or switch port. */
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
    // After a reset of the device its counters start from 0 again.
    series.push(Math.max(value - before, 0) / seconds);
    if (series.length > KEPT) series.shift();
  }
}

/** Returns the last rates of a counter, in changes per second. */
export function series(key, name) {
  return now.rates.get(key)?.series.get(name) ?? [];
}

/** Returns the current rate of a counter, in changes per second. */
export function rate(key, name) {
  return series(key, name).at(-1) ?? 0;
}

/** Returns the value of a counter, or 0 if there is none. */
export function counter(counters, name) {
  return (counters ?? []).find(([known]) => known === name)?.[1] ?? 0;
}

/** Returns the key of a device in `rates`. */
export const ofDevice = (device) => `device ${device.name}`;
/** Returns the key of a port of the switch in `rates`. */
export const ofPort = (port) => `port ${port.name}`;
/** Returns how many packets per second a queue pair sends, computed from its PSN. */
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

/** Connects to the server and takes the states that it sends. */
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
    // The server does not accept this page: another server now has its address.
    now.closed = source.readyState === EventSource.CLOSED;
    tell();
  };
}

/** Returns the devices of the newest state, even while the page is paused. */
export const newestDevices = () => (waiting ?? now).devices;

/** Returns whether changes are withheld from the page. */
export function isPaused() {
  return paused;
}

/** Withholds changes from the page, or shows them again. */
export function pause(on) {
  paused = on;
  catchesUp = on;
  if (!on && waiting) { take(waiting); waiting = null; }
  tell();
}

/** Returns the device that has a GID, if it is a device of this vrnicd. */
export function deviceOfGid(gid) {
  return now.devices.find((device) => device.gid_table.some((entry) => entry.gid === gid));
}

/** Returns the device and the queue pair at the other end. */
export function peerOf(qp) {
  const device = qp.peer_gid ? deviceOfGid(qp.peer_gid) : undefined;
  return device && { device, qp: device.by_qpn.get(qp.peer_qpn) };
}

/** Sends a request to the server. */
export async function ask(path, options = {}) {
  const response = await fetch(path, options);
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}
