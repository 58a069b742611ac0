// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Lessons: texts whose steps are carried out by real programs, next to a diagram of what their RNICs did.

import { button, el, say } from "./dom.js";
import { ask, isPaused } from "./state.js";
import { timelineView } from "./timeline.js";

/** How to read the diagram. */
const LEGEND = "The outer lines are the programs, the inner ones their RNICs. Time runs down. Each arrow is something that a real device "
  + "has just done: choose one to see its fields. A request of a program is drawn when its RNIC takes it, not when it is posted. The number after an operation is the ID of the work request (wr_id), which the library (libvrnic) chooses here. Statuses are shown without IBV_WC_.";

/** Terms that the lessons and the diagram use. */
const WORDS = [
  ["RNIC", "A network card that does RDMA: remote direct memory access. It moves data between the memories of programs without the kernel."],
  ["work request, wr_id", "What a program asks its RNIC to do. The program gives it a number, the wr_id, by which it recognizes the completion."],
  ["QP", "Queue pair: a send queue and a receive queue, to which a program posts work requests. It is one end of a connection, and has a number (QPN)."],
  ["CQ, CQE", "Completion queue, and an entry of it: the RNIC writes one when a work request is done. It has the wr_id and a status."],
  ["MR, rkey", "Memory region: memory that a program registered for its RNIC. A peer that may access it has to name its remote key, the rkey."],
  ["PD", "Protection domain: QPs can only use MRs of the same PD."],
  ["PSN", "Packet sequence number. It has 24 bits, and each direction of a connection counts its own."],
  ["First, Middle, Last, Only", "Where in its message a packet is. A message that fits in one packet is an Only."],
  ["ACK, NAK", "The answer of the RNIC that got a packet: it acknowledges this packet and all before it, or says what is wrong."],
  ["RNR NAK", "“Receiver not ready”: try again later."],
  ["RESET, INIT, RTR, RTS, ERR", "States of a QP. To connect, a program takes it from RESET by INIT and RTR (ready to receive) to RTS (ready to send). In ERR it executes nothing more."],
  ["SRQ", "Shared receive queue: receives that several QPs take from one queue."],
  ["flush", "What an RNIC does with the requests of a QP in ERR: it completes them with IBV_WC_WR_FLUSH_ERR, without executing them."],
  ["event", "How an RNIC notifies a program of something that does not belong to one work request, or of a new entry in a CQ."],
];

/** Makes a paragraph. Text between two backticks is code. */
function prose(text, attributes = {}) {
  return el("p", attributes, ...text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part)));
}

/** Makes a step: its button, and the results of the step. */
function makeStep(step, number, act) {
  const said = el("ul", { class: "said", "aria-label": "What the programs did and saw" });
  const trouble = el("p", { class: "bad", role: "alert" });
  const why = el("details", {}, el("summary", {}, "What happened, and why"), prose(step.after));
  const done = el("div", { class: "outcome", "aria-live": "polite", hidden: true }, said, why);
  const press = button(step.button, act, { class: "do" });
  const element = el("li", { class: "lesson-step" }, el("h3", {}, `Step ${number + 1}`, el("span", { class: "title" }, `: ${step.button}`)), prose(step.before),
    el("pre", { class: "calls", "aria-label": "What the programs call" }, step.calls), prose(step.look, { class: "look" }), press, trouble, done);
  return {
    element,
    /** Shows whether the step is done, is next, or comes later. */
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

/** Makes one lesson. */
function makeLesson(lesson, following) {
  const timeline = timelineView({ embedded: true });
  const trouble = el("p", { class: "bad", role: "alert" });
  const again = button("Begin again", () => go(null));
  const end = el("section", { class: "panel take-home", hidden: true }, el("h2", {}, "Summary"), prose(lesson.lesson),
    following ? el("p", {}, el("a", { href: `#lessons/${following.name}` }, `Next: ${following.title}`)) : null);
  let connection = null;
  let next = 0;
  let busy = false;
  const steps = lesson.steps.map((step, number) => makeStep(step, number, () => go(number)));
  const text = el("div", { class: "lesson-text" },
    el("section", { class: "panel" }, el("h2", {}, lesson.title), ...lesson.about.map((part) => prose(part)), trouble, el("p", {}, again)),
    el("ol", { class: "steps" }, ...steps.map((step) => step.element)), end);
  const words = el("details", { class: "words" }, el("summary", {}, "How to read the diagram, and what the terms mean"), prose(LEGEND), el("dl", {}, ...WORDS.flatMap(([word, meaning]) => [el("dt", {}, word), el("dd", {}, meaning)])));
  const element = el("div", { class: "lesson" }, text, el("div", { class: "lesson-view" }, words, timeline.element));

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

/** Makes the view. */
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
