//! What a deployment is made of, and what people read first: manifests, units, the image, the settings, the README, the
//! examples, the views of the database.

#[path = "deploy/programs.rs"]
mod programs;
#[path = "deploy/psql.rs"]
mod psql;
#[path = "deploy/stage.rs"]
mod stage;
#[path = "deploy/tools.rs"]
mod tools;

#[path = "deploy/database.rs"]
mod database;
#[path = "deploy/examples.rs"]
mod examples;
#[path = "deploy/image.rs"]
mod image;
#[path = "deploy/manifests.rs"]
mod manifests;
#[path = "deploy/readme.rs"]
mod readme;
#[path = "deploy/settings.rs"]
mod settings;
#[path = "deploy/units.rs"]
mod units;
#[path = "deploy/views.rs"]
mod views;
