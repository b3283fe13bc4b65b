//! What does a server get as the password? A text that stays, or one that is read anew before each connection, because it may
//! be changed while a lock is held or waited for. Where it is read from is the business of the [`Source`].
//!
//! A server may refuse a password that was just read: it was changed between the two. So it is read and shown once more before
//! that counts. After one was accepted, a refusal is an outage: whoever changes a password changes it in two places, one after
//! the other. Where none can be read any more, the one that was accepted last is shown: a vault may be away.

use crate::clock::Moment;
use crate::store::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a password is read from.
pub trait Source: Send + Sync {
    /// The password as it is now, by `by`. The error says why there is none; the caller names the store.
    fn read(&self, by: Moment) -> Result<String, Error>;

    /// The server has answered what was read last: it is not to be used for another connection.
    fn used(&self) {}
}

/// The password of a server. Its copies share what is known of it.
#[derive(Clone)]
pub enum Password {
    Fixed(Arc<str>),
    Read(Arc<Changing>),
}

/// A password that may change.
pub struct Changing {
    source: Box<dyn Source>,
    /// The last one that a server has accepted.
    proven: Mutex<Option<String>>,
    /// The first one that is accepted is the only one.
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

    /// The same, where a server takes any password, and one that is changed makes somebody else of whoever shows it: the first one
    /// stays for as long as this process lives.
    #[must_use]
    pub fn kept(self) -> Self {
        if let Self::Read(changing) = &self {
            changing.is_kept.store(true, Ordering::Relaxed);
        }
        self
    }

    /// Whether it may be another one the next time.
    pub const fn may_change(&self) -> bool {
        matches!(self, Self::Read(_))
    }
}

/// What a login may fail with.
pub trait Refusal: From<Error> {
    /// The error, where the server has answered it.
    fn refusal(&self) -> Option<&Error>;
}

impl Refusal for Error {
    fn refusal(&self) -> Option<&Error> {
        Some(self)
    }
}

/// Has `log_in` show the password to the server of `store`: once more with a fresh one, if it is refused and may have changed.
pub fn log_in<T, E: Refusal>(
    store: &str,
    password: Option<&Password>,
    by: Moment,
    mut log_in: impl FnMut(Option<&str>) -> Result<T, E>,
) -> Result<T, E> {
    let changing = match password {
        None => return log_in(None),
        Some(Password::Fixed(text)) => return log_in(Some(text)),
        Some(Password::Read(changing)) => changing,
    };
    let denied = |error: &E| match error.refusal() {
        Some(Error::Denied(why)) => Some(why.clone()),
        _ => None,
    };
    let read =
        || changing.source.read(by).map_err(|error| E::from(error.map(|why| format!("{store}: {why}"))));
    let mut show = |text: String| {
        let answer = log_in(Some(&text));
        if answer.as_ref().map_or_else(|error| denied(error).is_some(), |_| true) {
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
            Err(error) if denied(&error).is_some() && !by.passed() => read().and_then(&mut show),
            answer => answer,
        },
        // What the password is read from may be away, and the password still be good.
        (Err(unread), Some(text)) if denied(&unread).is_some() => match show(text) {
            Err(error) if denied(&error).is_some() => Err(unread),
            answer => answer,
        },
        (Err(unread), _) => Err(unread),
    };
    match answer.as_ref().err().and_then(denied) {
        Some(why) if proven.is_some() => Err(Error::Unavailable(why).into()),
        _ => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The passwords that are read, the last one again and again.
    struct Texts(Mutex<Vec<&'static str>>);

    impl Source for Texts {
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
    fn a_refused_password_is_read_once_more_and_is_an_outage_after_one_was_accepted() -> Result<(), Error> {
        let by = || Moment::now().after(std::time::Duration::from_secs(60));
        let mut shown = Vec::new();
        let mut knock = |password: &Password, good: &str| {
            log_in("s", Some(password), by(), |text| {
                shown.push(text.unwrap_or_default().to_owned());
                if text == Some(good) { Ok(()) } else { Err(Error::Denied("no".into())) }
            })
        };
        let password = Password::read_from(Texts(Mutex::new(vec!["a", "b", "c", "d"])));
        assert_eq!(knock(&password, "z"), Err(Error::Denied("no".into())), "a and b");
        knock(&password.clone(), "d")?;
        assert_eq!(knock(&password, "z"), Err(Error::Unavailable("no".into())), "d twice");
        assert_eq!(knock(&"a".into(), "z"), Err(Error::Denied("no".into())));
        assert_eq!(shown, ["a", "b", "c", "d", "d", "d", "a"]);
        Ok(())
    }

    /// One password, and then nothing.
    struct Once(Mutex<Option<&'static str>>);

    impl Source for Once {
        fn read(&self, _: Moment) -> Result<String, Error> {
            let text = self.0.lock().ok().and_then(|mut text| text.take());
            text.map(str::to_owned).ok_or_else(|| Error::Denied("the vault is away".into()))
        }
    }

    #[test]
    fn the_last_good_one_is_shown_where_none_can_be_read() -> Result<(), Error> {
        let by = || Moment::now().after(std::time::Duration::from_secs(60));
        let knock = |password: &Password, good: &str| {
            log_in("s", Some(password), by(), |text| {
                if text == Some(good) { Ok(()) } else { Err(Error::Denied("no".into())) }
            })
        };
        let password = Password::read_from(Once(Mutex::new(Some("a"))));
        knock(&password, "a")?;
        knock(&password, "a")?;
        assert_eq!(knock(&password, "b"), Err(Error::Unavailable("s: the vault is away".into())));
        let never = Password::read_from(Once(Mutex::new(None)));
        assert_eq!(knock(&never, "a"), Err(Error::Denied("s: the vault is away".into())));
        let kept = Password::read_from(Texts(Mutex::new(vec!["a", "b"]))).kept();
        knock(&kept, "a")?;
        knock(&kept, "a")
    }
}
