//! What must hold of every key.

use super::*;

#[test]
fn defaults_and_examples_pass_their_own_checks() {
    for key in KEYS {
        for text in key.default.into_iter().chain([key.example]) {
            assert!(key.kind.check_text(text).is_ok(), "{} = {text}", key.path());
        }
        assert!(key.says.ends_with('.') && !key.why.ends_with('.'), "{}", key.path());
    }
}

#[test]
fn hosts_and_ports_have_bounds() {
    for good in ["a:1", "relay-1.example.com:65535", "10.0.0.1:9443", "[2001:db8::1]:9443"] {
        assert!(is_host_port(good), "{good}");
    }
    for bad in ["a", "a:", ":1", "a:0", "a:65536", "a:+1", "2001:db8::1:9443", "[x]:1", "a b:1", "a..b:1", "http://a:1"]
    {
        assert!(!is_host_port(bad), "{bad}");
    }
}

#[test]
fn the_nearest_word_is_the_one_meant_or_none() {
    let words = ["flow_wait_seconds", "format", "level"];
    assert_eq!(nearest("flow_wait_second", words), Some("flow_wait_seconds"));
    assert_eq!(nearest("lvel", words), Some("level"));
    assert_eq!(nearest("Format", words), Some("format"));
    assert_eq!(nearest("flow_wait", words), Some("flow_wait_seconds"));
    assert_eq!(nearest("colour", words), None);
}
