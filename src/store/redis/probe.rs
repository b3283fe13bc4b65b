//! Asks one server what `doctor` wants to know, on a connection of its own. It changes only two
//! keys of its own. They are deleted at the end, and expire after a minute in any case.
//!
//! Permissions are tried, not queried: ACL DRYRUN needs an administrator, and does not notice that
//! a server is read-only or full.

use super::connection::Connection;
use super::keyspace::key_patterns;
use super::target::Target;
use crate::clock::Moment;
use crate::lock::{Key, Name, Token};
use crate::store::Error;
use crate::store::probe::{Facts, Info, Node, Persistence, Rights, Role, measure};
use redis::{Cmd, Value};
use std::time::Duration;

/// Most keys tried to find one in the server's own slots; a cluster seldom has more than 100
/// masters.
const SLOTS_TRIED: usize = 1000;

const TRIAL: &str = include_str!("scripts/probe.lua");
const CLEAN: &str = "redis.call('DEL', KEYS[1], KEYS[2])";

/// Asks a server. `prefix` is the prefix of all lock names.
pub fn probe(target: &Target, prefix: &str) -> Node {
    Node { name: target.address.to_string(), facts: facts(target, prefix) }
}

/// How long a master must not answer before these sentinels count it as down, from the first one
/// that answers.
pub fn down_after(sentinels: &[Target], service: &str) -> Option<Duration> {
    setting(sentinels, &["SENTINEL", "MASTER", service], "down-after-milliseconds")
}

/// How long a master must not answer before its cluster counts it as down, from the first one that
/// answers.
pub fn node_timeout(masters: &[Target]) -> Option<Duration> {
    setting(masters, &["CONFIG", "GET", "cluster-node-timeout"], "cluster-node-timeout")
}

/// This setting of the first server that tells it, in milliseconds.
fn setting(servers: &[Target], question: &[&str], name: &str) -> Option<Duration> {
    servers.iter().find_map(|server| {
        let value = Server::dial(server).ok()?.ask(question).ok()?;
        let fields: Vec<String> = redis::from_redis_value(value).ok()?;
        let pair = fields.chunks_exact(2).find(|pair| pair[0] == name)?;
        pair[1].parse().ok().map(Duration::from_millis)
    })
}

fn facts(target: &Target, prefix: &str) -> Result<Facts, Error> {
    let mut server = Server::dial(target)?;
    // The first command carries AUTH and SELECT, so it is not measured.
    server.ask(&["TIME"])?;
    let (round_trip, clock) = measure(|| server.clock())?;
    let info = server.info()?;
    Ok(Facts { round_trip, clock, info, rights: server.rights(prefix)? })
}

struct Server(Connection);

impl Server {
    fn dial(target: &Target) -> Result<Self, Error> {
        Connection::dial(target, Moment::now().after(target.request_time())).map(Self)
    }

    fn op_timeout(&self) -> Duration {
        self.0.target().op_timeout
    }

    fn ask(&mut self, words: &[&str]) -> Result<Value, Error> {
        self.0.ask(Cmd::new().arg(words).take(), Moment::now().after(self.op_timeout()))
    }

