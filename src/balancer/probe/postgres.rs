//! What PostgreSQL is asked (DB-16): facts that were tried on version 15.

use std::net::SocketAddr;

use postroad_cluster::balancer::{
    database::evidence::{Answer, Cause, Failure, Position, Replica, Role},
    limits::REPLICAS_MAX,
};

use super::{number, only, session::Session, text, yes};

/// One statement, so that all of an answer is of one moment. The timeline of a primary is its log file's, since the
/// control file's is late after a promotion; a standby's is the newest that it was told of. A server that no replica can
/// follow stands outside any cluster.
const QUERY: &str = "\
SELECT current_setting('cluster_name') AS identity,
       (SELECT system_identifier FROM pg_control_system()) AS cluster,
       pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only') AS read_only,
       current_setting('max_wal_senders')::int > 0 AS followed,
       CASE WHEN pg_is_in_recovery()
            THEN greatest((SELECT timeline_id FROM pg_control_checkpoint()),
                          (SELECT min_recovery_end_timeline FROM pg_control_recovery()),
                          (SELECT max(received_tli) FROM pg_stat_wal_receiver))::bigint
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
       END AS epoch,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
                       '0/0')::bigint AS position,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       current_setting('max_connections') AS connections_max,
       (SELECT count(*) FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND state IN ('active', 'fastpath function call')
           AND pid <> pg_backend_pid()) AS active,
       (SELECT json_agg(json_build_array(application_name, host(client_addr)))
          FROM pg_stat_replication WHERE state = 'streaming') AS replicas,
       current_setting('server_version') AS version";

/// What a standby calls itself that was given neither an `application_name` nor a `cluster_name`.
const NAMELESS: &str = "walreceiver";

/// Asks the node behind `session`.
pub(super) async fn ask(session: &mut Session, address: SocketAddr) -> Result<Answer, Failure> {
    let row = only(session.rows(QUERY).await?)?;
    let standby = yes(&row, "standby")?;
    let replicas = match row.get("replicas").cloned().flatten() {
        Some(list) => replicas(&list)?,
        None => Vec::new(),
    };
    Ok(Answer {
        address,
        identity: text(&row, "identity")?.to_owned(),
        cluster: Some(text(&row, "cluster")?.to_owned()),
        role: match (standby, yes(&row, "followed")?) {
            (true, _) => Role::Secondary,
            (false, true) => Role::Primary,
            (false, false) => Role::None,
        },
        writable: !standby && !yes(&row, "read_only")?,
        epoch: number(&row, "epoch")?,
        connections: number(&row, "connections")?,
        connections_max: number(&row, "connections_max")?,
        active: number(&row, "active")?,
        // A standby that has replayed nothing yet says null.
        position: row
            .get("position")
            .cloned()
            .flatten()
            .map(|_| number(&row, "position"))
            .transpose()?
            .map(Position::bytes),
        replicas,
        version: text(&row, "version")?.to_owned(),
    })
}

fn replicas(list: &str) -> Result<Vec<Replica>, Failure> {
    let read: Result<Vec<(String, Option<String>)>, _> = serde_json::from_str(list);
    let rows = read.map_err(|error| Failure::new(Cause::Answer, format_args!("the list of replicas: {error}")))?;
    let replicas = rows.into_iter().take(REPLICAS_MAX).filter_map(|(name, address)| match name.as_str() {
        "" | NAMELESS => address.and_then(|address| address.parse().ok()).map(Replica::Address),
        _ => Some(Replica::Identity(name)),
    });
    Ok(replicas.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_known_by_name_and_nameless_ones_by_address() {
        let list = r#"[["db-2","10.0.0.2"],["walreceiver","10.0.0.3"],["",null],["walreceiver",null]]"#;
        let expected = [Replica::Identity("db-2".into()), Replica::Address("10.0.0.3".parse().unwrap())];
        assert_eq!(replicas(list).unwrap(), expected);
        assert_eq!(replicas("{").unwrap_err().cause, Cause::Answer);
    }
}
