//! What other programs write in the URL of a store: what to write here in its place, and which
//! parameters change nothing for dlock.

/// The URL to write in place of one with this scheme, which is in lower case.
pub fn instead_of_scheme(scheme: &str) -> Option<&'static str> {
    let (base, driver) = scheme.split_once('+').unwrap_or((scheme, ""));
    Some(match (base, driver) {
        ("mysql" | "mysql2" | "mariadb" | "trilogy", _) => "mysql://USER@HOST/DATABASE",
        ("postgres" | "postgresql" | "postgis" | "pgsql" | "psql", _) => "postgres://USER@HOST/DATABASE",
        ("valkey" | "keydb", "") => "redis://HOST",
        ("valkeys", "") => "rediss://HOST",
        ("redis-sentinel" | "valkey-sentinel", "") => "redis+sentinel://HOST,…/MASTER",
        ("redis-cluster" | "valkey-cluster", "") => "redis+cluster://HOST,…",
        ("unix" | "redis-socket", "") | ("redis" | "valkey", "socket") => "redis+unix:///SOCKET",
        ("http", "") => "etcd://HOST if it is an etcd",
        ("https", "") => "etcds://HOST if it is an etcd",
        _ => return None,
    })
}

/// What to do with a parameter of another program.
pub fn instead_of_parameter(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().replace('-', "_").as_str() {
        "sslrootcert" | "ssl_ca_certs" | "ssl_ca" | "sslca" => "write ca=FILE",
        "sslcert" | "ssl_certfile" | "ssl_cert" => "write cert=FILE",
        "sslkey" | "ssl_keyfile" | "ssl_key" => "write key=FILE",
        "ssl_cert_reqs" | "ssl_check_hostname" | "sslaccept" => {
            "dlock always checks the server's certificate (ca=FILE names your own authority); leave it out"
        }
        "channel_binding" => "dlock checks the server's certificate in its place; leave it out",
        "ssl" | "tls" | "usessl" | "ssl_mode" => {
            "a database has sslmode=verify-full by default, else the scheme says TLS (rediss, etcds, zookeepers)"
        }
        "connect_timeout" | "connecttimeout" | "socket_connect_timeout" | "timeout" => {
            "write --connect-timeout or DLOCK_CONNECT_TIMEOUT"
        }
        "socket_timeout" | "sockettimeout" | "command_timeout" => "write --op-timeout or DLOCK_OP_TIMEOUT",
        "db" | "dbname" | "database" => "the database stands after the host, HOST/DATABASE",
        "target_session_attrs" => "of several hosts dlock uses the one that can write; leave it out",
        _ => return None,
    })
}

/// Whether a parameter changes nothing for dlock: a name in the server's lists, an encoding, a
/// protocol that is not visible.
pub fn is_harmless(name: &str, text: &str) -> bool {
    match name {
        "application_name" | "fallback_application_name" | "client_name" => true,
        "client_encoding" | "charset" | "encoding" => true,
        "protocol" => matches!(text, "2" | "3"),
        "channel_binding" => matches!(text, "prefer" | "disable"),
        "ssl_cert_reqs" => text == "required",
        _ => false,
    }
}
