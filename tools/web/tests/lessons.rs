// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Runs each lesson in a real browser: presses every button, and checks that what is shown is what the text says.

mod common;

use std::ops::{Deref, DerefMut};

use common::browser::Browser;
use common::{Lab, School, exchange, host, picture, program, token};
use serde_json::json;
use vrnic_web::Classroom;
use vrnic_web::lessons::LESSONS;

/// What a step shows: exactly what the programs say, and some of what is drawn.
struct Seen {
    said: &'static [&'static str],
    drawn: &'static [&'static str],
}

const LABELS: &str = "[...document.querySelectorAll('.sequence .step')].map((step) => step.getAttribute('aria-label'))";

/// For each packet of the last drawn message, by position: how many times a packet with its PSN was sent.
const PSNS: &str = "(() => { const sent = [...document.querySelectorAll('.sequence .step')].map((step) => step.getAttribute('aria-label')) \
     .map((label) => label.match(/RDMA WRITE (\\w+) PSN (\\d+)/)).filter(Boolean).map(([, opcode, psn]) => [opcode, Number(psn)]); \
     const first = sent.findLast(([opcode]) => opcode === 'First')[1]; \
     return [0, 1, 2, 3, 4, 5, 6, 7].map((place) => sent.filter(([, psn]) => psn === (first + place) % 0x1000000).length); })()";

/// A browser that shows a lesson.
struct Pupil {
    browser: Browser,
    _school: School,
}

impl Deref for Pupil {
    type Target = Browser;

    fn deref(&self) -> &Browser {
        &self.browser
    }
}

impl DerefMut for Pupil {
    fn deref_mut(&mut self) -> &mut Browser {
        &mut self.browser
    }
}

fn open(name: &str) -> Pupil {
    let school = School::open();
    let mut browser = Browser::start();
    browser.size(1440, 1800);
    browser.open(&school.url);
    // If there are lessons, the page starts with them.
    browser.until("document.querySelector('.lesson')");
    browser.value(&format!("location.hash = 'lessons/{name}'"));
    browser.until(&format!(
        "document.querySelector('nav[aria-label=Lessons] [aria-current]').dataset.name === '{name}'"
    ));
    Pupil {
        browser,
        _school: school,
    }
}

/// Clicks on a step of the diagram as soon as it is drawn.
fn choose(browser: &mut Browser, step: &str) {
    browser.until(&format!(
        "(() => {{ const step = {step}; step?.dispatchEvent(new MouseEvent('click')); return Boolean(step) }})()"
    ));
}

/// Presses the button of a step and checks the results.
fn press(browser: &mut Browser, number: usize, seen: &Seen) {
    let step = format!("document.querySelectorAll('.lesson-step')[{number}]");
    browser.until(&format!(
        "{step}.dataset.turn === 'now' && !{step}.querySelector('.do').disabled"
    ));
    browser.value(&format!("{step}.querySelector('.do').click()"));
    browser.until(&format!(
        "{step}.dataset.turn === 'done' || {step}.querySelector('[role=alert]').textContent"
    ));
    let trouble = browser.value(&format!("{step}.querySelector('[role=alert]').textContent"));
    assert_eq!(trouble, json!(""), "step {number}");
    let said = browser.value(&format!(
        "[...{step}.querySelectorAll('.said li')].map((line) => line.textContent)"
    ));
    let said: Vec<_> = said
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    assert_eq!(said, seen.said, "step {number}");
    // The text explains what happened only after the reader has had a look.
    let why = format!("{step}.querySelector('details')");
    assert_eq!(
        browser.value(&format!("{why}.open")),
        json!(false),
        "step {number}"
    );
    browser.value(&format!("{why}.querySelector('summary').click()"));
    browser.until(&format!("{why}.querySelector('p').checkVisibility()"));
    for wanted in seen.drawn {
        browser.until(&format!(
            "{LABELS}.some((label) => label.includes({}))",
            json!(wanted)
        ));
    }
}

/// Runs a lesson to its end.
fn hold(name: &str, steps: &[Seen]) -> Pupil {
    let mut browser = open(name);
    for (number, seen) in steps.iter().enumerate() {
        press(&mut browser, number, seen);
    }
    end(&mut browser, name, steps.len());
    browser
}

