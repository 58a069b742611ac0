// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The files of the page.

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// Path, type and content of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("../page/index.html")),
    ("/style.css", STYLE, include_str!("../page/style.css")),
    ("/icon.svg", PICTURE, include_str!("../page/icon.svg")),
    ("/main.js", SCRIPT, include_str!("../page/main.js")),
    ("/dom.js", SCRIPT, include_str!("../page/dom.js")),
    ("/state.js", SCRIPT, include_str!("../page/state.js")),
    ("/map.js", SCRIPT, include_str!("../page/map.js")),
    ("/objects.js", SCRIPT, include_str!("../page/objects.js")),
    ("/headers.js", SCRIPT, include_str!("../page/headers.js")),
    ("/timeline.js", SCRIPT, include_str!("../page/timeline.js")),
    ("/actions.js", SCRIPT, include_str!("../page/actions.js")),
    ("/lessons.js", SCRIPT, include_str!("../page/lessons.js")),
    ("/failures.js", SCRIPT, include_str!("../page/failures.js")),
];

/// Returns the type and content of the file at that path.
pub fn file(path: &str) -> Option<(&'static str, &'static str)> {
    let found = FILES.iter().find(|(known, _, _)| *known == path);
    found.map(|(_, kind, content)| (*kind, *content))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's policy would block these without a visible error.
    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for (path, kind, content) in FILES {
            for bad in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "https:",
                "@import",
            ] {
                assert!(!content.contains(bad), "{path}: {bad}");
            }
            if *kind == HTML {
                for bad in ["<style", "style=", " onclick", "<script>", "javascript:"] {
                    assert!(!content.contains(bad), "{path}: {bad}");
                }
            }
        }
    }

    #[test]
    fn every_module_that_is_imported_is_there() {
        for (path, _, content) in FILES.iter().filter(|(_, kind, _)| *kind == SCRIPT) {
            for line in content.lines().filter(|line| line.starts_with("import ")) {
                let name = line.split('"').nth(1).unwrap().trim_start_matches('.');
                assert!(file(name).is_some(), "{path} imports {name}");
            }
        }
    }
}
