//! The keys of the locks of a night, and the registers that their jobs write.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Number of keys of each letter. Most runs want the first one.
pub const GROUPS: usize = 4;
/// The letters in the order of their registers. Each slot has a register, so the last letter has
/// three.
const LETTERS: &str = "abcdsmoxerln";
const REGISTERS_EACH: usize = 14;
/// Number of registers.
pub const REGISTERS: usize = GROUPS * REGISTERS_EACH;

/// The key of a letter. The keys of one wish lie in one slot of a cluster.
pub fn key(letter: char, group: usize) -> &'static str {
    static KEYS: OnceLock<BTreeMap<(char, usize), String>> = OnceLock::new();
    let keys = KEYS.get_or_init(|| {
        let all = LETTERS.chars().flat_map(|letter| (0..GROUPS).map(move |group| (letter, group)));
        all.map(|(letter, group)| match letter {
            'a'..='d' => ((letter, group), format!("{{{group}}}{letter}")),
            _ => ((letter, group), format!("{letter}{group}")),
        })
        .collect()
    });
    &keys[&(letter, group)]
}

pub fn register(letter: char, group: usize) -> usize {
    group * REGISTERS_EACH + LETTERS.find(letter).expect("a letter of ours")
}
