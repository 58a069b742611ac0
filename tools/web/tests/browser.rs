// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Tests the page in a real browser, headless Chromium, with a real vrnicd whose guests are played by this program.

mod common;

use std::os::fd::AsFd;
use std::time::Duration;

use common::browser::Browser;
use common::{Lab, Stage, picture};
use serde_json::json;
use vrnic_native::daemon::Fabric;
use vrnicd::capture::Choice;
use vrnicd::control::client::Client;

#[test]
fn the_map_shows_devices_and_their_traffic() {
    let mut lab = Lab::on(Fabric::Roce, 3);
    let mut browser = Browser::start();
    browser.open(&lab.url);
    lab.traffic(Duration::from_secs(3));
    browser.until("document.querySelectorAll('.card[data-status=up]').length === 2");
    browser.until("document.querySelector('.edge .label').textContent.startsWith('3 connections')");
    lab.traffic(Duration::from_secs(2));
    browser.until("document.querySelector('.flow.on')");
    assert_eq!(
        browser.value("location.search"),
        json!(""),
        "the token stays out of the history"
    );
    browser.until("document.querySelectorAll('.grid li').length === 2");
    assert_eq!(
        browser.value(
            "[...document.querySelectorAll('.map .vm text')].map((text) => text.textContent)"
        ),
        json!(["VM 1", "VM 2"])
    );
    picture(&mut browser, "map");
    browser.dark(true);
    picture(&mut browser, "map-dark");
    // With the keyboard only.
    browser.key("2");
    browser.until("document.querySelector('nav.chooser a')");
    browser.dark(false);
    lab.traffic(Duration::from_secs(2));
    browser.until("document.querySelectorAll('.memory li').length === 1");
    picture(&mut browser, "objects");
    let link = "[...document.querySelectorAll('td a')].find((link) => link.textContent !== '1')";
    browser.value(&format!("{link}.click()"));
    browser.until("document.querySelector('.machine .lit text')?.textContent === 'RTS'");
    all_is_named(&mut browser);
    picture(&mut browser, "qp");
    // Each guest writes to the start of its peer's region.
    browser.value("location.hash = 'objects/1'");
    browser.until("performance.getEntriesByType('resource').filter((one) => one.name.includes('/api/trace')).length > 0");
    lab.traffic(Duration::from_secs(3));
    browser.until("document.querySelector('.extent-map .hot')?.getAttribute('x') === '0'");
    assert_eq!(
        browser.value("document.querySelectorAll('.extent-map .hot').length"),
        json!(1)
    );
    picture(&mut browser, "memory");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn the_timeline_tells_the_story_of_a_connection() {
    let mut lab = Lab::start();
    let mut browser = Browser::start();
    browser.open(&lab.url);
    browser.until("document.querySelectorAll('.card').length === 2");
    browser.key("3");
    browser.until("document.querySelector('#connection-choice option')");
    // The devices trace from the first request on.
    browser.until("performance.getEntriesByType('resource').filter((one) => one.name.includes('/api/trace')).length > 1");
    // High enough that all steps are drawn at once.
    browser.size(1280, 1400);
    lab.story();
    let labels = "[...document.querySelectorAll('.sequence .step')].map((step) => step.getAttribute('aria-label'))";
    browser.until(&format!(
        "{labels}.some((label) => label.includes('CQE RDMA WRITE 0x3: IBV_WC_REM_ACCESS_ERR'))"
    ));
    let seen = browser.value(labels);
    let seen: Vec<_> = seen
        .as_array()
        .unwrap()
        .iter()
        .map(|label| label.as_str().unwrap())
        .collect();
    // Each step appears once, in the order of events. libvrnic assigns the wr_ids, by numbering requests.
    let mut rest = seen.iter();
    for wanted in [
        "0: SEND 0x0, 256 B",
        "0: SEND Only PSN",
        "1: receive 0x0",
        "0: CQE SEND 0x0: IBV_WC_SUCCESS",
        "0: RDMA WRITE 0x1, 4.10 kB",
        "0: RDMA WRITE Only PSN",
        "1: Acknowledge PSN",
        "0: CQE RDMA WRITE 0x1: IBV_WC_SUCCESS",
        "0: RDMA READ 0x2",
        "0: RDMA READ Request PSN",
        "1: RDMA READ Response Only PSN",
        "0: CQE RDMA READ 0x2: IBV_WC_SUCCESS",
        "0: RDMA WRITE 0x3, 64 B",
        "1: NAK: remote access error, PSN",
        "0: CQE RDMA WRITE 0x3: IBV_WC_REM_ACCESS_ERR",
    ] {
        assert!(
            rest.any(|label| label.starts_with(wanted)),
            "{wanted}: {seen:#?}"
        );
    }
    browser.value("document.getElementById('view').focus()");
    browser.value("[...document.querySelectorAll('button')].find((button) => button.textContent === 'Next error').click()");
    browser.until("document.querySelector('#step').textContent.includes('no memory region has the remote key')");
    let step = browser.value("document.querySelector('#step').textContent");
    assert!(step.as_str().unwrap().contains("syndrome (AETH)"), "{step}");
    // Also checks its bytes: an acknowledgement of a reliable connection, with a NAK syndrome.
    let bytes = browser.value(HEADERS);
    assert_eq!(bytes[0], json!(["BTH", "11", "OpCode", "0x11"]), "{bytes}");
    assert_eq!(
        bytes[7],
        json!(["AETH", "62", "syndrome", "0x62"]),
        "{bytes}"
    );
    assert_eq!(bytes.as_array().unwrap().len(), 9, "{bytes}");
    // The states of both ends as they were at the NAK: the sender of the NAK went to ERR with it, the other end later.
    assert!(
        step.as_str()
            .unwrap()
            .contains("state thenRTSrequests under way1 (0x3)"),
        "{step}"
    );
    assert!(
        step.as_str().unwrap().contains("state thenRTS → ERR"),
        "{step}"
    );
    // Also shows the region that the key almost matches: only the key's last byte differs.
    let key = lab.key();
    let region = format!(
        "key {:#x}memory region, whose key is {key:#x}: 1048576 bytes at",
        key ^ 1
    );
    assert!(step.as_str().unwrap().contains(&region), "{step}");
    // Its completion is shown with its queue, and with the reason for the NAK.
    browser.value("[...document.querySelectorAll('button')].find((button) => button.textContent === 'Next error').click()");
    browser.until("document.querySelector('#step h2').textContent.includes('CQE RDMA WRITE')");
    let step = browser.value("document.querySelector('#step').textContent");
    assert!(
        step.as_str().unwrap().contains(" not polled, not armed"),
        "{step}"
    );
    assert!(step.as_str().unwrap().contains(&region), "{step}");
    browser.value("[...document.querySelectorAll('.sequence .step')].find((step) => step.ariaLabel.includes('NAK:')).dispatchEvent(new Event('click'))");
    browser.until("document.querySelector('#step h2').textContent.includes('NAK:')");
    assert_eq!(
        browser.value("document.getElementById('connection').textContent"),
        json!("paused")
    );
    all_is_named(&mut browser);
    browser.size(1280, 1560);
    browser.value("scrollTo(0, 0)");
    picture(&mut browser, "timeline");
    browser.dark(true);
    picture(&mut browser, "timeline-dark");
    browser.dark(false);
    browser.size(1280, 900);
    // Pictures only the description of the step.
    browser.value("document.querySelector('#step').previousElementSibling.hidden = true");
    picture(&mut browser, "step");
    browser.value("document.querySelector('#step').previousElementSibling.hidden = false");
    browser.size(1280, 1560);
    // The diagram fills the visible area, even after the window has grown.
    browser.until(
        "Math.abs(document.querySelector('.sequence').getBoundingClientRect().height - document.querySelector('.scroller').clientHeight) < 2",
    );
    browser.dark(true);
    // Filters some steps.
    browser.value("(() => { const box = document.querySelector('#timeline-filter'); box.value = '0x1'; box.dispatchEvent(new Event('input')) })()");
    browser.until(&format!("{labels}.length === 2"));
    browser.value("(() => { const box = document.querySelector('#timeline-filter'); box.value = ''; box.dispatchEvent(new Event('input')) })()");
    browser.value("[...document.querySelectorAll('button')].find((button) => button.textContent === 'To scale').click()");
    browser.until(&format!("{labels}.length > 1"));
    picture(&mut browser, "timeline-to-scale");
    browser.value("location.hash = 'failures'");
    browser.until("document.querySelectorAll('main tbody tr').length >= 3");
    browser.dark(false);
    picture(&mut browser, "failures");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn actions_do_what_their_command_lines_do() {
    let lab = Lab::start();
    let mut browser = Browser::start();
    browser.open(&lab.url);
    browser.until("document.querySelectorAll('.card[data-status=up]').length === 2");
    browser.key("5");
    browser.until("document.querySelector('.action code')");
    let press = |title: &str| {
        format!(
            "[...document.querySelectorAll('main button')].find((button) => button.textContent === '{title}').click()"
        )
    };
    let line = browser.value("document.querySelector('.action code').textContent");
    assert!(line.as_str().unwrap().ends_with(" link 0 down"), "{line}");
    browser.value(&press("Take the link down"));
    browser.until("document.querySelector('main').textContent.includes('The link is down.')");
    let mut client = Client::connect(&lab.daemon.control()).unwrap();
    let links = |client: &mut Client| -> Vec<String> {
        client
            .devices()
            .unwrap()
            .into_iter()
            .map(|device| device.link)
            .collect()
    };
    assert_eq!(links(&mut client), ["down", "up"]);
    browser.value(&press("Bring the link up"));
    browser.until("document.querySelector('main').textContent.includes('The link is up.')");
    assert_eq!(links(&mut client), ["up", "up"]);
    // The configuration of this vrnicd does not allow faults, and the page reports that.
    browser.value(&press("Arm the fault"));
    browser.until("document.querySelector('main').textContent.includes('faults = true')");
    picture(&mut browser, "actions");
    let errors = browser.errors();
    assert!(
        errors.iter().all(|error| error.contains("502")),
        "{errors:?}"
    );
}

#[test]
fn a_capture_is_drawn_like_what_happens_now() {
    let mut lab = Lab::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("story.pcapng");
    let file = std::fs::File::create(&path).unwrap();
    let mut client = Client::connect(&lab.daemon.control()).unwrap();
    let capture = client
        .start_capture(Choice::default(), "story", file.as_fd())
        .unwrap();
    lab.story();
    client.stop_capture(capture.id).unwrap();
    let mut browser = Browser::start();
    browser.open(&lab.url);
    browser.until("document.querySelectorAll('.card').length === 2");
    browser.key("3");
    browser.until("document.querySelector('#connection-choice option')");
    let root = browser.call("DOM.getDocument", json!({}))["root"]["nodeId"].clone();
    let input = browser.call(
        "DOM.querySelector",
        json!({ "nodeId": root, "selector": "#capture-file" }),
    );
    browser.call(
        "DOM.setFileInputFiles",
        json!({ "files": [path], "nodeId": input["nodeId"] }),
    );
    let labels = "[...document.querySelectorAll('.sequence .step')].map((step) => step.getAttribute('aria-label'))";
    browser.until(&format!("{labels}.length > 10"));
    let status = browser.value("document.querySelector('#view [role=status]').textContent");
    let status = status.as_str().unwrap();
    assert!(
        status.starts_with("story.pcapng: 1 connection, ") && status.contains(" 1 NAK;"),
        "{status}"
    );
    let own = format!("::ffff:10.77.0.1 QP {}", lab.ends[0].qps[0].qpn());
    let choice = browser.value("document.querySelector('#connection-choice').value");
    assert!(choice.as_str().unwrap().starts_with(&own), "{choice}");
    browser.value("[...document.querySelectorAll('button')].find((button) => button.textContent === 'Next error').click()");
    browser.until(
        "document.querySelector('#step h2').textContent.includes('NAK: remote access error')",
    );
    let step = browser.value("document.querySelector('#step').textContent");
    assert!(
        step.as_str()
            .unwrap()
            .contains("A capture contains only packets"),
        "{step}"
    );
    assert!(step.as_str().unwrap().contains(" s since 1970"), "{step}");
    let bytes = browser.value(HEADERS);
    assert_eq!(
        bytes[7],
        json!(["AETH", "62", "syndrome", "0x62"]),
        "{bytes}"
    );
    picture(&mut browser, "capture");
    std::fs::write(&path, "no capture").unwrap();
    browser.call(
        "DOM.setFileInputFiles",
        json!({ "files": [path], "nodeId": input["nodeId"] }),
    );
    browser.until("document.querySelector('main').textContent.includes('this is neither a capture (pcapng or pcap)')");
}

#[test]
fn rnics_of_a_vm_are_together() {
    let stage = Stage::start("one");
    let mut browser = Browser::start();
    browser.open(&stage.url);
    let devices = json!([
        { "name": "a", "vm": 1 }, { "name": "b", "vm": 2 }, { "name": "idle", "vm": null }, { "name": "c", "vm": 1 },
        { "name": "d", "vm": 3 },
    ]);
    let layout = browser.value(&format!(
        "import('/map.js').then((map) => map.layout({devices})).then(({{ places, frames, height }}) => ({{ places: Object.fromEntries(places), frames, height }}))"
    ));
    let place = |name: &str| &layout["places"][name];
    let top = |name: &str| place(name)["y"].as_u64().unwrap();
    // a and c are in the frame of VM 1; the others are in the other column.
    assert_eq!(place("a")["x"], place("c")["x"], "{layout}");
    assert!(top("a") < top("c"), "{layout}");
    assert_eq!(place("b")["column"], json!(1), "{layout}");
    assert_eq!(place("idle")["column"], json!(1), "{layout}");
    assert!(top("b") < top("idle"), "{layout}");
    let frames = layout["frames"].as_array().unwrap();
    let vms: Vec<_> = frames
        .iter()
        .map(|frame| frame["vm"].as_u64().unwrap())
        .collect();
    assert_eq!(vms, [1, 2, 3], "{layout}");
    for name in ["a", "c"] {
        let (y, end) = (frames[0]["y"].as_u64(), frames[0]["height"].as_u64());
        assert!(y < Some(top(name)) && Some(top(name)) < end, "{layout}");
    }
}

/// JavaScript for header, bytes, field and value in each row of the table with the chosen packet's bytes.
const HEADERS: &str = "[...document.querySelectorAll('#step .headers tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))";

#[test]
fn every_header_is_taken_apart() {
    let stage = Stage::start("one");
    let mut browser = Browser::start();
    browser.open(&stage.url);
    let bth = |opcode: &str| format!("{opcode}f0fffe8000001280000011");
    for (opcode, more, wanted) in [
        ("04", "", json!([])),
        (
            "0b",
            "00007f00000010000000beef000020000000002a",
            json!([
                [
                    "RETH",
                    "00 00 7f 00 00 00 10 00",
                    "virtual address",
                    "0x7f0000001000"
                ],
                ["RETH", "00 00 be ef", "R_Key", "0xbeef"],
                ["RETH", "00 00 20 00", "DMA length", "8192"],
                ["ImmDt", "00 00 00 2a", "immediate", "0x2a"],
            ]),
        ),
        // UC has the same operations.
        (
            "25",
            "00000001",
            json!([["ImmDt", "00 00 00 01", "immediate", "0x1"]]),
        ),
        (
            "12",
            "1f000003ffffffffffffffff",
            json!([
                ["AETH", "1f", "syndrome", "0x1f"],
                ["AETH", "00 00 03", "MSN", "3"],
                [
                    "AtomicAckETH",
                    "ff ff ff ff ff ff ff ff",
                    "original data",
                    "0xffffffffffffffff"
                ],
            ]),
        ),
        (
            "64",
            "8001000000000001",
            json!([
                ["DETH", "80 01 00 00", "Q_Key", "0x80010000"],
                ["DETH", "00", "reserved", "0x0"],
                ["DETH", "00 00 01", "SrcQP", "1"],
            ]),
        ),
        // Requests of XRC have an additional header.
        (
            "a5",
            "0000000900000001",
            json!([
                ["XRCETH", "00", "reserved", "0x0"],
                ["XRCETH", "00 00 09", "XRCSRQ", "9"],
                ["ImmDt", "00 00 00 01", "immediate", "0x1"],
            ]),
        ),
        (
            "b1",
            "1f000001",
            json!([
                ["AETH", "1f", "syndrome", "0x1f"],
                ["AETH", "00 00 01", "MSN", "1"]
            ]),
        ),
        // Unknown headers, and headers that are cut short.
        ("81", "0000", json!([["rest", "00 00", "", ""]])),
        ("11", "62", json!([["AETH", "62", "syndrome", "0x62"]])),
    ] {
        let digits = bth(opcode) + more;
        let rows = browser.value(&format!(
            "import('/headers.js').then((headers) => headers.fields('{digits}'))"
        ));
        let rows = rows.as_array().unwrap();
        let first = [
            json!([
                "BTH",
                opcode,
                "OpCode",
                format!("{:#x}", u8::from_str_radix(opcode, 16).unwrap())
            ]),
            json!(["BTH", "f0", "SE, MigReq, PadCnt, TVer", "1, 1, 3, 0"]),
            json!(["BTH", "ff fe", "P_Key", "0xfffe"]),
            json!(["BTH", "80", "FECN, BECN", "1, 0"]),
            json!(["BTH", "00 00 12", "DestQP", "18"]),
            json!(["BTH", "80", "AckReq", "1"]),
            json!(["BTH", "00 00 11", "PSN", "17"]),
        ];
        assert_eq!(rows[..7], first, "{digits}");
        assert_eq!(json!(rows[7..]), wanted, "{digits}");
    }
}

/// Contrast of texts and lines as defined by WCAG 2: at least 4.5 for texts, 3 for lines.
#[test]
fn colours_can_be_told_apart_in_light_and_in_dark() {
    const CONTRASTS: &str = "(() => { const probe = document.body.appendChild(document.createElement('p')); \
        const luminance = (name) => { probe.style.color = `var(--${name})`; \
            const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map((part) => part / 255) \
                .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)); \
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; }; \
        const contrast = (one, other) => { const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b); \
            return (high + 0.05) / (low + 0.05); }; \
        const texts = ['text', 'dim', 'accent', 'good', 'bad', 'warn', 'answer']; \
        const pairs = [['on-accent', 'accent'], ...['back', 'panel', 'soft'].flatMap((under) => texts.map((text) => [text, under]))]; \
        const all = pairs.map(([one, other]) => [one, other, contrast(one, other)]); probe.remove(); return all })()";
    let stage = Stage::start("one");
    let mut browser = Browser::start();
    browser.open(&stage.url);
    for dark in [false, true] {
        browser.dark(dark);
        let contrasts = browser.value(CONTRASTS);
        let contrasts = contrasts.as_array().unwrap();
        assert_eq!(contrasts.len(), 22);
        for pair in contrasts {
            assert!(pair[2].as_f64().unwrap() >= 4.5, "dark {dark}: {pair}");
        }
    }
}

#[test]
fn a_search_finds_words_anywhere_and_whole_numbers() {
    let stage = Stage::start("one");
    let mut browser = Browser::start();
    browser.open(&stage.url);
    for (search, text, found) in [
        ("", "Write 0x1", true),
        ("0x1", "Write 0x1, 4.10 kB", true),
        ("0x1", "Write 0x3, rkey 0x168aa971", false),
        ("0x168aa971", "rkey 0x168AA971", true),
        ("17", "QP 17: Ack", true),
        ("17", "QP 170, PSN 217", false),
        ("rit 0x1", "Write 0x1", true),
        ("read 0x1", "Write 0x1", false),
        ("1.(", "1.(", true),
        ("2[", "1", false),
    ] {
        let expression = format!(
            "import('/dom.js').then((dom) => dom.searching({})({}))",
            json!(search),
            json!(text)
        );
        assert_eq!(
            browser.value(&expression),
            json!(found),
            "{search} in {text}"
        );
    }
}

/// Checks that every control has a name, for people who cannot see it.
fn all_is_named(browser: &mut Browser) {
    let nameless = "[...document.querySelectorAll('input, select, button, a, [role=button], [role=img], meter')] \
        .filter((one) => !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim() || one.ariaHidden)) \
        .map((one) => one.outerHTML)";
    assert_eq!(browser.value(nameless), json!([]));
}

/// Draws frames for `milliseconds`, and records the number of frames per second.
fn count_frames(browser: &mut Browser, milliseconds: u32) {
    browser.value(&format!(
        "(() => {{ window.frames_drawn = null; let count = 0; const start = performance.now(); const frame = () => {{ \
         count += 1; const passed = performance.now() - start; if (passed < {milliseconds}) requestAnimationFrame(frame); \
         else window.frames_drawn = Math.round(1000 * count / passed); }}; requestAnimationFrame(frame); return 1 }})()"
    ));
}

/// Prints figures: `cargo test -p vrnic-web thousand -- --nocapture`.
#[test]
fn a_thousand_connections_are_shown() {
    let mut lab = Lab::with(1000);
    let mut browser = Browser::start();
    browser.open(&lab.url);
    browser
        .until("document.querySelector('.edge .label').textContent.startsWith('1000 connections')");
    for (key, view) in [("1", "map"), ("2", "objects"), ("3", "timeline")] {
        browser.key(key);
        browser.until("document.querySelector('main > *')");
        count_frames(&mut browser, 4000);
        // Six steps each: taken, sent, arrived, response sent, response arrived, completed.
        lab.paced(1700, Duration::from_secs(5));
        browser.until("window.frames_drawn");
        println!(
            "{view}: {} frames a second",
            browser.value("window.frames_drawn")
        );
    }
    browser.until("document.querySelectorAll('#connection-choice option').length === 1000");
    browser.until("document.querySelectorAll('.sequence .step').length > 0");
    browser.key("2");
    browser.until("document.querySelectorAll('td .state.RTS').length === 500");
    browser.value("(() => { const box = document.querySelector('#qp-filter'); box.value = '999'; box.dispatchEvent(new Event('input')) })()");
    browser.until("document.querySelectorAll('td .state.RTS').length === 1");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn flows_and_rate_limits_are_shown() {
    let stage = Stage::start("a");
    let mut browser = Browser::start();
    browser.open(&stage.url);
    browser.until("document.querySelector('.card')");
    browser.value("location.hash = 'objects/a/17'");
    let shows = |text: &str| {
        format!(
            "document.querySelector('main').innerText.includes({})",
            json!(text)
        )
    };
    browser.until(&shows("ether_type 0x88b5, a a"));
    browser.until(&shows("leaves the frames to others"));
    browser.until(&shows("80000 kbit/s"));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// Names come from guests and configurations. They are always displayed as text.
#[test]
fn hostile_names_never_become_markup() {
    let name = "<img src=x onerror=document.title='owned'>\"'&lt;";
    let stage = Stage::start(name);
    let mut browser = Browser::start();
    browser.open(&stage.url);
    browser.until("document.querySelector('.card')");
    for view in ["map", "objects", "timeline", "failures", "actions"] {
        browser.value(&format!("location.hash = '{view}'"));
        browser.until("document.querySelector('main > *')");
        browser.until(&format!(
            "document.querySelector('main').textContent.includes({})",
            json!(name)
        ));
        assert_eq!(
            browser.value("document.querySelectorAll('main img, main script, main iframe').length"),
            json!(0)
        );
    }
    assert_ne!(browser.value("document.title"), json!("owned"));
    assert_eq!(browser.errors(), Vec::<String>::new());
    // The browser itself refuses to turn a string into markup, should the page ever try.
    let refused =
        "(() => { try { document.body.innerHTML = '<b>'; return false } catch { return true } })()";
    assert_eq!(browser.value(refused), json!(true));
}
