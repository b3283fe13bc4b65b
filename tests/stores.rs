//! The stores: what they do alike, and what can happen to each.
//!
//! - acl: the least rights that the documents give, and the message when one is missing
//! - cluster: Redis Cluster
//! - conformance: what every store does alike
//! - databases: databases that restart, and lost answers
//! - etcd: members of etcd that are killed, stopped or left behind
//! - failover: a database standby that takes the place of the primary
//! - file_store: other users, limits and stopped processes where the store is a directory
//! - floods: a server, or another client that writes there, sends more than dlock reads
//! - forged: records that another program has changed
//! - guests: other users of the same database gain nothing through dlock
//! - interop: the well-known pattern of other lock libraries
//! - lost_replies: a network that loses and delays; waiters that leave at the moment of their grant
//! - lua_port: the lock rules against their port in Lua, on random histories
//! - memory: a whole store, as docs/adding-a-store.md says
//! - mysql: MySQL and MariaDB
//! - quorum: several masters hold one lock, and some of them are lost
//! - replicas: `--replicas`
//! - rotation: passwords and certificates that change while a job runs
//! - sentinel: Redis Sentinel: failovers that keep a lock, and failovers that lose it
//! - server_states: a server that answers and cannot serve
//! - sql: PostgreSQL
//! - tls: which server is trusted, and the message when one is not
//! - trust: which servers dlock believes, and to which it sends a password
//! - zookeeper: ZooKeeper: sessions, elections, networks

pub mod acl;
pub mod cluster;
pub mod conformance;
#[cfg(feature = "sql")]
pub mod databases;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "sql")]
pub mod failover;
pub mod file_store;
pub mod floods;
pub mod forged;
#[cfg(feature = "sql")]
pub mod guests;
pub mod interop;
pub mod lost_replies;
pub mod lua_port;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod quorum;
pub mod replicas;
pub mod rotation;
pub mod sentinel;
pub mod server_states;
#[cfg(feature = "postgres")]
pub mod sql;
pub mod tls;
pub mod trust;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