/// Checks that the lesson is over and that its page is in order.
fn end(browser: &mut Browser, name: &str, steps: usize) {
    assert_eq!(
        browser.value("document.querySelectorAll('.lesson-step').length"),
        json!(steps)
    );
    assert_eq!(
        browser.value("document.querySelector('.take-home').hidden"),
        json!(false)
    );
    assert_eq!(browser.errors(), Vec::<String>::new());
    browser.size(1440, 1000);
    browser.value("scrollTo(0, 0)");
    picture(browser, &format!("lesson-{name}"));
}

#[test]
fn a_send_needs_a_receive() {
    let mut browser = open("send");
    let seen = [
        Seen {
            said: &[
                "b posts a receive of 256 bytes to its QP",
                "a posts a request: SEND, 12 bytes",
                "a polls its CQ: SEND, IBV_WC_SUCCESS",
                "b polls its CQ: RECV, IBV_WC_SUCCESS, 12 bytes",
                "b finds in its memory: “Hello from a”",
            ],
            drawn: &[
                "a: SEND 0x0, 12 B",
                "a: SEND Only PSN",
                "b: receive 0x0",
                "b: Acknowledge PSN",
                "CQE RECV 0x0: IBV_WC_SUCCESS",
            ],
        },
        Seen {
            said: &[
                "a posts a request: SEND, 14 bytes",
                "a polls its CQ: nothing",
            ],
            drawn: &["b: RNR NAK, try again in 655.36 ms, PSN"],
        },
        Seen {
            said: &[
                "b posts a receive of 256 bytes to its QP",
                "a polls its CQ: SEND, IBV_WC_SUCCESS",
                "b polls its CQ: RECV, IBV_WC_SUCCESS, 14 bytes",
                "b finds in its memory: “Are you there?”",
            ],
            drawn: &["CQE RECV 0x1: IBV_WC_SUCCESS"],
        },
        Seen {
            said: &[
                "a posts a request: SEND, 21 bytes",
                "a posts a request: SEND, 8 bytes",
                "a polls its CQ: IBV_WC_RNR_RETRY_EXC_ERR",
                "a polls its CQ: IBV_WC_WR_FLUSH_ERR",
            ],
            drawn: &[
                "IBV_WC_RNR_RETRY_EXC_ERR",
                "IBV_WC_WR_FLUSH_ERR",
                "a: RTS → ERR",
            ],
        },
    ];
    press(&mut browser, 0, &seen[0]);
    press(&mut browser, 1, &seen[1]);
    // As the text says, the same packet is sent again and again.
    browser.until(&format!(
        "(() => {{ const sent = {LABELS}.filter((label) => label.startsWith('a: SEND Only')); \
         return sent.filter((label) => label === sent.at(-1)).length >= 3 }})()"
    ));
    browser.size(1440, 1000);
    browser.value("scrollTo(0, 0)");
    picture(&mut browser, "lesson");
    browser.dark(true);
    picture(&mut browser, "lesson-dark");
    browser.dark(false);
    browser.size(1440, 1800);
    press(&mut browser, 2, &seen[2]);
    press(&mut browser, 3, &seen[3]);
    // A click on an error shows the states as they were, next to the text at any scroll position.
    let error = "[...document.querySelectorAll('.sequence .step')].find((step) => step.getAttribute('aria-label').includes('RNR_RETRY_EXC'))";
    choose(&mut browser, error);
    browser.until("document.querySelector('#step').textContent.includes('state thenRTS → ERR')");
    browser.until("document.querySelector('#step').textContent.includes('peer posted no receive, and no retries are left')");
    let in_sight = |one: &str| {
        format!(
            "(() => {{ const {{ top, bottom }} = {one}.getBoundingClientRect(); return top >= 0 && bottom <= innerHeight && bottom > top }})()"
        )
    };
    browser.size(1440, 900);
    browser.value("scrollTo(0, 300)");
    browser.until(&in_sight("document.querySelector('#step')"));
    browser.value("scrollTo(0, 0)");
    picture(&mut browser, "lesson-step");
    end(&mut browser, "send", 4);
    // A page that is opened after another was left starts over.
    browser.value("location.hash = 'lessons/write'");
    browser.until("document.querySelector('.lesson-step').dataset.turn === 'now'");
}

