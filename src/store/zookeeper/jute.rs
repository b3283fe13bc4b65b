//! What do the bytes mean that go to a ZooKeeper server and come back? Requests written and answers read, as jute has them:
//! numbers of four and eight bytes with the highest first, and texts with their length before them.

mod answer;

pub use answer::{event, head};

/// What is asked.
#[derive(Debug, Clone)]
pub enum Ask {
    /// Makes a node that is there for good.
    Create {
        path: String,
        data: Vec<u8>,
    },
    /// Makes a node that goes with the session.
    CreateForSession {
        path: String,
    },
    Delete {
        path: String,
    },
    /// Replaces what a node holds, whatever its version.
    Set {
        path: String,
        data: Vec<u8>,
    },
    /// The same, if it is of this version.
    SetIf {
        path: String,
        data: Vec<u8>,
        version: i32,
    },
    /// Only within [`Ask::All`]: that it is there, and of this version if one is given.
    Check {
        path: String,
        version: Option<i32>,
    },
    /// Whether a node is there, and from when. With `watch` it is told when that changes, or what is in it.
    Look {
        path: String,
        watch: bool,
    },
    Get {
        path: String,
    },
    /// The names below a node.
    List {
        path: String,
    },
    /// It is told when the node goes, and of nothing that is written to it.
    WatchEnd {
        path: String,
    },
    /// What is asked after this sees all that was done before.
    Sync {
        path: String,
    },
    /// All of these or none.
    All(Vec<Self>),
    Ping,
    /// Says who asks.
    Login {
        secret: Vec<u8>,
    },
    /// Ends the session.
    Close,
}

/// What a server answers when it did what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    Stat(Stat),
    Data(Vec<u8>, Stat),
    Names(Vec<String>, Stat),
    /// One for each of [`Ask::All`].
    All(Vec<Self>),
}

/// What a server says of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// When it was last written to, by the clock of the leader, in milliseconds since 1970.
    pub mtime: u64,
    /// How often it was written to.
    pub version: i32,
    /// The session with which it goes; 0 for none.
    pub owner: i64,
}

/// Why a server did not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    pub const CONNECTION_LOSS: Self = Self(-4);
    pub const UNKNOWN: Self = Self(-6);
    pub const TIMEOUT: Self = Self(-7);
    pub const NO_NODE: Self = Self(-101);
    pub const NO_AUTH: Self = Self(-102);
    pub const BAD_VERSION: Self = Self(-103);
    pub const NODE_EXISTS: Self = Self(-110);
    pub const NOT_EMPTY: Self = Self(-111);
    pub const SESSION_EXPIRED: Self = Self(-112);
    pub const AUTH_FAILED: Self = Self(-115);
    pub const SESSION_MOVED: Self = Self(-118);
    pub const READ_ONLY: Self = Self(-119);
    pub const QUOTA: Self = Self(-125);
    pub const THROTTLED: Self = Self(-127);
}

/// Who may do what with a new node: everybody everything, or only who made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Everybody,
    Creator,
}

/// What a server answers to the first words.
#[derive(Debug)]
pub struct Welcome {
    /// In milliseconds; none if there is no such session.
    pub timeout: Option<u32>,
    pub session: i64,
    pub password: Vec<u8>,
}

/// What comes before an answer.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    pub number: i32,
    /// How far the server has come.
    pub seen: i64,
    pub code: Code,
}

/// The numbers that an answer has that is to no question.
pub const EVENT: i32 = -1;
pub const PING: i32 = -2;
pub const LOGIN: i32 = -4;

const CREATED: i32 = 1;

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: Kind,
    pub path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gone,
    Changed,
}

/// A text that is being written.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn int(&mut self, number: i32) {
        self.0.extend(number.to_be_bytes());
    }

    fn long(&mut self, number: i64) {
        self.0.extend(number.to_be_bytes());
    }

    fn flag(&mut self, flag: bool) {
        self.0.push(u8::from(flag));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.int(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        self.0.extend(bytes);
    }

    fn framed(self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        [&length.to_be_bytes(), self.0.as_slice()].concat()
    }
}

