//! What a bad server may send, in the protocol of each store: well-formed answers that mean
//! nothing, refusals of every kind, wrong lengths, and answers without an end. `liar` and `servers`
//! decide when it is sent.

mod frames;

use super::liar::{Lie, garbled, random};
use crate::support::storm::Dice;
use crate::support::world::Backend;
use frames::*;

/// The protocol of a kind of server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tongue {
    #[cfg(feature = "mysql")]
    Mysql,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "etcd")]
    Etcd,
    #[cfg(feature = "zookeeper")]
    ZooKeeper,
}

impl Tongue {
    pub fn of(backend: Backend) -> Self {
        match backend {
            #[cfg(feature = "mysql")]
            Backend::Mysql => Self::Mysql,
            #[cfg(feature = "postgres")]
            Backend::Postgres => Self::Postgres,
            #[cfg(feature = "etcd")]
            Backend::Etcd => Self::Etcd,
            #[cfg(feature = "zookeeper")]
            Backend::ZooKeeper => Self::ZooKeeper,
            backend => panic!("{backend:?} has a bad server of its own"),
        }
    }

    /// Something in place of the answer. By chance it may be valid.
    pub fn lie(self, dice: &mut Dice, answer: &[u8]) -> Lie {
        match dice.roll(15) {
            0..5 => self.rubbish(dice, answer),
            5..9 => Lie::Say(garbled(dice, answer)),
            _ => Lie::Say(self.nonsense(dice, answer)),
        }
    }

    /// Bytes that are no valid answer, or a refusal.
    pub fn rubbish(self, dice: &mut Dice, answer: &[u8]) -> Lie {
        let half = answer[..answer.len() / 2].to_vec();
        match dice.roll(12) {
            0 => Lie::Last(Vec::new()),
            1 => Lie::Last(half),
            2 => Lie::Say(half),
            3 => Lie::Say(Vec::new()),
            4 => Lie::Slowly(answer.to_vec()),
            5 => Lie::Say(random(dice, 300)),
            6 => Lie::ForEver(Vec::new(), vec![b'x'; 4096]),
            7 => Lie::Say(self.too_long(dice)),
            8 => Lie::ForEver(self.too_long(dice), vec![0; 4096]),
            9 => {
                let floods = self.floods(answer);
                let (first, again) = dice.of(&floods).clone();
                Lie::ForEver(first, again)
            }
            _ => Lie::Say(self.refusal(dice, answer)),
        }
    }

    /// A message whose length field is huge or negative.
    fn too_long(self, dice: &mut Dice) -> Vec<u8> {
        let length =
            *dice.of(&[0xffff_ffff, 0x7fff_ffff, 0x8000_0000, (1 << 30) + 7, 33 << 20, (32 << 20) - 9, 3, 0]);
        self.with_length(dice, length)
    }

