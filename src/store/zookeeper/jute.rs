//! ZooKeeper's messages in jute encoding: integers of four and eight bytes, highest byte first, and
//! strings with their length before them.

mod answer;

pub use answer::{event, head};

/// A request. Most are about the node with this path.
#[derive(Debug, Clone)]
pub enum Ask {
    /// Creates a persistent node.
    Create {
        path: String,
        data: Vec<u8>,
    },
    /// Creates an ephemeral node.
    CreateForSession(String),
    Delete(String),
    /// Replaces a node's data; with a version, only if the node has it.
    Set {
        path: String,
        data: Vec<u8>,
        version: Option<i32>,
    },
    /// Only within [`Ask::All`]: checks that a node exists and, if given, its version.
    Check {
        path: String,
        version: Option<i32>,
    },
    /// Whether a node exists, and its [`Stat`].
    Look(String),
    /// The same, and watches its creation, changes and end.
    Watch(String),
    Get(String),
    /// Lists the names of a node's children.
    List(String),
    /// Reads the access list of a node.
    Acl(String),
    /// Watches for a node's end, and not for writes to it: a watch of children, of which an
    /// ephemeral node has none.
    WatchEnd(String),
    /// Requests after this one see all earlier writes.
    Sync(String),
    /// Does all of these or none.
    All(Vec<Self>),
    Ping,
    /// Logs in with this secret.
    Login(Vec<u8>),
    /// Ends the session.
    Close,
}

/// The answer to a request that was done. What the request does not ask for is empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub stat: Stat,
    pub data: Vec<u8>,
    /// Names of the node's children.
    pub names: Vec<String>,
    /// Access list of the node.
    pub acl: Vec<Grant>,
    /// Time of the write, as in [`Stat::mtime`]. None after a read, and after a transaction that
    /// only creates or deletes.
    pub written: Option<u64>,
}

/// The answers to several requests, in order; for a request that was not done, the reason.
pub type Answers = Vec<Result<Answer, Code>>;

/// State of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// Time of the last write, by the leader's clock, in milliseconds since 1970.
    pub mtime: u64,
    /// Number of writes.
    pub version: i32,
    /// Session of an ephemeral node; 0 for none.
    pub owner: i64,
}

/// An entry of an access list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub rights: i32,
    /// The kind of identity: `world`, `ip`, `digest`, …
    pub scheme: String,
    pub id: String,
}

/// ZooKeeper's error code for a request that was not done.
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

/// Access to a new node: for everybody, or only for its creator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Everybody,
    Creator,
}

/// The server's answer to [`hello`].
#[derive(Debug)]
pub struct Welcome {
    /// In milliseconds. None if the session does not exist.
    pub timeout: Option<u32>,
    pub session: i64,
    pub password: Vec<u8>,
}

/// Header of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    pub number: i32,
    /// Newest zxid of the server.
    pub seen: i64,
    pub code: Code,
}

/// Numbers (xid) in place of a request's: the frame is an event, or answers a ping or a login.
pub const EVENT: i32 = -1;
pub const PING: i32 = -2;
pub const LOGIN: i32 = -4;

/// Kinds of the parts of a transaction's answer, beside those of the requests.
const CREATED: i32 = 1;
const REFUSED: i32 = -1;

/// A message that is being written.
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

/// The first message: the wanted session, and its timeout in milliseconds.
pub fn hello(seen: i64, timeout: i32, session: i64, password: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.int(0);
    writer.long(seen);
    writer.int(timeout);
    writer.long(session);
    writer.bytes(if password.is_empty() { &[0; 16] } else { password });
    // Whether a read-only server will do, which has lost the others.
    writer.flag(false);
    writer.framed()
}

impl Ask {
    /// Writes to a node, whatever its version. What it says is the time of the write.
    pub const fn touch(path: String) -> Self {
        Self::Set { path, data: Vec::new(), version: None }
    }

    fn kind(&self) -> i32 {
        match self {
            Self::Create { .. } | Self::CreateForSession(_) => 15,
            Self::Delete(_) => 2,
            Self::Look(_) | Self::Watch(_) => 3,
            Self::Get(_) => 4,
            Self::Set { .. } => 5,
            Self::Acl(_) => 6,
            Self::Sync(_) => 9,
            Self::Ping => 11,
            Self::List(_) | Self::WatchEnd(_) => 12,
            Self::Check { .. } => 13,
            Self::All(_) => 14,
            Self::Login(_) => 100,
            Self::Close => -11,
        }
    }

    /// The request's bytes, with this xid.
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
            Self::CreateForSession(path) => create(writer, path, b"", access, 1),
            Self::Delete(path) => {
                writer.bytes(path.as_bytes());
                writer.int(-1);
            }
            Self::Set { path, data, version } => {
                writer.bytes(path.as_bytes());
                writer.bytes(data);
                writer.int(version.unwrap_or(-1));
            }
            Self::Check { path, version } => {
                writer.bytes(path.as_bytes());
                writer.int(version.unwrap_or(-1));
            }
            Self::Look(path) | Self::Get(path) | Self::List(path) => {
                writer.bytes(path.as_bytes());
                writer.flag(false);
            }
            Self::Watch(path) | Self::WatchEnd(path) => {
                writer.bytes(path.as_bytes());
                writer.flag(true);
            }
            Self::Sync(path) | Self::Acl(path) => writer.bytes(path.as_bytes()),
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
            Self::Login(secret) => {
                writer.int(0);
                writer.bytes(b"digest");
                writer.bytes(secret);
            }
            Self::Ping | Self::Close => {}
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
