//! The sealed file of an authority: text that can be printed and mailed, opened by a passphrase alone.
//!
//! The key is PBKDF2-HMAC-SHA256 of the passphrase, the content the seed and the certificate under ChaCha20-Poly1305
//! with the header as associated data. A checksum over everything tells a damaged file from a wrong passphrase before
//! the slow derivation; whoever alters the file on purpose can mend the checksum, but not the tag.

use core::num::NonZeroU32;
use std::{collections::BTreeMap, fmt::Write as _};

use data_encoding::{BASE64, HEXLOWER};
use postroad_cluster::{
    limits::{AUTHORITY_FILE_BYTES_MAX, AUTHORITY_SEAL_ROUNDS_MAX},
    time::Entropy,
};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey},
    pbkdf2,
};
use zeroize::Zeroizing;

use super::Authority;
use crate::{SigningKey, TrustError, key::sha256};

const BEGIN: &str = "-----BEGIN POSTROAD AUTHORITY-----";
const END: &str = "-----END POSTROAD AUTHORITY-----";
const VERSION: &str = "1";
const DERIVATION: &str = "pbkdf2-hmac-sha256";
const CIPHER: &str = "chacha20-poly1305";
const SEED_BYTES: usize = 32;

impl Authority {
    /// Seals the authority: the content of a text file that [`Authority::unseal`] opens. `rounds` slows guessing;
    /// [`AUTHORITY_SEAL_ROUNDS`](postroad_cluster::limits::AUTHORITY_SEAL_ROUNDS) outside of tests. Whether a
    /// passphrase is good enough is for the caller to say.
    pub fn seal(&self, passphrase: &str, rounds: NonZeroU32, entropy: &dyn Entropy) -> Vec<u8> {
        let mut header = Header {
            cluster: self.cluster.to_string(),
            fingerprint: self.fingerprint().to_string(),
            rounds: rounds.min(const { NonZeroU32::new(AUTHORITY_SEAL_ROUNDS_MAX).unwrap() }),
            salt: [0; 16],
            nonce: [0; 12],
        };
        entropy.fill(&mut header.salt);
        entropy.fill(&mut header.nonce);
        // Room for the tag, so that no plain copy is left behind by growing.
        let size = SEED_BYTES + self.certificate.len();
        let mut content = Zeroizing::new(Vec::with_capacity(size + CHACHA20_POLY1305.tag_len()));
        content.extend_from_slice(self.key.seed().as_slice());
        content.extend_from_slice(&self.certificate);
        header
            .key(passphrase)
            .seal_in_place_append_tag(header.nonce(), Aad::from(header.text()), &mut *content)
            .expect("some hundred bytes are far below the cipher's limit");
        render(&header, &content).into_bytes()
    }

    /// Opens a sealed authority.
    ///
    /// # Errors
    /// [`TrustError::AuthorityFileForeign`] for any other file, [`TrustError::AuthorityFileVersion`] for a newer
    /// release's, [`TrustError::AuthorityFileDamaged`] for one that was cut or altered, and
    /// [`TrustError::AuthorityPassphrase`].
    pub fn unseal(file: &[u8], passphrase: &str) -> Result<Self, TrustError> {
        let (header, mut content) = parse(file)?;
        let opened = header
            .key(passphrase)
            .open_in_place(header.nonce(), Aad::from(header.text()), content.as_mut_slice())
            .map_err(|_| TrustError::AuthorityPassphrase)?;
        let Some((seed, certificate)) = opened.split_first_chunk::<SEED_BYTES>() else {
            return Err(damaged("its content is too short"));
        };
        let authority = Self::assemble(SigningKey::from_seed(*seed), certificate.to_vec())
            .map_err(|_| damaged("its key and its certificate do not belong together"))?;
        let told = (authority.cluster.as_str(), authority.fingerprint().to_string());
        if told != (header.cluster.as_str(), header.fingerprint) {
            return Err(damaged("its header tells of another authority"));
        }
        Ok(authority)
    }
}

const fn damaged(reason: &'static str) -> TrustError {
    TrustError::AuthorityFileDamaged { reason }
}

/// What can be read without the passphrase.
struct Header {
    cluster: String,
    fingerprint: String,
    rounds: NonZeroU32,
    salt: [u8; 16],
    nonce: [u8; 12],
}

