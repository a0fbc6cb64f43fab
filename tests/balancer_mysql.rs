//! The database balancer before MySQL in the words of its releases: a server of the tests answers as 5.7, 8.0 and 8.4 do,
//! and refuses what these do not know.

#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/balancer.rs"]
mod balancer;
#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/mysql_node.rs"]
mod mysql_node;
#[allow(dead_code, reason = "several tests share it, and none needs all of it")]
#[path = "support/servers.rs"]
mod servers;

use balancer::Balancer;
use mysql_node::MysqlNode;
use servers::until;

// DB-2, DB-3, DB-8, DB-12: 8.0.22 renamed the list of replicas, 8.4 took away the old names and that of the log's place.
#[test]
fn mysql_is_probed_in_the_words_of_each_release() {
    for version in ["5.7.44-log", "8.0.21", "8.0.36", "8.4.3"] {
        let first = MysqlNode::start_as(Some(version), "1", "PRIMARY", "2");
        let second = MysqlNode::start_as(Some(version), "2", "SECONDARY", "");
        let monitor = "user = \"monitor\"\npassword = \"watching\"\ntls = \"disabled\"\nperiod_ms = 300";
        let nodes = format!("{}{}", first.line(), second.line());
        let balancer = Balancer::start("engine = \"mysql\"", &nodes, monitor, "");
        until(&format!("both nodes of {version}"), || {
            let settled = balancer.primary().as_deref() == Some("1") && balancer.readers() == ["2"];
            settled.then_some(())
        });
        let node = balancer.node("2");
        assert_eq!((&node["lag_bytes"], &node["version"]), (&0.into(), &version.into()), "{node}");
    }
}
