//! A probe that the configuration spells out: one query, and what its columns mean.

use std::net::SocketAddr;

use postroad_cluster::balancer::{
    database::evidence::{Answer, Cause, Failure, Position, Replica, Role},
    limits::REPLICAS_MAX,
};

use super::{Row, number, only, text, yes};

/// What the columns of a custom probe mean; those that are none have a meaning of their own in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The query.
    pub query: String,
    /// The node's id.
    pub identity: String,
    /// Its epoch.
    pub epoch: String,
    /// Its role.
    pub role: String,
    /// The word of a primary.
    pub role_primary: String,
    /// The word of a secondary.
    pub role_secondary: String,
    /// The word of a server outside any cluster.
    pub role_none: String,
    /// Whether it takes writes.
    pub writable: Option<String>,
    /// Who streams from it.
    pub replicas: Option<String>,
    /// How far its log is.
    pub position: Option<String>,
    /// Open connections.
    pub connections: Option<String>,
    /// Their maximum.
    pub connections_max: Option<String>,
    /// Active sessions.
    pub active: Option<String>,
}

impl Columns {
    /// The answer that the rows are.
    ///
    /// # Errors
    /// Which column is missing or makes no sense.
    pub(super) fn answer(&self, address: SocketAddr, rows: &[Row]) -> Result<Answer, Failure> {
        let row = only(rows.to_vec())?;
        let role = self.role(text(&row, &self.role)?)?;
        let optional = |column: &Option<String>| column.as_ref().map(|column| number(&row, column)).transpose();
        Ok(Answer {
            address,
            identity: text(&row, &self.identity)?.to_owned(),
            cluster: None,
            role,
            writable: match &self.writable {
                Some(column) => yes(&row, column)?,
                None => role != Role::Secondary,
            },
            epoch: number(&row, &self.epoch)?,
            connections: optional(&self.connections)?.unwrap_or_default(),
            connections_max: optional(&self.connections_max)?.unwrap_or(u64::MAX),
            active: optional(&self.active)?.unwrap_or_default(),
            position: optional(&self.position)?.map(Position::bytes),
            replicas: match &self.replicas {
                Some(column) => {
                    replicas(row.get(&column.to_lowercase()).cloned().flatten().unwrap_or_default().as_str())
                }
                None => Vec::new(),
            },
            version: "custom".to_owned(),
        })
    }

    fn role(&self, word: &str) -> Result<Role, Failure> {
        let words = [
            (&self.role_primary, Role::Primary),
            (&self.role_secondary, Role::Secondary),
            (&self.role_none, Role::None),
        ];
        let known = words.iter().find(|(known, _)| known.eq_ignore_ascii_case(word.trim()));
        known.map(|(_, role)| *role).ok_or_else(|| {
            let wanted = format!("{}, {} or {}", self.role_primary, self.role_secondary, self.role_none);
            Failure::new(Cause::Answer, format_args!("its role is {word:?}, which is not {wanted}"))
        })
    }
}

fn replicas(list: &str) -> Vec<Replica> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.take(REPLICAS_MAX).map(|name| Replica::Identity(name.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Columns {
        let name = |name: &str| name.to_owned();
        Columns {
            query: name("SELECT 1"),
            identity: name("id"),
            epoch: name("term"),
            role: name("part"),
            role_primary: name("leader"),
            role_secondary: name("follower"),
            role_none: name("single"),
            writable: Some(name("open")),
            replicas: Some(name("behind")),
            position: None,
            connections: None,
            connections_max: None,
            active: None,
        }
    }

    fn row(part: &str, term: &str) -> Row {
        let texts = [("id", "n1"), ("term", term), ("part", part), ("open", "1"), ("behind", "n2, n3,")];
        texts.iter().map(|(column, text)| ((*column).to_owned(), Some((*text).to_owned()))).collect()
    }

    #[test]
    fn columns_mean_what_the_configuration_says() {
        let address = "10.0.0.1:3306".parse().unwrap();
        let answer = columns().answer(address, &[row("Leader", "7")]).unwrap();
        assert_eq!(
            (answer.identity.as_str(), answer.role, answer.epoch, answer.writable),
            ("n1", Role::Primary, 7, true)
        );
        assert_eq!(answer.replicas, [Replica::Identity("n2".into()), Replica::Identity("n3".into())]);
        let refused = |rows: &[Row]| columns().answer(address, rows).unwrap_err().detail;
        assert_eq!(refused(&[row("boss", "7")]), "its role is \"boss\", which is not leader, follower or single");
        assert_eq!(refused(&[row("leader", "x")]), "column term is \"x\", no whole number");
        assert_eq!(refused(&[]), "it has no row");
        assert_eq!(refused(&[row("leader", "7"), row("leader", "7")]), "it has 2 rows instead of one");
        let mut without = row("leader", "7");
        without.remove("term");
        assert_eq!(refused(&[without]), "there is no column term; there are behind, id, open, part");
    }
}
