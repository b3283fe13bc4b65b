//! The examples and claims of the documents, run as they are written.
//!
//! - ci: docs/ci.md, on simulated runners
//! - fence_example: the example of a fence in docs/guarantees.md
//! - forms: the lines by which a script takes a lock, and stops without it
//! - generated: man/ and completions/ are up to date with src/cli
//! - hold_recipes: the programs of docs/hold.md
//! - observability: the Prometheus rules and the dashboard in packaging/
//! - oversell: the example that shows why locks are needed
//! - packages: the Debian package and the rpm; only when asked for
//! - pictures: the pictures of the README and of docs are up to date
//! - readme: the commands of the README and of docs/track-record.md
//! - recipes: docs/recipes.md
//! - schema: JSON against docs/dlock.schema.json
//! - upgrade: records that released versions wrote

pub mod ci;
pub mod fence_example;
pub mod forms;
pub mod generated;
pub mod hold_recipes;
pub mod observability;
pub mod oversell;
pub mod packages;
pub mod pictures;
pub mod readme;
pub mod recipes;
pub mod schema;
pub mod upgrade;