#[test]
fn a_write_is_seen_by_nobody() {
    hold(
        "write",
        &[
            Seen {
                said: &[
                    "b finds in its memory: only zeros",
                    "a posts a request: RDMA WRITE, 10 bytes",
                    "a polls its CQ: RDMA WRITE, IBV_WC_SUCCESS",
                    "b polls its CQ: nothing",
                    "b finds in its memory: “a was here”",
                ],
                drawn: &[
                    "a: RDMA WRITE Only PSN",
                    "a: CQE RDMA WRITE 0x0: IBV_WC_SUCCESS",
                ],
            },
            Seen {
                said: &[
                    "b posts a receive of 256 bytes to its QP",
                    "a posts a request: RDMA WRITE with IMM, 23 bytes",
                    "a polls its CQ: RDMA WRITE, IBV_WC_SUCCESS",
                    "b polls its CQ: RECV RDMA WRITE with IMM, IBV_WC_SUCCESS, 23 bytes, immediate 42",
                    "b finds in its memory: “a was here, and says so”",
                ],
                drawn: &[
                    "b: receive 0x0",
                    "b: CQE RECV RDMA WRITE with IMM 0x0: IBV_WC_SUCCESS",
                ],
            },
            Seen {
                said: &[
                    "a posts a request: RDMA READ, 19 bytes",
                    "a polls its CQ: RDMA READ, IBV_WC_SUCCESS",
                    "b polls its CQ: nothing",
                    "a finds in its memory: “b wrote this itself”",
                ],
                drawn: &["a: RDMA READ Request PSN", "b: RDMA READ Response Only PSN"],
            },
        ],
    );
}

#[test]
fn a_wrong_key_ends_a_connection() {
    let mut browser = hold(
        "rkey",
        &[
            Seen {
                said: &[
                    "a posts a request: RDMA WRITE, 13 bytes",
                    "a polls its CQ: RDMA WRITE, IBV_WC_SUCCESS",
                    "b finds in its memory: “The right key”",
                ],
                drawn: &["a: RDMA WRITE Only PSN"],
            },
            Seen {
                said: &[
                    "a posts a request: RDMA WRITE, 20 bytes",
                    "a polls its CQ: IBV_WC_REM_ACCESS_ERR",
                    "b gets an asynchronous event: IBV_EVENT_QP_ACCESS_ERR",
                    "b finds in its memory: “The right key”",
                ],
                drawn: &[
                    "b: NAK: remote access error, PSN",
                    "b: event IBV_EVENT_QP_ACCESS_ERR",
                    "a: RTS → ERR",
                    "b: RTS → ERR",
                ],
            },
            Seen {
                said: &[
                    "a posts a request: RDMA WRITE, 19 bytes",
                    "a polls its CQ: IBV_WC_WR_FLUSH_ERR",
                    "b finds in its memory: “The right key”",
                ],
                drawn: &["IBV_WC_WR_FLUSH_ERR"],
            },
            Seen {
                said: &[
                    "a posts a request: RDMA WRITE, 20 bytes",
                    "a polls its CQ: IBV_WC_REM_ACCESS_ERR",
                    "b gets an asynchronous event: IBV_EVENT_QP_ACCESS_ERR",
                    "b finds in its memory: only zeros",
                ],
                drawn: &["b: NAK: remote access error, PSN"],
            },
        ],
    );
    // As the text promises for the last NAK.
    let nak = "[...document.querySelectorAll('.sequence .step')].find((step) => step.getAttribute('aria-label').startsWith('b: NAK'))";
    choose(&mut browser, nak);
    browser.until("document.querySelector('#step').textContent.includes('remote access exceeds its memory region')");
    browser.until(
        "document.querySelector('#step').textContent.includes('memory region: 16384 bytes at 0x')",
    );
}

