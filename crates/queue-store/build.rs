//! The migrations are part of the crate, but not of its folder.

fn main() {
    println!("cargo::rerun-if-changed=../../migrations");
}
