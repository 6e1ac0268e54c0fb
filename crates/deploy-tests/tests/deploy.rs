//! What a deployment is made of: manifests, units, the image, the table of settings.

#[path = "deploy/programs.rs"]
mod programs;
#[path = "deploy/tools.rs"]
mod tools;

#[path = "deploy/image.rs"]
mod image;
#[path = "deploy/manifests.rs"]
mod manifests;
#[path = "deploy/settings.rs"]
mod settings;
#[path = "deploy/units.rs"]
mod units;