    /// An answer that the server may refuse to give.
    fn ask_if_allowed(&mut self, words: &[&str]) -> Result<Result<Value, String>, Error> {
        match self.ask(words) {
            Ok(Value::ServerError(error)) if error.code() != "NOSCRIPT" => Ok(Err(error.code().into())),
            Ok(value) => Ok(Ok(value)),
            Err(error @ (Error::Unreachable(_) | Error::Overloaded(_) | Error::Misnamed(_))) => Err(error),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    /// The server's time since 1970, by TIME, which every user of dlock's may run.
    fn clock(&mut self) -> Result<Option<Duration>, Error> {
        Ok(time_of(&self.ask(&["TIME"])?))
    }

    fn info(&mut self) -> Result<Option<Info>, Error> {
        let Ok(value) = self.ask_if_allowed(&["INFO"])? else { return Ok(None) };
        let Ok(text) = redis::from_redis_value::<String>(value) else { return Ok(None) };
        let saves = match self.ask_if_allowed(&["CONFIG", "GET", "save"])? {
            Ok(value) => redis::from_redis_value::<Vec<String>>(value).ok().and_then(|mut pair| pair.pop()),
            Err(_) => None,
        };
        Ok(Some(read_info(&text, saves.as_deref())))
    }

    /// Tries what locks need, on temporary keys.
    fn rights(&mut self, prefix: &str) -> Result<Rights, Error> {
        // In a cluster a server runs this only for its own slots, so keys are tried until one fits.
        for _ in 0..SLOTS_TRIED {
            let name = Token::random()
                .map_err(|error| error.to_string())
                .and_then(|token| Name::new(prefix, &Key::new(&format!("doctor-{}", token.secret()))?));
            let name = match name {
                Ok(name) => name,
                Err(why) => return Ok(Rights { refused: Some(why), ..Rights::default() }),
            };
            if let Some(rights) = self.rights_on(&name, prefix)? {
                return Ok(rights);
            }
        }
        Ok(Rights { refused: Some("it has none of the slots that were tried".into()), ..Rights::default() })
    }

    /// The same on keys of this name; None if they belong to another server.
    fn rights_on(&mut self, name: &Name, prefix: &str) -> Result<Option<Rights>, Error> {
        let mut rights = Rights::default();
        let lock = name.as_str();
        let derived = format!("dlock.doctor:{{{}}}:{lock}", name.tag());
        match self.ask_if_allowed(&["EVAL", TRIAL, "2", lock, &derived])? {
            Err(refusal) if refusal.contains("MOVED") => return Ok(None),
            Err(refusal) => rights.note("EVAL", &refusal),
            Ok(value) => {
                let answers: Vec<String> = redis::from_redis_value(value).unwrap_or_default();
                for pair in answers.chunks_exact(2) {
                    rights.note(&pair[0], &pair[1]);
                }
            }
        }
        let outside: [&[&str]; 3] = [
            &["BLPOP", &derived, "0.01"],
            &["EVALSHA", "0000000000000000000000000000000000000000", "0"],
            &["SCAN", "0", "MATCH", &derived, "COUNT", "1"],
        ];
        for words in outside {
            if let Err(refusal) = self.ask_if_allowed(words)? {
                rights.note(words[0], &refusal);
            }
        }
        // Deletes what the trial could not.
        self.ask_if_allowed(&["EVAL", CLEAN, "2", lock, &derived])?.ok();
        if rights.keys.is_some() {
            rights.keys = Some(key_patterns(prefix));
        } else if self.may_touch_others(prefix)? {
            rights.beyond = Some(key_patterns(prefix));
        }
        Ok(Some(rights))
    }

    /// Whether the ACL of this user lets it touch the locks of another prefix, by reading a key that
    /// does not exist. The server checks the right before it redirects (MOVED). False for the user
    /// `default`: most servers let it do all, also where no other team uses them.
    fn may_touch_others(&mut self, prefix: &str) -> Result<bool, Error> {
        let user = self.0.target().username.as_deref();
        if prefix.is_empty() || user.is_none_or(|user| user == "default") {
            return Ok(false);
        }
        let other = if prefix.starts_with('x') { "y" } else { "x" };
        let key = format!("dlock.doctor:{{{other}:doctor}}:{other}:doctor");
        let refusal = self.ask_if_allowed(&["EXISTS", &key])?;
        Ok(refusal.map_or_else(|refusal| refusal == "MOVED", |_| true))
    }
}

impl Rights {
    /// Records what the refusal of a command means. The words are those of Redis 7.0 to 8, inside
    /// and outside of scripts.
    fn note(&mut self, command: &str, refusal: &str) {
        let about_keys = [
            "access at least one of the keys",
            "access one of the keys",
            "can't access",
            "denies this user its keys",
        ];
        let about_command = ["can't run this command", "no permissions to run", "denies this user a right"];
        if about_keys.iter().any(|words| refusal.contains(words)) {
            self.keys = Some(String::new());
        } else if about_command.iter().any(|words| refusal.contains(words)) {
            if !self.commands.iter().any(|known| known == command) {
                self.commands.push(command.into());
            }
        } else if self.refused.is_none() {
            self.refused = Some(refusal.into());
        }
    }
}

/// The time in an answer to TIME.
fn time_of(answer: &Value) -> Option<Duration> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(answer).ok()?;
    Duration::from_secs(seconds).checked_add(Duration::from_micros(micros))
}

/// Parses INFO. `saves` is the setting `save`, if it is known.
fn read_info(text: &str, saves: Option<&str>) -> Info {
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':')).unwrap_or_default()
    };
    let number = |name: &str| field(name).parse().unwrap_or(0);
    Info {
        version: field("redis_version").into(),
        role: if field("role") == "slave" { Role::Replica } else { Role::Master },
        uptime: Duration::from_secs(number("uptime_in_seconds")),
        eviction: field("maxmemory_policy").into(),
        memory: number("maxmemory"),
        persistence: match (field("aof_enabled"), saves) {
            ("1", _) => Persistence::Log,
            (_, None) => Persistence::NoLog,
            (_, Some("")) => Persistence::None,
            (_, Some(_)) => Persistence::Snapshots,
        },
        replicas: number("connected_slaves"),
        // Redis counts the good replicas only if the setting is not 0.
        fenced: !field("min_slaves_good_slaves").is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new command in a script must be added to the trial.
    #[test]
    fn every_command_of_the_scripts_is_tried() {
        let scripts = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/scripts");
        let call = regex_lite::Regex::new("call\\('([A-Z]+)'").map_err(|error| error.to_string());
        let mut untried = std::collections::BTreeSet::new();
        for entry in std::fs::read_dir(scripts).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            for found in call.iter().flat_map(|call| call.captures_iter(&text)) {
                if !TRIAL.contains(&format!("try('{}'", &found[1])) {
                    untried.insert(found[1].to_owned());
                }
            }
        }
        assert!(untried.is_empty(), "probe.lua does not try {untried:?}");
    }

    #[test]
    fn info_is_read() {
        let text = "# Server\r\nredis_version:7.0.15\r\nuptime_in_seconds:60\r\nrole:master\r\nmaxmemory:100\r\n\
            maxmemory_policy:noeviction\r\naof_enabled:0\r\nconnected_slaves:2\r\nmin_slaves_good_slaves:1\r\n";
        let info = read_info(text, Some("3600 1"));
        assert_eq!((info.version.as_str(), info.memory, info.replicas), ("7.0.15", 100, 2));
        assert!(info.role == Role::Master && info.fenced);
        assert_eq!(info.persistence, Persistence::Snapshots);
        assert_eq!(read_info("role:slave\r\n", None).role, Role::Replica);
        assert_eq!(read_info("aof_enabled:1\r\n", None).persistence, Persistence::Log);
        assert_eq!(read_info("", Some("")).persistence, Persistence::None);
    }

    #[test]
    fn a_time_that_no_clock_shows_is_none() {
        let time = |seconds: &[u8], micros: &[u8]| {
            let words = [seconds, micros].map(|word| Value::BulkString(word.to_vec()));
            time_of(&Value::Array(words.to_vec()))
        };
        assert!(time(b"1800000000", b"999999").is_some());
        assert!(time(b"18446744073709551615", b"18446744073709551615").is_none());
    }

    #[test]
    fn refusals_are_told_apart() {
        let mut rights = Rights::default();
        for refusal in [
            "ERR The user executing the script can't run this command or subcommand script: x",
            "NOPERM this user has no permissions to run the 'zadd' command",
        ] {
            rights.note("ZADD", refusal);
        }
        rights.note("SET", "READONLY You can't write against a read only replica.");
        rights
            .note("GET", "ERR The user executing the script can't access at least one of the keys mentioned");
        assert_eq!(rights.commands, ["ZADD"]);
        assert!(rights.keys.is_some());
        assert_eq!(rights.refused.as_deref(), Some("READONLY You can't write against a read only replica."));
    }
}
