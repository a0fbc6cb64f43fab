//! Database files with damage in them. They are not for libFuzzer: redb may panic over a damaged page, which the store
//! catches and libFuzzer does not let it.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
};

use postroad_store::{Databases, Disk, DiskFile, Put, Table, TimeFloor, Writing};

use crate::{Numbers, mutation::edited};

/// Files in memory.
#[derive(Clone, Debug, Default)]
struct Files(Arc<Mutex<BTreeMap<String, Arc<File>>>>);

#[derive(Debug, Default)]
struct File(Mutex<Vec<u8>>);

impl Disk for Files {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::clone(self.0.lock().unwrap().entry(name.to_owned()).or_default()) as Arc<dyn DiskFile>)
    }
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.lock().unwrap();
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= bytes.len() as u64);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(&bytes[offset as usize..end as usize]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap();
        let end = offset as usize + data.len();
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        bytes[offset as usize..end].copy_from_slice(data);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        // A real disk has an end too: a damaged length is refused and not made.
        if length > 64 << 20 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.lock().unwrap().resize(length as usize, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn good() -> BTreeMap<String, Vec<u8>> {
    let files = Files::default();
    let databases = Databases::open(&files, Writing::Inline).unwrap();
    for number in 0..50_u8 {
        let put = |table| Put { table, key: vec![number], value: Some(vec![number; 100]) };
        databases.node.write(vec![put(Table::Identity), put(Table::Setting)]).unwrap();
    }
    drop(databases);
    let files = files.0.lock().unwrap();
    files.iter().map(|(name, file)| (name.clone(), file.0.lock().unwrap().clone())).collect()
}

/// Damages one file of a good directory, many times anew. Opening and reading everything either works or says which file
/// is damaged; nothing is read from a damaged page as if it were good: a value is one that was written.
pub(crate) fn altered_databases_open_or_say_why(count: usize) {
    let good = good();
    let names: Vec<&String> = good.keys().collect();
    let mut numbers = Numbers(88);
    let (mut opened, mut refused) = (0, 0);
    // What the store catches would fill the screen.
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for round in 0..count {
        let name = names[round % names.len()];
        let mut bytes = good[name].clone();
        // Damage in the first pages, where structure is, and anywhere.
        let window = if round % 2 == 0 { 12 << 10 } else { bytes.len() };
        let from = numbers.below(bytes.len().min(window));
        let end = (from + 64).min(bytes.len());
        let damage = edited(&bytes[from..end], &numbers.bytes(12));
        let length = damage.len().min(end - from);
        bytes[from..from + length].copy_from_slice(&damage[..length]);
        if round % 7 == 0 {
            bytes.truncate(from);
        }
        let files = Files::default();
        for (other, content) in &good {
            let content = if other == name { &bytes } else { content };
            files.0.lock().unwrap().insert(other.clone(), Arc::new(File(Mutex::new(content.clone()))));
        }
        match Databases::open(&files, Writing::Inline) {
            Ok(databases) => {
                opened += 1;
                for table in Table::ALL {
                    for (key, value) in databases.node.list(table).unwrap_or_default() {
                        assert!(value.len() == 100 && value.iter().all(|byte| [*byte] == key[..]), "{table:?} {key:?}");
                    }
                }
                let _ = TimeFloor::load(&databases.node);
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty() && !error.code().is_empty());
            }
        }
    }
    std::panic::set_hook(said);
    assert!(opened > 0 && refused > 0, "{opened} opened, {refused} refused");
}
