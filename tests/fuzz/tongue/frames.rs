//! The frames of the protocols, and the request number of an answer.

#[cfg(feature = "postgres")]
use crate::support::storm::Dice;

#[cfg(feature = "mysql")]
pub fn packet(number: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a length").to_le_bytes();
    [&length[..3], &[number], body].concat()
}

#[cfg(feature = "postgres")]
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("a length").to_be_bytes();
    [&[kind][..], &length, body].concat()
}

/// A row of odd values; its header may announce more of them than there are.
#[cfg(feature = "postgres")]
pub fn row(dice: &mut Dice) -> Vec<u8> {
    let values: [&[u8]; 10] =
        [b"t", b"r", b"w", b"e", b"", b"-1", b"18446744073709551615", b"646c6f636b3a6b", b"7b7d", b"\xff\0"];
    let count = u16::try_from(dice.roll(12)).unwrap_or(0);
    let mut body = count.saturating_add(u16::from(dice.roll(9) == 0)).to_be_bytes().to_vec();
    for _ in 0..count {
        if dice.roll(6) == 0 {
            body.extend([0xff; 4]);
            continue;
        }
        let value = dice.of(&values);
        body.extend(u32::try_from(value.len()).expect("a length").to_be_bytes());
        body.extend(*value);
    }
    body
}

#[cfg(feature = "etcd")]
pub fn http(status: u16, body: &[u8]) -> Vec<u8> {
    let date = "Date: Mon, 01 Jan 2035 00:00:00 GMT";
    let head = format!("HTTP/1.1 {status} X\r\n{date}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[cfg(feature = "zookeeper")]
pub fn frame(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).expect("a length").to_be_bytes(), body].concat()
}

/// All frames but the last one, and the last one.
#[cfg(feature = "zookeeper")]
pub fn frames(answer: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 0;
    while let Some(length) = answer.get(at..).and_then(|rest| rest.first_chunk()) {
        let next = at + 4 + u32::from_be_bytes(*length) as usize;
        if next >= answer.len() {
            break;
        }
        at = next;
    }
    answer.split_at(at)
}

/// The number of the request that is answered.
#[cfg(feature = "zookeeper")]
pub fn number_of(answer: &[u8]) -> &[u8] {
    answer.get(4..8).unwrap_or(&[0; 4])
}
