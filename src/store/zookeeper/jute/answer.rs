//! Parses a server's answers. No length in them is trusted.

use super::{Answer, Ask, CREATED, Code, Grant, Head, REFUSED, Stat, Welcome};

/// Most children of a node. In memory, a short name takes ten times its size in the message.
const NAMES_MOST: usize = 1 << 18;
/// Most bytes of a watched path.
const PATH_MOST: usize = 8 * 1024;
/// Codes of the parts of a refused transaction that were not refused themselves.
const NO_REASON: [Code; 2] = [Code(0), Code(-2)];

impl Ask {
    /// Parses an answer behind its header. None if it is not understood.
    pub fn answer(&self, rest: &[u8]) -> Option<Result<Answer, Code>> {
        self.read(&mut Reader(rest))
    }

    fn read(&self, reader: &mut Reader<'_>) -> Option<Result<Answer, Code>> {
        let mut answer = Answer::default();
        match self {
            Self::Create { .. } | Self::CreateForSession(_) => {
                reader.bytes()?;
                answer.stat = reader.stat()?;
                answer.written = Some(answer.stat.mtime);
            }
            Self::Set { .. } => {
                answer.stat = reader.stat()?;
                answer.written = Some(answer.stat.mtime);
            }
            Self::Look(_) | Self::Watch(_) => answer.stat = reader.stat()?,
            Self::Get(_) => {
                answer.data = reader.bytes()?.to_vec();
                answer.stat = reader.stat()?;
            }
            Self::List(_) | Self::WatchEnd(_) => {
                answer.names = reader.names()?;
                answer.stat = reader.stat()?;
            }
            Self::Acl(_) => answer.acl = reader.acl()?,
            Self::All(parts) => return transaction(parts, reader),
            Self::Delete(_)
            | Self::Check { .. }
            | Self::Sync(_)
            | Self::Ping
            | Self::Login(_)
            | Self::Close => {}
        }
        Some(Ok(answer))
    }
}

/// Parses the answer to [`Ask::All`].
fn transaction(parts: &[Ask], reader: &mut Reader<'_>) -> Option<Result<Answer, Code>> {
    let (mut answer, mut refusal) = (Answer::default(), None);
    for part in parts {
        match reader.part()? {
            REFUSED => {
                // One of the parts has the reason. Those before it would have been done, and those
                // after it were not tried.
                let code = Code(reader.int()?);
                refusal = refusal.filter(|known| !NO_REASON.contains(known)).or(Some(code));
            }
            // Within a transaction, a create returns only the path.
            CREATED if matches!(part, Ask::Create { .. } | Ask::CreateForSession(_)) => {
                reader.bytes()?;
            }
            kind if kind == part.kind() => {
                let written = part.read(reader)?.ok()?.written;
                answer.written = answer.written.or(written);
            }
            _ => return None,
        }
    }
    Some(refusal.map_or(Ok(answer), Err))
}

/// The unread rest of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn int(&mut self) -> Option<i32> {
        self.chunk().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> Option<i64> {
        self.chunk().map(i64::from_be_bytes)
    }

    /// A length of -1 means null.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.int()?.max(0)).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn names(&mut self) -> Option<Vec<String>> {
        let count = usize::try_from(self.int()?.max(0)).ok()?;
        // Each name takes at least four bytes.
        if count > NAMES_MOST.min(self.0.len() / 4) {
            return None;
        }
        (0..count).map(|_| self.text()).collect()
    }

    fn acl(&mut self) -> Option<Vec<Grant>> {
        let count = usize::try_from(self.int()?.max(0)).ok()?;
        // Each entry takes at least twelve bytes.
        if count > self.0.len() / 12 {
            return None;
        }
        let mut next = || Some(Grant { rights: self.int()?, scheme: self.text()?, id: self.text()? });
        (0..count).map(|_| next()).collect()
    }

    fn stat(&mut self) -> Option<Stat> {
        let _born_and_changed: [u8; 24] = self.chunk()?;
        // The time must also fit in microseconds.
        let mtime = u64::try_from(self.long()?).ok().filter(|mtime| *mtime <= 1 << 50)?;
        let version = self.int()?;
        let _versions: [u8; 8] = self.chunk()?;
        let owner = self.long()?;
        let _sizes: [u8; 16] = self.chunk()?;
        Some(Stat { mtime, version, owner })
    }

    /// A header within a transaction's answer. Returns the kind of what follows.
    fn part(&mut self) -> Option<i32> {
        let kind = self.int()?;
        let _end_and_code: [u8; 5] = self.chunk()?;
        Some(kind)
    }
}

impl Welcome {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        reader.int()?;
        let timeout = u32::try_from(reader.int()?).ok().filter(|timeout| *timeout > 0);
        let session = reader.long()?;
        let password = reader.bytes()?.to_vec();
        (password.len() <= 64).then_some(Self { timeout, session, password })
    }
}

/// Splits a message into its header and the rest.
pub fn head(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let mut reader = Reader(bytes);
    let (number, seen) = (reader.int()?, reader.long()?);
    let code = Code(reader.int()?);
    Some((Head { number, seen, code }, reader.0))
}

/// Parses an event of a watch. Returns the path of the node.
pub fn event(rest: &[u8]) -> Option<String> {
    let mut reader = Reader(rest);
    let (_kind, _state) = (reader.int()?, reader.int()?);
    reader.text().filter(|path| path.len() <= PATH_MOST)
}
