//! Tools of the scenarios: a world with a store, dlock as a program, jobs, a network with faults, a
//! terminal. There are no scenarios here.

pub mod ask;
pub mod certificates;
pub mod cluster;
#[cfg(feature = "sql")]
pub mod database;
pub mod deadline;
pub mod disk;
pub mod dlock;
pub mod door;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
pub mod hand_over;
pub mod haproxy;
pub mod hole;
pub mod job;
pub mod machine;
pub mod masters;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub mod members;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod night;
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
pub mod outages;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod proc;
pub mod proxy;
pub mod pty;
pub mod redis;
pub mod replicated;
pub mod sentinel;
pub mod storm;
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
pub mod target;
pub mod wait;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub mod wires;
pub mod world;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