impl Header {
    /// The header as it is written and authenticated.
    fn text(&self) -> String {
        format!(
            "Version: {VERSION}\nCluster: {}\nFingerprint: {}\nDerivation: {DERIVATION}\nRounds: {}\nSalt: {}\n\
             Cipher: {CIPHER}\nNonce: {}\n",
            self.cluster,
            self.fingerprint,
            self.rounds,
            HEXLOWER.encode(&self.salt),
            HEXLOWER.encode(&self.nonce),
        )
    }

    fn key(&self, passphrase: &str) -> LessSafeKey {
        let mut key = Zeroizing::new([0; 32]);
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, self.rounds, &self.salt, passphrase.as_bytes(), key.as_mut_slice());
        LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key.as_slice()).expect("the key has the cipher's length"))
    }

    /// Used once: the salt, and with it the key, is drawn anew for every file.
    fn nonce(&self) -> Nonce {
        Nonce::assume_unique_for_key(self.nonce)
    }

    fn checksum(&self, content: &[u8]) -> String {
        HEXLOWER.encode(&sha256(&[self.text().as_bytes(), content])[..16])
    }
}

fn render(header: &Header, content: &[u8]) -> String {
    let mut text = format!("{BEGIN}\n{}Checksum: {}\n\n", header.text(), header.checksum(content));
    for line in BASE64.encode(content).as_bytes().chunks(64) {
        let line = str::from_utf8(line).expect("base64 is ASCII");
        writeln!(text, "{line}").expect("writing to a String cannot fail");
    }
    text + END + "\n"
}

fn parse(file: &[u8]) -> Result<(Header, Zeroizing<Vec<u8>>), TrustError> {
    if file.len() > AUTHORITY_FILE_BYTES_MAX || !file.trim_ascii_start().starts_with(BEGIN.as_bytes()) {
        return Err(TrustError::AuthorityFileForeign);
    }
    let text = str::from_utf8(file).map_err(|_| damaged("it is no text"))?;
    let mut lines = text.lines().map(str::trim).skip_while(|line| line.is_empty()).skip(1);
    let mut fields = BTreeMap::new();
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").ok_or(damaged("a line of its header is no field"))?;
        if fields.insert(name, value).is_some() {
            return Err(damaged("a field of its header is there twice"));
        }
    }
    let header = parse_header(&mut fields)?;
    let checksum = field(&mut fields, "Checksum")?;
    if !fields.is_empty() {
        return Err(damaged("its header has a field too many"));
    }
    let mut body = String::new();
    for line in lines.by_ref() {
        if line == END {
            let content = BASE64.decode(body.as_bytes()).map_err(|_| damaged("its content is no base64"))?;
            if header.checksum(&content) != checksum {
                return Err(damaged("its checksum does not fit"));
            }
            return Ok((header, Zeroizing::new(content)));
        }
        body.push_str(line);
    }
    Err(damaged("its end is missing"))
}

fn parse_header(fields: &mut BTreeMap<&str, &str>) -> Result<Header, TrustError> {
    let version = field(fields, "Version")?;
    if version != VERSION {
        return Err(TrustError::AuthorityFileVersion { found: version.chars().take(20).collect() });
    }
    if field(fields, "Derivation")? != DERIVATION || field(fields, "Cipher")? != CIPHER {
        return Err(damaged("it names other methods than its version uses"));
    }
    let rounds = field(fields, "Rounds")?.parse::<NonZeroU32>().ok();
    let rounds = rounds.filter(|rounds| rounds.get() <= AUTHORITY_SEAL_ROUNDS_MAX);
    Ok(Header {
        cluster: field(fields, "Cluster")?.to_owned(),
        fingerprint: field(fields, "Fingerprint")?.to_owned(),
        rounds: rounds.ok_or(damaged("its number of rounds is out of range"))?,
        salt: hex_field(fields, "Salt")?,
        nonce: hex_field(fields, "Nonce")?,
    })
}

fn field<'a>(fields: &mut BTreeMap<&str, &'a str>, name: &str) -> Result<&'a str, TrustError> {
    fields.remove(name).ok_or(damaged("a field of its header is missing"))
}

