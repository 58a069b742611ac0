// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The frame of the page: the views, pause, colours, and the state of the connection to the server.

import { el, say } from "./dom.js";
import { connect, isPaused, listen, now, pause } from "./state.js";
import { mapView } from "./map.js";
import { objectsView } from "./objects.js";
import { failuresView } from "./failures.js";
import { actionsView } from "./actions.js";
import { timelineView } from "./timeline.js";
import { lessonsView } from "./lessons.js";

const VIEWS = [
  { name: "map", title: "Map", make: mapView },
  { name: "objects", title: "Objects", make: objectsView },
  { name: "timeline", title: "Timeline", make: timelineView },
  { name: "failures", title: "Failures", make: failuresView },
  { name: "actions", title: "Actions", make: actionsView },
  { name: "lessons", title: "Lessons", make: lessonsView, there: () => now.lessons },
];
const THEMES = ["system", "light", "dark"];

const main = document.getElementById("view");
const tabs = document.getElementById("tabs");
let shown = null;

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    // An address that was typed by hand may not be a valid encoding.
    return text;
  }
}

const isThere = (view) => view.there?.() ?? true;

/**
 * Returns the view that the address names as `#NAME/DETAIL/…`, with its decoded details. Without a valid name, this is
 * the view of lessons if the server has any, else the map.
 */
function place() {
  const [name, ...details] = location.hash.slice(1).split("/").map(decode);
  const first = VIEWS.find((view) => view.name === (now.lessons ? "lessons" : "map"));
  return { view: VIEWS.find((view) => view.name === name && isThere(view)) ?? first, details };
}

function show() {
  for (const tab of tabs.children) tab.hidden = !isThere(VIEWS.find((view) => view.name === tab.dataset.name));
  const { view, details } = place();
  if (shown?.view !== view) {
    shown = { view, ...view.make() };
    main.replaceChildren(shown.element);
    document.title = `${view.title} – vrnic`;
    for (const tab of tabs.children) {
      if (tab.dataset.name === view.name) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
  }
  shown.update(details);
}

function tellConnection() {
  const lost = now.at === null ? "connecting…"
    : now.closed ? "closed: open the last address that vrnicctl web printed" : "connection lost, trying again";
  const status = !now.connected ? lost : isPaused() ? "paused" : "live";
  const connection = document.getElementById("connection");
  say(connection, status);
  connection.className = status.split(" ")[0].replace(/[^a-z]/g, "");
  const problem = document.getElementById("problem");
  problem.hidden = !now.error;
  say(problem, now.error ?? "");
}

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  say(document.getElementById("theme"), `Theme: ${theme}`);
  localStorage.setItem("theme", theme);
}

VIEWS.forEach((view, index) => {
  tabs.append(el("a", { href: `#${view.name}`, "data-name": view.name, title: `${view.title} (key ${index + 1})` }, view.title));
});
const pauseButton = document.getElementById("pause");
function togglePause() {
  pause(!isPaused());
  pauseButton.setAttribute("aria-pressed", String(isPaused()));
}
pauseButton.addEventListener("click", togglePause);
document.getElementById("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme ?? "system";
  setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
});
addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const view = VIEWS[Number(event.key) - 1];
  if (view && isThere(view)) location.hash = view.name;
  else if (event.key === "p") togglePause();
});
addEventListener("hashchange", show);
setTheme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
listen(() => { tellConnection(); show(); });
tellConnection();
show();
connect();
