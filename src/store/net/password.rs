//! The password for a server: a fixed text, or one that is read again before each connection
//! because it may change while a lock is held or waited for. A [`Source`] knows where to read it.
//!
//! A server may refuse a password that was just read, if it was changed in between. So it is read
//! and sent once more before the refusal counts. After a password was accepted once, a refusal is
//! an outage: the operator changes a password in two places, one after the other. If it can no
//! longer be read, the last accepted one is sent, because a vault may be away.

use super::failure::Failure;
use crate::clock::Moment;
use crate::store::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A place to read a password from.
pub trait Source: Send + Sync {
    /// The current password, by `deadline`. The error says why there is none; the caller adds the store's
    /// name.
    fn read(&self, deadline: Moment) -> Result<String, Error>;

    /// The server has answered the last password; do not use it for another connection.
    fn used(&self) {}

    /// The server has refused the last password.
    fn refused(&self) {}
}

/// The password of a server. Clones share what is known of it.
#[derive(Clone)]
pub enum Password {
    Fixed(Arc<str>),
    Read(Arc<Changing>),
}

/// A password that may change.
pub struct Changing {
    source: Box<dyn Source>,
    /// The last password that a server has accepted.
    proven: Mutex<Option<String>>,
    /// Whether the first accepted password is used from then on.
    is_kept: AtomicBool,
}

impl Changing {
    fn proven(&self) -> MutexGuard<'_, Option<String>> {
        self.proven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Self::Fixed(text.into())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

impl Password {
    pub fn read_from(source: impl Source + 'static) -> Self {
        Self::Read(Arc::new(Changing {
            source: Box::new(source),
            proven: Mutex::default(),
            is_kept: AtomicBool::new(false),
        }))
    }

    /// For a server that takes any password as part of the identity: the first accepted one is used
    /// for the life of this process, because another one would make it another user.
    #[must_use]
    pub fn kept(self) -> Self {
        if let Self::Read(changing) = &self {
            changing.is_kept.store(true, Ordering::Relaxed);
        }
        self
    }

    /// Whether the next read may give another password.
    pub const fn may_change(&self) -> bool {
        matches!(self, Self::Read(_))
    }
}

/// Runs `log_in` with the password for `store`. If the server refuses it and it may have changed,
/// runs it once more with a fresh one.
pub fn log_in<T>(
    store: &str,
    password: Option<&Password>,
    deadline: Moment,
    mut log_in: impl FnMut(Option<&str>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let changing = match password {
        None => return log_in(None),
        Some(Password::Fixed(text)) => return log_in(Some(text)),
        Some(Password::Read(changing)) => changing,
    };
    let denied = |failure: &Failure| match failure {
        Failure::Refused(Error::Password(why) | Error::Denied(why)) => Some(why.clone()),
        _ => None,
    };
    let read = || {
        let read = changing.source.read(deadline);
        read.map_err(|error| Failure::Refused(error.map(|why| format!("{store}: {why}"))))
    };
    let mut show = |text: String| {
        let answer = log_in(Some(&text));
        let is_refused = answer.as_ref().is_err_and(|error| denied(error).is_some());
        if is_refused {
            changing.source.refused();
        }
        if is_refused || answer.is_ok() {
            changing.source.used();
        }
        if answer.is_ok() {
            *changing.proven() = Some(text);
        }
        answer
    };
    let proven = changing.proven().clone();
    if changing.is_kept.load(Ordering::Relaxed)
        && let Some(text) = proven
    {
        return show(text);
    }
    let answer = match (read(), proven.clone()) {
        (Ok(first), _) => match show(first) {
            Err(error) if denied(&error).is_some() && !deadline.passed() => match read() {
                Ok(second) => show(second),
                Err(unread) if denied(&unread).is_some() => Err(unread),
                // There is no time left to read it again.
                Err(_) => Err(error),
            },
            answer => answer,
        },
        // The source may be away, and the password still good.
        (Err(unread), Some(text)) if denied(&unread).is_some() => match show(text) {
            Err(error) if denied(&error).is_some() => Err(unread),
            answer => answer,
        },
        (Err(unread), _) => Err(unread),
    };
    match answer.as_ref().err().and_then(denied) {
        Some(why) if proven.is_some() => Err(Failure::Refused(Error::Unavailable(why))),
        _ => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A source of these passwords; it repeats the last one.
    struct Passwords(Mutex<Vec<&'static str>>);

    impl Source for Passwords {
        fn read(&self, _: Moment) -> Result<String, Error> {
            let mut texts = self.0.lock().map_err(|error| Error::Denied(error.to_string()))?;
            let first = texts.first().copied().unwrap_or_default().to_owned();
            if texts.len() > 1 {
                texts.remove(0);
            }
            Ok(first)
        }
    }

    #[test]
    fn a_refused_password_is_read_again_and_after_a_success_is_an_outage() -> Result<(), Error> {
        let deadline = || Moment::now().after(std::time::Duration::from_secs(60));
        let mut shown = Vec::new();
        let mut try_password = |password: &Password, good: &str| {
            let answer = log_in("s", Some(password), deadline(), |text| {
                shown.push(text.unwrap_or_default().to_owned());
                if text == Some(good) { Ok(()) } else { Err(Error::Denied("no".into()).into()) }
            });
            answer.map_err(Error::from)
        };
        let password = Password::read_from(Passwords(Mutex::new(vec!["a", "b", "c", "d"])));
        assert_eq!(try_password(&password, "z"), Err(Error::Denied("no".into())), "a and b");
        try_password(&password.clone(), "d")?;
        assert_eq!(try_password(&password, "z"), Err(Error::Unavailable("no".into())), "d twice");
        assert_eq!(try_password(&"a".into(), "z"), Err(Error::Denied("no".into())));
        assert_eq!(shown, ["a", "b", "c", "d", "d", "d", "a"]);
        Ok(())
    }

    /// A source of one password, and then of none.
    struct Once(Mutex<Option<&'static str>>);

    impl Source for Once {
        fn read(&self, _: Moment) -> Result<String, Error> {
            let text = self.0.lock().ok().and_then(|mut text| text.take());
            text.map(str::to_owned).ok_or_else(|| Error::Denied("the vault is away".into()))
        }
    }

    #[test]
    fn the_last_accepted_password_is_sent_if_none_can_be_read() -> Result<(), Error> {
        let deadline = || Moment::now().after(std::time::Duration::from_secs(60));
        let try_password = |password: &Password, good: &str| {
            let answer = log_in("s", Some(password), deadline(), |text| {
                if text == Some(good) { Ok(()) } else { Err(Error::Denied("no".into()).into()) }
            });
            answer.map_err(Error::from)
        };
        let password = Password::read_from(Once(Mutex::new(Some("a"))));
        try_password(&password, "a")?;
        try_password(&password, "a")?;
        assert_eq!(try_password(&password, "b"), Err(Error::Unavailable("s: the vault is away".into())));
        let never = Password::read_from(Once(Mutex::new(None)));
        assert_eq!(try_password(&never, "a"), Err(Error::Denied("s: the vault is away".into())));
        let kept = Password::read_from(Passwords(Mutex::new(vec!["a", "b"]))).kept();
        try_password(&kept, "a")?;
        try_password(&kept, "a")
    }
}
