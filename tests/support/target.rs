//! A store's servers, for tests that use dlock's stores as a library.

use dlock::store::net::Address;
use dlock::store::net::target::Target;
use std::time::Duration;

pub fn target(servers: Vec<Address>, user: Option<&str>, space: &str) -> Target {
    Target {
        servers,
        user: user.map(Into::into),
        password: None,
        tls: None,
        is_clear: false,
        space: space.into(),
        shown: "here".into(),
        connect_timeout: Duration::from_secs(20),
        op_timeout: Duration::from_secs(20),
    }
}

pub fn local(port: u16) -> Address {
    Address::Tcp { host: "127.0.0.1".into(), port }
}
