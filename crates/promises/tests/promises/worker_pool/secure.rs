//! Least privilege, transport security, and secrets that stay where they are.

use std::fs;

use client::v1::JobState;
use client::{Client, ConnectOptions, Error, Secret};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use testbed::{Process, free_address, listening};

use crate::jobs::{enqueue, is, job};
use crate::metrics::shows;
use crate::system::{PATIENCE, Scheduler, System, says, system};

#[tokio::test]
async fn the_scheduler_needs_no_more_than_a_role_that_owns_nothing() {
    // Roles belong to the server, so this one is named like the test's database.
    const CREATE: &str = "do $$ begin
        execute format('create role %I login password ''test-only''', current_database());
    end $$";
    const DROP: &str = "do $$ begin
        execute format('drop owned by %1$I; drop role %1$I', current_database());
    end $$";
    system(async |system| {
        system.db.run(CREATE).await;
        let url = system.db.url();
        let role = url.rsplit('/').next().and_then(|name| name.split('?').next()).expect("names a database");
        let as_owner = [("FENCEPOST_DATABASE_URL", url.as_str())];
        let mut migrate = system.processes.start("scheduler", &["migrate", "--app-role", role], &as_owner);
        assert!(migrate.exit(PATIENCE).await.success());
        let url = system.db.url_as(role, "test-only");
        let (address, metrics) = (free_address(), free_address());
        let env = [("FENCEPOST_DATABASE_URL", url.as_str())];
        let process = system.start_scheduler(address, metrics, &[("--session-ttl", "2s")], &env);
        listening(address, PATIENCE).await;
        let scheduler = Scheduler { process, address, metrics };
        let worker = system.exec_worker(&[&scheduler], &[("a", "true"), ("fails", "exit 65")], &[]);
        let client = scheduler.client();
        let (good, bad) = (enqueue(&client, job("a")).await, enqueue(&client, job("fails")).await);
        is(&client, good, JobState::Succeeded).await;
        is(&client, bad, JobState::Dead).await;
        let mut once = system.reaper(&[&scheduler], &["--once"]);
        assert!(once.exit(PATIENCE).await.success(), "also with tidying and the audit");
        let owned = "select count(*) from pg_class c join pg_roles r on r.oid = c.relowner
            where r.rolname = current_database()";
        assert_eq!(system.db.number(owned).await, 0);
        let powers = "select (rolsuper or rolcreatedb or rolcreaterole or rolbypassrls)::int::bigint from pg_roles
            where rolname = current_database()";
        assert_eq!(system.db.number(powers).await, 0);
        drop((worker, scheduler));
        system.db.run(DROP).await;
    })
    .await;
}

/// Whether the process listens on any port.
fn listens(process: &Process) -> bool {
    let id = process.id();
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{id}/fd"))
        .expect("it runs")
        .filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned()))
        .collect();
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{id}/net/{table}")).unwrap_or_default());
    let listening = tables.iter().flat_map(|table| table.lines()).filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        // State 0A is LISTEN; the tenth column is the socket.
        (columns.get(3) == Some(&"0A")).then(|| columns[9].to_owned())
    });
    listening.into_iter().any(|socket| sockets.contains(&socket))
}

#[tokio::test]
async fn the_worker_opens_no_inbound_port_and_knows_no_database() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let worker = system.exec_worker(&[&scheduler], &[("a", "true")], &[]);
        let id = enqueue(&scheduler.client(), job("a")).await;
        is(&scheduler.client(), id, JobState::Succeeded).await;
        assert!(listens(&scheduler.process), "the look finds ports");
        assert!(!listens(&worker));
        for binary in ["worker", "reaper"] {
            let mut help = system.processes.start(binary, &["--help"], &[]);
            assert!(help.exit(PATIENCE).await.success());
            says(&help, &["FENCEPOST_SCHEDULER"]).await;
            assert!(!help.log().join("\n").to_lowercase().contains("database_url"), "{binary} asks for a database");
        }
    })
    .await;
}

