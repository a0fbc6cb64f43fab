//! The configuration as its users meet it: the program's own words for each case, the order of sources, the example.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use postroad::{
    config::{self, LogFormat, Sources},
    errors::Exit,
};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/config")
}

/// Runs the program among the cases, with nothing of this machine's environment.
fn postroad(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postroad"));
    command.args(arguments).current_dir(cases()).env_clear().env("HOME", "/nonexistent").output().unwrap()
}

fn load(text: &str, variables: &[(&str, &str)]) -> Result<config::Loaded, postroad::errors::Failure> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("postroad.toml");
    fs::write(&file, text).unwrap();
    let environment: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    config::load(&Sources { file: Some(file), environment, data: None, root: true })
}

#[test]
fn the_program_says_of_each_case_what_is_written_beside_it() {
    let mut seen = 0;
    for entry in fs::read_dir(cases()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = fs::read_to_string(path.with_extension("expected")).unwrap();
        let output = postroad(&["config", "check", name]);
        let said = [output.stdout, output.stderr].concat();
        let said: String = String::from_utf8(said).unwrap().lines().flat_map(|line| [line.trim_end(), "\n"]).collect();
        assert_eq!(said, expected, "{name}");
        assert_eq!(output.status.code(), Some(i32::from(!name.starts_with("good"))), "{name}");
        seen += 1;
    }
    assert!(seen >= 5, "the cases are gone");
}

#[test]
fn an_environment_variable_goes_before_the_file_and_a_flag_before_both() {
    let text = "[link]\nflow_wait_seconds = 5\n[node]\ndata = \"/from/file\"\n[log]\nformat = \"json\"\n";
    let loaded =
        load(text, &[("POSTROAD_LINK_FLOW_WAIT_SECONDS", "7"), ("POSTROAD_NODE_DATA", "/from/variable")]).unwrap();
    assert_eq!(loaded.config.link.flow_wait.as_secs(), 7);
    assert_eq!(loaded.config.node.data, Path::new("/from/variable"));
    assert_eq!(loaded.config.log.format, LogFormat::Json);
    let origin = |key: &str| {
        loaded
            .settings
            .iter()
            .find(|setting| setting.key.path() == key)
            .map(|setting| setting.origin.to_string())
            .unwrap()
    };
    assert_eq!(origin("link.flow_wait_seconds"), "POSTROAD_LINK_FLOW_WAIT_SECONDS");
    assert!(origin("log.format").ends_with("postroad.toml:6"), "{}", origin("log.format"));
    assert_eq!(origin("log.level"), "default");

    let mut sources = Sources { data: Some("/from/flag".into()), root: true, ..Sources::default() };
    sources.environment.insert("POSTROAD_NODE_DATA".to_owned(), "/from/variable".to_owned());
    sources.file = Some(cases().join("good.toml"));
    let loaded = config::load(&sources).unwrap();
    assert_eq!(loaded.config.node.data, Path::new("/from/flag"));
    assert_eq!(loaded.config.api.socket, Path::new("/from/flag/api.sock"));
}

#[test]
fn a_bad_variable_is_named_with_its_bound() {
    let failure = load("", &[("POSTROAD_LINK_FLOW_WAIT_SECONDS", "7200")]).unwrap_err();
    assert_eq!(
        failure.to_string(),
        "POSTROAD_LINK_FLOW_WAIT_SECONDS: link.flow_wait_seconds is 7200, at most 3600 \
         (a flow that waits longer than an hour holds its buffers for nothing)"
    );
    assert_eq!((failure.code.as_ref(), failure.exit), ("CONFIG_INVALID", Exit::Failed));
    assert_eq!(failure.details["errors"][0]["place"], "POSTROAD_LINK_FLOW_WAIT_SECONDS");
}

#[test]
fn a_variable_that_sets_nothing_is_warned_about() {
    let loaded = load("", &[("POSTROAD_LINK_FLOW_WAIT_SECOND", "7"), ("POSTROAD_RELAY_RUN_USER", "relay")]).unwrap();
    let expected = "POSTROAD_LINK_FLOW_WAIT_SECOND sets nothing; did you mean POSTROAD_LINK_FLOW_WAIT_SECONDS?";
    assert_eq!(loaded.warnings, [expected]);
}

#[test]
fn many_errors_are_cut_at_twenty_and_counted() {
    let keys: Vec<String> = (0..50).map(|number| format!("zzz{number} = 1")).collect();
    let text = format!("[link]\n{}", keys.join("\n"));
    let failure = load(&text, &[]).unwrap_err();
    assert_eq!(failure.details["errors"].as_array().unwrap().len(), 20);
    assert!(failure.message.ends_with("and 30 more"), "{}", failure.message);
}

