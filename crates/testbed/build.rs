//! A new file among the migrations must rebuild this crate.

fn main() {
    println!("cargo::rerun-if-changed=../../migrations");
}