#[test]
fn a_lost_packet_is_made_up_for() {
    let mut browser = open("loss");
    let armed = |device: &str, nth: u32| {
        format!("{device} (a fault is armed at its RNIC: drop type=rc opcode=request nth={nth})")
    };
    let posts = |device: &str| format!("{device} posts a request: RDMA WRITE, 8192 bytes");
    let polls = |device: &str| format!("{device} polls its CQ: RDMA WRITE, IBV_WC_SUCCESS");
    let leak = |lines: Vec<String>| -> &'static [&'static str] {
        Vec::leak(lines.into_iter().map(|line| &*String::leak(line)).collect())
    };
    let sent = |browser: &mut Browser| -> Vec<u64> {
        let counts = browser.value(PSNS);
        counts
            .as_array()
            .unwrap()
            .iter()
            .map(|count| count.as_u64().unwrap())
            .collect()
    };
    let seen = |lines, drawn| Seen {
        said: leak(lines),
        drawn,
    };
    press(
        &mut browser,
        0,
        &seen(
            vec![posts("c"), polls("c")],
            &[
                "c: RDMA WRITE First PSN",
                "d: Acknowledge PSN",
                "CQE RDMA WRITE 0x0",
            ],
        ),
    );
    assert_eq!(sent(&mut browser), [1; 8]);
    press(
        &mut browser,
        1,
        &seen(
            vec![armed("c", 3), posts("c"), polls("c")],
            &[
                "1.02 kB [drop], lost",
                "d: NAK: PSN sequence error, PSN",
                "CQE RDMA WRITE 0x1",
            ],
        ),
    );
    let counts = sent(&mut browser);
    assert!(
        counts[..2] == [1, 1] && counts[2..4] == [2, 2],
        "go-back-N: {counts:?}"
    );
    press(
        &mut browser,
        2,
        &seen(
            vec![armed("a", 3), posts("a"), polls("a")],
            &["b: NAK: PSN sequence error, PSN", "CQE RDMA WRITE 0x0"],
        ),
    );
    let counts = sent(&mut browser);
    assert_eq!(counts, [1, 1, 2, 1, 1, 1, 1, 1], "selective");
    press(
        &mut browser,
        3,
        &seen(
            vec![armed("a", 8), posts("a"), polls("a")],
            &["CQE RDMA WRITE 0x1"],
        ),
    );
    let counts = sent(&mut browser);
    assert!(counts[7] >= 2, "the last one: {counts:?}");
    end(&mut browser, "loss", 4);
}

#[test]
fn shared_receives_have_a_limit() {
    const POSTS: &str = "b posts a receive of 256 bytes to its SRQ";
    let mut browser = hold(
        "srq",
        &[
            Seen {
                said: &[
                    POSTS,
                    POSTS,
                    POSTS,
                    POSTS,
                    "b sets the limit of its SRQ to 3",
                    "b has an SRQ with 4 receives; the limit is 3",
                ],
                drawn: &[],
            },
            Seen {
                said: &[
                    "a posts a request: SEND, 23 bytes",
                    "a polls its CQ: SEND, IBV_WC_SUCCESS",
                    "b polls its CQ: RECV, IBV_WC_SUCCESS, 23 bytes",
                    "b has no asynchronous event",
                    "b has an SRQ with 3 receives; the limit is 3",
                ],
                drawn: &[" of SRQ "],
            },
            Seen {
                said: &[
                    "a posts a request: SEND, 24 bytes",
                    "a polls its CQ: SEND, IBV_WC_SUCCESS",
                    "b polls its CQ: RECV, IBV_WC_SUCCESS, 24 bytes",
                    "b gets an asynchronous event: IBV_EVENT_SRQ_LIMIT_REACHED",
                    "b has an SRQ with 2 receives; no limit is armed",
                ],
                drawn: &["b: event IBV_EVENT_SRQ_LIMIT_REACHED"],
            },
            Seen {
                said: &[
                    POSTS,
                    POSTS,
                    "b sets the limit of its SRQ to 3",
                    "b has no asynchronous event",
                    "b has an SRQ with 4 receives; the limit is 3",
                ],
                drawn: &[],
            },
        ],
    );
    // The last receive taken left two receives, which reached the limit.
    let receive = "[...document.querySelectorAll('.sequence .step')].findLast((step) => step.getAttribute('aria-label').includes(' of SRQ '))";
    choose(&mut browser, receive);
    browser.until("/SRQ \\d+2 of \\d+ receives left, no limit armed/.test(document.querySelector('#step').textContent)");
}

