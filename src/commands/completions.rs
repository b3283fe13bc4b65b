//! `dlock completions`: prints the script that clap_complete makes from the command line's structs,
//! and makes it ask dlock for keys where an argument is a key. The module `complete` lists the
//! keys.

use crate::cli::complete::is_key;
use crate::cli::{Cli, Completions, Shell};
use crate::error::Error;
use crate::exit::Exit;
use crate::output;

/// What bash calls instead of the generated function. A broken script must not keep a shell from
/// completing, so on any failure this calls the generated function. dlock is looked up in PATH: the
/// word on the line may be any program of that name, and TAB must not run it.
const BASH: &str = r#"
_dlock_keys() {
    local keys
    if keys=$(command dlock complete-keys bash "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null </dev/null); then
        compopt +o bashdefault +o default 2>/dev/null
        COMPREPLY=()
        [[ -z $keys ]] || mapfile -t COMPREPLY <<<"$keys"
        return 0
    fi
    _dlock "$@"
}

"#;

const ZSH: &str = r#"_dlock_keys() {
    local -a keys
    keys=("${(@f)$(command dlock complete-keys zsh "$LBUFFER" 2>/dev/null </dev/null)}")
    keys=("${(@)keys:#}")
    compadd -a keys
}

"#;

const FISH: &str = "
function __dlock_keys
    command dlock complete-keys fish (commandline -cp | string collect) 2>/dev/null </dev/null
end

";

pub fn completions(wanted: &Completions) -> Result<Exit, Error> {
    output::print(&script(wanted.shell)?)?;
    Ok(Exit::Ok)
}

pub fn script(shell: Shell) -> Result<String, Error> {
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut bytes = Vec::new();
    clap_complete::generate(generator, &mut Cli::command(), "dlock", &mut bytes);
    let text = String::from_utf8(bytes).map_err(|error| Error::Internal(error.to_string()))?;
    Ok(match shell {
        Shell::Bash => bash(&text),
        Shell::Zsh => zsh(&text),
        Shell::Fish => fish(text),
    })
}

/// Keeps the generated function, which is called for everything that is not a key.
fn bash(generated: &str) -> String {
    let text = generated.replace("complete -F _dlock ", "complete -F _dlock_keys ");
    match text.rfind("\nif [[ \"${BASH_VERSINFO[0]}\"") {
        Some(at) => format!("{}{BASH}{}", &text[..at], text[at..].trim_start_matches('\n')),
        None => text,
    }
}

/// Sets the action of each argument that is a key. The action follows the last colon of an
/// argument, and is empty for a key.
fn zsh(generated: &str) -> String {
    let keys: Vec<String> = Cli::command()
        .get_subcommands()
        .flat_map(|command| command.get_positionals().filter(|argument| is_key(argument)))
        .map(|argument| format!(":{} -- ", argument.get_id()))
        .collect();
    let mut text = String::with_capacity(generated.len() + ZSH.len());
    for line in generated.split_inclusive('\n') {
        let operand = line.starts_with('\'') && keys.iter().any(|key| line.contains(key.as_str()));
        if line.starts_with("if [ \"$funcstack[1]\"") {
            text.push_str(ZSH);
        }
        if operand || line.contains("]:KEY:") {
            text.push_str(&line.replace(":' \\", ":_dlock_keys' \\"));
        } else {
            text.push_str(line);
        }
    }
    text
}

/// Adds a line for each argument that is a key. fish joins several lines about one option.
fn fish(mut text: String) -> String {
    text.push_str(FISH);
    for command in Cli::command().get_subcommands() {
        for argument in command.get_arguments().filter(|argument| is_key(argument)) {
            let mut line =
                format!("complete -c dlock -n \"__fish_dlock_using_subcommand {}\"", command.get_name());
            if let Some(short) = argument.get_short() {
                line.push_str(&format!(" -s {short}"));
            }
            if let Some(long) = argument.get_long() {
                line.push_str(&format!(" -l {long} -r"));
            }
            text.push_str(&line);
            text.push_str(" -f -a \"(__dlock_keys)\"\n");
        }
    }
    text
}
