//! What a node keeps: the disk port and its redb databases.

pub mod disk;
