//! What only a build with the default features shows. A test binary of its own, so that nothing else of the suite has to
//! be built for it a second time.

/// A dlock that was built without a store says where to get a build with it.
#[cfg(not(any(feature = "sql", feature = "etcd", feature = "zookeeper")))]
#[test]
fn a_store_that_was_not_built_in_is_78() -> std::io::Result<()> {
    for (scheme, user) in [("mysql", "app@"), ("postgres", "app@"), ("etcd", ""), ("zookeeper", "")] {
        for command in [&["run", "-k", "k", "--", "true"][..], &["status"], &["doctor"]] {
            let mut dlock = std::process::Command::new(env!("CARGO_BIN_EXE_dlock"));
            dlock.args(["--config", "/dev/null"]).args(command);
            dlock.env("DLOCK_STORE", format!("{scheme}://{user}127.0.0.1/ops"));
            let output = dlock.output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(78), "{said}");
            assert!(said.contains(&format!("without {scheme};")), "{said}");
            assert!(said.contains(&format!("--features {scheme}`")), "{said}");
        }
    }
    Ok(())
}