fn hex_field<const N: usize>(fields: &mut BTreeMap<&str, &str>, name: &str) -> Result<[u8; N], TrustError> {
    let bytes = HEXLOWER.decode(field(fields, name)?.as_bytes()).ok();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(damaged("salt or nonce is no hexadecimal text of its length"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::{Seeded, WALL};

    const FEW: NonZeroU32 = NonZeroU32::new(2).unwrap();

    fn sealed() -> (Authority, String) {
        let authority = Authority::create(&"prod".parse().unwrap(), &Seeded::new(1), WALL).unwrap();
        let file = authority.seal("correct horse", FEW, &Seeded::new(2));
        (authority, String::from_utf8(file).unwrap())
    }

    fn code(file: &str, passphrase: &str) -> &'static str {
        Authority::unseal(file.as_bytes(), passphrase).unwrap_err().code()
    }

    #[test]
    fn a_sealed_authority_opens_again() {
        let (authority, file) = sealed();
        let opened = Authority::unseal(file.as_bytes(), "correct horse").unwrap();
        assert_eq!(opened.certificate(), authority.certificate());
        assert_eq!(opened.key.seed(), authority.key.seed());
        assert_eq!(opened.cluster(), authority.cluster());
        assert!(file.contains(&format!("Fingerprint: {}\n", authority.fingerprint())));
        assert!(!file.contains(&HEXLOWER.encode(authority.key.seed().as_slice())));
        assert_eq!(authority.seal("correct horse", FEW, &Seeded::new(2)), file.as_bytes());
    }

    #[test]
    fn editors_and_mail_do_no_harm() {
        let (authority, file) = sealed();
        for changed in [file.replace('\n', "\r\n"), format!("\n\n{file}\n\n"), file.replace('\n', " \n")] {
            let opened = Authority::unseal(changed.as_bytes(), "correct horse").unwrap();
            assert_eq!(opened.fingerprint(), authority.fingerprint());
        }
    }

    #[test]
    fn each_mistake_has_its_own_answer() {
        let (_, file) = sealed();
        let (head, body) = file.split_once("\n\n").unwrap();
        let cases = [
            (file.clone(), "", "AUTHORITY_PASSPHRASE"),
            (file.clone(), "correct horse ", "AUTHORITY_PASSPHRASE"),
            (String::new(), "", "AUTHORITY_FILE_FOREIGN"),
            ("-----BEGIN PRIVATE KEY-----\n".to_owned(), "", "AUTHORITY_FILE_FOREIGN"),
            (format!("{file}{}", " ".repeat(AUTHORITY_FILE_BYTES_MAX)), "", "AUTHORITY_FILE_FOREIGN"),
            (file.replace("Version: 1", "Version: 2"), "", "AUTHORITY_FILE_VERSION"),
            (head.to_owned(), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace(END, ""), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace("Cluster: prod", "Cluster: test"), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace("Rounds: 2", "Rounds: 3"), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace("Rounds: 2", "Rounds: 0"), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace("Rounds: 2", "Rounds: 4000000000"), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace("Salt: ", "Pepper: "), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace("Salt: ", "Salt: 00"), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace("Cipher: ", "Version: 1\nCipher: "), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace("Cipher: ", "Color: red\nCipher: "), "", "AUTHORITY_FILE_DAMAGED"),
            (file.replace("poly1305", "poly1304"), "", "AUTHORITY_FILE_DAMAGED"),
            (format!("{head}\n\n{}", &body[1..]), "", "AUTHORITY_FILE_DAMAGED"),
        ];
        for (changed, passphrase, expected) in cases {
            assert_eq!(code(&changed, passphrase), expected, "{changed}");
        }
    }

    #[test]
    fn a_forged_header_with_a_mended_checksum_does_not_open() {
        let (_, file) = sealed();
        let (mut header, content) = parse(file.as_bytes()).unwrap();
        header.cluster = "test".to_owned();
        assert_eq!(code(&render(&header, &content), "correct horse"), "AUTHORITY_PASSPHRASE");
    }

    proptest! {
        #[test]
        fn no_altered_file_opens(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let (authority, file) = sealed();
            let mut bytes = file.into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(opened) = Authority::unseal(&bytes, "correct horse") {
                prop_assert_eq!(opened.certificate(), authority.certificate());
            }
        }

        #[test]
        fn garbage_never_panics(tail in "[ -~\n]{0,400}") {
            let file = format!("{BEGIN}\n{tail}");
            prop_assert!(Authority::unseal(file.as_bytes(), "").is_err());
        }
    }
}
