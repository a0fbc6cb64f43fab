//! What every bench needs: processes and what they cost, a look at whether the machine was ours, figures and tables.
//!
//! | what | where |
//! |---|---|
//! | processes that end with the bench, programs that may be missing | [`process`] |
//! | CPU time and memory of processes | [`cost`] |
//! | steps that are repeated when the host was busy | [`steady`] |
//! | medians and quantiles | [`figures`] |
//! | the table and the JSON of a bench | [`report`] |

pub(crate) mod cost;
pub(crate) mod figures;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod steady;
