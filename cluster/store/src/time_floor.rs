//! The time floor: what time a node believes it is, from a wall clock that anybody may set and a boot clock that only
//! runs forward.

use postroad_cluster::{
    limits,
    time::{Moment, WallTime},
};

use crate::{
    error::StoreError,
    node::{NodeStore, Put, Table},
};

const KEY: &[u8] = b"floor";
const VERSION: u8 = 1;
const ROW_BYTES: usize = 41;

/// One pair of the two clocks that is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    /// The boot that the moment counts from; `None` until the first [`TimeFloor::believe`] says.
    boot_id: Option<u64>,
    now: Moment,
    wall: WallTime,
}

/// What time a node believes it is. Expired grants and certificates must not come to life because a clock went back,
/// and valid ones must not die because it went forward.
///
/// - Time never goes below what was believed before, nor below the newest accepted issue time: something signed
///   exists, so its time has passed, and the clocks are compared from there.
/// - Within one boot of the host the wall clock may differ from the boot clock by [`limits::TIME_JUMP_MAX`] in all,
///   counted from one believed pair of both. More is a jump: time then runs on by the boot clock, until a control
///   node confirms a time by [`TimeFloor::confirm`].
/// - After a new boot there is no clock to compare with (the host may have been off for a month), so a wall clock
///   above the floor is believed, and below it time begins at the floor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeFloor {
    anchor: Option<Anchor>,
    /// The latest time believed.
    believed: WallTime,
    accepted: WallTime,
}

impl TimeFloor {
    /// The floor stored in `node`, or none.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the stored row is none of ours, and the errors of reading.
    pub fn load(node: &NodeStore) -> Result<Self, StoreError> {
        let Some(row) = node.get(Table::TimeFloor, KEY)? else { return Ok(Self::default()) };
        Self::decode(&row).ok_or_else(|| StoreError::Corrupt {
            file: "node.redb",
            found: format!("the time floor has {} bytes of an unknown form", row.len()),
        })
    }

    /// The time to believe when the host's boot `boot_id` has lasted until `now` and its wall clock says `wall`.
    pub fn believe(&mut self, boot_id: u64, now: Moment, wall: WallTime) -> WallTime {
        let floor = self.believed.max(self.accepted);
        let same_boot = self.anchor.filter(|anchor| anchor.boot_id.is_none_or(|id| id == boot_id));
        let time = if let Some(anchor) = same_boot {
            self.anchor = Some(Anchor { boot_id: Some(boot_id), ..anchor });
            let expected = anchor.wall.after(now.since(anchor.now));
            let jump = wall.since(expected).max(expected.since(wall));
            if jump > limits::TIME_JUMP_MAX { expected } else { wall }
        } else {
            let time = wall.max(floor);
            self.anchor = Some(Anchor { boot_id: Some(boot_id), now, wall: time });
            time
        };
        if self.accepted > time {
            // Whatever was signed then has been signed by now: time runs on from there.
            self.anchor = Some(Anchor { boot_id: Some(boot_id), now, wall: self.accepted });
        }
        self.believed = time.max(floor);
        self.believed
    }

    /// Takes the issue time of something signed and verified, which has then passed.
    pub fn accept_issue_time(&mut self, issued: WallTime) {
        self.accepted = self.accepted.max(issued);
    }

    /// Takes the time that a control node says it is at `now`: from here on the wall clock is compared with it.
    /// Time still does not go back; if `wall` lies behind it, time stands until that is reached.
    pub fn confirm(&mut self, now: Moment, wall: WallTime) {
        let boot_id = self.anchor.and_then(|anchor| anchor.boot_id);
        self.anchor = Some(Anchor { boot_id, now, wall });
    }

    /// Stores the floor, durable when this returns; once a minute and at the end is enough.
    ///
    /// # Errors
    /// Those of [`NodeStore::write`].
    pub fn save(&self, node: &NodeStore) -> Result<(), StoreError> {
        node.write(vec![self.put()])
    }

    /// The floor as a change of the node's database, for [`NodeStore::write_then`].
    #[must_use]
    pub fn put(&self) -> Put {
        Put { table: Table::TimeFloor, key: KEY.to_vec(), value: Some(self.encode()) }
    }

    fn encode(&self) -> Vec<u8> {
        // An anchor that no boot has claimed cannot be compared with after a start.
        let anchor = self.anchor.and_then(|anchor| anchor.boot_id.map(|id| [id, anchor.now.0, anchor.wall.0]));
        let [boot_id, now, wall] = anchor.unwrap_or_default();
        let mut row = vec![VERSION | if anchor.is_some() { 0x80 } else { 0 }];
        for number in [boot_id, now, wall, self.believed.0, self.accepted.0] {
            row.extend_from_slice(&number.to_le_bytes());
        }
        row
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let row: &[u8; ROW_BYTES] = row.try_into().ok()?;
        let number = |place: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&row[1 + 8 * place..9 + 8 * place]);
            u64::from_le_bytes(bytes)
        };
        if row[0] & 0x7F != VERSION {
            return None;
        }
        let anchor = (row[0] & 0x80 != 0).then(|| Anchor {
            boot_id: Some(number(0)),
            now: Moment(number(1)),
            wall: WallTime(number(2)),
        });
        Some(Self { anchor, believed: WallTime(number(3)), accepted: WallTime(number(4)) })
    }
}

#[cfg(test)]
mod tests;