    fn with_length(self, dice: &mut Dice, length: u32) -> Vec<u8> {
        // ZooKeeper has one length field only.
        let _ = &dice;
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => {
                let body =
                    [&[*dice.of(&[0, 1, 2, 0xfe, 0xfc])][..], &u64::from(length).to_le_bytes()].concat();
                [&[0xff, 0xff, 0xff, 1][..], &body].concat()
            }
            #[cfg(feature = "postgres")]
            Self::Postgres => {
                [&[*dice.of(b"RDETZCSNA")][..], &length.to_be_bytes(), b"\0\x01\x7f\xff\xff\xff"].concat()
            }
            #[cfg(feature = "etcd")]
            Self::Etcd => {
                let head = dice.of(&["Content-Length: ", "Transfer-Encoding: chunked\r\n\r\n"]);
                let length = if head.ends_with('\n') { format!("{length:x}") } else { length.to_string() };
                format!("HTTP/1.1 200 OK\r\n{head}{length}\r\n\r\n{{").into()
            }
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => [&length.to_be_bytes()[..], &[0; 12]].concat(),
        }
    }

    /// Answers that begin well and do not end, or whose content takes more room than they say. Each
    /// is a pair: bytes sent once, and bytes sent again and again.
    pub fn floods(self, answer: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        // Only ZooKeeper's answers carry the number of the request.
        let _ = answer;
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => {
                let end = b"\xfe\0\0\x02\0";
                let columns = |count: &[u8]| [packet(1, count), packet(2, b"def"), packet(3, end)].concat();
                let longest = [&[0xff, 0xff, 0xff, 4][..], &vec![0xfb; 0xff_ffff]].concat();
                vec![
                    (columns(b"\x01"), packet(4, b"\x01a")),
                    (columns(b"\x0b"), packet(4, &[0xfb; 11])),
                    (columns(b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"), packet(4, &[0xfb; 5000])),
                    (columns(b"\xfd\xff\xff\xff"), longest),
                    // Columns without an end.
                    (packet(1, b"\x01"), packet(2, b"def")),
                    // Results without an end.
                    (Vec::new(), packet(1, b"\0\x01\0\x0a\0\0\0")),
                ]
            }
            #[cfg(feature = "postgres")]
            Self::Postgres => {
                let one = message(b'D', b"\0\x01\0\0\0\x01a");
                let wide = message(b'D', &[&[0, 11][..], &b"\0\0\0\x01a".repeat(11)].concat());
                let nothing = message(b'D', &[&[0xff, 0xff][..], &[0xff; 4 * 0xffff]].concat());
                let long =
                    [&[b'D'][..], &((32u32 << 20) - 9).to_be_bytes(), b"\0\x01\x01\xff\xff\0"].concat();
                vec![
                    (Vec::new(), message(b'D', b"\0\0")),
                    (Vec::new(), one),
                    (Vec::new(), wide),
                    (Vec::new(), nothing),
                    (long, vec![b'6'; 4096]),
                    (Vec::new(), message(b'N', b"Mnotice\0\0")),
                    (Vec::new(), message(b'R', &[0; 4])),
                    (Vec::new(), message(b'C', b"UPDATE 1\0")),
                ]
            }
            #[cfg(feature = "etcd")]
            Self::Etcd => {
                let head = |body: &str| {
                    let length = 31 << 20;
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
                };
                let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
                let range = r#"{"responses":[{"response_range":{"kvs":["#;
                vec![
                    (head(r#"{"responses":["#), b"{},".to_vec()),
                    (head(range), b"{},".to_vec()),
                    (head(range), br#"{"key":"YQ=="},"#.to_vec()),
                    (head(r#"{"keys":["#), br#""","#.to_vec()),
                    (head(r#"{"result":{"events":["#), b"{},".to_vec()),
                    (head(""), b"[".to_vec()),
                    (chunked.clone(), b"1\r\n{\r\n".to_vec()),
                    (chunked, [b"8000\r\n".as_slice(), &[b' '; 0x8000], b"\r\n"].concat()),
                    (b"HTTP/1.1 200 OK\r\n".to_vec(), b"A: b\r\n".to_vec()),
                    (b"HTTP/1.1 200 OK\r\nA: ".to_vec(), b"b".to_vec()),
                    (Vec::new(), b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n".to_vec()),
                ]
            }
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => {
                // Of several frames in one packet the last one is the list.
                let (before, last) = frames(answer);
                let head = [number_of(last), &[0; 8], &[0; 4]].concat();
                let names =
                    |count: u32| [before, &(31u32 << 20).to_be_bytes(), &head, &count.to_be_bytes()].concat();
                let event = |path: &[u8]| {
                    let length = u32::try_from(path.len()).expect("a length").to_be_bytes();
                    let head = [&[0xff; 4][..], &[0; 12], &[0, 0, 0, 3, 0, 0, 0, 3], &length].concat();
                    frame(&[&head, path].concat())
                };
                vec![
                    (names((31 << 18) - 9), vec![0; 4096]),
                    (names(6 << 20), b"\0\0\0\x01a".to_vec()),
                    (names(1 << 18), vec![0; 4096]),
                    (Vec::new(), event(b"/a")),
                    (Vec::new(), event(&[b'/'; 8000])),
                    (Vec::new(), event(&[b'/'; 1 << 20])),
                    (Vec::new(), frame(&[&[0xff, 0xff, 0xff, 0xfe][..], &[0; 12]].concat())),
                    (Vec::new(), frame(&[])),
                ]
            }
        }
    }

    /// An error that the server may return, at a time when it may not.
    fn refusal(self, dice: &mut Dice, answer: &[u8]) -> Vec<u8> {
        let _ = answer;
        let said = *dice.of(&[
            "no",
            "",
            "\u{1b}[2J",
            "invalid user ID or password",
            "etcdserver: request is too large",
        ]);
        // ZooKeeper's errors have no text.
        let _ = said;
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => {
                let code = match dice.roll(3) {
                    0 => u16::try_from(dice.roll(65_536)).unwrap_or(0),
                    _ => *dice.of(&[
                        1040, 1044, 1045, 1049, 1050, 1105, 1142, 1146, 1153, 1205, 1213, 1290, 1317, 1969,
                        3024,
                    ]),
                };
                packet(1, &[&[0xff][..], &code.to_le_bytes(), b"#HY000", said.as_bytes()].concat())
            }
            #[cfg(feature = "postgres")]
            Self::Postgres => {
                let code = dice.of(&[
                    "42P01", "42501", "28P01", "3D000", "40001", "40P01", "53300", "57P01", "25006", "XX000",
                    "", "é",
                ]);
                let grave = dice.of(&["ERROR", "FATAL", "PANIC", ""]);
                let error = message(b'E', format!("V{grave}\0C{code}\0M{said}\0\0").as_bytes());
                if dice.roll(2) == 0 { error } else { [error, message(b'Z', b"I")].concat() }
            }
            #[cfg(feature = "etcd")]
            Self::Etcd => {
                let code = dice.roll(18);
                let body = match dice.roll(3) {
                    0 => format!(r#"{{"code":{code},"message":{said:?}}}"#).replace("\\u{1b}", "\\u001b"),
                    1 => format!(r#"{{"error":{{"grpc_code":{code},"message":"no"}}}}"#),
                    _ => said.into(),
                };
                http(*dice.of(&[400, 401, 404, 429, 500, 503, 200]), body.as_bytes())
            }
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => {
                let known = [
                    -1,
                    -4,
                    -6,
                    -7,
                    -8,
                    -101,
                    -102,
                    -103,
                    -110,
                    -111,
                    -112,
                    -115,
                    -118,
                    -119,
                    -125,
                    -127,
                    1,
                    i32::MIN,
                ];
                let code: i32 = *dice.of(&known);
                frame(&[number_of(answer), &[0; 8], &code.to_be_bytes()].concat())
            }
        }
    }

    /// A well-formed message that answers no request.
    fn nonsense(self, dice: &mut Dice, answer: &[u8]) -> Vec<u8> {
        let _ = answer;
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => {
                let mut said = Vec::new();
                for number in 1..=1 + dice.roll(6) {
                    let body = match dice.roll(8) {
                        0 => vec![0, 1, 0, 2, 0, 0, 0],
                        1 => b"\xfe\0\0\x02\0".to_vec(),
                        2 => b"\xfemysql_native_password\0abcdefghijklmnopqrst\0".to_vec(),
                        3 => b"\xfb/etc/hostname".to_vec(),
                        4 => vec![u8::try_from(dice.roll(256)).unwrap_or(0)],
                        5 => Vec::new(),
                        6 => b"\x01t\x0212\x0134".to_vec(),
                        _ => random(dice, 40),
                    };
                    said.extend(packet(u8::try_from(number).unwrap_or(0), &body));
                }
                said
            }
            #[cfg(feature = "postgres")]
            Self::Postgres => {
                let mut said = Vec::new();
                for _ in 0..=dice.roll(5) {
                    let kind = *dice.of(b"DDDCCZTRKSNAE12In");
                    let body = match (kind, dice.roll(3)) {
                        (b'D', 0 | 1) => row(dice),
                        (b'C', 0) => b"UPDATE 1\0".to_vec(),
                        (b'C', 1) => b"INSERT 0 99999999999999999999\0".to_vec(),
                        (b'R', 0 | 1) => vec![0, 0, 0, u8::try_from(dice.roll(14)).unwrap_or(0), 1, 2, 3, 4],
                        _ => random(dice, 40),
                    };
                    said.extend(message(kind, &body));
                }
                if dice.roll(3) > 0 { [said, message(b'Z', b"I")].concat() } else { said }
            }
            #[cfg(feature = "etcd")]
            Self::Etcd => {
                let pair = r#"{"key":"ZGxvY2svbG9jay9k","value":"bnVsbA==","mod_revision":"7","lease":"-1"}"#;
                let range = format!(r#"{{"response_range":{{"kvs":[{pair},{pair}],"count":"1"}}}}"#);
                let header = r#""header":{"cluster_id":"1","revision":"18446744073709551615"}"#;
                let bodies = [
                    "{}".to_owned(),
                    "[]".into(),
                    "null".into(),
                    "7".into(),
                    String::new(),
                    "{".repeat(500),
                    "[".repeat(100_000),
                    format!("{{{header}}}"),
                    format!(r#"{{{header},"succeeded":true}}"#),
                    format!(r#"{{{header},"succeeded":true,"responses":[{range},{range},{range},{range}]}}"#),
                    format!(r#"{{{header},"responses":[{{}},{range},null]}}"#),
                    format!(r#"{{{header},"responses":{{"a":[{range}]}}}}"#),
                    format!(r#"{{"result":{{{header},"ID":"5","TTL":"99999999999999999"}}}}"#),
                    r#"{"result":{"created":true}}"#.into(),
                    r#"{"result":{"canceled":true}}"#.into(),
                    r#"{"header":{"cluster_id":1e400}}"#.into(),
                    r#"{"header":null,"TTL":-5,"ID":"x"}"#.into(),
                    r#"{"token":"a b\u0000"}"#.into(),
                ];
                let body = dice.of(&bodies);
                let status = *dice.of(&[200, 200, 200, 200, 204, 302, 999]);
                if dice.roll(4) == 0 {
                    let head = format!("HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n");
                    return format!("{head}{:x};a=b\r\n{body}\n\r\n0\r\nA: b\r\n\r\n", body.len() + 1).into();
                }
                http(status, body.as_bytes())
            }
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => {
                let rest = match dice.roll(5) {
                    0 => Vec::new(),
                    1 => vec![0; 96],
                    2 => vec![0xff; 96],
                    3 => [&[0, 0, 0, 4][..], b"null", &[0; 68]].concat(),
                    _ => random(dice, 120),
                };
                let numbers: [&[u8]; 6] = [
                    number_of(answer),
                    number_of(answer),
                    number_of(answer),
                    &[0xff; 4],
                    &[0xff, 0xff, 0xff, 0xfe],
                    &[7; 4],
                ];
                frame(&[*dice.of(&numbers), &[0; 8], &[0; 4], &rest].concat())
            }
        }
    }
}
