//! Tables: clocks in, the believed time out.

use postroad_cluster::time::Span;

use super::*;
use crate::{Databases, Writing, testing::MemoryDisk};

/// One event of a table, in seconds.
enum Event {
    /// The clocks show (boot, moment, wall), and this time is believed.
    Believe(u64, u64, u64, u64),
    Issued(u64),
    Confirm(u64, u64),
    /// The process starts anew from what is stored.
    Restart,
}

use Event::{Believe, Confirm, Issued, Restart};

fn run(events: &[Event]) {
    let disk = MemoryDisk::default();
    let node = Databases::open(&disk, Writing::Inline).unwrap().node;
    let mut floor = TimeFloor::load(&node).unwrap();
    let moment = |seconds| Moment::ZERO.after(Span::from_secs(seconds));
    let wall = |seconds: u64| WallTime(seconds * 1_000);
    for (place, event) in events.iter().enumerate() {
        match *event {
            Believe(boot, now, shown, expected) => {
                assert_eq!(floor.believe(boot, moment(now), wall(shown)), wall(expected), "event {place}");
            }
            Issued(time) => floor.accept_issue_time(wall(time)),
            Confirm(now, time) => floor.confirm(moment(now), wall(time)),
            Restart => {
                floor.save(&node).unwrap();
                floor = TimeFloor::load(&node).unwrap();
            }
        }
    }
}

#[test]
fn the_first_time_is_believed_and_then_follows_the_wall_clock_within_five_minutes() {
    run(&[Believe(1, 10, 100_000, 100_000), Believe(1, 70, 100_061, 100_061), Believe(1, 130, 100_420, 100_420)]);
}

#[test]
fn a_jump_forward_is_not_believed_until_it_is_confirmed() {
    run(&[
        Believe(1, 0, 100_000, 100_000),
        Believe(1, 60, 100_361, 100_060),
        Believe(1, 120, 900_000, 100_120),
        Confirm(120, 900_000),
        Believe(1, 121, 900_002, 900_002),
    ]);
}

#[test]
fn small_steps_do_not_add_up() {
    // Four minutes at a time: the second one is five minutes too far from the boot clock.
    run(&[Believe(1, 0, 100_000, 100_000), Believe(1, 60, 100_300, 100_300), Believe(1, 120, 100_600, 100_300)]);
}

#[test]
fn time_never_goes_back() {
    run(&[
        Believe(1, 0, 100_000, 100_000),
        Believe(1, 60, 99_900, 100_000),
        Believe(1, 120, 50_000, 100_120),
        Restart,
        Believe(1, 130, 50_000, 100_130),
        // A new boot with an empty clock battery: time begins at the floor and runs.
        Restart,
        Believe(2, 5, 0, 100_130),
        Believe(2, 65, 60, 100_190),
        // Not even a control node turns it back.
        Confirm(70, 90_000),
        Believe(2, 71, 90_001, 100_190),
    ]);
}

#[test]
fn what_was_issued_has_passed() {
    run(&[
        Issued(200_000),
        Believe(1, 0, 100_000, 200_000),
        Issued(150_000),
        Believe(1, 10, 200_010, 200_010),
        Issued(300_000),
        Believe(1, 20, 200_020, 300_000),
        // The wall clock is a day slow; time runs on all the same, and the clock is believed once it is put right.
        Believe(1, 30, 200_030, 300_010),
        Believe(1, 40, 300_100, 300_100),
        Restart,
        Believe(2, 0, 100_000, 300_100),
    ]);
}

#[test]
fn the_boot_clock_outlives_the_process_but_not_the_boot() {
    run(&[
        Believe(1, 0, 100_000, 100_000),
        Restart,
        // In the same boot a jump over a restart is one.
        Believe(1, 60, 900_000, 100_060),
        Restart,
        // The host may have been off for nine days.
        Believe(2, 30, 900_000, 900_000),
    ]);
}

#[test]
fn a_confirmation_before_the_first_look_counts() {
    run(&[Confirm(10, 500_000), Believe(3, 20, 100, 500_010), Restart, Believe(3, 30, 100, 500_020)]);
}

#[test]
fn a_row_of_another_form_is_told() {
    let disk = MemoryDisk::default();
    let node = Databases::open(&disk, Writing::Inline).unwrap().node;
    for row in [vec![], vec![1; 40], vec![2; 41], vec![1; 42]] {
        node.write(vec![Put { table: Table::TimeFloor, key: KEY.to_vec(), value: Some(row) }]).unwrap();
        assert_eq!(TimeFloor::load(&node).unwrap_err().code(), "STORE_CORRUPT");
    }
}
