//! `--replace`: which holders are asked to end, and which waiters are superseded.

use super::*;

impl Scene {
    fn on(&mut self, replaces: bool, not_replaceable: bool) -> &mut Self {
        self.terms = Terms { replaces, not_replaceable, ..Terms::default() };
        self
    }

    /// Acquires with `--replace`, waiting in the queue.
    fn replace(&mut self, who: u32, locks: &str) -> Acquired {
        self.on(true, false).acquire(who, locks, X, Patience::Queue)
    }

    fn superseded_by(answer: &Acquired) -> Option<u32> {
        if let Acquired::Superseded(superseded) = answer { Some(superseded.by.pid) } else { None }
    }
}

#[test]
fn the_newest_is_next_and_the_others_are_superseded() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X) && !scene.queue(2, "a", X));
    assert!(matches!(scene.replace(3, "a"), Acquired::Waiting(_)));
    assert_eq!(scene.renew(1, "a"), Renewal::Superseded);
    assert!(matches!(scene.replace(4, "a"), Acquired::Waiting(_)));
    assert_eq!(Scene::superseded_by(&scene.replace(3, "a")), Some(4));
    assert_eq!(Scene::superseded_by(&scene.replace(3, "a")), Some(4), "and again");
    assert_eq!(scene.seen("a").stat.superseded, 1);
    scene.leave(1, "a");
    // A waiter without `--replace` that came before keeps its turn, and is not asked to end for a
    // run that came while it waited.
    assert!(scene.on(false, false).queue(2, "a", X));
    assert!(matches!(scene.replace(4, "a"), Acquired::Waiting(_)));
    assert_eq!(scene.renew(2, "a"), Renewal::Renewed);
    scene.leave(2, "a");
    assert!(matches!(scene.replace(4, "a"), Acquired::Granted(_)));
    assert_eq!(scene.renew(4, "a"), Renewal::Renewed);
}

#[test]
fn a_hold_that_is_not_replaceable_is_waited_for() {
    let mut scene = Scene::new();
    assert!(scene.on(true, true).queue(1, "a", X));
    assert!(matches!(scene.replace(2, "a"), Acquired::Waiting(_)));
    assert_eq!(scene.renew(1, "a"), Renewal::Renewed);
    assert!(matches!(scene.on(true, true).acquire(3, "a", X, Patience::Queue), Acquired::Waiting(_)));
    assert_eq!(Scene::superseded_by(&scene.replace(2, "a")), Some(3), "it had not begun");
    scene.leave(1, "a");
    assert!(scene.on(true, true).queue(3, "a", X));
}

#[test]
fn an_unconfirmed_grant_is_taken_back() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X));
    assert!(matches!(scene.replace(2, "ab"), Acquired::Waiting(_)));
    scene.leave(1, "a");
    assert!(matches!(scene.replace(3, "b"), Acquired::Granted(_)));
    assert_eq!(Scene::superseded_by(&scene.replace(2, "ab")), Some(3));
    assert!(scene.on(false, false).ask(4, "a", X), "it holds nothing more");
}

#[test]
fn while_paused_no_holder_is_asked() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X));
    let (a, by) = (name("a"), Owner::default());
    let pause = NewPause { by: &by, lasts: Duration::from_secs(3), shortens: true };
    assert!(!scene.table.pause(scene.now, &a, Some(pause)));
    assert!(matches!(scene.replace(2, "a"), Acquired::Waiting(_)));
    assert_eq!(scene.renew(1, "a"), Renewal::Renewed);
    scene.pass(3000);
    assert!(matches!(scene.replace(2, "a"), Acquired::Waiting(_)));
    assert_eq!(scene.renew(1, "a"), Renewal::Superseded);
}

#[test]
fn a_waiter_that_returns_late_is_not_the_newest() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X));
    assert!(matches!(scene.replace(2, "a"), Acquired::Waiting(_)));
    // The store was away and forgot the waiters; the newer one comes back first.
    scene.pass(700_000);
    assert!(matches!(scene.replace(3, "a"), Acquired::Granted(_)));
    scene.waited = Duration::from_secs(700);
    assert_eq!(Scene::superseded_by(&scene.replace(2, "a")), Some(3));
    scene.leave(3, "a");
    assert_eq!(Scene::superseded_by(&scene.replace(4, "a")), Some(3), "also when the newer one is done");
    scene.waited = Duration::ZERO;
    assert!(matches!(scene.replace(5, "a"), Acquired::Granted(_)));
}

#[test]
fn an_operators_request_takes_precedence() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X));
    let fence = scene.seen("a").holders[0].fence;
    scene.table.request(scene.now, &name("a"), fence, &Owner { pid: 9, ..Owner::default() });
    assert!(matches!(scene.replace(2, "a"), Acquired::Waiting(_)));
    assert_eq!(scene.renew(1, "a"), Renewal::Asked);
    assert_eq!(scene.seen("a").holders[0].asked.as_ref().map(|by| by.pid), Some(9));
}

#[test]
fn a_clock_that_was_set_back_supersedes_nobody() {
    let mut scene = Scene::new();
    assert!(matches!(scene.replace(1, "a"), Acquired::Granted(_)));
    scene.leave(1, "a");
    scene.now = Time(scene.now.0 - 3_600_000_000);
    assert!(matches!(scene.replace(2, "a"), Acquired::Granted(_)));
    scene.now = Time(scene.now.0 - 3_600_000_000);
    assert!(matches!(scene.replace(3, "a"), Acquired::Waiting(_)));
    assert_eq!(scene.renew(2, "a"), Renewal::Superseded, "and who holds it is asked all the same");
}
