//! The least faults of a scenario that still fails.

use crate::{report::Report, run::run, scenario::Scenario};

/// Runs that a shrinking may take: all faults of a scenario twice.
const TRIES_MAX: usize = 40;

/// Leaves out fault after fault for as long as the same check fails. Each kept step is shown.
pub fn shrink(report: &Report, mut show: impl FnMut(&Scenario)) -> Scenario {
    let Some(check) = report.findings.first().map(|finding| finding.check) else { return report.scenario.clone() };
    let fails = |scenario: &Scenario| run(scenario, false).findings.iter().any(|finding| finding.check == check);
    least(&report.scenario, fails, &mut show)
}

fn least(whole: &Scenario, mut fails: impl FnMut(&Scenario) -> bool, show: &mut impl FnMut(&Scenario)) -> Scenario {
    let mut least = whole.clone();
    let mut tries = 0;
    loop {
        let before = least.faults.len();
        let mut place = 0;
        while place < least.faults.len() && tries < TRIES_MAX {
            let mut candidate = least.clone();
            candidate.faults.remove(place);
            tries += 1;
            if fails(&candidate) {
                show(&candidate);
                least = candidate;
            } else {
                place += 1;
            }
        }
        if least.faults.len() == before || tries >= TRIES_MAX {
            return least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let whole = Scenario::draw(3, None);
        let matters = whole.faults[1].clone();
        let least = least(&whole, |scenario| scenario.faults.contains(&matters), &mut |_| {});
        assert_eq!(least.faults, [matters]);
    }

    #[test]
    fn it_ends_also_when_everything_matters() {
        let mut whole = Scenario::draw(3, None);
        whole.faults = vec![whole.faults[0].clone(); 60];
        let mut runs = 0;
        let least = least(
            &whole,
            |_| {
                runs += 1;
                false
            },
            &mut |_| {},
        );
        assert_eq!((runs, least.faults.len()), (TRIES_MAX, 60));
    }
}
