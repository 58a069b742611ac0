// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Lessons: a text whose steps real programs do, and beside it what their RNICs did.

import { button, el, say } from "./dom.js";
import { ask, isPaused } from "./state.js";
import { timelineView } from "./timeline.js";

/** How to read the picture. */
const LEGEND = "The outer lines are the programs, the inner ones their RNICs. Time runs down. Each arrow is something that a real device "
  + "did just now: choose one to see its fields. The number behind an operation is the name of the work request (wr_id).";

/** Text in which what stands between two backticks is code. */
function prose(text, attributes = {}) {
  return el("p", attributes, ...text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part)));
}

/** A step: its button, and what is to be seen. */
function makeStep(step, number, act) {
  const said = el("ul", { class: "said", "aria-label": "What the programs did and saw" });
  const trouble = el("p", { class: "bad", role: "alert" });
  const why = el("details", {}, el("summary", {}, "What happened, and why"), prose(step.after));
  const done = el("div", { class: "outcome", "aria-live": "polite", hidden: true }, said, why);
  const press = button(step.button, act, { class: "do" });
  const element = el("li", { class: "lesson-step" }, el("h3", {}, `Step ${number + 1}`, el("span", { class: "title" }, `: ${step.button}`)), prose(step.before),
    el("pre", { class: "calls", "aria-label": "What a program calls" }, step.calls), prose(step.look, { class: "look" }), press, trouble, done);
  return {
    element,
    /** Shows that it is its turn, or not yet, or that it is done. */
    setTurn(turn, busy) {
      element.dataset.turn = turn;
      press.disabled = turn !== "now" || busy;
      done.hidden = turn !== "done";
    },
    tell(lines) {
      said.replaceChildren(...lines.map((line) => el("li", {}, el("b", {}, line.who), ` ${line.text}`)));
    },
    fail(text) { say(trouble, text); },
  };
}

/** One lesson. */
function makeLesson(lesson, following) {
  const timeline = timelineView({ embedded: true });
  const trouble = el("p", { class: "bad", role: "alert" });
  const again = button("Begin again", () => go(null));
  const end = el("section", { class: "panel take-home", hidden: true }, el("h2", {}, "To take home"), prose(lesson.lesson),
    following ? el("p", {}, el("a", { href: `#lessons/${following.name}` }, `Next: ${following.title}`)) : null);
  let connection = null;
  let next = 0;
  let busy = false;
  const steps = lesson.steps.map((step, number) => makeStep(step, number, () => go(number)));
  const text = el("div", { class: "lesson-text" },
    el("section", { class: "panel" }, el("h2", {}, lesson.title), ...lesson.about.map((part) => prose(part)), trouble, el("p", {}, again)),
    el("ol", { class: "steps" }, ...steps.map((step) => step.element)), end);
  const element = el("div", { class: "lesson" }, text, el("div", { class: "lesson-view" }, prose(LEGEND, { class: "dim" }), timeline.element));

  function renew() {
    steps.forEach((step, number) => step.setTurn(number < next ? "done" : number === next ? "now" : "later", busy));
    again.disabled = busy;
    end.hidden = next < steps.length;
    if (connection) timeline.update([connection]);
  }

  async function go(number) {
    busy = true;
    if (isPaused()) document.getElementById("pause").click();
    const report = number === null ? (problem) => say(trouble, problem) : steps[number].fail;
    report("");
    renew();
    try {
      const done = await ask("/api/lesson", { method: "POST", body: JSON.stringify({ lesson: lesson.name, step: number }) });
      connection = done.connection;
      next = number === null ? 0 : number + 1;
      if (number !== null) steps[number].tell(done.said);
    } catch (error) {
      report(error.message);
    }
    busy = false;
    renew();
    if (number !== null) steps[number].element.scrollIntoView({ block: "nearest", behavior: "auto" });
  }

  go(null);
  return { element, renew };
}

/** The view. */
export function lessonsView() {
  const list = el("nav", { class: "chooser", "aria-label": "Lessons" });
  const place = el("div");
  const trouble = el("p", { class: "bad", role: "alert" });
  const element = el("div", { class: "lessons" }, list, trouble, place);
  let lessons = null;
  let shown = null;
  let wanted = null;
  ask("/api/lessons").then((all) => {
    lessons = all;
    list.append(...all.map((lesson, number) => el("a", { href: `#lessons/${lesson.name}`, "data-name": lesson.name }, `${number + 1}. ${lesson.title}`)));
    update(wanted ?? []);
  }, (error) => say(trouble, error.message));

  function update(details) {
    wanted = details;
    if (!lessons) return;
    const index = Math.max(lessons.findIndex((lesson) => lesson.name === details[0]), 0);
    if (shown?.index !== index) {
      shown = { index, ...makeLesson(lessons[index], lessons[index + 1]) };
      place.replaceChildren(shown.element);
      scrollTo(0, 0);
      for (const link of list.children) {
        if (link.dataset.name === lessons[index].name) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
    }
    shown.renew();
  }
  return { element, update };
}
