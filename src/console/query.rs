//! The query of an address: every filter of every page is in it, so that what is seen can be sent to somebody.

use std::{collections::BTreeMap, fmt::Write as _};

/// The largest query that is read: more than any page has filters for.
const QUERY_BYTES_MAX: usize = 4 << 10;

/// Keys with their values, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    /// The query of `text`, as it stands behind the question mark. What is no pair counts as a key without value; what is
    /// too long counts as none.
    pub fn parse(text: &str) -> Self {
        if text.len() > QUERY_BYTES_MAX {
            return Self::default();
        }
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        });
        Self(pairs.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// The value of a key; empty if it is not there.
    pub fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    /// The value of a key as a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key).parse().ok()
    }

    /// The same with another value of a key; an empty one takes the key out.
    #[must_use]
    pub fn with(&self, key: &str, value: &str) -> Self {
        let mut pairs = self.0.clone();
        pairs.remove(key);
        if !value.is_empty() {
            pairs.insert(key.to_owned(), value.to_owned());
        }
        Self(pairs)
    }

    /// Only these keys.
    #[must_use]
    pub fn only(&self, keys: &[&str]) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(key, _)| keys.contains(&key.as_str()))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        )
    }

    /// Every pair.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// `path` with this query.
    pub fn address(&self, path: &str) -> String {
        let mut text = encode(path, true);
        for (at, (key, value)) in self.0.iter().enumerate() {
            text.push(if at == 0 { '?' } else { '&' });
            text.extend([&encode(key, false), "=", &encode(value, false)]);
        }
        text
    }
}

/// The bytes of `text` that stand for themselves, and the others by their figures.
fn encode(text: &str, path: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~/,".contains(&byte) || (path && b":".contains(&byte));
        if plain {
            encoded.push(byte as char);
        } else {
            // Writing into a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// What `encode` and browsers' forms make, undone. Bytes that are no text become signs for that.
pub fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let hex = |byte: u8| (byte as char).to_digit(16);
        match (first, more) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, after @ ..]) if hex(*high).is_some() && hex(*low).is_some() => {
                bytes.push((hex(*high).unwrap_or(0) * 16 + hex(*low).unwrap_or(0)) as u8);
                rest = after;
                continue;
            }
            (byte, _) => bytes.push(*byte),
        }
        rest = more;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let query = Query::default().with("q", "a b&c=ä%").with("open", "node,node/sessions").with("at", "7");
        let address = query.address("/actor/node/relay-1");
        assert_eq!(address, "/actor/node/relay-1?at=7&open=node,node/sessions&q=a%20b%26c%3D%C3%A4%25");
        assert_eq!(Query::parse(address.split_once('?').unwrap().1), query);
        assert_eq!(query.number("at"), Some(7));
        assert_eq!(query.with("q", "").with("at", "").only(&["open"]).address("/"), "/?open=node,node/sessions");
    }

    #[test]
    fn whatever_comes_is_read() {
        for text in ["", "&&", "=", "a", "a=%", "a=%4", "a=%zz", "q=%ff%fe", "a=b=c"] {
            let _ = Query::parse(text).address("/");
        }
        assert_eq!(Query::parse("q=a+b%2").get("q"), "a b%2");
        assert_eq!(Query::parse(&"a=b&".repeat(5_000)), Query::default());
    }
}
