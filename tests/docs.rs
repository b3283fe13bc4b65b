//! What the documents say, run as it is written.
//!
//! - fence_example: the example of a fence in docs/guarantees.md
//! - generated: man/ and completions/ are what src/cli says
//! - hold_recipes: the programs of docs/hold.md
//! - observability: the Prometheus rules and the dashboard in packaging/
//! - oversell: the example that shows why there are locks
//! - packages: the Debian package and the rpm; only when asked for
//! - pictures: what the README shows is what a terminal shows
//! - readme: the commands of the README and of docs/track-record.md
//! - recipes: docs/recipes.md
//! - schema: JSON against docs/dlock.schema.json
//! - upgrade: records that released versions wrote

pub mod fence_example;
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
