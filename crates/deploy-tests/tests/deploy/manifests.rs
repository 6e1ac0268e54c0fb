//! Kubernetes manifests: accepted by its schema, and as careful as they claim to be.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::programs::{check_words, default_of, help, variables};
use crate::tools::{files, output, python, root};

/// Versions whose schema the manifests are checked against: the newest known one, and one that is still in wide use.
const VERSIONS: [&str; 2] = ["1.37", "1.31"];
/// What it takes to be told of the end, to give jobs back, and to flush.
const MARGIN: Duration = Duration::from_secs(10);

fn manifests(version: &str) -> Result<Vec<Value>> {
    let mut checker = Command::new(python()?);
    checker.arg(root().join("crates/deploy-tests/manifests.py")).arg(version);
    let json = output(checker.args(files("deploy/kubernetes", "yaml")?))?;
    serde_json::from_str(&json).context("read the manifests as JSON")
}

/// Name of a manifest and its pods' specification, for those that have pods.
fn pods() -> Result<Vec<(String, Value)>> {
    let with_pods = manifests(VERSIONS[0])?.into_iter().filter(|manifest| manifest["spec"]["template"].is_object());
    Ok(with_pods
        .map(|manifest| (text(&manifest["metadata"]["name"]), manifest["spec"]["template"]["spec"].clone()))
        .collect())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn manifests_are_accepted_strictly() -> Result<()> {
    for version in VERSIONS {
        ensure!(manifests(version)?.len() > 10, "manifests are missing");
    }
    Ok(())
}

#[test]
fn pods_are_unprivileged_and_read_only() -> Result<()> {
    for (name, pod) in pods()? {
        let security = &pod["securityContext"];
        ensure!(security["runAsNonRoot"] == true && security["seccompProfile"]["type"] == "RuntimeDefault", "{name}");
        ensure!(pod["automountServiceAccountToken"] == false, "{name} gets a token for the Kubernetes API");
        for container in list(&pod["containers"]) {
            let security = &container["securityContext"];
            ensure!(security["readOnlyRootFilesystem"] == true, "{name} may write to its image");
            ensure!(security["allowPrivilegeEscalation"] == false, "{name} may gain privileges");
            ensure!(security["capabilities"]["drop"] == serde_json::json!(["ALL"]), "{name} has capabilities");
            ensure!(container["resources"]["requests"]["cpu"].is_string(), "{name} requests no CPU");
            ensure!(container["resources"]["limits"]["memory"].is_string(), "{name} has no memory limit");
        }
    }
    Ok(())
}

#[test]
fn pods_get_secrets_by_reference_only() -> Result<()> {
    for manifest in manifests(VERSIONS[0])? {
        ensure!(manifest["kind"] != "Secret", "a secret's value does not belong into a manifest");
    }
    for (name, pod) in pods()? {
        for variable in list(&pod["containers"][0]["env"]) {
            let (variable, value) = (text(&variable["name"]), &variable["value"]);
            let secret = ["URL", "TOKEN", "PASSWORD", "KEY"].iter().any(|word| variable.contains(word));
            ensure!(!secret || value.is_null(), "{name} has the value of {variable} in its manifest");
        }
    }
    Ok(())
}

#[test]
fn only_schedulers_and_migrations_get_database_credentials() -> Result<()> {
    for (name, pod) in pods()? {
        let expected = name == "fencepost-scheduler" || name == "fencepost-migrate";
        ensure!(pod.to_string().contains("DATABASE_URL") == expected, "{name}");
    }
    Ok(())
}

#[test]
fn grace_period_is_longer_than_the_drain() -> Result<()> {
    let drain = default_of(&help("worker", &[])?, "--grace")?;
    for (name, pod) in pods()? {
        let grace = pod["terminationGracePeriodSeconds"].as_u64().with_context(|| format!("{name} has no grace"))?;
        ensure!(Duration::from_secs(grace) >= drain + MARGIN, "{name} has {grace} s, the drain takes {drain:?}");
    }
    Ok(())
}

#[test]
fn programs_know_the_flags_and_variables_that_pods_give_them() -> Result<()> {
    for (name, pod) in pods()? {
        let container = &pod["containers"][0];
        let args: Vec<&str> = list(&container["args"]).iter().filter_map(Value::as_str).collect();
        let (program, words) = args.split_first().with_context(|| format!("{name} names no program"))?;
        check_words(program, words).with_context(|| format!("read the arguments of {name}"))?;
        let known = variables(&help(program, words)?);
        for variable in list(&container["env"]) {
            ensure!(known.contains(&text(&variable["name"])), "{program} does not know {variable}: {known:?}");
        }
    }
    Ok(())
}

#[test]
fn probes_and_services_name_ports_that_containers_have() -> Result<()> {
    for (name, pod) in pods()? {
        let container = &pod["containers"][0];
        let ports: Vec<String> = list(&container["ports"]).iter().map(|port| text(&port["name"])).collect();
        for probe in ["readinessProbe", "livenessProbe"] {
            let port = &container[probe]["httpGet"]["port"];
            ensure!(name == "fencepost-migrate" || ports.contains(&text(port)), "{name}: {probe} asks {port}");
        }
    }
    Ok(())
}

#[test]
fn autoscaler_aims_at_one_job_per_slot() -> Result<()> {
    let manifests = manifests(VERSIONS[0])?;
    let scaler =
        manifests.iter().find(|manifest| manifest["kind"] == "HorizontalPodAutoscaler").context("no autoscaler")?;
    let target = &scaler["spec"]["metrics"][0]["external"]["target"]["averageValue"];
    let pods = pods()?;
    let (_, worker) = pods.iter().find(|(name, _)| name == "fencepost-worker").context("no worker")?;
    let slots = list(&worker["containers"][0]["env"]).iter().find(|variable| variable["name"] == "WORKER_CONCURRENCY");
    ensure!(&slots.context("no slots")?["value"] == target, "the target {target} is not the number of slots");
    Ok(())
}

#[test]
fn secrets_that_pods_need_are_documented() -> Result<()> {
    let readme = std::fs::read_to_string(root().join("deploy/README.md")).context("read deploy/README.md")?;
    for (name, pod) in pods()? {
        let variables =
            list(&pod["containers"][0]["env"]).iter().map(|variable| &variable["valueFrom"]["secretKeyRef"]["name"]);
        let volumes = list(&pod["volumes"]).iter().map(|volume| &volume["secret"]["secretName"]);
        for secret in variables.chain(volumes).filter_map(Value::as_str) {
            ensure!(
                readme.contains(&format!("`{secret}`")),
                "deploy/README.md does not say what {secret} of {name} holds"
            );
        }
    }
    Ok(())
}