#[test]
fn a_page_is_brought_in_when_it_is_needed() {
    hold(
        "odp",
        &[
            Seen {
                said: &[
                    "a posts a request: RDMA WRITE, 17 bytes",
                    "b the driver gets an event: page fault",
                    "a polls its CQ: nothing",
                ],
                drawn: &[
                    "b: event page fault, key 0x",
                    "b: RNR NAK, try again in 655.36 ms, PSN",
                ],
            },
            Seen {
                said: &[
                    "b the driver gives the RNIC 1 page(s), from page 0 on",
                    "a polls its CQ: RDMA WRITE, IBV_WC_SUCCESS",
                    "b finds in its memory: “Written on demand”",
                ],
                drawn: &["CQE RDMA WRITE 0x0: IBV_WC_SUCCESS"],
            },
            Seen {
                said: &[
                    "a posts a request: RDMA WRITE, 15 bytes",
                    "a polls its CQ: RDMA WRITE, IBV_WC_SUCCESS",
                    "b has no asynchronous event",
                    "b finds in its memory: “Written at once”",
                ],
                drawn: &["CQE RDMA WRITE 0x1: IBV_WC_SUCCESS"],
            },
            Seen {
                said: &[
                    "b the kernel takes all pages of the region back",
                    "a posts a request: RDMA WRITE, 13 bytes",
                    "b the driver gets an event: page fault",
                    "b the driver gives the RNIC 1 page(s), from page 0 on",
                    "a polls its CQ: RDMA WRITE, IBV_WC_SUCCESS",
                    "b finds in its memory: “Written again”",
                ],
                drawn: &["CQE RDMA WRITE 0x2: IBV_WC_SUCCESS"],
            },
        ],
    );
}

/// A lesson may be left at any step, even with requests that are waiting, and steps cannot be done out of order.
#[test]
fn a_lesson_can_be_left_at_any_step() {
    let classroom = Classroom::open(&program()).unwrap();
    let go = |lesson: &str, step: Option<usize>| {
        let wanted = json!({ "lesson": lesson, "step": step });
        classroom.go_on(&serde_json::from_value(wanted).unwrap())
    };
    for lesson in LESSONS {
        for steps in 0..=lesson.steps.len() {
            go(lesson.name, None).unwrap();
            for step in 0..steps {
                let done = go(lesson.name, Some(step));
                assert!(done.is_ok(), "{} {step}: {done:?}", lesson.name);
            }
        }
    }
    let refused = |lesson, step| format!("{:#}", go(lesson, step).unwrap_err());
    assert!(refused("send", Some(0)).contains("Begin the lesson again"));
    go("send", None).unwrap();
    assert!(refused("send", Some(1)).contains("Begin the lesson again"));
    assert!(refused("send", Some(usize::MAX)).contains("no such step"));
    assert!(refused("</script>", None).contains("no such lesson"));
    classroom.close();
    assert!(refused("send", None).contains("closed"));
}

/// Without lessons there is nothing to post to; with lessons, invalid requests are refused.
#[test]
fn nonsense_is_refused() {
    let post = |url: &str, body: &str| {
        let request = format!(
            "POST /api/lesson HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            host(url),
            token(url),
            body.len()
        );
        exchange(url, &request)
    };
    let school = School::open();
    for body in [
        "",
        "{}",
        "[]",
        r#"{"lesson":1}"#,
        r#"{"lesson":"send","step":-1}"#,
        r#"{"lesson":"send","more":1}"#,
    ] {
        let answer = post(&school.url, body);
        assert!(
            answer.starts_with("HTTP/1.1 502") && answer.contains("no such step"),
            "{body}: {answer}"
        );
    }
    let lab = Lab::start();
    let answer = post(&lab.url, r#"{"lesson":"send","step":null}"#);
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}
