//! Another program on the port of a PostgreSQL server that is down: it learns no password.

use crate::support::wait::wait_until;
use crate::support::world::World;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[kind][..], &length, body].concat()
}

fn authentication(method: u32, rest: &[u8]) -> Vec<u8> {
    message(b'R', &[&method.to_be_bytes()[..], rest].concat())
}

/// A message of the client, without its length. The first message has no kind.
fn hear(stream: &mut TcpStream, has_kind: bool) -> Option<Vec<u8>> {
    let mut kind = [0; 1];
    if has_kind {
        stream.read_exact(&mut kind).ok()?;
    }
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

/// What dlock sends to a server that gives these answers, and how dlock ends.
fn told(answer: impl Fn(usize, &[u8]) -> Vec<u8> + Send + 'static) -> (Vec<Vec<u8>>, String) {
    let world = World::without_redis();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut heard: Vec<Vec<u8>> = Vec::new();
        while let Some(said) = hear(&mut stream, !heard.is_empty()) {
            stream.write_all(&answer(heard.len(), &said)).ok();
            heard.push(said);
        }
        heard
    });
    let url = format!("postgres://app@127.0.0.1:{port}/ops");
    let run = world.run("k", &["--store", &url], "echo ran >> log").env("DLOCK_PASSWORD", "sesame");
    let said = run.status(77).any_stderr().run().stderr;
    assert!(!said.contains("sesame"), "{said}");
    wait_until("it is over", || server.is_finished());
    (server.join().unwrap(), said)
}

#[test]
fn a_program_on_the_port_learns_no_password() {
    for (method, salt, what) in [(3, "", "in clear text"), (5, "salt", "with md5")] {
        let (heard, said) = told(move |_, _| authentication(method, salt.as_bytes()));
        assert!(said.contains(what) && said.contains("sslmode") && said.contains("socket"), "{said}");
        assert_eq!(heard.len(), 1, "nothing behind the name of the user");
    }
    let offer = |_: &[u8]| authentication(10, b"SCRAM-SHA-256\0\0");
    let first = |said: &[u8], iterations: u32| {
        let text = String::from_utf8_lossy(said).into_owned();
        let nonce = text.rsplit_once("r=").expect("a nonce").1.to_owned();
        authentication(11, format!("r={nonce}x,s=c2FsdHNhbHQ=,i={iterations}").as_bytes())
    };
    for iterations in [0, 1, 4095] {
        let (heard, said) = told(move |at, said| if at == 0 { offer(said) } else { first(said, iterations) });
        assert!(said.contains("fewer than 4096 iterations"), "{said}");
        assert_eq!(heard.len(), 2, "no proof");
    }
    // The server accepts the login without a proof of its own: at once, or after the client's
    // proof.
    let fine = || [authentication(0, b""), message(b'Z', b"I")].concat();
    let (_, said) = told(move |at, said| if at == 0 { offer(said) } else { fine() });
    assert!(said.contains("ended SCRAM"), "{said}");
    let (_, said) = told(move |at, said| match at {
        0 => offer(said),
        1 => first(said, 4096),
        _ => fine(),
    });
    assert!(said.contains("ended SCRAM"), "{said}");
    // Another proof is not accepted in its place.
    let (heard, said) = told(move |at, said| if at == 0 { offer(said) } else { authentication(3, b"") });
    assert!(said.contains("ended SCRAM"), "{said}");
    assert!(heard.iter().all(|said| !String::from_utf8_lossy(said).contains("sesame")));
}
