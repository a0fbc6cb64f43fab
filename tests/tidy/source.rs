//! A file as the rules see it: each line with comments and texts blanked out, and whether it belongs to a test.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// One line.
pub(crate) struct Line {
    /// From 1.
    pub(crate) number: usize,
    /// As written.
    pub(crate) raw: String,
    /// With comments and the content of texts replaced by spaces.
    pub(crate) code: String,
    /// Whether it belongs to a test.
    pub(crate) test: bool,
}

/// One file, by its path from the workspace's root.
pub(crate) struct Source {
    /// With `/` between its parts.
    pub(crate) path: String,
    /// All lines.
    pub(crate) lines: Vec<Line>,
}

/// Directories that are not ours or not written by hand.
const SKIPPED: &[&str] = &["target", ".git", "corpus", "artifacts"];

/// Endings of files that the rules read.
const READ: &[&str] = &["rs", "toml", "md", "sh", "yml", "yaml"];

impl Source {
    /// A file from its content. A file that is a test as a whole is known by its place, or named in `test_modules`.
    pub(crate) fn new(path: &str, text: &str, test_modules: &[String]) -> Self {
        let code =
            if Path::new(path).extension().is_some_and(|end| end == "rs") { blank(text) } else { text.to_owned() };
        let whole = path.split('/').any(|part| part == "tests" || part == "benches" || part == "tests.rs")
            || test_modules
                .iter()
                .any(|module| path == format!("{module}.rs") || path.starts_with(&format!("{module}/")));
        let tested = if whole { Vec::new() } else { test_spans(&code) };
        let mut lines: Vec<Line> = Vec::new();
        for (index, (raw, code)) in text.lines().zip(code.lines()).enumerate() {
            let test = whole || tested.iter().any(|span| span.contains(&index));
            lines.push(Line { number: index + 1, raw: raw.to_owned(), code: code.to_owned(), test });
        }
        Self { path: path.to_owned(), lines }
    }

    /// Whether it is Rust.
    pub(crate) fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|end| end == "rs")
    }
}

/// Every file of the workspace at `root` that the rules read.
pub(crate) fn all(root: &Path) -> Vec<Source> {
    let mut paths = Vec::new();
    walk(root, &mut paths);
    paths.sort();
    let texts: Vec<(String, String)> = paths
        .iter()
        .map(|path| {
            let relative = path.strip_prefix(root).expect("it was found there").to_str().expect("our names are text");
            (relative.to_owned(), fs::read_to_string(path).unwrap_or_else(|error| panic!("read {relative}: {error}")))
        })
        .collect();
    let modules: Vec<String> = texts.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    texts.iter().map(|(path, text)| Source::new(path, text, &modules)).collect()
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap_or_else(|error| panic!("list {}: {error}", directory.display())) {
        let path = entry.expect("a directory entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !SKIPPED.contains(&name) {
                walk(&path, found);
            }
        } else if path.extension().and_then(|end| end.to_str()).is_some_and(|end| READ.contains(&end)) || name == "run"
        {
            found.push(path);
        }
    }
}

/// The modules that `path` declares for tests only, as paths without `.rs`.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let directory = match stem.rsplit_once('/') {
        Some((directory, "lib" | "main")) => directory,
        _ => stem,
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0].starts_with("#[cfg(") && pair[0].contains("test"));
    let named = declared.filter_map(|pair| pair[1].rsplit_once("mod ")?.1.strip_suffix(';'));
    named.map(|name| format!("{directory}/{name}")).collect()
}

/// The lines, from 0, of items under `#[cfg(test)]`.
fn test_spans(code: &str) -> Vec<std::ops::RangeInclusive<usize>> {
    let lines: Vec<&str> = code.lines().collect();
    let mut spans = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        if !(line.trim_start().starts_with("#[cfg(") && line.contains("test")) {
            continue;
        }
        let mut depth = 0_usize;
        let end = (start + 1..lines.len()).find(|&index| {
            let before = depth;
            let opened = lines[index].matches(['{', '(']).count();
            let closed = lines[index].matches(['}', ')']).count();
            depth = (depth + opened).saturating_sub(closed);
            depth == 0 && (before > 0 || opened > 0 || lines[index].trim_end().ends_with(';'))
        });
        spans.push(start..=end.unwrap_or(lines.len()));
    }
    spans
}

/// `text` with comments and the content of texts and characters replaced by spaces; lines stay where they are.
pub(crate) fn blank(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < letters.len() {
        let rest = &letters[at..];
        let previous = at.checked_sub(1).map(|before| letters[before]);
        let length = match rest {
            ['/', '/', ..] => rest.iter().position(|letter| *letter == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => block_comment(rest),
            ['"', ..] => quoted(rest, '"'),
            ['r', '"' | '#', ..] if !previous.is_some_and(in_word) || previous == Some('b') => raw_text(rest),
            ['\'', '\\', ..] => quoted(rest, '\''),
            ['\'', _, '\'', ..] => 3,
            _ => 0,
        };
        if length == 0 {
            code.push(letters[at]);
            at += 1;
        } else {
            code.extend(rest[..length].iter().map(|letter| if *letter == '\n' { '\n' } else { ' ' }));
            at += length;
        }
    }
    code
}

/// Whether a letter may stand in a name.
pub(crate) fn in_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// The length of `r"…"` or `r#"…"#`; 0 if it is a name such as `r#type`.
fn raw_text(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|letter| **letter == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = &rest[hashes + 2..];
    let found =
        body.windows(end.len()).position(|window| window == end).unwrap_or(body.len().saturating_sub(end.len()));
    (hashes + 2 + found + end.len()).min(rest.len())
}

#[test]
fn comments_and_texts_are_no_code() {
    let text = "let a = \"HashMap\"; // HashMap\n/* x\n/* y */ */let b = r#\"unsafe\"#; let c = '\"'; 'a: loop {}";
    let code = blank(text);
    assert!(!code.contains("HashMap") && !code.contains("unsafe") && !code.contains('y'), "{code}");
    assert!(code.contains("let a = ") && code.contains("let b") && code.contains("'a: loop {}"), "{code}");
    assert_eq!(code.lines().count(), text.lines().count());
}

#[test]
fn test_items_are_told_from_others() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod d;\nfn e() {}\n";
    let source = Source::new("cluster/src/x.rs", text, &[]);
    let tests: Vec<usize> = source.lines.iter().filter(|line| line.test).map(|line| line.number).collect();
    assert_eq!(tests, [2, 3, 4, 5, 7, 8]);
    assert_eq!(test_modules("cluster/src/x.rs", text), ["cluster/src/x/d"]);
    assert_eq!(test_modules("cluster/src/lib.rs", text), ["cluster/src/d"]);
}