#[tokio::test]
async fn secrets_come_from_the_environment_and_are_not_shown_in_help() {
    system(async |system| {
        let secrets = [
            ("FENCEPOST_TOKEN", "planted-token"),
            ("FENCEPOST_DATABASE_URL", "postgres://u:planted-password@127.0.0.1/x"),
            ("DATABASE_URL", "postgres://u:planted-password@127.0.0.1/x"),
            ("FENCEPOST_HTTP", "a=http://u:planted-password@127.0.0.1/"),
        ];
        for args in [vec!["scheduler", "serve"], vec!["scheduler", "migrate"], vec!["worker"], vec!["reaper"]] {
            let flags: Vec<&str> = args[1..].iter().copied().chain(["--help"]).collect();
            let mut help = system.processes.start(args[0], &flags, &secrets);
            assert!(help.exit(PATIENCE).await.success());
            says(&help, &["--help"]).await;
            assert!(!help.log().join("\n").contains("planted"), "{args:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn who_has_not_the_token_can_do_nothing() {
    system(async |system| {
        let (address, metrics) = (free_address(), free_address());
        let token = ("FENCEPOST_TOKEN", "right");
        let _scheduler = system.start_scheduler(address, metrics, &[], &[token]);
        listening(address, PATIENCE).await;
        let url = format!("http://{address}");
        for wrong in [None, Some(Secret::new("wrong"))] {
            let client = Client::lazy(&ConnectOptions::new([&url]).with_token(wrong)).expect("valid options");
            let refused = client.enqueue(job("a")).await.expect_err("is refused");
            assert!(matches!(refused, Error::Denied(_)), "{refused}");
            client.queue_stats(&[]).await.expect_err("is refused");
        }
        shows(metrics, "fencepost_callers_refused_total", &[r#"reason="token""#], 4.0).await;
        let exec = format!("a={}", system.script("a", "true"));
        let args = ["--scheduler", &url, "--exec", &exec];
        let mut refused = system.processes.start("worker", &args, &[("FENCEPOST_TOKEN", "wrong")]);
        assert!(!refused.exit(PATIENCE).await.success());
        let _worker = system.processes.start("worker", &args, &[token]);
        let options = ConnectOptions::new([&url]).with_token(Some(Secret::new("right")));
        let client = Client::lazy(&options).expect("valid options");
        let id = enqueue(&client, job("a")).await;
        is(&client, id, JobState::Succeeded).await;
    })
    .await;
}

/// Writes an authority, and a certificate of it for the loopback address.
fn certificates(system: &System<'_>, name: &str) {
    let mut params = CertificateParams::new(Vec::new()).expect("valid");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signs");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("valid");
    let certificate = params.signed_by(&key, &authority).expect("signs");
    for (file, text) in [("ca", authority.pem()), ("crt", certificate.pem()), ("key", key.serialize_pem())] {
        fs::write(system.path(&format!("{name}.{file}")), text).expect("writes");
    }
}

#[tokio::test]
async fn tls_is_mutual_and_both_sides_verify_the_other() {
    system(async |system| {
        for name in ["ours", "strange"] {
            certificates(system, name);
        }
        let file = |name: &str| system.path(name).display().to_string();
        let (ca, crt, key) = (file("ours.ca"), file("ours.crt"), file("ours.key"));
        let (address, metrics) = (free_address(), free_address());
        let flags = [("--tls-cert", crt.as_str()), ("--tls-key", &key), ("--tls-client-ca", &ca)];
        let mut scheduler = system.start_scheduler(address, metrics, &flags, &[]);
        listening(address, PATIENCE).await;
        let url = format!("https://{address}");
        let exec = format!("a={}", system.script("a", "true"));
        let worker = |ca: &str, name: &str| {
            let (crt, key) = (file(&format!("{name}.crt")), file(&format!("{name}.key")));
            let args = ["--scheduler", &url, "--exec", &exec, "--tls-ca", ca, "--tls-client-cert", &crt];
            system.processes.start("worker", &[&args[..], &["--tls-client-key", &key]].concat(), &[])
        };
        // One trusts another authority than the scheduler's, the other shows a certificate of another than it trusts.
        let strangers = [
            (worker(&file("strange.ca"), "ours"), "check its authority (--tls-ca)"),
            (worker(&ca, "strange"), "check it (--tls-client-cert)"),
        ];
        for (stranger, check) in &strangers {
            says(stranger, &["cannot open a stream", check]).await;
        }
        assert_eq!(system.db.number("select count(*) from fencepost.worker").await, 0);
        let mut ours = worker(&ca, "ours");
        ours.logged("\"connected\"", PATIENCE).await;
        scheduler.logged("session opened", PATIENCE).await;
        assert_eq!(system.db.number("select count(*) from fencepost.worker").await, 1);
    })
    .await;
}
