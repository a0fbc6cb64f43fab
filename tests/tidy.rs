//! Style and the import law as a test: each failure says where, what, why and what to do.

#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;

use std::{fmt, path::Path};

use rules::{BANS, EXCEPTIONS, IMPORTS, Import, LEFT_OVER, LINES_MAX, MANIFEST_EXCEPTIONS, REQUIREMENTS, RULE_FILES};
use source::{Source, in_word};

/// One breach of a rule.
struct Breach {
    path: String,
    line: usize,
    what: String,
    why: String,
    instead: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}; {}", self.path, self.line, self.what, self.why, self.instead)
    }
}

fn breach(source: &Source, line: usize, what: impl Into<String>, why: &str, instead: &str) -> Breach {
    let (what, why, instead) = (what.into(), why.to_owned(), instead.to_owned());
    Breach { path: source.path.clone(), line, what, why, instead }
}

fn begins(path: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| path.starts_with(beginning))
}

/// Where `word` stands in `code` as a word of its own, not as the end of a longer path or name.
fn stands(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        let starts = !word.starts_with(in_word) || !before.is_some_and(in_word);
        let ends = !word.ends_with(in_word) || !after.is_some_and(in_word);
        starts && ends
    })
}

/// Whether a line names the crate `library`: as the beginning of a path, or in a `use`.
fn names_crate(code: &str, library: &str) -> bool {
    let name = library.replace('-', "_");
    code.match_indices(&name).any(|(at, _)| {
        let before = code[..at].trim_end();
        let after = &code[at + name.len()..];
        let own = !code[..at].ends_with(in_word) && !before.ends_with("::") && !before.ends_with('.');
        let used = before.ends_with("use") && (after.starts_with(';') || after.trim_start().starts_with("as "));
        own && (after.starts_with("::") || used)
    })
}

fn imports(source: &Source) -> Vec<Breach> {
    let mut found = Vec::new();
    for Import { library, allowed, why } in IMPORTS {
        if begins(&source.path, allowed) || begins(&source.path, RULE_FILES) {
            continue;
        }
        let excepted =
            |code: &str| EXCEPTIONS.iter().any(|(path, at)| source.path.starts_with(at) && code.contains(path));
        for line in source.lines.iter().filter(|line| !line.test && names_crate(&line.code, library)) {
            if !excepted(&line.code) {
                let instead = format!("move it to {}", allowed.join(" or "));
                found.push(breach(source, line.number, format!("names {library}"), why, &instead));
            }
        }
    }
    found
}

/// The import law in a crate's manifest. Its development dependencies are for tests, which may look under the hood.
fn edges(source: &Source) -> Vec<Breach> {
    let mut found = Vec::new();
    let mut section = "";
    for line in &source.lines {
        let text = line.raw.trim();
        if let Some(name) = text.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            section = name;
        }
        let named = text.split(['=', '.']).next().unwrap_or_default().trim();
        if !matches!(section, "dependencies" | "build-dependencies") || named.is_empty() {
            continue;
        }
        let law = IMPORTS.iter().find(|import| import.library == named);
        if let Some(Import { allowed, why, .. }) = law.filter(|law| !begins(&source.path, law.allowed))
            && !MANIFEST_EXCEPTIONS.contains(&(named, &source.path))
        {
            let instead = format!("only {} may depend on it", allowed.join(" and "));
            found.push(breach(source, line.number, format!("depends on {named}"), why, &instead));
        }
    }
    found
}

fn bans(source: &Source) -> Vec<Breach> {
    let mut found = Vec::new();
    for ban in BANS.iter().filter(|ban| begins(&source.path, ban.within) && !begins(&source.path, ban.except)) {
        for line in source.lines.iter().filter(|line| !line.test && stands(&line.code, ban.word)) {
            // What a constant would panic with, the compiler says.
            if line.code.contains("const ") && ban.word == ".unwrap()" {
                continue;
            }
            found.push(breach(source, line.number, format!("`{}`", ban.word), ban.why, ban.instead));
        }
    }
    found
}

