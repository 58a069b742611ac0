// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Builds the page of a report from the figures in it. Nothing here interprets a string as markup.

const { report, charts } = JSON.parse(document.getElementById("data").textContent);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function scaled(value) {
  for (const [unit, factor] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= factor) return `${(value / factor).toPrecision(3)} ${unit}`;
  }
  return `${Number(value.toPrecision(3))} `;
}

function size(bytes) {
  for (const [unit, factor] of [["MiB", 1 << 20], ["KiB", 1 << 10]]) {
    if (bytes >= factor) return `${bytes / factor} ${unit}`;
  }
  return `${bytes} B`;
}

const SHOW = {
  bytes: size,
  bytes_per_second: (value) => `${scaled(value)}B/s`,
  per_second: (value) => `${scaled(value)}/s`.replace(" /", "/"),
  microseconds: (value) => `${Number(value.toPrecision(3))} µs`,
  percent: (value) => `${Number(value.toPrecision(3))} %`,
  count: (value) => `${value}`,
};

/** Powers of 10 from the one below `low` to the one above `high`; at least two. */
function decades(low, high) {
  const first = Math.floor(Math.log10(low));
  const last = Math.max(Math.ceil(Math.log10(high)), first + 1);
  return Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index));
}

/** How a power of 10 is shown, without zeros that say nothing. */
const tick = (show, value) => show(value).replace(/\.0+ /, " ");

const COLOURS = 8;
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [640, 360, 84, 34, 12, 44];

/** A chart whose lines can be left out, and whose points tell their figures. */
function makeChart(chart) {
  const shown = new Set(chart.series);
  const said = el("output", { "aria-live": "polite" }, "Choose a point to see its figure.");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": chart.title });
  const [x, y] = [SHOW[chart.x.unit], SHOW[chart.y.unit]];
  function draw() {
    const points = [...shown].flatMap((series) => series.points);
    const parts = [];
    if (points.length > 0) {
      const bounds = (index) => {
        const all = points.map((point) => point[index]);
        return decades(Math.min(...all), Math.max(...all));
      };
      const [columns, rows] = [bounds(0), bounds(1)];
      const place = (ticks, value) => (Math.log10(value) - Math.log10(ticks[0])) / (Math.log10(ticks.at(-1)) - Math.log10(ticks[0]));
      const px = (value) => LEFT + place(columns, value) * (WIDTH - LEFT - RIGHT);
      const py = (value) => HEIGHT - BOTTOM - place(rows, value) * (HEIGHT - BOTTOM - TOP);
      const power = chart.x.unit === "bytes" ? (value) => `${scaled(value)}B` : x;
      for (const value of columns) {
        parts.push(svg("line", { class: "grid", x1: px(value), x2: px(value), y1: TOP, y2: HEIGHT - BOTTOM }),
          svg("text", { x: px(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, tick(power, value)));
      }
      for (const value of rows) {
        parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: py(value), y2: py(value) }),
          svg("text", { x: LEFT - 6, y: py(value) + 4, "text-anchor": "end" }, tick(y, value)));
      }
      chart.series.forEach((series, index) => {
        if (!shown.has(series)) return;
        const group = svg("g", { class: `c${index % COLOURS}` }, svg("polyline", { points: series.points.map(([a, b]) => `${px(a)},${py(b)}`).join(" ") }));
        for (const [a, b] of series.points) {
          const text = `${series.name}: ${x(a)}, ${y(b)}`;
          const tell = () => { said.textContent = text; };
          group.append(svg("circle", { class: "point", cx: px(a), cy: py(b), r: 4, tabindex: 0, role: "img", "aria-label": text, onfocus: tell, onmouseenter: tell }));
        }
        parts.push(group);
      });
    }
    parts.push(svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, chart.x.title));
    picture.replaceChildren(...parts);
  }
  draw();
  const lines = chart.series.map((series, index) => {
    const box = el("input", { type: "checkbox", onchange: () => { if (box.checked) shown.add(series); else shown.delete(series); draw(); } });
    box.checked = true;
    return el("li", {}, el("label", { class: `c${index % COLOURS}` }, box, el("span", { class: "swatch" }), series.name));
  });
  return el("figure", {}, el("figcaption", {}, chart.title), picture, said, el("ul", { class: "lines" }, ...lines));
}

