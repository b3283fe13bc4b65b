//! What must the law never do, and do in the end? Here the rules one by one; random histories are next door.

use super::*;
use crate::lock::Key;

mod histories;
mod observer;

fn name(key: &str) -> Name {
    let name = Key::new(key).and_then(|key| Name::new("", &key));
    name.unwrap_or_else(|why| unreachable!("{key:?} is a good name: {why}"))
}

fn token(number: u32) -> Token {
    let token = Token::parse(&format!("{number:032x}"));
    token.unwrap_or_else(|why| unreachable!("32 hex digits: {why}"))
}
