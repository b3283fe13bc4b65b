//! How does a shell learn dlock's words? Prints the script that clap_complete makes from the command line's structs.
//! Live key names are not completed here.

use crate::cli::{Cli, Completions, Shell};
use crate::error::Error;
use crate::exit::Exit;
use crate::output;
use clap::CommandFactory;

/// `dlock completions SHELL`.
pub fn completions(wanted: &Completions) -> Result<Exit, Error> {
    output::print(&script(wanted.shell)?)?;
    Ok(Exit::Ok)
}

/// The script for one shell.
pub fn script(shell: Shell) -> Result<String, Error> {
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut bytes = Vec::new();
    clap_complete::generate(generator, &mut Cli::command(), "dlock", &mut bytes);
    String::from_utf8(bytes).map_err(|error| Error::Internal(error.to_string()))
}