fn left_over(source: &Source) -> Vec<Breach> {
    if begins(&source.path, RULE_FILES) {
        return Vec::new();
    }
    let lines = source.lines.iter().flat_map(|line| LEFT_OVER.iter().map(move |left| (line, left)));
    let found = lines.filter(|(line, (word, ..))| stands(&line.raw, word));
    found.map(|(line, (word, why, instead))| breach(source, line.number, format!("`{word}`"), why, instead)).collect()
}

fn shape(source: &Source) -> Vec<Breach> {
    let mut found = Vec::new();
    let first: Vec<&str> = source.lines.iter().map_while(|line| line.raw.strip_prefix("//!")).map(str::trim).collect();
    let sentence = first.iter().take_while(|line| !line.is_empty()).copied().collect::<Vec<_>>().join(" ");
    if !sentence.contains(['.', '!', '?', ':']) {
        let why = "a reader wants to know what lives in a file before reading it";
        found.push(breach(source, 1, "no first sentence", why, "begin the file with `//!` and a sentence"));
    }
    if source.path.ends_with("/mod.rs") {
        let why = "ten files of one name are hard to tell apart";
        found.push(breach(source, 1, "a mod.rs", why, "name it after its noun, beside its directory"));
    }
    let length = source.lines.iter().filter(|line| !line.test).count();
    if length > LINES_MAX {
        let what = format!("{length} lines, at most {LINES_MAX} without tests");
        found.push(breach(source, 1, what, "two things live in it", "split it: foo.rs beside foo/"));
    }
    found
}

fn selects(source: &Source) -> Vec<Breach> {
    let code: String = source.lines.iter().flat_map(|line| [line.code.as_str(), "\n"]).collect();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("select!") {
        let body = code[at + "select!".len()..].trim_start().trim_start_matches(['{', '(']).trim_start();
        if !body.starts_with("biased;") {
            let line = code[..at].matches('\n').count() + 1;
            let why = "it picks a branch by chance";
            found.push(breach(source, line, "`select!` without order", why, "begin it with `biased;`"));
        }
    }
    found
}

fn unsafety(source: &Source) -> Vec<Breach> {
    let mut found = Vec::new();
    for (index, line) in source.lines.iter().enumerate().filter(|(_, line)| stands(&line.code, "unsafe")) {
        let above = source.lines[..index].iter().rev().map(|line| line.raw.trim());
        let comment: Vec<&str> = above.take_while(|line| line.starts_with("//") || line.starts_with("#[")).collect();
        if !comment.iter().any(|line| line.starts_with("// SAFETY:")) || comment.len() < 2 {
            let why = "nobody can check what nobody explained";
            let instead = "do without, or explain it in a paragraph above that begins with `// SAFETY:`";
            found.push(breach(source, line.number, "`unsafe` without a paragraph", why, instead));
        }
    }
    found
}

/// Requirement numbers in a line, such as `RP-5`.
fn requirements(source: &Source) -> Vec<Breach> {
    let mut found = Vec::new();
    for line in &source.lines {
        for &(prefix, highest, missing) in REQUIREMENTS {
            for (at, _) in line.raw.match_indices(&format!("{prefix}-")) {
                let digits = &line.raw[at + prefix.len() + 1..];
                let digits = &digits[..digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len())];
                let Ok(number) = digits.parse::<u32>() else { continue };
                let whole = !line.raw[..at].ends_with(in_word);
                if whole && (number == 0 || number > highest || missing.contains(&number)) {
                    let why = "there is no such requirement, so nobody can look up what is proven";
                    found.push(breach(source, line.number, format!("{prefix}-{number}"), why, "name the right one"));
                }
            }
        }
    }
    found
}

/// Everything that is wrong with a file.
fn check(source: &Source) -> Vec<Breach> {
    let mut found = left_over(source);
    if source.is_rust() {
        let rules = [imports, bans, shape, selects, unsafety];
        found.extend(rules.iter().flat_map(|rule| rule(source)));
        if !begins(&source.path, RULE_FILES) {
            found.extend(requirements(source));
        }
    }
    if source.path.ends_with("Cargo.toml") {
        found.extend(edges(source));
    }
    found
}

