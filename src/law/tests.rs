//! What the law must never do, and must do in the end, over random histories of several locks in every mode.