#[test]
fn files_that_are_no_configuration_change_nothing_and_never_panic() {
    let long = format!("[log]\nlevel = \"{}\"\n", "ä".repeat(500));
    let deep = format!("x = {}", "[".repeat(10_000));
    for text in [
        "\u{feff}[link]",
        "[link",
        "[link]\r\nflow_wait_seconds = -1\r\n",
        "\0",
        &long,
        &deep,
        "[log]\nlevel = \"\"\"\na\nb\"\"\"",
    ] {
        if let Err(failure) = load(text, &[]) {
            assert_eq!(failure.code, "CONFIG_INVALID");
            assert!(failure.message.contains("postroad.toml:"), "{}", failure.message);
        }
    }
    let failure = load(&"#".repeat(300_000), &[]).unwrap_err();
    assert_eq!(failure.code, "CONFIG_UNREADABLE");
}

#[test]
fn a_file_that_was_named_must_be_there_and_the_usual_one_need_not() {
    let missing = Sources { file: Some("/nonexistent/postroad.toml".into()), root: true, ..Sources::default() };
    assert_eq!(config::load(&missing).unwrap_err().code, "CONFIG_UNREADABLE");

    let mut nobody = Sources::default();
    assert_eq!(config::load(&nobody).unwrap_err().code, "NO_DATA_DIRECTORY");
    nobody.environment.insert("HOME".to_owned(), "/home/kim".to_owned());
    assert_eq!(config::load(&nobody).unwrap().config.node.data, Path::new("/home/kim/.local/state/postroad"));
    nobody.environment.insert("XDG_STATE_HOME".to_owned(), "/state".to_owned());
    assert_eq!(config::load(&nobody).unwrap().config.node.data, Path::new("/state/postroad"));
    nobody.environment.insert("STATE_DIRECTORY".to_owned(), "/var/lib/private/postroad:/x".to_owned());
    let loaded = config::load(&nobody).unwrap();
    assert_eq!(loaded.config.node.data, Path::new("/var/lib/private/postroad"));
    assert_eq!(loaded.settings[0].origin.to_string(), "$STATE_DIRECTORY");
}

#[test]
fn the_example_is_valid_as_printed_and_with_every_key_set() {
    let printed = String::from_utf8(postroad(&["config", "example"]).stdout).unwrap();
    assert!(printed.lines().all(|line| line.chars().count() <= 110), "{printed}");
    let untouched = load(&printed, &[]).unwrap();
    assert!(untouched.settings.iter().all(|setting| !matches!(setting.origin, config::Origin::Set(_))));

    let set: String = printed
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if !key.starts_with(' ') => format!("{key}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let loaded = load(&set, &[]).unwrap();
    assert!(loaded.settings.iter().all(|setting| matches!(setting.origin, config::Origin::Set(_))), "{set}");
    assert_eq!(loaded.config.listen, untouched.config.listen);
    assert_eq!(loaded.config.link.flow_wait, untouched.config.link.flow_wait);
    assert!(untouched.config.link.proxy_protocol_from.is_empty() && untouched.config.balancers.is_empty());
    assert!(loaded.config.balancers.contains_key(&"orders".parse().unwrap()), "{set}");
    assert_eq!(loaded.config.log, untouched.config.log);
}

#[test]
fn scripts_get_one_envelope_on_standard_output_and_the_right_status() {
    let json = |arguments: &[&str]| {
        let output = postroad(arguments);
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code().unwrap(), value)
    };
    let (status, shown) = json(&["config", "show", "--json", "--config", "good.toml", "--data", "/d"]);
    assert_eq!((status, &shown["version"]), (0, &serde_json::json!(1)));
    assert_eq!(
        shown["data"]["settings"][0],
        serde_json::json!({ "key": "node.data", "value": "/d", "from": "--data" })
    );

    let (status, refused) = json(&["--json", "config", "check", "bounds.toml"]);
    assert_eq!((status, &refused["error"]["code"]), (1, &serde_json::json!("CONFIG_INVALID")));
    assert_eq!(refused["error"]["details"]["errors"][2]["line"], 9);
    assert_eq!(refused["error"]["details"]["errors"][2]["column"], 21);

    let (status, wrong) = json(&["--json", "config", "chek"]);
    assert_eq!((status, &wrong["error"]["code"]), (2, &serde_json::json!("WRONG_USE")));
}

#[test]
fn a_wrong_line_ends_with_2_and_help_with_0() {
    assert_eq!(postroad(&["zebra"]).status.code(), Some(2));
    assert_eq!(postroad(&["config", "check", "--zebra"]).status.code(), Some(2));
    let help = postroad(&["config", "check", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("Example: postroad config check"));
}

#[test]
fn completions_and_the_manual_page_know_the_commands() {
    let bash = String::from_utf8(postroad(&["completions", "bash"]).stdout).unwrap();
    assert!(bash.contains("config") && bash.contains("completions"), "{bash}");
    let page = String::from_utf8(postroad(&["man"]).stdout).unwrap();
    assert!(page.contains(".TH postroad"), "{page}");
}