/** A table that can be sorted by each column, and filtered. Columns are [title, value of a row, how that is shown]. */
function makeTable(id, title, columns, rows) {
  const body = el("tbody");
  let order = null;
  let words = [];
  const cells = (row) => columns.map(([, value, show]) => {
    const found = value(row);
    return found === undefined || found === null ? "" : show ? show(found, row) : `${found}`;
  });
  function draw() {
    const sorted = [...rows];
    if (order) {
      const value = (row) => columns[order.column][1](row);
      const compare = (one, other) => (typeof one === "number" ? one - other : `${one}`.localeCompare(`${other}`));
      // Rows without a value come last in either direction.
      sorted.sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        const missing = (a === undefined || a === null) - (b === undefined || b === null);
        return missing || (order.up ? compare(a, b) : compare(b, a));
      });
    }
    const chosen = sorted.map((row) => ({ row, texts: cells(row) }))
      .filter(({ texts }) => words.every((word) => texts.join(" ").toLowerCase().includes(word)));
    body.replaceChildren(...chosen.map(({ row, texts }) => el("tr", row.exit ? { class: "bad" } : {},
      ...texts.map((text, index) => el("td", columns[index][2] ? { class: "number" } : {}, text)))));
    heads.forEach((head, index) => {
      if (order?.column === index) head.setAttribute("aria-sort", order.up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
  }
  const heads = columns.map(([name, , show], index) => el("th", { scope: "col", ...(show ? { class: "number" } : {}) },
    el("button", { type: "button", onclick: () => { order = { column: index, up: order?.column === index ? !order.up : true }; draw(); } }, name)));
  const filter = el("input", { type: "search", "aria-label": `${title}: only with`, placeholder: "only with …",
    oninput: () => { words = filter.value.toLowerCase().split(/\s+/).filter(Boolean); draw(); } });
  draw();
  return el("section", { id }, el("h2", {}, title), filter, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body)));
}

const main = document.querySelector("main");
const { host, native } = report;
const fact = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, `${value}`));
main.append(el("section", {}, el("h2", {}, "Machine"), el("dl", {}, fact("processor", host.cpu), fact("processors", host.cpus), fact("load at the start", host.load.toFixed(1)),
  fact("guests", host.accelerator), fact("kernel of the VMs", host.vm_kernel), fact("processors of a VM", host.vm_cpus))));
if (charts.length > 0) main.append(el("div", { class: "charts" }, ...charts.map(makeChart)));
const rate = SHOW.bytes_per_second;
const micro = SHOW.microseconds;
main.append(makeTable("results", "Programs in VMs", [
  ["program", (row) => row.program], ["arguments", (row) => row.args], ["device", (row) => row.device], ["path", (row) => row.path], ["fabric", (row) => row.fabric],
  ["message", (row) => row.bytes, size], ["frames lost", (row) => row.loss, (loss) => SHOW.percent(100 * loss)], ["bandwidth", (row) => row.bandwidth_bytes_per_s, rate],
  ["messages", (row) => row.messages_per_s, SHOW.per_second], ["latency", (row) => row.latency_typical_us, micro], ["p99", (row) => row.latency_p99_us, micro],
  ["result", (row) => (row.exit === 0 ? "ok" : `failed (${row.exit}): ${row.error ?? ""}`)],
], report.results));
if (native) {
  const time = (nanoseconds) => micro(nanoseconds / 1000);
  const isTime = (row) => row.p50_ns !== undefined;
  const isBandwidth = (row) => row.what === "bandwidth";
  const perSecond = (value, row) => (isBandwidth(row) ? rate(value * row.bytes) : SHOW.per_second(value));
  // Of several turns, the middle one.
  const ratio = (row) => (row.turns ? row.turns[row.turns.length >> 1] : (row.p50_ns ?? row.per_s) / row.limit);
  main.append(makeTable("native", "The device alone, with native guests", [
    ["fabric", (row) => row.fabric], ["what", (row) => row.what], ["operation", (row) => row.operation], ["message", (row) => row.bytes, size], ["QPs", (row) => row.qps, SHOW.count],
    ["median", (row) => row.p50_ns, time], ["p99", (row) => row.p99_ns, time], ["per second", (row) => row.per_s, perSecond],
    ["limit", (row) => row.limit || undefined, (limit, row) => (isTime(row) ? time(limit) : perSecond(limit, row))],
    ["of the limit", (row) => (row.limit ? ratio(row) : undefined), (value, row) => (isTime(row) ? `${value.toFixed(1)} ×` : `${(100 * value).toFixed(1)} %`)],
  ], native.figures), el("p", { class: "dim" }, "A native guest is a process of the host that uses the device without a VM. The limit is what this machine can do: copy the same bytes with memcpy, "
    + "or pass a cache line from one processor to another. For “watched”, the limit is the same traffic without a watcher; for faults, it is the same traffic without a fault."));
}
