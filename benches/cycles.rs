//! How much can a Redis server do for dlock? Speaks to one through dlock's own store code, so that what goes over the wire is
//! what dlock says. `cycles PORT run KEYS SECONDS` prints how many cycles of acquire and leave were done. `hold KEYS` and
//! `leave KEYS` leave so many locks held, or idle; `queue KEYS` has one wait for each of those held. `storm COUNT` makes so
//! many connections within a second, each for one cycle, and prints how many failed and after how many seconds the last
//! was through.

use dlock::clock::Moment;
use dlock::lock::{By, Key, Mode, Name, Names, Owner, Token};
use dlock::rules::{Acquired, Ask, End, Outcome, Patience, Ran, Terms};
use dlock::store::Store as _;
use dlock::store::net::Address;
use dlock::store::redis::{RedisStore, Target};
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// So many ask at the same time, each for a lock of its own.
const AT_A_TIME: usize = 8;
const LONG: Duration = Duration::from_secs(30);

/// What happens to a lock after it was taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Keep,
    Leave,
    /// It is held: to wait for it is what is wanted.
    Queue,
}

fn store(port: u16) -> RedisStore {
    RedisStore::new(Target {
        address: Address::Tcp { host: "127.0.0.1".into(), port },
        database: 0,
        username: None,
        password: None,
        tls: None,
        shown: format!("redis://127.0.0.1:{port}"),
        connect_timeout: LONG,
        op_timeout: LONG,
    })
}

/// Whether the lock was had, or is waited for as was wanted.
fn cycle(store: &mut RedisStore, key: usize, then: Then) -> Done<bool> {
    let names = Names::from(Name::new("dlock:", &Key::new(&format!("bench-{key}"))?)?);
    let ask = Ask {
        token: Token::random()?,
        mode: Mode::Exclusive,
        ttl: LONG,
        min_hold: Duration::ZERO,
        owner: Owner {
            host: "web-1.example.org".into(),
            pid: 12345,
            user: "deploy".into(),
            command: "/usr/local/bin/report --daily".into(),
            reason: None,
            by: By::Run,
            ttl: None,
            once_per: None,
            rest: None,
        },
        patience: if then == Then::Queue { Patience::Queue } else { Patience::None },
        terms: Terms::default(),
        waited: Duration::ZERO,
        has_waited: false,
    };
    let by = Moment::now().after(LONG);
    let acquired = store.acquire(&names, &ask, by)?;
    let is_had = match then {
        Then::Queue => matches!(acquired, Acquired::Waiting(_)),
        Then::Keep | Then::Leave => matches!(acquired, Acquired::Granted(_)),
    };
    if is_had && then == Then::Leave {
        let end =
            End { ran: Ran::Cut(Outcome::Released), job: None, once_per: false, fence: None, pause: None };
        store.leave(&names, &ask.token, &end, by)?;
    }
    Ok(is_had)
}

/// Has several connections work until there is nothing left to do. How often `work` was done.
fn together(port: u16, most: usize, work: impl Fn(&mut RedisStore) -> Done<bool> + Sync) -> Done<usize> {
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME.min(most))
            .map(|_| {
                scope.spawn(|| -> Done {
                    let mut store = store(port);
                    while work(&mut store)? {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a thread died".into())))
    })?;
    Ok(done.into_inner())
}

fn main() -> Done {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [port, what, count, rest @ ..] = &*words else { return Ok(()) };
    let (port, count): (u16, usize) = (port.parse()?, count.parse()?);
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    match what.as_str() {
        "run" => {
            let span = Duration::from_secs_f64(rest.first().ok_or("for how long?")?.parse()?);
            let done = together(port, count, |store| {
                let key = next.fetch_add(1, Ordering::Relaxed) % count;
                Ok(began.elapsed() < span && cycle(store, key, Then::Leave).map(|_| true)?)
            })?;
            println!("{done}");
        }
        "hold" | "leave" | "queue" => {
            let then = match what.as_str() {
                "hold" => Then::Keep,
                "leave" => Then::Leave,
                _ => Then::Queue,
            };
            together(port, count, |store| {
                let key = next.fetch_add(1, Ordering::Relaxed);
                Ok(key < count && cycle(store, key, then)?)
            })?;
        }
        "storm" => {
            let failed = AtomicUsize::new(0);
            thread::scope(|scope| {
                for key in 0..count {
                    let failed = &failed;
                    let at = Duration::from_secs(1) * u32::try_from(key).unwrap_or(0)
                        / u32::try_from(count).unwrap_or(1);
                    thread::sleep(at.saturating_sub(began.elapsed()));
                    scope.spawn(move || {
                        if !cycle(&mut store(port), key, Then::Leave).unwrap_or(false) {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            println!("{} {}", failed.into_inner(), began.elapsed().as_secs_f64());
        }
        _ => return Err("run, hold, leave, queue or storm".into()),
    }
    Ok(())
}