/// The first words: which session is wanted, and how long it may be silent, in milliseconds.
pub fn hello(seen: i64, timeout: i32, session: i64, password: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.int(0);
    writer.long(seen);
    writer.int(timeout);
    writer.long(session);
    writer.bytes(if password.is_empty() { &[0; 16] } else { password });
    // Whether a server would do that has lost the others and answers from what it remembers.
    writer.flag(false);
    writer.framed()
}

impl Ask {
    fn kind(&self) -> i32 {
        match self {
            Self::Create { .. } | Self::CreateForSession { .. } => 15,
            Self::Delete { .. } => 2,
            Self::Look { .. } => 3,
            Self::Get { .. } => 4,
            Self::Set { .. } | Self::SetIf { .. } => 5,
            Self::WatchEnd { .. } => 8,
            Self::Sync { .. } => 9,
            Self::Ping => 11,
            Self::List { .. } => 12,
            Self::Check { .. } => 13,
            Self::All(_) => 14,
            Self::Login { .. } => 100,
            Self::Close => -11,
        }
    }

    /// The bytes of a question with that number.
    pub fn framed(&self, number: i32, access: Access) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.int(number);
        writer.int(self.kind());
        self.write(&mut writer, access);
        writer.framed()
    }

    fn write(&self, writer: &mut Writer, access: Access) {
        match self {
            Self::Create { path, data } => create(writer, path, data, access, 0),
            Self::CreateForSession { path } => create(writer, path, b"", access, 1),
            Self::Delete { path } => {
                writer.bytes(path.as_bytes());
                writer.int(-1);
            }
            Self::Set { path, data } => {
                writer.bytes(path.as_bytes());
                writer.bytes(data);
                writer.int(-1);
            }
            Self::SetIf { path, data, version } => {
                writer.bytes(path.as_bytes());
                writer.bytes(data);
                writer.int(*version);
            }
            Self::Check { path, version } => {
                writer.bytes(path.as_bytes());
                writer.int(version.unwrap_or(-1));
            }
            Self::Look { path, watch } => {
                writer.bytes(path.as_bytes());
                writer.flag(*watch);
            }
            Self::Get { path } | Self::List { path } => {
                writer.bytes(path.as_bytes());
                writer.flag(false);
            }
            Self::WatchEnd { path } => {
                writer.bytes(path.as_bytes());
                writer.flag(true);
            }
            Self::Sync { path } => writer.bytes(path.as_bytes()),
            Self::All(parts) => {
                for part in parts {
                    writer.int(part.kind());
                    writer.flag(false);
                    writer.int(-1);
                    part.write(writer, access);
                }
                writer.int(-1);
                writer.flag(true);
                writer.int(-1);
            }
            Self::Login { secret } => {
                writer.int(0);
                writer.bytes(b"digest");
                writer.bytes(secret);
            }
            Self::Ping | Self::Close => {}
        }
    }

    /// How many bytes it takes, about.
    pub fn size(&self) -> usize {
        const AROUND: usize = 64;
        AROUND
            + match self {
                Self::Create { path, data } | Self::Set { path, data } | Self::SetIf { path, data, .. } => {
                    path.len() + data.len()
                }
                Self::CreateForSession { path }
                | Self::Delete { path }
                | Self::Check { path, .. }
                | Self::Look { path, .. }
                | Self::Get { path }
                | Self::List { path }
                | Self::WatchEnd { path }
                | Self::Sync { path } => path.len(),
                Self::All(parts) => parts.iter().map(Self::size).sum(),
                Self::Login { secret } => secret.len(),
                Self::Ping | Self::Close => 0,
            }
    }
}

fn create(writer: &mut Writer, path: &str, data: &[u8], access: Access, flags: i32) {
    const ALL: i32 = 31;
    writer.bytes(path.as_bytes());
    writer.bytes(data);
    writer.int(1);
    writer.int(ALL);
    let (scheme, id): (&[u8], &[u8]) = match access {
        Access::Everybody => (b"world", b"anyone"),
        Access::Creator => (b"auth", b""),
    };
    writer.bytes(scheme);
    writer.bytes(id);
    writer.int(flags);
}
