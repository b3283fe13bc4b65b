//! Replies are seen wherever they wait: in the kernel, inside TLS, or behind the reply before.

use super::*;
use crate::store::net::tls::{Files, Tls};
use redis::cmd;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection};
use std::error::Error as Any;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

type Outcome<T = ()> = Result<T, Box<dyn Any>>;

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// The thread of a test's server.
type Served = JoinHandle<io::Result<()>>;

fn target(listener: &TcpListener, tls: Option<Tls>) -> Outcome<Target> {
    Ok(Target {
        address: Address::Tcp { host: "127.0.0.1".into(), port: listener.local_addr()?.port() },
        database: 0,
        username: None,
        password: Some("p".into()),
        tls,
        shown: "the server".into(),
        connect_timeout: LONG,
        op_timeout: LONG,
    })
}

fn soon() -> Moment {
    Moment::now().after(LONG)
}

/// Reads until `what` was received.
fn read_until(stream: &mut impl Read, what: &[u8]) -> io::Result<()> {
    let (mut heard, mut byte) = (Vec::new(), [0]);
    while !heard.windows(what.len()).any(|window| window == what) {
        stream.read_exact(&mut byte)?;
        heard.push(byte[0]);
    }
    Ok(())
}

#[test]
fn a_reply_behind_the_greeting() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let target = target(&listener, None)?;
    let server: Served = thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        read_until(&mut stream, b"BLPOP\r\n")?;
        stream.write_all(b"+OK\r\n$2\r\nhi\r\n")?;
        stream.read_exact(&mut [0; 1])
    });
    let mut connection = Connection::dial(&target, soon())?;
    connection.send(vec![cmd("BLPOP")], soon())?;
    assert!(connection.listen(Moment::now())?, "the reply is here, and no descriptor shows it");
    assert_eq!(connection.answer(soon())?, Value::BulkString(b"hi".into()));
    assert!(connection.if_good().is_some(), "and nothing else");
    let _ = server.join();
    Ok(())
}

/// A certificate for 127.0.0.1, for server and client.
fn both_ends(directory: &tempfile::TempDir) -> Outcome<(Arc<ServerConfig>, Tls)> {
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, issued.cert.pem())?;
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der())?;
    let server = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)?;
    Ok((Arc::new(server), Tls::read(Files { ca: Some(ca), ..Files::default() }, "the server")?))
}

/// TLS tickets make the descriptor readable, but are no reply; two replies in one packet are two.
#[test]
fn records_that_wait_inside_tls() -> Outcome {
    let directory = tempfile::tempdir()?;
    let (config, tls) = both_ends(&directory)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let target = target(&listener, Some(tls))?;
    let (go, going) = mpsc::channel();
    let server: Served = thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let mut session = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut both = rustls::Stream::new(&mut session, &mut stream);
        read_until(&mut both, b"BLPOP\r\n")?;
        both.write_all(b"+OK\r\n")?;
        both.flush()?;
        going.recv().map_err(io::Error::other)?;
        // An update of the keys is a record that carries no reply.
        session.refresh_traffic_keys().map_err(io::Error::other)?;
        session.write_tls(&mut stream)?;
        going.recv().map_err(io::Error::other)?;
        session.writer().write_all(b"$2\r\nhi\r\n")?;
        session.writer().write_all(b"$2\r\nho\r\n")?;
        let mut packet = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut packet)?;
        }
        stream.write_all(&packet)?;
        stream.read_exact(&mut [0; 1])
    });
    let mut connection = Connection::dial(&target, soon())?;
    connection.send(vec![cmd("BLPOP")], soon())?;
    go.send(())?;
    assert!(!connection.listen(Moment::now().after(Duration::from_millis(100)))?, "no reply yet");
    let mut connection = connection.if_good().ok_or("keys and tickets do not make a connection bad")?;
    go.send(())?;
    assert!(connection.listen(soon())?);
    assert_eq!(connection.answer(soon())?, Value::BulkString(b"hi".into()));
    assert!(connection.listen(Moment::now())?, "the second one came along");
    assert_eq!(connection.answer(soon())?, Value::BulkString(b"ho".into()));
    drop(connection);
    let _ = server.join();
    Ok(())
}

/// The error of a client whose server sends `begin` and then `more` without end.
fn flood(begin: &'static [u8], more: &'static [u8]) -> Outcome<Error> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let target = Target { password: None, ..target(&listener, None)? };
    let server: Served = thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(begin)?;
        let chunk = more.repeat(4096);
        loop {
            stream.write_all(&chunk)?;
        }
    });
    let mut connection = Connection::dial(&target, soon())?;
    let answer = connection.ask(cmd("TIME"), soon());
    drop(connection);
    let _ = server.join();
    answer.err().ok_or_else(|| "a flood is no answer".into())
}

/// The limit is reached long before the deadline.
#[test]
fn no_reply_is_endless() -> Outcome {
    let floods: [(&[u8], &[u8]); 6] = [
        (b"$2147483648\r\n", b"x"),
        (b"*2147483647\r\n", b":1\r\n"),
        (b"*2147483647\r\n", b"*0\r\n"),
        (b"*9223372036854775807\r\n", b"$-1\r\n"),
        (b"", b"*1\r\n"),
        (b"+", b"x"),
    ];
    for (begin, more) in floods {
        let begun = Moment::now();
        let error = flood(begin, more)?;
        assert!(matches!(error, Error::Garbled(_)), "{begin:?}: {error}");
        assert!(Moment::now().since(begun) < LONG / 2, "{begin:?}");
    }
    Ok(())
}

/// Every kind of reply, also in pieces.
#[test]
fn replies() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let target = Target { password: None, ..target(&listener, None)? };
    let server: Served = thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        for byte in
            b"*7\r\n+OK\r\n+PONG\r\n:-3\r\n$-1\r\n$4\r\na\r\nb\r\n*-1\r\n*1\r\n$0\r\n\r\n-WRONGPASS no\r\n"
        {
            stream.write_all(&[*byte])?;
        }
        stream.read_exact(&mut [0; 1])
    });
    let mut connection = Connection::dial(&target, soon())?;
    let bulk = |text: &str| Value::BulkString(text.into());
    assert_eq!(
        connection.reply(soon())?,
        Value::Array(vec![
            Value::Okay,
            Value::SimpleString("PONG".into()),
            Value::Int(-3),
            Value::Nil,
            bulk("a\r\nb"),
            Value::Nil,
            Value::Array(vec![bulk("")]),
        ])
    );
    assert!(matches!(connection.answer(soon()), Err(Error::Password(_))));
    drop(connection);
    let _ = server.join();
    Ok(())
}
