//! Tests that the layers win in their order, and that no setting is ignored.

use super::*;
use crate::cli::{Cli, Command, usage};
use crate::exit::OnLost;
use crate::lock::Wait;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use tempfile::TempDir;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A simulated machine, at first without variables and files.
struct Machine {
    dir: TempDir,
    environment: Environment,
}

impl Machine {
    fn new() -> std::io::Result<Self> {
        let dir = TempDir::new()?;
        let environment =
            Environment { variables: BTreeMap::new(), machine_file: dir.path().join("machine.toml") };
        Ok(Self { dir, environment })
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.environment.variables.insert(name, value.into());
        self
    }

    fn machine_file(self, text: &str) -> std::io::Result<Self> {
        std::fs::write(&self.environment.machine_file, text)?;
        Ok(self)
    }

    fn user_file(self, text: &str) -> std::io::Result<Self> {
        let config = self.dir.path().join(".config");
        std::fs::create_dir_all(&config)?;
        std::fs::write(config.join("dlock.toml"), text)?;
        let home = self.dir.path().display().to_string();
        Ok(self.with("HOME", &home))
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn run(&self, flags: &[&str]) -> Result<(Settings, run::Run), Error> {
        let line = ["dlock", "run", "-k", "k"].iter().chain(flags).chain(&["--", "true"]).map(OsString::from);
        match usage::parse(line) {
            Ok(usage::Parsed::Command(Cli { common, command: Command::Run(flags) })) => {
                let settings = Settings::resolve(&common, &self.environment)?;
                let run = settings.run(&flags)?;
                Ok((settings, run))
            }
            other => Err(Error::Usage(format!("{other:?}"))),
        }
    }

    fn settings(&self, flags: &[&str]) -> Result<Settings, Error> {
        Ok(self.run(flags)?.0)
    }

    /// The message for a setting that is refused with 78.
    fn refused(&self, flags: &[&str]) -> String {
        match self.run(flags) {
            Err(Error::Config(line)) => {
                assert!(!line.contains("hush"), "{line}");
                println!("{line}");
                line
            }
            other => unreachable!("{flags:?} gave {other:?}"),
        }
    }
}

/// The user and password of the store's login.
fn login(settings: &Settings) -> (Option<String>, Option<String>) {
    let known = settings.store.credentials.as_ref();
    let password = known.and_then(|login| {
        Some(match login.password.as_ref()? {
            Password::Text(secret) => secret.expose().into(),
            Password::File(path) => Secret::of_file(path, Duration::ZERO).ok()?.expose().into(),
            Password::Command(text) => format!("$({})", text.expose()),
        })
    });
    (known.and_then(|login| login.username.clone()), password)
}

/// The expected user, if any, and password.
fn user_and_password(user: &str, password: &str) -> (Option<String>, Option<String>) {
    (Some(user.to_owned()).filter(|user| !user.is_empty()), Some(password.into()))
}

#[test]
fn defaults() -> Outcome {
    let (settings, run) = Machine::new()?.run(&[])?;
    assert_eq!(settings.store.to_string(), DEFAULT_STORE);
    assert!(settings.store.origin().contains("DLOCK_STORE"));
    assert_eq!(settings.prefix, "dlock:");
    assert_eq!(settings.connect_timeout, Duration::from_secs(2));
    assert_eq!(settings.op_timeout, Duration::from_secs(1));
    assert_eq!(login(&settings), (None, None));
    assert_eq!(run.ttl.get(), Duration::from_secs(30));
    assert_eq!(run.grace, Duration::from_secs(10));
    assert_eq!((run.wait, run.busy, run.on_lost, run.max_run), (Wait::No, 75, OnLost::Stop, None));
    Ok(())
}

#[test]
fn flag_then_variable_then_user_file_then_machine_file() -> Outcome {
    let machine = Machine::new()?.machine_file("store = 'redis://machine'\nprefix = 'm:'\nttl = 7\n")?;
    assert_eq!(machine.settings(&[])?.store.to_string(), "redis://machine:6379");
    let machine = machine.user_file("store = 'redis://user'\nwait = true")?;
    let (settings, run) = machine.run(&[])?;
    assert_eq!(settings.store.to_string(), "redis://user:6379");
    assert!(settings.store.origin().ends_with("dlock.toml line 1"), "{}", settings.store.origin());
    assert_eq!(settings.prefix, "m:");
    assert_eq!((run.ttl.get().as_secs(), run.wait), (7, Wait::Forever));
    let machine = machine.with("DLOCK_STORE", "redis://variable").with("DLOCK_PREFIX", "");
    let settings = machine.settings(&[])?;
    assert_eq!(settings.store.source, Source::Variable("DLOCK_STORE"));
    assert_eq!(settings.prefix, "");
    let (settings, run) =
        machine.run(&["--store", "file:/f", "--prefix", "f:", "-t9", "-w0", "--min-hold=1"])?;
    assert_eq!((settings.store.to_string().as_str(), settings.prefix.as_str()), ("file:/f", "f:"));
    assert_eq!((run.ttl.get().as_secs(), run.wait), (9, Wait::No));
    Ok(())
}

#[test]
fn named_file_replaces_the_others() -> Outcome {
    let machine = Machine::new()?.machine_file("prefix = 'm:'")?;
    std::fs::write(machine.path("own.toml"), "op-timeout = 0.5")?;
    let own = machine.path("own.toml");
    let settings = machine.settings(&["--config", &own])?;
    assert_eq!((settings.prefix.as_str(), settings.op_timeout), ("dlock:", Duration::from_millis(500)));
    assert!(machine.refused(&["--config", "/nonexistent/x.toml"]).contains("no such file"));
    assert!(machine.refused(&["--config", "/"]).contains("not a regular file"));
    let machine = machine.with("DLOCK_CONFIG", "/nonexistent/y.toml");
    assert!(machine.refused(&[]).contains("DLOCK_CONFIG"));
    assert_eq!(machine.settings(&["--config", &own])?.prefix, "dlock:");
    Ok(())
}

/// The user's own is skipped, and said. The machine's is refused: going on would mean another
/// store.
#[test]
fn file_of_another_user_is_not_read() -> Outcome {
    let mut machine = Machine::new()?.user_file("prefix = 'u:'")?.machine_file("prefix = 'm:'")?;
    assert_eq!(machine.settings(&[])?.prefix, "u:");
    if !rustix::process::geteuid().is_root() {
        println!("skipped: this user cannot give a file away");
        return Ok(());
    }
    chown(machine.path(".config/dlock.toml"), Some(1000), None)?;
    let settings = machine.settings(&[])?;
    assert_eq!((settings.prefix.as_str(), settings.warnings.len()), ("m:", 1));
    machine.environment.variables.remove("HOME");
    assert_eq!(machine.settings(&[])?.warnings, [""; 0]);
    chown(&machine.environment.machine_file, Some(1000), None)?;
    let line = machine.refused(&[]);
    assert!(line.contains("another user (1000)") && line.contains("--config"), "{line}");
    // As it is bind-mounted into a container.
    let named = machine.environment.machine_file.display().to_string();
    assert_eq!(machine.settings(&["--config", &named])?.prefix, "m:");
    chown(&machine.environment.machine_file, Some(0), None)?;
    std::fs::set_permissions(&machine.environment.machine_file, Permissions::from_mode(0o666))?;
    let line = machine.refused(&[]);
    assert!(line.contains("may write it (mode 0666") && line.contains("chmod go-w"), "{line}");
    Ok(())
}

#[test]
fn set_but_empty_is_refused() -> Outcome {
    for name in VARIABLES.into_iter().filter(|name| !["DLOCK_PREFIX", "DLOCK_STORE"].contains(name)) {
        assert!(Machine::new()?.with(name, "").refused(&["--store=redis://h"]).contains(name));
    }
    let machine = Machine::new()?.with("DLOCK_STORE", "");
    assert!(machine.refused(&[]).contains("DLOCK_STORE"));
    assert_eq!(machine.settings(&["--store=redis://h"])?.store.to_string(), "redis://h:6379");
    for flag in ["--store=", "--config=", "--username=", "--password-file="] {
        assert!(Machine::new()?.refused(&[flag]).contains("empty"));
    }
    assert_eq!(Machine::new()?.settings(&["--prefix="])?.prefix, "");
    Ok(())
}

/// `docker --env-file` keeps quotes, systemd's EnvironmentFile strips them: with `"app:"` the two
/// lock in different places.
#[test]
fn quotes_and_white_space_around_a_value_are_refused() -> Outcome {
    let file = |name: &str| name == "DLOCK_PASSWORD_FILE" || name == "DLOCK_CONFIG";
    for name in VARIABLES.into_iter().filter(|name| !name.ends_with("PASSWORD") && !name.ends_with("COMMAND"))
    {
        for value in ["\"app:\"", "'app:'", "\"\""] {
            let line = Machine::new()?.with(name, value).refused(&["--store=file:/d"]);
            assert!(line.starts_with(name) && line.contains("quote"), "{line}");
        }
        if !file(name) {
            let one = Machine::new()?.with(name, "\"").run(&[]);
            assert!(!format!("{one:?}").contains("quote"), "{name}: {one:?}");
        }
    }
    for name in ["DLOCK_PASSWORD", "DLOCK_PASSWORD_COMMAND"] {
        assert!(Machine::new()?.with(name, "'x'").settings(&["--store=redis://h"]).is_ok(), "{name}");
    }
    assert_eq!(Machine::new()?.with("DLOCK_PREFIX", "\"a':").settings(&[])?.prefix, "\"a':");
    for prefix in [" app:", "app: ", "\u{a0}"] {
        assert!(Machine::new()?.with("DLOCK_PREFIX", prefix).refused(&[]).contains("white space"));
        assert!(Machine::new()?.refused(&["--prefix", prefix]).starts_with("--prefix: "));
        let file = Machine::new()?.machine_file(&format!("prefix = '{prefix}'"))?;
        assert!(file.refused(&[]).contains("line 1"), "{prefix:?}");
    }
    assert_eq!(Machine::new()?.settings(&["--prefix=a b:"])?.prefix, "a b:");
    Ok(())
}

#[test]
fn invalid_variables_are_refused() -> Outcome {
    for (name, value) in [
        ("DLOCK_STORE", "redis://a redis://b"),
        ("DLOCK_STORE", " redis://a"),
        ("DLOCK_STORE", "hush@h"),
        ("DLOCK_OP_TIMEOUT", "soon"),
        ("DLOCK_OP_TIMEOUT", "0"),
        ("DLOCK_CONNECT_TIMEOUT", "1 month"),
        ("DLOCK_LOG_FORMAT", "xml"),
        ("DLOCK_PREFIX", "a\nb"),
        ("DLOCK_PASSWORD_FILE", "/nonexistent/p"),
        ("DLOCK_PASSWORD_FILE", "hush/hush=="),
        ("DLOCK_USERNAME", "u"),
    ] {
        assert!(Machine::new()?.with(name, value).refused(&[]).starts_with(name), "{name}={value}");
    }
    let mut machine = Machine::new()?;
    let raw = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
    machine.environment.variables.insert("DLOCK_STORE", raw);
    assert!(machine.refused(&[]).contains("UTF-8"));
    let machine = Machine::new()?;
    assert!(machine.refused(&["--store=redis://a", "--store=redis://b"]).contains("two different"));
    assert_eq!(
        machine.settings(&["--store=redis://a", "--store=redis://a"])?.store.to_string(),
        "redis://a:6379"
    );
    Ok(())
}

#[test]
fn invalid_files_are_refused() -> Outcome {
    for (text, parts) in [
        ("\nstor = 'redis://h'", &["line 2", "'store'"][..]),
        ("tll = 3", &["line 1", "'ttl'"]),
        ("replicas = true", &["line 1", "replicas"]),
        ("store = 3", &["must be a string"]),
        ("store = ''", &["empty"]),
        ("ttl = '100ms'", &["500ms"]),
        ("ttl = -1", &["duration"]),
        ("ttl = '1y'", &["week"]),
        ("wait = [1]", &["duration"]),
        ("op-timeout = 0", &["greater than 0"]),
        ("busy-exit-code = 256", &["0 to 255"]),
        ("on-lost = 'shrug'", &["stop, warn"]),
        ("log-format = 'xml'", &["text, json"]),
        ("quiet = 'yes'", &["true or false"]),
        ("quiet = true\nverbose = true", &["line 2", "exclude"]),
        ("tree = true\nslots = 3", &["tree (", "line 1", "slots (", "line 2", "on the command line"]),
        ("ttl = 1\nttl = 2", &["line 2", "TOML", "'ttl'"]),
        ("ttl =\n", &["line 1", "TOML"]),
        ("[run]\nttl = 2", &["line 1", "'run'", "no sections"]),
        ("prefix = 'x'\n[dlock]\nttl = 2", &["line 2", "'dlock'", "no sections"]),
        ("key = 'k'", &["line 1", "-k KEY"]),
        ("password = 'hush", &["line 1", "TOML"]),
        ("password = 3", &["must be a string"]),
        ("password = 'hush'\npassword-file = '/dev/stdin'x", &["TOML"]),
        ("store = 'redis://u:hush/@h'", &["line 1"]),
    ] {
        let machine = Machine::new()?.machine_file(text)?;
        let line = machine.refused(&[]);
        for part in parts.iter().chain(&["machine.toml"]) {
            assert!(line.contains(part), "{text:?}: {part}: {line}");
        }
        assert!(!line.contains('\n'), "{line}");
    }
    let machine = Machine::new()?.machine_file("wait = true")?;
    assert!(machine.refused(&["--min-hold", "5"]).contains("--min-hold"));
    Ok(())
}

#[test]
fn password_of_the_highest_layer_wins() -> Outcome {
    let machine = Machine::new()?.machine_file("username = 'file'\npassword = 'hush-file'")?;
    assert_eq!(login(&machine.settings(&[])?), user_and_password("file", "hush-file"));
    assert_eq!(login(&machine.settings(&["--store=file:/x"])?), (None, None));
    let machine = machine.with("DLOCK_STORE", "redis://:hush-url@h");
    assert_eq!(login(&machine.settings(&[])?), user_and_password("file", "hush-url"));
    let machine = machine.with("DLOCK_PASSWORD", "hush-variable");
    let line = machine.refused(&[]);
    assert!(line.contains("DLOCK_PASSWORD") && line.contains("DLOCK_STORE"), "{line}");
    std::fs::write(machine.path("pw"), "hush-flag\r\n")?;
    let flag = format!("--password-file={}", machine.path("pw"));
    assert_eq!(login(&machine.settings(&[&flag, "--username=u"])?), user_and_password("u", "hush-flag"));
    let machine = machine.with("DLOCK_PASSWORD", "hush-url");
    assert_eq!(login(&machine.settings(&[])?), user_and_password("file", "hush-url"));
    let settings = machine.settings(&["--store=redis://v:hush-argv@h"])?;
    assert_eq!(login(&settings), user_and_password("v", "hush-argv"));
    assert_eq!(settings.warnings.len(), 1);
    assert!(!format!("{settings:?}").contains("hush"));
    Ok(())
}

#[test]
fn password_command_excludes_others_on_its_layer() -> Outcome {
    let machine = Machine::new()?.machine_file("username = 'u'\npassword-command = 'vault'")?;
    assert_eq!(login(&machine.settings(&[])?), user_and_password("u", "$(vault)"));
    assert_eq!(login(&machine.settings(&["--password-command=aws"])?), user_and_password("u", "$(aws)"));
    std::fs::write(machine.path("pw"), "hush")?;
    let flag = format!("--password-file={}", machine.path("pw"));
    assert_eq!(login(&machine.settings(&[&flag])?), user_and_password("u", "hush"));
    let line = machine.refused(&[&flag, "--password-command=vault"]);
    assert!(line.contains("--password-file and --password-command give different passwords"), "{line}");
    let machine = machine.with("DLOCK_PASSWORD_COMMAND", "cat");
    assert_eq!(login(&machine.settings(&[])?), user_and_password("u", "$(cat)"));
    let environment = machine.settings(&[])?.environment();
    assert!(environment.contains(&("DLOCK_PASSWORD_COMMAND", Some("cat".into()))), "{environment:?}");
    assert!(environment.contains(&("DLOCK_PASSWORD_FILE", None)), "{environment:?}");
    let machine = machine.with("DLOCK_PASSWORD", "hush");
    let line = machine.refused(&[]);
    assert!(line.contains("DLOCK_PASSWORD and DLOCK_PASSWORD_COMMAND give different passwords"), "{line}");
    let machine = machine.with("DLOCK_PASSWORD_COMMAND", "");
    assert!(machine.refused(&[]).contains("DLOCK_PASSWORD_COMMAND is set but empty"));
    let both = "password-file = 'pw'\npassword-command = 'vault'";
    let line = Machine::new()?.machine_file(both)?.refused(&[]);
    assert!(line.contains("line 1") && line.contains("line 2"), "{line}");
    Ok(())
}

#[test]
fn password_file_loses_one_line_end() -> Outcome {
    let machine = Machine::new()?.machine_file("password-file = 'pw'")?;
    for (bytes, password) in [
        (&b"hush"[..], Some("hush")),
        (b"hush\n", Some("hush")),
        (b"hush\r\n", Some("hush")),
        (b" hush \n\n", Some(" hush \n")),
        (b"", None),
        (b"\n", None),
        (b"\xff", None),
        (&[b'x'; 70_000], None),
    ] {
        std::fs::write(machine.path("pw"), bytes)?;
        match password {
            Some(password) => assert_eq!(login(&machine.settings(&[])?), user_and_password("", password)),
            None => assert!(machine.refused(&[]).contains("line 1")),
        }
    }
    Ok(())
}

#[test]
fn verbosity_format_and_colour() -> Outcome {
    let machine = Machine::new()?.machine_file("quiet = true\ncolor = 'always'\nlog-format = 'json'")?;
    let settings = machine.settings(&[])?;
    assert_eq!(
        (settings.verbosity, settings.color, settings.log_format),
        (Verbosity::Quiet, Color::Always, LogFormat::Json)
    );
    let machine = machine.with("NO_COLOR", "1").with("DLOCK_LOG_FORMAT", "text");
    let settings = machine.settings(&["-v"])?;
    assert_eq!(
        (settings.verbosity, settings.color, settings.log_format),
        (Verbosity::Verbose, Color::Never, LogFormat::Text)
    );
    assert_eq!(machine.settings(&["--color=always"])?.color, Color::Always);
    Ok(())
}

#[test]
fn a_file_in_shared_memory_is_no_descriptor() {
    let paths = [
        ("/dev/fd/3", true),
        ("/dev/stdin", true),
        ("/proc/self/fd/3", true),
        ("/dev/shm/word", false),
        ("/run/secrets/word", false),
    ];
    for (path, is_one) in paths {
        assert_eq!(credentials::may_be_descriptor(Path::new(path)), is_one, "{path}");
    }
}