#[test]
fn the_workspace_is_tidy() {
    let sources = source::all(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(sources.len() > 30, "the workspace is not where it was");
    let breaches: Vec<String> = sources.iter().flat_map(check).map(|breach| breach.to_string()).collect();
    assert!(breaches.is_empty(), "{} breaches\n{}", breaches.len(), breaches.join("\n"));
}

#[test]
fn every_crate_has_a_clippy_file_of_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for source in source::all(root).iter().filter(|source| source.path.ends_with("Cargo.toml")) {
        let directory = source.path.trim_end_matches("Cargo.toml");
        // Clippy takes the nearest one upwards, which would be another crate's.
        let needed = !directory.starts_with("tests/");
        assert!(!needed || root.join(directory).join("clippy.toml").exists(), "{directory} has no clippy.toml");
    }
}

#[test]
fn each_rule_catches_its_fault() {
    let long = format!("//! Long.\n{}", "fn a() {}\n".repeat(LINES_MAX));
    let faults = [
        ("cluster/src/a.rs", "//! A.\nuse tokio::spawn;\n", "names tokio"),
        ("actors/src/a.rs", "//! A.\nfn a() { quinn::x(); }\n", "names quinn"),
        ("simulations/src/a.rs", "//! A.\nuse postroad::net;\n", "names postroad:"),
        ("cluster/raft/Cargo.toml", "[dependencies]\nredb.workspace = true\n", "depends on redb"),
        ("simulations/Cargo.toml", "[dependencies]\npostroad = { path = \"..\" }\n", "depends on postroad:"),
        ("cluster/src/a.rs", "//! A.\nuse std::collections::{BTreeMap, HashMap};\n", "`HashMap`"),
        ("cluster/trust/src/a.rs", "//! A.\nlet now = SystemTime::now();\n", "`SystemTime::now`"),
        ("actors/src/a.rs", "//! A.\nlet x = Verified::vouch(y);\n", "`Verified::vouch`"),
        ("src/a.rs", "//! A.\nlet x = y.unwrap();\n", "`.unwrap()`"),
        ("src/a.rs", "//! A.\n// TODO later\n", "`TODO`"),
        ("tests/a.rs", "//! A.\n#[ignore = \"slow\"]\n", "`#[ignore`"),
        ("README.md", "see /work/main\n", "`/work/`"),
        ("src/a.rs", "fn a() {}\n", "no first sentence"),
        ("src/a/mod.rs", "//! A.\n", "a mod.rs"),
        ("src/a.rs", &long, "at most 500"),
        ("actors/src/a.rs", "//! A.\ntokio::select! {\n    x = y => {}\n}\n", "`select!`"),
        ("src/a.rs", "//! A.\nunsafe { x() }\n", "`unsafe`"),
        ("tests/a.rs", "//! A.\n// RP-19\n", "RP-19"),
        ("tests/a.rs", "//! A.\n// AV-66\n", "AV-66"),
    ];
    for (path, text, expected) in faults {
        let said: Vec<String> = check(&Source::new(path, text, &[])).iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|said| said.contains(expected)), "{path} {text:?}: {said:?}");
    }
}

#[test]
fn what_is_allowed_passes() {
    let fine = [
        ("cluster/transport/src/a.rs", "//! A.\nuse rustls::crypto::ring;\nuse quinn::Endpoint;\n"),
        ("simulations/src/network.rs", "//! A.\nuse quinn::udp::{RecvMeta, Transmit};\n"),
        ("actors/src/a.rs", "//! A.\n// No HashMap here: \"HashMap\".\nlet ordering = string::new();\n"),
        ("actors/src/a.rs", "//! A.\ntokio::select! {\n    biased;\n    x = y => {}\n}\n"),
        ("cluster/src/a.rs", "//! A.\n#[cfg(test)]\nmod tests {\n    fn a() { b.unwrap(); }\n}\n"),
        (
            "src/a.rs",
            "//! A.\n// SAFETY: it is checked above that the pointer\n// lives as long as this.\nunsafe { x() }\n",
        ),
        ("tests/a.rs", "//! A.\n// RP-71 and TRAP-99\n"),
        ("cluster/raft/Cargo.toml", "[dev-dependencies]\nredb.workspace = true\n"),
    ];
    for (path, text) in fine {
        let said: Vec<String> = check(&Source::new(path, text, &[])).iter().map(ToString::to_string).collect();
        assert!(said.is_empty(), "{path} {text:?}: {said:?}");
    }
}
